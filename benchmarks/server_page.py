"""Write the section of docs/benchmarks.md on one server (`./run bench server`)."""

from collections.abc import Sequence

from page_section import Section
from rows import Row, table_lines

PLACE = Section("server")
SECTION = """\
{begin}
## One server

Measured on {date} with no other benchmark running, {rounds}. The load average at the end was {load:.1f},
including the benchmark itself.

| what | measured | compared with | aim |
|---|---|---|---|
{rows}
{end}"""


def section_of(rows: Sequence[Row], pairs: int) -> str:
    """Return the text of the section."""
    lines = table_lines(rows)
    return PLACE.filled(SECTION, pairs, rows=lines)
