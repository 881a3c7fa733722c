"""Aggregates per key: the same results whatever the order, the batches, the steps, the crashes."""

import datetime
import math
import sys
from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    ApproxDistinct,
    CallSink,
    Count,
    Graph,
    GraphError,
    InputSource,
    Max,
    Mean,
    Min,
    SchemaError,
    Sum,
)
from dataflow.errors import OperatorError
from dataflow.state import accumulators
from dataflow.state.accumulators import ExactSums
from dataflow.testing import Trial
from dos_protocol.lazy_names import MissingExtraError
from tests.dataflow.trials import Row, arrangements, multiset, play, play_with_trouble, reordered

SCHEMA = (
    "key string, n bigint, x double, day date, who string, pair struct<x: double, in: struct<who: string>>"
)
_rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from("abc"),
            "n": st.none() | st.integers(-(2**60), 2**60),
            "x": st.none() | st.floats(width=64),
            "day": st.none() | st.dates(datetime.date(1960, 1, 1), datetime.date(2040, 1, 1)),
            "who": st.none() | st.sampled_from(["ann", "bob", "cy", ""]),
            "pair": st.none()
            | st.fixed_dictionaries(
                {
                    "x": st.none() | st.sampled_from([-1.5, -0.0, 0.0, 2.0, math.nan]),
                    "in": st.none()
                    | st.fixed_dictionaries({"who": st.none() | st.sampled_from(["", "a", "b"])}),
                }
            ),
        }
    ),
    max_size=14,
)


def all_of_them() -> Graph:
    graph = Graph("all")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    made = rows.key_by("by_key", "key").aggregate(
        "made",
        rows=Count(),
        days=Count("day"),
        total=Sum("n"),
        sum=Sum("x"),
        mean=Mean("x"),
        mean_n=Mean("n"),
        least=Min("x"),
        most=Max("x"),
        first=Min("day"),
        last=Max("day"),
        low=Min("n"),
        people=ApproxDistinct("who"),
        newest=Max("pair"),
        oldest=Min("pair"),
    )
    made.sink("out", CallSink(print))
    return graph


def _sum(values: list[float]) -> float:
    special = {value for value in values if not math.isfinite(value)}
    if special:
        return sum(special)
    exact = sum(map(Fraction, values))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _largest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values) + 0.0


def _least(values: list[float]) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan) + 0.0


def _as_spark(pair: Row) -> tuple[Any, ...]:
    """Null is the smallest value of a field, NaN the largest number."""
    x, inner = pair["x"], pair["in"]
    number = -math.inf if x is None else math.inf if math.isnan(x) else x
    return number, "0" if inner is None else "1" if inner["who"] is None else "2" + inner["who"]


def _zero(pair: Row) -> Row:
    return {"x": None if pair["x"] is None else pair["x"] + 0.0, "in": pair["in"]}


def expected(rows: list[Row]) -> list[Row]:
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[row["key"]].append(row)

    def of(part: list[Row], column: str, function: Any) -> Any:
        values = [row[column] for row in part if row[column] is not None]
        return function(values) if values else None

    return [
        {
            "key": key,
            "rows": len(part),
            "days": of(part, "day", len) or 0,
            "total": of(part, "n", sum),
            "sum": of(part, "x", _sum),
            "mean": of(part, "x", lambda values: _sum(values) / len(values)),
            "mean_n": of(part, "n", lambda values: float(sum(values)) / len(values)),
            "least": of(part, "x", _least),
            "most": of(part, "x", _largest),
            "first": of(part, "day", min),
            "last": of(part, "day", max),
            "low": of(part, "n", min),
            "people": len({row["who"] for row in part} - {None}),
            "newest": of(part, "pair", lambda values: _zero(max(values, key=_as_spark))),
            "oldest": of(part, "pair", lambda values: _zero(min(values, key=_as_spark))),
        }
        for key, part in by_key.items()
    ]


@settings(max_examples=30)
@given(rows=_rows, data=st.data())
def test_the_last_row_of_each_key_is_that_of_all_its_rows_with_any_failures(
    rows: list[Row], data: st.DataObject
) -> None:
    trial = play_with_trouble(all_of_them(), data.draw(arrangements({"rows": rows})), data)
    last = {row["key"]: row for row in trial.rows("out")}
    assert multiset(list(last.values())) == multiset(expected(rows))


