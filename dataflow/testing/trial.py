"""The workers of a graph in this process, for `dataflow.testing`.

The circuits of all workers, their exchanges, the bytes of their state and the files of operators are real.
Every source yields the rows given to `step`, every sink keeps its rows, and a chain is a list.
"""

import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa

from checkpoint import (
    GraphOptions,
    SplitPosition,
    born_with,
    check_compatible,
    compare,
    even_layout,
    rebalanced,
    state_parts,
    stored_under,
)
from checkpoint.chains.state_blocks import decode_block, encode_block
from dataflow.core.event_time import UNKNOWN, SourceTime, Watermark, further
from dataflow.errors import OperatorError, SchemaError, UserFault
from dataflow.graph.builder import Graph
from dataflow.graph.plan import GraphPlan
from dataflow.operators.apply import ApplySpec
from dataflow.operators.base import OperatorContext, OperatorSpec
from dataflow.schema import schema_text
from dataflow.sinks.base import SinkSpec, SinkWriter
from dataflow.sources.base import (
    BatchPiece,
    Positions,
    SourceBatch,
    SourceDivision,
    SourceReader,
    SourceSpec,
    own_positions,
)
from dataflow.state.base import Share
from dataflow.state.operator_directory import Handover, OperatorDirectory
from dataflow.state.scratch import SnapshotSpool
from dataflow.values.python_rows import batch_of_rows, rows_of
from dataflow.worker.circuit import ONE_SPLIT, Circuit, HeldState, OwnPart, Sends, StepTime
from journal import Record
from journal.files.directory import snapshot_of
from journal.files.tree import Rebuilding


@dataclass
class KeptChanges:
    """The chain of one directory (`dataflow.state.operator_directory.ChangeLog`)."""

    records: list[Record] = field(default_factory=list)
    checkpoint_at: int = 0
    """The number of records in the checkpoint that was taken last."""
    committed: int = 0
    """The number of records in the committed checkpoint."""
    snapshot_due: bool = False

    def record(self, record: Record) -> None:
        self.records.append(record)

    def flush(self) -> None:
        """Nothing is held back."""

    def begin(self, sizes: Mapping[str, int], copy: Path) -> None:
        self.records[:] = snapshot_of(copy, sizes)
        shutil.rmtree(copy)

    def checkpoint(self, checkpoint: int, step: int, sizes: Mapping[str, int], copy: Path | None) -> None:
        del checkpoint, step
        if copy is not None:
            self.records[:] = snapshot_of(copy, sizes)
            shutil.rmtree(copy)
        self.checkpoint_at = len(self.records)

    def crash(self) -> None:
        """Discard what no committed checkpoint holds."""
        del self.records[self.committed :]


class TrialDirectories:
    """The directories of all workers."""

    def __init__(self) -> None:
        self._logs: dict[tuple[int, str], KeptChanges] = {}
        self._former: dict[tuple[int, str], KeptChanges] | None = None
        """While the number of workers changes: those of the workers before."""
        self._open: dict[tuple[int, str], OperatorDirectory] = {}
        self._root: Path | None = None
        self._incarnation = 0

    def begin_incarnation(self) -> None:
        """Begin an incarnation at the committed checkpoint; later changes are discarded."""
        self._incarnation += 1
        self._open.clear()
        for log in self._logs.values():
            log.crash()

    def begin_move(self) -> None:
        """Go to another number of workers: operators make their files from those at the checkpoint."""
        for log in self._logs.values():
            log.crash()
        self._former, self._logs = self._logs, {}

    def end_move(self, *, succeeded: bool) -> None:
        """End what `begin_move` began. Without success the former files are the files again."""
        if not succeeded and self._former is not None:
            self._logs = self._former
        self._former = None

    def hand_to(self, circuit: Circuit, plan: GraphPlan, worker: int) -> None:
        """Rebuild the files of a worker's operators and hand them over."""
        for name, spec in plan.specs.items():
            if spec.keeps_files:
                log = self._logs.setdefault((worker, name), KeptChanges())
                path = self._root_directory() / str(self._incarnation) / str(worker) / name
                if self._former is None:
                    _rebuild(path, log)
                else:
                    sources = {one: log for (one, operator), log in self._former.items() if operator == name}
                    paths = {one: path.with_name(f".{name}.former") / str(one) for one in sorted(sources)}
                    for one, copy in paths.items():
                        _rebuild(copy, sources[one])
                    circuit.begin_directory(name, Handover(path, 0, paths), log)
                self._open[worker, name] = OperatorDirectory(path, log)
                circuit.hand_directory(name, self._open[worker, name])

    def _root_directory(self) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="dos-trial-"))
            weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        return self._root

    def request_snapshots(self, *, due: bool) -> None:
        """Set whether the next checkpoint includes all files."""
        for log in self._logs.values():
            log.snapshot_due = due

    def commit(self) -> None:
        """Commit the checkpoint that was taken last."""
        for log in self._logs.values():
            log.committed = log.checkpoint_at

    def operators(self) -> list[str]:
        return sorted({name for _, name in self._logs})

    def files(self, operator: str, worker: int) -> dict[str, bytes]:
        """Return the files as plain reading sees them. Raises KeyError."""
        root = self._open[worker, operator].path
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }


