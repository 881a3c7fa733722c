"""Clients without a claim in a directory that is never claimed: what their files may contain, clients of
version 0 and of version 1, and which runs have them.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from dos_client.core.window import append_id
from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_protocol.errors import BrokenConnectionError, DosError, NotFoundError, RefusedError
from dos_protocol.messages import Append, DurabilityAck
from dos_server.core.requests.version0_wire import LENGTH_BYTES, head
from tests.sim.engine.environment import Process, Signal
from tests.sim.engine.network import Network, Wire
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.oracles.store import ViolationError, payload_at
from tests.sim.store.session import Session
from tests.sim.visitors import LOOSE

if TYPE_CHECKING:
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine


# --- files ------------------------------------------------------------------------------------------------


ORACLE: Final = "V0"


class LooseFile:
    """One file. `content`: everything that may be in it; `synced`: how much of that was reported as synced.
    `holder`: the session of the client that streams into it, while it is open.
    """

    def __init__(self, machine: "Machine", name: str) -> None:
        self.machine = machine
        self.name = name
        self.path = f"d/{LOOSE}/{name}"
        self.content = bytearray()
        self.synced = 0
        self.holder: Any = None

    def begins(self, session: Any, offset: int) -> None:
        """A stream is accepted at that size."""
        self._check_lock(session, "a stream")
        self._check_offset(offset, "a stream")
        self.holder = session

    def streamed(self, data: bytes) -> None:
        """More bytes of the stream arrived."""
        self.content += data

    def appended(self, session: Any, offset: int, digest: int, data: bytes) -> None:
        """An append of version 1 is accepted."""
        self._check_lock(session, "an append")
        self._check_offset(offset, "an append")
        if prefix_digest(self.content) != digest:
            self._object(f"an append is accepted at {offset} after other content than its sender's (P-3)")
        self.content += data

    def reported(self, written: int, synced: int) -> None:
        """The server reported it: in a status frame, or by a durability ack."""
        if not synced <= written <= len(self.content):
            self._object(
                f"it reports {written} written, {synced} synced of at most {len(self.content)} bytes"
            )
        self.synced = max(self.synced, synced)
        reported = self.machine.reported  # may be less than what was reported before, because of damage
        reported[LOOSE, self.name] = max(reported.get((LOOSE, self.name), 0), synced)

    def cut_to(self, size: int) -> None:
        """It was damaged, and a person cut it to its undamaged part."""
        del self.content[size:]
        self.synced = size

    def returned(self, offset: int, data: bytes) -> None:
        """The server answered a `g`."""
        if self.content[offset : offset + len(data)] != data:
            self._object(f"it returns {len(data)} bytes at {offset} that differ from what was written")
        if data:
            self._durable(offset + len(data), "returns")

    def listed(self, size: int) -> None:
        """The server listed it."""
        self._durable(size, "lists")
        if size < self.synced and not self.damaged and not self._waits_for_space():
            self._object(f"it lists {size} bytes, {self.synced} were reported as synced")

    def on_platters(self) -> None:
        """Check at the end, when no client writes, that what was reported exists, and nothing else."""
        found = payload_at(self.machine.disk.after_start().content(self.path), self.path)
        if not self.content.startswith(found):
            self._object(f"its disk has {len(found)} bytes that differ from what was written")
        if len(found) < self.synced and not self.damaged:
            self._object(f"its disk has {len(found)} bytes, {self.synced} were reported as synced")

    @property
    def damaged(self) -> bool:
        """Return whether the run has damaged it, or its disk returned errors: then its server may report it
        as damaged, like any object there (O12)."""
        return self.path in self.machine.damaged or self.machine.had_errors

    def _waits_for_space(self) -> bool:
        """Return whether its server could not repair it at the start, for lack of space: until there is
        space, it returns less, or nothing, and accepts nothing (protocol.md, "Start-up", row N). O12 checks
        that it recovers then."""
        server = self.machine.server
        state = server.core._tables.find(LOOSE, self.name) if server is not None else None
        return state is not None and state.corrupt_from is not None and state.uncut_bytes > 0

    def _check_lock(self, session: Any, what: str) -> None:
        if self.holder is not None and self.holder is not session and self.holder.is_served:
            self._object(f"{what} is accepted while another stream has it locked")

    def _check_offset(self, offset: int, what: str) -> None:
        if offset > len(self.content) or (offset < self.synced and not self.damaged):
            self._object(
                f"{what} is accepted at {offset}; {self.synced} bytes were reported as synced, at most "
                f"{len(self.content)} were written"
            )
        del self.content[offset:]

    def _durable(self, size: int, does: str) -> None:
        durable = len(payload_at(self.machine.disk.after_start(durable=True).stable(self.path), self.path))
        if size > durable and not self.damaged:
            self._object(f"it {does} {size} bytes, {durable} are durable")

    def _object(self, what: str) -> None:
        raise ViolationError(ORACLE, f"{self.machine.name}, {LOOSE}/{self.name}: {what}")


class LooseFiles:
    """The files of one machine, on its current disk."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._disk = machine.disk
        self._files: dict[str, LooseFile] = {}

    def __getitem__(self, name: str) -> LooseFile:
        if self._machine.disk is not self._disk:
            self._disk = self._machine.disk
            self._files.clear()
        return self._files.setdefault(name, LooseFile(self._machine, name))

    def removal_requested(self, name: str) -> None:
        """A client requests to remove it: from now on it may be gone, unless another client streams into
        it."""
        file = self[name]
        if file.holder is None or not file.holder.is_served:
            self._machine.reported.pop((LOOSE, name), None)
            file.synced = 0

    def judge(self) -> None:
        """Check all files at the end of a run."""
        for name in list(self._files):
            self[name].on_platters()


