"""What must be true of shells, in addition to the oracles of `tests.sim.oracles`.

O3   what is read is what was written there
O10  queues are limited at every moment; after all clients have ended, the servers have nothing of them left;
     after the servers have ended, nothing is open
"""

from collections import Counter
from typing import TYPE_CHECKING

from dos_protocol.limits import KIB, payload_bytes_max
from dos_server.connection import ServerConnection
from dos_server.limits import outgoing_bytes_max, outgoing_total_bytes_max
from dos_server.server import ObjectServer
from tests.sim.history import History, ViolationError

if TYPE_CHECKING:
    from tests.shells.machines import Machine
    from tests.shells.run import Cluster

ENDS_MAX = 48
"""Connections of one client: with each of four servers an idle session, one of a claim, one of each directory
that it reads, and those that are ending."""
_SLACK_BYTES = 64 * KIB
"""Refusals, durability acks and headers of frames, which are not counted before they are sent."""


def check_read(history: History, directory: str, name: str, offset: int, data: bytes) -> None:
    """Check O3. Raises ViolationError."""
    content = history.segments.get((directory, name), b"")
    if data != content[offset : offset + len(data)]:
        raise ViolationError(
            "O3", f"{len(data)} bytes of {directory}/{name} at {offset} are not what was written"
        )


def check_bounds(machine: "Machine") -> None:
    """Check O10 of a running machine. Raises ViolationError."""
    if machine.host.server is not None:
        check_server(machine.name, machine.host.server)


def check_server(name: str, server: ObjectServer) -> None:
    """Check O10 of a running server. Raises ViolationError."""
    for connection in server._connections.values():
        _check_connection(name, connection)
    held = server.outgoing.held
    if held > outgoing_total_bytes_max + outgoing_bytes_max + payload_bytes_max:
        raise ViolationError("O10", f"{name} holds {held} bytes of answers that are not read")


def _check_connection(name: str, connection: ServerConnection) -> None:
    held = connection.outgoing_bytes
    if held > outgoing_bytes_max + payload_bytes_max + _SLACK_BYTES:
        raise ViolationError("O10", f"{name} holds {held} bytes for one peer that reads nothing")


def check_ends(cluster: "Cluster") -> None:
    """O10: check that clients close connections that they do not use. Raises ViolationError."""
    ends = Counter(sock.host for sock in cluster.network.sockets)
    for client in cluster.clients:
        if ends[client.name] > ENDS_MAX:
            raise ViolationError("O10", f"{client.name} has {ends[client.name]} connections open")


def check_nothing_left(cluster: "Cluster") -> None:
    """O10: check the servers some time after all clients have ended. Raises ViolationError."""
    for machine in cluster.machines:
        server = machine.host.server
        if server is not None:
            for what, left in _left_of_clients(server).items():
                if left:
                    raise ViolationError(
                        "O10", f"{machine.name} still has {left} {what} of clients that have ended"
                    )


def _left_of_clients(server: ObjectServer) -> dict[str, int]:
    return {
        "connections": len(server._connections),
        "sessions": len(server._core._tables.sessions),
        "bytes of answers": server.outgoing.held,
        "bytes of buffers": server.buffers.held,
        "waiting reads": len(server._reads.waiting),
        "stalled connections": len(server._stalled),
        "connections to be flushed": len(server._to_flush),
    }


def check_all_closed(cluster: "Cluster") -> None:
    """O10: check that nothing is open after the servers have ended. Raises ViolationError."""
    if cluster.network.sockets:
        ends = [f"{one.host}:{one.port}" for one in cluster.network.sockets]
        raise ViolationError("O10", f"ends of connections are left open: {ends[:5]}")
    for machine in cluster.machines:
        if machine.disk._handles:
            paths = sorted(path for _, path in machine.disk._handles.values())
            raise ViolationError("O10", f"{machine.name} left files open: {paths[:5]}")
