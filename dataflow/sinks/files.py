"""One file per worker, to which the rows of each step are appended: `part-w0000.tsv`, `part-w0001.tsv`, ...

Exactly once by truncation: a checkpoint contains the size of the file and the prefix digest of its content,
durable before the vote. A reset truncates the file to that size. Bytes that are *missing* or differ below it
end the region, because this sink cannot write them again, unless a person has accepted the loss
(`AcceptedLoss`).

The directory belongs to one region of one store (`_region.json`), because truncating another region's output
would destroy it. `_part-w0000.incarnation` holds the incarnation that wrote the part last,
`_part-w0000.before-41` a part that was set aside. Names that begin with `_` are not data, as in Spark.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dataflow import limits
from dataflow.core.file_digest import BEGINNING, FileDigest, Verify, check_verify, resumed
from dataflow.core.regions import Delivery
from dataflow.errors import (
    DeliveryError,
    OutputLostError,
    SchemaError,
    SinkFencedError,
    SinkOwnedError,
    SinkWriteError,
)
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.sinks.base import OutputOwner, SinkSpec, SinkWriter, other_owner, owner_of, write_error
from dos_protocol.digests import ResumePoint
from dos_protocol.errors import CorruptDataError
from dos_tls import make_durable_folders, replace_durably, sync_folder

logger = logging.getLogger("dos.dataflow")

OWNER_FILE: Final = "_region.json"
_lock_poll_s: Final = 0.02


class PartPort(Protocol):
    """The file operations that a file sink needs. All except `close` raise OSError."""

    @property
    def name(self) -> str: ...

    @property
    def full_path(self) -> str: ...

    def open(self, owner: bytes) -> None:
        """Create the file if it does not exist, and lock it; once. Raises SinkOwnedError, SinkWriteError."""
        ...

    def incarnation(self) -> int:
        """Return the last incarnation that wrote here, 0 if none. Raises CorruptDataError."""
        ...

    def set_incarnation(self, number: int) -> None:
        """Record the incarnation durably."""
        ...

    def size(self) -> int: ...

    def read(self, position: int, count: int) -> bytes: ...

    def write(self, position: int, data: memoryview) -> int:
        """Write at least one byte of `data`. Return the number of bytes written."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file to `size`, durably."""
        ...

    def set_aside(self, checkpoint: int) -> None:
        """Keep the content of the file under another name, and begin it anew."""
        ...

    def sync(self) -> None:
        """Make all bytes durable, from another thread. Also raises SinkWriteError if the file was closed."""
        ...

    def close(self) -> None: ...


