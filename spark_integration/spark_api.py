"""The part of PySpark's API that differs between the supported versions, in the form of the newest one.

All other modules import this part from here, and the rest from PySpark. What a version cannot do at all is
refused where it is requested (`versions.need_pyspark`).
"""

from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_integration.versions import ADMISSION_CONTROL, ARROW_STREAM_WRITER, ARROW_TIMEZONE, pyspark_has

__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "spark_schema",
]

if pyspark_has(ARROW_STREAM_WRITER):
    DataSourceStreamArrowWriter: Any = datasource.DataSourceStreamArrowWriter
else:  # this class makes Spark pass Arrow batches to the writers of streams, too
    DataSourceStreamArrowWriter = datasource.DataSourceArrowWriter

if pyspark_has(ADMISSION_CONTROL):
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:  # bases and annotations only: such a PySpark calls no method that uses them
    ReadAllAvailable = ReadLimit = ReadMaxBytes = ReadMaxRows = SupportsTriggerAvailableNow = object


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return columns of Spark as columns of Arrow; timestamps have the time zone UTC."""
    if pyspark_has(ARROW_TIMEZONE):
        return to_arrow_schema(columns, timezone="UTC")
    return to_arrow_schema(columns)


def spark_schema(columns: pa.Schema) -> StructType:
    """Return columns of Arrow as columns of Spark; timestamps without a time zone stay without one."""
    return from_arrow_schema(columns, prefer_timestamp_ntz=True)
