"""The format `dos-merged`, which reads the replicas of a region at several sites: its options, offsets and
micro-batches.

A micro-batch (A, B] has exactly the rows with times above A, up to B. B is the time of a row that the *mark*
has passed: every later row has a later time. Replicas give the same rows with the same times. So the rows of
(A, B] do not depend on the replica that gave them, on the order in which they came, or on the marks until
then; a query that is started again reads the same ones. docs/spark.md describes the options; `dataflow`
checks those of `read_merged`.
"""

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkpoint import limits
from dos_protocol.names import check_name
from spark_integration.core.offsets import VERSION, BatchLimits, VersionedOffset, decode_offset
from spark_integration.core.options import (
    READ,
    STORE,
    ReaderOption,
    TokenOptions,
    names,
    one_of,
    parsed,
    positive_integer,
    seconds,
    text,
)
from spark_integration.core.row_filter import ColumnCondition
from spark_integration.errors import BadOptionError, MalformedOffsetError
from spark_integration.limits import MERGED_BATCH_BYTES

MERGED: Final = "dos-merged"


class OnMissing(StrEnum):
    """What follows if no replica that can be reached has all rows."""

    WAIT = "wait"
    ACCEPT = "accept"


class OnDifference(StrEnum):
    """What follows if replicas give different rows, or run different graphs."""

    STOP = "stop"
    DETACH = "detach"


class MergedOptions(TokenOptions, frozen=True, kw_only=True):
    """The options of a reader. sites: site -> URL of its store. schema: all columns of the sink."""

    sites: dict[str, str]
    region: str
    output: str
    schema: str
    time: tuple[str, ...] = ("at",)
    compare: str | int = 16
    on_missing: OnMissing = OnMissing.WAIT
    on_difference: OnDifference = OnDifference.STOP
    columns: tuple[str, ...] = ()
    filter: tuple[ColumnCondition, ...] = ()
    rows_max: int | None = None
    bytes_max: int = MERGED_BATCH_BYTES
    consumer: str = ""
    consumer_retain_s: float = limits.query_retain_s

    @property
    def what(self) -> str:
        return f"merged output {self.region}/{self.output}"

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.rows_max, self.bytes_max)


