"""Rows as Parquet files that become visible when their checkpoint is committed: one per worker and
checkpoint.

A file is written as `_OWNER-wNNNN.staging/NAME.parquet`, which data lake readers ignore, and renamed to
`part-NAME.parquet`. `_OWNER-wNNNN.shown` stores which file became visible last: a commit that is repeated
after files were moved away or merged neither restores nor loses any. A reset lists only the directory of
staged files, because the number of published files grows without limit.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from dataflow import limits
from dataflow.core.transactions import parse_name, writer_name
from dataflow.errors import OutputLostError, SchemaError, SinkWriteError
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.sinks.base import OutputOwner, owner_of
from dataflow.sinks.files import (
    AcceptedLoss,
    check_accepted,
    check_owner,
    own_directory,
    refuse_url,
)
from dataflow.sinks.two_phase import TwoPhaseOutput, TwoPhaseSink
from dos_tls import make_durable_folders, replace_durably, sync_folder

logger = logging.getLogger("dos.dataflow")

Compression: TypeAlias = Literal["zstd", "snappy", "gzip", "lz4", "none"]
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")


@dataclass(frozen=True, slots=True, init=False)
class ParquetSink(TwoPhaseSink):
    """Writes Parquet files into `directory`, which is created if it does not exist. Each file becomes visible
    when the checkpoint that covers its rows is committed, and never changes afterwards.

        ParquetSink("/data/sold", compression="zstd")

    Every worker must reach the directory, also after a restart on another machine. It belongs to one sink of
    one region: a directory with files of another run or program is rejected before any worker starts. shared:
    True adds files to a directory with other files. local, accept_lost_output: as of `FileSink`. Raises
    SchemaError for an unknown compression and for columns that have no Parquet type.
    """

    takes_back: ClassVar[bool] = True
    directory: str
    compression: Compression
    shared: bool
    local: bool
    accept_lost_output: int

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        compression: Compression = "zstd",
        shared: bool = False,
        local: bool = False,
        accept_lost_output: int = 0,
    ) -> None:
        check_accepted(accept_lost_output)
        check_compression(compression)
        refuse_url("ParquetSink", directory)
        set_fields(
            self,
            directory=os.path.abspath(directory),  # noqa: PTH100 - created on workers
            compression=compression,
            shared=shared,
            local=local,
            accept_lost_output=accept_lost_output,
        )

    def host_path(self) -> str:
        return "" if self.local else self.directory

    def check_input(self, schema: pa.Schema) -> None:
        check_parquet_columns(schema)

    def open_output(self, context: OperatorContext) -> "ParquetOutput":
        owner = owner_of(context)
        self.check_place(owner)
        marked_as = None if self.shared else owner
        writer = writer_name(owner.digest, context.worker)
        return ParquetOutput(
            Path(self.directory),
            context.inputs[0],
            self.compression,
            marked_as,
            writer,
            AcceptedLoss(self.accept_lost_output, context.checkpoint),
            context.incarnation,
        )

    def check_place(self, owner: OutputOwner) -> None:
        """Raise SinkOwnedError if another owner has files there: they would be read together with these."""
        if not self.shared:
            directory = Path(self.directory)
            unmarked = partial(_unmarked, directory, owner)
            check_owner(directory, msgspec.json.encode(owner), unmarked, _REMEDY)


_REMEDY = (
    "choose another directory, or move its files elsewhere, also _region.json; shared=True adds rows to those"
    " that exist"
)


def _unmarked(directory: Path, owner: OutputOwner) -> list[str]:
    """Return the names of other owners' data files in a directory without an owner file."""
    # A file with this owner's digest in its name proves ownership: it was shared before.
    names = sorted(path.name for path in directory.glob("*") if path.suffix in (".parquet", ".shown"))
    own = any(f"{owner.digest:016x}-w" in name for name in names)
    return [] if own else [name for name in names if name.endswith(".parquet") and name[0] != "_"]


