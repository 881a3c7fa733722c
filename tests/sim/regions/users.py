"""What persons and their processes do with a region: savepoints, forks, edits, backups, trims and damage."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import trio

from checkpoint import Edit
from checkpoint.chains.manifest_log import retained_checkpoints
from checkpoint.core.coordination.run import CoordinatorPhase
from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.lines import forked, made_for_forks, taken_back
from checkpoint.core.records.manifest import Checkpoint, ForkOrigin, SavepointNote
from checkpoint.core.region import SavepointSettled, worker_directory
from checkpoint.errors import NoAnswerError, SavepointRefusedError
from checkpoint.maintenance.backup import back_up
from checkpoint.maintenance.editing import EncodedRows, edit_stopped
from checkpoint.maintenance.forking import fork_needs
from checkpoint.maintenance.stopped_region import append_record, hold_manifest
from checkpoint.runtime import RealRegionRuntime, replace_runtime
from dataflow.editing import NO_STATE, as_table, edited_tables, planned
from dos_client import open_store
from dos_protocol.errors import DosError
from journal.core.chain import SegmentName, parse_segment_name
from tests.checkpoint.backup_model import MemoryPlace
from tests.sim.engine.environment import Process
from tests.sim.engine.guest import scheduled_by
from tests.sim.engine.sockets import Client
from tests.sim.history import ViolationError
from tests.sim.regions.claiming import Host
from tests.sim.store.sim_store import SimStore

if TYPE_CHECKING:
    from tests.sim.regions.driver import Driver
    from tests.sim.regions.region import Region


# --- trimmer ----------------------------------------------------------------------------------------------


SOURCES = ("lines",)


class Trimmer(Process):
    """The trimmer of one region's input."""

    def __init__(self, region: "Region") -> None:
        super().__init__(region.env, "trimmer")
        self._region = region
        self._rng = region.rng.stream("trimmer")
        self.start("trim", self._trim())

    async def _trim(self) -> None:
        region = self._region
        store = SimStore(self, region.network, region.store)
        while True:
            await self.sleep(0.1 + self._rng.expovariate(2.0))
            try:
                kept = await retained_checkpoints(store, region.spec.name)
                # The fork registers as a consumer before it reads. Until then the original holds its input.
                forked = region.fork is not None and await retained_checkpoints(store, FORK)
            except DosError as error:  # what is needed is unknown: nothing is trimmed
                region.saw(f"trimmer: {type(error).__name__}")
                continue
            finally:
                store.close()
            for split in region.given.splits:
                needs = [self.needs(of_one, split) for of_one in (kept, forked) if of_one]
                region.given.trim(split, min(needs, default=0))
            region.saw("trimmed")

    def needs(self, kept: Sequence[Checkpoint], split: str) -> int:
        """Return the position from which on the retained checkpoints need a split."""
        return need_of(kept, SOURCES, split)


# --- savepoints -------------------------------------------------------------------------------------------


class SavepointRequests:
    """The requests for savepoints of one region. `held`: name -> checkpoint of those that were acknowledged,
    until a person requests to drop them."""

    def __init__(self, region: "Region") -> None:
        self.held: dict[str, int] = {}
        self._region = region
        self._rng = region.stream("savepoints")
        self._requested = 0
        self._dropped: set[str] = set()

    def request(self, driver: "Driver") -> None:
        """Make a savepoint of the last checkpoint or of an earlier one now and then, or drop one."""
        drawn, committed = self._rng.random(), self._region.record.committed
        if drawn < 0.4 and committed:
            self._requested += 1
            numbers = [0, 0, *(checkpoint.number for checkpoint in committed[-2:-1])]
            driver.post(SavepointWanted(f"s{self._requested}", self._rng.choice(numbers)))
        elif drawn < 0.5 and self.held:
            name = self._rng.choice(sorted(self.held))
            del self.held[name]
            self._dropped.add(name)
            driver.post(SavepointWanted(name, on=False))

    def settled(self, event: SavepointSettled) -> None:
        """Note the answer to a request."""
        self._region.saw("a savepoint is settled" if not event.error else "a savepoint is refused")
        if not event.error and event.name not in self._dropped and event.name.startswith("s"):
            self.held[event.name] = event.checkpoint

    def check(self, last: Checkpoint) -> None:
        """Check that the last checkpoint of the manifest has the savepoints that were acknowledged."""
        for name, checkpoint in self.held.items():
            if last.savepoints.get(name) != checkpoint or checkpoint not in last.retained:
                raise ViolationError(
                    "O7",
                    f"savepoint {name} holds checkpoint {checkpoint}; checkpoint {last.number} has"
                    f" {last.savepoints}"
                    f" and retains {list(last.retained)}",
                )