def _rebuild(path: Path, log: KeptChanges) -> None:
    with Rebuilding(path) as rebuilding:
        rebuilding.replay.take((number, record) for number, record in enumerate(log.records, 1))
        rebuilding.put()


def stand_in(spec: OperatorSpec, schema: pa.Schema | None) -> OperatorSpec:
    """Return what a trial runs for an operator: itself, unless it is a source or a sink."""
    if isinstance(spec, SourceSpec):
        return TrialSource(schema)
    return TrialSink() if isinstance(spec, SinkSpec) else spec


@dataclass(frozen=True, slots=True)
class TrialSource(SourceSpec):
    schema: pa.Schema

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return self.schema

    def open(self, context: OperatorContext) -> "TrialReader":
        del context
        return TrialReader()


class TrialReader(SourceReader):
    """A source that reads nothing: the trial feeds its circuit."""

    exhausted = False

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        """There are no positions."""

    def read(self, bytes_max: int) -> SourceBatch | None:
        del bytes_max
        return None

    def replay(self, division: SourceDivision) -> list[SourceBatch]:
        del division
        return []

    def take_division(self) -> SourceDivision:
        return {}

    def positions(self) -> Positions:
        return {}

    def describe(self, source: SourceBatch, row: int | None) -> str:
        del source
        return "the rows given" if row is None else f"row {row} of those given"


@dataclass(frozen=True, slots=True)
class TrialSink(SinkSpec):
    def open(self, context: OperatorContext) -> "TrialWriter":
        del context
        return TrialWriter()


@dataclass(slots=True)
class TrialWriter(SinkWriter):
    batches: list[pa.RecordBatch] = field(default_factory=list)
    watermark: Watermark = UNKNOWN
    """The watermark of its rows after the newest step."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self.batches.append(batch)
        return ()

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        del index
        self.watermark = further(self.watermark, watermark)
        return ()

    def take(self) -> list[pa.RecordBatch]:
        """Return the batches since the last call."""
        batches, self.batches = self.batches, []
        return batches

    def prepare(self, checkpoint: int) -> None:
        del checkpoint

    def sync(self) -> None:
        """Nothing is written."""

    def reset_to(self, prepared: Any | None) -> None:
        """A crash opens new writers."""


Rows: TypeAlias = "Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table"
"""Dicts, a batch or a table."""


def batches_of(given: Any) -> list[Rows]:
    """Return one batch of rows, or several, as a list of batches."""
    if isinstance(given, (pa.RecordBatch, pa.Table)):
        return [given]
    several = list(given)
    if several and not isinstance(several[0], Mapping):
        return several
    return [several]


def batch_of(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows as a batch. Raises SchemaError for other columns."""
    if isinstance(rows, pa.Table):
        rows = rows.combine_chunks()
        found = rows.to_batches()
        rows = found[0] if found else []
    if not isinstance(rows, pa.RecordBatch):
        listed = list(rows)
        try:
            return batch_of_rows(listed, range(len(listed)), schema)
        except UserFault as fault:
            raise SchemaError(f"row {fault.row} of the step: {fault}") from fault
    if not rows.schema.equals(schema):
        raise SchemaError(
            f"the source has columns ({schema_text(schema)}), and the step got ({schema_text(rows.schema)})"
        )
    return rows


