"""Write the section of docs/benchmarks.md on checkpoints, recovery and latency (`./run bench checkpoint`)."""

from page_section import Section
from rows import Row

PLACE = Section("checkpoint")
SECTION = """\
{begin}
## Cuts, recovery, latency

Measured on {date}, alone; {load:.1f} processes on average wanted a core when it ended, including its own.

| what | measured | beside it | aim |
|---|---|---|---|
{rows}
{end}"""


def section_of(rows: list[Row], *, date: str, load: float) -> str:
    lines = "\n".join(f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" for row in rows)
    return SECTION.format(begin=PLACE.begin, end=PLACE.end, date=date, load=load, rows=lines)
