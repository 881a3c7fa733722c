"""Rows as Parquet files that appear when their cut is committed: a file per worker and cut.

Rules of this file: files and their names. When one is written, shown or removed is `two_phase.py`'s.

A file is written as `_NAME.parquet`, which readers of data lakes skip, and renamed to `part-NAME.parquet`.
So what a reader sees is whole, and is there once. `_OWNER-wNNNN.shown` says which file was shown last: a
commit that is repeated after readers have moved files away, or merged them, brings nothing back and misses
nothing.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from dataflow import limits
from dataflow.core.transactions import parse_name
from dataflow.errors import SchemaError, SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import OutputOwner, owner_of
from dataflow.sinks.part_file import check_owner, own_directory, replace_durably, sync_directory
from dataflow.sinks.two_phase import TwoPhaseOutput, TwoPhaseSink

Compression: TypeAlias = Literal["zstd", "snappy", "gzip", "lz4", "none"]
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")


@dataclass(frozen=True, slots=True, init=False)
class ParquetSink(TwoPhaseSink):
    """Writes Parquet files into `directory`, which is made if it is not there; each appears when the cut
    that covers its rows is committed, and never changes after that. So readers see each row once, as late
    as cuts are apart.

        ParquetSink("/data/sold", compression="zstd")

    Every worker must reach the directory, also one that is started again elsewhere. It belongs to one sink of
    one region: a directory that holds files of another run or program is refused before any worker starts.
    shared: True adds files to whatever is there, also to files of other regions that share it. Raises
    SchemaError for a compression that is not there, and for columns that Parquet has no type for.
    """

    directory: str
    compression: Compression
    shared: bool

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        compression: Compression = "zstd",
        shared: bool = False,
    ) -> None:
        if compression not in _COMPRESSIONS:
            raise SchemaError(f"compression is one of {', '.join(_COMPRESSIONS)}, not {compression!r}")
        object.__setattr__(self, "directory", os.path.abspath(directory))  # noqa: PTH100 - made on workers
        object.__setattr__(self, "compression", compression)
        object.__setattr__(self, "shared", shared)

    def check_input(self, schema: pa.Schema) -> None:
        for field in schema:
            try:
                pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
            except pa.ArrowException as error:
                raise SchemaError(
                    f"column {field.name!r} of type {field.type} has no form in Parquet; map it: {error}"
                ) from error

    def open_output(self, context: OperatorContext) -> "ParquetOutput":
        owner = owner_of(context)
        self.check_place(owner)
        marked_as = None if self.shared else owner
        return ParquetOutput(
            Path(self.directory), context.inputs[0], self.compression, marked_as, context.worker
        )

    def check_place(self, owner: OutputOwner) -> None:
        """Files of another owner would be read together with those of this one."""
        if not self.shared:
            directory = Path(self.directory)
            check_owner(directory, msgspec.json.encode(owner), _unmarked(directory, owner), _REMEDY)


_REMEDY = (
    "choose another directory, or move what is there elsewhere; shared=True adds rows to those that are there"
)


def _unmarked(directory: Path, owner: OutputOwner) -> list[str]:
    """Names of data files of others, in a directory that is not marked. Versions before the mark wrote none:
    there, a file with this owner's digest in its name shows that the directory is the owner's.
    """
    names = sorted(path.name for path in directory.glob("*") if path.suffix in (".parquet", ".shown"))
    if any(f"{owner.digest:016x}-w" in name for name in names):
        return []
    data = [name for name in names if name.endswith(".parquet")]
    return [name for name in data if not name.startswith("_") or parse_name(name[1:-8]) is not None]


class ParquetOutput(TwoPhaseOutput):
    """One worker's files. Rows wait in memory until they make a row group."""

    def __init__(
        self, directory: Path, schema: pa.Schema, compression: str, owner: OutputOwner | None, worker: int
    ) -> None:
        """`owner`: who the directory is marked as belonging to when the first rows come; None: nobody."""
        self._directory = directory
        self._owner = owner
        self._worker = worker
        self._schema = schema
        self._compression = compression
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        directory.mkdir(parents=True, exist_ok=True)

    def _staged_path(self, transaction: str) -> Path:
        return self._directory / f"_{transaction}.parquet"

    def _shown_path(self, transaction: str) -> Path:
        return self._directory / f"part-{transaction}.parquet"

    def _last_path(self, transaction: str) -> Path:
        return self._directory / f"_{transaction.partition('-i')[0]}.shown"

    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        if self._owner is not None:
            owner, self._owner = self._owner, None
            others = _unmarked(self._directory, owner)
            text = msgspec.json.encode(owner)
            own_directory(self._directory, text, others, f"owner-w{self._worker:04d}", _REMEDY)
        self._waiting.setdefault(transaction, []).append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= limits.parquet_group_bytes:
            self._write_group(transaction)

    def _write_group(self, transaction: str) -> None:
        batches = self._waiting.pop(transaction, [])
        self._waiting_bytes -= sum(batch.nbytes for batch in batches)
        if transaction not in self._writers:
            path = self._staged_path(transaction)
            writer = pq.ParquetWriter(path, self._schema, compression=self._compression)
            self._writers[transaction] = writer
        if batches:
            self._writers[transaction].write_table(pa.Table.from_batches(batches, self._schema))

    def prepare(self, transaction: str) -> None:
        self._write_group(transaction)
        self._writers.pop(transaction).close()
        with self._staged_path(transaction).open("rb") as file:
            os.fsync(file.fileno())
        sync_directory(self._directory)

    def commit(self, transaction: str) -> None:
        last = self._last_path(transaction)
        if last.exists() and transaction <= last.read_text():
            return
        try:
            self._staged_path(transaction).rename(self._shown_path(transaction))
        except FileNotFoundError:
            if not self._shown_path(transaction).exists():
                raise SinkWriteError(
                    f"{str(self._staged_path(transaction))!r} is gone, and the cut that covers its rows is"
                    " committed",
                    remedy="put it back; in that directory, leave files alone whose names begin with '_'",
                ) from None
        replace_durably(last, transaction.encode())

    def staged(self) -> Iterable[str]:
        return [path.stem[1:] for path in self._directory.glob("_*.parquet")]

    def abort(self, transaction: str) -> None:
        self._waiting_bytes -= sum(batch.nbytes for batch in self._waiting.pop(transaction, []))
        if writer := self._writers.pop(transaction, None):
            writer.close()
        self._staged_path(transaction).unlink(missing_ok=True)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._waiting.clear()
