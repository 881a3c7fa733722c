"""Hosts in memory, their listeners, the connections and paths between them, and faults of those paths.

Without a random generator and latency everything arrives at once and whole. With them, data takes time; it
arrives in order on each connection, in no order across connections, and in pieces of any size.

A socket behaves like TCP of Linux over loopback, which `tests/contract` checks for both:

- Bytes stay in order and arrive in any pieces; buffer space is bounded.
- What arrived before the end or a reset can still be read.
- Closing an end with unread bytes resets the connection; sending to a closed end is answered by a reset.
- An error is reported once. After that, reading returns the end and writing fails with a broken pipe.
"""

import errno
import heapq
import math
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from enum import Enum, auto
from itertools import count
from random import Random
from types import TracebackType
from typing import Final, Protocol, Self

import trio

from dos_protocol.digests import Buffer

# --- Calls after a delay, on trio's clock, by one task -----------------------------------------------------


class MemoryTimers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._sleep = trio.CancelScope()
        """The scope in which `run` waits; its deadline is the time of the next call."""

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        due = trio.current_time() + seconds
        heapq.heappush(self._heap, (due, next(self._numbers), call))
        if self._heap[0][0] == due:
            self._sleep.deadline = due

    async def run(self) -> None:
        heap = self._heap
        while True:
            while heap and heap[0][0] <= trio.current_time():
                heapq.heappop(heap)[2]()
            with trio.CancelScope(deadline=heap[0][0] if heap else math.inf) as self._sleep:
                await trio.sleep_forever()


# --- One end of a connection -------------------------------------------------------------------------------


class PipeSignal(Enum):
    FIN = auto()
    RESET = auto()


Item = bytes | PipeSignal
_SMALL_STEPS: Final = 0.1
"""With a random generator, the fraction of calls that transfer only a part of what they could."""


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class PipeNetwork(Protocol):
    timers: MemoryTimers
    rng: Random | None
    way_bytes_max: int

    def due(self, source: str, target: str) -> float: ...

    def is_blocked(self, source: str, target: str) -> bool: ...

    def is_dark(self, host: str) -> bool: ...

    def sends(self, sock: "MemorySocket", count: int) -> None: ...

    def closed(self, sock: "MemorySocket") -> None: ...


class PipeDirection:
    """One direction of a connection. Items arrive in order, none before it is due. `forgotten`: nothing
    arrives any more.
    """

    def __init__(self, sender: "MemorySocket", receiver: "MemorySocket") -> None:
        self.sender = sender
        self.receiver = receiver
        self.in_flight: deque[tuple[float, Item]] = deque()
        self.in_flight_bytes = 0
        self.forgotten = False

    def send(self, item: Item) -> None:
        network = self.sender.network
        due = network.due(self.sender.host, self.receiver.host)
        if self.in_flight:
            due = max(due, self.in_flight[-1][0])
        self.in_flight.append((due, item))
        if isinstance(item, bytes):
            self.in_flight_bytes += len(item)
        if due <= trio.current_time():
            self.deliver()
        else:
            network.timers.after(due - trio.current_time(), self.deliver)

    def deliver(self) -> None:
        """Deliver the items that are due, unless the path is blocked."""
        now, network = trio.current_time(), self.sender.network
        while self.in_flight and self.in_flight[0][0] <= now:
            if self.forgotten or network.is_blocked(self.sender.host, self.receiver.host):
                return
            _, item = self.in_flight.popleft()
            if isinstance(item, bytes):
                self.in_flight_bytes -= len(item)
            self.receiver.take(item)

    def lose(self) -> None:
        self.in_flight.clear()
        self.in_flight_bytes = 0


