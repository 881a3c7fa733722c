"""One end of a connection in memory, with the interface of a non-blocking socket, and a version for trio.

It behaves like TCP of Linux over loopback, which `tests/contract` checks for both:

- Bytes stay in order and arrive in any pieces; buffer space is bounded.
- What arrived before the end or a reset can still be read.
- Closing an end with unread bytes resets the connection; sending to a closed end is answered by a reset.
- An error is reported once. After that, reading returns the end and writing fails with a broken pipe.

"""

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from random import Random
from types import TracebackType
from typing import Final, Protocol, Self

import trio

from dos_protocol.digests import Buffer
from dos_server.memory.timers import MemoryTimers


class PipeSignal(Enum):
    """What travels besides bytes."""

    FIN = auto()
    RESET = auto()


Item = bytes | PipeSignal
_SMALL_STEPS: Final = 0.1
"""With a random generator, the fraction of calls that transfer only a part of what they could."""


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class PipeNetwork(Protocol):
    """The network of a connection (`MemoryNetwork`): it decides when data arrives and what is lost."""

    timers: MemoryTimers
    rng: Random | None
    way_bytes_max: int

    def due(self, source: str, target: str) -> float: ...

    def is_blocked(self, source: str, target: str) -> bool: ...

    def is_dark(self, host: str) -> bool: ...

    def sends(self, sock: "MemorySocket", count: int) -> None: ...

    def closed(self, sock: "MemorySocket") -> None: ...


class PipeDirection:
    """One direction of a connection.

    Invariant: items in flight arrive in order, none before it is due. `forgotten`: nothing arrives any more,
    and the sender is not notified.
    """

    def __init__(self, sender: "MemorySocket", receiver: "MemorySocket") -> None:
        self.sender = sender
        self.receiver = receiver
        self.in_flight: deque[tuple[float, Item]] = deque()
        self.in_flight_bytes = 0
        self.forgotten = False

    def send(self, item: Item) -> None:
        """Put an item in flight."""
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
        """Lose everything in flight."""
        self.in_flight.clear()
        self.in_flight_bytes = 0


class MemorySocket:
    """One end of a connection.

    `host`: where it is; `peer`: the other end; `moved` is called when it may have become readable or
    writable.
    """

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
        """Connect two sockets."""
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
        """Wake waiters: the socket may have become readable or writable."""
        self._lot.unpark_all()
        if self.moved is not None:
            self.moved()

    async def wait(self) -> None:
        """Wait for a change. Raises ClosedResourceError if this end is closed meanwhile."""
        await self._lot.park()
        if self.closed:
            await trio.lowlevel.checkpoint_if_cancelled()  # in a killed process the cancellation comes first
            raise trio.ClosedResourceError("another task closed this socket")

    # Arrivals

    def take(self, item: Item) -> None:
        """Process an item that arrives."""
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
        """Break the connection. What arrived before can still be read."""
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
        """Stop sending. Only SHUT_WR is implemented."""
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
        """Close this end; reset the connection if bytes are unread."""
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
    """A `MemorySocket` for tasks: it waits where a socket would block. The interface of trio's sockets."""

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
        """Close it. Tasks that wait for it get ClosedResourceError."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()
