"""`dos journal dump` and `grep`: one line a record, of a file, an object or a chain."""

import re
from collections.abc import Callable

from journal.core.inspection import Located
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
    """A consumer that writes the records that begin at logical offsets in [begin, end) and are wanted, one
    line each.
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
    """Whether a record is of that operation (None: any) and one of its strings holds a match of the pattern;
    a record without strings is as one empty string.

    Raises ValueError for a pattern that is none.
    """

    def __init__(self, pattern: str, op: Op | None = None) -> None:
        try:
            self._pattern = re.compile(pattern.encode("utf-8", "surrogateescape"))
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        self._op = op
        self.found = 0

    def __call__(self, located: Located) -> bool:
        record = located.record
        if self._op not in (None, record.op):
            return False
        found = any(self._pattern.search(string) for string in record.strings or (b"",))
        self.found += found
        return found
