"""A file per worker, in which each step's rows are appended: `part-w0000.tsv`, `part-w0001.tsv` and so on.

Rules of this file: bytes at positions of one file. Rows to text is `tsv.py`.

Exactly once by cutting back: a cut holds the size of the file and the prefix digest of its content, made
durable before the worker votes; a reset truncates the file to that. So what a reader sees up to the last
committed cut is what a run without failures would have written; what lies past it may go away and come
again. Bytes that are *missing* below the cut, or others than were written, are an error: this sink cannot
write them again.

The directory belongs to one region of one store (file `_region.json` says which), because cutting back
another region's output would destroy it. Each part is locked by its writer, so that a worker being killed
cannot write after its successor has cut back. Names that begin with `_` are no data, as Spark has it.
"""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from dataflow import limits
from dataflow.errors import SinkOwnedError, SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter
from dataflow.sinks.tsv import check_columns, tsv_of
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import CorruptDataError

OWNER_FILE: Final = "_region.json"
_lock_poll_s: Final = 0.02


class _Owner(msgspec.Struct, frozen=True):
    region: str
    store: str
    sink: str


class _Prepared(msgspec.Struct, frozen=True):
    """What a cut holds of one part."""

    file: str
    size: int
    digest: int


@dataclass(frozen=True, slots=True, init=False)
class FileSink(SinkSpec):
    """Writes tab-separated rows to one file per worker in `directory`, which is made if it is not there.

    truncate_on_reset: False is for tests only: a reset then leaves what lies past the cut, so rows come
    twice.
    """

    directory: str
    truncate_on_reset: bool

    def __init__(self, directory: "str | os.PathLike[str]", *, truncate_on_reset: bool = True) -> None:
        object.__setattr__(self, "directory", os.path.abspath(directory))  # noqa: PTH100 - text; made on workers
        object.__setattr__(self, "truncate_on_reset", truncate_on_reset)

    def check_input(self, schema: pa.Schema) -> None:
        check_columns(schema)

    def open(self, context: OperatorContext) -> "FileWriter":
        return FileWriter(self, context)


class FileWriter(SinkWriter):
    """One part. Invariant while open: `_digest.size` is the file's size and where the next byte goes."""

    def __init__(self, spec: FileSink, context: OperatorContext) -> None:
        self._truncate = spec.truncate_on_reset
        self._directory = Path(spec.directory)
        self._path = self._directory / f"part-w{context.worker:04d}.tsv"
        self._owner = _Owner(context.region, context.store_id.hex(), context.operator)
        self._fd = -1
        self._syncing = threading.Lock()
        """Held while syncing: a descriptor closed meanwhile could come back as another file's."""
        self._digest = PrefixDigest()
        self._step: list[memoryview] = []

    # --- the life of a step ---------------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self._step.append(tsv_of(batch))
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        texts, self._step = self._step, []
        for text in texts:
            self._write(text)
        return ()

    def _write(self, text: memoryview) -> None:
        at = self._digest.size
        left = text
        try:
            while left:
                count = os.pwrite(self._fd, left, at)
                at, left = at + count, left[count:]
        except OSError as error:
            raise SinkWriteError(f"output {str(self._path)!r} at byte {at}: {error.strerror}") from error
        self._digest.update(text)

    def sync(self) -> None:
        with self._syncing:
            if self._fd < 0:
                raise SinkWriteError(f"output {str(self._path)!r} was closed before it was synced")
            try:
                os.fsync(self._fd)
            except OSError as error:
                text = f"output {str(self._path)!r} cannot be synced: {error.strerror}"
                raise SinkWriteError(text) from error

    def prepare(self) -> Any:
        return msgspec.to_builtins(_Prepared(self._path.name, self._digest.size, self._digest.value))

    # --- coming back ----------------------------------------------------------------------------------------

    def reset_to(self, prepared: Any | None) -> None:
        self._step = []
        to = _Prepared(self._path.name, 0, 0) if prepared is None else msgspec.convert(prepared, _Prepared)
        if to.file != self._path.name:
            raise CorruptDataError(
                str(self._path), 0, f"output of {to.file!r} in the cut", f"{self._path.name!r}"
            )
        try:
            self._open()
            self._cut_back(to)
        except OSError as error:
            raise SinkWriteError(
                f"output {str(self._path)!r} cannot be opened or cut: {error.strerror}"
            ) from error

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        self._own()
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(fd, self._path)
            _sync_directory(self._directory)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _own(self) -> None:
        """Write down whose directory this is, or find that it is ours. The first of several workers writes
        it.
        """
        marker = self._directory / OWNER_FILE
        if not marker.exists():
            others = sorted(path.name for path in self._directory.glob("part-w*.tsv"))
            if others and not marker.exists():
                raise SinkOwnedError(
                    f"output directory {str(self._directory)!r} has {others[0]} and no {OWNER_FILE}"
                )
            mine = self._directory / f"_{self._path.stem}.{os.getpid()}.tmp"
            with mine.open("wb") as file:
                file.write(msgspec.json.encode(self._owner))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(mine, marker)  # whole or not at all, and only once
            except FileExistsError:
                pass
            finally:
                mine.unlink()
        found = marker.read_bytes()
        if found != msgspec.json.encode(self._owner):
            raise SinkOwnedError(
                f"output directory {str(self._directory)!r} belongs to {found.decode(errors='replace')}, "
                "not to "
                f"{msgspec.json.encode(self._owner).decode()}"
            )

    def _cut_back(self, to: _Prepared) -> None:
        size = os.fstat(self._fd).st_size
        if size < to.size:
            raise CorruptDataError(
                str(self._path), size, f"at least {to.size} bytes, as the cut says", f"{size}"
            )
        keep = to.size if self._truncate else size
        self._digest = self._digest_of(to.size)
        if self._digest.value != to.digest:
            raise CorruptDataError(
                str(self._path),
                to.size,
                f"content with digest {to.digest:016x}",
                f"{self._digest.value:016x}",
            )
        if keep > to.size:
            self._digest = self._digest_of(keep)
        os.ftruncate(self._fd, keep)
        os.fsync(self._fd)

    def _digest_of(self, size: int) -> PrefixDigest:
        digest = PrefixDigest()
        while digest.size < size:
            block = os.pread(self._fd, min(limits.verify_read_bytes, size - digest.size), digest.size)
            if not block:
                raise OSError(errno.EIO, f"it ends at byte {digest.size} while {size} were there")
            digest.update(block)
        return digest

    def reset(self) -> None:
        self._step = []

    def close(self) -> None:
        with self._syncing:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def counters(self) -> dict[str, int]:
        return {"bytes_out": self._digest.size}


def _lock(fd: int, path: Path) -> None:
    """The writer's lock, gone with its process; waits for a predecessor that is on its way out."""
    deadline = time.monotonic() + limits.sink_lock_wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SinkWriteError(
                    f"output {str(path)!r} is still locked by another process after "
                    f"{limits.sink_lock_wait_s:g} s",
                    remedy="end the process that writes it",
                ) from None
            time.sleep(_lock_poll_s)
        else:
            return


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