class ParquetOutput(TwoPhaseOutput):
    """Writes one worker's files."""

    def __init__(
        self,
        directory: Path,
        schema: pa.Schema,
        compression: str,
        owner: OutputOwner | None,
        writer: str,
        accepted: AcceptedLoss,
        incarnation: int,
    ) -> None:
        """`owner`: recorded before the first rows are written; None: none. `writer`: begins the names of its
        transactions.
        """
        self._accepted = accepted
        self._incarnation = incarnation
        self._directory = directory
        self._owner = owner
        self._writer = writer
        self._staging = directory / f"_{writer}.staging"
        self._schema = schema
        self._compression = compression
        self._files: dict[str, ParquetRows] = {}
        make_durable_folders(directory)

    def _staged_path(self, transaction: str) -> Path:
        return self._staging / f"{transaction}.parquet"

    def _published_path(self, transaction: str) -> Path:
        return self._directory / f"part-{transaction}.parquet"

    @property
    def _last_path(self) -> Path:
        return self._directory / f"_{self._writer}.shown"

    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        if self._owner is not None:
            owner, self._owner = self._owner, None
            others = partial(_unmarked, self._directory, owner)
            text = msgspec.json.encode(owner)
            own_directory(self._directory, text, others, f"owner-{self._writer}", _REMEDY)
        if transaction not in self._files:
            self._staging.mkdir(exist_ok=True)
            path = self._staged_path(transaction)
            self._files[transaction] = ParquetRows(path, self._schema, self._compression)
        self._files[transaction].write(batch)

    def prepare(self, transaction: str) -> None:
        self._files.pop(transaction).finish()
        with self._staged_path(transaction).open("rb") as file:
            os.fsync(file.fileno())
        sync_folder(self._staging)
        sync_folder(self._directory)  # a process that was killed may have made the staging directory

    def commit(self, transaction: str) -> None:
        staged, published = self._staged_path(transaction), self._published_path(transaction)
        is_staged = staged.exists()
        if not is_staged and not published.exists():
            if transaction <= self._last():
                return  # it was published, and readers have moved it
            self._lost(transaction)
            return
        # Recorded before the rename: then `published` has to list nothing unless something newer is recorded.
        if self._last() < transaction:
            replace_durably(self._last_path, transaction.encode(), mode=0o666)
        if is_staged:
            staged.rename(published)
        sync_folder(self._directory)

    def _lost(self, transaction: str) -> None:
        """Raise an error for a committed transaction without a file, unless its loss is accepted."""
        # A file that this incarnation has written is not lost with a host.
        path, name = str(self._staged_path(transaction)), parse_name(transaction)
        if name is None or name.incarnation >= self._incarnation:
            raise SinkWriteError(
                f"{path!r} does not exist, but the checkpoint that covers its rows is committed",
                remedy="restore the file; leave its files alone whose names begin with '_'",
            )
        error = OutputLostError(path, 0, "the file with rows of a committed checkpoint", "no file")
        self._accepted.take(error)

    def _last(self) -> str:
        """Return the newest transaction that was published or is about to be, "" for none."""
        return self._last_path.read_text() if self._last_path.exists() else ""

    def staged(self) -> Iterable[str]:
        return [path.stem for path in self._staging.glob("*.parquet")]

    def abort(self, transaction: str) -> None:
        if file := self._files.pop(transaction, None):
            file.close()
        self._staged_path(transaction).unlink(missing_ok=True)

    def published(self, newest: str) -> Iterable[str]:
        if newest and self._last() < newest and not self._staged_path(newest).exists():
            self._lost(newest)
        if newest and self._last() <= newest:
            return []  # so a reset need not list the published files, of which there are ever more
        visible = self._directory.glob(f"part-{self._writer}-*.parquet")
        return [name for path in visible if (name := path.stem.removeprefix("part-")) > newest]

    def take_back(self, transaction: str) -> None:
        path = self._published_path(transaction)
        logger.warning("%s is deleted: the region was reset to a checkpoint before it", path)
        path.unlink(missing_ok=True)
        sync_folder(self._directory)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class ParquetRows:
    """A Parquet file that is being written. Rows are held in memory until they form a row group."""

    def __init__(self, target: Path | RawIOBase, schema: pa.Schema, compression: str) -> None:
        """Open `target`; a file object is not closed."""
        self._schema = schema
        self._writer = pq.ParquetWriter(target, schema, compression=compression)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= limits.parquet_group_bytes:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._waiting_bytes = [], 0

    def finish(self) -> None:
        """Write the rest of the file."""
        self._write_group()
        self._writer.close()

    def close(self) -> None:
        """Give the file up. It lacks the rows that are held in memory."""
        self._writer.close()


def check_compression(compression: str) -> None:
    """Raise SchemaError for a compression that Parquet files do not have."""
    if compression not in _COMPRESSIONS:
        raise SchemaError(f"compression must be one of {', '.join(_COMPRESSIONS)}, not {compression!r}")


def check_parquet_columns(schema: pa.Schema) -> None:
    """Raise SchemaError if a column has no Parquet type."""
    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowException as error:
            raise SchemaError(
                f"column {field.name!r} of type {field.type} has no Parquet type; convert it with a map:"
                f" {error}"
            ) from error
