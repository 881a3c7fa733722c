"""The cost of TLS (`./run bench tls`), as a section of docs/benchmarks.md."""

from collections.abc import Mapping, Sequence
from typing import Final

from page_section import Section
from rows import Effort, Row, run_json, table_lines

PLACE = Section("tls")
SECTION = """\
{begin}
## TLS

The same work over TLS 1.3 with certificates at both ends, and over plain text. Measured on {date}, {rounds}.
A ratio is the median of those of two runs, one after the other. The load average at the end was {load:.1f},
including the benchmark itself; both ends of each connection share the processor of this machine.

| what | TLS | plain text | aim |
|---|---|---|---|
{rows}
{end}"""
WHAT: Final = {
    "session": ("open a session and close it", "ms", 2),
    "stream": ("durable stream of 64 KiB appends, one server", "MB/s", 0),
    "processor": ("processor time of both ends for it", "s for each GB", 2),
    "read": ("read of a large object, one server", "MB/s", 0),
    "writers": ("64 writers, 1 KiB each, store of three", "appends/s", 0),
    "words": ("word count, two workers, store of three", "words/s", 0),
}
"""Key of a figure -> what it is, its unit, decimal places."""


def rows_of(figures: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Return the rows for the figures of `tls_speed.py`."""
    rows = []
    for key, (what, unit, places) in WHAT.items():
        tls, plain = figures["tls"][key], figures["plain"][key]
        beside = f"{plain:,.{places}f} {unit}, ratio {figures['ratio'][key]:.2f}"
        rows.append(Row(what, f"{tls:,.{places}f} {unit}", beside, ""))
    return rows


def measure_tls(effort: Effort) -> list[Row]:
    """Measure the cost of TLS."""
    megabytes = effort.stream_mb // 2
    command = ["benchmarks/tls_speed.py", "--json", "--pairs", str(effort.recoveries)]
    return rows_of(run_json(*command, "--megabytes", str(megabytes), "--passes", str(effort.passes // 2)))


def section_of(rows: Sequence[Row], rounds: int) -> str:
    """Return the text of the section."""
    return PLACE.filled(SECTION, rounds, rows=table_lines(rows))
