"""A claim of a directory on the members of a store: the cores of `dos_client`, performed on virtual time.

The real `ClaimMachine`, `Quorums`, `Replica` and `SendWindow` decide what is granted and lost, and which
copies count. This file is a shorter implementation of the shells around them. The journal's own code runs on
top unchanged: this is its `ClaimPort`.

The owner of the claim waits in its coroutines; `member` has the links with members.
"""

from collections.abc import Callable
from random import Random
from typing import TypeVar

from dos_client.core.claim import (
    ClaimMachine,
    ClaimState,
    Garbage,
    has_lost_objects,
    has_no_source,
    was_held,
)
from dos_client.core.quorum import Quorums
from dos_client.core.replica import ObjectGoal, ObjectView
from dos_client.core.window import SendWindow
from dos_client.errors import MissingDataError, QuorumUnavailableError
from dos_client.limits import answer_timeout_s, answers_grace_s, read_timeout_s
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError, FencedError
from dos_protocol.messages import DirectoryOpened, ObjectInfo
from dos_protocol.store_record import StoreRecord
from tests.sim.engine.environment import Process, Signal
from tests.sim.engine.network import Network
from tests.sim.store.member import Link
from tests.sim.store.sim_store import SimStore

T = TypeVar("T")


class SimTarget:
    """One object that the claim replicates to its members. As `dos_client.writing.object_writer`."""

    def __init__(self, name: str, tag: int, quorums: Quorums, window: SendWindow | None) -> None:
        self.name = name
        self.tag = tag
        self.window = window
        self.goal_size = 0
        self.goal_digest = 0
        self.sizes: dict[bytes, int] = {}
        self.without: set[bytes] = set()
        self.spoiled: set[bytes] = set()
        self.unsure: set[bytes] = set()
        self.synced = 0
        self._quorums = quorums

    @property
    def size(self) -> int:
        return self.window.size if self.window is not None else self.goal_size

    @property
    def view(self) -> ObjectView:
        base = self.window.base if self.window is not None else self.goal_size
        return ObjectView(ObjectGoal(self.size, self.window is None), base, self.digest_at)

    def digest_at(self, size: int) -> int | None:
        if self.window is None:
            return self.goal_digest if size == self.goal_size else None
        return self.window.digest_at(size)

    def seal(self, size: int, digest: int) -> None:
        self.window = None
        self.goal_size, self.goal_digest = size, digest

    def note(self, server_id: bytes, synced: int) -> None:
        """A member has synced this size, with the same content."""
        self.sizes[server_id] = synced
        self.synced = max(self.synced, self._quorums.watermark(self.sizes))


class SimWriter:
    """An object that is being appended to. As `dos_client.writing.object_writer`."""

    def __init__(self, claim: "SimClaim", target: SimTarget) -> None:
        self._claim = claim
        self._target = target

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def size(self) -> int:
        return self._target.size

    @property
    def synced(self) -> int:
        return self._target.synced

    @property
    def digest(self) -> int:
        digest = self._target.digest_at(self._target.size)
        assert digest is not None
        return digest

    def append(self, data: bytes) -> int:
        self._claim.check()
        assert self._target.window is not None, "a sealed object is not appended to"
        self._claim.on_append(self._target.name, self._target.size, data)
        size = self._target.window.append(data)
        self._claim.wake_links()
        return size

    async def wait_synced(self, size: int) -> None:
        while self._target.synced < size:
            self._claim.check()
            await self._claim.wait_changed(1.0)

    async def wait_room(self) -> None:
        self._claim.check()

    def seal(self) -> None:
        target = self._target
        if target.window is not None and target.synced >= target.size:
            target.seal(target.window.size, target.window.digest)
            self._claim.sealed(target)


def _no_garbage(_: str) -> bool:
    return False