class PartFile:
    """A part in a directory of this machine."""

    def __init__(self, directory: str, name: str, waits: Callable[[str], None] = lambda _: None) -> None:
        self.name = name
        self._waits = waits
        self._directory = Path(directory)
        self._path = self._directory / name
        self._fence = self._directory / f"_{self._path.stem}.incarnation"
        self._fd = -1
        self._marks_as = b""
        """The owner with which to mark the directory before the first rows; empty if it is marked."""
        self._syncing = threading.Lock()
        """Held during a sync: a descriptor that is closed meanwhile could be reused for another file."""

    @property
    def full_path(self) -> str:
        return str(self._path)

    def open(self, owner: bytes) -> None:
        if self._fd >= 0:
            return
        make_durable_folders(self._directory)
        marked = check_owner(self._directory, owner, partial(written_parts, self._directory))
        # A start whose graph is never committed writes no rows, and does not keep the place.
        self._marks_as = b"" if marked else owner
        self._fd = self._locked()

    def _locked(self) -> int:
        """Create the file if it does not exist, and return a descriptor that holds its lock."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(fd, self._path, self._waits)
            # The rows of a checkpoint are synced, but lost with the machine if the name of their file is not.
            sync_folder(self._directory)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def incarnation(self) -> int:
        try:
            text = self._fence.read_bytes()
        except FileNotFoundError:
            return 0
        if not text.isdigit():
            raise CorruptDataError(str(self._fence), 0, "the number of an incarnation", repr(text[:40]))
        return int(text)

    def set_incarnation(self, number: int) -> None:
        replace_durably(self._fence, str(number).encode(), mode=0o666)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, count: int) -> bytes:
        return os.pread(self._fd, count, position)

    def write(self, position: int, data: memoryview) -> int:
        if self._marks_as:
            others = partial(written_parts, self._directory)
            own_directory(self._directory, self._marks_as, others, self._path.stem)
            self._marks_as = b""
        return os.pwrite(self._fd, data, position)

    def truncate(self, size: int) -> None:
        # Synced: if the machine fails, rows that were cut off could return below those that a replay writes.
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)

    def set_aside(self, checkpoint: int) -> None:
        aside = self._directory / f"_{self._path.stem}.before-{checkpoint}"
        if aside.exists():  # this worker died after the rename: what is here now is not the lost output
            self.truncate(0)
            return
        self._path.rename(aside)
        fresh = self._locked()
        with self._syncing:
            os.close(self._fd)
            self._fd = fresh

    def sync(self) -> None:
        with self._syncing:
            if self._fd < 0:
                raise SinkWriteError(f"output {self.full_path!r} was closed before it was synced")
            os.fsync(self._fd)

    def close(self) -> None:
        with self._syncing:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def _lock(fd: int, path: Path, waits: Callable[[str], None]) -> None:
    """Take the writer's lock, which ends with the process; wait for a previous writer, and report that."""
    begun = time.monotonic()
    logged = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited_s = time.monotonic() - begun
            if waited_s > limits.sink_lock_wait_s:
                raise SinkWriteError(
                    f"output {str(path)!r} is still locked by {_holder(fd)} after"
                    f" {limits.sink_lock_wait_s:g} s",
                    remedy="end the process that writes it",
                ) from None
            if waited_s >= limits.sink_lock_log_s and not logged:
                logged = True
                text = (
                    f"the lock of output {path}, held by {_holder(fd)}: a previous worker that is ending, or"
                )
                text = f"{text} one of another driver"
                logger.warning("waiting up to %g s for %s", limits.sink_lock_wait_s, text)
                waits(text)
            time.sleep(_lock_poll_s)
        else:
            if logged:
                logger.warning("output %s is locked after %.1f s", path, time.monotonic() - begun)
                waits("")
            return


