"""The interface of an inspection format, and the reader that all of them share.

Reader and table are pickled for every task: they hold options and columns, and nothing that is open.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dos_client import Store
from dos_client.blocking import BlockingStore
from spark_integration.core.option_texts import ReadOptions
from spark_integration.core.row_filter import check_filter
from spark_integration.on_executor import expected_of_driver
from spark_integration.reading.opening import check_executor, opened
from spark_integration.reading.rows import BatchShaper, check_columns, chosen
from spark_integration.reading.store_cache import KEPT


class TableColumns(NamedTuple):
    """`default`: the default columns; `extra`: those that are only returned if they are named."""

    default: pa.Schema
    extra: pa.Schema

    @property
    def every(self) -> pa.Schema:
        return pa.schema([*self.default, *self.extra])


class TablePart(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """What one task reads."""


class InsideTable(Protocol):
    """One format with its options. Pickled."""

    @property
    def options(self) -> ReadOptions: ...

    @property
    def what(self) -> str:
        """What is read, for people."""
        ...

    async def columns(self, store: Store) -> TableColumns:
        """Return the columns. Raises an error if what the options name does not exist."""
        ...

    async def parts(self, store: Store) -> Sequence[Any]:
        """Return what each task reads, as values that can be pickled."""
        ...

    def read(self, store: BlockingStore, part: Any, names: frozenset[str]) -> Iterator[pa.RecordBatch]:
        """Return the rows of a part, with at least the columns `names`."""
        ...


def columns_of(table: InsideTable) -> pa.Schema:
    """Return the columns of a DataFrame without a user-defined schema."""
    with opened(table.options) as store:
        found = store.portal.call(table.columns, store.store)
    return chosen(found.default, found.extra, table.options.columns)


class InsideReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed here
    """Reads what exists when Spark plans the query."""

    def __init__(self, table: InsideTable, wanted: pa.Schema) -> None:
        self._table = table
        self._wanted = wanted
        self._expected = expected_of_driver()

    def partitions(self) -> Sequence[InputPartition]:
        table, comparisons = self._table, self._table.options.filter

        async def plan(store: Store) -> Sequence[Any]:
            columns = (await table.columns(store)).every
            check_columns(self._wanted, columns, table.what)
            check_filter(comparisons, columns)
            return await table.parts(store)

        with opened(table.options) as store:
            return [TablePart(one) for one in store.portal.call(plan, store.store)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TablePart):
            return  # Spark's own partition, which it adds if there are none of ours
        check_executor(self._expected)
        table, comparisons = self._table, self._table.options.filter
        names = frozenset([*self._wanted.names, *(one.column for one in comparisons)])
        with KEPT.lent(table.options) as store:
            rows = table.read(store, partition.value, names)
            yield from BatchShaper(self._wanted, comparisons, table.what).shape(rows)
