"""Objects of a bucket as input files: their list, and their bytes by ranged requests.

This file makes requests (through `journal.archive.bucket`) and translates their errors. `files.py` and
`directory.py` decide which bytes are read.

1. An object is complete when it appears, and never changes. It can be replaced by another one, which has
   another version (ETag).
2. Each request after the first one names the version of the bytes before (`If-Match`), also after a restore
   on another host. So bytes of two versions are never combined.
3. Requests begin where the reader is. Their sizes grow while an object is read in order, and the next request
   is made by another thread while the rows of the previous one are processed.
"""

import glob
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import ClassVar, Final

from dataflow import limits
from dataflow.buckets import service_errors
from dataflow.errors import (
    InputChangedError,
    InputGoneError,
    InputReadError,
    InputUnavailableError,
    SchemaError,
)
from dataflow.sources.file_bytes import FileBytes, decompressed
from dataflow.sources.input_files import FileSeen, InputFiles, LocalFiles, WatchedFiles
from dataflow.sources.paths import is_url
from journal import ArchiveNotFoundError, ArchiveUnavailableError
from journal.archive.bucket import Bucket, ListedObject, ObjectPart
from journal.archive.url import SCHEME, S3Url

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
        self._pool: ThreadPoolExecutor | None = None
        self.open_count = 0

    def expand(self, entries: Sequence[str]) -> list[str]:
        found: list[str] = []
        for entry in entries:
            if glob.has_magic(entry):
                found += sorted(path for path, _ in self._matching(entry))
            elif entry.endswith("/") or "/" not in entry.removeprefix(SCHEME):
                raise SchemaError(f"{entry!r} names no object; write {entry.rstrip('/')}/* for all below it")
            else:
                found.append(entry)
        return found

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
        """Yield the objects that match, in the order of their keys."""
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


class ObjectBytes:
    """The bytes of one object. Invariant: `_block` holds its bytes from `_begin` on."""

    identity: Final = None

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
        """Return whether the block reaches `end`, or the end of the object."""
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


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether the parts of a key match those of a pattern, as `glob` matches paths."""
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
    shown = _is_shown(names[0]) or patterns[0].startswith(".") or names[0] == patterns[0]
    return shown and fnmatchcase(names[0], patterns[0]) and _matches(names[1:], patterns[1:])


def _is_shown(name: str) -> bool:
    return bool(name) and not name.startswith(".")


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


__all__ = ["BucketFiles", "ObjectBytes", "check_version", "input_files"]
