"""`df.write.format("dos")` and `df.writeStream.format("dos")`: Spark's classes for writers.

A writer is created on the driver, and again in the process that commits a micro-batch. In a task it gets the
query and the micro-batch from Spark's task context.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from checkpoint import CommitUnit, WriteKind
from dos_client import QuorumUnavailableError
from dos_protocol.errors import LocalProtocolError
from spark_integration.core.options import (
    JOB_PRODUCER,
    SinkOptions,
    SourceOptions,
    check_producer,
    query_producer,
)
from spark_integration.errors import NothingThereError, SchemaMismatchError, column_difference
from spark_integration.on_executor import expected_of_driver
from spark_integration.reading.chains import InputOrigin
from spark_integration.reading.opening import check_executor, opened
from spark_integration.reading.planning import existing_columns
from spark_integration.spark_api import DataSourceStreamArrowWriter
from spark_integration.writing.committing import commit, release_producers
from spark_integration.writing.staging import StagedCommit, prepare

logger = logging.getLogger("dos.spark_integration")
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class DosWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not typed here
    """The writer of a batch write, which is one batch of the producer. `job`: an id of this write alone."""

    def __init__(self, options: SinkOptions, schema: pa.Schema, job: str) -> None:
        self._options = options
        self._schema = schema
        self._expected = expected_of_driver()
        self._producer = options.producer or JOB_PRODUCER
        self._unit = CommitUnit(WriteKind.JOB, job, options.batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        check_executor(self._expected)
        partition = _task().partitionId()
        return prepare(self._options, self._unit, self._producer, partition, self._schema, iterator)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        commit(self._options, _checked(messages), self._schema)
        release_producers()  # this process may never write there again

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        _aborted(self._options, messages)


class DosStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of a stream: micro-batch N is batch N + 1 of the producer."""

    def __init__(self, options: SinkOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._expected = expected_of_driver()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        check_executor(self._expected)
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise LocalProtocolError(
                f"the task carries no query id ({QUERY_ID}={query}, {BATCH_ID}={batch}): write through"
                f" DataFrame.write or writeStream"
            )
        producer = self._options.producer or check_producer(self._options, query_producer(query))
        unit = CommitUnit(WriteKind.STREAM, query, int(batch) + 1)
        return prepare(self._options, unit, producer, task.partitionId(), self._schema, iterator)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        del batchId  # the messages contain it, and the query
        commit(self._options, _checked(messages), self._schema)

    def abort(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        del batchId
        _aborted(self._options, messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise LocalProtocolError("rows can be written only inside a Spark task")
    return task


def _checked(messages: "Sequence[WriterCommitMessage | None]") -> list[StagedCommit]:
    """Return one message per partition, of one unit. Spark ensures it; an error would duplicate rows."""
    prepared = [one for one in messages if isinstance(one, StagedCommit)]
    units = {(one.unit, one.producer) for one in prepared}
    if len(prepared) != len(messages) or len(units) != 1:
        raise LocalProtocolError(
            f"{len(messages)} messages to commit: {len(prepared)} are from this sink, of {len(units)} units"
        )
    if len({one.partition for one in prepared}) != len(prepared):
        raise LocalProtocolError("the messages to commit contain a partition twice")
    return prepared


def _aborted(options: SinkOptions, messages: "Sequence[WriterCommitMessage | None]") -> None:
    """Only log: unrecorded rows are invisible, and another attempt may have committed recorded ones."""
    staged = sum(isinstance(one, StagedCommit) and bool(one.name) for one in messages)
    logger.info("%s: aborted; a later commit removes %d staged objects", options.what, staged)


@cache
def check_target(options: SinkOptions, schema: pa.Schema) -> None:
    """Check, once per process, that the store is available and that the handle's rows have these columns.

    Raises SchemaMismatchError, and what opening a store raises.
    """
    reading = SourceOptions(
        servers=options.servers, directory=options.application, input=options.input, token=options.token
    )
    with opened(options) as store:
        try:
            existing = store.portal.call(existing_columns, InputOrigin(store.store, reading), reading)
        except NothingThereError:
            existing = None
        except QuorumUnavailableError:  # the commit waits for a quorum; this check only reports errors early
            return
    if existing is not None and not existing.equals(schema):
        raise SchemaMismatchError(column_difference(schema, existing, options.what))
