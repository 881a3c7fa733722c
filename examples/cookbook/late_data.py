"""Values per hour; what comes when its hour is over is kept in a file apart, to be added later.

Files that are there are never late, whatever their order: each is a split, and the least counts. Here they
come one after the other, on one line, so that what is late is the same in every run.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dos
from examples.cookbook.parsing import parsed


def make_graph(data: Path, out: Path) -> dos.Graph:
    def arriving(split: str, at: int) -> Iterator[tuple[int, dict[str, str]] | None]:
        del split
        number = 0
        for path in sorted((data / "late").glob("*.csv")):
            for line in path.read_text().splitlines():
                number += 1
                if number > at:
                    yield number, {"line": line}
            yield None  # nothing more at the moment: the step ends, and time moves

    graph = dos.Graph("late_data")
    source = dos.IteratorSource(arriving, "line string", poll_s=0.05)
    values = parsed(graph, "values", source, "at timestamp, sensor string, value double")
    timed = values.event_time("timed", "at", lateness=timedelta(minutes=10))
    hourly = timed.key_by("by_sensor", "sensor").aggregate(
        "hourly", dos.Tumbling("at", timedelta(hours=1)), values=dos.Count(), mean=dos.Mean("value")
    )
    hourly.sink("out", dos.FileSink(out / "hourly"))
    hourly.side_output("too_late", "late").sink("late_out", dos.FileSink(out / "late"))
    return graph
