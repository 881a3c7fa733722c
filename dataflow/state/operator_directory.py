"""The directory of an operator: its own files, which are drained, checkpointed and restored with its worker.

It runs on the circuit thread and uses no store. A change is checked, handed to the `ChangeLog` as a record,
and then applied to the files. This module decides when files may be changed; the log handles the records.

The files are a cache of their chain: when a worker is restored to a checkpoint, they are rebuilt from the
chain, in a separate directory for each incarnation. So a superseded worker that is not aware of it cannot
change the files of its successor (decision 0160).
"""

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from dataflow.errors import DirectoryError, OperatorFailure, UserFault
from dataflow.state.scratch import of_scratch
from journal import FileOp, FileTruncate, FileWrite, LocalFilesError, Record
from journal.files.directory import ChangingFiles

UNCHANGED_IN: Final = ("", "checkpoint")
"""Methods in which files may not be changed ('': between methods): a checkpoint contains the files as they
were after `drain`.
"""


class ChangeLog(Protocol):
    """The log for the changes of one directory, in order."""

    @property
    def snapshot_due(self) -> bool:
        """Whether the next checkpoint should have a copy of all files."""
        ...

    def record(self, record: Record) -> None:
        """Take a change. Block while too many are in progress.

        Raises ClosedError after the end of the incarnation.
        """
        ...

    def flush(self) -> None:
        """Send all held changes at the end of an operator's method. Blocks and raises as `record`."""
        ...

    def begin(self, sizes: Mapping[str, int], copy: Path) -> None:
        """Begin with these files, instead of those of the chain. Called before anything else.

        `copy`: has the files; the log deletes it.
        """
        ...

    def checkpoint(self, checkpoint: int, step: int, sizes: Mapping[str, int], copy: Path | None) -> None:
        """Note the checkpoint at the end of that step.

        `sizes`: the current files. copy: a copy that the log deletes.
        """
        ...


class OperatorDirectory:
    r"""The result of `ctx.directory()` for an operator. See `UserOperator.keeps_files`.

        def open(self, ctx):
            self.files = ctx.directory()

        def process(self, batch):
            for line in batch.column("line").to_pylist():
                self.files.append("log.txt", line.encode() + b"\n")

    `path` is the directory: read files there (`(files.path / "log.txt").read_bytes()`). The path changes
    after each failure, so do not keep it. Change files only with the methods below: other changes are lost
    after the next failure, or stop the operator. Names are relative to `path`, with "/" as separator.

    All methods block. They work in `open`, `reset`, `process`, `on_punctuation` and `drain`, on the
    operator's own thread; elsewhere they raise DirectoryError. Other errors, after which nothing was changed:
    UnsafePathError and FileConflictError for an invalid name; LocalProtocolError for an invalid length or
    offset, or a write of more than 16 MiB. OperatorFailure: the disk failed, or the file was changed by other
    means; the region resets to its last checkpoint. ClosedError: another incarnation has begun.
    """

    def __init__(self, path: Path, log: ChangeLog, scratch: str = "") -> None:
        """path: the files of the checkpoint. scratch: their scratch directory, for messages about a full
        disk.
        """
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
        """Rename a file, replacing an existing one. Raises FileNotFoundError.

        It is recorded as writes of its content and a removal; a checkpoint never falls between these.
        """
        for change in self._files.renaming(old, new):
            self._change(change)

    def checkpoint(self, checkpoint: int, step: int) -> None:
        """Take the current files into the checkpoint at the end of that step.

        Raises UserFault if the disk failed.
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
            raise DirectoryError(
                f"{op.path!r} cannot be changed on another thread than the operator's own",
                remedy="pass the data to process or drain, and write it there",
            )
        if self.method in UNCHANGED_IN:
            context = f"in {self.method}()" if self.method else "outside of the operator's methods"
            raise DirectoryError(
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


__all__ = ["ChangeLog", "OperatorDirectory", "copy_files"]
