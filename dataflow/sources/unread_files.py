"""How much of the files of a source is started and unread: for `SourceReader.backlog_bytes`.

This file counts bytes and asks for sizes; it reads nothing. Sizes that only reading or a request can tell are
not known: those of gzip files, and of objects that no listing has shown.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from checkpoint import SplitPosition
from dataflow.core.file_digest import FileDigest
from dataflow.sources.file_dealing import DealtFiles
from dataflow.sources.input_files import GZIP_SUFFIX, FileSeen, is_url

_splits_counted_max: Final = 10_000
"""Splits of a worker's list that are visited to count what is unread: some milliseconds per second."""


@dataclass(slots=True)
class OpenSplit:
    """A split that was started and is not done. Invariant: `digest.size` is the position."""

    index: int
    name: str
    path: str
    digest: FileDigest
    begin: int
    """Start of the step's range in the split."""
    identity: tuple[int, int] | None = None
    """Device and inode of the file that was opened first."""
    version: str = ""
    """The version of the object that was read first."""


class UnreadFiles:
    """What is unread of one worker's part of a list of files. Each file is asked for its size once."""

    def __init__(self, files: DealtFiles, worker: int, workers: int) -> None:
        self._files = files
        self._worker, self._workers = worker, workers
        self._sizes: dict[str, int | None] = {}

    def count(self, started: int, reading: Iterable[OpenSplit]) -> int | None:
        """Return the number of bytes; None if the size of a file is not known, or the list is too long.

        started: so many splits of the list were started, of which `reading` are not done.
        """
        total = 0
        for split in reading:
            if (size := self._size(split.path)) is None:
                return None
            total += max(0, size - split.digest.size)
        splits = islice(self._files.splits_of(self._worker, self._workers), _splits_counted_max + 1)
        for index, (_, path) in enumerate(splits):
            if index == _splits_counted_max:
                return None
            if index >= started:
                if (size := self._size(path)) is None:
                    return None
                total += size
        return total

    def _size(self, path: str) -> int | None:
        if path not in self._sizes:
            self._sizes[path] = _size_of(path)
        return self._sizes[path]


def _size_of(path: str) -> int | None:
    if path.endswith(GZIP_SUFFIX) or is_url(path):
        return None
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return None  # reading reports it


def unread_of_listed(
    waiting: Iterable[str], listed: Mapping[str, FileSeen], at: Mapping[str, SplitPosition]
) -> int | None:
    """Return what is unread of the files `waiting`, as of their listing. None if one is a gzip file."""
    total = 0
    for path in waiting:
        if path.endswith(GZIP_SUFFIX):
            return None
        begin = at[path].position if path in at else 0
        total += max(0, listed[path].size - begin)
    return total
