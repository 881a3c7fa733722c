"""What survives every process: inputs, manifests, chains, logs, and destinations outside of the store."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from checkpoint.chains.visible_log import VisibleLog
from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.lines import taken_back
from checkpoint.core.records.manifest import Checkpoint, keep
from checkpoint.core.records.outputs import Publish
from journal import ORIGIN
from journal.core.chain import Position
from tests.sim.upgrading.graphs import Row
from tests.sim.upgrading.rules import Record

SPLITS: Final = ("0", "1")
PLACES: Final = ("A", "B", "C")
Ranges = dict[str, dict[str, tuple[int, int]]]
"""Source, by uid -> split -> what a step reads of it."""


class FencedError(Exception):
    """Another driver holds what this one writes to."""


class Entry(NamedTuple):
    """A change of one row of a state."""

    uid: str
    table: str
    key: int
    value: Any


class Shown(NamedTuple):
    """What one worker's log has of a step."""

    step: int
    line: int
    rows: tuple[tuple[tuple[str, int], ...], ...]


def as_rows(rows: Iterable[Row]) -> tuple[tuple[tuple[str, int], ...], ...]:
    return tuple(sorted(tuple(sorted(row.items())) for row in rows))


class Chain:
    """The state of one worker: a segment for each incarnation, which begins at a position in another one."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[Position, list[Entry]]] = {}

    def open(self, epoch: int, at: Position) -> None:
        self._segments[epoch] = (at, [])

    def append(self, epoch: int, entries: Iterable[Entry]) -> None:
        self._segments[epoch][1].extend(entries)

    def end(self, epoch: int) -> Position:
        base, entries = self._segments[epoch]
        return Position(epoch, base.size + len(entries), 0)

    def read(self, at: Position) -> list[Entry]:
        if at == ORIGIN:
            return []
        base, entries = self._segments[at.epoch]
        return self.read(base) + entries[: at.size - base.size]

    def delete(self, uids: Iterable[str]) -> None:
        """Empty what a segment has of some uids; positions stay."""
        gone = set(uids)
        for _, entries in self._segments.values():
            entries[:] = [one._replace(uid="") if one.uid in gone else one for one in entries]


@dataclass
class Consumer:
    """Who reads an input, from `begins` on."""

    region: str
    place: str
    uid: str
    begins: dict[str, int]


class Region:
    """One region in the store."""

    def __init__(self, name: str, store: "Store", original: "Region | None" = None) -> None:
        self.name = name
        self.original = original
        self.store = store
        self.kept: list[Record] = []
        self.history: list[Record] = []
        self.claimed = 0
        self.opened = 0
        self.chains: defaultdict[int, Chain] = defaultdict(Chain)
        self.epochs: defaultdict[int, int] = defaultdict(int)
        """Worker -> the incarnation that holds its chains."""
        self.steps: defaultdict[int, list[tuple[int, Ranges]]] = defaultdict(list)
        self.logs: defaultdict[tuple[str, int], list[Shown]] = defaultdict(list)
        self.modes: dict[str, str] = {}
        self.staged: dict[tuple[str, int, int], tuple[Shown, ...]] = {}
        """(uid, checkpoint, worker) -> a prepared transaction."""
        self.published: defaultdict[str, list[Shown]] = defaultdict(list)
        self.fences: defaultdict[str, int] = defaultdict(int)
        """Uid of an outside sink -> the highest incarnation that its destination has met."""
        self.sent: list[tuple[str, Shown]] = []
        """Rows of sinks that cannot take them back."""
        self.damaged: set[int] = set()
        """Checkpoints, as they were voted, that cannot be read."""
        self.driver: Any = None
        """The driver that runs."""
        self.on_append: Callable[[Record, Any], None] = lambda _record, _program: None

    @property
    def last(self) -> Record | None:
        return self.kept[-1] if self.kept else None

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return [record.checkpoint for record in self.kept]

    def voted_as(self, checkpoint: Checkpoint) -> int:
        """Return the checkpoint whose transactions a record has. That of a bootstrap is no vote."""
        number = checkpoint.voted_as
        while (found := next((one for one in self.history if one.number == number), None)) is not None:
            if found.kind != "rows":
                break
            number = found.checkpoint.rolled_back_to
        return number

    def append(self, epoch: int, record: Record, program: Any) -> None:
        """Append to the manifest. Raises FencedError."""
        if epoch != self.claimed:
            raise FencedError("manifest")
        numbers = {one.number for one in keep(self.checkpoints, record.checkpoint)}
        self.kept = [one for one in [*self.kept, record] if one.number in numbers]
        self.history.append(record)
        self.on_append(record, program)

    def chain_of(self, checkpoint: Checkpoint, worker: int) -> Chain:
        """Return the chain that has a worker's positions."""
        region = self
        if checkpoint.in_origin:
            assert self.original is not None
            region = self.original
        return region.chains[worker]

    def entries(self, checkpoint: Checkpoint) -> list[Entry]:
        """Return the changes of all workers' states up to a checkpoint."""
        return [
            entry
            for worker, part in checkpoint.workers.items()
            for entry in self.chain_of(checkpoint, worker).read(part.state)
        ]

    def complete(self, uid: str, epoch: int, number: int, *, fenced: bool = True) -> None:
        """Publish the transactions of an outside sink up to a checkpoint, and abort later ones."""
        self.meet(uid, epoch, fenced=fenced)
        for key in sorted(key for key in self.staged if key[0] == uid):
            shown = self.staged.pop(key)
            if key[1] <= number:
                self.published[uid].extend(shown)

    def meet(self, uid: str, epoch: int, *, fenced: bool = True) -> None:
        """Fence earlier incarnations from a destination. Raises FencedError if this one is fenced."""
        if self.fences[uid] > epoch and fenced:
            raise FencedError(uid)
        self.fences[uid] = max(self.fences[uid], epoch)

    def visible(self, uid: str) -> list[Shown]:
        """Return what readers of a log can see now, by step."""
        assert self.last is not None
        if self.modes[uid] == "tx":
            return sorted(self.published[uid], key=lambda one: one.step)
        publish = Publish.STEP if self.modes[uid] == "step" else Publish.CHECKPOINT
        found = []
        for (name, worker), log in list(self.logs.items()):
            if name == uid:
                seen = VisibleLog.of(self.last.checkpoint, self.name, worker, uid)
                end = 0 if seen.covered is None else seen.covered.size
                found += log[:end] if seen.ends_with_checkpoint(publish) else log
        return sorted((one for one in found if not self.is_taken_back(one)), key=lambda one: one.step)

    def is_taken_back(self, shown: Shown) -> bool:
        assert self.last is not None
        return taken_back(self.last.checkpoint, shown.line, shown.step) is not None


