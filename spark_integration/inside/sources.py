"""Spark's data source classes of the inspection formats, for `spark.read` only.

Errors in options are raised by `load`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from spark_integration.core.inside_options import (
    CHECKPOINTS,
    JOURNAL,
    STATE,
    parse_checkpoints,
    parse_journal,
    parse_state,
)
from spark_integration.inside.checkpoints import CheckpointsTable
from spark_integration.inside.state import OperatorStateTable
from spark_integration.inside.table import InsideReader, InsideTable, columns_of
from spark_integration.reading.inspection import JournalTable
from spark_integration.reading.opening import with_token
from spark_integration.reading.planning import check_once
from spark_integration.spark_api import arrow_schema, spark_schema


class _Source(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """The common part."""

    _name: str
    table_of: Callable[[Mapping[str, str]], InsideTable]

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._read: InsideTable = type(self).table_of(dict(options))

    @classmethod
    def name(cls) -> str:
        return cls._name

    def schema(self) -> StructType:
        """Return the columns of the table, or those of the option `columns`."""
        return spark_schema(columns_of(self._read))

    def reader(self, schema: StructType) -> DataSourceReader:
        check_once(self._read.options.columns, schema.names)
        return InsideReader(self._read, arrow_schema(schema))


def _journal(given: Mapping[str, str]) -> Any:
    return JournalTable(with_token(parse_journal(given)))


def _checkpoints(given: Mapping[str, str]) -> Any:
    return CheckpointsTable(with_token(parse_checkpoints(given)))


def _state(given: Mapping[str, str]) -> Any:
    return OperatorStateTable(with_token(parse_state(given)))


class JournalSource(_Source):
    """Records of a journal. Raises UnknownOptionError, BadOptionError, BadUrlError."""

    _name = JOURNAL
    table_of = staticmethod(_journal)


class CheckpointsSource(_Source):
    """The committed checkpoints of a region. Raises as `JournalSource`."""

    _name = CHECKPOINTS
    table_of = staticmethod(_checkpoints)


class StateSource(_Source):
    """The state of an operator at a checkpoint. Raises as `JournalSource`."""

    _name = STATE
    table_of = staticmethod(_state)


SOURCES = (JournalSource, CheckpointsSource, StateSource)
