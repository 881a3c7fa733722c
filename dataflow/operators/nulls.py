"""The rules of `event_time` and `key_by` for rows whose time or key is null: fail, drop, or side output.

docs/decisions/0214 has the reasons for these choices.

The number of excluded rows is state, as that of late rows (`late.py`): a row that was dropped before a
checkpoint is not read again. Both operators may run in stage 0, which is ahead of the checkpoint, so the
count of each step is remembered (`step_values.py`).
"""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import TakenPart
from checkpoint.chains.state_blocks import block_schema, make_block
from checkpoint.key_hash import hash_keys
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.base import Operator, StateTable
from dataflow.operators.step_values import StepValues
from dataflow.state.moving import GatheredParts, Share

OnNullTime: TypeAlias = Literal["error", "drop", "side"]
OnNullKey: TypeAlias = Literal["group", "error", "drop", "side"]
NULL_PORT: Final = "null"
"""The side output of excluded rows."""
_LOST: Final = "null_rows_dropped"


def check_choice(choice: str, choices: Sequence[str], argument: str = "on_null") -> None:
    """Raise SchemaError if the value of an argument is not one of the choices."""
    if choice not in choices:
        raise SchemaError(f"{argument} must be one of {', '.join(map(repr, choices))}, not {choice!r}")


def null_side_outputs(on_null: str, columns: pa.Schema) -> dict[str, pa.Schema]:
    """Return the side outputs of an operator with this choice."""
    return {NULL_PORT: columns} if on_null == "side" else {}


class RememberedCount(StateTable):
    """A number that only grows, as state of an operator that may be ahead of the checkpoint."""

    _schema = block_schema(pa.schema([("input", pa.int64())]), pa.schema([("rows", pa.int64())]))

    def __init__(self) -> None:
        self.rows = 0
        self.by_step = StepValues()
        self._gathered = GatheredParts()

    def checkpoint(self) -> pa.RecordBatch:
        return self.snapshot()

    def snapshot(self) -> pa.RecordBatch:
        rows = self.by_step.selected(self.rows)
        keys = pa.array([0] if rows else [], pa.int64())
        values = pa.array([rows] if rows else [], pa.int64())
        return make_block(self._schema, [keys], hash_keys([keys]), [values])

    def restore(self, block: pa.RecordBatch) -> None:
        for row in block.to_pylist():
            self.rows = row["rows"]

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        del share
        if part.stays:
            self._gathered.add(block, part)

    def parts_restored(self, share: Share) -> None:
        self.rows += sum(
            blocks[-1].column("rows")[0].as_py() for _, blocks in self._gathered.take(share.parts)
        )


class NullRule(Operator):
    """An operator that applies a rule to rows in which one of `columns` is null, and passes on the others."""

    passes_rows = True

    def __init__(self, role: str, on_null: str, columns: Sequence[str], instead: str) -> None:
        """role: what the columns are, for messages. instead: the remedy in the message of on_null="error".
        on_null="group" passes on all rows.
        """
        self._role = role
        self._on_null = on_null
        self._null_columns = tuple(columns)
        self._instead = instead
        self._excluded: list[pa.RecordBatch] = []
        self.nulls = RememberedCount()

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        return [self.without_nulls(batch)]

    def without_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to pass on. Raises UserFault if on_null="error" and a row has a null."""
        with_nulls = [name for name in self._null_columns if batch.column(name).null_count]
        if not with_nulls or self._on_null == "group":
            return batch
        null = np.zeros(batch.num_rows, np.bool_)
        for name in with_nulls:
            null |= batch.column(name).is_null().to_numpy(zero_copy_only=False)
        if self._on_null == "error":
            rows = batch.column(with_nulls[0]).null_count
            raise UserFault(
                f"{self._role} {with_nulls[0]!r} is null in {rows} of {batch.num_rows} rows",
                row=int(np.flatnonzero(null)[0]),
                remedy=self._instead,
            )
        self.nulls.rows += int(null.sum())
        if self._on_null == "side":
            self._excluded.append(batch.filter(pa.array(null)))
        return batch.filter(pc.invert(pa.array(null)))

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        assert port == NULL_PORT
        excluded, self._excluded = self._excluded, []
        return excluded

    def lost_on(self, port: str) -> dict[str, int]:
        return {_LOST: self.nulls.rows} if port == NULL_PORT and self.nulls.rows else {}

    def counters(self) -> dict[str, int]:
        return {_LOST: self.nulls.rows} if self._on_null == "drop" and self.nulls.rows else {}

    def tables(self) -> dict[str, StateTable]:
        return {"~nulls": self.nulls}

    # --- Ahead of the checkpoint ----------------------------------------------------------------------

    def remember(self, step: int) -> None:
        """Record the count at the end of this step."""
        self.nulls.by_step.remember(step, self.nulls.rows)

    def forget(self, step: int) -> None:
        """Discard the steps before this one; no later call refers to them."""
        self.nulls.by_step.forget(step)

    def select_step(self, step: int) -> None:
        """Select the step that the next checkpoint describes."""
        self.nulls.by_step.select(step)


__all__ = ["NULL_PORT", "NullRule", "OnNullKey", "OnNullTime", "check_choice", "null_side_outputs"]
