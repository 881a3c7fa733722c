"""Write the section of docs/benchmarks.md on journaled files (`./run bench journal`)."""

from collections.abc import Sequence

from page_section import Section
from rows import Row, table_lines

PLACE = Section("journal")
SECTION = """\
{begin}
## Journaled files

Measured on {date} with no other benchmark running, {rounds}. The load average at the end was {load:.1f},
including the benchmark itself. A *CPU second* is a second of processor time of the measured process. For a
restore, this is the process that restores, without its server.

| what | measured | compared with | aim |
|---|---|---|---|
{rows}
{end}"""


def section_of(rows: Sequence[Row], rounds: int) -> str:
    """Return the text of the section."""
    lines = table_lines(rows)
    return PLACE.filled(
        SECTION,
        rounds,
        rows=lines,
    )
