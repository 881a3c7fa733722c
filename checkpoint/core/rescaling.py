"""The number of workers: chosen when the manifest is opened. A part of the coordinator. Pure.

A region that is to have another number of workers than its last checkpoint goes on in five steps
(docs/decisions/0231):

1. An incarnation begins with a new layout and as many workers. Nothing is written of it.
2. Every worker restores the last checkpoint: its own part, and what it takes over from others.
3. It votes at once for the next checkpoint, at the same step, before any step runs.
4. The acknowledgement of that checkpoint is the commit of the layout. Whatever fails before it leaves the
   former layout, of which nothing was changed.
5. Only now the workers start. The next checkpoints are as always.

Workers are numbered from 0 without gaps, so the highest numbers leave. A worker that comes back gets its
directory and its output again, and continues there (`Cut.retired`).
"""

from checkpoint import limits
from checkpoint.core.coordinator_state import CoordinatorState
from checkpoint.core.coordinator_vocabulary import CancelWorker, CloseLink
from checkpoint.core.ending import Ending
from checkpoint.core.layout import Layout, even_layout
from checkpoint.core.manifest import Cut
from checkpoint.core.rebalancing import rebalanced
from checkpoint.core.region_states import WorkerState
from checkpoint.core.roster import Worker
from checkpoint.errors import ManifestError


class Rescaling:
    """The layout of one region's incarnations."""

    def __init__(self, state: CoordinatorState, ending: Ending) -> None:
        self._state = state
        self._ending = ending

    def check_possible(self, cut: Cut) -> None:
        """Raise ManifestError if the region must have other workers than this checkpoint, and cannot."""
        reason = self._state.spec.keeps_workers
        if reason and (wanted := self._wanted(cut)) != len(cut.workers):
            raise ManifestError(
                f"it was made by {_counted(len(cut.workers))}, the region has {_counted(wanted)}: {reason}",
                cut=cut.cut,
                remedy="run the region with as many workers as made the checkpoint",
            )

    def choose_layout(self, now: float) -> None:
        """Set the layout of an incarnation that begins, and its workers."""
        state, last = self._state, self._state.last_checkpoint
        if last is not None and state.spec.workers is None:
            state.declared = last.workers_declared
        state.layout = self._layout_after(last)
        for worker in state.roster.resize(len(state.layout.workers)):
            self._end(worker)
        for worker in state.roster:
            if worker.state is WorkerState.ABSENT:
                state.roster.schedule(worker, now)

    def _layout_after(self, cut: Cut | None) -> Layout:
        if cut is None:
            return even_layout(self._state.spec.workers or limits.workers_default)
        wanted = self._wanted(cut)
        return cut.layout if wanted == len(cut.workers) else rebalanced(cut.layout, range(wanted))

    def _wanted(self, cut: Cut) -> int:
        """Return the number of workers after a checkpoint: its own, unless the program asks for another one.

        A program that asks for the same number as before does not undo that the region was scaled since.
        """
        asked = self._state.spec.workers
        return len(cut.workers) if asked is None or asked == cut.workers_declared else asked

    def _end(self, worker: Worker) -> None:
        """End a worker that the layout does not have any more."""
        state, link = self._state, self._state.roster.retire(worker)
        if link is not None:
            text = f"the region goes on with {_counted(len(state.roster))}"
            state.send(link, self._ending.stop_message("stopped", text))
            state.emit(CloseLink(link))
        elif not worker.ended:
            state.emit(CancelWorker(worker.index))


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