# --- forking ----------------------------------------------------------------------------------------------


FORK: Final = "fork"
FORK_PATIENCE_S: Final = 20.0


class Forker(Process):
    """The person. `first`: the first record of the fork, once it is committed."""

    def __init__(self, region: "Region") -> None:
        super().__init__(region.env, "forker")
        self.first: Checkpoint | None = None
        self.busy = False
        self._region = region
        self._rng = region.rng.stream("forker")
        self._host = Host(self, region.network, region.store, region.history, self._rng)
        self._settled: dict[str, SavepointSettled] = {}
        self._tries = 0
        self.start("fork", self._fork())

    def settled(self, event: SavepointSettled) -> None:
        """Note the answer to a request."""
        self._settled[event.name] = event

    async def _fork(self) -> None:
        while self.first is None and not self._region.finishing:
            await self.sleep(0.3 + self._rng.expovariate(1.0))
            self.busy = True
            try:
                await self._try()
            except DosError as error:  # another attempt follows, and finds what this one has done
                self._region.saw(f"forker: {type(error).__name__}")
            self.busy = False

    async def _try(self) -> None:
        region, driver = self._region, self._region.running
        if driver is None or not region.record.committed:
            return
        self._tries += 1
        name = f"fork-{self._tries:08x}"
        number = self._rng.choice(region.record.committed[-1].retained)
        driver.post(SavepointWanted(name, number, note=SavepointNote(fork=FORK)))
        deadline = self.now + FORK_PATIENCE_S
        while name not in self._settled and self.now < deadline:
            await self.sleep(0.1)
        if name not in self._settled or self._settled[name].error or self._rng.random() < 0.2:
            return
        region.saw("a fork has its savepoint")
        await self.sleep(self._rng.expovariate(2.0))
        source = region.record.reported[number]
        origin = ForkOrigin(region=region.spec.name, checkpoint=number, step=source.step, savepoint=name)
        async with hold_manifest(self._host, FORK) as held:
            if held.opened.last_checkpoint is None:
                await append_record(held, FORK, forked(source, origin, held.opened.incarnation))
                region.saw("a region is forked")
            kept = held.opened.last_checkpoint
        self.first = kept or forked(source, origin, held.opened.incarnation)


async def watch_forks(driver: "Driver") -> None:
    """Drop the savepoints whose fork needs them no more, as `checkpoint.coordinator.shell` does."""
    region = driver.region
    store = SimStore(driver, region.network, region.store)
    while True:
        await driver.sleep(0.1 + 0.4 * driver.rng.random())
        for name, note in made_for_forks(driver.core.run.last_checkpoint).items():
            try:
                needs = await fork_needs(store, region.spec.name, name, note)
            except DosError as error:  # what it needs is unknown now
                region.saw(f"watcher of forks: {type(error).__name__}")
                continue
            finally:
                store.close()
            if needs is False:
                region.saw("the savepoint of a fork is dropped")
                driver.post(SavepointWanted(name, on=False))


# --- editing ----------------------------------------------------------------------------------------------


ADDED: Final = 1_000