class MemorySocket:
    """One end of a connection. `moved`: called when it may have become readable or writable."""

    family = socket.AF_UNSPEC

    def __init__(self, network: PipeNetwork, host: str, port: int) -> None:
        self.network = network
        self.host = host
        self.port = port
        self.peer: MemorySocket
        self.closed = False
        self.broken = False
        """Reset, by the peer or by an injected fault."""
        self.unanswered = False
        """Bytes arrived while the machine was without power; the sender retransmits them when it is back."""
        self.moved: Callable[[], None] | None = None
        self.outgoing: PipeDirection
        self._arrived = bytearray()
        self._ended = False
        self._finished = False
        self._error = 0
        self._lot = trio.lowlevel.ParkingLot()

    def join(self, peer: "MemorySocket") -> None:
        self.peer, peer.peer = peer, self
        self.outgoing, peer.outgoing = PipeDirection(self, peer), PipeDirection(peer, self)

    # Readiness, as epoll reports it

    @property
    def readable(self) -> bool:
        return bool(self._arrived) or self._ended or self.broken

    @property
    def writable(self) -> bool:
        return self.broken or self._finished or self._free_bytes() > 0

    @property
    def unread_bytes(self) -> int:
        return len(self._arrived)

    def _free_bytes(self) -> int:
        return self.network.way_bytes_max - self.outgoing.in_flight_bytes - self.peer.unread_bytes

    def wake(self) -> None:
        self._lot.unpark_all()
        if self.moved is not None:
            self.moved()

    async def wait(self) -> None:
        await self._lot.park()
        if self.closed:
            await trio.lowlevel.checkpoint_if_cancelled()  # in a killed process the cancellation comes first
            raise trio.ClosedResourceError("another task closed this socket")

    # Arrivals

    def take(self, item: Item) -> None:
        if self.closed:
            if isinstance(item, bytes):
                self.unanswered = True
                self.answer()
            return
        if isinstance(item, bytes):
            self._arrived += item
        elif item is PipeSignal.FIN:
            self._ended = True
        else:
            self.reset()
            return
        self.wake()

    def answer(self) -> None:
        """Reset the peer that sent bytes to a closed end, unless this machine is without power."""
        if self.unanswered and not self.network.is_dark(self.host):
            self.unanswered = False
            self.outgoing.send(PipeSignal.RESET)

    def vanish(self) -> None:
        """Lose this end without notifying the peer: the machine lost its power."""
        self.closed = True
        self.outgoing.lose()
        self.wake()

    def reset(self) -> None:
        """Break the connection. Bytes that arrived before can still be read."""
        if self.closed or self.broken:
            return
        self.broken = True
        if not self._ended:
            self._error = errno.ECONNRESET
        self.outgoing.lose()
        self.wake()

    # The interface of a socket

    def _check_open(self) -> None:
        if self.closed:
            raise _error(errno.EBADF)

    def _part(self, count: int) -> int:
        rng: Random | None = self.network.rng
        if rng is None or count < 2 or rng.random() >= _SMALL_STEPS:
            return count
        return rng.randint(1, count)

    def recv_into(self, buffer: memoryview | bytearray, /) -> int:
        self._check_open()
        if self._arrived:
            count = self._part(min(len(buffer), len(self._arrived)))
            with memoryview(buffer).cast("B") as view:
                view[:count] = self._arrived[:count]
            del self._arrived[:count]
            if not self.peer.closed:
                self.peer.wake()
            return count
        if self._error:
            number, self._error = self._error, 0
            raise _error(number)
        if self._ended or self.broken:
            return 0
        raise BlockingIOError(errno.EAGAIN, "nothing to read")

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        self._check_open()
        if self._error:
            number, self._error = self._error, 0
            raise _error(number)
        if self.broken or self._finished:
            raise _error(errno.EPIPE)
        total = sum(map(len, buffers))
        free = self._free_bytes()
        if total and free <= 0:
            raise BlockingIOError(errno.EAGAIN, "no room to send")
        count = self._part(min(total, free))
        if count:
            self.network.sends(self, count)
            self.outgoing.send(b"".join(buffers)[:count])
        return count

    def send(self, data: bytes, /) -> int:
        return self.sendmsg([data])

    def shutdown(self, how: int, /) -> None:
        self._check_open()
        if how != socket.SHUT_WR:
            raise _error(errno.EINVAL)
        if self.broken:
            raise _error(errno.ENOTCONN)
        self._finish()

    def _finish(self) -> None:
        if not self._finished:
            self._finished = True
            self.outgoing.send(PipeSignal.FIN)
            self.wake()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if not self.broken:
            if self._arrived:
                self.outgoing.send(PipeSignal.RESET)
            else:
                self._finish()
        self.network.closed(self)
        self.wake()

    def getsockname(self) -> tuple[str, int]:
        self._check_open()
        return self.host, self.port

    def getpeername(self) -> tuple[str, int]:
        self._check_open()
        return self.peer.host, self.peer.port

    def setblocking(self, flag: bool, /) -> None:
        """Do nothing: it never blocks."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        """Do nothing: there are no options."""


class MemoryStream:
    def __init__(self, sock: MemorySocket) -> None:
        self.socket = sock

    async def recv_into(self, buffer: memoryview | bytearray, /) -> int:
        return await self._retry_when_ready(lambda: self.socket.recv_into(buffer))

    async def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        return await self._retry_when_ready(lambda: self.socket.sendmsg(buffers))

    async def _retry_when_ready(self, call: Callable[[], int]) -> int:
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            count = call()
        except BlockingIOError:
            pass
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return count
        while True:
            await self.socket.wait()
            try:
                return call()
            except BlockingIOError:
                continue

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()


# --- Hosts, listeners, paths -------------------------------------------------------------------------------


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
        if len(self._waiting) >= _BACKLOG_MAX:
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._waiting.append(sock)
        self._lot.unpark_all()

    def accept(self) -> tuple[MemorySocket, tuple[str, int]]:
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "no connection is waiting")
        sock = self._waiting.popleft()
        return sock, (sock.peer.host, sock.peer.port)

    async def wait(self) -> None:
        await self._lot.park()
        if self.closed:
            await trio.lowlevel.checkpoint_if_cancelled()  # in a killed process the cancellation comes first
            raise trio.ClosedResourceError("another task closed this listener")

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def setblocking(self, flag: bool, /) -> None:
        """Do nothing: it never blocks."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.listeners.pop((self.host, self.port), None)
            for sock in self._waiting:
                sock.close()
            self._lot.unpark_all()


