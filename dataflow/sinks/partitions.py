"""Rows by the directories that the values of their columns name (`core/partitions.py`)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataflow import limits
from dataflow.core.partitions import directory_of
from dataflow.errors import UserFault


def split_by(batch: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each directory with its rows, in their order and without the columns `by`."""
    if not by:
        yield "", batch
        return
    if not batch.num_rows:
        return
    codes = np.zeros(batch.num_rows, np.int64)
    for name in by:
        column = batch.column(name)
        if pa.types.is_string(column.type):
            column = pc.if_else(pc.equal(column, ""), None, column)
        found = column.dictionary_encode(null_encoding="encode")
        codes = codes * max(1, len(found.dictionary)) + found.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]  # small numbers again
    order = np.argsort(codes, kind="stable")
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    rows = batch.drop_columns(list(by))
    for part in np.split(order, begins[1:]):
        yield (
            "/".join(directory_of(name, batch.column(name)[int(part[0])]) for name in by),
            rows.take(pa.array(part)),
        )


class RowFile(Protocol):
    """A file of rows that is being written."""

    @property
    def waiting_bytes(self) -> int:
        """Rows that are held in memory."""
        ...

    def write(self, batch: pa.RecordBatch) -> None: ...

    def flush(self) -> None:
        """Hold no rows in memory."""
        ...

    def close(self) -> None:
        """Give the file up."""
        ...


_File = TypeVar("_File", bound=RowFile)


class PartitionFiles(Generic[_File]):
    """The files of one transaction, by directory; "" is the only one of rows that are not partitioned."""

    def __init__(self, by: Sequence[str], open_file: Callable[[str], _File]) -> None:
        self._by, self._open_file = by, open_file
        self.files: dict[str, _File] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises UserFault if they are of too many partitions; also what a file raises."""
        for directory, rows in split_by(batch, self._by):
            if directory not in self.files:
                if len(self.files) == limits.sink_partitions_max:
                    raise UserFault(
                        f"more than {limits.sink_partitions_max} partitions have rows since the last"
                        f" checkpoint at this worker; {directory!r} is the last one",
                        remedy="partition by columns with fewer values, or shorten checkpoint_interval; a"
                        " key_by of these columns above the sink gives each worker a share of them",
                    )
                self.files[directory] = self._open_file(directory)
            self.files[directory].write(rows)
        while sum(file.waiting_bytes for file in self.files.values()) >= limits.parquet_group_bytes:
            max(self.files.values(), key=lambda file: file.waiting_bytes).flush()

    def close(self) -> None:
        for file in self.files.values():
            file.close()
