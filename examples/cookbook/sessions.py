"""Visits: the clicks of a person that are less than half an hour apart."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dos
from examples.cookbook.parsing import read_csv

QUIET = timedelta(minutes=30)


def on_click(row: dict[str, Any], state: dos.KeyState) -> None:
    before = state.value or {"since": row["at"], "pages": 0}
    state.value = {"since": before["since"], "pages": before["pages"] + 1}
    state.timer = row["at"] + QUIET


def on_quiet(key: dict[str, Any], time: datetime, state: dos.KeyState) -> Iterator[tuple[Any, ...]]:
    assert state.value is not None
    yield key["who"], state.value["since"], time - QUIET, state.value["pages"]
    state.value = None


def make_graph(data: Path, out: Path) -> dos.Graph:
    graph = dos.Graph("sessions")
    clicks = read_csv(graph, "clicks", data / "clicks.csv", "at timestamp, who string, page string")
    timed = clicks.event_time("timed", "at", lateness=timedelta(minutes=5))
    visits = timed.key_by("by_who", "who").map_state(
        "visits",
        on_click,
        on_timer=on_quiet,
        time="at",
        state="since timestamp, pages bigint",
        schema="who string, first timestamp, last timestamp, pages bigint",
    )
    visits.sink("out", dos.FileSink(out / "visits"))
    return graph