def _holder(fd: int) -> str:
    """Return who holds the lock of a file, as far as this host's kernel shows it."""
    status = os.fstat(fd)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        locks = []
    # a line is: number, FLOCK, ADVISORY, WRITE, pid, device and inode, start, end
    pids = [fields[4] for fields in locks if len(fields) == 8 and fields[1] == "FLOCK" and fields[5] == file]
    known = [pid for pid in pids if pid.isdigit() and pid != "0"]  # 0 or -1: of another pid namespace
    return f"process {known[0]} of this host" if known else "another process"


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Whether a person has accepted that output is lost with its host. `up_to`: `accept_lost_output`, 0 for
    none. `checkpoint`: the one that the region continues from.
    """

    # It applies only while a region continues from that checkpoint or an earlier one: a later loss is refused
    # again.
    up_to: int
    checkpoint: int

    def take(self, error: OutputLostError) -> None:
        """Log the loss if it is accepted. Otherwise raise the error, with the ways to continue."""
        if not 0 < self.checkpoint <= self.up_to:
            raise OutputLostError(
                error.where,
                error.offset,
                error.expected,
                error.found,
                "if the directory is on another host, or its disk can be attached, make it available here and"
                f" run the region again; if it is lost, pass accept_lost_output={self.checkpoint} to the sink"
                " to continue without the rows that were in it (docs/sources-and-sinks.md)",
            ) from error
        logger.warning("continuing without lost output, as accept_lost_output=%d says: %s", self.up_to, error)


def check_accepted(checkpoint: int) -> None:
    """Raise SchemaError unless this can be the number of a checkpoint, or 0."""
    if not isinstance(checkpoint, int) or isinstance(checkpoint, bool) or checkpoint < 0:
        raise SchemaError(f"accept_lost_output is the number of a checkpoint, not {checkpoint!r}")


def refuse_url(sink: str, directory: "str | os.PathLike[str]") -> None:
    """Raise SchemaError for a URL, which would otherwise become a relative path on the hosts of workers."""
    if "://" in os.fspath(directory):
        raise SchemaError(
            f"{sink} writes to a directory, and {os.fspath(directory)!r} is a URL; use S3Sink for a bucket"
            " (s3://BUCKET/PREFIX)"
        )


def written_parts(directory: Path) -> list[str]:
    """Return the names of all parts with rows in a directory, of any owner."""
    return sorted(path.name for path in directory.glob("part-w*.tsv") if path.stat().st_size)


def check_owner(
    directory: Path, owner: bytes, unmarked: Callable[[], Sequence[str]], remedy: str = ""
) -> bool:
    """Return whether the directory is marked as the owner's. Raises SinkOwnedError if it is marked as
    another's, or is not marked and holds output (`unmarked`: returns names of files; not called for a marked
    directory). Changes nothing.
    """
    marker = directory / OWNER_FILE
    try:
        recorded = marker.read_bytes()
    except FileNotFoundError:
        files = unmarked()
        if files and not marker.exists():
            raise SinkOwnedError(
                f"output directory {str(directory)!r} has {files[0]} but no {OWNER_FILE}: another run or"
                " program wrote it",
                remedy=remedy,
            ) from None
        return False
    if recorded != owner:
        since = datetime.fromtimestamp(marker.stat().st_mtime, UTC).isoformat(" ", "seconds")
        text = other_owner(f"output directory {str(directory)!r}", recorded, owner, since)
        raise SinkOwnedError(text, remedy=remedy)
    return True


def own_directory(
    directory: Path, owner: bytes, unmarked: Callable[[], Sequence[str]], unique: str, remedy: str = ""
) -> None:
    """Mark the directory durably as the owner's, once. `unique`: a file name that no other worker of this
    process uses meanwhile. Raises as `check_owner`.
    """
    if not check_owner(directory, owner, unmarked, remedy):
        mine = directory / f"_{unique}.{os.getpid()}.tmp"
        with mine.open("wb") as file:  # synced before it is linked, so that no owner file is ever incomplete
            file.write(owner)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(mine, directory / OWNER_FILE)  # link() is atomic and fails if the name exists
        except FileExistsError:
            pass
        finally:
            mine.unlink()
        check_owner(directory, owner, tuple, remedy)
    # Before any output, which without an owner would be another program's. A process that was killed may have
    # made the name.
    sync_folder(directory)


_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_NULL: Final = "\\N"


def check_text_columns(schema: pa.Schema) -> None:
    """Raise SchemaError if a column has no text form."""
    for field in schema:
        try:
            if pa.types.is_binary(
                field.type
            ):  # Arrow would accept it and fail at the first byte that is not UTF-8
                raise pa.ArrowNotImplementedError
            pa.array([], field.type).cast(pa.string())
        except pa.ArrowException:
            raise SchemaError(
                f"column {field.name!r} of type {field.type} has no text form; convert it to a string with"
                " a map"
            ) from None


def tsv_of(batch: pa.RecordBatch) -> memoryview:
    """Return the rows as tab-separated text, without per-row work in Python. Every line ends with \\n.

    The format is that of PostgreSQL's COPY: \\N for null, and \\\\ \\t \\n \\r for these characters inside a
    value. `parse_row` restores every value exactly.
    """
    if not batch.num_rows:
        return memoryview(b"")
    columns = [_text(column) for column in batch.columns]
    columns[-1] = pc.binary_join_element_wise(columns[-1], "", "\n")
    joined = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "\t")
    return _bytes_of(joined)


def _text(column: pa.Array) -> pa.Array:
    text = column if pa.types.is_string(column.type) else column.cast(pa.string())
    if not _plain(column.type) and len(text):
        content = _bytes_of(text).tobytes()
        for character, escaped in _ESCAPES:
            if character.encode() in content:
                text = pc.replace_substring(text, character, escaped)
    return pc.fill_null(text, _NULL) if text.null_count else text


def _plain(kind: pa.DataType) -> bool:
    """Return whether text of this type never contains a character to escape."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind))


def _bytes_of(text: pa.Array) -> memoryview:
    """Return all values of a string array, concatenated, without copying."""
    _, ends, data = text.buffers()
    if data is None:
        return memoryview(b"")
    bounds = memoryview(ends).cast("B").cast("i")
    return memoryview(data).cast("B")[bounds[text.offset] : bounds[text.offset + len(text)]]