def _sites(name: str, value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in value.split():
        site, equals, url = one.partition("=")
        if not equals or not site or site in found:
            raise BadOptionError(
                f"option {name!r} must name each site once, as SITE=URL, not {one!r}",
                remedy="for example 'purdue=dos://p1,p2,p3 osu=dos://o1,o2,o3'",
            )
        found[site] = url
    if not found:
        raise BadOptionError(f"option {name!r} names no site")
    return found


def _compare(name: str, value: str) -> str | int:
    wanted = value.strip().lower()
    if wanted in ("all", "off"):
        return wanted
    if not wanted.isdecimal() or not int(wanted):
        raise BadOptionError(f"option {name!r} must be all, off, or a whole number from 1, not {value!r}")
    return int(wanted)


MERGED_OPTIONS: Final[dict[str, ReaderOption]] = {
    **STORE,
    "sites": ReaderOption("sites", _sites),
    "output": ReaderOption("output", text),
    "schema": ReaderOption("schema", text),
    "time": ReaderOption("time", names),
    "compare": ReaderOption("compare", _compare),
    "onMissing": ReaderOption("on_missing", one_of(OnMissing)),
    "onDifference": ReaderOption("on_difference", one_of(OnDifference)),
    **READ,
    "maxRowsPerTrigger": ReaderOption("rows_max", positive_integer),
    "maxBytesPerTrigger": ReaderOption("bytes_max", positive_integer),
    "consumer": ReaderOption("consumer", lambda name, value: check_name(text(name, value))),
    "consumerRetainSeconds": ReaderOption("consumer_retain_s", seconds),
}
"""Every option, as users write it."""

_REQUIRED: Final = {
    "sites": "the sites, each with the URL of its store",
    "output": "the sink of the region",
    "schema": "all columns of the sink",
}
_REMEDY: Final = (
    'for example .option("sites", "purdue=dos://p1,p2,p3 osu=dos://o1,o2,o3").option("output", "out")'
    '.option("schema", "at timestamp, load double").load("board.joined")'
)


def parse_merged(given: Mapping[str, str]) -> MergedOptions:
    """Parse the options passed to Spark. Raises BadOptionError, BadNameError."""
    fields = parsed(given, MERGED_OPTIONS, MERGED)
    region = fields.pop("path", None)
    if region is None:
        raise BadOptionError("no region was given: call .load(...) with its name", remedy=_REMEDY)
    if "://" in region:
        raise BadOptionError(
            f"{region} is a URL: .load(...) takes the name of the region, and the option 'sites' the URLs",
            remedy=_REMEDY,
        )
    for name, meaning in _REQUIRED.items():
        if name not in fields:
            raise BadOptionError(f"the option {name!r} is required: {meaning}", remedy=_REMEDY)
    return MergedOptions(region=region, **fields)


NOTHING_READ: Final = -(1 << 63)
"""The mark before any row."""


class MergedSubject(msgspec.Struct, frozen=True):
    """What an offset is of. what: region and sink; schema: all columns of the sink; time: its columns."""

    what: str
    schema: str
    time: tuple[str, ...]


class _MarkOffset(VersionedOffset, frozen=True):
    what: str
    schema: str
    time: tuple[str, ...]
    mark: int | None = msgspec.field(name="markUs")


#     {"version": 1, "what": "merged output board.joined/out", "schema": "at timestamp, load double",
#      "time": ["at"], "markUs": 1790000000000000}
#
# All rows up to `markUs`, microseconds since 1970, were read, and none above it; null: none was read. The
# other fields serve to refuse an offset of something else. The sites are not among them, because they may
# change.


def mark_offset(of: MergedSubject, mark: int) -> dict[str, Any]:
    """Return the offset as Spark stores it."""
    read = None if mark == NOTHING_READ else mark
    return {
        "version": VERSION,
        "what": of.what,
        "schema": of.schema,
        "time": list(of.time),
        "markUs": read,
    }


def mark_in(offset: Any, of: MergedSubject) -> int:
    """Return the mark of an offset of this output. Raises MalformedOffsetError."""
    found = decode_offset(offset, _MarkOffset, MERGED)
    if found.what != of.what:
        raise MalformedOffsetError(f"the offset is of {found.what}, but this query reads {of.what}")
    if found.schema != of.schema:
        raise MalformedOffsetError(f"the offset is of columns {found.schema}, but {of.what} has {of.schema}")
    if found.time != of.time:
        theirs, ours = ", ".join(found.time), ", ".join(of.time)
        raise MalformedOffsetError(f"the offset is of times in {theirs}, but the option 'time' is {ours}")
    return NOTHING_READ if found.mark is None else found.mark


Times = npt.NDArray[np.int64]
END_OF_TIME: Final = (1 << 63) - 1


class _Run(NamedTuple):
    """Rows in the order of their times."""

    times: Times
    rows: pa.RecordBatch

    def between(self, above: int, upto: int) -> "_Run":
        begin, end = np.searchsorted(self.times, [above, upto], side="right").tolist()
        return _Run(self.times[begin:end], self.rows.slice(begin, end - begin))


class RowsByTime:
    """Rows with times above `begin`. Those up to `mark` are complete: each is here, and once."""

    def __init__(self, begin: int) -> None:
        self.begin = self.mark = begin
        self.complete_bytes = 0
        self._above: list[_Run] = []
        """Rows above the mark."""
        self._complete: deque[_Run] = deque()
        """Rows up to the mark. All times of a run are later than those of the run before it."""

    def add(self, rows: pa.RecordBatch, times: Times) -> None:
        """Take rows, with the time of each, that are all above the mark."""
        order = np.argsort(times, kind="stable")
        if len(order):
            self._above.append(_Run(times[order], rows.take(pa.array(order))))

    def set_mark(self, mark: int) -> None:
        """Take the mark after these rows: it is the same, or higher."""
        assert mark >= self.mark
        parts, above = [], []
        for run in self._above:
            if run.times[0] <= mark:
                parts.append(run.between(self.mark, mark))
                run = run.between(mark, END_OF_TIME)
            if len(run.times):
                above.append(run)
        self._above, self.mark = above, mark
        if parts:
            self._append(parts)

    def _append(self, parts: list[_Run]) -> None:
        times = np.concatenate([part.times for part in parts])
        order = np.argsort(times, kind="stable")
        table = pa.Table.from_batches([part.rows for part in parts]).take(pa.array(order))
        at = 0
        for rows in table.combine_chunks().to_batches():
            self._complete.append(_Run(times[order[at : at + rows.num_rows]], rows))
            self.complete_bytes += rows.nbytes
            at += rows.num_rows

    def end_of_batch(self, above: int, limits: BatchLimits, *, upto: int = END_OF_TIME) -> int:
        """Return the end of the micro-batch after `above`, up to `upto`; `above` if there is no row."""
        end = above
        rows_left = END_OF_TIME if limits.rows is None else limits.rows
        bytes_left = float("inf") if limits.bytes is None else limits.bytes
        for whole in self._complete:
            run = whole.between(above, upto)
            rows = len(run.times)
            if not rows:
                continue
            row_bytes = whole.rows.nbytes / len(whole.times)
            fit = rows if row_bytes * rows <= bytes_left else int(bytes_left / row_bytes)
            fit = min(fit, rows, rows_left)
            if fit < rows:
                # Rows of one time are never divided, also if they are more than the limits: an offset is a
                # time, so the rest would be skipped.
                before = int(np.searchsorted(run.times, run.times[fit], side="left"))
                if before:
                    return int(run.times[before - 1])
                return int(run.times[fit]) if end == above else end
            end = int(run.times[-1])
            rows_left -= rows
            bytes_left -= row_bytes * rows
        return end

    def between(self, above: int, upto: int) -> list[pa.RecordBatch]:
        """Return the rows of a micro-batch, in the order of their times."""
        assert self.begin <= above <= upto <= self.mark, "what is outside is not here, or not complete"
        found = [run.between(above, upto).rows for run in self._complete]
        return [rows for rows in found if rows.num_rows]

    def release(self, upto: int) -> None:
        """Drop the rows up to a time, which are not asked for again."""
        self.begin = max(self.begin, upto)
        while self._complete and self._complete[0].times[0] <= upto:
            run = self._complete.popleft()
            self.complete_bytes -= run.rows.nbytes
            left = run.between(upto, END_OF_TIME)
            if len(left.times):
                self._complete.appendleft(left)
                self.complete_bytes += left.rows.nbytes
                return
