"""Rows as Parquet files that become visible when their checkpoint is committed: one per worker,
checkpoint and partition.

A file is written as `_OWNER-wNNNN.staging/NAME.parquet`, which data lake readers ignore, and renamed to
`part-NAME.parquet`. A partitioned one is `_OWNER-wNNNN.staging/NAME/COLUMN=VALUE/part-NAME.parquet`, and is
moved to the same directory below that of the sink. `_OWNER-wNNNN.shown` stores which transaction became
visible last: a commit that is repeated after files were moved away or merged neither restores nor loses any.
A reset lists only the directory of staged files, because the number of published files grows without limit.
"""

import logging
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from io import RawIOBase
from itertools import islice
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from dataflow import limits
from dataflow.core.partitions import PartitionBy, columns_in_files, partition_columns
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
from dataflow.sinks.partitions import PartitionFiles
from dataflow.sinks.two_phase import TwoPhaseOutput, TwoPhaseSink
from dos_tls import make_durable_folders, replace_durably, sync_folder

logger = logging.getLogger("dos.dataflow")

Compression: TypeAlias = Literal["zstd", "snappy", "gzip", "lz4", "none"]
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")


@dataclass(frozen=True, slots=True, init=False)
class ParquetSink(TwoPhaseSink):
    """Writes Parquet files into `directory`, which is created if it does not exist. Each file becomes visible
    when the checkpoint that covers its rows is committed, and never changes afterwards.

        ParquetSink("/data/sold", compression="zstd", partition_by=("day", "shop"))

    partition_by: a column or several of strings, integers, booleans or dates, which become directories
    (`day=2026-11-30/shop=..`) instead of columns of the files, as Spark and Arrow read them; a worker writes
    to at most 128 of them between two checkpoints. Every worker must reach the directory, also after a
    restart on another machine. It belongs to one sink of one region: a directory with files of another run or
    program is rejected before any worker starts. shared: True adds files to a directory with other files.
    local, accept_lost_output: as of `FileSink`. Raises
    SchemaError for an unknown compression, for columns that have no Parquet type or name no directories.
    """

    takes_back: ClassVar[bool] = True
    directory: str
    compression: Compression
    partition_by: tuple[str, ...]
    shared: bool
    local: bool
    accept_lost_output: int

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        compression: Compression = "zstd",
        partition_by: PartitionBy = (),
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
            partition_by=partition_columns(partition_by),
            shared=shared,
            local=local,
            accept_lost_output=accept_lost_output,
        )

    def host_path(self) -> str:
        return "" if self.local else self.directory

    def detail(self) -> str:
        return f"ParquetSink {self.directory}"

    def check_input(self, schema: pa.Schema) -> None:
        check_parquet_columns(columns_in_files(schema, self.partition_by))

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
            self.partition_by,
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
    partitioned = (
        str(path.relative_to(directory)) for path in directory.glob("*=*/**/*.parquet") if path.is_file()
    )
    found = [name for name in names if name.endswith(".parquet") and name[0] != "_"] or [
        *islice(partitioned, 1)
    ]
    return [] if own else found


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
        partition_by: tuple[str, ...] = (),
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
        self._schema = columns_in_files(schema, partition_by)
        self._by = partition_by
        self._compression = compression
        self._files: dict[str, PartitionFiles[ParquetRows]] = {}
        self._visible: dict[str, list[Path]] = {}
        """Transaction -> its files, of those that `published` found."""
        make_durable_folders(directory)

    def _staged_path(self, transaction: str) -> Path:
        return self._staging / f"{transaction}.parquet"

    def _staged_tree(self, transaction: str) -> Path:
        """Return the directory with the staged files of a transaction whose rows are partitioned."""
        return self._staging / transaction

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
            self._files[transaction] = PartitionFiles(self._by, partial(self._open_file, transaction))
        self._files[transaction].write(batch)

    def _open_file(self, transaction: str, directory: str) -> "ParquetRows":
        path = self._staged_path(transaction)
        if directory:
            path = self._staged_tree(transaction) / directory / self._published_path(transaction).name
            path.parent.mkdir(parents=True, exist_ok=True)
        return ParquetRows(path, self._schema, self._compression)

    def prepare(self, transaction: str) -> None:
        for rows in self._files.pop(transaction).files.values():
            rows.finish()
        tree = self._staged_tree(transaction)
        name = self._published_path(transaction).name  # a directory may end with .parquet, too
        for path in [*tree.glob(f"**/{name}")] if self._by else [self._staged_path(transaction)]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        for folder in [*tree.glob("**/")]:
            sync_folder(folder)
        sync_folder(self._staging)
        sync_folder(self._directory)  # a process that was killed may have made the staging directory

    def commit(self, transaction: str) -> None:
        staged, published = self._staged_path(transaction), self._published_path(transaction)
        tree = self._staged_tree(transaction)
        is_staged = staged.exists() or tree.exists()
        if not is_staged and not published.exists():
            if transaction <= self._last():
                return  # it was published, and readers have moved it
            self._lost(transaction)
            return
        # Recorded before the rename: then `published` has to list nothing unless something newer is recorded.
        if self._last() < transaction:
            replace_durably(self._last_path, transaction.encode(), mode=0o666)
        if staged.exists():
            staged.rename(published)
        if tree.exists():
            self._move(tree, published.name)
        sync_folder(self._directory)

    def _move(self, tree: Path, name: str) -> None:
        """Make partitioned files visible. A repeated call moves those that the one before has not moved."""
        targets = []
        for folder in sorted(tree.glob("**/")):  # also those without files: a killed process has moved these
            target = self._directory / folder.relative_to(tree)
            target.mkdir(exist_ok=True)
            if (folder / name).exists():
                (folder / name).rename(target / name)
            targets.append(target)
        for target in reversed(targets):
            sync_folder(target)
        shutil.rmtree(tree)  # at last: without it, the transaction counts as published

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
        return [path.stem for path in self._staging.glob("*")]

    def abort(self, transaction: str) -> None:
        if file := self._files.pop(transaction, None):
            file.close()
        self._staged_path(transaction).unlink(missing_ok=True)
        if (tree := self._staged_tree(transaction)).exists():
            shutil.rmtree(tree)

    def published(self, newest: str) -> Iterable[str]:
        staged = self._staged_path(newest).exists() or self._staged_tree(newest).exists()
        if newest and self._last() < newest and not staged:
            self._lost(newest)
        if newest and self._last() <= newest:
            return []  # so a reset need not list the published files, of which there are ever more
        self._visible.clear()
        name_of = f"part-{self._writer}-*.parquet"
        for path in [*self._directory.glob(name_of), *self._directory.glob(f"*=*/**/{name_of}")]:
            self._visible.setdefault(path.stem.removeprefix("part-"), []).append(path)
        return [name for name in self._visible if name > newest]

    def take_back(self, transaction: str) -> None:
        for path in self._visible.pop(transaction):
            logger.warning("%s is deleted: the region was reset to a checkpoint before it", path)
            path.unlink(missing_ok=True)
            sync_folder(path.parent)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class ParquetRows:
    """A Parquet file that is being written. Rows are held in memory until they form a row group."""

    def __init__(self, target: Path | RawIOBase, schema: pa.Schema, compression: str) -> None:
        """`target` is opened when the first row group is written; a file object is not closed."""
        self._target, self._schema, self._compression = target, schema, compression
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        if self.waiting_bytes >= limits.parquet_group_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are held in memory as a row group."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._target, self._schema, compression=self._compression)
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self.waiting_bytes = [], 0

    def finish(self) -> None:
        """Write the rest of the file."""
        self.flush()
        self.close()

    def close(self) -> None:
        """Give the file up. It lacks the rows that are held in memory."""
        if self._writer is not None:
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
