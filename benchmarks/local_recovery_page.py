"""Write the section of docs/benchmarks.md on local recovery (`./run bench local`)."""

from collections.abc import Sequence

from page_section import Section
from rows import Row, table_lines

PLACE = Section("local")
SECTION = """\
{begin}
## Local recovery

Measured on {date} with no other benchmark running, medians of {kills} kills. The load average at the end was
{load:.1f}, including the benchmark itself. The gap is the longest time around the SIGKILL of a worker in
which nothing new is in a part of the output, while 1,000 generated rows per second pass an exchange by key.
A stand-by is ready. The parts of other workers stop as well: the workers run in step.
[Spark and PyFlink](#checkpoints-recovery-latency) with 2 workers and as many keys need several seconds.
PyFlink has its default failover strategy there, `region`; an exchange by key makes the job one region.

| what | local recovery | beside | aim |
|---|---|---|---|
{rows}
{end}"""


def section_of(rows: Sequence[Row], kills: int) -> str:
    """Return the text of the section."""
    return PLACE.filled(SECTION, kills, rows=table_lines(rows), kills=kills)
