"""The same rows as several replicas may get them: in other orders and steps, with watermarks that advance in
other steps, on other numbers of workers.

Watermarks are rows of their own, whose time is null: `event_time` drops them, and they promise that all later
rows have larger times. Times are microseconds of a tiny range, so that rows meet watermarks and window ends.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from hypothesis import strategies as st

from dataflow import Graph, InputSource, LogSink, Stream
from dataflow.testing import Trial
from tests.dataflow.trials import Row

SPLITS = ("s0", "s1", "s2")
SplitStep: TypeAlias = dict[str, dict[str, list[Row]]]
"""Source -> split -> rows. A split that promised nothing yet holds event time back, as a producer does."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = "t timestamp, mark timestamp, k string, x double, n bigint"
_values = [0.1, 0.2, 0.3, 1e16, -1e16, 1e-20, 0.0, -0.0, float("nan"), float("inf"), float("-inf"), None]


def micro(number: int) -> timedelta:
    return timedelta(microseconds=number)


def row(time: int, k: str = "a", x: float | None = 1.0, n: int | None = 0) -> Row:
    return {"t": EPOCH + micro(time), "mark": None, "k": k, "x": x, "n": n}


def mark(time: int) -> Row:
    return {"t": None, "mark": EPOCH + micro(time), "k": "", "x": None, "n": None}


ROWS = st.lists(
    st.builds(
        row,
        st.integers(0, 12),
        st.sampled_from("aab"),
        st.sampled_from(_values),
        st.none() | st.integers(0, 2),
    ),
    max_size=14,
)


def timed_log(*time: str) -> LogSink:
    """A log whose rows have times: the latest of these columns."""
    return LogSink(publish="step", time=time)


def timed(graph: Graph, name: str) -> Stream:
    """Rows of a source with event time."""
    source = graph.source(name, InputSource(name, SCHEMA))
    return source.event_time(f"{name}_timed", "t", punctuation="mark", on_null="drop")


@st.composite
def arrangement(draw: st.DrawFn, rows: Mapping[str, Sequence[Row]]) -> list[SplitStep]:
    """The rows of each source dealt to its splits, somewhat in the order of time, and divided into steps.
    Each split has watermarks, which hold after each step.
    """
    steps: list[SplitStep] = [{source: {} for source in rows} for _ in range(draw(st.integers(1, 5)))]
    jitter = st.sampled_from([0, 0, 1, 2, 6, 20])
    for source, given in rows.items():
        dealt: dict[str, list[Row]] = {split: [] for split in SPLITS}
        for one in sorted(given, key=lambda one: one["t"] + micro(draw(jitter))):
            dealt[draw(st.sampled_from(SPLITS))].append(one)
        for split, part in dealt.items():
            ends = sorted(draw(st.integers(0, len(part))) for _ in steps[1:])
            for step, begin, end in zip(steps, [0, *ends], [*ends, len(part)], strict=True):
                later = [one["t"] for one in part[end:]]
                limit = (min(later) - EPOCH) // micro(1) - 1 if later else 20
                promised = draw(st.sampled_from([None, limit, limit, limit - 1, limit - 3]))
                marks = [] if promised is None else [mark(promised)]
                step[source][split] = [*part[begin:end], *marks]
    return steps


def time_of(found: Row, columns: Sequence[str]) -> int:
    return (max(found[name] for name in columns) - EPOCH) // micro(1)


def canonical(found: Sequence[Row]) -> Counter[tuple[str, ...]]:
    """Rows without an order; all zeros are one, and so are all NaN."""
    return Counter(
        tuple(repr(cell + 0.0 if isinstance(cell, float) else cell) for cell in one.values()) for one in found
    )


def play(graph: Graph, steps: Sequence[SplitStep], workers: int = 1) -> list[Row]:
    """Run all steps to the end, and return the rows of the sink "out"."""
    trial = Trial(graph, workers=workers, splits=splits_of(steps))
    for step in steps:
        trial.step(step)
    trial.step({}, end=True)
    return trial.rows("out")


def behind_watermarks(
    graph: Graph, steps: Sequence[SplitStep], columns: Sequence[str]
) -> list[tuple[int, int]]:
    """Run all steps on one worker, to the end. Return (time, watermark) of the rows of the sink "out" that
    are not above the watermark that was published before them: T1 has none.
    """
    trial, seen, found = Trial(graph, splits=splits_of(steps)), 0, []
    for number, step in enumerate([*steps, {}]):
        before = trial.watermark("out")
        trial.step(step, end=number == len(steps))
        times = [time_of(one, columns) for one in trial.rows("out")[seen:]]
        found += [(time, before) for time in times if time <= before]
        seen += len(times)
    return found


def splits_of(steps: Sequence[SplitStep]) -> dict[str, tuple[str, ...]]:
    """Return source -> the splits that have rows in any step."""
    found: dict[str, set[str]] = {}
    for step in steps:
        for source, rows in step.items():
            found.setdefault(source, set()).update(rows)
    return {source: tuple(sorted(splits)) for source, splits in found.items()}
