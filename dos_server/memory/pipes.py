"""One end of a connection in memory, with the words of a socket that does not block, and its face for trio.

What it does is what TCP of Linux does over loopback, and `tests/contract` says so of both: bytes stay in
order and come in any pieces; room is bounded; what arrived before the end or a reset is still read; who
closes with bytes unread resets; who sends to an end that is closed is reset; an error is reported once, after
it there is the end to read and a broken pipe to write.

Rules of this file: two ends and the two ways between them. When things arrive, and what is lost, `network`
says.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import trio

from dos_protocol.digests import Buffer

if TYPE_CHECKING:
    from dos_server.memory.network import MemoryNetwork


class PipeSignal(Enum):
    """What travels besides bytes."""

    FIN = auto()
    RESET = auto()


Item = bytes | PipeSignal
_SMALL_STEPS: Final = 0.1
"""So often, where chance has a say, a call takes a part of what it could."""


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class PipeDirection:
    """From one end to the other. Invariant: what is in flight arrives in order, each thing not before it is
    due. `forgotten`: nothing arrives any more, and who sends is not told."""

    def __init__(self, sender: "MemorySocket", receiver: "MemorySocket") -> None:
        self.sender = sender
        self.receiver = receiver
        self.in_flight: deque[tuple[float, Item]] = deque()
        self.in_flight_bytes = 0
        self.forgotten = False

    def send(self, item: Item) -> None:
        """It is under way."""
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
        """What is due arrives, if the way is open."""
        now, network = trio.current_time(), self.sender.network
        while self.in_flight and self.in_flight[0][0] <= now:
            if self.forgotten or network.is_blocked(self.sender.host, self.receiver.host):
                return
            _, item = self.in_flight.popleft()
            if isinstance(item, bytes):
                self.in_flight_bytes -= len(item)
            self.receiver.take(item)

    def lose(self) -> None:
        """Nothing of what is in flight arrives."""
        self.in_flight.clear()
        self.in_flight_bytes = 0


class MemorySocket:
    """See the module. `host`: where it is; `peer`: the other end; `moved`: called when there may be something
    to read or room to write."""

    family = socket.AF_UNSPEC

    def __init__(self, network: "MemoryNetwork", host: str, port: int) -> None:
        self.network = network
        self.host = host
        self.port = port
        self.peer: MemorySocket
        self.closed = False
        self.broken = False
        """Reset, by the peer or by the world."""
        self.unanswered = False
        """Bytes came while the machine was without power: who sent them sends them again when it is back."""
        self.moved: Callable[[], None] | None = None
        self.outgoing: PipeDirection
        self._arrived = bytearray()
        self._ended = False
        self._finished = False
        self._error = 0
        self._lot = trio.lowlevel.ParkingLot()

    def join(self, peer: "MemorySocket") -> None:
        """These two are the ends of one connection."""
        self.peer, peer.peer = peer, self
        self.outgoing, peer.outgoing = PipeDirection(self, peer), PipeDirection(peer, self)

    # What it is like, as epoll would say

    @property
    def readable(self) -> bool:
        return bool(self._arrived) or self._ended or self.broken

    @property
    def writable(self) -> bool:
        return self.broken or self._finished or self._room() > 0

    @property
    def unread_bytes(self) -> int:
        return len(self._arrived)

    def _room(self) -> int:
        return self.network.way_bytes_max - self.outgoing.in_flight_bytes - self.peer.unread_bytes

    def wake(self) -> None:
        """Something may be possible now that was not."""
        self._lot.unpark_all()
        if self.moved is not None:
            self.moved()

    async def wait(self) -> None:
        """Until something moved. Raises ClosedResourceError when this end is closed meanwhile."""
        await self._lot.park()
        if self.closed:
            await trio.lowlevel.checkpoint_if_cancelled()  # a process that was ended notices nothing else
            raise trio.ClosedResourceError("another task closed this socket")

    # What comes

    def take(self, item: Item) -> None:
        """Something arrives."""
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
        """Say that nobody is here to read what came, if the machine can say anything."""
        if self.unanswered and not self.network.is_dark(self.host):
            self.unanswered = False
            self.outgoing.send(PipeSignal.RESET)

    def vanish(self) -> None:
        """The machine loses its power: the end is gone without a word."""
        self.closed = True
        self.outgoing.lose()
        self.wake()

    def reset(self) -> None:
        """The connection is no more; what arrived before can be read."""
        if self.closed or self.broken:
            return
        self.broken = True
        if not self._ended:
            self._error = errno.ECONNRESET
        self.outgoing.lose()
        self.wake()

    # The words of a socket

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
        room = self._room()
        if total and room <= 0:
            raise BlockingIOError(errno.EAGAIN, "no room to send")
        count = self._part(min(total, room))
        if count:
            self.network.sends(self, count)
            self.outgoing.send(b"".join(buffers)[:count])
        return count

    def send(self, data: bytes, /) -> int:
        return self.sendmsg([data])

    def shutdown(self, how: int, /) -> None:
        """Nothing more is sent. The other ways of it are not here."""
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
        """This end is not used any more."""
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
        """It never blocks."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        """Nothing to set."""


class MemoryStream:
    """A `MemorySocket` for a task: it waits where a socket would block. The words are those of trio's
    sockets."""

    def __init__(self, sock: MemorySocket) -> None:
        self.socket = sock

    async def recv_into(self, buffer: memoryview | bytearray, /) -> int:
        return await self._when_it_can(lambda: self.socket.recv_into(buffer))

    async def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        return await self._when_it_can(lambda: self.socket.sendmsg(buffers))

    async def _when_it_can(self, call: Callable[[], int]) -> int:
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
        """End it. Who waits for it gets ClosedResourceError."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()
