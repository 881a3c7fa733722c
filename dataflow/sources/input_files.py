"""Where the files of a source are, and their bytes by position: on the hosts of workers, or in a bucket.

A position in a gzip file refers to the decompressed content: reading from it decompresses everything before
it again. An object of a bucket is complete when it appears, and never changes; it can be replaced by another
one, which has another version (ETag). Each request after the first names the version of the bytes before
(`If-Match`), also after a restore, so bytes of two versions are never combined.
"""

import errno
import glob
import io
import logging
import os
import re
import stat
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import ClassVar, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from dataflow import limits
from dataflow.buckets import service_errors
from dataflow.errors import (
    InputChangedError,
    InputGoneError,
    InputReadError,
    InputUnavailableError,
    SchemaError,
)
from dos_protocol.errors import encodable
from journal import ArchiveNotFoundError, ArchiveUnavailableError
from journal.archive.bucket import SCHEME, Bucket, ListedObject, ObjectPart, S3Url, parse_s3_url

logger = logging.getLogger("dos.dataflow")

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
"""One path, pattern or URL, or several."""

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_ENDPOINT: Final = "?endpoint="


class InputPaths(NamedTuple):
    """The input of a source: paths on hosts, or URLs of a service without their endpoint, so that it may
    move.
    """

    entries: list[str]
    endpoint: str | None


def paths_of(given: Paths) -> list[str]:
    entries = [given] if isinstance(given, (str, os.PathLike)) else given
    return [os.fspath(entry) for entry in entries]


def is_url(path: str) -> bool:
    return path.startswith(SCHEME)


def input_paths(given: Paths, endpoint: str | None) -> InputPaths:
    """Check paths or URLs. A URL may end with ?endpoint=URL; `endpoint` has priority. Raises SchemaError for
    a mixture, and for URLs that are not of buckets; BadUrlError.
    """
    entries = paths_of(given)
    wrong = [entry for entry in entries if _URL.match(entry) and not is_url(entry)]
    if wrong:
        raise SchemaError(
            f"{wrong[0]!r} is neither a path nor the URL of a bucket",
            remedy="write a path without file://, and URLs of objects as s3://BUCKET/KEY, as text: pathlib"
            " changes URLs",
        )
    urls = [entry for entry in entries if is_url(entry)]
    if not urls:
        if endpoint is not None:
            raise SchemaError("endpoint is the service of a bucket, and the input has no URL s3://BUCKET/KEY")
        return InputPaths(entries, None)
    if len(urls) < len(entries):
        local = next(entry for entry in entries if not is_url(entry))
        raise SchemaError(f"{local!r} is a path and {urls[0]!r} a URL; use one source for each")
    found, endpoints = [], set[str | None]()
    for url in urls:
        place, _, service = url.partition(_ENDPOINT)
        bucket = place.removeprefix(SCHEME).partition("/")[0]
        parameter = _ENDPOINT + service if service else ""
        endpoints.add(parse_s3_url(f"{SCHEME}{bucket}{parameter}", endpoint).endpoint)
        found.append(place)
    if len(endpoints) > 1:
        raise SchemaError(f"one source reads from one service, not from {sorted(map(str, endpoints))}")
    return InputPaths(found, endpoints.pop())


def end_path(until: "str | os.PathLike[str]", first: str) -> str:
    """Return where the end of an input appears; `first` is one path. Raises SchemaError, BadUrlError."""
    end = input_paths(until, None).entries[0]
    if is_url(end) != is_url(first):
        raise SchemaError(f"until={end!r} and the input {first!r} must both be paths, or both be URLs")
    return end if is_url(end) else os.path.abspath(end)  # noqa: PTH100 - the path need not exist here


GZIP_SUFFIX: Final = ".gz"
_CODECS: Final = {".bz2": "bz2", ".zst": "zstd"}
"""What pyarrow decompresses. `zlib` reads gzip: it tells padding from a file that is cut short."""
COMPRESSED: Final = (GZIP_SUFFIX, *_CODECS)
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_block_bytes: Final = 256 * 1024


