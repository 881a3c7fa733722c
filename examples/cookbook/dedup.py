"""Payments that were sent again because an answer was lost count once."""

from datetime import timedelta
from pathlib import Path

import dos
from examples.cookbook.parsing import read_csv


def make_graph(data: Path, out: Path) -> dos.Graph:
    graph = dos.Graph("dedup")
    payments = read_csv(
        graph, "payments", data / "payments.csv", "at timestamp, id bigint, account string, amount double"
    )
    timed = payments.event_time("timed", "at", lateness=timedelta(minutes=5))
    day = dos.Tumbling("at", timedelta(days=1))
    once = timed.key_by("by_id", "id").dedup("once", day)
    paid = once.key_by("by_account", "account").aggregate(
        "paid", day, payments=dos.Count(), amount=dos.Sum("amount")
    )
    paid.sink("out", dos.FileSink(out / "paid"))
    return graph
