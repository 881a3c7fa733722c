"""Pass each row of several replicas of a stream once, whichever replica gives it first. Pure.

Hwang, Cetintemel, Zdonik, "Fast and Highly-Available Stream Processing over Wide Area Networks", section
IV-B, algorithm 1. A *stream* here is the output of one replica. All replicas give the same multiset of rows
with their times, in any order. A row is known by its digest, of 16 bytes; the same row may occur several
times.

A stream gives *marks* too: no later row of it has that time or an earlier one. `mark` of the filter, M, is
the greatest mark of any stream that has given everything up to it. All rows up to M have been passed, so any
other copy of them is dropped by its time alone, and only digests of later rows are kept. The rules:

    F1   a row above M counts for its stream. If the stream has now given more copies of it than were passed,
         it is passed. So a row with m copies is passed m times, by whichever streams are first
    F2   the mark of a stream is the least mark of all of its logs. M is the greatest mark of the streams that
         are *whole*: those whose base is at or below M. M only rises
    F3   a stream *joins* where a reader begins to read it anew, for whatever reason. It forgets its counts,
         and has a *base*: it may lack rows up to there. Its rows count at once: what it lacks makes its
         counts lower, and never passes a copy too many. Its marks count only once M has reached the base. The
         reader skips what has no row above M, and gives the last mark in what it skipped

Deleting a digest needs no search: digests are kept in buckets by time, which are dropped as M passes them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

DIGEST: Final = np.dtype("V16")
"""The digest of a row, as an element of an array."""
BEFORE_ALL: Final = -(1 << 63)
"""The mark before any row: no time is at or below it."""

_Counts = dict[int, dict[bytes, int]]
"""Bucket -> digest -> copies."""


class FilterState(NamedTuple):
    """What a checkpoint keeps of a filter: M, and how many copies of each later row were passed.

    buckets, digests, copies: of one length, one element for each row that differs.
    """

    mark: int
    buckets: npt.NDArray[np.int64]
    digests: npt.NDArray[Any]
    copies: npt.NDArray[np.int64]


class Missing(NamedTuple):
    """No stream is whole: rows with a time above `above`, up to `upto`, may be on none of them."""

    above: int
    upto: int


@dataclass(slots=True)
class _Stream:
    """One stream. `marks`: of each of its logs, None before the first."""

    base: int
    marks: dict[str, int | None]
    counts: _Counts = field(default_factory=dict)
    passed: int = 0

    @property
    def mark(self) -> int | None:
        found = [mark for mark in self.marks.values() if mark is not None]
        return min(found) if found and len(found) == len(self.marks) else None


class DuplicateFilter:
    """The filter of one input. width: the length of a bucket in units of time; a few buckets should fit
    between two marks.

    Memory: a digest and two numbers for each different row above M, and for each stream that gave it.
    """

    def __init__(self, width: int, state: FilterState | None = None) -> None:
        assert width > 0
        self.mark = BEFORE_ALL
        self._width = width
        self._passed: _Counts = {}
        self._streams: dict[str, _Stream] = {}
        if state is not None:
            self.mark = state.mark
            rows = zip(state.buckets.tolist(), state.digests.tolist(), state.copies.tolist(), strict=True)
            for bucket, digest, copies in rows:
                self._passed.setdefault(bucket, {})[digest] = copies

    def state(self) -> FilterState:
        """Return the state for a checkpoint. The streams are not part of it: each joins again."""
        rows = [
            (bucket, digest, copies)
            for bucket, passed in sorted(self._passed.items())
            for digest, copies in passed.items()
        ]
        buckets, digests, copies = zip(*rows, strict=True) if rows else ((), (), ())
        joined = b"".join(digests)
        return FilterState(
            self.mark,
            np.array(buckets, np.int64),
            np.frombuffer(joined, DIGEST),
            np.array(copies, np.int64),
        )

    # --- streams --------------------------------------------------------------------------------------------

    def join(self, stream: str, logs: Collection[str], base: int = BEFORE_ALL) -> None:
        """Begin to read a stream, or begin anew. logs: all logs of its layout, also those that are not there
        yet. base: everything above it is read from now on.
        """
        self._streams[stream] = _Stream(base, dict.fromkeys(logs))

    def leave(self, stream: str) -> None:
        """Read a stream no more."""
        self._streams.pop(stream, None)

    def is_whole(self, stream: str) -> bool:
        """Return whether a stream has, or has given, all rows above M."""
        return self._streams[stream].base <= self.mark

    def mark_of(self, stream: str) -> int | None:
        """Return the mark of a stream: the least of all its logs, None before each has one."""
        return self._streams[stream].mark

    def passed_by(self) -> Mapping[str, int]:
        """Return stream -> how many rows it gave first since it joined."""
        return {name: stream.passed for name, stream in self._streams.items()}

    def missing(self) -> Missing | None:
        """Return what no stream has, if none is whole; None if there is one, or no stream at all."""
        bases = [stream.base for stream in self._streams.values()]
        return Missing(self.mark, min(bases)) if bases and min(bases) > self.mark else None

    def accept_loss(self) -> Missing | None:
        """Go on without what is missing, and return it: M becomes the least base."""
        missing = self.missing()
        if missing is not None:
            self._rise(missing.upto)
        return missing

    # --- rows and marks -------------------------------------------------------------------------------------

    def take(
        self, stream: str, digests: npt.NDArray[Any], times: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return which of these rows of a stream are to be passed on (F1)."""
        one = self._streams[stream]
        passes = np.zeros(len(times), np.bool_)
        (rows,) = np.nonzero(times > self.mark)
        if not len(rows):
            return passes
        buckets = times[rows] // self._width
        if buckets.min() != buckets.max():
            order = np.argsort(buckets, kind="stable")
            rows, buckets = rows[order], buckets[order]
        first = [*np.nonzero(np.diff(buckets, prepend=buckets[0] - 1))[0].tolist(), len(rows)]
        for begin, end in pairwise(first):
            bucket, part = int(buckets[begin]), rows[begin:end]
            counts, passed = one.counts.setdefault(bucket, {}), self._passed.setdefault(bucket, {})
            for row, digest in zip(part.tolist(), digests[part].tolist(), strict=True):
                count = counts[digest] = counts.get(digest, 0) + 1
                if count > passed.get(digest, 0):
                    passed[digest] = count
                    passes[row] = True
        one.passed += int(np.count_nonzero(passes))
        return passes

    def set_mark(self, stream: str, log: str, mark: int) -> bool:
        """Take the mark of a log, after all rows before it. Return whether M has risen (F2).

        A log whose marks go back joins again before.
        """
        marks = self._streams[stream].marks
        before = marks[log]
        marks[log] = mark if before is None else max(mark, before)
        return self._advance()

    def _advance(self) -> bool:
        risen = False
        while True:  # a rise makes other streams whole, whose marks count at once
            whole = [one.mark for one in self._streams.values() if one.base <= self.mark]
            highest = max((mark for mark in whole if mark is not None), default=self.mark)
            if highest <= self.mark:
                return risen
            self._rise(highest)
            risen = True

    def _rise(self, mark: int) -> None:
        self.mark = mark
        for kept in (self._passed, *(one.counts for one in self._streams.values())):
            for bucket in [one for one in kept if (one + 1) * self._width - 1 <= mark]:
                del kept[bucket]
