"""Arrays, maps and structs in the rows of every operator with state: one order, whatever arrives first."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.key_hash import hash_rows
from dataflow import CallSink, Count, CountWindow, Graph, InputSource, Stream, Tumbling
from dataflow.errors import UserFault
from dataflow.state.row_table import in_order
from dataflow.testing.trial import batch_of
from dataflow.values.columns import column_of
from dataflow.values.kinds import values_of
from tests.dataflow.sample_values import KINDS, VALUES, shape
from tests.dataflow.trials import Row, multiset, play_with_trouble, second, timely

MORE: list[pa.DataType] = [
    pa.list_(pa.list_(pa.float32())),
    pa.struct([("a", pa.struct([("b", pa.float64())]))]),
    pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.timestamp("us", "UTC"))]))),
    pa.list_(pa.time64("us")),
    pa.list_(pa.duration("us")),
    pa.list_(pa.dictionary(pa.int32(), pa.string())),
    pa.list_(pa.null()),
    pa.list_(pa.decimal128(5, 2), 2),
]
NESTED = [*filter(pa.types.is_nested, KINDS), *MORE]
PARTS: list[Any] = [
    [], [[]], [[], []], [[0.0]], [[-0.0]], [[float("nan")]], [[None]], [None], [None, None],
    {"a": None}, {"a": {"b": None}}, {"a": {"b": 0.0}}, {"a": {"b": -0.0}},
    {"b": []}, {"b": [None]}, {"b": [{"a": None}]},
    {"a": 1, "b": None}, {"a": 1, "b": -0.0}, {"a": 1, "b": 0.0}, {"a": 1, "c": 2}, {"c": 2, "a": 1},
    ["a"], ["a", "b"], ["ab"], ["", "ab"], ["ab", ""], [0.0], [-0.0],
]  # fmt: skip


def column_with_all(kind: pa.DataType) -> pa.Array:
    """A column of all sample values that its type takes, each twice, with a null."""
    taken = []
    for value in [*VALUES, *PARTS]:
        with suppress(UserFault, UserWarning):
            column_of([value], pa.field("c", kind))
            taken.append(value)
    return column_of([*taken, None, *taken], pa.field("c", kind))


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_nested_values_have_the_same_digest_exactly_if_they_are_the_same(kind: pa.DataType) -> None:
    column = column_with_all(kind)
    digests = hash_rows([column], signed_zeros=True).tolist()
    values = [repr(shape(value)) for value in values_of(column)]
    assert len(set(values)) >= 2
    for one, other in itertools.combinations(range(len(values)), 2):
        for half in (slice(8), slice(8, None)):
            same = digests[one][half] == digests[other][half]
            assert same == (values[one] == values[other]), (values[one], values[other])
    for begin in (1, len(column) // 2):
        assert hash_rows([column.slice(begin)], signed_zeros=True).tolist() == digests[begin:]
        assert hash_rows([column.slice(0, begin)], signed_zeros=True).tolist() == digests[:begin]
    whole = pa.chunked_array([column.slice(0, 2), column.slice(2)])
    assert hash_rows([whole], signed_zeros=True).tolist() == digests


def test_zeros_and_nan_in_nested_values_are_equal_as_they_are_in_keys() -> None:
    (zero, negative), (one, other) = (
        hash_rows([pa.array(values, pa.list_(pa.float64()))]).tolist()
        for values in ([[0.0], [-0.0]], [[float("nan")], [-float("nan")]])
    )
    assert (zero == negative, one == other, zero == one) == (True, True, False)


@pytest.mark.parametrize("kind", [*KINDS, *MORE], ids=str)
def test_rows_of_one_time_have_one_order_in_every_type(kind: pa.DataType) -> None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    column = column_with_all(kind)
    orders = []
    for arrived in (np.arange(len(column)), np.arange(len(column))[::-1]):
        batch = pa.record_batch([column.take(pa.array(arrived))], names=["c"])
        order = in_order(batch, np.zeros(len(column), np.int64))
        orders.append([shape(one) for one in values_of(batch.column("c").take(pa.array(order)))])
    assert orders[0] == orders[1]


NESTED_COLUMNS = "tags array<string>, m map<string,double>, s struct<a:bigint,b:array<double>>"
SCHEMA = f"at timestamp, k string, x bigint, {NESTED_COLUMNS}"
_tags = st.none() | st.lists(st.none() | st.sampled_from(["", "a", "ab"]), max_size=2)
_doubles = st.sampled_from([0.0, -0.0, float("nan"), 1.5, None])
_maps = st.none() | st.dictionaries(st.sampled_from("uv"), _doubles, max_size=2)
_structs = st.none() | st.fixed_dictionaries(
    {"a": st.sampled_from([None, 1]), "b": st.none() | st.lists(_doubles, max_size=2)}
)
_rows = st.lists(
    st.builds(
        lambda number, k, tags, m, s: {"at": second(number), "k": k, "x": 1, "tags": tags, "m": m, "s": s},
        st.integers(0, 3), st.sampled_from("ab"), _tags, _maps, _structs,
    ),
    max_size=10,
)  # fmt: skip
WINDOW = Tumbling("at", timedelta(seconds=3))


def numbered(row: Row, state: Any) -> list[Any]:
    """The order of the rows decides what comes out."""
    state.value = {"last": row["tags"], "n": (state.value["n"] if state.value else 0) + 1, "m": row["m"]}
    return [(row["k"], state.value["n"], repr((row["tags"], row["m"], row["s"])))]


MADE: dict[str, Callable[[Stream], Stream]] = {
    "sort": lambda rows: rows.sort("made", "at"),
    "map_state": lambda rows: rows.key_by("by", "k").map_state(
        "made", numbered, state="last array<string>, n bigint, m map<string,double>", time="at",
        schema="k string, n bigint, row string",
    ),
    "top_k": lambda rows: rows.key_by("by", "k").top_k("made", WINDOW, 2, by="x"),
    "count_window": lambda rows: rows.key_by("by", "k").aggregate(
        "made", CountWindow("at", 2, slide=1), n=Count("tags"), maps=Count("m")
    ),
    "join": lambda rows: rows.key_by("by", "k").join(
        "made", rows.key_by("by_2", "k"), times=("at", "at"), within=timedelta(seconds=2), suffix="_r"
    ),
}  # fmt: skip


def graph_of(name: str, lateness: timedelta, schema: str = SCHEMA) -> Graph:
    graph = Graph("types")
    rows = graph.source("rows", InputSource("rows", schema)).event_time("timed", "at", lateness=lateness)
    MADE[name](rows).sink("out", CallSink(print))
    return graph


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=15)
@given(rows=_rows, data=st.data())
def test_nested_columns_do_not_make_results_depend_on_the_order_of_arrival(
    name: str, rows: list[Row], data: st.DataObject
) -> None:
    results = []
    for _ in range(2):
        steps, lateness = data.draw(timely("rows", data.draw(st.permutations(rows)), "at"))
        results.append(play_with_trouble(graph_of(name, lateness), steps, data, end=True).rows("out"))
    assert multiset(results[0]) == multiset(results[1])
    if name == "map_state":
        for key in "ab":
            of_key = [one["n"] for one in results[0] if one["k"] == key]
            assert of_key == list(range(1, len(of_key) + 1))
    elif name == "sort":
        assert multiset(results[0]) == multiset(batch_rows(rows))


def batch_rows(rows: list[Row]) -> list[Row]:
    """The rows as they are read from columns."""
    graph = graph_of("sort", timedelta(0))
    schema = graph.plan().schemas["rows"]
    assert schema is not None
    batch = batch_of(rows, schema)
    columns = [values_of(column) for column in batch.columns]
    return [dict(zip(schema.names, cells, strict=True)) for cells in zip(*columns, strict=True)]
