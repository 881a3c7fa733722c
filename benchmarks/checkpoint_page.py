"""Write the section of docs/benchmarks.md on checkpoints, recovery and latency (`./run bench checkpoint`)."""

from page_section import Section
from rows import Row, table_lines

PLACE = Section("checkpoint")
SECTION = """\
{begin}
## Checkpoints, recovery, latency

Measured on {date} with no other benchmark running. The load average at the end was {load:.1f}, including the
benchmark itself.

| what | measured | compared with | aim |
|---|---|---|---|
{rows}
{end}"""


def section_of(rows: list[Row], *, date: str, load: float) -> str:
    """Return the text of the section."""
    lines = table_lines(rows)
    return SECTION.format(begin=PLACE.begin, end=PLACE.end, date=date, load=load, rows=lines)
