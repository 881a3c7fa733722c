"""The section of docs/benchmarks.md on cuts, recovery and latency: `./run bench checkpoint` writes it alone.

Rules of this file: words and places, no figures.
"""

from rows import Row

BEGIN = "<!-- checkpoint: written by ./run bench checkpoint -->"
END = "<!-- checkpoint: end -->"
NOTHING = f"{BEGIN}\n{END}"
SECTION = """\
{begin}
## Cuts, recovery, latency

Measured on {date}, by itself; {load:.1f} processes wanted a core on average when it ended, its own with them.

| what | measured | beside it | aim |
|---|---|---|---|
{rows}
{gaps}{end}"""


def section_of(rows: list[Row], *, date: str, load: float, gaps: str) -> str:
    lines = "\n".join(f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" for row in rows)
    return SECTION.format(begin=BEGIN, end=END, date=date, load=load, rows=lines, gaps=gaps)


def section_in(page: str) -> str:
    """The one that a page has; an empty one if it has none."""
    begin, end = page.find(BEGIN), page.find(END)
    return page[begin : end + len(END)] if 0 <= begin < end else NOTHING


def with_section(page: str, section: str) -> str:
    """The page with this one in the place of its own. Raises ValueError if it has no place for it."""
    before = section_in(page)
    if before not in page:
        raise ValueError(f"docs/benchmarks.md has no line {BEGIN!r}: run ./run bench once")
    return page.replace(before, section)


def gaps_in(section: str) -> str:
    """What a person wrote below the table: it stays when the figures are renewed."""
    _, sign, rest = section.partition("\n### ")
    return f"\n### {rest.removesuffix(END)}" if sign else ""
