"""A store in memory that obeys the rules of the real one, with every delivery in the test's hands.

What it keeps to: a claim is durable before it is answered and refuses lower epochs for ever (R2); sizes are
told after the claim (R4); an append lands only under the claim that holds, at the exact size and prefix
digest; only members that answered the claim acknowledge, and Qa of them make a byte synced; `settle` copies
from a holder whose digest agrees. `test_chain_contract.py` runs the same tests on this store and on real
servers: that is what keeps it honest.

What it adds: with `claim.held` set, appends wait in the claim until `deliver` carries them, whole or in
part, to one member; a writer that died can still have deliveries under way. Members can be down, wiped, or
damaged.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import trio

from dos_client import Bookmark
from dos_client.errors import MissingDataError
from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptError,
    FencedError,
    LocalProtocolError,
    NotFoundError,
    PastEndError,
)
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import Member, StoreRecord, claims_needed

DIRECTORY = "app.w0000"


@dataclass
class MemoryServer:
    """One server: durable bytes only. `damaged` objects are good up to the number given."""

    server_id: bytes
    up: bool = True
    claims: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    objects: dict[str, dict[str, bytearray]] = field(default_factory=dict)
    damaged: dict[str, int] = field(default_factory=dict)

    def held_epoch(self, directory: str) -> int:
        return self.claims.get(directory, (0, b""))[0]

    def claim(self, directory: str, epoch: int, writer_id: bytes) -> None:
        held, holder = self.claims.get(directory, (0, b""))
        if epoch < held or (epoch == held and writer_id != holder):
            raise FencedError(f"epoch {held} holds {directory}", actual=held)
        self.claims[directory] = (epoch, writer_id)

    def entries(self, directory: str) -> dict[str, ObjectInfo]:
        return {
            name: ObjectInfo(
                name,
                self.good_bytes(directory, name),
                self.good_bytes(directory, name),
                prefix_digest(data[: self.good_bytes(directory, name)]),
                corrupt=name in self.damaged,
            )
            for name, data in self.objects.get(directory, {}).items()
        }

    def good_bytes(self, directory: str, name: str) -> int:
        size = len(self.objects[directory][name])
        return min(size, self.damaged.get(name, size))

    def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        if not self.up:
            raise BrokenConnectionError("down")
        data = self.objects.get(directory, {}).get(name)
        if data is None:
            raise NotFoundError(f"no {name}")
        good = self.good_bytes(directory, name)
        if offset >= good and name in self.damaged:
            raise CorruptError(f"{name} is damaged from {good} on", actual=good)
        if offset > len(data):
            raise PastEndError(f"{name} has {len(data)} bytes", actual=len(data))
        return bytes(data[offset : min(good, offset + max_bytes)])

    def append(self, claim: "MemoryClaim", name: str, offset: int, digest: int, data: bytes) -> None:
        if self.claims.get(claim.directory) != (claim.epoch, claim.writer_id):
            raise FencedError("superseded", actual=self.held_epoch(claim.directory))
        stored = self.objects.setdefault(claim.directory, {}).setdefault(name, bytearray())
        if len(stored) == offset and prefix_digest(stored) == digest:
            stored += data


async def streamed(
    store: "MemoryStore | PartialStore", directory: str, name: str, offset: int, end: int | None
) -> AsyncGenerator[bytes]:
    """What these stores read they hold for good: no quorum is asked."""
    while end is None or offset < end:
        data = await store.read(directory, name, offset, 1 << 20 if end is None else end - offset)
        if not data:
            return
        yield data
        offset += len(data)


class MemoryStore:
    """N servers that replicate together."""

    def __init__(self, servers: int = 3, ack_quorum: int = 2) -> None:
        self.servers = [MemoryServer(bytes([n + 1]) * 16) for n in range(servers)]
        members = tuple(Member(s.server_id, f"m{n}:1") for n, s in enumerate(self.servers, 1))
        self.record = StoreRecord(b"\x77" * 16, 1, ack_quorum, members)
        self._writers = 0

    def server(self, server_id: bytes) -> MemoryServer:
        return next(server for server in self.servers if server.server_id == server_id)

    @property
    def claims_needed(self) -> int:
        return claims_needed(len(self.servers), self.record.ack_quorum)

    def claim(
        self, epoch: int, members: Iterable[int] | None = None, directory: str = DIRECTORY
    ) -> "MemoryClaim":
        """Claim on the members numbered (from 1), or on all that are up."""
        self._writers += 1
        claim = MemoryClaim(self, directory, epoch, self._writers.to_bytes(16))
        chosen = (
            [s for s in self.servers if s.up] if members is None else [self.servers[m - 1] for m in members]
        )
        for server in chosen:
            claim.join(server)
        assert len(claim.answers) >= self.claims_needed, "a claim needs F members"
        return claim

    def wipe(self, number: int) -> None:
        """The server's disk is gone; what is at its address now is another server and counts for nothing."""
        self.servers[number - 1].up = False
        self.servers[number - 1].objects.clear()

    async def inspect(
        self, directory: str, members: Iterable[int] | None = None, *, sound: bool = False
    ) -> "MemoryView":
        """`sound`: without damaged objects, as `Store.inspect`."""
        await trio.lowlevel.checkpoint()
        numbers = range(1, len(self.servers) + 1) if members is None else members
        chosen = [self.servers[m - 1] for m in numbers if self.servers[m - 1].up]
        listed = {s.server_id: s.entries(directory) for s in chosen}
        told = {
            one: {name: info for name, info in objects.items() if not (sound and info.corrupt)}
            for one, objects in listed.items()
        }
        voters = {member.server_id for member in self.record.voters}
        return MemoryView(
            {one: objects for one, objects in told.items() if one in voters},
            {one: objects for one, objects in told.items() if one not in voters},
            {s.server_id: s.claims.get(directory, (0, b"")) for s in chosen},
            {one: frozenset(listed[one].keys() - told[one].keys()) for one in told},
        )

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return read_longest([s for s in self.servers if s.up], directory, name, offset, max_bytes)

    def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> AsyncGenerator[bytes]:
        del seen
        return streamed(self, directory, name, offset, end)


