"""`dos journal dump`: one line a record, of a file, an object or a chain."""

from collections.abc import Callable

from journal.core.inspection import Located
from journal.core.rendering import as_json, as_text
from journal.inspecting import Consumer


def dumper(
    write: Callable[[str], object], *, full: bool, json: bool, begin: int = 0, end: int | None = None
) -> Consumer:
    """A consumer that writes the records that begin at logical offsets in [begin, end), one line each."""
    render = as_json if json else as_text

    def consume(records: list[Located]) -> bool:
        lines = [
            render(located, full=full)
            for located in records
            if begin <= located.offset and (end is None or located.offset < end)
        ]
        if lines:
            write("\n".join(lines) + "\n")
        return end is None or not records or records[-1].end < end

    return consume
