"""A client of version 0: appends to a file as the original client does, reads files, removes one.

This file determines what such a client sends, and its timeouts. `files` checks the answers.
"""

from collections import deque
from typing import Final

from dos_protocol.errors import BrokenConnectionError, DosError
from dos_server.core.requests.version0_wire import LENGTH_BYTES, head
from tests.sim.engine.environment import Process, Signal
from tests.sim.engine.network import Network, Wire
from tests.sim.visitors import LOOSE
from tests.sim.visitors.visitor import Visitor

NAMES: Final = ("f", "g")
REPLY_S: Final = 2.0
PIECES_MAX: Final = 40


class RefusedError(DosError):
    """The server answered ERROR."""


class Connection0:
    """One connection. Raises BrokenConnectionError wherever it waits."""

    def __init__(self, process: Process, network: Network, address: str) -> None:
        self._process = process
        self._network = network
        self._address = address
        self._wire: Wire | None = None
        self._came = bytearray()
        self._replies: deque[bytes] = deque()
        self._over = False
        self._changed = Signal()

    async def open(self) -> None:
        answered: list[Wire | None] = []

        def done(wire: Wire | None) -> None:
            answered.append(wire)
            if wire is not None:
                wire.attach(self, dialler=True)
            self._changed.set()

        self._network.dial(self._process, self._address, done)
        await self._until(lambda: bool(answered))
        self._wire = answered[0] if answered else None
        if self._wire is None:
            raise BrokenConnectionError(f"cannot connect to {self._address}")

    async def ask(self, body: str) -> bytes:
        """Send a request and return its reply. Raises RefusedError."""
        self.send(head(len(body)) + body.encode("ascii"))
        await self._until(lambda: bool(self._replies))
        if not self._replies:
            raise BrokenConnectionError(f"{self._address} did not reply to {body[:1]}")
        reply = self._replies.popleft()
        if reply.startswith(b"ERROR"):
            raise RefusedError(reply.decode("ascii"))
        return reply

    def send(self, data: bytes) -> None:
        """Send bytes; b'' means that no more follow."""
        if self._over or self._wire is None:
            raise BrokenConnectionError(f"{self._address} ended the connection")
        self._wire.send(data, dialler=True)

    async def wait_over(self) -> None:
        """Wait until the server has ended the connection."""
        await self._until(lambda: False)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close(dialler=True)

    async def _until(self, there: "object") -> None:
        assert callable(there)
        deadline = self._process.now + REPLY_S
        while not there() and not self._over and self._process.now < deadline:
            await self._process.wait(self._changed, deadline - self._process.now)

    # For the network

    def received(self, data: bytes) -> None:
        self._came += data
        while len(self._came) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._came[:LENGTH_BYTES], "big")
            if len(self._came) < end:
                break
            self._replies.append(bytes(self._came[LENGTH_BYTES:end]))
            del self._came[:end]
        self._changed.set()

    def ended(self) -> None:
        self._over = True
        self._changed.set()


class Visitor0(Visitor):
    """A visitor of version 0."""

    async def _visit(self, address: str) -> None:
        connection = Connection0(self, self._network, address)
        try:
            await connection.open()
            await self._use(connection)
        finally:
            connection.close()

    async def _use(self, connection: Connection0) -> None:
        await connection.ask(f"u{LOOSE}")
        for _ in range(self._rng.randint(1, 4)):
            name, what = self._rng.choice(NAMES), self._rng.random()
            if what < 0.5:
                await self._append(connection, name)
                return
            if what < 0.8:
                offset, count = self._rng.choice([0, 0, 100, -5]), self._rng.choice([0, 0, 50])
                await connection.ask(f"g{name}\t{offset}\t{count}")
            elif what < 0.9:
                await connection.ask(f"s{name}")
            else:
                await connection.ask(f"d{name}")

    async def _append(self, connection: Connection0, name: str) -> None:
        """Append as the original client does: at the size that `l` reports, when no other client appends."""
        rng, pause_s = self._rng, 0.001
        while True:
            listed = [line.split("\t") for line in (await connection.ask("l")).decode("ascii").splitlines()]
            size, appending = next(
                ((int(size), now) for file, size, now in listed if file == name), (0, "no")
            )
            if appending == "no" or rng.random() < 0.2:
                break
            await self.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
        await connection.ask(f"a{name}\t{size}")
        for _ in range(rng.randint(0, PIECES_MAX)):
            connection.send(rng.randbytes(rng.choice([1, 30, 30, 200])))
            await self.sleep(rng.choice([0.0, 0.002, 0.02, 0.2]))
        if rng.random() < 0.6:
            connection.send(b"")
            await connection.wait_over()