class SimClaim:
    """One claim. `answers`, `lost`, `epoch` and the others as in `dos_client.writing.claim`."""

    def __init__(
        self, store: SimStore, process: Process, network: Network, rng: Random, directory: str, epoch: int
    ) -> None:
        self.store = store
        self.process = process
        self.network = network
        self.rng = rng
        self.directory = directory
        self.epoch = epoch
        self.writer_id = rng.randbytes(16)
        self.answers: dict[bytes, dict[str, ObjectInfo]] = {}
        self._taken_back: set[bytes] = set()
        self.targets: dict[str, SimTarget] = {}
        self.lost: FencedError | None = None
        self.epoch_seen = epoch
        self._quorums = Quorums(store.record)
        self._machine = ClaimMachine(self._quorums)
        self._changed = Signal()
        self._links = [Link(self, member) for member in store.record.members]
        self._tag = 0
        self.garbage: Garbage = _no_garbage
        self._tasks = [process.start(f"link {link.member.address}", link.run()) for link in self._links]

    @property
    def record(self) -> StoreRecord:
        return self.store.record

    @property
    def state(self) -> ClaimState:
        return self._machine.state

    @property
    def over(self) -> bool:
        return self._machine.state in (ClaimState.LOST, ClaimState.CLOSED)

    def check(self) -> None:
        """Raise FencedError or ClosedError if the claim is over."""
        if self.lost is not None:
            raise FencedError(str(self.lost.args[0]), actual=self.lost.epoch_held)
        if self._machine.state is ClaimState.CLOSED:
            raise ClosedError(f"the claim of {self.directory} is closed")

    async def wait_granted(self) -> None:
        """Wait until F members have granted the claim (R1), and a moment longer for the others. Raises
        FencedError."""
        while self._machine.state is ClaimState.CLAIMING:
            await self.wait_changed(1.0)
        await self.wait_all(answers_grace_s)
        self.check()

    async def wait_all(self, timeout_s: float) -> bool:
        deadline = self.process.now + timeout_s
        while not self._quorums.sets[0] <= self.answers.keys() and self.process.now < deadline:
            self.check()
            await self.wait_changed(deadline - self.process.now)
        return self._quorums.sets[0] <= self.answers.keys()

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes:
        """Return durable bytes, from that member, or from the one that has most."""
        deadline = self.process.now + read_timeout_s
        while True:
            self.check()
            error: DosError = BrokenConnectionError(f"no member to read {name} from is connected")
            for link in self._readers(name, member):
                session = link.session
                if session is None:
                    continue  # it left during a request to another one
                try:
                    data = await session.get(name, offset, max_bytes)
                except DosError as refused:
                    error = refused
                else:
                    if data or member is not None or not self._unavailable_with_more(name, offset):
                        return data
            if member is None and self._unavailable_with_more(name, offset):
                error = BrokenConnectionError(f"members that have more of {name} are unavailable")
            if not isinstance(error, BrokenConnectionError) or self.process.now > deadline:
                raise error
            await self.wait_changed(0.5)

    def _readers(self, name: str, member: bytes | None) -> list[Link]:
        joined = [link for link in self._links if link.session is not None]
        if member is not None:
            return [link for link in joined if link.server_id == member]
        return sorted(joined, key=lambda link: self._known(link, name), reverse=True)

    def _unavailable_with_more(self, name: str, offset: int) -> bool:
        return any(link.session is None and self._known(link, name) > offset for link in self._links)

    def _known(self, link: Link, name: str) -> int:
        info, target = self.answers.get(link.server_id, {}).get(name), self.targets.get(name)
        known = target.sizes.get(link.server_id, 0) if target is not None else 0
        return max(known, info.synced if info is not None else 0)

    async def settle(self, name: str, size: int, digest: int, local: object = None) -> None:
        """Wait until that prefix is synced on the quorum (R7). Raises MissingDataError,
        QuorumUnavailableError, FencedError."""
        self.check()
        target = self.targets.get(name)
        if target is None:
            target = self._add(name, None)
            target.seal(size, digest)
            self._enter(target)
        patience = self.process.now + answer_timeout_s
        while target.synced < size:
            self.check()
            if not self._nobody_has(target):
                patience = self.process.now + answer_timeout_s
            elif self.process.now > patience or not was_held(
                self.answers, target, target.without | target.spoiled
            ):
                if was_held(self.answers, target, target.without - self._taken_back):
                    raise QuorumUnavailableError(f"a member no longer has {size} bytes of {name}")
                raise MissingDataError(f"no member holds {size} bytes of {name} with digest {digest:016x}")
            await self.wait_changed(1.0)

    def open_object(self, name: str, local: object = None) -> SimWriter:
        self.check()
        assert name not in self.targets, "an object is opened once"
        target = self._add(name, SendWindow())
        self._enter(target)
        return SimWriter(self, target)

    def collect(self, garbage: Garbage) -> None:
        """Delete the objects that are garbage on all members. As `dos_client.writing.claim`."""
        self.check()
        going = [target for target in self.targets.values() if garbage(target.name)]
        assert all(target.window is None for target in going), "an object being written is not garbage"
        self.garbage = garbage
        for target in going:
            del self.targets[target.name]
        for link in self._links:
            for target in going:
                link.drop(target)
            link.sweep()

    @property
    def holds_garbage(self) -> bool:
        """Return whether a connected member holds anything that is garbage."""
        links = (link for link in self._links if link.session is not None)
        return any(link.held.next(self.garbage) is not None for link in links)

    def close(self) -> None:
        """End the claim. Appends in flight may or may not arrive."""
        self._change(self._machine.close)
        self._finish()

    def on_append(self, name: str, offset: int, data: bytes) -> None:
        """Called with each append, for the history of the run."""

    def collected(self, server_id: bytes, name: str) -> None:
        """Called when a copy was deleted, for the history of the run."""

    # What the links use

    def member_claimed(self, link: Link, opened: DirectoryOpened) -> None:
        trusted = not any(info.corrupt or info.poisoned for info in opened.entries)
        if has_lost_objects(self.answers.get(link.server_id, {}), opened.entries):
            self._taken_back.add(link.server_id)
        if trusted and link.server_id not in self.answers:
            self.answers[link.server_id] = {
                info.name: info for info in opened.entries if info.name not in self.targets
            }
        self.epoch_seen = max(self.epoch_seen, opened.epoch)
        self._change(lambda: self._machine.claimed(link.server_id, trusted=trusted))
        self.changed()

    def member_left(self, link: Link) -> None:
        if not self.over:
            self._change(lambda: self._machine.left(link.server_id))
        self.changed()

    def member_fenced(self, link: Link, error: FencedError) -> None:
        self.epoch_seen = max(self.epoch_seen, error.epoch_held)
        if self._change(lambda: self._machine.fenced(link.server_id)):
            text = f"epoch {self.epoch} of {self.directory} is superseded"
            self.lost = FencedError(text, actual=error.epoch_held)
        self._finish()

    def changed(self) -> None:
        self._changed.set()

    async def wait_changed(self, timeout_s: float) -> None:
        await self.process.wait(self._changed, timeout_s)

    def wake_links(self) -> None:
        for link in self._links:
            link.wake()

    def source_for(self, target: SimTarget, at_least: int, requester: Link) -> Link | None:
        """Return a member that has at least that size of the object, with a compared digest."""
        found = [
            link
            for link in self._links
            if link is not requester
            and link.session is not None
            and target.sizes.get(link.server_id, 0) >= at_least
            and link.agrees(target.name)
        ]
        return self.rng.choice(found) if found else None

    def sealed(self, target: SimTarget) -> None:
        for link in self._links:
            link.sealed(target)

    def _change(self, change: Callable[[], T]) -> T:
        before = self._machine.state
        result = change()
        if self._machine.state is not before:
            self.process.env.sometimes[f"claim: {self._machine.state.name}"] += 1
        return result

    def _finish(self) -> None:
        for task in self._tasks:
            self.process.soon(task.stop)
        for link in self._links:
            link.leave()
        self.changed()

    def _nobody_has(self, target: SimTarget) -> bool:
        connected = [link.server_id for link in self._links if link.session is not None]
        return has_no_source(self._quorums, target, connected)

    def _add(self, name: str, window: SendWindow | None) -> SimTarget:
        self._tag += 1
        target = self.targets[name] = SimTarget(name, self._tag, self._quorums, window)
        return target

    def _enter(self, target: SimTarget) -> None:
        for link in self._links:
            link.enter(target)
