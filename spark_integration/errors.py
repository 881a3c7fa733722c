"""Errors of starting a region on Spark and of the data source, and the words that they share. Messages
contain the remedy.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dos_protocol.errors import DosError

if TYPE_CHECKING:
    import pyarrow as pa


class NotEnoughSlotsError(DosError):
    """The Spark master has too few slots for the workers and other jobs, or had too few for too long."""


class ConnectSessionError(DosError):
    """The call needs the driver's own session, but this is a Spark Connect client. Nothing was started."""

    remedy = "call `run` in a program with its own driver session; from here you can read its output"


class SessionStoppedError(DosError):
    """The Spark session was stopped: it can start no worker."""

    remedy = (
        "stop a region by its handle before `spark.stop()`; run it again with another session, and it"
        " continues from its last checkpoint"
    )


class StoreNotUsableError(DosError):
    """The named servers are not available, or do not form one store; or none was named, without a default."""


class HostPathError(DosError):
    """A source or sink uses files on the hosts of executors without `local=True`. Nothing was started."""


class UnsupportedVersionError(DosError):
    """PySpark, pandas or pyarrow is missing, or its version does not fit. Nothing was started or read."""


class ExecutorMismatchError(DosError):
    """The Python or the packages of an executor differ from those of the driver."""


class BadOptionError(DosError):
    """An option of a format is unknown, has an invalid value, or conflicts. Nothing was read or written."""


class MalformedOffsetError(DosError):
    """An offset, or `startingOffset`, is not one that this source can start from: it is malformed, or belongs
    to another store or to other data. Nothing was read.
    """

    remedy = "give the query another checkpointLocation, or the URL and options that it had"


class NothingThereError(DosError):
    """The named region, handle or object is not in the store. Nothing was read."""


class NoSchemaError(DosError):
    """The columns are unknown: the data does not define them, or there is none yet."""

    remedy = 'name them: .schema("word string, count bigint")'


class SchemaMismatchError(DosError):
    """The requested columns differ from those of the data. What was read of the batch must not be used."""


class DataLossError(DosError):
    """Unread data is gone, or data that was read was rolled back. No row was skipped."""

    remedy = (
        'to continue without the lost data, set .option("failOnDataLoss", "false"); otherwise'
        " start a new query with another checkpointLocation. The option 'consumer' keeps what a query has not"
        " read from being trimmed while it is stopped"
    )


class NotReadableError(DosError):
    """The bytes of an object do not fit the option `content`."""


class OtherWriterError(DosError):
    """The producer that the sink would use belongs to another writer. Nothing was recorded."""

    remedy = (
        "for a new query or write set the option 'producer' to a new name; to continue the old query,"
        " use its checkpointLocation"
    )

    def __init__(self, producer: str, recorded: str, requested: str) -> None:
        super().__init__(f"{producer} was written by {recorded}, but this is {requested}")


class OtherCheckpointError(DosError):
    """The query's checkpoint is ahead of the store, which lacks micro-batches. Nothing was recorded."""

    remedy = "use the store, handle and producer of the query's earlier runs, or another checkpointLocation"

    def __init__(self, producer: str, query: str, batch: int, last: int) -> None:
        recorded = f"has its micro-batches up to {last}" if last >= 0 else "has none of its micro-batches"
        super().__init__(
            f"query {query} is at micro-batch {batch}, but {producer} {recorded}: some are missing"
        )


class BatchPlannedAgainError(DosError):
    """Spark asks for a micro-batch under a number that is processed or recorded with other rows."""

    remedy = (
        "restore the newest state of the checkpointLocation; or begin a new query, with another"
        " checkpointLocation, after the rows that are recorded. If a batch that is repeated has other rows"
        " because the program is not deterministic, or its columns were changed, set the option repeatedBatch"
        " to keep: what is recorded stays"
    )


class BatchGapError(DosError):
    """Spark asks for a micro-batch that does not follow the last one that the region has processed."""


class OtherQueryError(DosError):
    """Another query drives the region."""


class NoBatchError(DosError):
    """The task does not know its micro-batch."""

    remedy = (
        "use the DataFrame in the thread in which foreachBatch was called, or in an InheritableThread that it"
        " has started"
    )


class StagedRowsGoneError(DosError):
    """Rows that a task staged are missing. Nothing was recorded; Spark retries the write."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Call `dataflow.errors.nearest`."""
    # Imported when an error is raised: importing `dataflow` takes half the time of importing this source, and
    # each Python worker of Spark would wait for it before its first row.
    from dataflow import errors

    return errors.nearest(name, known)


def type_text(kind: "pa.DataType") -> str:
    """Call `dataflow.schema.type_text`."""
    from dataflow import schema

    return schema.type_text(kind)


def column_difference(given: "pa.Schema", expected: "pa.Schema", target: str) -> str:
    """Return a sentence that lists each column that does not fit those of `target`, with both types."""
    differences = []
    for one in given:
        if one.name not in expected.names:
            differences.append(f"{one.name!r} ({type_text(one.type)}) does not exist there")
        elif not (expected_type := expected.field(one.name).type).equals(one.type):
            differences.append(f"{one.name!r} is {type_text(one.type)}, but {type_text(expected_type)} there")
    differences += [f"{name!r} is missing" for name in expected.names if name not in given.names]
    listed = ", ".join(f"{one.name} {type_text(one.type)}" for one in expected)
    listed_differences = "; ".join(differences or ["their order differs"])
    return f"the columns do not match those of {target}, {listed}: {listed_differences}"
