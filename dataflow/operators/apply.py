"""apply: runs an operator that a user wrote (`user_operator.py`) and enforces its declarations.

This is the only module that calls a `UserOperator`. How the rows of one input interleave with those of
another depends on timing, and a replay does not repeat it. So rows of an operator with several inputs wait
for the end of the step and are processed input by input, in the order that the operator names (decision
0150).
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import DeclaredState, TakenPart
from checkpoint.chains.state_blocks import block_schema, make_block, newest_rows, state_version_of
from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys
from dataflow.core.event_time import IDLE, UNKNOWN, Watermark
from dataflow.core.plan import OperatorKind
from dataflow.errors import OperatorError, SchemaError, UserFault, nearest
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, ReplicaProblem, StateTable
from dataflow.operators.event_time import WatermarkTable
from dataflow.operators.functions import NOT_DETERMINISTIC, Emitter, side_outputs_of
from dataflow.operators.user_operator import Columns, Made, RuntimeContext, UserOperator
from dataflow.schema import parse_schema, type_text
from dataflow.state.base import GatheredParts, Share
from dataflow.state.migration import StateHistory
from dataflow.state.operator_directory import OperatorDirectory
from dataflow.state.row_table import ROW, one_batch
from dataflow.values.python_rows import FAULTS, batch_of_result, batch_of_rows, rows_of, several
from dos_protocol.errors import DosError, text_of

Redistribute: TypeAlias = Callable[[Mapping[int, pa.RecordBatch], Share], pa.RecordBatch]
"""From the states of workers of the layout before, by worker, to the state of one worker now."""


class OwnState(StateTable):
    """The state of a user's operator as a state table. `current_rows` returns its rows. Rows are stored by
    their number (`_row`); row -1 has no values and records that there is a state, which may have no rows.
    `redistribute` makes the state of this worker from those of another layout.
    """

    def __init__(
        self,
        history: StateHistory,
        current_rows: Callable[[pa.Schema], pa.RecordBatch],
        redistribute: Redistribute,
    ) -> None:
        self._history = history
        self._columns = _bare(history.columns)
        keys = pa.schema([(ROW, pa.int64())])
        self._blocks = block_schema(keys, self._columns, state_version=history.version)
        self._current_rows = current_rows
        self._stored: pa.RecordBatch | None = None
        """The rows that the blocks written so far represent."""
        self._restored: list[pa.RecordBatch] = []
        self._redistribute = redistribute
        self._gathered = GatheredParts()
        self._redistributed: pa.RecordBatch | None = None
        """What this worker has now, where `_stored` is what it had in the layout before."""
        self.migrated = False
        """Whether the stored state is of an older version, so that the next checkpoint writes all of it."""

    def checkpoint(self) -> pa.RecordBatch:
        before, after = self._stored, self._current_rows(self._columns)
        self._stored = after
        if before is None:
            return self._block(after, [-1, *range(after.num_rows)])
        both = min(before.num_rows, after.num_rows)
        changed = (
            [-1, *range(both)]
            if self.migrated
            else _changed_rows(before.slice(0, both), after.slice(0, both))
        )
        self.migrated = False
        deleted = range(after.num_rows, before.num_rows)
        return self._block(after, [*changed, *range(both, after.num_rows), *deleted])

    def snapshot(self) -> pa.RecordBatch:
        rows = self._stored
        assert rows is not None, "a snapshot is taken after a checkpoint"
        return self._block(rows, [-1, *range(rows.num_rows)])

    def restore(self, block: pa.RecordBatch) -> None:
        self._restored.append(block)

    def take_restored(self) -> pa.RecordBatch | None:
        """Return the restored state, migrated to the current version; None if no blocks were restored."""
        if self._redistributed is not None:
            return self._redistributed
        if not self._restored:
            return None
        blocks, self._restored = self._restored, []
        self._stored = self._rows_of(blocks)
        return self._stored

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        del share
        self._gathered.add(block, part)

    def parts_restored(self, share: Share) -> None:
        own = {share.worker: rows} if (rows := self.take_restored()) is not None else {}
        taken = {part.worker: self._rows_of(blocks) for part, blocks in self._gathered.take(share.parts)}
        states = dict(sorted((own | taken).items()))
        if states:
            self._redistributed = self._redistribute(states, share)

    def _rows_of(self, blocks: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the rows in the blocks of one worker, migrated to the current version."""
        version = state_version_of(blocks[-1].schema)
        columns = _bare(self._history.columns_of(version))
        # The first checkpoint of a version contains all rows and deletions, so blocks of older versions add
        # nothing.
        rows = newest_rows([block for block in blocks if state_version_of(block.schema) == version])
        numbers = rows.column(ROW).to_numpy()
        order = np.argsort(numbers)
        sorted_rows = rows.select(columns.names).take(pa.array(order[numbers[order] >= 0]))
        stored = pa.RecordBatch.from_arrays(sorted_rows.columns, schema=columns)
        if version != self._history.version:
            values = [self._history.migrated(version, row) for row in rows_of(stored)]
            stored = pa.RecordBatch.from_pylist(values, self._columns)
            self.migrated = True
        return stored

    def _block(self, rows: pa.RecordBatch, numbers: list[int]) -> pa.RecordBatch:
        keys = pa.array(numbers, pa.int64())
        indices = pa.array([n if 0 <= n < rows.num_rows else None for n in numbers], pa.int64())
        deleted = np.array([n >= rows.num_rows for n in numbers], np.bool_)
        values = [column.take(indices) for column in rows.columns]
        return make_block(self._blocks, [keys], hash_keys([keys]), values, deleted)


