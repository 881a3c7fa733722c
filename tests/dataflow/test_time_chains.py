"""Chains of operators that wait for event time: what one gives is not late at the next."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Count, Graph, InputSource, Max, Sliding, Stream, Sum, Tumbling
from dataflow.testing import Trial

BEGIN = datetime(2024, 5, 1, 12, tzinfo=UTC)


def second(number: float) -> datetime:
    return BEGIN + timedelta(seconds=number)


def windowed(name: str, stream: Stream, time: str, window: tuple[int, int], out: str) -> Stream:
    """A window over `time`; of its bounds `out` is the time of the rows."""
    size, slide = (timedelta(seconds=part) for part in window)
    over = Tumbling(time, size) if size == slide else Sliding(time, size, slide)
    made = stream.key_by(f"{name}_key", "key").aggregate(f"{name}_made", over, n=Sum("n"), top=Max(time))
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    return made.map(name, lambda row: (row["key"], row[out], row["n"]), schema=SCHEMA)


SCHEMA = "key string, at timestamp, n bigint"
Link = Callable[[str, Stream], Stream]


def window_link(window: tuple[int, int], out: str) -> Link:
    return lambda name, stream: windowed(name, stream, "at", window, out)


def sorting(name: str, stream: Stream) -> Stream:
    made = stream.sort(name, "at")
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    return made


def best(name: str, stream: Stream) -> Stream:
    made = stream.key_by(f"{name}_key", "key").top_k(name, Tumbling("at", timedelta(seconds=7)), 100, by="n")
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    return made


def joining(name: str, stream: Stream) -> Stream:
    """Each row with those of its key that are near it, itself too."""
    left, right = stream.key_by(f"{name}_l", "key"), stream.key_by(f"{name}_r", "key")
    made = left.join(f"{name}_made", right, times=("at", "at"), within=timedelta(seconds=5), suffix="_r")
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    made.side_output(f"{name}_late_r", "late_right").sink(f"{name}_late_r_out", CallSink(print))
    return made.map(name, lambda row: (row["key"], min(row["at"], row["at_r"]), row["n"]), schema=SCHEMA)


def telling(name: str, stream: Stream) -> Stream:
    made = stream.key_by(f"{name}_key", "key").map_state(
        name,
        lambda row, state: [(row["key"], row["at"], row["n"])],
        time="at",
        state="n bigint",
        schema=SCHEMA,
    )
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    return made


LINKS: dict[str, Link] = {
    **{
        f"window {size} by {slide} at {out}": window_link((size, slide), out)
        for size, slide in ((10, 10), (10, 2), (3, 3))
        for out in ("window_start", "window_end", "top")
    },
    "sort": sorting,
    "top_k": best,
    "join": joining,
    "map_state": telling,
}


def chain(links: Sequence[str]) -> Graph:
    graph = Graph("chain")
    stream = graph.source("rows", InputSource("rows", SCHEMA))
    stream = stream.event_time("timed", "at", lateness=timedelta(0))
    for index, link in enumerate(links):
        stream = LINKS[link](f"link{index}", stream)
    stream.sink("out", CallSink(print))
    return graph


def check(links: Sequence[str], times: Sequence[int], steps: int, workers: int) -> None:
    graph = chain(links)
    rows = [{"key": "ab"[at % 2], "at": second(at), "n": 1} for at in sorted(times)]
    whole = Trial(graph, workers=1)
    whole.step({"rows": rows}, end=True)  # nothing can be late
    trial = Trial(graph, workers=workers)
    for begin in range(0, len(rows), steps):
        trial.step({"rows": rows[begin : begin + steps]})
    trial.step({}, end=True)
    for sink in trial.sinks:
        assert not sink.endswith(("late_out", "late_r_out")) or trial.rows(sink) == [], sink
    assert sorted(map(repr, trial.rows("out"))) == sorted(map(repr, whole.rows("out")))


@pytest.mark.parametrize("last", LINKS)
@pytest.mark.parametrize("first", LINKS)
def test_two_links_lose_nothing(first: str, last: str) -> None:
    check([first, last], range(0, 60, 3), 2, 1)


@settings(max_examples=25)
@given(
    links=st.lists(st.sampled_from(sorted(LINKS)), min_size=2, max_size=3),
    times=st.lists(st.integers(0, 40), max_size=12),
    steps=st.integers(1, 4),
    workers=st.integers(1, 2),
)
def test_any_chain_loses_nothing(links: list[str], times: list[int], steps: int, workers: int) -> None:
    check(links, times, steps, workers)


@pytest.mark.parametrize("bound", ["window_start", "window_end"])
def test_a_tumbling_window_over_the_bounds_of_a_sliding_one_counts_every_window(bound: str) -> None:
    graph = Graph("g")
    stream = graph.source("rows", InputSource("rows", SCHEMA))
    stream = (
        stream.event_time("timed", "at", lateness=timedelta(0))
        .key_by("k1", "key")
        .aggregate("sliding", Sliding("at", timedelta(seconds=10), timedelta(seconds=2)), n=Count())
    )
    stream.sink("first_out", CallSink(print))
    second_one = stream.key_by("k2", "key").aggregate(
        "tumbling", Tumbling(bound, timedelta(seconds=10)), windows=Count()
    )
    second_one.sink("out", CallSink(print))
    trial = Trial(graph)
    for at in range(100):
        trial.step({"rows": [{"key": "a", "at": second(at), "n": 1}]})
    before_the_end = len(trial.rows("out"))
    trial.step({}, end=True)
    assert sum(row["windows"] for row in trial.rows("out")) == len(trial.rows("first_out")) > 50
    assert before_the_end > 5, "windows close as time moves"