class FileBytes(Protocol):
    """Reads an open file. `read` raises InputReadError; of an object also what `ObjectBytes.read` raises."""

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the file; None for an object, whose version each read verifies."""
        ...

    @property
    def stamp(self) -> tuple[int, int] | None:
        """Changes when the file is written: its size, and when it was; None for an object."""
        ...

    @property
    def version(self) -> str:
        """The version of an object, "" before the first read, and for a file on a host."""
        ...

    def read(self, position: int, count: int) -> bytes:
        """Return `count` bytes from `position`, fewer at the end. Going back may require reading from the
        beginning.
        """
        ...

    def size(self) -> int | None:
        """Return the number of bytes; None if only reading can determine it."""
        ...

    def close(self) -> None: ...


class StreamCutShortError(InputReadError):
    """A file ends within its compressed stream. It may still be in the process of being written."""

    remedy = "wait until the file is completely written, or repair it"


def decompressed(path: str, file: FileBytes) -> FileBytes:
    """Return the content of a file: decompressed if its name says that it is compressed."""
    if path.endswith(GZIP_SUFFIX):
        return GzipBytes(path, file)
    codec = next((codec for suffix, codec in _CODECS.items() if path.endswith(suffix)), None)
    return file if codec is None else StreamBytes(path, file, codec)


def open_regular(path: str) -> int:
    """Return a descriptor to read a regular file. Raises InputReadError."""
    try:
        # non-blocking, because opening a pipe could wait forever
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        text = f"input {path!r} cannot be opened: {error.strerror}"
        remedy = f"correct the path; {InputReadError.remedy}" if error.errno == errno.ENOENT else ""
        raise InputReadError(text, remedy=remedy or InputReadError.remedy) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InputReadError(
            f"input {path!r} is not a regular file, so it cannot be replayed from a position"
        )
    return fd


class PlainBytes:
    """The bytes as they are on disk."""

    version: Final = ""

    def __init__(self, path: str, fd: int) -> None:
        self._path, self._fd = path, fd

    @property
    def identity(self) -> tuple[int, int]:
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    @property
    def stamp(self) -> tuple[int, int]:
        status = os.fstat(self._fd)
        return status.st_size, status.st_mtime_ns

    def read(self, position: int, count: int) -> bytes:
        try:
            block = os.pread(self._fd, count, position)
            while len(block) < count and (
                more := os.pread(self._fd, count - len(block), position + len(block))
            ):
                block += more
        except OSError as error:
            raise InputReadError(
                f"input {self._path!r} cannot be read at byte {position}: {error.strerror}"
            ) from error
        return block

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class DecompressedBytes:
    """Decompresses while reading. Invariant: `_ahead` is the known content from position `_at` on."""

    def __init__(self, path: str, file: FileBytes) -> None:
        self._path, self._file = path, file
        self._rewind()

    @property
    def identity(self) -> tuple[int, int] | None:
        return self._file.identity

    @property
    def stamp(self) -> tuple[int, int] | None:
        return self._file.stamp

    @property
    def version(self) -> str:
        return self._file.version

    def _rewind(self) -> None:
        self._at, self._ahead = 0, bytearray()
        self._consumed = 0
        """Number of compressed bytes consumed."""
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Begin with the first stream of the file."""

    @abstractmethod
    def _decompress(self) -> bool:
        """Decompress some more in bounded pieces, whatever the ratio. Return whether there was more. Raises
        InputReadError.
        """

    def _unread(self, count: int) -> bytes:
        data = self._file.read(self._consumed, count)
        self._consumed += len(data)
        return data

    def read(self, position: int, count: int) -> bytes:
        if position < self._at:
            self._rewind()
        while True:
            skip = min(position - self._at, len(self._ahead))
            del self._ahead[:skip]
            self._at += skip
            if self._at == position and len(self._ahead) >= count:
                break
            if not self._decompress():
                break
        return bytes(self._ahead[:count]) if self._at == position else b""

    def is_complete(self) -> bool:
        """Return whether the file ends at the end of a stream; decompresses all of it."""
        # A damaged file counts as whole: reading it reports the damage.
        try:
            while self._decompress():
                self._at += len(self._ahead)
                self._ahead.clear()
        except StreamCutShortError:
            return False
        except InputReadError:
            return True
        return self._consumed > 0

    def size(self) -> None:
        """Return None: only reading can determine the size."""

    def close(self) -> None:
        self._file.close()


