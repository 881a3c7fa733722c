"""count: the number of rows per key. Emits (key, count) once per step for each key that had rows in it.

The index of keys is `dataflow.state.key_index`; the worker writes the blocks. Counts are 64-bit integers. A
key whose count falls to zero (weights may be negative) becomes a tombstone in the next block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from checkpoint.chains.state_blocks import block_schema
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.base import (
    DELETED_COLUMN,
    OperatorContext,
    OperatorSpec,
    StatefulOperator,
)
from dataflow.state.columns import Slots
from dataflow.state.key_index import KeyIndex, SlotArray, in_pieces
from dataflow.worker.partitioning import hashes_of, weights_of

COUNT_COLUMN: Final = "count"


@dataclass(frozen=True, slots=True)
class CountSpec(OperatorSpec):
    """Counts rows by the key of the upstream keyed stream."""

    kind: ClassVar[OperatorKind] = OperatorKind.COUNT
    accepts_weights: ClassVar[bool] = True
    keys: tuple[str, ...]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if COUNT_COLUMN in self.keys:
            raise SchemaError(
                f"a key column is named {COUNT_COLUMN!r} like the result; rename it with a map before count"
            )
        fields = [inputs[0].field(name) for name in self.keys]
        return pa.schema([*fields, pa.field(COUNT_COLUMN, pa.int64())])

    def detail(self) -> str:
        return f"key ({', '.join(self.keys)})"

    def open(self, context: OperatorContext) -> "CountOperator":
        assert context.output is not None
        return CountOperator(self.keys, context.output)


@dataclass(slots=True)
class _Step:
    """The rows of the current step, as slots in the order of arrival."""

    slots: list[Slots] = field(default_factory=list)


class CountOperator(StatefulOperator):
    """Counts rows by key. State per slot: the count, the position of the last row, and whether the count
    changed since the last checkpoint.
    """

    def __init__(self, keys: Sequence[str], output: pa.Schema) -> None:
        self._key_names = tuple(keys)
        self._output = output
        key_schema = pa.schema([output.field(name) for name in keys])
        self._blocks = block_schema(key_schema, pa.schema([output.field(COUNT_COLUMN)]))
        self.reset()

    def reset(self) -> None:
        self._index = KeyIndex([self._output.field(name).type for name in self._key_names])
        self._counts = SlotArray(np.int64)
        self._round_of = SlotArray(np.int64, fill=-1)
        self._changed = SlotArray(np.bool_)
        self._round = 0
        self._step = _Step()

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        slots = self._index.find_or_add([batch.column(name) for name in self._key_names], hashes_of(batch))
        counts = self._counts.reach(len(self._index))
        weights = weights_of(batch)
        np.add.at(counts, slots, 1 if weights is None else weights)
        self._step.slots.append(slots)
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        touched = self._touched()
        if not len(touched):
            return ()
        self._changed.reach(len(self._index))[touched] = True
        columns = [*self._index.keys(touched), pa.array(self._counts.values[touched])]
        return [pa.RecordBatch.from_arrays(columns, schema=self._output)]

    def _touched(self) -> Slots:
        """Return the slots of the step, each once, in the order of first arrival."""
        if not self._step.slots:
            return np.empty(0, np.int64)
        came = np.concatenate(self._step.slots)
        self._step = _Step()
        first = self._round_of.reach(len(self._index))
        # One array serves both as a flag and as a position: writing backwards leaves the first position of
        # each slot.
        places = np.arange(self._round, self._round + len(came))
        first[came[::-1]] = places[::-1]
        self._round += len(came)
        touched: Slots = came[first[came] == places]
        return touched

    def checkpoint(self) -> pa.RecordBatch:
        changed = self._changed.reach(len(self._index))
        slots: Slots = np.flatnonzero(changed[: len(self._index)])
        changed[slots] = False
        return self._block(slots)

    def snapshot(self) -> pa.RecordBatch:
        return self._block(self._counted())

    def snapshot_pieces(self) -> Iterator[pa.RecordBatch]:
        slots = self._counted()
        for piece in in_pieces(slots, self._index.hashes(slots)):
            yield self._block(piece)

    def _counted(self) -> Slots:
        return np.flatnonzero(self._counts.reach(len(self._index))[: len(self._index)])

    def _block(self, slots: Slots) -> pa.RecordBatch:
        hashes = self._index.hashes(slots)
        order = np.argsort(hashes)
        slots, hashes = slots[order], hashes[order]
        counts = self._counts.values[slots]
        gone = counts == 0
        columns = [*self._index.keys(slots), pa.array(hashes), pa.array(counts, mask=gone), pa.array(gone)]
        return pa.RecordBatch.from_arrays(columns, schema=self._blocks)

    def restore(self, block: pa.RecordBatch) -> None:
        slots = self._index.find_or_add([block.column(name) for name in self._key_names], hashes_of(block))
        counts = block.column(COUNT_COLUMN).fill_null(0).to_numpy()
        deleted = block.column(DELETED_COLUMN).to_numpy(zero_copy_only=False)
        self._counts.reach(len(self._index))[slots] = np.where(deleted, 0, counts)

    def counters(self) -> dict[str, int]:
        return {"keys": len(self._index), "state_bytes": self._index.bytes_held + self._counts.values.nbytes}