def parse_row(line: str) -> list[str | None]:
    """Return the values of one line (without its \\n). For readers and tests."""
    return [None if value == _NULL else _unescaped(value) for value in line.split("\t")]


def _unescaped(value: str) -> str:
    if "\\" not in value:
        return value
    out, at = [], 0
    unescaped = {escaped[1]: character for character, escaped in _ESCAPES}
    while at < len(value):
        if value[at] == "\\":
            out.append(unescaped[value[at + 1]])
            at += 2
        else:
            out.append(value[at])
            at += 1
    return "".join(out)


class _Prepared(msgspec.Struct, frozen=True):
    """The state of one part in a checkpoint."""

    file: str
    size: int
    digest: int
    resume: ResumePoint
    """Where the digest can be resumed."""


@dataclass(frozen=True, slots=True, init=False)
class FileSink(SinkSpec):
    """Writes tab-separated rows to one file per worker in `directory`, which is created if it does not exist.

        FileSink("/data/counts")

    local: True confirms that a run on a cluster may use this path: either all hosts share the directory, or
    the files may be lost with their host. accept_lost_output: the number of a checkpoint; if the output up to
    it is missing on the host of a worker, the region continues without it; 0 refuses that. truncate_on_reset:
    False is for tests only: rows after the checkpoint appear twice, as in regions without exactly-once.
    verify: how much of the files a reset verifies, "tail" (the last 64 KiB before the checkpoint, in the same
    time for any size) or "whole" (everything).
    """

    directory: str
    local: bool
    truncate_on_reset: bool
    verify: Verify
    accept_lost_output: int

    def __init__(
        self,
        directory: "str | os.PathLike[str]",
        *,
        local: bool = False,
        truncate_on_reset: bool = True,
        verify: Verify = "tail",
        accept_lost_output: int = 0,
    ) -> None:
        refuse_url("FileSink", directory)
        check_verify(verify)
        check_accepted(accept_lost_output)
        set_fields(
            self,
            directory=os.path.abspath(directory),  # noqa: PTH100 - created on workers
            local=local,
            truncate_on_reset=truncate_on_reset,
            verify=verify,
            accept_lost_output=accept_lost_output,
        )

    def host_path(self) -> str:
        return "" if self.local else self.directory

    def detail(self) -> str:
        return f"FileSink {self.directory}"

    def check_input(self, schema: pa.Schema) -> None:
        check_text_columns(schema)

    def check_place(self, owner: OutputOwner) -> None:
        """Raise SinkOwnedError if another sink or region owns the directory."""
        directory = Path(self.directory)
        check_owner(directory, msgspec.json.encode(owner), partial(written_parts, directory))

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """Return what is wanted. Raises DeliveryError for exactly-once if resets do not truncate."""
        if self.truncate_on_reset:
            return wanted or "exactly-once"
        if wanted == "exactly-once":
            text = "with truncate_on_reset=False leaves rows in its files that are written again"
            raise DeliveryError(text, remedy='omit that, or set consistent(delivery="at-least-once")')
        return wanted or "at-least-once"

    def open(self, context: OperatorContext) -> "FileWriter":
        part = PartFile(self.directory, part_name(context.worker), context.waits)
        truncate = self.delivers(context.delivery) == "exactly-once"
        accepted = AcceptedLoss(self.accept_lost_output, context.checkpoint)
        return FileWriter(context, part, truncate=truncate, verify=self.verify, accepted=accepted)


def part_name(worker: int) -> str:
    return f"part-w{worker:04d}.tsv"


