"""Three failed log-ins of one account within ten minutes are an alert, once in each window."""

from datetime import timedelta
from pathlib import Path

import dos
from examples.cookbook.parsing import read_csv


def make_graph(data: Path, out: Path) -> dos.Graph:
    graph = dos.Graph("alerts")
    logins = read_csv(
        graph, "logins", data / "logins.csv", "at timestamp, account string, address string, outcome string"
    )
    failed = logins.event_time("timed", "at", lateness=timedelta(minutes=1)).filter(
        "failed", lambda row: row["outcome"] == "failed"
    )
    window = dos.Sliding("at", timedelta(minutes=10), timedelta(minutes=5))
    counts = failed.key_by("by_account", "account").aggregate(
        "counts", window, failures=dos.Count(), addresses=dos.ApproxDistinct("address")
    )
    counts.filter("alerts", lambda row: row["failures"] >= 3).sink("out", dos.FileSink(out / "alerts"))
    return graph
