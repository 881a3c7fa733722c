"""The directory of an operator: its own files, which are drained, checkpointed and restored with its worker.

It runs on the circuit thread and uses no store. A change is checked, handed to the `ChangeLog` as a record,
and then applied. The files are a cache of their chain, rebuilt from it in a separate directory for each
incarnation (decision 0160).
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from dataflow.errors import OperatorFailure, UserFault
from dataflow.state.scratch import of_scratch
from dos_protocol.errors import ClosedError, DosError
from journal import FileOp, FileTruncate, FileWrite, LocalFilesError, Record
from journal.files.directory import ChangingFiles, sizes_of


class Handover:
    """The budget of one directory. `path`: its files in this incarnation."""

    def __init__(
        self, path: Path, bytes_max: int, sources: Mapping[int, Path] | None = None, *, divides: bool = True
    ) -> None:
        self.path = path
        self.sources = sources
        """If the layout changes, or in a fork: former worker -> a copy of its files, to make the operator's
        own.
        """
        self.divides = divides
        """Whether the operator makes its files from `sources`; otherwise they are copied."""
        self.snapshot_due = False
        """Set by the link thread: the next checkpoint should have a copy of all files."""
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._reserved = 0
        self.closed = False
        """Set by the link thread: the incarnation has ended; errors of the circuit after that are no
        failures.
        """

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes; block until they fit, which they do if nothing is reserved. Raises
        ClosedError.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.closed or not self._reserved or self._reserved + size <= self._bytes_max
            )
            if self.closed:
                raise ClosedError(f"the files at {self.path} belong to an incarnation that has ended")
            self._reserved += size

    def release(self, size: int) -> None:
        """Release `size` bytes that are in the chain."""
        with self._changed:
            self._reserved -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Release all callers; nothing is accepted any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


UNCHANGED_IN: Final = ("", "checkpoint")
"""Methods in which files may not be changed ('': between methods): a checkpoint has them as after `drain`."""


class ChangeLog(Protocol):
    """The log for the changes of one directory, in order."""

    @property
    def snapshot_due(self) -> bool:
        """Whether the next checkpoint should have a copy of all files."""
        ...

    def record(self, record: Record) -> None:
        """Take a change. Block while too many are in progress. Raises ClosedError after the incarnation's
        end.
        """
        ...

    def flush(self) -> None:
        """Send all held changes at the end of an operator's method. Blocks and raises as `record`."""
        ...

    def begin(self, sizes: Mapping[str, int], copy: Path) -> None:
        """Begin with the files in `copy`, instead of those of the chain, before anything else. The log
        deletes it.
        """
        ...

    def checkpoint(self, checkpoint: int, step: int, sizes: Mapping[str, int], copy: Path | None) -> None:
        """Note the checkpoint at the end of that step. `sizes`: of the files. copy: the log deletes it."""
        ...