def edits_in(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """Return (word, what was added) of each edit that a checkpoint contains, oldest first."""
    known, line, found = {rewind.line: rewind for rewind in checkpoint.rewinds}, checkpoint.line, []
    while line:
        rewind = known[line]
        if rewind.edited:
            word, _, added = rewind.edited.partition("+")
            found.append((word, int(added)))
        line = rewind.of
    return found[::-1]


class Editor(Process):
    """The person. `busy`: an edit is under way."""

    def __init__(self, region: "Region") -> None:
        super().__init__(region.env, "editor")
        self.busy = False
        self._region = region
        self._rng = region.rng.stream("editor")
        self._host = Host(self, region.network, region.store, region.history, self._rng)
        self.start("edit", self._edit())

    async def _edit(self) -> None:
        while not self._region.finishing:
            await self.sleep(1.0 + self._rng.expovariate(0.3))
            committed = self._region.record.committed
            if not committed or self._region.finishing or self._region.finished:
                continue
            to = self._rng.choice(["", f"checkpoint:{self._rng.choice(committed[-1].retained)}"])
            self.busy = True
            try:
                await edit_stopped(
                    self._host, self._region.spec.name, self._rows_for, to=to, allow_republish=True
                )
                self._region.saw("a state is edited")
            except DosError as error:  # the region is edited, or is not
                self._region.saw(f"editor: {type(error).__name__}")
            self.busy = False

    async def _rows_for(self, checkpoint: Checkpoint) -> tuple[EncodedRows, Edit]:
        """Return the row of a word with a higher count, as its owner stores it."""
        read = {
            split: at.position
            for part in checkpoint.workers.values()
            for splits in part.sources.values()
            for split, at in splits.items()
        }
        word = self._rng.choice(self._region.given.rows)[0]
        count = sum(one == word for one, _ in self._region.given.upto(read))
        count += sum(added for one, added in edits_in(checkpoint) if one == word)
        table = as_table("count", pa.table({"word": [word], "count": [count + ADDED]}))
        rules = edited_tables(self._region.plan, self._region.spec.name, {"count": table})
        plan = planned(rules, {"count": table}, NO_STATE, checkpoint.layout)
        return plan.rows, Edit(by=f"{word}+{ADDED}", wall_time_ms=1)


# --- backing up -------------------------------------------------------------------------------------------


PATIENCE_S: Final = 8.0
KEPT: Final = 2
MAKERS_MAX: Final = 2


class _Runtime(RealRegionRuntime):
    """The environment of a process that makes backups: virtual time and no threads."""

    def __init__(self, maker: "Maker") -> None:
        self._maker = maker

    async def in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*args)

    def wall_time_ns(self) -> int:
        return int((1.0 + self._maker.now) * 1e9)