class GzipBytes(DecompressedBytes):
    """The content of a gzip file."""

    def _begin(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_WINDOW)
        self._in_stream = False
        """Whether the current stream has consumed any byte."""
        self._between = False
        """Whether a stream has ended and no further stream has started."""

    def _decompress(self) -> bool:
        data = self._stream.unconsumed_tail or self._stream.unused_data
        if self._stream.eof:
            self._stream = zlib.decompressobj(_GZIP_WINDOW)
            self._in_stream, self._between = False, True
        while not (data := data.lstrip(b"\0") if self._between else data):  # zero padding may follow a stream
            data = self._unread(_block_bytes)
            if not data:
                return self._ended()
        self._in_stream, self._between = True, False
        try:
            self._ahead += self._stream.decompress(data, _block_bytes)
        except zlib.error as error:
            raise InputReadError(
                f"input {self._path!r} is damaged gzip before byte {self._consumed} of the file: {error}",
                remedy="repair it, or rename it without .gz if it is not compressed",
            ) from error
        return True

    def _ended(self) -> bool:
        if self._in_stream:
            raise StreamCutShortError(
                f"input {self._path!r} ends within its gzip stream, at byte {self._consumed} of the file"
            )
        return False


class _Compressed(io.RawIOBase):
    """The bytes of a compressed file, as pyarrow reads them."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._read(size if size >= 0 else _block_bytes)


class StreamBytes(DecompressedBytes):
    """The content of a file that pyarrow decompresses."""

    def __init__(self, path: str, file: FileBytes, codec: str) -> None:
        self._codec = codec
        super().__init__(path, file)

    def _begin(self) -> None:
        self._stream = pa.CompressedInputStream(_Compressed(self._unread), self._codec)

    def _decompress(self) -> bool:
        try:
            data = self._stream.read(_block_bytes)
        except OSError as error:
            at = f"before byte {self._consumed} of the file"
            if "Truncated" in str(error):
                raise StreamCutShortError(
                    f"input {self._path!r} ends within its {self._codec} stream, {at}"
                ) from error
            raise InputReadError(
                f"input {self._path!r} is damaged {self._codec} {at}: {error}",
                remedy="repair it, or rename it if it is not compressed",
            ) from error
        self._ahead += data
        return bool(data)


class WatchedFiles(NamedTuple):
    """Files below the directory `root` that match `pattern`."""

    root: str
    pattern: str


class FileSeen(NamedTuple):
    """The status of a file. `identity` changes when it is written or replaced; of an object, its version."""

    size: int
    identity: tuple[int, int, int] | str


class FilePart(NamedTuple):
    """A file, or one of the `parts` of one: the row groups that begin in that share of its bytes. Its name is
    a path, which is absolute, or NUMBER.PARTS.MARK:PATH.
    """

    path: str
    number: int = 0
    parts: int = 1
    mark: int = 0
    """Identifies the content of the file: parts are read by several workers, which must find the same."""

    @property
    def name(self) -> str:
        return self.path if self.parts == 1 else f"{self.number}.{self.parts}.{self.mark:x}:{self.path}"

    def size(self, size: int) -> int:
        """Return about how many of the bytes of the file are in this part."""
        return (self.number + 1) * size // self.parts - self.number * size // self.parts


def part_of_name(name: str) -> FilePart:
    if name.startswith("/") or is_url(name):
        return FilePart(name)
    numbers, _, path = name.partition(":")
    number, parts, mark = numbers.split(".")
    return FilePart(path, int(number), int(parts), int(mark, 16))


class InputFiles(Protocol):
    """The files that one source can read. Methods block, and raise InputReadError, InputUnavailableError."""

    versioned: ClassVar[bool]
    """Whether each file has a version: it is complete when it appears, it can be replaced but not changed,
    and each read verifies the version.
    """

    def expand(self, entries: Sequence[str]) -> list[str]:
        """Return paths as they are, and for each pattern the paths that match, sorted."""
        ...

    def examine(self, path: str) -> FileSeen | None:
        """Return the status of a file that `expand` returned; None if it does not exist here."""
        ...

    def size_listed(self, path: str) -> int | None:
        """Return the size of a file that `expand` listed; None if it did not tell sizes."""
        ...

    def size(self, path: str) -> int | None:
        """Return the size of a file, None if it is not known, perhaps not yet. Does not wait for a service;
        errors are left to what reads the file.
        """
        ...

    def watched(self, entry: str) -> WatchedFiles:
        """Parse a path or pattern; a directory means all files in it. Raises SchemaError."""
        ...

    def listing(self, patterns: Sequence[WatchedFiles]) -> dict[str, FileSeen]:
        """Return the files that match, sorted by path. Names that begin with . or _ are skipped."""
        ...

    def open(self, path: str, version: str = "") -> FileBytes:
        """Open a file; a compressed one is decompressed, by its name. version: of the bytes that were read
        before, "" if none were. Reads of another version raise InputChangedError.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def check_access(self, path: str) -> None:
        """Raise an error if the place of a file does not exist or denies access; ConnectionError if unknown
        here.
        """
        ...

    def close(self) -> None:
        """Release what the files shared. They can be opened again."""
        ...