@settings(max_examples=30)
@given(rows=_rows, data=st.data())
def test_the_rows_of_a_step_make_the_same_output_in_whatever_order_they_come(
    rows: list[Row], data: st.DataObject
) -> None:
    steps = data.draw(arrangements({"rows": rows}))
    once = play(all_of_them(), steps, workers=2)
    again = play(all_of_them(), data.draw(reordered(steps)), workers=2)
    assert multiset(once.rows("out")) == multiset(again.rows("out"))


@pytest.mark.parametrize("workers", [1, 2])
def test_many_values_are_counted_about_right_and_the_same_in_any_order(workers: int) -> None:
    graph = Graph("people")
    rows = graph.source("rows", InputSource("rows", "key string, who bigint"))
    keyed = rows.key_by("by_key", "key")
    keyed.aggregate("people", about=ApproxDistinct("who", precision=8)).sink("out", CallSink(print))
    numbers = [7919 * n % 20_011 for n in range(20_000)]
    found = []
    for order in (numbers, numbers[::-1], sorted(numbers + numbers)):
        trial = Trial(graph, workers=workers)
        for begin in range(0, len(order), 6000):
            batch = [{"key": "k", "who": who} for who in order[begin : begin + 6000]]
            trial.step({"rows": [batch[:2000], batch[2000:]]}, checkpoint=True)
            trial.crash()
        found.append(trial.rows("out")[-1]["about"])
    assert found[0] == pytest.approx(20_000, rel=4 / math.sqrt(2**8))
    assert len(set(found)) == 1


def test_a_sum_of_integers_that_does_not_fit_stops_and_names_the_operator() -> None:
    graph = Graph("sums")
    rows = graph.source("rows", InputSource("rows", "key string, n bigint"))
    rows.key_by("by_key", "key").aggregate("sums", total=Sum("n")).sink("out", CallSink(print))
    trial = Trial(graph)
    trial.step({"rows": [{"key": "a", "n": 2**62}, {"key": "a", "n": 2**62}, {"key": "a", "n": -(2**62)}]})
    assert trial.rows("out") == [{"key": "a", "total": 2**62}]
    with pytest.raises(OperatorError, match=r"'sums' failed at the end of step 2: the sum 'total' does not"):
        trial.step({"rows": [{"key": "a", "n": 2**62}]})


