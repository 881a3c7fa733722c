"""Damage of a region's last checkpoints, on all members or on some. The tier lets its readers see it."""

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.run import CoordinatorPhase
from checkpoint.core.records.lines import taken_back
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import worker_directory
from dos_protocol.store_record import StoreRecord
from journal.core.chain import SegmentName, parse_segment_name
from tests.sim.history import ViolationError

if TYPE_CHECKING:
    from tests.sim.regions.base import RegionBase

START_BYTES = 20
"""Within the start record of any segment."""


class Spoiling:
    """What is damaged of one region's chains (`History.spoiled`), and what must be true of a fall back."""

    def __init__(self, region: "RegionBase", store: StoreRecord, rng: Random) -> None:
        self._region = region
        self._voters = store.voters
        self._rng = rng
        self._before: dict[tuple[str, str], tuple[int, frozenset[bytes]]] = {}

    def spoil(self, coordinator: Coordinator) -> bool:
        """Damage the last checkpoint now and then, and perhaps the one before, so that an older one is whole;
        on all members or on some. Return whether it did.
        """
        core, restoring = coordinator.run, coordinator.checkpoints.restoring
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
        keep, members = valid[index], [one.server_id for one in self._voters]
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
        of_all = len(members) == len(self._voters)
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
        record = self._region.record  # a driver may die before it knows that its append was acknowledged
        seen = [one for one in record.opened.values() if one is not None]
        checkpoints = {checkpoint.number: checkpoint for checkpoint in (*seen, *record.committed)}
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
        voters = {one.server_id for one in self._voters}
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
