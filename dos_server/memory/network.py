"""Hosts in memory, their listeners, the paths between them, and faults of those paths.

Without a random generator and latency everything arrives at once and whole. With them, data takes time; it
arrives in order on each connection, in no order across connections, and in pieces of any size. `pipes`
decides what a socket reports of it.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Final

import trio

from dos_server.memory.pipes import MemorySocket, MemoryStream
from dos_server.memory.timers import MemoryTimers

_WAY_BYTES_MAX: Final = 256 * 1024
"""Sent and not yet read, in one direction of a connection: about what two kernels buffer."""
_BACKLOG_MAX: Final = 128
_FIRST_PORT: Final = 40_000

here: Final[ContextVar[str]] = ContextVar("dos_server.memory.here", default="client")
"""The host on which a task and its child tasks run."""


def _no_latency(_source: str, _target: str) -> float:
    return 0.0


def _no_trace(_who: str, _what: str) -> None:
    pass


class MemoryListener:
    """A listener of one host and port, with the interface of a listening socket."""

    def __init__(self, network: "MemoryNetwork", host: str, port: int) -> None:
        self.network = network
        self.host = host
        self.port = port
        self.closed = False
        self.moved: Callable[[], None] | None = None
        self._waiting: deque[MemorySocket] = deque()
        self._lot = trio.lowlevel.ParkingLot()

    @property
    def readable(self) -> bool:
        return bool(self._waiting)

    def enqueue(self, sock: MemorySocket) -> None:
        """Add an incoming connection. Raises ECONNREFUSED if the backlog is full."""
        if len(self._waiting) >= _BACKLOG_MAX:
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._waiting.append(sock)
        self._lot.unpark_all()

    def accept(self) -> tuple[MemorySocket, tuple[str, int]]:
        """Return the next connection. Raises BlockingIOError if none is waiting."""
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "no connection is waiting")
        sock = self._waiting.popleft()
        return sock, (sock.peer.host, sock.peer.port)

    async def wait(self) -> None:
        """Wait for a connection."""
        await self._lot.park()
        if self.closed:
            await trio.lowlevel.checkpoint_if_cancelled()  # in a killed process the cancellation comes first
            raise trio.ClosedResourceError("another task closed this listener")

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def setblocking(self, flag: bool, /) -> None:
        """Do nothing: it never blocks."""

    def close(self) -> None:
        """Accept no more connections, and close those that wait."""
        if not self.closed:
            self.closed = True
            self.network.listeners.pop((self.host, self.port), None)
            for sock in self._waiting:
                sock.close()
            self._lot.unpark_all()


class MemoryNetwork:
    """All hosts and connections.

    `rng` splits what is sent and received into pieces; `latency_s` returns the latency from host to host,
    anew for each message; `trace(host, what)` receives a trace of the connections.
    """

    def __init__(
        self,
        timers: MemoryTimers,
        rng: Random | None = None,
        latency_s: Callable[[str, str], float] = _no_latency,
        *,
        way_bytes_max: int = _WAY_BYTES_MAX,
        trace: Callable[[str, str], None] = _no_trace,
    ) -> None:
        self.timers = timers
        self.rng = rng
        self.way_bytes_max = way_bytes_max
        self.trace = trace
        self.listeners: dict[tuple[str, int], MemoryListener] = {}
        self.sockets: dict[MemorySocket, None] = {}
        """Open sockets, oldest first."""
        self.bytes_sent = 0
        self._latency_s = latency_s
        self._blocked: dict[tuple[str, str], int] = {}
        self._blocked_since: dict[tuple[str, str], float] = {}
        self._dark: dict[str, float] = {}
        """Host without power -> since when."""
        self._vanished: list[MemorySocket] = []
        self._lot = trio.lowlevel.ParkingLot()
        self._last_port = _FIRST_PORT

    # Connections

    def listen(self, host: str, port: int) -> MemoryListener:
        """Listen on a host and port; port 0 picks a free one. Raises OSError if the port is in use."""
        if not port:
            self._last_port += 1
            port = self._last_port
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self.listeners[host, port] = MemoryListener(self, host, port)
        return listener

    async def connect(self, host: str, port: int) -> MemoryStream:
        """Connect from the host in `here`. Raises ConnectionRefusedError; waits while the path is blocked."""
        origin = here.get()
        await trio.sleep(self._latency_s(origin, host) + self._latency_s(host, origin))
        while self.is_blocked(origin, host) or self.is_blocked(host, origin) or self.is_dark(host):
            await self._lot.park()
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._last_port += 1
        near, far = MemorySocket(self, origin, self._last_port), MemorySocket(self, host, port)
        near.join(far)
        listener.enqueue(far)
        self.sockets[near] = self.sockets[far] = None
        self.trace(origin, f"connects to {host}:{port} from {near.port}")
        return MemoryStream(near)

    def pair(self) -> tuple[MemorySocket, MemorySocket]:
        """Return the two ends of a connection, like `socket.socketpair`."""
        ends = MemorySocket(self, "left", 1), MemorySocket(self, "right", 2)
        ends[0].join(ends[1])
        self.sockets.update(dict.fromkeys(ends))
        return ends

    # Called by sockets

    def due(self, source: str, target: str) -> float:
        """Return the time at which what is sent now arrives."""
        return trio.current_time() + self._latency_s(source, target)

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether the path is blocked now."""
        return (source, target) in self._blocked

    def is_dark(self, host: str) -> bool:
        """Whether the host is without power."""
        return host in self._dark

    def sends(self, sock: MemorySocket, count: int) -> None:
        """Count and trace bytes that a socket sends."""
        self.bytes_sent += count
        self.trace(sock.host, f"sends {count} to {sock.peer.host}, {sock.port} to {sock.peer.port}")

    def closed(self, sock: MemorySocket) -> None:
        """Forget a socket that was closed."""
        self.sockets.pop(sock, None)

    def silent_s(self, sock: MemorySocket) -> float:
        """Return for how many seconds the kernel of the peer's host could not answer on a connection, because
        a path is blocked or the host has no power.
        """
        now, near, far = trio.current_time(), sock.host, sock.peer.host
        since = [self._blocked_since.get(path, now) for path in ((near, far), (far, near))]
        return now - min(*since, self._dark.get(far, now))

    # Faults

    def block(self, source: str, target: str) -> None:
        """Block a path. Blocks are counted: it opens after as many calls of `unblock`."""
        self._blocked[source, target] = self._blocked.get((source, target), 0) + 1
        self._blocked_since.setdefault((source, target), trio.current_time())

    def unblock(self, source: str, target: str) -> None:
        """Undo one `block`; when it was the last, what waited arrives, in order."""
        left = self._blocked.get((source, target), 0) - 1
        if left > 0:
            self._blocked[source, target] = left
        elif self._blocked.pop((source, target), None) is not None:
            del self._blocked_since[source, target]
            self._deliver_all()

    def unblock_all(self) -> None:
        """Open all paths."""
        self._blocked.clear()
        self._blocked_since.clear()
        self._deliver_all()

    def _deliver_all(self) -> None:
        for sock in list(self.sockets):
            sock.outgoing.deliver()
            sock.peer.outgoing.deliver()  # the peer may be closed, with data in flight
        self._lot.unpark_all()

    def reset(self, sock: MemorySocket) -> None:
        """Reset a connection: data in flight is lost, both ends get an error."""
        self.trace(sock.host, f"its connection {sock.port} with {sock.peer.host} is reset")
        for end in (sock, sock.peer):
            end.outgoing.lose()
        for end in (sock, sock.peer):
            end.reset()

    def forget(self, sock: MemorySocket) -> None:
        """Drop everything on a connection from now on, in both directions, without telling either end (half
        open).

        This is what a middlebox does that loses its state. `reset` of one end alone is what a kernel does
        that gives up.
        """
        self.trace(sock.host, f"its connection {sock.port} with {sock.peer.host} is forgotten on the way")
        for end in (sock, sock.peer):
            end.outgoing.forgotten = True

    def process_died(self, host: str) -> None:
        """Kill the processes of a host: the kernel closes their sockets."""
        for end in self._ends_of(host):
            end.close()
        for listener in [one for (at, _), one in self.listeners.items() if at == host]:
            listener.close()

    def power_lost(self, host: str) -> None:
        """Cut the power of a host: its sockets vanish, and no peer is notified."""
        self._dark.setdefault(host, trio.current_time())
        for listener in [one for (at, _), one in self.listeners.items() if at == host]:
            listener.close()
        for end in self._ends_of(host):
            end.vanish()
            self.sockets.pop(end, None)
            self._vanished.append(end)

    def power_back(self, host: str) -> None:
        """Restore the power of a host. It answers data on its old connections with a reset."""
        if self._dark.pop(host, None) is not None:
            for end in [one for one in self._vanished if one.host == host]:
                self._vanished.remove(end)
                end.answer()
            self._lot.unpark_all()

    def expire_keep_alive(self) -> None:
        """Reset the peers of hosts without power, as TCP keep-alive does after a while."""
        for end in self._vanished:
            end.peer.reset()

    def _ends_of(self, host: str) -> list[MemorySocket]:
        return [sock for sock in self.sockets if sock.host == host]