@dataclass
class MemoryView:
    answers: Mapping[bytes, Mapping[str, ObjectInfo]]
    filled: Mapping[bytes, Mapping[str, ObjectInfo]]
    epochs: Mapping[bytes, tuple[int, bytes]]
    damaged: Mapping[bytes, frozenset[str]] = field(default_factory=dict)

    @property
    def epoch_seen(self) -> int:
        """The highest claim that any member names."""
        return max((epoch for epoch, _ in self.epochs.values()), default=0)


class PartialStore:
    """The store as a reader sees it who reaches only some of its members."""

    def __init__(self, store: MemoryStore, members: Iterable[int]) -> None:
        self._store = store
        self._members = list(members)
        self.record = store.record

    async def inspect(self, directory: str) -> MemoryView:
        return await self._store.inspect(directory, self._members)

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        servers = [self._store.servers[m - 1] for m in self._members]
        return read_longest([s for s in servers if s.up], directory, name, offset, max_bytes)

    def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> AsyncGenerator[bytes]:
        del seen
        return streamed(self, directory, name, offset, end)


def read_longest(
    servers: list[MemoryServer], directory: str, name: str, offset: int, max_bytes: int
) -> bytes:
    holders = [s for s in servers if name in s.objects.get(directory, {})]
    if not holders:
        raise NotFoundError(f"no {name}")
    return max(holders, key=lambda s: s.good_bytes(directory, name)).read(directory, name, offset, max_bytes)