@pytest.mark.parametrize(
    ("aggregates", "words"),
    [
        ({}, "aggregate needs at least one result"),
        (
            {"total": Sum("m")},
            r"Sum(m) of 'total' uses an unknown column; the columns are key, n, x",
        ),
        (
            {"total": Sum("who")},
            "Sum takes a column of integers, decimals or doubles, and column 'who' is string",
        ),
        (
            {"mean": Mean("day")},
            "Mean takes a column of integers, decimals or doubles, and column 'day' is date",
        ),
        ({"key": Count()}, "the result 'key' has the name of a key column"),
        ({"_hash": Count()}, "_hash"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(aggregates: dict[str, Any], words: str) -> None:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    rows.key_by("by_key", "key").aggregate("made", **aggregates).sink("out", CallSink(print))
    with pytest.raises(GraphError) as caught:
        graph.plan()
    assert "aggregate 'made': " in str(caught.value)
    assert words in str(caught.value)


def test_an_aggregate_is_one_of_ours_and_stands_after_a_key_by() -> None:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    with pytest.raises(SchemaError, match=r"an aggregate is Count\(\), .* and 'total' is 'sum'"):
        rows.key_by("by_key", "key").aggregate("made", total="sum")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="precision is 5 to 20, got 40"):
        ApproxDistinct("who", precision=40)
    graph = Graph("of lists")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    lists = rows.map("lists", lambda row: row, schema="key string, all array<string>").key_by("by", "key")
    lists.aggregate("distinct", n=ApproxDistinct("all")).sink("out", CallSink(print))
    with pytest.raises(
        GraphError, match="ApproxDistinct takes a column whose values can be a key, and column"
    ):
        graph.plan()


def test_approximate_counts_without_their_library_are_refused_where_the_graph_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)  # as on Python 3.14, for which it has no release
    with pytest.raises(MissingExtraError, match="ApproxDistinct needs the library datasketches") as refused:
        ApproxDistinct("who")
    assert "Python 3.14 has no release of it" in str(refused.value)


# --- sums that do not depend on the order -------------------------------------------------------------------


_doubles = st.floats(allow_nan=False, allow_infinity=False)
_int64 = st.integers(-(2**63), 2**63 - 1)


def summed(pairs: list[tuple[int, Any]], dtype: type, data: st.DataObject) -> ExactSums:
    """Three slots, in batches, stored and loaded anywhere."""
    sums = ExactSums(of_doubles=dtype is np.float64)
    sums.reach(3)
    at = 0
    while at < len(pairs):
        batch = pairs[at : at + data.draw(st.integers(1, 4))]
        at += len(batch)
        sums.add(np.array([slot for slot, _ in batch]), np.array([value for _, value in batch], dtype))
        if data.draw(st.booleans()):
            stored = sums.store(np.arange(3))
            sums = ExactSums(of_doubles=dtype is np.float64)
            sums.reach(3)
            sums.load(np.arange(3), stored)
    return sums


def nearest(values: list[float]) -> float:
    """As `math.fsum`, which gives up where a sum on the way is too large."""
    exact = sum(map(Fraction, values))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@given(pairs=st.lists(st.tuples(st.integers(0, 2), _doubles)), data=st.data())
def test_a_sum_of_doubles_is_the_double_nearest_to_the_true_sum(
    pairs: list[tuple[int, float]], data: st.DataObject
) -> None:
    found = summed(pairs, np.float64, data).as_doubles(np.arange(3)).tolist()
    assert found == [nearest([value for at, value in pairs if at == slot]) for slot in range(3)]


@pytest.mark.parametrize(
    "values",
    [[1e16, 1.0, -1e16], [0.1] * 10, [5e-324] * 3, [1e308, 1e308], [2.0**53, 1.0], [2.0**53, 1.0, 2.0**-60]],
)
def test_sums_that_rounding_on_the_way_gets_wrong(values: list[float]) -> None:
    sums = ExactSums(of_doubles=True)
    sums.reach(1)
    sums.add(np.zeros(len(values), np.int64), np.array(values))
    assert sums.as_doubles(np.zeros(1, np.int64))[0] == nearest(values)


def test_a_sum_whose_low_limbs_are_zero_is_said_not_to_fit_after_a_restore() -> None:
    sums = ExactSums(of_doubles=False)
    sums.reach(1)
    sums.add(np.zeros(2, np.int64), np.array([-(2**63)] * 2))
    restored = ExactSums(of_doubles=False)
    restored.reach(1)
    restored.load(np.arange(1), sums.store(np.arange(1)))
    assert restored.as_integers(np.arange(1))[1].tolist() == [False]


@given(pairs=st.lists(st.tuples(st.integers(0, 2), _int64)), data=st.data())
def test_a_sum_of_integers_is_exact_or_said_not_to_fit(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    sums = summed(pairs, np.int64, data)
    values, fits = sums.as_integers(np.arange(3))
    for slot in range(3):
        true = sum(value for at, value in pairs if at == slot)
        assert fits[slot] == (-(2**63) <= true < 2**63)
        assert not fits[slot] or values[slot] == true
        assert sums.as_doubles(np.arange(3))[slot] == float(true)


def test_carries_move_up_before_a_limb_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulators, "_rows_before_carry", 10)
    sums = ExactSums(of_doubles=False)
    sums.reach(2)
    for _ in range(200):
        sums.add(np.array([0, 0, 1, 1]), np.array([2**62, 2**62, -(2**62), -1]))
    assert all(abs(limb).max() < 2**37 for limb in sums._limbs.values())
    assert sums.as_doubles(np.arange(2)).tolist() == [400.0 * 2**62, float(-200 * 2**62 - 200)]


def test_slots_may_be_cleared_and_moved() -> None:
    sums = ExactSums(of_doubles=True)
    sums.reach(3)
    sums.add(np.arange(3), np.array([1.5, 2.5, 1e300]))
    sums.clear(np.array([1]))
    sums.keep(np.array([2, 1]))
    sums.reach(3)
    assert sums.as_doubles(np.arange(3)).tolist() == [1e300, 0.0, 0.0]
