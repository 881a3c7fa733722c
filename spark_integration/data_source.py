"""The data source `dos` of Spark SQL, and how a session comes to know it.

    from spark_integration import register

    register(spark)
    spark.read.format("dos").option("output", "counts").load("dos://h1,h2,h3/wordcount").show()
    spark.readStream.format("dos").option("output", "counts").load("dos://h1,h2,h3/wordcount").writeStream...
    df.write.format("dos").option("input", "orders").mode("append").save("dos://h1,h2,h3/shop")

Rules of this file: Spark's class `DataSource`, whose methods hand on to `reading/` and `writing/`, and import
them: a query is planned in fresh Python processes, of which one that reads is not to import what writes. What
is wrong with options shows when `load` is called, or when a write begins.
"""

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from dos_protocol.errors import DosError
from spark_integration.core.option_texts import StoreOptions
from spark_integration.core.sink_options import (
    SinkOptions,
    check_append,
    check_stream,
    parse_sink_options,
)
from spark_integration.core.slots import read_master
from spark_integration.core.source_options import SourceOptions, check_batch, check_streaming, parse_options
from spark_integration.reading.batch_reader import DosReader, PushingReader
from spark_integration.reading.planning import check_once, columns_of
from spark_integration.reading.session import with_token
from spark_integration.reading.stream_reader import DosStreamReader
from spark_integration.sessions import is_connect, use_in_this_thread, use_this_python

Options = TypeVar("Options", bound=StoreOptions)
NAME = "dos"
PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"
_registering = threading.Lock()
"""Spark refuses the second of two who make a source known at the same time."""


def register(spark: SparkSession) -> None:
    """Let this session read and write `format("dos")`, and look inside with `dos-journal`, `dos-checkpoints` and
    `dos-state`. Once is enough, but a thread that writes must have called it; again does no harm.

    Filters of a DataFrame are applied where the bytes are read if the session has
    `spark.sql.python.filterPushdown.enabled` now; when that changes, register again.
    """
    if not is_connect(spark):  # there the server knows its Python
        use_this_python(spark, read_master(spark.sparkContext.master, cores=1))
        use_in_this_thread(spark)
    from spark_integration.inside.sources import SOURCES

    pushes = str(spark.conf.get(PUSHDOWN_CONF, "false")).lower() == "true"
    with _registering:
        for source in (PushingDosSource if pushes else DosSource, *SOURCES):
            spark.dataSource.register(source)


class DosSource(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """See the head of this file. Raises UnknownOptionError, BadOptionError, MalformedOffsetError,
    BadUrlError.
    """

    _reader: type[DosReader] = DosReader

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)
        self._reading, wrong = _tried(parse_options, self._given)
        self._writing, wrong_to_write = _tried(parse_sink_options, self._given)
        if wrong is not None and wrong_to_write is not None:
            wrong.add_note(f"to write: {wrong_to_write}")
            raise wrong

    @property
    def _options(self) -> SourceOptions:
        return self._reading or with_token(parse_options(self._given))

    @property
    def _sink_options(self) -> SinkOptions:
        return self._writing or with_token(parse_sink_options(self._given))

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The columns that the data has, or those of the option `columns`."""
        return from_arrow_schema(columns_of(self._options))

    def reader(self, schema: StructType) -> DataSourceReader:
        check_batch(self._options, self._given)
        check_once(self._options.columns, schema.names)
        return self._reader(self._options, to_arrow_schema(schema, timezone="UTC"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_streaming(self._options)
        check_once(self._options.columns, schema.names)
        return DosStreamReader(self._options, to_arrow_schema(schema, timezone="UTC"))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_integration.writing.spark_writers import DosWriter

        check_append(overwrite, 'write with .mode("append")')
        columns = self._checked_columns(schema)
        return DosWriter(self._sink_options, columns, uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from spark_integration.writing.spark_writers import DosStreamWriter

        check_append(overwrite, 'write with .outputMode("append") or "update"')
        check_stream(self._sink_options)
        return DosStreamWriter(self._sink_options, self._checked_columns(schema))

    def _checked_columns(self, schema: StructType) -> pa.Schema:
        from dataflow.schema import parse_schema  # see `core/wording`
        from spark_integration.writing.spark_writers import check_target

        columns = parse_schema(schema)
        check_target(self._sink_options, columns)
        return columns


class PushingDosSource(DosSource):
    """The same, for sessions that push filters down."""

    _reader = PushingReader


def _tried(
    parse: Callable[[Mapping[str, str]], Options], given: Mapping[str, str]
) -> tuple[Options | None, DosError | None]:
    """The options, or what is wrong with them: only when they are used is it known for what."""
    try:
        return with_token(parse(given)), None
    except DosError as error:
        return None, error
