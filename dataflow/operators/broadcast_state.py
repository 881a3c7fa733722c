"""Broadcast tables: rows that steer operators instead of flowing through them, complete on every worker.

Theory (consistent-regions: cycles that close on control input ports, which produce no tuples on their own).
The rows of a step take effect in the next step, on every worker, in the order (sender, seq). Therefore the
result does not depend on how far a reader of the table was when the rows arrived; the table may be computed
from the output of its readers, one step later; and a checkpoint after step n contains the rows of step n, so
no row is in transit in the cycle.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from checkpoint import TakenPart
from checkpoint.chains.state_blocks import DELETED_COLUMN, block_schema, make_block
from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys
from dataflow import limits
from dataflow.core.event_time import Watermark
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, ReplicaProblem, StatefulOperator
from dataflow.state.base import Share
from dataflow.state.given_rows import GivenRows
from dataflow.values.python_rows import rows_of

Key: TypeAlias = Any
"""The value of the key column, or a tuple of values if there are several key columns."""
Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BroadcastSpec(OperatorSpec):
    """Sends the rows of a broadcast table to every worker."""

    kind: ClassVar[OperatorKind] = OperatorKind.BROADCAST

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> None:
        del inputs  # its table is refused

    def open(self, context: OperatorContext) -> Operator:
        raise AssertionError(f"exchange {context.operator!r} is run by the circuit, not as an operator")


@dataclass(frozen=True, slots=True)
class BroadcastStateSpec(OperatorSpec):
    """The last row of each key. complete_first: the sources of its readers wait for all of its rows."""

    kind: ClassVar[OperatorKind] = OperatorKind.CONTROL
    not_edited: ClassVar[str] = ""
    keys: tuple[str, ...]
    complete_first: bool = False

    def output_schema(self, inputs: Sequence[pa.Schema]) -> None:
        columns = inputs[0].names
        unknown = [name for name in self.keys if name not in columns]
        if not self.keys or unknown or len(set(self.keys)) < len(self.keys):
            given = ", ".join(map(repr, self.keys)) or "none"
            raise SchemaError(
                f"a broadcast table has one or more key columns, each named once, of {', '.join(columns)};"
                f" got: {given}"
            )
        structs = [name for name in self.keys if pa.types.is_struct(inputs[0].field(name).type)]
        if structs:
            raise SchemaError(
                f"key column {structs[0]!r} of a broadcast table is a struct, by which functions cannot look"
                " up rows; use its fields as several key columns"
            )
        try:
            _block_schema(self.keys, inputs[0])
        except (UnsupportedKeyTypeError, ValueError) as error:
            raise SchemaError(str(error)) from None

    def detail(self) -> str:
        return f"key ({', '.join(self.keys)})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "is a broadcast table, and which rows its readers process before it changes depends on the steps",
            "join the rows by key and time instead",
        )

    def open(self, context: OperatorContext) -> "BroadcastStateOperator":
        return BroadcastStateOperator(self.keys, context.inputs[0])

    def edited(self, rows: GivenRows, context: OperatorContext, watermark: Watermark) -> dict[str, pa.Array]:
        del watermark
        values = {name: rows.declared(name) for name in context.inputs[0].names if name not in self.keys}
        if values:
            nulls = [one.is_null().to_numpy(zero_copy_only=False) for one in values.values()]
            rows.refuse_where(
                np.logical_and.reduce(nulls),
                "all of its values are null, which in a stream deletes the row",
                remedy="to remove a row, write its key with _deleted",
            )
        count = rows.stored.num_rows + int(np.count_nonzero((rows.at < 0) & ~rows.deleted))
        if count > limits.broadcast_rows_max:
            rows.refuse(
                f"a broadcast table has at most {limits.broadcast_rows_max} rows, these would be {count}",
                remedy="join larger tables by key instead",
            )
        return values


def _block_schema(keys: Sequence[str], columns: pa.Schema) -> pa.Schema:
    values = [field for field in columns if field.name not in keys]
    return block_schema(pa.schema([columns.field(name) for name in keys]), pa.schema(values))


class RowsByKey(dict[Key, Row]):
    """Rows that are iterated in the order of their keys."""

    # In the order of insertion, a restored worker would iterate in another order than one that was not. It
    # sorts when iterated, so a look-up costs what that of a dictionary does.
    is_sorted = True

    def put(self, key: Key, row: Row) -> None:
        self.is_sorted = self.is_sorted and key in self
        self[key] = row

    def _sort(self) -> None:
        if not self.is_sorted:
            items = sorted(super().items(), key=lambda item: item[0])
            self.clear()
            self.update(items)
            self.is_sorted = True

    def __iter__(self) -> Iterator[Key]:
        self._sort()
        return super().__iter__()

    def keys(self) -> KeysView[Key]:  # type: ignore[override]
        self._sort()
        return super().keys()

    def values(self) -> ValuesView[Row]:  # type: ignore[override]
        self._sort()
        return super().values()

    def items(self) -> ItemsView[Key, Row]:  # type: ignore[override]
        self._sort()
        return super().items()


class BroadcastStateOperator(StatefulOperator):
    """The table on one worker. Rows that arrive in a step are kept in `_pending` until `begin_step`."""

    def __init__(self, keys: Sequence[str], columns: pa.Schema) -> None:
        self._keys = tuple(keys)
        self._values = tuple(name for name in columns.names if name not in keys)
        self._columns = columns
        self._blocks = _block_schema(keys, columns)
        self._rows = RowsByKey()
        self._pending: dict[Key, Row | None] = {}
        self._changed: dict[Key, None] = {}
        self.table: Mapping[Key, Row] = MappingProxyType(self._rows)
        """The rows that are in effect, in the order of their keys. Changes between steps only."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        for index, row in enumerate(rows_of(batch)):
            key = self._key_of(row)
            parts = key if isinstance(key, tuple) else (key,)
            if None in parts or any(part != part for part in parts):
                raise UserFault(
                    f"the key of a broadcast table ({', '.join(self._keys)}) is null or NaN",
                    row=index,
                    remedy="filter such rows before graph.broadcast_table",
                )
            values = {name: row[name] for name in self._values}
            deletes = values and all(value is None for value in values.values())
            self._pending[key] = None if deletes else values
            self._changed[key] = None
        if len(self._rows) + len(self._pending) > limits.broadcast_rows_max:
            raise UserFault(
                f"a broadcast table has at most {limits.broadcast_rows_max} keys, because every worker holds"
                " all of them",
                remedy="join larger tables by key instead",
            )
        return ()

    def begin_step(self) -> None:
        """Make the rows of the previous step take effect, after all operators here have finished it."""
        for key, row in self._pending.items():
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows.put(key, row)
        self._pending.clear()

    def checkpoint(self) -> pa.RecordBatch:
        block = self._block(self._changed)
        self._changed.clear()
        return block

    def snapshot(self) -> pa.RecordBatch:
        return self._block(key for key in {**self._rows, **self._pending} if self._latest(key) is not None)

    def restore(self, block: pa.RecordBatch) -> None:
        for row in rows_of(block):
            key = self._key_of(row)
            if row[DELETED_COLUMN]:
                self._rows.pop(key, None)
            else:
                self._rows.put(key, {name: row[name] for name in self._values})

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        if not share.stays and part == share.parts[0]:  # the table is the same on every worker
            self.restore(block)
            self._changed.update(dict.fromkeys(map(self._key_of, rows_of(block))))

    def parts_restored(self, share: Share) -> None:
        """Give nothing up: every worker has all rows."""

    def counters(self) -> dict[str, int]:
        return {"keys": len(self._rows)}

    def _key_of(self, row: Row) -> Key:
        return row[self._keys[0]] if len(self._keys) == 1 else tuple(row[name] for name in self._keys)

    def _latest(self, key: Key) -> Row | None:
        # Includes rows that take effect in the next step: a checkpoint contains them too (rule 3).
        return self._pending[key] if key in self._pending else self._rows.get(key)

    def _block(self, keys: Iterable[Key]) -> pa.RecordBatch:
        chosen = list(keys)
        rows = [self._latest(key) for key in chosen]
        parts = [(key,) for key in chosen] if len(self._keys) == 1 else chosen
        columns = [
            pa.array([part[index] for part in parts], self._columns.field(name).type)
            for index, name in enumerate(self._keys)
        ]
        values = [
            pa.array([None if row is None else row[name] for row in rows], self._columns.field(name).type)
            for name in self._values
        ]
        deleted = np.array([row is None for row in rows], np.bool_)
        return make_block(self._blocks, columns, hash_keys(columns), values, deleted)
