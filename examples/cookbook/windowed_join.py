"""Which page did they look at within half an hour before or after they bought?"""

from datetime import timedelta
from pathlib import Path

import dos
from examples.cookbook.parsing import read_csv


def make_graph(data: Path, out: Path) -> dos.Graph:
    graph = dos.Graph("windowed_join")
    clicks = read_csv(graph, "clicks", data / "clicks.csv", "at timestamp, who string, page string")
    orders = read_csv(graph, "orders", data / "orders.csv", "at timestamp, customer string, price double")
    clicks = clicks.event_time("clicks_timed", "at", lateness=timedelta(minutes=5))
    orders = orders.event_time("orders_timed", "at", lateness=timedelta(minutes=5))
    pairs = clicks.key_by("by_who", "who").join(
        "pairs",
        orders.key_by("by_customer", "customer"),
        times=("at", "at"),
        within=timedelta(minutes=30),
        suffix="_order",
    )
    pairs.sink("out", dos.FileSink(out / "pairs"))
    return graph
