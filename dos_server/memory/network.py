"""Hosts in memory, who listens there, the paths between them, and what can go wrong with those.

Without chance and latency everything arrives at once and whole. With them, things take their time, in order
on each connection and in no order across connections, and come in pieces of any size.

Rules of this file: paths and hosts. What a socket says of it is `pipes`'.
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
"""Sent and not yet read, in one direction of a connection: what two kernels hold, about."""
_BACKLOG_MAX: Final = 128
_FIRST_PORT: Final = 40_000

here: Final[ContextVar[str]] = ContextVar("dos_server.memory.here", default="client")
"""The host that a task and those it starts are on."""


def _no_latency(_source: str, _target: str) -> float:
    return 0.0


def _untold(_who: str, _what: str) -> None:
    pass


class MemoryListener:
    """Where connections to a host and port come in. The words are those of a listening socket."""

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

    def come(self, sock: MemorySocket) -> None:
        """Somebody connects."""
        if len(self._waiting) >= _BACKLOG_MAX:
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._waiting.append(sock)
        self._lot.unpark_all()

    def accept(self) -> tuple[MemorySocket, tuple[str, int]]:
        """The next one."""
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "nobody waits")
        sock = self._waiting.popleft()
        return sock, (sock.peer.host, sock.peer.port)

    async def wait(self) -> None:
        """Until somebody comes."""
        await self._lot.park()
        if self.closed:
            await trio.lowlevel.checkpoint_if_cancelled()  # a process that was ended notices nothing else
            raise trio.ClosedResourceError("another task closed this listener")

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def setblocking(self, flag: bool, /) -> None:
        """It never blocks."""

    def close(self) -> None:
        """Nobody comes any more; who waits is turned away."""
        if not self.closed:
            self.closed = True
            self.network.listeners.pop((self.host, self.port), None)
            for sock in self._waiting:
                sock.close()
            self._lot.unpark_all()


class MemoryNetwork:
    """See the module. `rng`: cuts what is sent and received into pieces; `latency_s`: from host to host,
    each time anew; `told(who, what)` hears what happens on connections."""

    def __init__(
        self,
        timers: MemoryTimers,
        rng: Random | None = None,
        latency_s: Callable[[str, str], float] = _no_latency,
        *,
        way_bytes_max: int = _WAY_BYTES_MAX,
        told: Callable[[str, str], None] = _untold,
    ) -> None:
        self.timers = timers
        self.rng = rng
        self.way_bytes_max = way_bytes_max
        self.told = told
        self.listeners: dict[tuple[str, int], MemoryListener] = {}
        self.sockets: dict[MemorySocket, None] = {}
        """Those that are open, oldest first."""
        self.bytes_sent = 0
        self._latency_s = latency_s
        self._blocked: dict[tuple[str, str], int] = {}
        self._dark: dict[str, None] = {}
        self._vanished: list[MemorySocket] = []
        self._lot = trio.lowlevel.ParkingLot()
        self._last_port = _FIRST_PORT

    # Connections

    def listen(self, host: str, port: int) -> MemoryListener:
        """Take connections there from now on; port 0: one that is free. Raises OSError when somebody does
        already."""
        if not port:
            self._last_port += 1
            port = self._last_port
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self.listeners[host, port] = MemoryListener(self, host, port)
        return listener

    async def connect(self, host: str, port: int) -> MemoryStream:
        """A connection from `here`. Raises ConnectionRefusedError; waits while the way is blocked."""
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
        listener.come(far)
        self.sockets[near] = self.sockets[far] = None
        self.told(origin, f"connects to {host}:{port} from {near.port}")
        return MemoryStream(near)

    def pair(self) -> tuple[MemorySocket, MemorySocket]:
        """The two ends of a connection, as `socket.socketpair` has them."""
        ends = MemorySocket(self, "left", 1), MemorySocket(self, "right", 2)
        ends[0].join(ends[1])
        self.sockets.update(dict.fromkeys(ends))
        return ends

    # What sockets ask

    def due(self, source: str, target: str) -> float:
        """When what is sent now arrives."""
        return trio.current_time() + self._latency_s(source, target)

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether nothing arrives on that path now."""
        return (source, target) in self._blocked

    def is_dark(self, host: str) -> bool:
        """Whether the host has no power."""
        return host in self._dark

    def sends(self, sock: MemorySocket, count: int) -> None:
        """An end sends so many bytes."""
        self.bytes_sent += count
        self.told(sock.host, f"sends {count} to {sock.peer.host}, {sock.port} to {sock.peer.port}")

    def closed(self, sock: MemorySocket) -> None:
        """An end is closed."""
        self.sockets.pop(sock, None)

    # What goes wrong

    def block(self, source: str, target: str) -> None:
        """Nothing arrives from one at the other until it is unblocked as often."""
        self._blocked[source, target] = self._blocked.get((source, target), 0) + 1

    def unblock(self, source: str, target: str) -> None:
        """One reason less; what waited arrives then, in order."""
        left = self._blocked.get((source, target), 0) - 1
        if left > 0:
            self._blocked[source, target] = left
        elif self._blocked.pop((source, target), None) is not None:
            self._flow()

    def unblock_all(self) -> None:
        """Every path is open again."""
        self._blocked.clear()
        self._flow()

    def _flow(self) -> None:
        for sock in list(self.sockets):
            sock.outgoing.deliver()
            sock.peer.outgoing.deliver()  # it may be closed, with something under way
        self._lot.unpark_all()

    def reset(self, sock: MemorySocket) -> None:
        """A connection breaks: what is under way is lost, both ends hear of it."""
        self.told(sock.host, f"its connection {sock.port} with {sock.peer.host} is reset")
        for end in (sock, sock.peer):
            end.outgoing.lose()
        for end in (sock, sock.peer):
            end.reset()

    def forget(self, sock: MemorySocket) -> None:
        """A box on the way has forgotten the connection: nothing arrives any more either way, and neither end
        is told (half open). `reset` of one end alone is what a kernel does when it has lost patience."""
        self.told(sock.host, f"its connection {sock.port} with {sock.peer.host} is forgotten on the way")
        for end in (sock, sock.peer):
            end.outgoing.forgotten = True

    def process_died(self, host: str) -> None:
        """Whoever runs there is killed; the kernel closes what it had."""
        for end in self._ends_of(host):
            end.close()
        for listener in [one for (at, _), one in self.listeners.items() if at == host]:
            listener.close()

    def power_lost(self, host: str) -> None:
        """The host is gone, without a word to anybody."""
        self._dark[host] = None
        for listener in [one for (at, _), one in self.listeners.items() if at == host]:
            listener.close()
        for end in self._ends_of(host):
            end.vanish()
            self.sockets.pop(end, None)
            self._vanished.append(end)

    def power_back(self, host: str) -> None:
        """The host is there again, and knows no connection of old: who has sent it something hears that."""
        if self._dark.pop(host, host) is None:
            for end in [one for one in self._vanished if one.host == host]:
                self._vanished.remove(end)
                end.answer()
            self._lot.unpark_all()

    def kept_alive_no_more(self) -> None:
        """Others notice at last that hosts without power are gone, as TCP's keepalive tells them."""
        for end in self._vanished:
            end.peer.reset()

    def _ends_of(self, host: str) -> list[MemorySocket]:
        return [sock for sock in self.sockets if sock.host == host]
