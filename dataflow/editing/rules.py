"""What rows that are written into the state of an operator must satisfy: the base class, and the rules of
operators without columns of their own. `tables.py` lists all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dataflow import limits
from dataflow.core.event_time import Watermark
from dataflow.editing.rows import EditedRows, GivenRows, refuse, same_table
from dataflow.errors import UserFault
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec
from dataflow.operators.broadcast_state import BroadcastStateSpec
from dataflow.operators.count import CountSpec
from dataflow.operators.dedup import DedupSpec


class EditRules(ABC):
    """The rules of one operator. `schema`: of the blocks of its table. `columns`: of its input."""

    everywhere: ClassVar[bool] = False
    """Whether every worker has all rows."""
    ignored: frozenset[str] = frozenset()
    """Columns that the operator may store in another form that means the same."""

    def __init__(self, name: str, spec: OperatorSpec, context: OperatorContext) -> None:
        self.name = name
        self._spec = spec
        self._context = context
        operator = self.open()
        try:
            self.schema = operator.tables()[""].snapshot().schema
        finally:
            operator.close()

    def open(self) -> Operator:
        """Return a running instance of the operator without state."""
        return self._spec.open(self._context)

    @property
    @abstractmethod
    def hashed(self) -> Sequence[str]:
        """The key columns whose hash decides the worker."""

    @abstractmethod
    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        """Check the rows, and set `rows.values`. watermark: the highest one of the operator on any worker.

        Raises EditRefusedError.
        """

    def _declared(self, rows: GivenRows, name: str) -> pa.Array:
        """Return a value column that must be given, unless every row is a deletion."""
        if name in rows.columns:
            return rows.typed(name)
        if len(rows.kept):
            rows.refuse(
                f"the column {name!r} is missing",
                remedy="give all columns of the state, or only rows with _deleted",
            )
        return pa.nulls(len(rows), rows.schema.field(name).type)

    def check_read(self, edited: EditedRows) -> None:
        """Have a new instance of the operator read the rows. Raises EditRefusedError if it cannot, or if it
        has other rows then.
        """
        operator = self.open()
        try:
            table = operator.tables()[""]
            table.restore(edited.rows)
            read = table.snapshot()
        except (UserFault, pa.ArrowException, ValueError, TypeError, IndexError, OverflowError) as error:
            refuse(self.name, f"it cannot read the rows: {error}", remedy="correct the values")
        finally:
            operator.close()
        if not same_table(read, edited.rows, self.ignored):
            refuse(
                self.name,
                "it reads other rows than were written",
                remedy="write values as `dos-state` has them",
            )


class CountRules(EditRules):
    """Counts by key."""

    _spec: CountSpec

    @property
    def hashed(self) -> Sequence[str]:
        return self._spec.keys

    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        del watermark
        name = self.schema.names[len(self._spec.keys) + 1]
        counts = self._declared(rows, name)
        wrong = numbers(counts, 0) <= 0
        rows.refuse_where(
            wrong, f"{name!r} must be above 0", remedy="to remove a key, write it with _deleted"
        )
        rows.values = {name: counts}


class DedupRules(EditRules):
    """Keys that were seen."""

    _spec: DedupSpec

    @property
    def hashed(self) -> Sequence[str]:
        return self._spec.keys

    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        del watermark
        rows.values = {}


class BroadcastRules(EditRules):
    """A table that every worker has."""

    everywhere = True
    _spec: BroadcastStateSpec

    @property
    def hashed(self) -> Sequence[str]:
        return self._spec.keys

    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        del watermark
        keys = len(self._spec.keys)
        rows.values = {name: self._declared(rows, name) for name in self.schema.names[keys + 1 : -1]}
        if rows.values:
            columns = [one.is_null().to_numpy(zero_copy_only=False) for one in rows.values.values()]
            empty = np.logical_and.reduce(columns)
            rows.refuse_where(
                empty,
                "all of its values are null, which in a stream deletes the row",
                remedy="to remove a row, write its key with _deleted",
            )
        count = rows.stored.num_rows + int(np.count_nonzero((rows.at < 0) & ~rows.deleted))
        if count > limits.broadcast_rows_max:
            rows.refuse(
                f"a broadcast table has at most {limits.broadcast_rows_max} rows, these would be {count}",
                remedy="join larger tables by key instead",
            )


def flags_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a column of flags; null is False."""
    flags: npt.NDArray[np.bool_] = pc.fill_null(column, fill_value=False).to_numpy(zero_copy_only=False)
    return flags


def numbers(column: pa.Array, null: int) -> npt.NDArray[np.int64]:
    """Return a column of whole numbers, with another number for null."""
    found: npt.NDArray[np.int64] = column.fill_null(null).to_numpy(zero_copy_only=False)
    return found
