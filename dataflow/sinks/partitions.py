"""Directories of rows by the values of columns, COLUMN=VALUE/..., as Spark, Hive and Arrow read them. Pure.

Names are escaped as Spark does (`ExternalCatalogUtils.escapePathName`). As in Spark, null and the empty
string are both in the directory of `__HIVE_DEFAULT_PARTITION__`, which is read as null.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataflow import limits
from dataflow.errors import SchemaError, UserFault, nearest

PartitionBy: TypeAlias = "str | Sequence[str]"
DEFAULT_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_NAME_BYTES_MAX: Final = 255
"""Of file systems."""


def partition_columns(given: PartitionBy) -> tuple[str, ...]:
    """Return the columns that name directories. Raises SchemaError if one is given twice, or hides them."""
    columns = (given,) if isinstance(given, str) else tuple(given)
    if len(set(columns)) != len(columns):
        raise SchemaError(f"partition_by has a column twice: {', '.join(map(repr, columns))}")
    for name in columns:
        if not name or name.startswith(("_", ".")):
            raise SchemaError(
                f"partition_by has the column {name!r}: readers skip directories with such names",
                remedy="rename the column with a map, or partition by another one",
            )
    return columns


def columns_in_files(schema: pa.Schema, by: Sequence[str]) -> pa.Schema:
    """Return the columns that are not in the names of directories. Raises SchemaError if rows of the schema
    cannot be partitioned so.
    """
    for name in by:
        if name not in schema.names:
            similar = nearest(name, schema.names)
            raise SchemaError(f"partition_by has the column {name!r}, which the rows do not have{similar}")
        kind = schema.field(name).type
        is_named = pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        if not (is_named or pa.types.is_date32(kind)):
            raise SchemaError(
                f"partition_by has the column {name!r} of type {kind}, whose values do not name directories",
                remedy="partition by strings, integers, booleans or dates; a map makes a date of a timestamp",
            )
    kept = pa.schema([field for field in schema if field.name not in by])
    if by and not len(kept):
        raise SchemaError("partition_by has all columns, so that none is left for the files")
    return kept


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
            "/".join(_directory(name, batch.column(name)[int(part[0])]) for name in by),
            rows.take(pa.array(part)),
        )


def _directory(name: str, value: pa.Scalar) -> str:
    text = value.cast(pa.string()).as_py() or DEFAULT_PARTITION
    found = f"{_escaped(name)}={_escaped(text)}"
    if len(found.encode()) > _NAME_BYTES_MAX:
        raise UserFault(
            f"the directory of a partition would have a name of {len(found.encode())} bytes, of which the"
            f" first are {found[:80]!r}; the maximum is {_NAME_BYTES_MAX}",
            remedy="partition by a column with shorter values",
        )
    return found


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


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
