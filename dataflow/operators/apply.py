"""apply: runs an operator that a user wrote (`user.py`), and holds it to what it declares.

Rules of this file: the only place that calls a `UserOperator`. What it declares is checked when the graph is
planned, what it gives when it gives it; both are told by name.

Its state is rows, in blocks under their numbers (`_row`), so that a cut writes the rows that are others than
in the cut before. Row -1 holds nothing and says that there is a state, though it may have no rows.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint.core.fingerprint import declared_state
from checkpoint.key_hash import hash_keys
from checkpoint.state_blocks import block_schema, make_block, newest_rows, state_version_of
from dataflow.core.event_time import Mark
from dataflow.core.plan import Kind
from dataflow.errors import SchemaError, nearest
from dataflow.migration import StateHistory, columns_text
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, StateTable, UserFault
from dataflow.operators.emitting import Emitter, sides_of
from dataflow.operators.event_time import MarkTable
from dataflow.operators.results import FAULTS, batch_of_result, batch_of_rows, say, several
from dataflow.operators.user import Made, Place, UserOperator
from dataflow.row_table import ROW
from dataflow.schema import parse_schema, type_text

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ApplySpec(OperatorSpec):
    """An operator of the user's, as it was made; workers run copies of it."""

    kind: ClassVar[Kind] = Kind.APPLY
    operator: UserOperator
    deterministic: bool = True
    as_of: int | None = None
    """The version of its state that is described; None: the present one."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        own = self.operator
        _check_needs(own, inputs[0])
        _check_methods(own)
        history = self.history()
        if history is not None:
            try:
                block_schema(pa.schema([(ROW, pa.int64())]), history.columns)
            except ValueError as error:
                raise SchemaError(f"state: {error}") from None
        sides_of(own.sides)
        try:
            copy.deepcopy(own)
        except Exception as error:
            raise SchemaError(
                f"each worker runs a copy of {type(own).__name__}, and it cannot be copied ({say(error)});"
                " make such things in open()"
            ) from None
        return inputs[0] if own.schema is None else _parsed("schema", own.schema)

    def history(self) -> StateHistory | None:
        """The columns of its state, today and before. Raises SchemaError."""
        own = self.operator
        if own.state is None:
            if own.state_version != 1 or own.migrations:
                raise SchemaError(
                    "it has a state_version or migrations and declares no state; write state = ..."
                )
            return None
        try:
            return StateHistory(own.state, own.state_version, own.migrations)
        except SchemaError as error:
            raise SchemaError(f"state: {error}") from None

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        del inputs
        return sides_of(self.operator.sides)

    def detail(self) -> str:
        history = self.history()
        if history is None:
            return ""
        version = self.as_of or history.version
        return declared_state(version, columns_text(history.columns_of(version)))

    def earlier(self) -> "Sequence[ApplySpec]":
        history = self.history()
        return [replace(self, as_of=version) for version in history.versions[:-1]] if history else ()

    def open(self, context: OperatorContext) -> "ApplyOperator":
        return ApplyOperator(self, context)


@dataclass(frozen=True, slots=True)
class TimedApplySpec(ApplySpec):
    """One that has an `on_punctuation`."""

    needs_time: ClassVar[bool] = True


def apply_spec(operator: object) -> ApplySpec:
    """The description of this operator. Raises SchemaError for something else."""
    if not isinstance(operator, UserOperator):
        found = f"the class {operator.__name__}" if isinstance(operator, type) else type(operator).__name__
        raise SchemaError(
            f"apply takes an instance of a class made from UserOperator, not {found};"
            " write stream.apply('name', YourOperator())"
        )
    spec = TimedApplySpec if _overrides(operator, "on_punctuation") else ApplySpec
    return spec(operator, bool(operator.deterministic))


def _overrides(operator: UserOperator, method: str) -> bool:
    return getattr(type(operator), method) is not getattr(UserOperator, method)


def _parsed(what: str, columns: "str | pa.Schema") -> pa.Schema:
    try:
        return parse_schema(columns)
    except SchemaError as error:
        raise SchemaError(f"{what}: {error}") from None


def _check_needs(operator: UserOperator, given: pa.Schema) -> None:
    if isinstance(operator.needs, str) and not operator.needs:
        return
    for field in _parsed("needs", operator.needs):
        if field.name not in given.names:
            raise SchemaError(
                f"it needs column {field.name!r}{nearest(field.name, given.names)}, and its input has"
                f" {', '.join(given.names)}"
            )
        found = given.field(field.name).type
        if not found.equals(field.type):
            raise SchemaError(
                f"it needs column {field.name!r} as {type_text(field.type)}, and its input has it as"
                f" {type_text(found)}; map it before"
            )


def _check_methods(operator: UserOperator) -> None:
    name = type(operator).__name__
    if not _overrides(operator, "process"):
        raise SchemaError(f"{name} has no process(self, batch); write one")
    for method in ("checkpoint", "reset"):
        if operator.state is not None and not _overrides(operator, method):
            raise SchemaError(f"{name} declares a state and has no {method}(); write checkpoint and reset")
        if operator.state is None and _overrides(operator, method):
            raise SchemaError(
                f"{name} has {method}() and declares no state; write state = 'column type, ...', what is"
                " kept must be of declared columns"
            )


class ApplyOperator(Operator):
    """A running copy. State: what it gives in `checkpoint`, and how far event time is."""

    def __init__(self, spec: ApplySpec, context: OperatorContext) -> None:
        assert context.output is not None
        self._as_made = spec.operator
        self._emitter = Emitter(spec.sides(context.inputs))
        self._emits = False
        self._schema = context.output
        self._deterministic = spec.deterministic
        self._place = Place(context.operator, context.worker, context.workers, context.inputs[0])
        self._is_open = False
        self._time = MarkTable(1) if spec.needs_time else None
        history = spec.history()
        self._state = None if history is None else _OwnState(history, self._checkpoint)
        self._renew()

    def _renew(self) -> None:
        self._own = copy.deepcopy(self._as_made)
        self._own._put = self._put  # noqa: SLF001 - the half of the class that users do not see

    def reset(self) -> None:
        self.close()
        self._renew()
        if self._state is not None:
            self._state.reset()
        if self._time is not None:
            self._time.reset()

    def restored(self) -> None:
        with self._user("open", emits=False):
            self._own.open(self._place)
        self._is_open = True
        rows = None if self._state is None else self._state.take_restored()
        if rows is not None:
            with self._user("reset", emits=False):
                self._own.reset(rows)

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        with self._user("process"):
            return _batches(self._own.process(batch), self._schema)

    def on_punctuation(self, mark: Mark, index: int = 0) -> Sequence[pa.RecordBatch]:
        if self._time is None or not self._time.reach(mark, index):
            return ()
        with self._user("on_punctuation"):
            return _batches(self._own.on_punctuation(_datetime(mark)), self._schema)

    def drain(self) -> Sequence[pa.RecordBatch]:
        with self._user("drain"):
            made = _batches(self._own.drain(), self._schema)
        if made and self._deterministic:
            raise UserFault(
                f"drain gave {sum(batch.num_rows for batch in made)} rows, which depend on where cuts are",
                remedy="set deterministic = False in its class, or give them in process or on_punctuation",
            )
        return made

    def take_side(self, port: str) -> Sequence[pa.RecordBatch]:
        return self._emitter.take(port)

    def tables(self) -> Mapping[str, StateTable]:
        own: dict[str, StateTable] = {} if self._state is None else {"": self._state}
        return own if self._time is None else {**own, "~time": self._time}

    @property
    def wants_snapshot(self) -> bool:
        return self._state is not None and self._state.migrated

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._own.close()

    def _checkpoint(self, schema: pa.Schema) -> pa.RecordBatch:
        with self._user("checkpoint", emits=False):
            made = _batches(self._own.checkpoint(), schema)
        return made[0] if made else pa.RecordBatch.from_pylist([], schema)

    def _put(self, port: str, rows: Any) -> None:
        if not self._emits:
            raise SchemaError("emit works in process, on_punctuation and drain only")
        self._emitter(port, rows)

    @contextmanager
    def _user(self, method: str, *, emits: bool = True) -> Iterator[None]:
        """Tells what is wrong in a method of the user's as its fault."""
        self._emits = emits
        try:
            yield
            self._emitter.settle()
        except UserFault as fault:
            raise UserFault(f"{method}: {fault}", remedy=fault.remedy) from fault.__cause__
        except FAULTS as error:
            raise UserFault(f"{method}: {say(error)}") from error
        finally:
            self._emits = False


