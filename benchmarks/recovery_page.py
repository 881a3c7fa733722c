"""Write the section of docs/benchmarks.md on predicted recoveries (`./run bench recovery`)."""

from collections.abc import Sequence

from page_section import Section
from rows import Row, table_lines

PLACE = Section("recovery")
SECTION = """\
{begin}
## Predicted and measured recoveries

Measured on {date} with no other benchmark running, medians of {kills} kills. The load average at the end was
{load:.1f}, including the benchmark itself.

| state and output | measured | predicted | aim |
|---|---|---|---|
{rows}
{end}"""


def section_of(rows: Sequence[Row], kills: int) -> str:
    """Return the text of the section."""
    lines = table_lines(rows)
    return PLACE.filled(SECTION, kills, rows=lines, kills=kills)
