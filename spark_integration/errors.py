"""What can be wrong before a region runs, and in what the data source is asked for, each with its remedy in
the message. All of them are DosError.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from dos_protocol.errors import DosError


class NotEnoughSlotsError(DosError):
    """The Spark master cannot hold the region's workers and leave slots to other jobs, or did not in time."""


class ConnectSessionError(DosError):
    """What was asked for needs the session of the driver itself, and this is a client's. Nothing was
    started.
    """

    remedy = "call `run` in a program with a session of its own; from here its output can be read"


class StoreNotChosenError(DosError):
    """No store was named, and the master is not a local one, so there is nothing sensible to start by
    default.
    """


class StoreNotUsableError(DosError):
    """The store that was named is not there, or not one store."""


class InsecureNetworkError(DosError):
    """The region would speak in clear text between machines, and nobody said that this is meant."""


class CannotShipError(DosError):
    """The graph, or a function in it, cannot be sent to the executors."""


class UnsupportedVersionError(DosError):
    """PySpark, pandas or pyarrow is missing, or of a version that is not supported. Nothing was started."""


class UnfitConfError(DosError):
    """A conf of the session would have Spark kill, or run twice, a worker that is well. Nothing was
    started.
    """


class ExecutorMismatchError(DosError):
    """An executor's Python or packages are not the driver's."""


class UnreachableWorkerError(DosError):
    """A worker cannot be dialled by another worker or by the driver. The message names both."""


class UnknownOptionError(DosError):
    """The format (`dos`, `dos-state`, ...) has no such option. Nothing was read or written."""

    def __init__(self, name: str, known: Iterable[str], source: str = "dos") -> None:
        by_lower = {one.lower(): one for one in known}
        found = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.5)
        hint = f"; did you mean {by_lower[found[0]]!r}?" if found else ""
        super().__init__(
            f"the source {source} has no option {name!r}{hint} (it has {', '.join(by_lower.values())})"
        )


class BadOptionError(DosError):
    """An option of the source or sink `dos` has a value that it cannot have, or does not go with another.
    Nothing was read or written.
    """


class FilterError(DosError):
    """The option `filter` cannot be read, or does not fit the columns. Nothing was read."""


class MalformedOffsetError(DosError):
    """An offset, or `startingOffset`, is nothing that this source can begin at. Nothing was read."""


class OtherSourceError(DosError):
    """An offset of another store, or of something else in this one. Nothing was read."""

    remedy = "give the query another checkpointLocation, or the URL and options that it had"


class NothingThereError(DosError):
    """What was named is not in the store. Nothing was read."""


class NoSchemaError(DosError):
    """Nothing tells the columns: the data does not, or there is none yet."""

    remedy = 'name them: .schema("word string, count bigint")'


class SchemaMismatchError(DosError):
    """The columns that were asked for are not those that are there. What was read of the batch may not be
    used.
    """


class DataLossError(DosError):
    """What the stream had not read yet is not there any more, or what it had read was taken back. Nothing was
    passed over.
    """

    remedy = (
        'to go on with what there is, and lose what is not, set .option("failOnDataLoss", "false"); otherwise'
        " start a new query with another checkpointLocation"
    )


class NotReadableError(DosError):
    """The bytes of an object are not what the option `content` says."""


class OtherWriterError(DosError):
    """The producer that the sink was to write as belongs to somebody else. Nothing was recorded."""

    remedy = (
        "for a new query or write give the option 'producer' a name of its own; to go on with the old query,"
        " give it the checkpointLocation that it had"
    )

    def __init__(self, where: str, found: str, asked: str) -> None:
        super().__init__(f"{where} was written by {found}, and this is {asked}")


class OtherCheckpointError(DosError):
    """The query's checkpoint is ahead of what this store has of it. Nothing was recorded."""

    remedy = (
        "give the query the store, handle and producer that it wrote to before, or another checkpointLocation"
    )

    def __init__(self, where: str, query: str, batch: int, last: int) -> None:
        has = f"has its micro-batches up to {last}" if last >= 0 else "has nothing of it"
        super().__init__(f"query {query} is at micro-batch {batch}, and {where} {has}: others went elsewhere")


class StagedRowsGoneError(DosError):
    """What a task had put down is not there as it said. Nothing was recorded; Spark writes it again."""


class NoSuchEndError(DosError):
    """`through` cannot tell where rows enter the graph or come out of it. Nothing was started."""


class NoCheckpointError(DosError):
    """Nothing says where Spark is to keep how far a stream was read. Nothing was started."""

    remedy = 'say through(..., checkpoint="/a/directory/that/stays"), one for each graph and stream'