class FileWriter(SinkWriter):
    """Writes one part. Invariant while open: `_digest.size` is the size of the file and the next position."""

    may_repeat: ClassVar[bool] = True

    def __init__(
        self,
        context: OperatorContext,
        part: PartPort,
        *,
        truncate: bool = True,
        verify: Verify = "tail",
        accepted: AcceptedLoss | None = None,
    ) -> None:
        self._accepted = accepted or AcceptedLoss(0, context.checkpoint)
        self._truncate = truncate
        self._verify = verify
        self._part = part
        self._incarnation = context.incarnation
        self._owner = owner_of(context)
        self._digest = FileDigest()
        self._step: list[memoryview] = []

    # --- Steps ----------------------------------------------------------------------------------------

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
        rest = text
        try:
            while rest:
                count = self._part.write(at, rest)
                at, rest = at + count, rest[count:]
        except OSError as error:
            raise SinkWriteError(f"output {self._part.full_path!r} at byte {at}: {error.strerror}") from error
        self._digest.update(text)

    def sync(self) -> None:
        try:
            self._part.sync()
        except OSError as error:
            text = f"output {self._part.full_path!r} cannot be synced: {error.strerror}"
            raise SinkWriteError(text) from error

    def prepare(self, checkpoint: int) -> Any:
        del checkpoint
        digest = self._digest
        prepared = _Prepared(self._part.name, digest.size, digest.value, digest.resume)
        return msgspec.json.decode(msgspec.json.encode(prepared))  # lists, as it returns from the manifest

    # --- Reset ----------------------------------------------------------------------------------------

    def reset_to(self, prepared: Any | None) -> None:
        self._step = []
        part = self._part
        to = (
            _Prepared(part.name, 0, 0, BEGINNING)
            if prepared is None
            else msgspec.convert(prepared, _Prepared)
        )
        if to.file != part.name:
            raise CorruptDataError(
                part.full_path, 0, f"output of {to.file!r} in the checkpoint", f"{part.name!r}"
            )
        try:
            part.open(msgspec.json.encode(self._owner))
            self._fence()  # before truncation: a left-over worker must not cut off newer rows
            try:
                self._truncate_to(to)
            except OutputLostError as error:
                self._accepted.take(error)
                part.set_aside(self._accepted.checkpoint)
                self._digest = FileDigest()
        except OSError as error:
            text = f"output {part.full_path!r} cannot be opened or truncated: {error.strerror}"
            raise write_error(error)(f"{text} (user id {os.geteuid()})") from error

    def _fence(self) -> None:
        """Record this incarnation durably as the last writer, before anything in the part changes. Raises
        SinkFencedError if a later incarnation has written it.
        """
        # The lock alone is not enough: a worker left over from an earlier incarnation may acquire it long
        # after a later one has committed more, and would cut that off.
        last_writer = self._part.incarnation()
        if last_writer > self._incarnation:
            self._part.close()
            raise SinkFencedError(
                f"output {self._part.full_path!r} was written by incarnation {last_writer} of the region; "
                f"this worker is of {self._incarnation}"
            )
        if last_writer < self._incarnation:
            self._part.set_incarnation(self._incarnation)

    def _truncate_to(self, to: _Prepared) -> None:
        part = self._part
        size = part.size()
        if size < to.size:
            raise OutputLostError(
                part.full_path, size, f"at least {to.size} bytes, as in the checkpoint", f"{size}"
            )
        keep = to.size if self._truncate else self._end_of_rows(to.size, size)
        self._digest = self._verified(to)
        self._digest.read_to(keep, part.read)
        part.truncate(keep)

    def _verified(self, to: _Prepared) -> FileDigest:
        """Return the digest of the part at the checkpoint's size. Raises OutputLostError if bytes differ."""
        digest = resumed(to.resume, whole=self._verify == "whole")
        verified_from = digest.size
        digest.read_to(to.size, self._part.read)
        if digest.value != to.digest:
            raise OutputLostError(
                self._part.full_path,
                to.size,
                f"content with digest {to.digest:016x} up to there, as in the checkpoint",
                f"{digest.value:016x}; verified from byte {verified_from}",
            )
        return digest

    def _end_of_rows(self, begin: int, end: int) -> int:
        """Return the end of the last complete row; a worker may have died in the middle of a row."""
        end_of_row = at = begin
        while at < end:
            block = self._part.read(at, min(limits.verify_read_bytes, end - at))
            if not block:
                break
            if b"\n" in block:
                end_of_row = at + block.rindex(b"\n") + 1
            at += len(block)
        return end_of_row

    def close(self) -> None:
        self._part.close()

    def counters(self) -> dict[str, int]:
        return {"bytes_out": self._digest.size}