def _bare(columns: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in columns])


def _changed_rows(before: pa.RecordBatch, after: pa.RecordBatch) -> list[int]:
    changed: list[int] = np.flatnonzero(~same_rows(before, after)).tolist()
    return changed


def same_rows(before: pa.RecordBatch, after: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Compare rows bit for bit, except that NaN equals NaN. Return a mask of the equal ones."""
    same = np.ones(before.num_rows, np.bool_)
    for left, right in zip(before.columns, after.columns, strict=True):
        if pa.types.is_nested(left.type) or pa.types.is_null(left.type):
            pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
            same &= np.array([repr(one) == repr(other) for one, other in pairs], np.bool_)
            continue
        if pa.types.is_floating(left.type):  # -0.0 differs from 0.0 as a state, and NaN equals NaN
            bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[left.type.bit_width]
            left, right = left.view(bits), right.view(bits)
        equal = pc.or_kleene(pc.equal(left, right), pc.and_(left.is_null(), right.is_null()))
        same &= pc.fill_null(equal, fill_value=False).to_numpy(zero_copy_only=False)
    return same


def check_redistribution(operator: UserOperator, history: StateHistory | None) -> None:
    """Raise SchemaError if the declaration does not fit the state."""
    name, rule, columns = type(operator).__name__, operator.redistribute, tuple(operator.split_by)
    if _moves_files(operator) and not operator.keeps_files:
        raise SchemaError(f"{name} has redistribute_directory() and keeps no files; write keeps_files = True")
    if not (rule is None or rule in ("split", "union") or callable(rule)):
        raise SchemaError(f"{name} has redistribute = {rule!r}; write 'split', 'union' or a method")
    if history is None and rule is not None:
        raise SchemaError(f"{name} declares redistribute but no state; write state = ...")
    if (rule == "split") != bool(columns):
        raise SchemaError(
            f"{name} has redistribute = {rule!r} and split_by = {columns!r}; 'split' needs columns, and"
            " nothing else uses them"
        )
    if history is None or not columns:
        return
    for column in columns:
        if column not in history.columns.names:
            raise SchemaError(f"{name} splits its state by {column!r}, which is no column of the state")
    try:
        hash_keys([pa.array([], history.columns.field(column).type) for column in columns])
    except UnsupportedKeyTypeError as error:
        raise SchemaError(f"{name} cannot split its state by {', '.join(columns)}: {error}") from None


def check_moves(operator: UserOperator) -> None:
    """Raise UserFault if the operator does not say how its state and files move to other workers."""
    if operator.state is not None and operator.redistribute is None:
        raise UserFault(
            f"{type(operator).__name__} has a state and does not say how another number of workers divides"
            " it",
            remedy="set redistribute in its class: 'split' with split_by, 'union', or a method",
        )
    if operator.keeps_files and not _moves_files(operator):
        raise UserFault(
            f"{type(operator).__name__} keeps files and does not say how another number of workers divides"
            " them",
            remedy="define redistribute_directory in its class",
        )


def _moves_files(operator: UserOperator) -> bool:
    return type(operator).redistribute_directory is not UserOperator.redistribute_directory


def redistributed(
    operator: UserOperator, states: Mapping[int, pa.RecordBatch], share: Share
) -> pa.RecordBatch:
    """Return the state of one worker by the rule "split" or "union". Raises UserFault without a rule."""
    check_moves(operator)
    schema = next(iter(states.values())).schema
    rows = one_batch([*states.values()], schema)
    if operator.redistribute == "union":
        return rows
    hashes = hash_keys([rows.column(name) for name in operator.split_by])
    return rows.filter(pa.array(share.owns(hashes)))


def inputs_of(operator: UserOperator) -> tuple[str, ...]:
    """Return the names of its inputs, in order. The name is '' if the operator names no inputs."""
    return tuple(operator.needs) if isinstance(operator.needs, Mapping) else ("",)


def check_inputs(operator: UserOperator, given: Sequence[str] | None) -> None:
    """Raise SchemaError unless these are the inputs that the operator declares. None: one unnamed stream."""
    class_name, names = type(operator).__name__, inputs_of(operator)
    if names != ("",) and not (names and all(isinstance(name, str) and name for name in names)):
        raise SchemaError(
            f"{class_name} must name its inputs in needs, and ({_listed(names)}) are not names; write"
            " needs = {'left': 'column type, ...', 'right': '...'}"
        )
    if given is None:
        if len(names) > 1:
            raise SchemaError(
                f"{class_name} has inputs {_listed(names)}, got one stream; write {_call(class_name, names)}"
            )
        return
    if names == ("",):
        raise SchemaError(
            f"{class_name} does not name its input; write stream.apply('name', {class_name}()),"
            " or needs = {'left': ...}"
        )
    for name in given:
        if name not in names:
            raise SchemaError(
                f"{class_name} has no input {name!r}{nearest(name, names)}, it has {_listed(names)}; write"
                f" {_call(class_name, names)}"
            )
    missing = [name for name in names if name not in given]
    if missing:
        raise SchemaError(
            f"{class_name} also needs input {_listed(missing)}; write {_call(class_name, names)}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _call(class_name: str, names: Sequence[str]) -> str:
    return f"graph.apply('name', {class_name}(), {', '.join(f'{name}=...' for name in names)})"


def check_needs(operator: UserOperator, inputs: Sequence[pa.Schema]) -> None:
    """Raise SchemaError, which names input and column, unless each input has the columns that it needs."""
    needs = operator.needs if isinstance(operator.needs, Mapping) else {"": operator.needs}
    for (name, columns), given in zip(needs.items(), inputs, strict=True):
        try:
            _check_columns(columns, given)
        except SchemaError as error:
            raise SchemaError(f"input {name!r}: {error}" if name else str(error)) from None


def _check_columns(needs: Columns, given: pa.Schema) -> None:
    if isinstance(needs, str) and not needs:
        return
    for field in parsed("needs", needs):
        if field.name not in given.names:
            raise SchemaError(
                f"it needs column {field.name!r}{nearest(field.name, given.names)}, but its input has"
                f" {', '.join(given.names)}"
            )
        found_type = given.field(field.name).type
        if not found_type.equals(field.type):
            raise SchemaError(
                f"it needs column {field.name!r} as {type_text(field.type)}, but its input has it as"
                f" {type_text(found_type)}; convert it with a map before"
            )


def parsed(what: str, columns: Columns) -> pa.Schema:
    """Parse the schema of a declaration. Raises SchemaError, which names the declaration."""
    try:
        return parse_schema(columns)
    except SchemaError as error:
        raise SchemaError(f"{what}: {error}") from None


class BufferedRows:
    """The rows of a step, until all of them have arrived."""

    def __init__(self, inputs: int) -> None:
        self._batches: list[list[pa.RecordBatch]] = [[] for _ in range(inputs)]

    def put(self, index: int, batch: pa.RecordBatch) -> None:
        self._batches[index].append(batch)

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Remove and yield all rows as (input, batch), in the order of the inputs."""
        held, self._batches = self._batches, [[] for _ in self._batches]
        for index, batches in enumerate(held):
            for batch in batches:
                yield index, batch


class CombinedWatermark:
    """The watermarks of the inputs, and their minimum (replication-transparency IV-A)."""

    # Unlike after a union, an input without rows counts: if it started later, the operator could not retract
    # what it emitted.
    def __init__(self, inputs: int) -> None:
        self.each = WatermarkTable(inputs)
        self._before = UNKNOWN

    def of_all(self) -> Watermark:
        return min(self.each.watermarks)

    def reach(self, watermark: Watermark, index: int) -> tuple[bool, bool]:
        """Advance the watermark of one input, for each in order at the end of a step. Return whether it
        advanced and, for the last input, whether the minimum did in this step.
        """
        if index == 0:
            self._before = self.of_all()
        moved = self.each.reach(watermark, index)
        is_last = index == len(self.each.watermarks) - 1
        return moved, is_last and self.of_all() != self._before

    def promised(self, watermark: Watermark) -> Watermark:
        """Return the watermark of the output when `watermark` is that of the inputs together."""
        return watermark if len(self.each.watermarks) == 1 or watermark == IDLE else self.of_all()


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ApplySpec(OperatorSpec):
    """A user's operator instance. Workers run copies of it."""

    kind: ClassVar[OperatorKind] = OperatorKind.APPLY
    not_edited: ClassVar[str] = "only its own code knows what the state of a user operator means"
    operator: UserOperator
    deterministic: bool = True

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        user_operator = self.operator
        check_needs(user_operator, inputs)
        _check_methods(user_operator)
        history = self.history()
        if history is not None:
            try:
                block_schema(pa.schema([(ROW, pa.int64())]), history.columns)
            except ValueError as error:
                raise SchemaError(f"state: {error}") from None
        check_redistribution(user_operator, history)
        side_outputs_of(user_operator.side_outputs)
        try:
            copy.deepcopy(user_operator)
        except Exception as error:
            raise SchemaError(
                f"each worker runs a copy of {type(user_operator).__name__}, and it cannot be copied"
                f" ({text_of(error)}); make such things in open()"
            ) from None
        if user_operator.schema is not None:
            return parsed("schema", user_operator.schema)
        if len(inputs) > 1:
            raise SchemaError(
                f"{type(user_operator).__name__} has several inputs and declares no output columns;"
                " write schema = '...'"
            )
        return inputs[0]

    def history(self) -> StateHistory | None:
        """Return the columns of its state in all versions. Raises SchemaError."""
        user_operator = self.operator
        if user_operator.state is None:
            if user_operator.state_version != 1 or user_operator.migrations:
                raise SchemaError(
                    "it has a state_version or migrations but declares no state; write state = ..."
                )
            return None
        try:
            return StateHistory(user_operator.state, user_operator.state_version, user_operator.migrations)
        except SchemaError as error:
            raise SchemaError(f"state: {error}") from None

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        del inputs
        return side_outputs_of(self.operator.side_outputs)

    @property
    def keeps_files(self) -> bool:
        return bool(self.operator.keeps_files)

    @property
    def can_trigger(self) -> bool:
        return bool(self.operator.requests_checkpoints)

    def check_moves(self, name: str) -> None:
        """Raise OperatorError if nothing says what another number of workers does with its state or files."""
        try:
            check_moves(self.operator)
        except UserFault as fault:
            raise OperatorError(name, "another number of workers", str(fault), remedy=fault.remedy) from None

    def detail(self) -> str:
        return "keeps files" if self.keeps_files else ""

    def stored_columns(self, inputs: Sequence[pa.Schema]) -> Sequence[pa.Schema]:
        del inputs  # what it stores is declared
        return ()

    def declared_states(self) -> tuple[DeclaredState, ...]:
        history = self.history()
        return () if history is None else history.declared(ttls=(False,))

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        del inputs
        if not self.deterministic:
            return NOT_DETERMINISTIC
        if self.operator.replica_consistent:
            return None
        name = type(self.operator).__name__
        return ReplicaProblem(
            f"runs {name}, which does not declare that its rows do not depend on the order of its input",
            "use the operators for windows, joins and states; or write replica_consistent = True in its"
            " class, if the same rows in any order, steps and batches give the same rows",
        )

    def open(self, context: OperatorContext) -> "ApplyOperator":
        return ApplyOperator(self, context)


@dataclass(frozen=True, slots=True)
class TimedApplySpec(ApplySpec):
    """A user's operator that overrides `on_punctuation` or `on_punctuation_of`, so it needs event time."""

    needs_time: ClassVar[bool] = True


def apply_spec(operator: object, inputs: Sequence[str] | None = None) -> ApplySpec:
    """Return the spec of a user's operator. inputs: names of its input streams; None: one unnamed stream.
    Raises SchemaError if `operator` is not a UserOperator or does not declare these inputs.
    """
    if not isinstance(operator, UserOperator):
        given = f"the class {operator.__name__}" if isinstance(operator, type) else type(operator).__name__
        raise SchemaError(
            f"apply takes an instance of a subclass of UserOperator, not {given};"
            " write stream.apply('name', YourOperator())"
        )
    check_inputs(operator, inputs)
    waits = _overrides(operator, "on_punctuation") or _overrides(operator, "on_punctuation_of")
    spec = TimedApplySpec if waits else ApplySpec
    return spec(operator, bool(operator.deterministic))


def _overrides(operator: UserOperator, method: str) -> bool:
    return getattr(type(operator), method) is not getattr(UserOperator, method)


def _check_methods(operator: UserOperator) -> None:
    name = type(operator).__name__
    if not _overrides(operator, "process") and not _overrides(operator, "process_of"):
        raise SchemaError(f"{name} has no process(self, batch); define it")
    for method in ("checkpoint", "reset"):
        if operator.state is not None and not _overrides(operator, method):
            raise SchemaError(f"{name} declares a state but has no {method}(); define checkpoint and reset")
        if operator.state is None and _overrides(operator, method):
            raise SchemaError(
                f"{name} has {method}() but declares no state; write state = 'column type, ...' with the"
                " columns that it stores"
            )


class ApplyOperator(Operator):
    """Runs one copy of a user's operator. State: the rows of its `checkpoint`, and its inputs' watermarks."""

    may_repeat: ClassVar[bool] = False

    def __init__(self, spec: ApplySpec, context: OperatorContext) -> None:
        assert context.output is not None
        self._emitter = Emitter(spec.side_output_schemas(context.inputs))
        self._emits = False
        self._schema = context.output
        self._deterministic = spec.deterministic
        self._inputs = inputs_of(spec.operator)
        columns = dict(zip(self._inputs, context.inputs, strict=True))
        self._runtime_context = RuntimeContext(
            context.operator,
            context.worker,
            context.workers,
            context.inputs[0],
            columns,
            self._open_directory,
            self._request_checkpoint,
            context.owns_key,
        )
        self._is_open = self._requested = False
        self._can_trigger = spec.can_trigger
        self._keeps_files = spec.keeps_files
        self._directory: OperatorDirectory | None = None
        self._time = CombinedWatermark(len(self._inputs)) if spec.needs_time else None
        history = spec.history()
        self._state = None if history is None else OwnState(history, self._checkpoint, self._redistribute)
        self._operator = copy.deepcopy(spec.operator)
        self._buffered = BufferedRows(len(self._inputs))
        self._operator._emit_to_port = self._emit_to_port  # noqa: SLF001 - assigns the private half of UserOperator

    def open_ahead(self) -> None:
        if not self._keeps_files:  # it may look at its files
            self._open()

    def _open(self) -> None:
        if not self._is_open:
            with self._user("open", emits=False):
                self._operator.open(self._runtime_context)
            self._is_open = True

    def restored(self) -> None:
        self._open()
        rows = None if self._state is None else self._state.take_restored()
        if rows is not None:
            with self._user("reset", emits=False):
                self._operator.reset(rows)

    def process_of(self, index: int, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        if len(self._inputs) == 1:
            return self._process(index, batch)
        self._buffered.put(index, batch)
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        return [made for index, batch in self._buffered.take() for made in self._process(index, batch)]

    def _process(self, index: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        name = self._inputs[index]
        with self._user(f"process of input {name!r}" if name else "process"):
            return _batches(self._operator.process_of(name, batch), self._schema)

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        if self._time is None:
            return ()
        moved, all_moved = self._time.reach(watermark, index)
        name, made = self._inputs[index], []
        if moved:
            with self._user("on_punctuation_of"):
                ts = _datetime(self._time.each.watermarks[index])
                made += _batches(self._operator.on_punctuation_of(name, ts), self._schema)
        if all_moved:
            with self._user("on_punctuation"):
                made += _batches(self._operator.on_punctuation(_datetime(self._time.of_all())), self._schema)
        return made

    def passes_on(self, watermark: Watermark) -> Watermark:
        return watermark if self._time is None else self._time.promised(watermark)

    def drain(self) -> Sequence[pa.RecordBatch]:
        with self._user("drain"):
            made = _batches(self._operator.drain(), self._schema)
        if made and self._deterministic:
            raise UserFault(
                f"drain returned {sum(batch.num_rows for batch in made)} rows, which depend on when"
                " checkpoints are taken",
                remedy="set deterministic = False in its class, or return them in process or on_punctuation",
            )
        return made

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        return self._emitter.take(port)

    def tables(self) -> Mapping[str, StateTable]:
        own: dict[str, StateTable] = {} if self._state is None else {"": self._state}
        return own if self._time is None else {**own, "~time": self._time.each}

    @property
    def wants_snapshot(self) -> bool:
        return self._state is not None and self._state.migrated

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._operator.close()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def redistribute_directory(self, sources: Mapping[int, Path], target: Path) -> None:
        with self._user("redistribute_directory", emits=False):
            self._operator.redistribute_directory(sources, target, self._runtime_context)

    def take_directory(self, directory: OperatorDirectory) -> None:
        self._directory = directory

    def _open_directory(self) -> OperatorDirectory:
        if not self._keeps_files:
            raise DosError(
                f"{type(self._operator).__name__} keeps no files",
                remedy="write keeps_files = True in its class",
            )
        if self._directory is None:
            raise DosError("directory() is available only between open() and close()")
        return self._directory

    def _request_checkpoint(self) -> None:
        if not self._can_trigger:
            raise SchemaError(
                f"{type(self._operator).__name__} requests a checkpoint and does not declare it;"
                " write requests_checkpoints = True in its class"
            )
        self._requested = True

    def take_checkpoint_request(self) -> bool:
        requested, self._requested = self._requested, False
        return requested

    def _checkpoint(self, schema: pa.Schema) -> pa.RecordBatch:
        with self._user("checkpoint", emits=False):
            made = _batches(self._operator.checkpoint(), schema)
        return made[0] if made else pa.RecordBatch.from_pylist([], schema)

    def _redistribute(self, states: Mapping[int, pa.RecordBatch], share: Share) -> pa.RecordBatch:
        """Return the state of this worker, made from those of the workers of another layout."""
        schema, rule = next(iter(states.values())).schema, self._operator.redistribute
        if callable(rule):
            with self._user("redistribute", emits=False):
                made = _batches(rule(states, share.worker, share.workers), schema)
            return made[0] if made else pa.RecordBatch.from_pylist([], schema)
        return redistributed(self._operator, states, share)

    def _emit_to_port(self, port: str, rows: Any) -> None:
        if not self._emits:
            raise SchemaError("emit may be called only in process, on_punctuation and drain")
        self._emitter(port, rows)

    @contextmanager
    def _user(self, method: str, *, emits: bool = True) -> Iterator[None]:
        """Run one of the user's methods; turn its exception into a UserFault that names the method."""
        self._emits = emits
        if self._directory is not None:
            self._directory.method = method
        try:
            yield
            self._emitter.settle()
        except UserFault as fault:
            raise UserFault(f"{method}: {fault}", remedy=fault.remedy) from fault.__cause__
        except FAULTS as error:
            raise UserFault(f"{method}: {text_of(error)}") from error
        finally:
            self._emits = False
            if self._directory is not None:
                self._directory.method_over()


def _batches(made: Made, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Convert the result of a user's method into a list of at most one batch."""
    if isinstance(made, (pa.RecordBatch, pa.Table)):
        batch = batch_of_result(made, schema)
    elif hasattr(made, "iterrows"):
        raise UserFault("it returned a DataFrame", remedy="return pa.RecordBatch.from_pandas(frame)")
    else:
        rows = [*several(made)]
        batch = batch_of_rows(rows, [0] * len(rows), schema)
    return [batch] if batch.num_rows else []


def _datetime(watermark: Watermark) -> datetime:
    try:
        return _EPOCH + watermark * _MICRO
    except OverflowError:
        return _LAST if watermark > 0 else _FIRST