class MemoryNetwork:
    """All hosts and connections. `rng` splits what is sent and received; `latency_s(source, target)`: of each
    message.
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
        if not port:
            self._last_port += 1
            port = self._last_port
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self.listeners[host, port] = MemoryListener(self, host, port)
        return listener

    async def connect(self, host: str, port: int) -> MemoryStream:
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
        ends = MemorySocket(self, "left", 1), MemorySocket(self, "right", 2)
        ends[0].join(ends[1])
        self.sockets.update(dict.fromkeys(ends))
        return ends

    # Called by sockets

    def due(self, source: str, target: str) -> float:
        return trio.current_time() + self._latency_s(source, target)

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def is_dark(self, host: str) -> bool:
        return host in self._dark

    def sends(self, sock: MemorySocket, count: int) -> None:
        self.bytes_sent += count
        self.trace(sock.host, f"sends {count} to {sock.peer.host}, {sock.port} to {sock.peer.port}")

    def closed(self, sock: MemorySocket) -> None:
        self.sockets.pop(sock, None)

    def silent_s(self, sock: MemorySocket) -> float:
        """Return for how many seconds the kernel of the peer's host could not answer on a connection."""
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
        self._blocked.clear()
        self._blocked_since.clear()
        self._deliver_all()

    def _deliver_all(self) -> None:
        for sock in list(self.sockets):
            sock.outgoing.deliver()
            sock.peer.outgoing.deliver()  # the peer may be closed, with data in flight
        self._lot.unpark_all()

    def reset(self, sock: MemorySocket) -> None:
        self.trace(sock.host, f"its connection {sock.port} with {sock.peer.host} is reset")
        for end in (sock, sock.peer):
            end.outgoing.lose()
        for end in (sock, sock.peer):
            end.reset()

    def forget(self, sock: MemorySocket) -> None:
        """Drop everything on a connection from now on, without telling either end: a middlebox that lost its
        state.
        """
        self.trace(sock.host, f"its connection {sock.port} with {sock.peer.host} is forgotten on the way")
        for end in (sock, sock.peer):
            end.outgoing.forgotten = True

    def process_died(self, host: str) -> None:
        for end in self._ends_of(host):
            end.close()
        for listener in [one for (at, _), one in self.listeners.items() if at == host]:
            listener.close()

    def power_lost(self, host: str) -> None:
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
