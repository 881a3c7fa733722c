"""`spark.read.format("dos")`: Spark's class for a batch read, around `planning` and `tasks`.

The readers are pickled for every task: they hold options, columns and conditions, and nothing that is open.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_integration.core.options import SourceOptions
from spark_integration.core.row_filter import ColumnCondition
from spark_integration.on_executor import expected_of_driver
from spark_integration.reading.opening import check_executor
from spark_integration.reading.planning import plan_batch
from spark_integration.reading.ranges import DosPartition
from spark_integration.reading.tasks import rows_of


class DosReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed here
    """Reads everything that exists when Spark plans the query."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema) -> None:
        self._options = options
        self._wanted = wanted
        self._comparisons = options.filter
        self._expected = expected_of_driver()

    def partitions(self) -> Sequence[InputPartition]:
        return plan_batch(self._options, self._wanted, self._comparisons)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, DosPartition):
            return iter(())  # Spark's own partition, which it adds if there are none of ours
        check_executor(self._expected)
        return rows_of(self._options, self._wanted, self._comparisons, partition)


class PushingReader(DosReader):
    """The reader for sessions with `spark.sql.python.filterPushdown.enabled`.

    Without that conf Spark refuses a reader that has `pushFilters`. With it, Spark trusts the reader and does
    not apply the accepted filters again.
    """

    def pushFilters(self, filters: "list[datasource.Filter]") -> "Iterable[datasource.Filter]":  # noqa: N802
        """Accept the filters that are applied in full, and yield the others."""
        for one in filters:
            comparison = comparison_of(one, self._wanted)
            if comparison is None:
                yield one
            else:
                self._comparisons = (*self._comparisons, comparison)


def comparison_of(spark_filter: "datasource.Filter", columns: pa.Schema) -> ColumnCondition | None:
    """Return the equivalent comparison; None if it is not known to have exactly the same meaning."""
    negated = isinstance(spark_filter, datasource.Not)
    inner = spark_filter.child if negated else spark_filter
    attribute: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in columns.names:
        return None
    column, kind = attribute[0], columns.field(attribute[0]).type
    if type(inner) in (datasource.IsNull, datasource.IsNotNull):
        return ColumnCondition(column, "is null", negated=negated != (type(inner) is datasource.IsNotNull))
    operator = _operators().get(type(inner))
    if operator is None:
        return None
    values = tuple(inner.value) if operator == "in" else (inner.value,)
    if not values or not all(_alike(value, kind) for value in values):
        return None
    return ColumnCondition(column, operator, values, negated)


@cache
def _operators() -> dict[type, str]:
    """Not a constant, because PySpark 4.0 has no filters."""
    return {
        datasource.EqualTo: "=",
        datasource.GreaterThan: ">",
        datasource.GreaterThanOrEqual: ">=",
        datasource.LessThan: "<",
        datasource.LessThanOrEqual: "<=",
        datasource.In: "in",
        datasource.StringStartsWith: "starts",
        datasource.StringEndsWith: "ends",
        datasource.StringContains: "contains",
    }


def _alike(value: Any, kind: pa.DataType) -> bool:
    """Whether the value has exactly that type, and the type has the same order in Spark and Arrow."""
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(value, int):
        return bool(
            pa.types.is_signed_integer(kind)
            and -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1)
        )
    if isinstance(value, str):
        return bool(pa.types.is_string(kind))
    return type(value) is date and bool(pa.types.is_date32(kind))
