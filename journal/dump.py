"""`dos journal dump` and `grep`: one line per record of a file, an object or a chain."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from journal.core.inspection import Located
from journal.core.rendering import as_json, as_text
from journal.core.timeline import wall_ms
from journal.inspecting import Consumer
from journal.ops import Op

Bound = int | datetime
"""A logical offset, or a time with a time zone."""


class Render(Protocol):
    """A function that formats a record as a line. `time_ms`: the wall clock; None to leave it out."""

    def __call__(self, located: Located, *, time_ms: int | None = None) -> str: ...


def as_line(located: Located, *, full: bool = False, time_ms: int | None = None) -> str:
    """Format a record as text, with its wall clock in UTC if `time_ms` is given."""
    if time_ms is None:
        return as_text(located, full=full)
    try:
        when = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (
        ValueError,
        OverflowError,
        OSError,
    ):  # a number that no calendar has, of a damaged or foreign record
        when = f"{time_ms}ms"
    return as_text(located, full=full, when=when)


def dumper(
    write: Callable[[str], object],
    render: Render,
    *,
    begin: Bound = 0,
    end: Bound | None = None,
    times: bool = False,
    wanted: Callable[[Located], bool] = lambda _: True,
) -> Consumer:
    """Return a consumer that writes one line for each wanted record in [begin, end); None for no end.

    A record that holds no wall clock has the time of the last one before it that does. `times`: show the
    times. The consumer returns False when `end` is reached.
    """
    now_ms: int | None = None

    def reached(bound: Bound, located: Located) -> bool:
        if isinstance(bound, int):
            return located.offset >= bound
        return now_ms is not None and now_ms >= bound.timestamp() * 1000

    def consume(records: list[Located]) -> bool:
        nonlocal now_ms
        lines, ended = [], False
        for located in records:
            clock = wall_ms(located.record)
            now_ms = clock if clock is not None else now_ms
            ended = end is not None and reached(end, located)
            if ended:
                break
            if reached(begin, located) and wanted(located):
                lines.append(render(located, time_ms=now_ms if times else None))
        if lines:
            write("\n".join(lines) + "\n")
        return not ended

    return consume


class RecordFilter:
    """A filter of records by operation and by a regular expression in one of their strings.

    op: None for any. A record without strings counts as one empty string. `found` counts the matches. Raises
    ValueError for an invalid pattern.
    """

    def __init__(self, pattern: str, op: Op | None = None) -> None:
        try:
            self._pattern = re.compile(pattern.encode("utf-8", "surrogateescape"))
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{pattern[:200]!r} is not a regular expression: {error}") from error
        self._op = op
        self.found = 0

    def __call__(self, located: Located) -> bool:
        record = located.record
        if self._op not in (None, record.op):
            return False
        found = any(self._pattern.search(string) for string in record.strings or (b"",))
        self.found += found
        return found


def json_page(
    pattern: str, *, begin: int = 0, count_max: int = 200, full: bool = False
) -> tuple[Consumer, list[str]]:
    """Return a consumer, and the list in which it collects the first `count_max` records that begin at or
    after a logical offset and match, each as JSON. Long strings are shortened unless `full`. Raises as
    `RecordFilter`.
    """
    wanted, found = RecordFilter(pattern), list[str]()

    def consume(records: list[Located]) -> bool:
        for located in records:
            if located.offset >= begin and len(found) < count_max and wanted(located):
                found.append(as_json(located, full=full))
        return len(found) < count_max

    return consume, found
