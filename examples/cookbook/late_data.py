"""Values per hour; what comes when its hour is over is kept in a file apart, to be added later.

Time moves at the ends of steps. Here a step is a file, so that what is late is the same in every run.
"""

from datetime import timedelta
from pathlib import Path

from dataflow import Count, FileSink, Graph, Mean, Tumbling, consistent
from examples.cookbook.parsing import read_csv


def make_graph(data: Path, out: Path) -> Graph:
    graph = Graph("late_data")
    values = read_csv(graph, "values", data / "late" / "*.csv", "at timestamp, sensor string, value double")
    graph.annotate("values_lines", consistent(trigger="operator"))
    timed = values.event_time("timed", "at", lateness=timedelta(minutes=10))
    hourly = timed.key_by("by_sensor", "sensor").aggregate(
        "hourly", Tumbling("at", timedelta(hours=1)), values=Count(), mean=Mean("value")
    )
    hourly.sink("out", FileSink(out / "hourly"))
    hourly.side("too_late", "late").sink("late_out", FileSink(out / "late"))
    return graph
