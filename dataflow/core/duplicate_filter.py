"""Pass each row of several replicas of a stream once, whichever replica gives it first. Pure.

Hwang, Cetintemel, Zdonik, "Fast and Highly-Available Stream Processing over Wide Area Networks", IV-B,
algorithm 1. A *stream* is the output of one replica; all give the same multiset of rows, known by their
digests, in any order. A *mark* of a stream promises that no later row of it has that time or an earlier one.
`mark` of the filter, M, is the greatest mark of any stream that has given everything up to it: a copy of a
row up to M is dropped by its time alone, so only digests of later rows are kept. Rules F1 to F3 stand at the
methods.

Digests are in buckets by time, which are dropped as M passes them. Each bucket numbers its digests, so a
batch costs one look-up in a dict for each row, and about twenty operations on whole arrays.
"""

import struct
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dataflow.core.event_time import IDLE
from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError

DIGEST: Final = np.dtype("V16")
"""The digest of a row, as an element of an array."""
RANKED_EVERY: Final = 16
"""The ranks of rows, which say what a stream is worth, are counted in one of so many batches of it."""
BEFORE_ALL: Final = -(1 << 63)
"""The mark before any row: no time is at or below it."""

_Counts = npt.NDArray[np.int64]
"""The copies of each row of a bucket, by its number in the bucket."""


class FilterState(NamedTuple):
    """What a checkpoint keeps of a filter: M, and how many copies of each later row were passed."""

    mark: int
    buckets: npt.NDArray[np.int64]
    digests: npt.NDArray[Any]
    copies: npt.NDArray[np.int64]

    @classmethod
    def at(cls, mark: int) -> "FilterState":
        """Return a state with this M, of which no later row was passed."""
        return cls(mark, np.zeros(0, np.int64), np.zeros(0, DIGEST), np.zeros(0, np.int64))


class Missing(NamedTuple):
    """No stream is whole: rows with a time above `above`, up to `upto`, may be on none of them."""

    above: int
    upto: int


@dataclass(slots=True)
class _Stream:
    """One stream. `marks`: of each of its logs, None before the first."""

    base: int
    marks: dict[str, int | None]
    taken: int = 0
    ranks: _Counts = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def mark(self) -> int | None:
        found = [mark for mark in self.marks.values() if mark is not None]
        if len(found) < len(self.marks):
            return None
        return min((mark for mark in found if mark != IDLE), default=None)


class _Bucket:
    """The rows of a range of times. `passed`: copies passed on; `counts`: copies that each stream gave."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self.passed: _Counts = np.zeros(0, np.int64)
        self.counts: dict[str, _Counts] = {}

    def restore(self, digests: npt.NDArray[Any], copies: _Counts) -> None:
        """Take over what a checkpoint kept. The bucket is new."""
        self._numbers_of(digests)
        self.passed = np.array(copies)

    def _numbers_of(self, digests: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the number of each digest. One that was not here yet gets the next number."""
        rows = digests.tolist()
        try:  # all are known, if another stream gave them before: then there is no loop in Python
            return np.fromiter(map(self.numbers.__getitem__, rows), np.int64, len(rows))
        except KeyError:
            number_of = self.numbers.setdefault
            return np.array([number_of(row, len(self.numbers)) for row in rows], np.int64)

    def take(
        self, stream: str, digests: npt.NDArray[Any], ranks: _Counts | None = None
    ) -> npt.NDArray[np.bool_]:
        """Count rows of a stream; return which are passed on. ranks: element n gets the rows that n streams
        had given.
        """
        # F1: a row above M counts for its stream. It is passed if the stream has now given more copies of it
        # than were passed, so a row with m copies is passed m times, by whichever streams are first. Copies
        # within the batch are put beside each other: the first of a run has the count of the stream plus 1,
        # the second plus 2.
        numbers = self._numbers_of(digests)
        self.passed = _grown(self.passed, len(self.numbers))
        counts = self.counts[stream] = _grown(self.counts.get(stream, self.passed[:0]), len(self.passed))
        order = np.argsort(numbers, kind="stable")
        rows, places = numbers[order], np.arange(len(numbers))
        begins = places.copy()
        begins[1:][rows[1:] == rows[:-1]] = 0
        given = counts[rows] + 1 + places - np.maximum.accumulate(begins)
        before = self.passed[rows]
        if ranks is not None:
            others = [
                _grown(other, len(self.passed)) for name, other in self.counts.items() if name != stream
            ]
            earlier = np.zeros(len(rows), np.int64)
            for other in others:
                earlier += other[rows] >= given
            ranks += np.bincount(earlier, minlength=len(ranks))[: len(ranks)]
        passes = np.empty(len(rows), np.bool_)
        passes[order] = given > before
        counts[rows] = given  # of the copies of one row, the last one is stored
        self.passed[rows] = np.maximum(given, before)
        return passes


