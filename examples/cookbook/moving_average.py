"""The mean of the last three values of each sensor, in the order of their time, not of their arrival."""

from datetime import timedelta
from pathlib import Path

import dos
from examples.cookbook.parsing import read_csv


def make_graph(data: Path, out: Path) -> dos.Graph:
    graph = dos.Graph("moving_average")
    values = read_csv(graph, "values", data / "sensors.csv", "at timestamp, sensor string, value double")
    keyed = values.event_time("timed", "at", lateness=timedelta(seconds=30)).key_by("by_sensor", "sensor")
    smooth = keyed.aggregate(
        "smooth", dos.CountWindow("at", 3, slide=1), until=dos.Max("at"), mean=dos.Mean("value")
    )
    smooth.sink("out", dos.FileSink(out / "smooth"))
    return graph
