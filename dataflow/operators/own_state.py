"""The state of a user's operator: the rows that its `checkpoint` returns, converted to blocks.

Rows are stored in blocks by their number (`_row`), so that a checkpoint writes only the rows that differ from
the previous checkpoint. Row -1 has no values; it records that there is a state, which may have no rows.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import TakenPart
from checkpoint.chains.state_blocks import block_schema, make_block, newest_rows, state_version_of
from checkpoint.key_hash import hash_keys
from dataflow.operators.base import StateTable
from dataflow.operators.python_rows import rows_of
from dataflow.state.migration import StateHistory
from dataflow.state.moving import GatheredParts, Share
from dataflow.state.row_table import ROW

Redistribute: TypeAlias = Callable[[Mapping[int, pa.RecordBatch], Share], pa.RecordBatch]
"""From the states of workers of the layout before, by worker, to the state of one worker now."""


class OwnState(StateTable):
    """The state of a user's operator as a state table. `current_rows` returns its rows.

    `redistribute` makes the state of this worker from those of the workers of another layout.
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
    """Return the numbers of the rows that differ."""
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


__all__ = ["OwnState", "same_rows"]
