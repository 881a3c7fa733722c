"""O14: reports about disks are true, and transient causes have no lasting effect (docs/decisions/0202).

A server whose disk was never full never answers NO_SPACE. Bytes that are written to an object after its file
was removed are not acknowledged; with a group log, they are not after its next check of the name. A folder
that is removed under a running server is noticed by the next two checks; without the folder of all objects
no server starts. At the end, a server whose disk was not damaged refuses no directory and no object, because
descriptors, rights and space are available then.
"""

from typing import TYPE_CHECKING, Final

from dos_protocol.errors import ErrorCode
from dos_server.limits import log_name_seconds
from tests.sim.oracles.oracle import Oracle

if TYPE_CHECKING:
    from dos_server.core.server_core import ServerCore
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine

_NO_SPACE: Final = int(ErrorCode.NO_SPACE)


class Causes(Oracle):
    """Checks what servers report about causes."""

    number = "O14"

    def append_refused(self, machine: "Machine", session: int, request_id: int, code: int) -> None:
        if code == _NO_SPACE and not machine.disk.was_full:
            self.object(f"{machine.name} refuses an append for lack of space, and its disk was never full")

    def acknowledged_bytes(self, machine: "Machine", directory: str, name: str, synced: int) -> None:
        most = machine.reportable_max.get((directory, name), synced)
        if synced > most and not _may_be_unnoticed(machine, directory, name):
            self.object(
                f"{machine.name} acknowledges {synced} bytes of {directory}/{name}, removed at {most}"
            )

    def overlooked(self, machine: "Machine", folder: str) -> None:
        self.object(f"{machine.name} continues to serve, though its folder {folder} was removed")

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            server = machine.server
            if server is not None and server.alive and not (machine.had_errors or machine.damaged):
                for what in permanent_refusals(server.core):
                    self.object(f"{machine.name}: {what}, and only transient causes can explain it")


def _may_be_unnoticed(machine: "Machine", directory: str, name: str) -> bool:
    """Return whether the group log has not checked the name since the removal: it does so at intervals."""
    server = machine.server
    if server is None or server.core._tables.log is None:
        return False
    state = server.core._tables.find(directory, name)
    return state is not None and state.named_until < machine.taken_away_at + log_name_seconds


def permanent_refusals(core: "ServerCore") -> list[str]:
    """Return what a server refuses permanently: directories and objects."""
    found = []
    for name, directory in core._tables.directories.items():
        if directory.problem:
            found.append(f"directory {name} is refused ({directory.problem})")
        found += [
            f"object {name}/{key} is refused"
            for key, state in directory.objects.items()
            if state.damaged or state.corrupt_from is not None
        ]
    return found
