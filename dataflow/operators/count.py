"""count: the number of rows per key. Emits (key, count) once per step for each key that had rows in it.

The index of keys is `dataflow.state.key_index`; the worker writes the blocks. Counts are 64-bit integers. A
key whose count falls to zero (weights may be negative) becomes a tombstone in the next block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from checkpoint import TakenPart
from checkpoint.chains.state_blocks import block_schema, make_block
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.base import (
    DELETED_COLUMN,
    OperatorContext,
    OperatorSpec,
    ReplicaProblem,
    StatefulOperator,
)
from dataflow.state.columns import Slots
from dataflow.state.key_index import KeyIndex, SlotArray, TouchedSlots, in_pieces
from dataflow.state.moving import Share
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

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "has no window, and emits a row for each key in each step",
            "use aggregate with a window, Tumbling or Sliding, and Count()",
        )

    def open(self, context: OperatorContext) -> "CountOperator":
        assert context.output is not None
        return CountOperator(self.keys, context.output)


class CountOperator(StatefulOperator):
    """Counts rows by key. State per slot: the count, and whether it changed since the last checkpoint.

    It does not use `KeyedTable`, which maintains three more arrays per slot: a count of 0 is its tombstone.
    """

    def __init__(self, keys: Sequence[str], output: pa.Schema) -> None:
        self._key_names = tuple(keys)
        self._output = output
        key_schema = pa.schema([output.field(name) for name in keys])
        self._blocks = block_schema(key_schema, pa.schema([output.field(COUNT_COLUMN)]))
        self._index = KeyIndex(key_schema.types)
        self._counts = SlotArray(np.int64)
        self._changed = SlotArray(np.bool_)
        self._touched = TouchedSlots()
        self._zeros = 0
        """How many slots have a count of 0."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        slots = self._index.find_or_add([batch.column(name) for name in self._key_names], hashes_of(batch))
        counts = self._counts.reach(len(self._index))
        weights = weights_of(batch)
        np.add.at(counts, slots, 1 if weights is None else weights)
        self._touched.add(slots)
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        touched = self._touched.take(len(self._index))
        if not len(touched):
            return ()
        self._changed.reach(len(self._index))[touched] = True
        self._note_zeros(touched)
        columns = [*self._index.keys(touched), pa.array(self._counts.values[touched])]
        return [pa.RecordBatch.from_arrays(columns, schema=self._output)]

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
        counts = self._counts.values[slots]
        deleted = counts == 0
        values = [pa.array(counts, mask=deleted)]
        return make_block(self._blocks, self._index.keys(slots), self._index.hashes(slots), values, deleted)

    def restore(self, block: pa.RecordBatch) -> None:
        self._load(block)

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        slots = self._load(share.of_part(block, part))
        self._changed.reach(len(self._index))[slots] = True

    def parts_restored(self, share: Share) -> None:
        slots = self._counted()
        lost = slots[~share.owns(self._index.hashes(slots))]
        self._counts.values[lost] = 0
        self._note_zeros(lost)
        self._changed.reach(len(self._index))[lost] = True

    def _load(self, block: pa.RecordBatch) -> Slots:
        slots = self._index.find_or_add([block.column(name) for name in self._key_names], hashes_of(block))
        counts = block.column(COUNT_COLUMN).fill_null(0).to_numpy()
        deleted = block.column(DELETED_COLUMN).to_numpy(zero_copy_only=False)
        self._counts.reach(len(self._index))[slots] = np.where(deleted, 0, counts)
        self._note_zeros(slots)
        return slots

    def _note_zeros(self, changed: Slots) -> None:
        """Count the zeros again, if there are or were any: half a millisecond for a million slots."""
        if self._zeros or not self._counts.values[changed].all():
            slots = len(self._index)
            self._zeros = slots - int(np.count_nonzero(self._counts.reach(slots)[:slots]))

    def counters(self) -> dict[str, int]:
        return {
            "keys": len(self._index) - self._zeros,
            "state_bytes": self._index.bytes_held + self._counts.values.nbytes,
        }