def _grown(counts: _Counts, size: int) -> _Counts:
    if len(counts) >= size:
        return counts
    return np.concatenate([counts, np.zeros(max(size, 2 * len(counts)) - len(counts), np.int64)])


class DuplicateFilter:
    """The filter of one input. width: of a bucket, in units of time; a few should fit between two marks.

    Memory: a digest and two numbers for each different row above M, and for each stream that gave it.
    """

    def __init__(self, width: int, state: FilterState | None = None) -> None:
        assert width > 0
        self.mark = BEFORE_ALL
        self._width = width
        self._buckets: defaultdict[int, _Bucket] = defaultdict(_Bucket)
        self._streams: dict[str, _Stream] = {}
        if state is not None:
            self.mark = state.mark
            for bucket in np.unique(state.buckets).tolist():
                rows = state.buckets == bucket
                self._buckets[bucket].restore(state.digests[rows], state.copies[rows])

    def state(self) -> FilterState:
        """Return the state for a checkpoint. The streams are not part of it: each joins again."""
        kept = sorted(self._buckets.items())
        sizes = [len(bucket.numbers) for _, bucket in kept]
        return FilterState(
            self.mark,
            np.repeat(np.array([number for number, _ in kept], np.int64), sizes),
            np.frombuffer(b"".join(b"".join(bucket.numbers) for _, bucket in kept), DIGEST),
            np.concatenate(
                [np.zeros(0, np.int64), *(bucket.passed[: len(bucket.numbers)] for _, bucket in kept)]
            ),
        )

    # --- streams --------------------------------------------------------------------------------------------

    def join(self, stream: str, logs: Collection[str], base: int = BEFORE_ALL) -> None:
        """Begin to read a stream (anew). logs: all of its layout. base: everything above it is read from now
        on.
        """
        # F3: a stream that is read anew forgets its counts, and may lack rows up to its base. Its rows count
        # at once: what it lacks makes its counts lower, and never passes a copy too many. Its marks count
        # once M reaches the base.
        self.leave(stream)
        self._streams[stream] = _Stream(base, dict.fromkeys(logs))

    def leave(self, stream: str) -> None:
        self._streams.pop(stream, None)
        for bucket in self._buckets.values():
            bucket.counts.pop(stream, None)

    def is_whole(self, stream: str) -> bool:
        """Return whether a stream has, or has given, all rows above M."""
        return self._streams[stream].base <= self.mark

    def mark_of(self, stream: str) -> int | None:
        """Return the mark of a stream: the least of all its logs, None before each has one."""
        return self._streams[stream].mark

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
        one.taken += 1
        ranks = None
        if one.taken % RANKED_EVERY == 1:
            one.ranks = ranks = _grown(one.ranks, len(self._streams))
            self._rank_passed(stream, times, ranks)
        passes = np.zeros(len(times), np.bool_)
        (rows,) = np.nonzero(times > self.mark)
        if not len(rows):
            return passes
        buckets = times[rows] // self._width
        order = np.argsort(buckets, kind="stable")
        rows, buckets = rows[order], buckets[order]
        changes = np.flatnonzero(buckets[1:] != buckets[:-1]) + 1
        for begin, end in pairwise([0, *changes.tolist(), len(rows)]):
            part = rows[begin:end]
            passes[part] = self._buckets[int(buckets[begin])].take(stream, digests[part], ranks)
        return passes

    def _rank_passed(self, stream: str, times: npt.NDArray[np.int64], ranks: _Counts) -> None:
        """Rank the rows up to M: a stream whose mark has passed a row has given it before."""
        passed = times[times <= self.mark]
        earlier = np.zeros(len(passed), np.int64)
        for name, other in self._streams.items():
            if name != stream and other.mark is not None:
                earlier += passed <= other.mark
        ranks += np.bincount(earlier, minlength=len(ranks))[: len(ranks)]

    def take_ranks(self) -> dict[str, tuple[int, ...]]:
        """Return stream -> how many of the rows looked at it gave first, second, and so on, since the last
        call.
        """
        found = {name: tuple(one.ranks.tolist()) for name, one in self._streams.items()}
        for one in self._streams.values():
            one.ranks = np.zeros(0, np.int64)
        return found

    def set_mark(self, stream: str, log: str, mark: int) -> bool:
        """Take the mark of a log, after all rows before it, never a lower one. Return whether M has risen."""
        # F2: the mark of a stream is the least of its logs that are not IDLE. M is the greatest mark of the
        # streams that are whole: those whose base is at or below M. M only rises, or a row would be passed
        # again.
        marks = self._streams[stream].marks
        before = marks[log]
        marks[log] = mark if before is None or IDLE in (mark, before) else max(mark, before)
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
        for bucket in [one for one in self._buckets if (one + 1) * self._width - 1 <= mark]:
            del self._buckets[bucket]


