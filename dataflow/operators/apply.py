"""apply: runs an operator that a user wrote (`operators/user_operator.py`) and enforces its declarations.

This is the only module that calls a `UserOperator`. Its declarations are checked when the graph is planned,
its results when it returns them; errors name the operator. `own_state.py` converts its state to blocks;
`operators/multiple_inputs.py` handles its inputs.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from checkpoint import declared_state
from checkpoint.chains.state_blocks import block_schema
from dataflow.core.event_time import Watermark
from dataflow.core.plan import OperatorKind
from dataflow.errors import DirectoryError, OperatorError, SchemaError, UserFault
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, ReplicaProblem, StateTable
from dataflow.operators.emitting import Emitter, side_outputs_of
from dataflow.operators.functions import NOT_DETERMINISTIC
from dataflow.operators.multiple_inputs import (
    BufferedRows,
    CombinedWatermark,
    check_inputs,
    check_needs,
    inputs_of,
    parsed,
)
from dataflow.operators.own_state import OwnState
from dataflow.operators.redistribution import check_moves, check_redistribution, redistributed
from dataflow.operators.user_operator import Made, RuntimeContext, UserOperator
from dataflow.state.migration import StateHistory, columns_text
from dataflow.state.moving import Share
from dataflow.state.operator_directory import OperatorDirectory
from dataflow.state.row_table import ROW
from dataflow.values.python_rows import FAULTS, batch_of_result, batch_of_rows, several
from dos_protocol.errors import text_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ApplySpec(OperatorSpec):
    """A user's operator instance. Workers run copies of it."""

    kind: ClassVar[OperatorKind] = OperatorKind.APPLY
    operator: UserOperator
    deterministic: bool = True
    as_of: int | None = None
    """The state version that this spec describes; None: the current one."""

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
        history = self.history()
        parts = ["keeps files"] if self.keeps_files else []
        if history is not None:
            version = self.as_of or history.version
            parts.append(declared_state(version, columns_text(history.columns_of(version))))
        return " ".join(parts)

    def earlier(self) -> "Sequence[ApplySpec]":
        history = self.history()
        return [replace(self, as_of=version) for version in history.versions[:-1]] if history else ()

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
    """Return the spec of a user's operator.

    inputs: the names of its input streams; None: one unnamed stream. Raises SchemaError if `operator` is not
    a UserOperator or does not declare these inputs.
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
    """Runs one copy of a user's operator. State: the rows that its `checkpoint` returns, and the watermarks
    of its inputs.
    """

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

    def restored(self) -> None:
        with self._user("open", emits=False):
            self._operator.open(self._runtime_context)
        self._is_open = True
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
            raise DirectoryError(
                f"{type(self._operator).__name__} keeps no files",
                remedy="write keeps_files = True in its class",
            )
        if self._directory is None:
            raise DirectoryError("directory() is available only between open() and close()")
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


__all__ = ["ApplyOperator", "ApplySpec", "apply_spec"]
