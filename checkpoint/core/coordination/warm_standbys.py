"""Warm stand-bys: for each worker another process that has loaded its last checkpoint. Pure.

With `RegionSpec.warm_standby`, a stand-by of each worker joins while the region runs. After a commit it loads
what the checkpoint has changed (`CopyAhead`), as the workers of a driver that takes a region over do
(`handing_over.py`). When its worker is lost, or all are reset, it takes the place of its worker, and restores
only what it has not loaded, in a time that does not depend on the size of its state (docs/decisions/0315).
A stand-by claims nothing and decides nothing: its loss, or a load that fails, costs time and no result.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from checkpoint import limits
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.coordination.vocabulary import CancelWorker, CloseLink
from checkpoint.core.coordination.workers import STARTED, Worker, WorkerState
from checkpoint.core.links.messages import CopiedAhead, Refusal


@dataclass(slots=True)
class Load:
    """What a stand-by loads, or has loaded last."""

    attempt: int
    checkpoint: int = 0
    """0: nothing was ordered."""
    done: bool = False
    loaded: int = 0
    """The last checkpoint of which it has loaded all, 0 for none. It may be loading what followed."""
    ordered_at: float = -inf


_NOTHING: Final = Load(0)


class WarmStandbys:
    """The warm stand-bys of one region."""

    def __init__(self, run: RegionRun) -> None:
        self._run = run
        self._loads: dict[int, Load] = {}
        """Worker -> what its stand-by loads."""
        self._running_since = inf

    def advance(self, now: float) -> None:
        """Start the stand-bys that are missing, and let the others load what was committed. Call after each
        event.
        """
        run = self._run
        if not run.spec.warm_standby or run.over:
            return
        if run.phase is not CoordinatorPhase.RUNNING:
            self._running_since = inf
            return
        self._running_since = min(self._running_since, now)
        if run.changing or run.last_checkpoint is None:
            return
        # Not at once: processes that start and read would delay those that restore.
        settled = run.last_checkpoint.incarnation == run.incarnation
        if settled or now >= self._running_since + limits.standby_after_s:
            self._start_missing(now)
        for standby in run.roster.standing_by:
            self._load(standby, now)

    def _start_missing(self, now: float) -> None:
        roster = self._run.roster
        have = {one.index for one in roster.standing_by}
        for worker in roster:
            if worker.index not in have and worker.state in STARTED and worker.host is None:
                roster.schedule(roster.stand_by(worker.index), now)

    def _load(self, standby: Worker, now: float) -> None:
        """Order a stand-by to load the last checkpoint, if it has loaded all that it was ordered to."""
        run, last, load = self._run, self._run.last_checkpoint, self._of(standby)
        assert last is not None
        if standby.state is not WorkerState.JOINED or standby.link is None:
            return
        if load is _NOTHING:
            load = self._loads[standby.index] = Load(standby.attempt)
        elif not load.done or load.checkpoint == last.number:
            return
        if now < load.ordered_at + limits.standby_load_s:
            return
        load.checkpoint, load.done, load.ordered_at = last.number, False, now
        run.send_load_ahead(standby, standby.link, last, run.layout)

    def on_copied(self, standby: Worker, message: CopiedAhead) -> Refusal | None:
        """Note what a stand-by has loaded. After an error it begins anew with the next checkpoint."""
        load = self._of(standby)
        if message.checkpoint != load.checkpoint:
            text = f"the stand-by of worker {standby.index} loads checkpoint {message.checkpoint}"
            return Refusal("STALE_CHECKPOINT", text)
        load.done = message.done or bool(message.error)
        if load.done:
            load.loaded, standby.error = 0 if message.error else load.checkpoint, message.error
            standby.failures = 0
        return None

    def _of(self, standby: Worker) -> Load:
        load = self._loads.get(standby.index, _NOTHING)
        return load if load.attempt == standby.attempt else _NOTHING

    def loaded(self, worker: int) -> int | None:
        """Return the checkpoint that the stand-by of a worker has loaded, None if there is none."""
        standby = self._ready(worker)
        return None if standby is None else self._of(standby).loaded

    def _ready(self, worker: int) -> Worker | None:
        joined = [one for one in self._run.roster.standing_by if one.state is WorkerState.JOINED]
        return next((one for one in joined if one.index == worker and self._of(one).loaded), None)

    def loading(self, worker: Worker, now: float) -> bool:
        """Return whether this process loads what it was ordered to, and has not taken too long for it. If it
        is ordered to restore meanwhile, it has to load all of the state again.
        """
        load = self._of(worker)
        return load is not _NOTHING and not load.done and now < load.ordered_at + limits.standby_wait_s

    def take_places(self, workers: Iterable[Worker]) -> None:
        """Put the stand-bys of these workers in their places, and end these at once."""
        run = self._run
        # A planned change continues with what its workers hold.
        if run.changing:
            return
        standbys = [ready for one in workers if (ready := self._ready(one.index)) is not None]
        for worker in run.roster.take_places(standbys):
            link = run.roster.retire(worker)
            if link is not None:
                run.emit(CloseLink(link))
            if not worker.ended:  # not asked to stop: it may hold what its successor needs, such as a lock
                run.emit(CancelWorker(worker.index, worker.attempt))
