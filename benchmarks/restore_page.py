"""Write the sections of docs/benchmarks.md on restores and forks, and on backups (`./run bench restore`,
`./run bench backup`).
"""

from collections.abc import Sequence

from page_section import Section
from rows import Row, table_lines

RESTORE = Section("restore")
BACKUP = Section("backup")
SECTION = """\
{begin}
## {title}

Measured on {date} with no other benchmark running, {rounds}. The load average at the end was {load:.1f},
including the benchmark itself.

| what | measured | beside it | aim |
|---|---|---|---|
{rows}
{end}"""


def section_of(place: Section, title: str, rows: Sequence[Row], rounds: int) -> str:
    """Return the text of a section."""
    return place.filled(SECTION, rounds, title=title, rows=table_lines(rows))