class OperatorDirectory:
    r"""The result of `ctx.directory()` for an operator. See `UserOperator.keeps_files`.

        def open(self, ctx):
            self.files = ctx.directory()

        def process(self, batch):
            for line in batch.column("line").to_pylist():
                self.files.append("log.txt", line.encode() + b"\n")

    `path` is the directory: read files there. The path changes after each failure, so do not keep it. Change
    files only with the methods below: other changes are lost after the next failure, or stop the operator.
    Names are relative to `path`, with "/" as separator.

    All methods block. They work in `open`, `reset`, `process`, `on_punctuation` and `drain`, on the
    operator's own thread; elsewhere they raise DosError. Other errors, after which nothing was changed:
    UnsafePathError and FileConflictError for an invalid name; LocalProtocolError for an invalid length or
    offset, or a write of more than 16 MiB. OperatorFailure: the disk failed, or the file was changed by other
    means; the region resets. ClosedError: another incarnation has begun.
    """

    def __init__(self, path: Path, log: ChangeLog, scratch: str = "") -> None:
        """path: the files of the checkpoint. scratch: their scratch directory, for messages about a full
        disk.
        """
        # A superseded worker that is not aware of it has another `path`: it cannot change its successor's
        # files.
        self._files = ChangingFiles(path)
        self._log = log
        self._scratch = scratch
        self._thread = threading.get_ident()
        self.method = ""
        """The operator's method that runs, '' between methods."""

    @property
    def path(self) -> Path:
        """The directory of the files."""
        return self._files.path

    def append(self, name: str, data: bytes) -> None:
        """Append to a file, which is created if it does not exist."""
        self._change(self._files.appending(name, bytes(data)))

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        """Overwrite from `offset` on, also past the end. A hole before it reads as zeros."""
        self._change(FileWrite(name, offset, bytes(data)))

    def truncate(self, name: str, length: int = 0) -> None:
        """Truncate the file to this length or extend it with zeros. Creates it if it does not exist."""
        self._change(FileTruncate(name, length))

    def remove(self, name: str) -> None:
        """Remove a file. Raises FileNotFoundError, with nothing changed, if it does not exist."""
        self._change(self._files.removing(name))

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing an existing one. Raises FileNotFoundError."""
        # Recorded as writes of its content and a removal: a checkpoint never falls between these.
        for change in self._files.renaming(old, new):
            self._change(change)

    def checkpoint(self, checkpoint: int, step: int) -> None:
        """Take the current files into the checkpoint at the end of that step. Raises UserFault if the disk
        failed.
        """
        if self._files.broken is not None:
            raise UserFault(str(self._files.broken)) from OperatorFailure(str(self._files.broken))
        sizes = self._files.sizes()
        copy = None
        if self._log.snapshot_due:
            copy = self.path.with_name(f".{self.path.name}.{checkpoint}")
            with of_scratch(self._scratch, "the files of a directory could not be copied"):
                copy_files(self.path, copy, sizes)
        self._log.checkpoint(checkpoint, step, sizes, copy)

    def method_over(self) -> None:
        """Note that the operator's method has returned. Raises ClosedError."""
        self.method = ""
        self._log.flush()

    def close(self) -> None:
        """Refuse all further changes."""
        self._files.close()
        self.method = ""

    def _change(self, op: FileOp) -> None:
        if threading.get_ident() != self._thread:
            raise DosError(
                f"{op.path!r} cannot be changed on another thread than the operator's own",
                remedy="pass the data to process or drain, and write it there",
            )
        if self.method in UNCHANGED_IN:
            context = f"in {self.method}()" if self.method else "outside of the operator's methods"
            raise DosError(
                f"{op.path!r} cannot be changed {context}; files may be changed in open, reset, process,"
                " on_punctuation and drain"
            )
        record = self._files.recorded(op)
        # Log the change before applying it: a change that is not in the log must not be in the files.
        try:
            self._files.check_untouched(op.path)
            self._log.record(record)
            self._files.apply(op)
        except LocalFilesError as error:
            raise OperatorFailure(str(error)) from error


def copy_files(root: Path, into: Path, sizes: Mapping[str, int]) -> None:
    """Copy these files. Raises OSError."""
    into.mkdir(parents=True)
    for name in sizes:
        copy = into / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, copy, follow_symlinks=False)


# --- another layout -----------------------------------------------------------------------------------------
#
# The files of an operator in another layout, which a function of the user makes from those of all workers.
#
# The function works on plain directories, with any means: copies of the files of each former worker, and an
# empty one. What is in the latter when it returns becomes the beginning of the operator's directory. That is
# recorded before `open` can change it, so the checkpoint that changes the layout contains it.

MakeFiles: TypeAlias = Callable[[Mapping[int, Path], Path], None]
"""Called with former worker -> its files, and the empty directory to fill."""


def begin_files(
    path: Path, sources: Mapping[int, Path], log: ChangeLog, make: MakeFiles, scratch: str = ""
) -> None:
    """Create the files at `path`, which must not exist, and record them as the beginning of the directory.
    Deletes the sources. Raises UserFault for what no directory can contain, or if the disk failed, and what
    `make` raises; then nothing is recorded.
    """
    made = path.with_name(f".{path.name}.made")
    failed = "the files of a directory could not be copied"
    with of_scratch(scratch, failed):
        made.mkdir(parents=True)
    make(sources, made)
    with of_scratch(scratch, failed):
        sizes = _sizes(made)
        copy_files(made, path, sizes)
        for source in sources.values():
            shutil.rmtree(source, ignore_errors=True)
    log.begin(sizes, made)


def copy_of_one(sources: Mapping[int, Path], made: Path) -> None:
    """Fill the directory with the files of the only source, as they are."""
    (source,) = sources.values()
    with of_scratch("", "the files of a directory could not be copied"):
        shutil.copytree(source, made, dirs_exist_ok=True)


def _sizes(made: Path) -> dict[str, int]:
    try:
        return sizes_of(made)
    except DosError as error:
        raise UserFault(
            f"redistribute_directory left what cannot be in a directory of an operator: {error}",
            remedy="leave regular files only, with names that a journal can have",
        ) from error