def _batches(made: Made, schema: pa.Schema) -> list[pa.RecordBatch]:
    """What a user's method gave, as one batch or none."""
    if isinstance(made, (pa.RecordBatch, pa.Table)):
        batch = batch_of_result(made, schema)
    elif hasattr(made, "iterrows"):
        raise UserFault("it gave a DataFrame", remedy="return pa.RecordBatch.from_pandas(frame)")
    else:
        rows = [*several(made)]
        batch = batch_of_rows(rows, [0] * len(rows), schema)
    return [batch] if batch.num_rows else []


def _datetime(mark: Mark) -> datetime:
    try:
        return _EPOCH + mark * _MICRO
    except OverflowError:
        return _LAST if mark > 0 else _FIRST


class _OwnState(StateTable):
    """See the top of this file."""

    def __init__(self, history: StateHistory, ask: Callable[[pa.Schema], pa.RecordBatch]) -> None:
        self._history = history
        self._columns = _bare(history.columns)
        keys = pa.schema([(ROW, pa.int64())])
        self._blocks = block_schema(keys, self._columns, state_version=history.version)
        self._ask = ask
        self.reset()

    def reset(self) -> None:
        """No state was handed over."""
        self._stored: pa.RecordBatch | None = None
        """What the blocks that were handed over make."""
        self._restored: list[pa.RecordBatch] = []
        self.migrated = False
        """What is stored is of an older version: the next cut writes all of it anew."""

    def checkpoint(self) -> pa.RecordBatch:
        before, after = self._stored, self._ask(self._columns)
        self._stored = after
        if before is None:
            return self._block(after, [-1, *range(after.num_rows)])
        both = min(before.num_rows, after.num_rows)
        changed = (
            [-1, *range(both)] if self.migrated else _others(before.slice(0, both), after.slice(0, both))
        )
        self.migrated = False
        gone = range(after.num_rows, before.num_rows)
        return self._block(after, [*changed, *range(both, after.num_rows), *gone])

    def snapshot(self) -> pa.RecordBatch:
        rows = self._stored
        assert rows is not None, "a snapshot is taken behind a checkpoint"
        return self._block(rows, [-1, *range(rows.num_rows)])

    def restore(self, block: pa.RecordBatch) -> None:
        self._restored.append(block)

    def take_restored(self) -> pa.RecordBatch | None:
        """The state in the blocks that came; None if none came."""
        if not self._restored:
            return None
        blocks, self._restored = self._restored, []
        version = state_version_of(blocks[-1].schema)
        columns = _bare(self._history.columns_of(version))
        # The first cut of a version holds all rows and what is gone: blocks of older ones say nothing more.
        rows = newest_rows([block for block in blocks if state_version_of(block.schema) == version])
        numbers = rows.column(ROW).to_numpy()
        order = np.argsort(numbers)
        found = rows.select(columns.names).take(pa.array(order[numbers[order] >= 0]))
        self._stored = pa.RecordBatch.from_arrays(found.columns, schema=columns)
        if version != self._history.version:
            values = [self._history.migrated(version, row) for row in self._stored.to_pylist()]
            self._stored = pa.RecordBatch.from_pylist(values, self._columns)
            self.migrated = True
        return self._stored

    def _block(self, rows: pa.RecordBatch, numbers: list[int]) -> pa.RecordBatch:
        keys = pa.array(numbers, pa.int64())
        there = pa.array([n if 0 <= n < rows.num_rows else None for n in numbers], pa.int64())
        deleted = np.array([n >= rows.num_rows for n in numbers], np.bool_)
        values = [column.take(there) for column in rows.columns]
        return make_block(self._blocks, [keys], hash_keys([keys]), values, deleted)


def _bare(columns: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in columns])


def _others(before: pa.RecordBatch, after: pa.RecordBatch) -> list[int]:
    """The numbers of the rows that are not the same."""
    changed: list[int] = np.flatnonzero(~_same(before, after)).tolist()
    return changed


def _same(before: pa.RecordBatch, after: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Which rows are the same, bit for bit."""
    same = np.ones(before.num_rows, np.bool_)
    for left, right in zip(before.columns, after.columns, strict=True):
        if pa.types.is_nested(left.type) or pa.types.is_null(left.type):
            pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
            same &= np.array([repr(one) == repr(other) for one, other in pairs], np.bool_)
            continue
        if pa.types.is_floating(left.type):  # -0.0 is another state than 0.0, and NaN the same as NaN
            bits = pa.uint64() if left.type.bit_width == 64 else pa.uint32()
            left, right = left.view(bits), right.view(bits)
        equal = pc.or_kleene(pc.equal(left, right), pc.and_(left.is_null(), right.is_null()))
        same &= pc.fill_null(equal, fill_value=False).to_numpy(zero_copy_only=False)
    return same


__all__ = ["ApplyOperator", "ApplySpec", "apply_spec"]
