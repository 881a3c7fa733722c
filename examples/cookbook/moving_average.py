"""The mean of the last three values of each sensor, in the order of their time, not of their arrival."""

from datetime import timedelta
from pathlib import Path

from dataflow import CountWindow, FileSink, Graph, Max, Mean
from examples.cookbook.parsing import read_csv


def make_graph(data: Path, out: Path) -> Graph:
    graph = Graph("moving_average")
    values = read_csv(graph, "values", data / "sensors.csv", "at timestamp, sensor string, value double")
    keyed = values.event_time("timed", "at", lateness=timedelta(seconds=30)).key_by("by_sensor", "sensor")
    smooth = keyed.aggregate("smooth", CountWindow("at", 3, slide=1), until=Max("at"), mean=Mean("value"))
    smooth.sink("out", FileSink(out / "smooth"))
    return graph
