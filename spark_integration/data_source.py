"""The data source `dos` of Spark SQL, and how a session comes to know it.

    from spark_integration import register

    register(spark)
    spark.read.format("dos").option("output", "counts").load("dos://h1,h2,h3/wordcount").show()
    spark.readStream.format("dos").option("output", "counts").load("dos://h1,h2,h3/wordcount").writeStream...

Rules of this file: Spark's class `DataSource`, whose methods hand on to `reading/`. What is wrong with
options shows when `load` is called. Writing comes here too, beside `reader`.
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_integration.core.source_options import SourceOptions, check_batch, check_streaming, parse_options
from spark_integration.inside.sources import SOURCES
from spark_integration.reading.batch_reader import DosReader, PushingReader
from spark_integration.reading.planning import check_once, columns_of
from spark_integration.reading.session import with_token
from spark_integration.reading.stream_reader import DosStreamReader

NAME = "dos"
PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Let this session read `format("dos")`, and look inside with `dos-journal`, `dos-cuts` and `dos-state`.
    Once is enough; again does no harm.

    Filters of a DataFrame are applied where the bytes are read if the session has
    `spark.sql.python.filterPushdown.enabled` now; when that changes, register again.
    """
    pushes = str(spark.conf.get(PUSHDOWN_CONF, "false")).lower() == "true"
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
        self._options: SourceOptions = with_token(parse_options(self._given))

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


class PushingDosSource(DosSource):
    """The same, for sessions that push filters down."""

    _reader = PushingReader
