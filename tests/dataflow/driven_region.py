"""A region in one thread that the micro-batches of a query drive: real circuits, and the coordinator's part
of `checkpoint/core/coordination/batches.py`. Orders of the coordinator, frames of peers and the work of each
worker are interleaved by the test.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from checkpoint import TakenPart, state_parts
from checkpoint.core.links.messages import OpenBatch
from checkpoint.core.records.layout import rebalanced
from checkpoint.core.records.manifest import WorkerCheckpoint
from dataflow.graph.builder import Graph
from dataflow.limits import WorkerLimits
from dataflow.sources.batches import BatchSource
from dataflow.state.base import Share
from dataflow.worker.circuit_thread import CircuitIncarnation
from dataflow.worker.layout_change import LayoutChange
from dataflow.worker.messages import OutputMade, SourceWaits, ToLinks
from dataflow.worker.partitioning import encode_batch
from dataflow.worker.shares import HeldRows, HeldShare
from journal import ORIGIN
from tests.dataflow.region_in_one_thread import Choose, OneThreadRegion, WorkerState

Rows = Sequence[Mapping[str, Any]]
Call = Callable[[CircuitIncarnation], None]


class DrivenRegion(OneThreadRegion):
    """A batch is open from `begin` until `recorded` is its number + 1."""

    def __init__(
        self, graph: Graph, workers: int, choose: Choose, limits: WorkerLimits | None = None
    ) -> None:
        super().__init__(graph, workers, choose, limits)
        self.schemas = {
            name: spec.schema for name, spec in self.plan.specs.items() if isinstance(spec, BatchSource)
        }
        self.recorded = 0
        """The number of batches that are recorded."""
        self._made: dict[str, list[tuple[int, int, pa.Table]]] = {}
        """Sink -> (step, worker, rows)."""
        self._ends = [0]
        """The step of the record of each batch, after that of the beginning."""
        self._orders: dict[int, deque[Call]] = {}
        """Worker -> the orders on their way to it."""
        self._fed: dict[int, SourceWaits] = {}
        self._marks: dict[str, int] = {}
        """Of the last recorded batch."""
        self._of_batch: tuple[int, dict[str, int]] | None = None
        """The checkpoint that is to record the open batch, and the marks at its end."""
        self._shares: dict[int, Share] = {}
        """Worker -> what it takes over, while the number of workers changes."""
        self._former: list[list[tuple[int, str, bytes]]] = []
        self.restore()

    # --- the coordinator's part -----------------------------------------------------------------------------

    def restore(self) -> None:
        self._orders = {worker: deque() for worker in range(self.workers)}
        self._fed, self._of_batch = {}, None
        step = self.checkpoint.step if self.checkpoint else 0
        for made in self._made.values():
            made[:] = [one for one in made if one[0] <= step]
        super().restore()

    def begin(self, rows: Mapping[str, Rows]) -> None:
        """Open the next batch, and deal its rows to the workers."""
        dealt: list[HeldShare] = [{name: HeldRows() for name in self.schemas} for _ in self.sides]
        for source, given in rows.items():
            for row in given:
                batch = pa.RecordBatch.from_pylist([row], self.schemas[source])
                dealt[self.choose(self.workers)][source].keep(encode_batch(batch))
        for worker, share in enumerate(dealt):
            order = OpenBatch(
                job="r",
                incarnation=self.incarnation,
                number=self.recorded,
                time_us=1_000_000 * (1 + self.recorded),
                attempt="a",
                marks=dict(self._marks),
            )
            self._orders[worker].append(lambda run, order=order, share=share: run.open_batch(order, share))

    def savepoint(self) -> None:
        """Take a checkpoint between two batches."""
        assert not self._fed, "not while a batch is open"
        self._request(0, None)
        self._run_until(lambda: self.checkpoint is not None and self.checkpoint.number == self.last_number)

    def _request(self, step: int, marks: dict[str, int] | None) -> None:
        self.last_number += 1
        order = partial(
            CircuitIncarnation.request_checkpoint,
            checkpoint=self.last_number,
            final=False,
            step=step,
            marks=marks,
        )
        for orders in self._orders.values():
            orders.append(order)

    def _has_fed(self, worker: int, message: SourceWaits) -> None:
        assert message.batch == self.recorded
        assert worker not in self._fed, "a worker reports once"
        self._fed[worker] = message
        if len(self._fed) == self.workers:
            marks = dict(self._marks)
            for fed in self._fed.values():
                for name, mark in fed.marks.items():
                    marks[name] = max(mark, marks.get(name, mark))
            self._request(1 + max(fed.step for fed in self._fed.values()), marks)
            self._of_batch = self.last_number, marks

    def _commit(self, number: int, votes: Any) -> None:
        super()._commit(number, votes)
        assert self.checkpoint is not None
        if self._of_batch is not None:
            assert self._of_batch[0] == number
            self._marks, self._fed, self._of_batch = self._of_batch[1], {}, None
            self.recorded += 1
            self._ends.append(self.checkpoint.step)

    def _count_votes(self) -> None:
        """No division of a batch is recorded, and its output needs none."""
        for number in sorted(self.votes):
            if len(self.votes[number]) == self.workers:
                self._commit(number, self.votes.pop(number))

    def _post_of(self, index: int) -> Callable[[ToLinks], None]:
        others = super()._post_of(index)

        def post(message: ToLinks) -> None:
            if isinstance(message, OutputMade):
                if not message.rows:
                    return
                with pa.ipc.open_stream(message.data) as reader:
                    self._made.setdefault(message.sink, []).append((message.step, index, reader.read_all()))
            elif isinstance(message, SourceWaits):
                self._has_fed(index, message)
            else:
                others(message)

        return post

    # --- the run --------------------------------------------------------------------------------------------

    def moves(self) -> list[Callable[[], Any]]:
        orders = [partial(self._obey, worker) for worker, orders in self._orders.items() if orders]
        return super().moves() + orders

    def _obey(self, worker: int) -> bool:
        run = self.sides[worker].run
        assert run is not None
        self._orders[worker].popleft()(run)
        return True

    def _run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self.turn(), "the region is stuck"
        while self.turn():
            pass  # the workers hear of the commit

    def batch(self, rows: Mapping[str, Rows], *, resets_after: Sequence[int] = ()) -> dict[str, list[dict]]:
        """Process a batch; return its output by sink. resets_after: turns before each reset."""
        number = self.recorded
        for turns in resets_after:
            if self.recorded == number:  # after its record, the query has its answer
                self.begin(rows)
                for _ in range(turns):
                    self.turn()
                self.restore()
        if self.recorded == number:
            self.begin(rows)
            self._run_until(lambda: self.recorded > number)
        return self.output(number)

    def output(self, number: int) -> dict[str, list[dict]]:
        """Return the output of a recorded batch: sink -> rows, worker by worker."""
        begin, end = self._ends[number : number + 2]
        return {
            sink: [
                row
                for step, _, rows in sorted(made, key=lambda one: (one[1], one[0]))
                if begin < step <= end
                for row in rows.to_pylist()
            ]
            for sink, made in self._made.items()
        }

    # --- another number of workers --------------------------------------------------------------------------

    def rescale(self, workers: int) -> None:
        """Continue from the last checkpoint with another number of workers."""
        assert self.checkpoint is not None
        for side in self.sides:
            assert side.run is not None
            side.run.close()
            side.run = None
        before, self.layout = self.layout, rebalanced(self.layout, range(workers))
        parts = state_parts(before, self.layout)
        self._former = [list(side.blocks) for side in self.sides]
        self.sides = [*self.sides, *(WorkerState() for _ in range(workers))][:workers]
        self.workers = workers
        self.last_number += 1
        self._shares = {worker: Share.of(self.layout, worker, parts[worker]) for worker in range(workers)}
        self.restore()
        self._shares = {}
        self._run_until(lambda: self.checkpoint is not None and self.checkpoint.number == self.last_number)

    def change_of(self, index: int) -> LayoutChange | None:
        share = self._shares.get(index)
        part = WorkerCheckpoint(state=ORIGIN, steps=ORIGIN)
        return share and LayoutChange(self.last_number, share, part, {}, moves=True, forks=False)

    def parts_of(self, index: int) -> Iterable[tuple[TakenPart, tuple[int, str, bytes]]]:
        for part in self._shares[index].parts if index in self._shares else ():
            for block in self._former[part.worker]:
                yield part, block
