"""The stream reader for a PySpark without admission control.

Such a PySpark requests the end of a micro-batch without naming its beginning, which is in the query's
checkpoint. So a micro-batch ends where the committed data ends. What depends on the beginning is checked when
Spark requests the partitions.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_integration.core.admission import BatchLimits
from spark_integration.core.offsets import SplitPoint, StartingKind
from spark_integration.core.options import SourceOptions
from spark_integration.on_executor import Expected
from spark_integration.reading.readers import DosStreamReader


class UnlimitedStreamReader(DosStreamReader):
    """The reader of a stream whose micro-batches have no limits."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema, expected: Expected | None = None) -> None:
        super().__init__(options, wanted, expected)
        self._known: dict[str, SplitPoint] = {}
        """The end of the last micro-batch, as far as this process knows it."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the beginning of a new query.

        With `availableNow`, Spark has requested the end before. A query from the latest point on begins
        there: a later point would be after its end.
        """
        starting = self._options.starting
        if self._known and starting is not None and starting.kind is StartingKind.LATEST:
            return self._offset(self._known)
        return super().initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return where the committed data ends."""
        self._known = self._call(self._planned.latest, self._known, BatchLimits())
        return self._offset(self._known)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._known = self._points(end)
        self._call(self._planned.check_beginning, self._points(start), self._known)
        return super().partitions(start, end)