class Store:
    """Inputs, and regions."""

    def __init__(self, without: str = "") -> None:
        self.without = without
        self.inputs: dict[tuple[str, str], list[Row]] = {
            (place, split): [] for place in PLACES for split in SPLITS
        }
        self.trimmed: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.consumers: list[Consumer] = []
        self.regions: dict[str, Region] = {}

    def register(self, region: str, place: str, uid: str) -> Consumer:
        """Return the consumer; if it is a new one, it begins at what is not trimmed."""
        for one in self.consumers:
            if (one.region, one.place, one.uid) == (region, place, uid):
                return one
        begins = {split: self.trimmed[place, split] for split in SPLITS}
        self.consumers.append(Consumer(region, place, uid, begins))
        return self.consumers[-1]

    def deregister(self, region: str, uids: Iterable[str]) -> None:
        gone = set(uids)
        self.consumers = [one for one in self.consumers if one.region != region or one.uid not in gone]

    def trim(self) -> None:
        """Delete what no consumer needs."""
        for place, split in self.inputs:
            found = [self.need(one, split) for one in self.consumers if one.place == place]
            if needs := [one for one in found if one is not None]:
                self.trimmed[place, split] = max(self.trimmed[place, split], min(needs))

    def need(self, consumer: Consumer, split: str) -> int | None:
        """Return from where on a consumer needs a split, None for nothing."""
        region = self.regions[consumer.region]
        need = need_of(region.checkpoints, [consumer.uid], split, region=region.name)
        if need is None and self.without == "consumer-never-removed":
            need = 0
        return None if need is None else max(need, consumer.begins[split])
