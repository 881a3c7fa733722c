"""Sockets for guests: the connections of `network`, as sockets appear to the sessions of `dos_client`.

Connections of the simulator carry whole frames. What a session writes is split into frames here, and what
arrives is returned as bytes, as many as it reads at a time.
"""

import errno
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import trio

from dos_client.rounds import ClientRounds
from dos_client.runtime import replace_runtime
from dos_protocol.digests import Buffer
from dos_protocol.frames import Frame, FrameDecoder, frame_head
from dos_server.memory.host import MemoryRounds
from tests.sim.engine.guest import Guest
from tests.sim.engine.network import Network, Wire


class SimSocket:
    """One end of a connection, with what `sessions.connection` and `MemoryRounds` use of a socket."""

    writable, broken = True, False

    def __init__(self, wire: Wire, call: Callable[[Callable[[], object]], None]) -> None:
        self._wire = wire
        self._call = call
        self._decoder = FrameDecoder()
        self._came: deque[memoryview] = deque()
        self._over = False
        self._closed = False
        self.moved: Callable[[], None] | None = None
        wire.attach(self, dialler=True)

    # For the session

    @property
    def readable(self) -> bool:
        return bool(self._came) or self._over

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        sent = 0
        for buffer in buffers:
            sent += len(buffer)
            rest = memoryview(buffer)
            while rest:
                room = memoryview(self._decoder.writable())[: len(rest)]
                room[:] = rest[: len(room)]
                self._decoder.wrote(len(room))
                rest = rest[len(room) :]
                while (frame := self._decoder.next_frame()) is not None:
                    self._wire.send(frame._replace(payload=bytes(frame.payload)), dialler=True)
        return sent

    def recv_into(self, buffer: Any) -> int:
        if not self.readable:
            raise BlockingIOError(errno.EAGAIN, "nothing to read")
        into, count = memoryview(buffer), 0
        while self._came and count < len(into):
            piece = self._came.popleft()
            taken = min(len(piece), len(into) - count)
            into[count : count + taken] = piece[:taken]
            count += taken
            if taken < len(piece):
                self._came.appendleft(piece[taken:])
        return count

    def close(self) -> None:
        self._closed = True
        self._wire.close(dialler=True)

    # For the connection

    def received(self, frame: Frame) -> None:
        if not self._closed:
            self._came.append(memoryview(bytes(frame_head(frame))))
            if len(frame.payload):
                self._came.append(memoryview(bytes(frame.payload)))
            self._call(self._has_moved)

    def ended(self) -> None:
        self._over = True
        if not self._closed:
            self._call(self._has_moved)

    def _has_moved(self) -> None:
        if self.moved is not None:
            self.moved()


class _SimRuntime:
    """The `dos_client.runtime` of a guest."""

    def __init__(self, guest: "Client", network: Network) -> None:
        self.rng = guest.rng
        self._guest = guest
        self._network = network
        self._rounds = ClientRounds(MemoryRounds())

    def fresh_id(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    async def connect(self, host: str, port: int) -> tuple[SimSocket, ClientRounds]:
        """Connect; never return if there is no answer: the caller sets a time-out."""
        answered: list[Wire | None] = []
        done, given_up = trio.Event(), False

        def answer(wire: Wire | None) -> None:
            if given_up:
                if wire is not None:
                    wire.reset()
                return
            answered.append(wire)
            self._guest.call(done.set)

        self._network.dial(self._guest, f"{host}:{port}", answer)
        try:
            await done.wait()
        except trio.Cancelled:
            given_up = True
            for wire in answered:
                if wire is not None:
                    wire.reset()
            raise
        if answered[0] is None:
            raise ConnectionRefusedError("refused")
        return SimSocket(answered[0], self._guest.call), self._rounds


class Client(Guest):
    """A guest that uses `dos_client`: it dials in the simulated network, and has its own random stream."""

    def __init__(self, network: Network, name: str, rng: Random) -> None:
        super().__init__(network.env, name)
        self.network = network
        self.rng = rng

    def begin(self, main: Callable[[], Awaitable[None]]) -> None:
        async def with_runtime() -> None:
            replace_runtime(_SimRuntime(self, self.network))
            await main()

        super().begin(with_runtime)
