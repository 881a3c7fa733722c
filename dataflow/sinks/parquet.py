"""Rows as Parquet files that become visible when their checkpoint is committed: one file per worker and
checkpoint.

This file handles files and their names. `two_phase.py` decides when a file is written, made visible or
removed.

A file is written as `_OWNER-wNNNN.staging/NAME.parquet`, which data lake readers ignore, and renamed to
`part-NAME.parquet`. Readers therefore see only complete files, each exactly once. `_OWNER-wNNNN.shown` stores
which file became visible last: a commit that is repeated after files were moved away or merged neither
restores nor loses any. A reset lists only the directory of staged files, because the number of published
files grows without limit. Earlier versions staged files as `_NAME.parquet` beside the published ones.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
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
    """Writes Parquet files into `directory`, which is created if it does not exist. Each file becomes visible
    when the checkpoint that covers its rows is committed, and never changes afterwards. Readers therefore see
    each row once, with a delay of up to the interval between checkpoints.

        ParquetSink("/data/sold", compression="zstd")

    Every worker must reach the directory, also after a restart on another machine. The directory belongs to
    one sink of one region: a directory with files of another run or program is rejected before any worker
    starts. shared: True adds files to a directory with other files, including those of other regions that
    share it. local: as of `FileSink`. Raises SchemaError for an unknown compression and for columns that
    have no Parquet type.
    """

    directory: str
    compression: Compression
    shared: bool
    local: bool

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        compression: Compression = "zstd",
        shared: bool = False,
        local: bool = False,
    ) -> None:
        if compression not in _COMPRESSIONS:
            raise SchemaError(f"compression must be one of {', '.join(_COMPRESSIONS)}, not {compression!r}")
        object.__setattr__(self, "directory", os.path.abspath(directory))  # noqa: PTH100 - created on workers
        object.__setattr__(self, "compression", compression)
        object.__setattr__(self, "shared", shared)
        object.__setattr__(self, "local", local)

    def host_path(self) -> str:
        return "" if self.local else self.directory

    def check_input(self, schema: pa.Schema) -> None:
        for field in schema:
            try:
                pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
            except pa.ArrowException as error:
                raise SchemaError(
                    f"column {field.name!r} of type {field.type} has no Parquet type; convert it with a map:"
                    f" {error}"
                ) from error

    def open_output(self, context: OperatorContext) -> "ParquetOutput":
        owner = owner_of(context)
        self.check_place(owner)
        marked_as = None if self.shared else owner
        writer = f"{owner.digest:016x}-w{context.worker:04d}"
        return ParquetOutput(Path(self.directory), context.inputs[0], self.compression, marked_as, writer)

    def check_place(self, owner: OutputOwner) -> None:
        """Raise SinkOwnedError if another owner has files there, because they would be read together with
        these.
        """
        if not self.shared:
            directory = Path(self.directory)
            unmarked = partial(_unmarked, directory, owner)
            check_owner(directory, msgspec.json.encode(owner), unmarked, _REMEDY)


_REMEDY = "choose another directory, or move its files elsewhere; shared=True adds rows to those that exist"


def _unmarked(directory: Path, owner: OutputOwner) -> list[str]:
    """Return the names of other owners' data files in a directory without an owner file. Older versions wrote
    no owner file: there, a file with this owner's digest in its name proves ownership.
    """
    names = sorted(path.name for path in directory.glob("*") if path.suffix in (".parquet", ".shown"))
    if any(f"{owner.digest:016x}-w" in name for name in names):
        return []
    data = [name for name in names if name.endswith(".parquet")]
    return [name for name in data if not name.startswith("_") or parse_name(name[1:-8]) is not None]


class ParquetOutput(TwoPhaseOutput):
    """Writes one worker's files. Rows are held in memory until they form a row group."""

    def __init__(
        self, directory: Path, schema: pa.Schema, compression: str, owner: OutputOwner | None, writer: str
    ) -> None:
        """`owner`: recorded as the owner of the directory before the first rows are written; None: no
        owner. `writer`: the beginning of the names of this worker's transactions.
        """
        self._directory = directory
        self._owner = owner
        self._writer = writer
        self._staging = directory / f"_{writer}.staging"
        self._schema = schema
        self._compression = compression
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        directory.mkdir(parents=True, exist_ok=True)

    def _staged_path(self, transaction: str) -> Path:
        return self._staging / f"{transaction}.parquet"

    def _older_path(self, transaction: str) -> Path:
        """Where earlier versions staged a transaction."""
        return self._directory / f"_{transaction}.parquet"

    def _published_path(self, transaction: str) -> Path:
        return self._directory / f"part-{transaction}.parquet"

    def _last_path(self, transaction: str) -> Path:
        return self._directory / f"_{transaction.partition('-i')[0]}.shown"

    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        if self._owner is not None:
            owner, self._owner = self._owner, None
            others = partial(_unmarked, self._directory, owner)
            own_directory(
                self._directory, msgspec.json.encode(owner), others, f"owner-{self._writer}", _REMEDY
            )
        self._waiting.setdefault(transaction, []).append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= limits.parquet_group_bytes:
            self._write_group(transaction)

    def _write_group(self, transaction: str) -> None:
        batches = self._waiting.pop(transaction, [])
        self._waiting_bytes -= sum(batch.nbytes for batch in batches)
        if transaction not in self._writers:
            if not self._staging.exists():
                self._staging.mkdir(exist_ok=True)
                sync_directory(self._directory)
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
        sync_directory(self._staging)

    def commit(self, transaction: str) -> None:
        last = self._last_path(transaction)
        if last.exists() and transaction <= last.read_text():
            return
        # Rename before recording: after a crash in between, the repeated commit finds the visible file.
        if not self._publish(self._staged_path(transaction), transaction) and not self._publish(
            self._older_path(transaction), transaction
        ):
            raise SinkWriteError(
                f"{str(self._staged_path(transaction))!r} does not exist, but the checkpoint that covers"
                " its rows is committed",
                remedy="restore the file; leave its files alone whose names begin with '_'",
            )
        replace_durably(last, transaction.encode())  # also syncs the directory, and with it the rename

    def _publish(self, staged: Path, transaction: str) -> bool:
        """Rename a staged file unless that is done. Return whether the published file exists."""
        try:
            staged.rename(self._published_path(transaction))
        except FileNotFoundError:
            return self._published_path(transaction).exists()
        return True

    def staged(self) -> Iterable[str]:
        """Return the names of this worker's staged transactions. Until it has a directory of staged files,
        an earlier version may have staged some beside the published ones.
        """
        if self._staging.exists():
            return [path.stem for path in self._staging.glob("*.parquet")]
        return [path.stem[1:] for path in self._directory.glob("_*.parquet")]

    def abort(self, transaction: str) -> None:
        self._waiting_bytes -= sum(batch.nbytes for batch in self._waiting.pop(transaction, []))
        if writer := self._writers.pop(transaction, None):
            writer.close()
        self._staged_path(transaction).unlink(missing_ok=True)
        self._older_path(transaction).unlink(missing_ok=True)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._waiting.clear()