class Bucket(MemoryPlace):
    """A bucket whose requests take time."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng

    async def put(self, name: str, data: bytes, sha256: bytes) -> bool:
        await trio.sleep(self._rng.expovariate(40.0))
        return await super().put(name, data, sha256)


class Backups:
    """The backups of one region. `place`: the bucket."""

    def __init__(self, region: "Region") -> None:
        self.region = region
        self.rng = region.stream("backups")
        self.place = Bucket(self.rng)
        self.answers: dict[str, SavepointSettled] = {}
        self.waiting: dict[str, trio.Event] = {}
        self.held: dict[str, Maker] = {}
        """Savepoint -> the process that makes a backup of it."""
        self._makers: list[Maker] = []
        self._made = 0

    def settled(self, event: SavepointSettled) -> None:
        """Note the answer to a request."""
        self.answers[event.name] = event
        answered, maker = self.waiting.pop(event.name, None), self.held.get(event.name)
        if answered is not None and maker is not None:
            maker.call(answered.set)

    def supervise(self) -> None:
        """Start and kill processes now and then, and drop what dead ones have left, until the region ends."""
        if self.region.finished:
            return
        living = [one for one in self._makers if one.alive]
        drawn = self.rng.random()
        if len(living) < MAKERS_MAX and (not living or drawn < 0.15):
            self._start()
        elif drawn < 0.3:
            self._kill(self.rng.choice(living))
        driver = self.region.running
        if driver is not None and self.region.record.committed:
            for name in self.region.record.committed[-1].savepoints:
                if name in self.held and not self.held[name].alive:
                    driver.post(SavepointWanted(name, on=False))
        self.region.env.after(0.3 + 1.5 * self.rng.random(), self.supervise)

    def make_last(self) -> "Maker":
        """Start a process that makes one backup of the region, which no driver runs. All others end."""
        self.end()
        return self._start(once=True)

    def end(self) -> None:
        """Kill all processes."""
        for maker in self._makers:
            if maker.alive:
                self._kill(maker)

    def _start(self, *, once: bool = False) -> "Maker":
        self._made += 1
        maker = Maker(self, f"b{self._made}", once=once)
        self._makers.append(maker)
        return maker

    def _kill(self, maker: "Maker") -> None:
        self.region.saw("a process that makes backups is killed")
        self.region.network.process_died(maker, power=False)
        maker.kill()


class Maker(Client):
    """One process. `done`: it has made its only backup."""

    def __init__(self, backups: Backups, name: str, *, once: bool) -> None:
        region = backups.region
        super().__init__(region.network, name, region.stream(f"backups by {name}"))
        self.done = False
        self._backups = backups
        self._region = region
        self._once = once
        self._url = "dos://" + ",".join(member.address for member in region.store.members)
        with scheduled_by(self.rng):
            self.begin(self._work)

    async def _work(self) -> None:
        replace_runtime(_Runtime(self))
        savepoints = _NoDriver(self._region) if self._once else _Requests(self, self._backups)
        while not self.done:
            await trio.sleep(self.rng.expovariate(4.0))
            try:
                async with open_store(self._url, client=self.name) as store:
                    await back_up(store, self._region.spec.name, self._backups.place, savepoints, keep=KEPT)
                self._region.saw("a backup is made")
                self.done = self._once
            except DosError as error:  # the next one uses what this one has copied
                self._region.saw(f"backup: {type(error).__name__}")


class _Requests:
    """Savepoints that the driver is asked for."""

    def __init__(self, maker: Maker, backups: Backups) -> None:
        self._maker = maker
        self._backups = backups

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        del fork
        self._backups.held[name] = self._maker
        return (await self._ask(SavepointWanted(name, checkpoint, note=SavepointNote(why=why)))).checkpoint

    async def drop(self, name: str) -> None:
        await self._ask(SavepointWanted(name, on=False))

    async def _ask(self, wanted: SavepointWanted) -> SavepointSettled:
        driver, answers = self._backups.region.running, self._backups.answers
        if driver is None:
            raise NoAnswerError("no driver runs")
        answers.pop(wanted.name, None)
        answered = self._backups.waiting[wanted.name] = trio.Event()
        driver.post(wanted)
        with trio.move_on_after(PATIENCE_S):
            await answered.wait()
        if wanted.name not in answers:
            raise NoAnswerError("the driver is silent")
        if answers[wanted.name].error:
            raise SavepointRefusedError(answers[wanted.name].error)
        return answers[wanted.name]


class _NoDriver:
    """A region that no driver runs, and none will: its last checkpoint stays."""

    def __init__(self, region: "Region") -> None:
        self._region = region

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        del name, why, checkpoint, fork
        await trio.lowlevel.checkpoint()
        return self._region.record.committed[-1].number

    async def drop(self, name: str) -> None:
        del name
        await trio.lowlevel.checkpoint()


# --- spoiling ---------------------------------------------------------------------------------------------


START_BYTES = 20
"""Within the start record of any segment."""


class Spoiling:
    """What is damaged of one region's chains (`History.spoiled`), and what must be true of a fall back."""

    def __init__(self, region: "Region") -> None:
        self._region = region
        self._rng = region.rng.stream("region damage")
        self._before: dict[tuple[str, str], tuple[int, frozenset[bytes]]] = {}

    def spoil(self, driver: "Driver") -> bool:
        """Damage the last checkpoint now and then, and perhaps the one before, so that an older one is whole;
        on all members or on some. Return whether it did.
        """
        core, restoring = driver.core.run, driver.core.checkpoints.restoring
        if core.phase is not CoordinatorPhase.RUNNING or restoring or self._rng.random() > 0.7:
            return False
        if len(core.kept) < 3 or core.kept[-1].rewound:
            return False
        last = core.kept[-1]
        valid = [
            checkpoint
            for checkpoint in core.kept
            if taken_back(last, checkpoint.line, checkpoint.step) is None
        ]
        if len(valid) < 3:
            return False
        index = self._rng.choice([-2, -3])
        keep, members = valid[index], [one.server_id for one in self._region.store.voters]
        worker = self._rng.choice(sorted(last.workers.keys() & keep.workers.keys()))
        whole = self._segment(keep, worker)
        segments = {
            self._segment(checkpoint, worker)
            for checkpoint in valid[index + 1 :]
            if worker in checkpoint.workers
        }
        if whole is None or {None, whole} & segments:
            return False  # the whole of a damaged segment cannot be claimed
        if self._rng.random() < 0.5:
            members = self._rng.sample(members, len(members) - 1)
        of_all = len(members) == len(self._region.store.voters)
        self._region.saw("a checkpoint is damaged" if of_all else "some copies are damaged")
        directory = worker_directory(self._region.spec.name, worker)
        for one in segments:
            self._region.history.spoiled[directory, str(one)] = (START_BYTES, frozenset(members))
        return True

    def heal(self) -> None:
        """Repair everything. An examination that is under way may have met the damage."""
        self._before |= self._region.history.spoiled
        self._region.history.spoiled.clear()

    def fell_back(self, last: int, to: int) -> None:
        """Check a fall back: the last checkpoint is damaged on all members, and the older one is not."""
        checkpoints = {checkpoint.number: checkpoint for checkpoint in self._region.record.committed}
        if not any(self._damaged(checkpoints[last], whole_chain=True)):
            raise ViolationError("O7", f"checkpoint {last} is not damaged, and the region fell back to {to}")
        if wrong := [*self._damaged(checkpoints[to], whole_chain=False)]:
            raise ViolationError(
                "O7", f"the region fell back to checkpoint {to}, which is damaged: {wrong[0]}"
            )

    def _damaged(self, checkpoint: Checkpoint, *, whole_chain: bool) -> Iterator[str]:
        """Yield the segments that are damaged on all members and that a checkpoint needs; whole_chain: or may
        need, because they are below its position.
        """
        voters = {one.server_id for one in self._region.store.voters}
        for worker, part in checkpoint.workers.items():
            place = worker_directory(self._region.spec.name, worker)
            head = self._segment(checkpoint, worker)
            spoiled = (
                self._before | self._region.history.spoiled if whole_chain else self._region.history.spoiled
            )
            for (directory, name), (offset, members) in spoiled.items():
                segment = parse_segment_name(name)
                if directory != place or segment is None or head is None or not voters <= members:
                    continue
                below = whole_chain and segment.order < head.order
                if below or (segment == head and part.state.size > head.base + offset):
                    yield name

    def _segment(self, checkpoint: Checkpoint, worker: int) -> SegmentName | None:
        """Return the segment of the position of a worker's state."""
        at, place = checkpoint.workers[worker].state, worker_directory(self._region.spec.name, worker)
        segments = self._region.history.segments
        names = [parse_segment_name(name) for directory, name in segments if directory == place]
        found = [
            one
            for one in names
            if one is not None and one.chain == "state" and one.epoch == at.epoch and one.base < at.size
        ]
        return max(found, key=lambda one: one.base, default=None)
