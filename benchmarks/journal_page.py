"""Write the section of docs/benchmarks.md on journaled files (`./run bench journal`)."""

from collections.abc import Sequence

from page_section import Section
from rows import Row

PLACE = Section("journal")
SECTION = """\
{begin}
## Journals of files

Measured on {date}, alone, {rounds}; {load:.1f} processes wanted a core on average when it
ended, its own with them. A *CPU second* is one of a processor at work for the process that is measured; of a
restore, for the one that restores, without its server.

| what | measured | beside it | aim |
|---|---|---|---|
{rows}
{end}"""


def section_of(rows: Sequence[Row], rounds: int) -> str:
    """The text."""
    lines = "\n".join(f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" for row in rows)
    return PLACE.filled(
        SECTION,
        rounds,
        rows=lines,
    )