# --- the bytes of a state -----------------------------------------------------------------------------------
#
# The state of a duplicate filter as bytes, for records and tokens. Pure.
#
# | bytes | content |
# |---|---|
# | 4 | `DOSM` |
# | 1 | version, 1 |
# | 8 | the mark, signed |
# | 4 | n, the number of rows that differ |
# | 8 n, 16 n, 8 n | buckets, digests, copies |
# | 8 | the digest of all before |
#
# Numbers are little-endian, as numpy writes them on the machines that are supported; the digest is
# big-endian.

_HEAD: Final = struct.Struct("<4sBqI")
_MAGIC: Final = b"DOSM"
_VERSION: Final = 1
_CHECK: Final = struct.Struct(">Q")
_ROW_BYTES: Final = 32


def encode_filter(state: FilterState) -> bytes:
    arrays = (state.buckets.astype("<i8"), state.digests, state.copies.astype("<i8"))
    head = _HEAD.pack(_MAGIC, _VERSION, state.mark, len(state.buckets))
    body = head + b"".join(one.tobytes() for one in arrays)
    return body + _CHECK.pack(digest64(body))


def decode_filter(data: bytes, *, where: str) -> FilterState:
    """Return the state in bytes that `encode_filter` made. Raises CorruptDataError, which names `where`."""
    if len(data) < _HEAD.size + _CHECK.size:
        raise CorruptDataError(where, 0, "the state of a filter", f"{len(data)} bytes")
    magic, version, mark, rows = _HEAD.unpack_from(data)
    body, (check,) = data[: -_CHECK.size], _CHECK.unpack(data[-_CHECK.size :])
    if magic != _MAGIC or version != _VERSION:
        expected = f"the state of a filter of version {_VERSION}"
        raise CorruptDataError(where, 0, expected, f"{magic!r} of version {version}")
    if len(body) != _HEAD.size + rows * _ROW_BYTES or digest64(body) != check:
        raise CorruptDataError(where, 0, f"a filter of {rows} rows with its digest", f"{len(data)} bytes")
    at = _HEAD.size
    buckets = np.frombuffer(body, "<i8", rows, at).astype(np.int64)
    digests = np.frombuffer(body, DIGEST, rows, at + 8 * rows)
    copies = np.frombuffer(body, "<i8", rows, at + 24 * rows).astype(np.int64)
    return FilterState(mark, buckets, digests, copies)