class OpenInputs:
    """The open files of one reader by name, least recently used first. At most `most` stay open."""

    def __init__(self, files: InputFiles, most: int) -> None:
        self._files, self._most = files, most
        self._open: dict[str, FileBytes] = {}

    def opened(self, name: str, path: str, version: str) -> FileBytes:
        """Return the open file of this name, and open it if it is not. As `InputFiles.open`."""
        file = self._open.pop(name, None)
        if file is None:
            file = self._files.open(path, version)
            if len(self._open) >= self._most:
                self.close(next(iter(self._open)))
        self._open[name] = file
        return file

    def close(self, name: str) -> None:
        if name in self._open:
            self._open.pop(name).close()

    def close_all(self) -> None:
        for name in [*self._open]:
            self.close(name)
        self._files.close()


class LocalFiles:
    """Files on the host of the worker."""

    versioned: ClassVar[bool] = False

    def expand(self, entries: Sequence[str]) -> list[str]:
        return [path for entry in entries for path in _expanded(entry)]

    def examine(self, path: str) -> FileSeen | None:
        return _status_of(path)

    def size_listed(self, path: str) -> None:
        """Return None: a size is known on the hosts of workers."""

    def size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size  # noqa: PTH116
        except OSError:
            return None

    def watched(self, entry: str) -> WatchedFiles:
        path = os.path.abspath(entry)  # noqa: PTH100 - text in, text out
        if os.path.isdir(path):  # noqa: PTH112
            return WatchedFiles(path, os.path.join(glob.escape(path), "*"))  # noqa: PTH118
        if not glob.has_magic(entry) and not os.path.exists(path):  # noqa: PTH110
            raise SchemaError(
                f"{path!r} that a FileSource watches does not exist; create it first, or name files that come"
                f" later by a pattern such as '{path}*'"
            )
        root = os.path.dirname(path)  # noqa: PTH120
        while glob.has_magic(root):
            root = os.path.dirname(root)  # noqa: PTH120
        if not os.path.isdir(root):  # noqa: PTH112
            raise SchemaError(f"directory {root!r} that a FileSource watches does not exist; create it first")
        return WatchedFiles(root, path)

    def listing(self, patterns: Sequence[WatchedFiles]) -> dict[str, FileSeen]:
        files: dict[str, FileSeen] = {}
        for root, pattern in patterns:
            if not os.path.isdir(root):  # noqa: PTH112
                raise InputReadError(f"input directory {root!r} no longer exists")
            for path in filter(_matching(pattern), glob.iglob(pattern, recursive=True)):  # noqa: PTH207
                if path not in files and not os.path.basename(path).startswith((".", "_")):  # noqa: PTH119
                    status = _status_of(path)
                    if status is not None:
                        files[_checked(path)] = status
        return dict(sorted(files.items()))

    def open(self, path: str, version: str = "") -> FileBytes:
        del version
        return decompressed(path, PlainBytes(path, open_regular(path)))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)  # noqa: PTH110

    def check_access(self, path: str) -> None:
        """Do nothing: the driver need not see the files of workers."""

    def close(self) -> None:
        """Do nothing: each file holds its own descriptor."""