class MemoryClaim:
    """A claim. `held`: appends wait for `deliver`; otherwise they reach every claimed member that is up at
    once.
    """

    def __init__(self, store: MemoryStore, directory: str, epoch: int, writer_id: bytes) -> None:
        self.store = store
        self.directory = directory
        self.epoch = epoch
        self.writer_id = writer_id
        self.answers: dict[bytes, dict[str, ObjectInfo]] = {}
        self.lost: FencedError | None = None
        self.held = False
        self.objects: dict[str, MemoryObject] = {}
        self.settled: list[tuple[str, int]] = []
        self.changed = trio.Event()
        self.garbage: Callable[[str], bool] = lambda _: False

    def join(self, server: MemoryServer) -> None:
        """One more member answers the claim."""
        if server.up:
            server.claim(self.directory, self.epoch, self.writer_id)
            self.answers[server.server_id] = server.entries(self.directory)
            self._sweep(server)

    @property
    def ended(self) -> FencedError | None:
        return self.lost

    def collect(self, garbage: Callable[[str], bool]) -> None:
        """At once on the members that are there and claimed, on others when they join."""
        if self.lost is not None:
            raise self.lost
        self.garbage = garbage
        for server in self.members():
            self._sweep(server)

    def _sweep(self, server: MemoryServer) -> None:
        if server.held_epoch(self.directory) == self.epoch:
            there = server.objects.get(self.directory, {})
            for name in [name for name in there if self.garbage(name)]:
                del there[name]

    def members(self) -> list[MemoryServer]:
        """The members that answered and are up."""
        return [server for server in self.store.servers if server.up and server.server_id in self.answers]

    async def wait_all(self, timeout_s: float) -> bool:
        with trio.move_on_after(timeout_s):
            while len(self.answers) < len(self.store.servers):  # noqa: ASYNC110
                await trio.sleep(0.1)
        return len(self.answers) == len(self.store.servers)

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if member is not None:
            return self.store.server(member).read(self.directory, name, offset, max_bytes)
        return read_longest(self.members(), self.directory, name, offset, max_bytes)

    async def settle(self, name: str, size: int, digest: int, local: object = None) -> None:
        await trio.lowlevel.checkpoint()
        if any(one == name and at != size for one, at in self.settled):
            raise LocalProtocolError(f"{name} is known to this claim with another size than {size}")
        copies = [bytes(s.objects.get(self.directory, {}).get(name, b"")[:size]) for s in self.members()]
        holders = [copy for copy in copies if len(copy) == size and prefix_digest(copy) == digest]
        if not holders:
            raise MissingDataError(f"no member holds {size} bytes of {name} with digest {digest:016x}")
        good = holders[0]
        for server in self.members():
            server.claim(self.directory, self.epoch, self.writer_id)
            stored = server.objects.setdefault(self.directory, {}).setdefault(name, bytearray())
            if name not in server.damaged and good.startswith(stored):
                stored += good[len(stored) :]
        held = sum(s.objects[self.directory][name][:size] == good for s in self.members())
        assert held >= self.store.record.ack_quorum, "settle waits for a quorum; here that would be for ever"
        self.settled.append((name, size))

    def open_object(self, name: str, local: object = None) -> "MemoryObject":
        assert name not in self.objects, "an object is opened once"
        self.objects[name] = MemoryObject(self, name)
        return self.objects[name]

    def deliver(self, member: int, name: str | None = None, size: int | None = None) -> None:
        """Carry what was appended to one member (numbered from 1): of one object or all, up to `size`
        bytes.
        """
        for writer in list(self.objects.values()):
            if name is None or writer.name == name:
                writer.deliver(self.store.servers[member - 1], size)

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    @property
    def quorum(self) -> int:
        return self.store.record.ack_quorum


class MemoryObject:
    """One object being appended to. A member's acknowledgement counts only while it holds this claim."""

    def __init__(self, claim: MemoryClaim, name: str) -> None:
        self._claim = claim
        self.name = name
        self._data = bytearray()
        self.sealed = False
        self._digest = PrefixDigest()
        self._acknowledged: dict[bytes, int] = {}

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def digest(self) -> int:
        return self._digest.value

    @property
    def synced(self) -> int:
        sizes = sorted(self._acknowledged.values(), reverse=True)
        return sizes[self._claim.quorum - 1] if len(sizes) >= self._claim.quorum else 0

    def append(self, data: bytes) -> int:
        if self._claim.lost is not None:
            raise self._claim.lost
        self._data += data
        self._digest.update(data)
        if not self._claim.held:
            for server in self._claim.members():
                self.deliver(server)
        return self.size

    def deliver(self, server: MemoryServer, size: int | None = None) -> None:
        if not server.up or server.server_id not in self._claim.answers:
            return
        stored = server.objects.get(self._claim.directory, {}).get(self.name, b"")
        upto = self.size if size is None else min(size, self.size)
        try:
            server.append(
                self._claim,
                self.name,
                len(stored),
                prefix_digest(self._data[: len(stored)]),
                bytes(self._data[len(stored) : upto]),
            )
        except FencedError as error:
            self._claim.lost = self._claim.lost or error
        else:
            self._acknowledged[server.server_id] = max(len(stored), upto)
        self._claim.wake()

    async def wait_synced(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        while self.synced < size:
            if self._claim.lost is not None:
                raise self._claim.lost
            await self._claim.changed.wait()

    async def wait_room(self) -> None:
        await trio.lowlevel.checkpoint()

    def seal(self) -> None:
        self.sealed = True