# --- visitor ----------------------------------------------------------------------------------------------


class Visitor(Process, ABC):
    """One client process, which uses one server after the other, of those `known` to it."""

    def __init__(
        self, name: str, network: Network, known: "Callable[[], list[Machine]]", rng: Random
    ) -> None:
        super().__init__(network.env, name)
        self._network = network
        self._known = known
        self._rng = rng
        self.start("work", self._work())

    async def _work(self) -> None:
        while True:
            await self.sleep(self._rng.expovariate(1 / 0.3))
            try:
                await self._visit(self._rng.choice(self._known()).address)
            except DosError as error:
                self.env.sometimes[f"visitor: {type(error).__name__}"] += 1

    @abstractmethod
    async def _visit(self, address: str) -> None:
        """Use one server. Raises DosError."""


# --- version0 ---------------------------------------------------------------------------------------------


NAMES: Final = ("f", "g")
REPLY_S: Final = 2.0
PIECES_MAX: Final = 40


class UnexpectedReplyError(DosError):
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
        """Send a request and return its reply. Raises UnexpectedReplyError."""
        self.send(head(len(body)) + body.encode("ascii"))
        await self._until(lambda: bool(self._replies))
        if not self._replies:
            raise BrokenConnectionError(f"{self._address} did not reply to {body[:1]}")
        reply = self._replies.popleft()
        if reply.startswith(b"ERROR"):
            raise UnexpectedReplyError(reply.decode("ascii"))
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


# --- version1 ---------------------------------------------------------------------------------------------


_CHUNK_BYTES = 30
_GET_BYTES = 1 << 20


class Visitor1(Visitor):
    """A visitor of version 1."""

    async def _visit(self, address: str) -> None:
        session = Session(self, self._network, address)
        session.on_durability_ack = self._marked
        session.on_append_refused = self._refused
        try:
            await session.open()
            await session.open_directory(LOOSE)
            for _ in range(self._rng.randint(1, 3)):
                await self._append(session, self._rng.choice(NAMES))
        finally:
            session.fail(BrokenConnectionError("closed"))

    async def _append(self, session: Session, name: str) -> None:
        """It reads what it finds there and continues after it, sometimes late."""
        rng, digest = self._rng, PrefixDigest()
        with suppress(NotFoundError):
            digest.update(await session.get(name, 0, _GET_BYTES))
        await self.sleep(rng.choice([0.0, 0.0, 0.05]))
        for _ in range(rng.randint(1, 4)):
            data = rng.randbytes(_CHUNK_BYTES)
            append = Append(name, digest.size, digest.value, data)
            digest.update(data)
            session.append(append, append_id(1, digest.size))
            await self.sleep(rng.choice([0.0, 0.003, 0.02]))
        await self.sleep(0.05)

    def _marked(self, watermark: DurabilityAck) -> None:
        self.env.sometimes["visitor: appended by version 1"] += 1

    def _refused(self, tag: int, error: RefusedError) -> None:
        self.env.sometimes[f"visitor: append refused, {type(error).__name__}"] += 1


# --- crowd ------------------------------------------------------------------------------------------------


SHARE: Final = 0.1
"""The share of the runs that have visitors."""


def has_visitors(rng: RandomStreams) -> bool:
    """Return whether that seed's run has visitors. The result is the same for each call."""
    return rng.stream("visitors").random() < SHARE


class Crowd:
    """The visitors of a run: two or three of version 0, two of version 1."""

    def __init__(self, cluster: "Cluster") -> None:
        rng = cluster.rng
        kinds: list[type[Visitor]] = [Visitor0] * rng.stream("crowd").choice([2, 3]) + [Visitor1] * 2
        self._network = cluster.network
        self._machines = cluster.machines
        self.visitors = [
            kind(f"v{number}", cluster.network, cluster.known, rng.stream(f"visitor {number}"))
            for number, kind in enumerate(kinds)
        ]

    def leave(self) -> None:
        """Kill all visitors."""
        for one in self.visitors:
            self._network.process_died(one, power=False)
            one.kill()

    def judge(self) -> None:
        """Check the files of all machines at the end of a run. Raises ViolationError."""
        for machine in self._machines:
            machine.loose.judge()