def _expanded(entry: str) -> list[str]:
    path = os.path.abspath(entry)  # noqa: PTH100 - a string in and out; the file need not exist here
    found = [path]
    if glob.has_magic(entry):
        found = [*filter(_matching(path), glob.iglob(path, recursive=True))]  # noqa: PTH207
    if not glob.has_magic(entry) and os.path.isdir(path):  # noqa: PTH112
        raise SchemaError(f"{path!r} is a directory; write '{path}/*' for its files, or pass watch=True")
    if bad := [path for path in found if encodable(path) != path]:
        raise SchemaError(f"the name of input {bad[0]!r} is not UTF-8; rename the file, or move it away")
    return sorted(found)


def _checked(path: str) -> str:
    """Return the path. Raises InputReadError if it is not UTF-8: a checkpoint could not name it."""
    if encodable(path) != path:
        raise InputReadError(
            f"the name of input {path!r} is not UTF-8", remedy="rename the file, or move it away"
        )
    return path


def _status_of(path: str) -> FileSeen | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None  # removed since it was listed
    except OSError as error:
        raise InputReadError(f"input {path!r} cannot be examined: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileSeen(status.st_size, (status.st_dev, status.st_ino, status.st_mtime_ns))


_MAGIC: Final = re.compile(r"[*?\[]")
_REPLACED_REMEDY: Final = (
    "restore that version of the object, or start the region under a new name; write new lines into an object"
    " with another name"
)


def input_files(path: str, endpoint: str | None) -> InputFiles:
    """Return where a source reads whose first path is `path`."""
    return BucketFiles(endpoint) if is_url(path) else LocalFiles()


def check_version(path: str, position: int, expected: str, found: str) -> None:
    """Raise InputChangedError if an object has another version than the one that was read."""
    if expected != found:
        raise InputChangedError(
            path, position, f"the object {expected}", f"another one, {found}", remedy=_REPLACED_REMEDY
        )


class BucketFiles:
    """The objects of one service, as one source of one worker reads them."""

    versioned: ClassVar[bool] = True

    def __init__(self, endpoint: str | None) -> None:
        self._endpoint = endpoint
        self._buckets: dict[str, Bucket] = {}
        self._expanded: dict[str, FileSeen] = {}
        self._sizes: dict[str, Future[int | None]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._sizing: ThreadPoolExecutor | None = None
        self.open_count = 0

    def expand(self, entries: Sequence[str]) -> list[str]:
        found: list[str] = []
        for entry in entries:
            if glob.has_magic(entry):
                matching = {path: FileSeen(one.size, one.version) for path, one in self._matching(entry)}
                self._expanded |= matching
                found += sorted(matching)
            elif entry.endswith("/") or "/" not in entry.removeprefix(SCHEME):
                raise SchemaError(f"{entry!r} names no object; write {entry.rstrip('/')}/* for all below it")
            else:
                found.append(entry)
        return found

    def examine(self, path: str) -> FileSeen | None:
        if path in self._expanded:
            return self._expanded[path]
        bucket, key = self._located(path)
        with _requests_to(bucket.url):
            found = next(bucket.objects(key, most=1), None)
        return FileSeen(found.size, found.version) if found is not None and found.key == key else None

    def size_listed(self, path: str) -> int | None:
        return self._expanded[path].size if path in self._expanded else None

    def size(self, path: str) -> int | None:
        if path not in self._sizes:
            # One thread of its own, and one request for each object: reading does not wait for them.
            if self._sizing is None:
                self._sizing = ThreadPoolExecutor(1, thread_name_prefix="dos-s3-size")
            self._sizes[path] = self._sizing.submit(self._size_of, path)
        asked = self._sizes[path]
        return asked.result() if asked.done() else None

    def _size_of(self, path: str) -> int | None:
        bucket, key = self._located(path)
        try:
            with _requests_to(bucket.url):
                head = bucket.head(key)
        except (InputReadError, InputUnavailableError) as error:
            logger.info("the backlog is not known: %s", error)
            return None
        return None if head is None else head[0]

    def watched(self, entry: str) -> WatchedFiles:
        root = entry.rstrip("/")
        return WatchedFiles(root, entry if glob.has_magic(entry) else f"{root}/*")

    def listing(self, patterns: Sequence[WatchedFiles]) -> dict[str, FileSeen]:
        files: dict[str, FileSeen] = {}
        for _, pattern in patterns:
            for path, found in self._matching(pattern):
                if not path.rpartition("/")[2].startswith((".", "_")):
                    files[path] = FileSeen(found.size, found.version)
        return dict(sorted(files.items()))

    def _matching(self, pattern: str) -> Iterator[tuple[str, ListedObject]]:
        bucket, key_pattern = self._located(pattern)
        magic = _MAGIC.search(key_pattern)
        prefix = key_pattern[: magic.start()] if magic else key_pattern
        rest = key_pattern[len(prefix) :]
        parts = key_pattern.split("/")
        with _requests_to(bucket.url):
            for found in bucket.objects(prefix, direct="/" not in rest and "**" not in rest):
                if _matches(found.key.split("/"), parts):
                    yield bucket.url_of(found.key), found

    def open(self, path: str, version: str = "") -> FileBytes:
        bucket, key = self._located(path)
        return decompressed(path, ObjectBytes(self, bucket, key, version))

    def exists(self, path: str) -> bool:
        bucket, key = self._located(path)
        with _requests_to(bucket.url):
            return bucket.version(key) is not None

    def check_access(self, path: str) -> None:
        bucket, key = self._located(path)
        prefix = _MAGIC.split(key)[0]
        with _requests_to(bucket.url):
            try:
                list(bucket.objects(prefix, most=1))
            except ArchiveUnavailableError as error:  # workers retry, as for every input that is not up yet
                raise ConnectionError(str(error)) from error

    def _located(self, path: str) -> tuple[Bucket, str]:
        name, _, key = path.removeprefix(SCHEME).partition("/")
        if name not in self._buckets:
            self._buckets[name] = Bucket(S3Url(name, (), self._endpoint))
        return self._buckets[name], key

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads that read ahead."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(limits.object_reads_ahead, thread_name_prefix="dos-s3-read")
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        if self._sizing is not None:
            self._sizing.shutdown(wait=False, cancel_futures=True)
            self._sizing = None
            self._sizes = {path: asked for path, asked in self._sizes.items() if not asked.cancelled()}


class ObjectBytes:
    """The bytes of one object. Invariant: `_block` holds its bytes from `_begin` on."""

    # Requests grow while an object is read in order, and the next is made by another thread meanwhile.
    identity: Final = None
    stamp: Final = None

    def __init__(self, files: BucketFiles, bucket: Bucket, key: str, version: str) -> None:
        self._files, self._bucket, self._key = files, bucket, key
        self.version = version
        self._size: int | None = None
        self._restart(0)
        files.open_count += 1

    def _restart(self, position: int) -> None:
        self._begin, self._block = position, b""
        self._length = limits.object_read_bytes_min
        self._ahead: Future[ObjectPart | None] | None = None

    def read(self, position: int, count: int) -> bytes:
        """As `FileBytes.read`. Raises InputChangedError if the object was replaced, InputGoneError if it was
        deleted; InputUnavailableError; InputReadError if there never was an object.
        """
        if not self._begin <= position <= self._begin + len(self._block):
            self._restart(position)
        while not self._has(position + count):
            self._extend(position)
        at = position - self._begin
        return self._block[at : at + count]

    def _has(self, end: int) -> bool:
        known = self._begin + len(self._block)
        return known >= end or (self._size is not None and known >= self._size)

    def _extend(self, position: int) -> None:
        """Drop what precedes the position and append the next part."""
        end = self._begin + len(self._block)
        ahead, self._ahead = self._ahead, None
        with _requests_to(self._bucket.url):
            try:
                if ahead is not None:
                    part = ahead.result()
                else:
                    part = self._bucket.part(self._key, end, self._length, self.version)
            except ArchiveNotFoundError as error:
                if not self.version or "NoSuchBucket" in error.args[0]:
                    raise
                raise InputGoneError(self._bucket.url_of(self._key), position) from error
        if part is None:
            check_version(self._bucket.url_of(self._key), position, self.version, "of another version")
            raise AssertionError("unreachable: the versions differ")
        self.version, self._size = part.version, part.size
        self._block = self._block[position - self._begin :] + part.data
        self._begin = position
        in_order = self._length > limits.object_read_bytes_min  # not the first request at this place
        self._length = min(2 * self._length, self._length_max())
        if in_order and not self._has(part.size):
            at = self._begin + len(self._block)
            get = partial(self._bucket.part, self._key, at, self._length, self.version)
            self._ahead = self._files.pool().submit(get)

    def _length_max(self) -> int:
        share = limits.object_buffer_bytes_max // (2 * self._files.open_count)  # a block, and the one ahead
        return max(limits.object_read_bytes_min, min(limits.object_read_bytes_max, share))

    def size(self) -> int | None:
        return self._size

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
        self._restart(0)
        self._files.open_count -= 1


def _matching(pattern: str) -> Callable[[str], bool]:
    parts = pattern.split("/")
    return lambda path: _matches(path.split("/"), parts)


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a pattern, as `glob` matches them; also names that
    begin with _ are matched only by a part that does.
    """
    if not patterns:
        return not names
    if patterns[0] == "**" and len(patterns) == 1:
        return bool(names) and all(map(_is_shown, names))
    if patterns[0] == "**" and _matches(names, patterns[1:]):
        return True
    if not names:
        return False
    if patterns[0] == "**":
        return _is_shown(names[0]) and _matches(names[1:], patterns)
    shown = _is_shown(names[0]) or patterns[0].startswith((".", "_")) or names[0] == patterns[0]
    return shown and fnmatchcase(names[0], patterns[0]) and _matches(names[1:], patterns[1:])


def _is_shown(name: str) -> bool:
    # As in Spark: a directory _NAME has files that are not committed, _NAME=VALUE is a partition.
    return bool(name) and not (name[0] == "." or (name[0] == "_" and "=" not in name))


@contextmanager
def _requests_to(url: S3Url) -> Iterator[None]:
    """Translate errors of the bucket into those of sources."""
    try:
        with service_errors(url, InputUnavailableError, "a source needs GetObject and ListBucket"):
            yield
    except ArchiveNotFoundError as error:
        raise InputReadError(
            f"no such bucket or object: {error.args[0]}",
            remedy=f"create the bucket {url.bucket!r} or the object, or correct the URL of the source",
        ) from error
