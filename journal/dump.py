"""`dos journal dump` and `grep`: one line per record of a file, an object or a chain."""

import re
from collections.abc import Callable

from journal.core.inspection import Located
from journal.core.rendering import as_json
from journal.inspecting import Consumer
from journal.ops import Op


def dumper(
    write: Callable[[str], object],
    render: Callable[[Located], str],
    *,
    begin: int = 0,
    end: int | None = None,
    wanted: Callable[[Located], bool] = lambda _: True,
) -> Consumer:
    """Return a consumer that writes one line for each wanted record that begins in [begin, end).

    begin, end: logical offsets; None for no end. The consumer returns False when `end` is reached.
    """

    def consume(records: list[Located]) -> bool:
        lines = [
            render(located)
            for located in records
            if begin <= located.offset and (end is None or located.offset < end) and wanted(located)
        ]
        if lines:
            write("\n".join(lines) + "\n")
        return end is None or not records or records[-1].end < end

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
