"""The data source `dos` of Spark SQL, and its registration in a session.

    from spark_integration import register

    register(spark)
    spark.read.format("dos").option("output", "counts").load("dos://h1,h2,h3/wordcount").show()
    spark.readStream.format("dos").option("output", "counts").load("dos://h1,h2,h3/wordcount").writeStream...
    df.write.format("dos").option("input", "orders").mode("append").save("dos://h1,h2,h3/shop")

The methods of Spark's class `DataSource` delegate to `reading/` and `writing/`. They import `writing/` on
use: Spark plans a query in a new Python process, and one that reads should not import what writes. Errors in
options are raised by `load`, or when a write begins.
"""

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from dos_protocol.errors import DosError
from dos_tls import VARIABLES
from spark_integration.core.options import (
    NEED_BEGINNING,
    OPTIONS,
    SinkOptions,
    SourceOptions,
    StoreOptions,
    check_append,
    check_batch,
    check_stream,
    check_streaming,
    parse_options,
    parse_sink_options,
)
from spark_integration.core.session_checks import read_master
from spark_integration.reading.opening import with_token
from spark_integration.reading.planning import check_once, columns_of
from spark_integration.reading.readers import DosReader, DosStreamReader, PushingReader, UnlimitedStreamReader
from spark_integration.sessions import (
    check_session,
    is_connect,
    use_in_this_thread,
    use_this_python,
    use_tls_of_driver,
    used_in_this_thread,
)
from spark_integration.spark_api import arrow_schema, spark_schema
from spark_integration.versions import ADMISSION_CONTROL, FILTER_PUSHDOWN, need_pyspark, pyspark_has

Options = TypeVar("Options", bound=StoreOptions)
NAME = "dos"
PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"
_registering = threading.Lock()
"""Held while sources are registered: Spark fails if two threads register a source at the same time."""
_registered: "WeakKeyDictionary[SparkSession, tuple[type[DataSource], dict[str, str]]]" = WeakKeyDictionary()
"""Session -> its data source `dos`, and the TLS settings that its Python processes get."""


def register(spark: SparkSession) -> None:
    """Enable `format("dos")`, `dos-merged`, `dos-journal`, `dos-checkpoints` and `dos-state` in this session.
    `run`, `through` and `frame` do so, too. Otherwise call it once per session, and in each thread that
    writes; repeated calls are harmless.

    Filters of a DataFrame are pushed down to where the bytes are read if
    `spark.sql.python.filterPushdown.enabled` is set in the session. After a change of it, register again.
    Raises UnsupportedVersionError if it is set and this PySpark pushes no filters down.
    """
    check_session(spark)
    if _pushes_filters(spark):
        need_pyspark(FILTER_PUSHDOWN, f"{PUSHDOWN_CONF}=true", "unset it, and use the option 'filter'")
    if not is_connect(spark):  # a Connect server knows its Python
        use_this_python(spark, read_master(spark.sparkContext.master, cores=1))
        use_in_this_thread(spark)
    use_tls_of_driver(spark)
    register_formats(spark)


def register_formats(spark: SparkSession) -> None:
    """As `register`, of a session that is prepared otherwise, whose Python and TLS settings are right."""
    from spark_integration.reading.inspection import SOURCES
    from spark_integration.reading.merged import MergedSource

    pushes = _pushes_filters(spark) and pyspark_has(FILTER_PUSHDOWN)
    own = PushingDosSource if pushes else DosSource
    environment = {} if is_connect(spark) else spark.sparkContext.environment
    present = own, {name: environment[name] for name in VARIABLES if name in environment}
    with _registering:
        if _registered.get(spark) != present:  # Spark warns of a format that replaces another one
            with used_in_this_thread(spark):  # where Spark looks for a format of this name
                for source in (own, MergedSource, *SOURCES):
                    spark.dataSource.register(source)
            _registered[spark] = present


def _pushes_filters(spark: SparkSession) -> bool:
    return str(spark.conf.get(PUSHDOWN_CONF, "false")).lower() == "true"


class DosSource(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """The data source `dos`.

    Raises BadOptionError, MalformedOffsetError, BadUrlError, and UnsupportedVersionError
    for an option that needs a newer PySpark.
    """

    _reader: type[DosReader] = DosReader

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._raw_options = dict(options)
        self._reading, read_error = _tried(parse_options, self._raw_options)
        self._writing, write_error = _tried(parse_sink_options, self._raw_options)
        if read_error is not None and write_error is not None:
            read_error.add_note(f"to write: {write_error}")
            raise read_error

    @property
    def _options(self) -> SourceOptions:
        return self._reading or with_token(parse_options(self._raw_options))

    @property
    def _sink_options(self) -> SinkOptions:
        return self._writing or with_token(parse_sink_options(self._raw_options))

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the data, or those of the option `columns`."""
        try:
            return spark_schema(columns_of(self._options))
        except DosError as error:
            # Spark shows the traceback before the text: without those of the store, and of what led to it.
            raise error.with_traceback(None) from None

    def reader(self, schema: StructType) -> DataSourceReader:
        check_batch(self._raw_options)
        check_once(self._options.columns, schema.names)
        return self._reader(self._options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_streaming(self._options)
        for name in NEED_BEGINNING:
            if getattr(self._options, OPTIONS[name].field) is not None:
                need_pyspark(ADMISSION_CONTROL, f"the option {name!r} of a stream", f"omit {name!r}")
        check_once(self._options.columns, schema.names)
        reader = DosStreamReader if pyspark_has(ADMISSION_CONTROL) else UnlimitedStreamReader
        return reader(self._options, arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_integration.writing.committing import DosWriter

        check_append(overwrite, 'write with .mode("append")')
        columns = self._checked_columns(schema)
        return DosWriter(self._sink_options, columns, uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from spark_integration.writing.committing import DosStreamWriter

        check_append(overwrite, 'write with .outputMode("append") or "update"')
        check_stream(self._sink_options)
        return DosStreamWriter(self._sink_options, self._checked_columns(schema))

    def _checked_columns(self, schema: StructType) -> pa.Schema:
        from dataflow.schema import parse_schema  # late, as in `errors.nearest`
        from spark_integration.writing.committing import check_target

        columns = parse_schema(schema)
        check_target(self._sink_options, columns)
        return columns


class PushingDosSource(DosSource):
    """The data source `dos` for sessions that push filters down."""

    _reader = PushingReader


def _tried(
    parse: Callable[[Mapping[str, str]], Options], given: Mapping[str, str]
) -> tuple[Options | None, DosError | None]:
    """Return the options, or their error, which is raised on use: only then it is known if they read."""
    try:
        return with_token(parse(given)), None
    except DosError as error:
        return None, error
