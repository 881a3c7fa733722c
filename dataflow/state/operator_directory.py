"""The directory of an operator: files of its own, drained, cut and restored with its worker.

Rules of this file: circuit thread only, no store and no waiting of its own. A change is checked, handed to
the `ChangeLog` as a record, and then made to the files. When they can be changed is told here; what becomes
of the records is the log's.

The files are a cache of what their chain says: whenever a worker stands at a cut, they are made anew from it,
in a place of its own for each incarnation. So one that was superseded and does not know it changes no file of
the one that goes on. Decision 0160.
"""

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from dataflow.errors import DirectoryError, OperatorFailure
from dataflow.operators.base import UserFault
from dataflow.state.scratch import of_scratch
from journal import FileOp, FileTruncate, FileWrite, LocalFilesError, Record
from journal.files.changing import ChangingFiles

UNCHANGED_IN: Final = ("", "checkpoint")
"""Between the methods of an operator, and in this one, its files are not changed: a cut takes them as they
were behind `drain`.
"""


class ChangeLog(Protocol):
    """Where the changes of one directory go, in order."""

    @property
    def snapshot_due(self) -> bool:
        """Whether the next cut had better come with a copy of all files."""
        ...

    def record(self, record: Record) -> None:
        """Take a change; wait while too many are under way. Raises ClosedError when nobody takes them."""
        ...

    def flush(self) -> None:
        """The operator's method is over: nothing is held back any more. Waits and raises as `record`."""
        ...

    def cut(self, cut: int, step: int, sizes: Mapping[str, int], copy: Path | None) -> None:
        """The cut, at the end of that step, lies here; `sizes` are the files as of now. copy: where they lie,
        for who removes it.
        """
        ...


class OperatorDirectory:
    """What `ctx.directory()` gives an operator. See `UserOperator.keeps_files`.

        def open(self, ctx):
            self.files = ctx.directory()

        def process(self, batch):
            for line in batch.column("line").to_pylist():
                self.files.append("log.txt", line.encode() + b"\\n")

    `path` is where the files are: read them as files (`(files.path / "log.txt").read_bytes()`). It is another
    path after each failure, so it is to be asked for and not kept. Changes go through the methods below; what
    is changed otherwise is gone after the next failure, or stops the operator. Names are relative to `path`,
    their parts divided by "/".

    All methods block, and work in `open`, `reset`, `process`, `on_punctuation` and `drain`, on the
    operator's own thread; elsewhere they raise DirectoryError. They raise UnsafePathError and
    FileConflictError for a name that cannot be, and LocalProtocolError for a length, an offset or a write (of
    more than 16 MiB) that cannot be: then nothing was changed. OperatorFailure: the disk did not take it, or
    the file was changed by other means; the region goes back to its last cut. ClosedError: another
    incarnation has begun.
    """

    def __init__(self, path: Path, log: ChangeLog, scratch: str = "") -> None:
        """path: the files as of the cut. scratch: where they lie, for what is said of a full disk."""
        self._files = ChangingFiles(path)
        self._log = log
        self._scratch = scratch
        self._thread = threading.get_ident()
        self.method = ""
        """The method of the operator that runs, '' between them."""

    @property
    def path(self) -> Path:
        """Where the files are."""
        return self._files.path

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file, which is made if it is not there."""
        self._change(self._files.appending(name, bytes(data)))

    def write_at(self, name: str, offset: int, data: bytes) -> None:
        """Write over what is at `offset`, and on past the end; a hole before it reads as zeros."""
        self._change(FileWrite(name, offset, bytes(data)))

    def truncate(self, name: str, length: int = 0) -> None:
        """Make the file that long: cut off, or filled with zeros; made if it is not there."""
        self._change(FileTruncate(name, length))

    def remove(self, name: str) -> None:
        """Remove a file. Raises FileNotFoundError, with nothing changed, if it is not there."""
        self._change(self._files.removing(name))

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, over a file that has it. Raises FileNotFoundError. Recorded as writes of
        its content and a removal; a cut never lies between those.
        """
        for change in self._files.renaming(old, new):
            self._change(change)

    def cut(self, cut: int, step: int) -> None:
        """The cut at the end of that step takes the files as they are now. Raises UserFault if the disk
        fails, or failed before.
        """
        if self._files.broken is not None:
            raise UserFault(str(self._files.broken)) from OperatorFailure(str(self._files.broken))
        sizes = self._files.sizes()
        copy = None
        if self._log.snapshot_due:
            copy = self.path.with_name(f".{self.path.name}.{cut}")
            with of_scratch(self._scratch, "the files of a directory could not be copied"):
                copy_files(self.path, copy, sizes)
        self._log.cut(cut, step, sizes, copy)

    def method_over(self) -> None:
        """The method of the operator that ran has come back. Raises ClosedError."""
        self.method = ""
        self._log.flush()

    def close(self) -> None:
        """Nothing is changed any more."""
        self._files.close()
        self.method = ""

    def _change(self, op: FileOp) -> None:
        if threading.get_ident() != self._thread:
            raise DirectoryError(
                f"{op.path!r} is to be changed on another thread than the operator's own",
                remedy="hand what is to be written to process or drain, and write it there",
            )
        if self.method in UNCHANGED_IN:
            where = f"in {self.method}()" if self.method else "outside of the operator's methods"
            raise DirectoryError(
                f"{op.path!r} is to be changed {where}; files are changed in open, reset, process,"
                " on_punctuation and drain"
            )
        record = self._files.recorded(op)
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


__all__ = ["ChangeLog", "OperatorDirectory", "copy_files"]