TakeOver: TypeAlias = Callable[[int, Circuit], None]


class Trial:
    """All workers of a graph, driven step by step. Raises GraphError, and OperatorError from `step`."""

    def __init__(
        self, graph: Graph, *, workers: int = 1, splits: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """splits: source -> names of its splits, dealt to the workers in turn. Each has its own watermark,
        and holds event time back until `step` has it in `done`. Otherwise the rows on one worker are one
        split.
        """
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._use_plan(graph.plan())
        self._splits = {name: tuple(names) for name, names in (splits or {}).items()}
        self._check_sources(self._splits)
        self._unfinished = {name: set(names) for name, names in self._splits.items()}
        """Source -> splits that are not read to their end."""
        self._checkpoint_unfinished = {name: set(left) for name, left in self._unfinished.items()}
        self._waiting: list[tuple[int, str, SourceBatch]] = []
        """(worker, source, rows) of sources that wait until a broadcast table is complete."""
        self._checkpoint_waiting = list(self._waiting)
        self._checkpoint_times: list[dict[str, Positions]] = [{} for _ in range(workers)]
        self._workers = workers
        self._step = 0
        self._checkpoint_step = 0
        self._checkpoints = 0
        self._checkpoint_operators = self._plan.operators
        self._uids: dict[str, str] = {}
        self._checkpoint_uids: dict[str, str] = {}
        self._sink_batches: dict[str, list[tuple[int, pa.RecordBatch]]] = {
            name: [] for name, spec in self._plan.specs.items() if isinstance(spec, TrialSink)
        }
        """Sink -> (step, batch)."""
        self._layout = even_layout(workers)
        self._blocks: list[list[tuple[str, bytes]]] = [[] for _ in range(workers)]
        self._directories = TrialDirectories()
        self._circuits = self._open()

    def step(
        self,
        inputs: Mapping[str, "Rows | Sequence[Rows] | Mapping[str, Rows]"],
        *,
        checkpoint: bool = False,
        snapshot: bool = False,
        end: bool = False,
        done: Mapping[str, Collection[str]] | None = None,
        now: datetime | None = None,
    ) -> None:
        """Run one step with the given rows of each source, with a checkpoint at its end if requested.

        inputs: a source's rows are one batch, read by worker 0; or a list of batches, dealt to the workers in
        turn; or, if the source has splits, the rows of each split that is read. Rows of a source that waits
        for a broadcast table with `complete_first` are fed in the first step after the sources of the table
        ended. done: splits that yield no rows after this step. snapshot: the checkpoint contains the whole
        state, as a journal does after it dropped earlier blocks. end: no source yields rows after this step.
        now: the time of the step, with a zone, for `event_time(max_ahead=...)`. None: the clock's.
        """
        self._check_sources(inputs)
        for circuit in self._circuits:
            circuit.time.step_begins(int(1000 * (time.time() if now is None else now.timestamp())))
        self._step += 1
        self._feed_waiting()
        for name, given in inputs.items():
            if name in self._splits:
                self._feed_splits(name, given or {})
                continue
            for index, rows in enumerate(batches_of(given)):
                batch = batch_of(rows, self._schemas[name])
                self._feed(index % self._workers, name, SourceBatch(batch, (), batch.nbytes))
        for name, ended in (done or {}).items():
            self._unfinished[name] -= set(ended)
        while end and self._waiting:
            self._run_step(checkpoint=False, snapshot=False, end=True)
            self._step += 1
            self._feed_waiting()
        self._run_step(checkpoint=checkpoint, snapshot=snapshot, end=end)

    def _feed(self, worker: int, name: str, rows: SourceBatch) -> None:
        """Feed the rows, or keep them while their source waits for a broadcast table."""
        if name in self._circuits[worker].time.held_sources:
            self._waiting.append((worker, name, rows))
        else:
            self._circuits[worker].feed(self._step, name, rows)

    def _feed_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for worker, name, rows in waiting:
            self._feed(worker, name, rows)

    def _run_step(self, *, checkpoint: bool, snapshot: bool, end: bool) -> None:
        taken = [
            OwnPart(self._checkpoints + 1, SnapshotSpool() if snapshot else None) for _ in self._circuits
        ]
        self._directories.request_snapshots(due=snapshot)
        self._run(checkpoint=checkpoint, taken=taken, end=end)
        for circuit in self._circuits:
            for name, batches in self._sink_batches.items():
                batches += [(self._step, batch) for batch in self._writer(circuit, name).take()]
        if checkpoint:
            self._commit(taken)

    def _check_sources(self, named: Iterable[str]) -> None:
        unknown = sorted(set(named) - set(self._schemas))
        if unknown:
            known = ", ".join(map(repr, sorted(self._schemas)))
            raise SchemaError(f"{', '.join(map(repr, unknown))} is no source of this graph; it has {known}")

    def _feed_splits(self, name: str, rows_by_split: Any) -> None:
        if not isinstance(rows_by_split, Mapping):
            raise SchemaError(f"source {name!r} has splits: pass its rows as {{split: rows}}")
        for split, rows in rows_by_split.items():
            if split not in self._unfinished[name]:
                raise SchemaError(f"source {name!r} has no split {split!r}, or it was done before")
            batch = batch_of(rows, self._schemas[name])
            worker = self._splits[name].index(split) % self._workers
            piece = BatchPiece(split, 0, batch.num_rows, 0)
            self._feed(worker, name, SourceBatch(batch, (piece,), batch.nbytes))

    def _use_plan(self, plan: GraphPlan) -> None:
        self._schemas = {
            name: plan.schemas[name] for name, spec in plan.specs.items() if isinstance(spec, SourceSpec)
        }
        specs = {name: stand_in(spec, plan.schemas[name]) for name, spec in plan.specs.items()}
        self._plan = replace(plan, specs=specs)

    def go_on_with(
        self,
        graph: Graph,
        *,
        drop_state: Collection[str] = (),
        new_aggregates: Collection[str] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> int:
        """Crash, and continue with another graph, with corrected functions or a newer version of a state.
        drop_state, new_aggregates, renamed: as for `run`, of OPERATOR:RESULT. Raises GraphChangeRefusedError
        if the checkpoint does not fit it, or operators with a state come or go, and changes nothing then.
        """
        plan = graph.plan()
        if self._checkpoints:
            results = [name for name in drop_state if ":" in name]
            options = GraphOptions(tuple(results), renamed or {}, new_aggregates=tuple(new_aggregates))
            change = compare(
                self._checkpoint_operators,
                plan.operators,
                options=options,
                uids=self._checkpoint_uids,
                born=born_with("trial", self._checkpoints),
            )
            comes = sorted(stored_under(plan.operators, {}).keys() - {*change.kept, *dict(change.refused)})
            refused = [(name, "has a state, or is a source or a sink, and comes later") for name in comes]
            change = replace(change, refused=(*change.refused, *refused))
            check_compatible(change, region="trial", checkpoint=self._checkpoints)
            self._uids = {name: uid for name, uid in change.uids.items() if ":" in name}
        self._use_plan(plan)
        return self.crash()

    def crash(self) -> int:
        """Crash all workers and restore the last checkpoint, or the beginning; discard later rows of the
        sinks. Return the number of steps in the checkpoint.
        """
        return self._go_back()

    def _go_back(
        self, take_over: TakeOver | None = None, held: Mapping[int, HeldState] = MappingProxyType({})
    ) -> int:
        for circuit in self._circuits:
            circuit.close()
        self._step = self._checkpoint_step
        for name, batches in self._sink_batches.items():
            self._sink_batches[name] = [(step, batch) for step, batch in batches if step <= self._step]
        self._unfinished = {name: set(left) for name, left in self._checkpoint_unfinished.items()}
        self._waiting = list(self._checkpoint_waiting)
        self._circuits = self._open(take_over, held)
        return self._step

    def rescale(self, workers: int) -> int:
        """Crash, and continue from the last checkpoint with another number of workers. Returns as `crash`. If
        no step was made since, workers that stay continue with the state that they have.

        Sources deal their rows and splits to the new workers, and a checkpoint follows at once. Raises
        OperatorError if an operator does not say how its state and files are divided, or if its function for
        that fails, and ValueError without a checkpoint; then the number of workers is as before.
        """
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if not self._checkpoints:
            raise ValueError("the number of workers can change after a checkpoint, and there is none yet")
        users = {name: spec for name, spec in self._plan.specs.items() if isinstance(spec, ApplySpec)}
        for name, spec in users.items():
            spec.check_moves(name)
        before = self._layout, self._workers, self._blocks
        times_before, waiting_before = self._checkpoint_times, self._checkpoint_waiting
        old, stored = self._layout, dict(zip(self._layout.workers, self._blocks, strict=True))
        self._layout, self._workers = rebalanced(old, range(workers)), workers
        parts = state_parts(old, self._layout, of_all=bool(users))
        self._blocks = [list(stored.get(worker, [])) for worker in range(workers)]
        times = {
            name: own_positions([one.get(name, {}) for one in self._checkpoint_times], lambda _: True)
            for of_worker in self._checkpoint_times
            for name in of_worker
        }
        self._checkpoint_times = [times for _ in range(workers)]
        self._checkpoint_waiting = [(at % workers, name, rows) for at, name, rows in self._checkpoint_waiting]

        def take_over(worker: int, circuit: Circuit) -> None:
            share = Share.of(self._layout, worker, parts[worker])
            for part in share.parts:
                for operator, data in stored[part.worker]:
                    block = decode_block(data)
                    if circuit.stateful[operator].by_key:  # a worker reads no block without such rows
                        block = share.of_part(block, part)
                    circuit.restore_part(operator, block, part, share)
            circuit.parts_restored(share)

        self._directories.begin_move()
        try:
            held = self._held(workers) if self._step == self._checkpoint_step else {}
            step = self._go_back(take_over, held)
        except OperatorError:
            self._layout, self._workers, self._blocks = before
            self._checkpoint_times, self._checkpoint_waiting = times_before, waiting_before
            self._directories.end_move(succeeded=False)
            self._go_back()
            raise
        self._directories.end_move(succeeded=True)
        taken = [OwnPart(self._checkpoints + 1) for _ in self._circuits]
        for circuit, into in zip(self._circuits, taken, strict=True):
            for stage in range(1, len(self._plan.plan.stages)):
                circuit.take_checkpoint(stage, into)
        self._checkpoint_times = [circuit.time.positions() for circuit in self._circuits]
        self._commit(taken)
        return step

    def _held(self, workers: int) -> dict[int, HeldState]:
        """Return the state of the workers that stay."""
        staying = dict(enumerate(self._circuits[:workers]))
        return {one: circuit.hold() for one, circuit in staying.items() if not circuit.wants_snapshot}

    @property
    def directories(self) -> list[tuple[str, int]]:
        """(operator, worker) of each directory."""
        return [(name, worker) for name in self._directories.operators() for worker in range(self._workers)]

    @property
    def sinks(self) -> list[str]:
        """The names of the sinks."""
        return list(self._sink_batches)

    def table(self, sink: str) -> pa.Table:
        """Return the rows of a sink in the order of steps, workers and rows."""
        batches = [batch for _, batch in self._sink_batches[sink]]
        return pa.Table.from_batches(batches, self._plan.inputs_of(sink)[0])

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """Return the rows of a sink as dicts."""
        return [row for batch in self.table(sink).to_batches() for row in rows_of(batch)]

    def watermark(self, sink: str) -> int:
        """Return the watermark of a sink, the least of all workers, in microseconds since 1970."""
        return min(self._writer(circuit, sink).watermark for circuit in self._circuits)

    def _writer(self, circuit: Circuit, sink: str) -> TrialWriter:
        writer = circuit.sinks[sink]
        assert isinstance(writer, TrialWriter)
        return writer

    def files(self, operator: str, worker: int = 0) -> dict[str, bytes]:
        """Return the files of an operator on one worker: name -> content."""
        try:
            return self._directories.files(operator, worker)
        except KeyError:
            kept = ", ".join(map(repr, self._directories.operators())) or "none"
            raise SchemaError(
                f"operator {operator!r} keeps no files on worker {worker} of {self._workers}; operators with"
                f" files: {kept}"
            ) from None

    def counters(self) -> list[dict[str, dict[str, int]]]:
        """Return for each worker operator -> counter -> value, since it was opened."""
        return [circuit.counters() for circuit in self._circuits]

    # --- what the runtime does ------------------------------------------------------------------------------

    def _open(
        self, take_over: TakeOver | None = None, held: Mapping[int, HeldState] = MappingProxyType({})
    ) -> list[Circuit]:
        """Open the circuits at the last checkpoint. take_over: completes the state of one. held: worker ->
        the state with which it continues.
        """
        circuits = [
            Circuit(
                self._plan,
                region="trial",
                worker=worker,
                workers=self._workers,
                store_id=bytes(16),
                layout=self._layout,
                uids=self._uids,
                opened=held[worker].operators if worker in held else {},
            )
            for worker in range(self._workers)
        ]
        self._directories.begin_incarnation()
        for worker, (circuit, blocks) in enumerate(zip(circuits, self._blocks, strict=True)):
            if worker in held:
                circuit.take_held(held[worker], self._checkpoints)
            for operator, data in blocks:
                if operator not in circuit.held:
                    circuit.restore(operator, decode_block(data), self._checkpoints)
            if take_over is not None:
                take_over(worker, circuit)
            circuit.time.restore(self._checkpoint_times[worker])
            self._directories.hand_to(circuit, self._plan, worker)
            circuit.restored()
        return circuits

    def _run(self, *, checkpoint: bool, taken: Sequence[OwnPart], end: bool) -> None:
        sends = [
            circuit.end_sources(self._step, self._time_of(worker, end=end))
            for worker, circuit in enumerate(self._circuits)
        ]
        if checkpoint:
            self._checkpoint_times = [circuit.time.positions() for circuit in self._circuits]
        for stage in range(1, len(self._plan.plan.stages)):
            received = [_received(sends, worker) for worker in range(self._workers)]
            times = {
                channel: [circuit.time.to_send(self._step, channel) for circuit in self._circuits]
                for channel in self._plan.plan.stages[stage].receives
            }
            sends = [
                circuit.run_stage(stage, self._step, batches, checkpoint=checkpoint, watermarks=times)
                for circuit, batches in zip(self._circuits, received, strict=True)
            ]
            if checkpoint:
                for circuit, into in zip(self._circuits, taken, strict=True):
                    circuit.take_checkpoint(stage, into)

    def _time_of(self, worker: int, *, end: bool) -> StepTime:
        # Rows of sources without splits are dealt as they come; a worker without rows delays no other.
        now = dict.fromkeys(self._schemas, ONE_SPLIT._replace(at_end=end))
        for name, splits in self._splits.items():
            left = [split for split in splits[worker :: self._workers] if split in self._unfinished[name]]
            now[name] = SourceTime(end or not left, behind=left)
        for _, name, _ in self._waiting:
            now[name] = SourceTime(is_known=False)
        return StepTime(now)

    def _commit(self, taken: Sequence[OwnPart]) -> None:
        self._checkpoints += 1
        self._checkpoint_operators = self._plan.operators
        self._checkpoint_uids = self._uids
        self._checkpoint_step = self._step
        self._checkpoint_unfinished = {name: set(left) for name, left in self._unfinished.items()}
        self._checkpoint_waiting = list(self._waiting)
        self._directories.commit()
        for blocks, made in zip(self._blocks, taken, strict=True):
            if made.snapshot is not None:
                blocks[:] = made.snapshot
                continue
            blocks += [(name, data) for name, block in made.blocks.items() for data in encode_block(block)]


def _received(sends: Sequence[Sends], worker: int) -> dict[int, list[tuple[int, pa.RecordBatch]]]:
    received: dict[int, list[tuple[int, pa.RecordBatch]]] = {}
    for sender, channels in enumerate(sends):
        for channel, parts in channels.items():
            received.setdefault(channel, []).extend((sender, batch) for batch in parts[worker])
    return received
