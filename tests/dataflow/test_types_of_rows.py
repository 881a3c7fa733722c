"""Arrays, maps and structs in the rows of every operator with state: one order, whatever arrives first.
Floating point numbers and structs as keys.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.chains.state_blocks import block_schema, make_block
from checkpoint.errors import EditRefusedError
from checkpoint.key_hash import hash_keys, hash_rows
from dataflow import CallSink, Count, CountWindow, Graph, InputSource, Stream, Tumbling
from dataflow.errors import GraphError, OperatorError, SchemaError, UserFault
from dataflow.schema import parse_schema
from dataflow.state.given_rows import GivenTable, given_rows
from dataflow.state.key_index import normalized_key
from dataflow.state.row_table import in_order
from dataflow.testing import Trial
from dataflow.testing.trial import batch_of
from dataflow.values.columns import column_of
from dataflow.values.kinds import values_of, zone_of
from dataflow.values.spark_rows import SessionTimes
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


# --- keys ---------------------------------------------------------------------------------------------------

KEYS = {
    "d": (pa.float64(), st.sampled_from([0.0, -0.0, float("nan"), -float("nan"), 1.5, None])),
    "f": (pa.float32(), st.sampled_from([0.0, -0.0, float("nan"), 0.5, float("inf"), None])),
    "s": (
        pa.struct([("a", pa.string()), ("d", pa.float64()), ("t", pa.struct([("f", pa.float32())]))]),
        st.none()
        | st.fixed_dictionaries(
            {
                "a": st.sampled_from(["", "x", None]),
                "d": st.sampled_from([0.0, -0.0, float("nan"), None]),
                "t": st.none() | st.fixed_dictionaries({"f": st.sampled_from([-0.0, 0.0, None])}),
            }
        ),
    ),
}


def normal(value: Any) -> Any:
    """The oracle: the key that Spark groups by."""
    if isinstance(value, dict):
        return {name: normal(value[name]) for name in sorted(value)}
    return 0.0 if value == 0 and isinstance(value, float) else value


def with_timer(row: Row, state: Any) -> None:
    state.value = {"n": (state.value["n"] if state.value else 0) + 1}
    state.timer = second(100)


def told(key: Row, time: Any, state: Any) -> list[Any]:
    return [(key["key"], state.value["n"])]


def frames_of_key(key: tuple[Any, ...], frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    n = (state.get[0] if state.exists else 0) + sum(map(len, frames))
    state.update((n,))
    if state.hasTimedOut:
        yield pd.DataFrame({"key": [key[0]], "n": [n]})
    else:
        state.setTimeoutTimestamp(second(100))


def counted(name: str, kind: pa.DataType, stream: Stream) -> Stream:
    keyed = stream.key_by("by", "key")
    schema = pa.schema([("key", kind), ("n", pa.int64())])
    if name == "count":
        return keyed.count("made")
    if name == "aggregate":
        return keyed.aggregate("made", n=Count())
    if name == "window":
        return keyed.aggregate("made", Tumbling("at", timedelta(minutes=1)), n=Count())
    if name == "map_state":
        return keyed.map_state("made", with_timer, on_timer=told, state="n bigint", schema=schema, time="at")
    return keyed.apply_in_pandas_with_state(
        "made", frames_of_key, schema, "n bigint", "append", "EventTimeTimeout", time="at"
    )


@pytest.mark.parametrize("name", ["count", "window"])
def test_both_zeros_are_one_key_and_so_are_all_nan(name: str) -> None:
    graph = Graph("keys")
    rows = graph.source("rows", InputSource("rows", "at timestamp, key double"))
    timed = rows.event_time("timed", "at", lateness=timedelta(0))
    counted(name, pa.float64(), timed).sink("out", CallSink(print))
    trial = Trial(graph, workers=2)
    keys = [-0.0, 0.0, float("nan"), -float("nan")]
    trial.step({"rows": [{"at": second(0), "key": key} for key in keys]}, end=True)
    found = sorted((repr(row["key"]), row.get("n", row.get("count"))) for row in trial.rows("out"))
    assert found == [("0.0", 2), ("nan", 2)]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ["count", "aggregate", "window", "map_state", "apply_in_pandas_with_state"])
@settings(max_examples=10)
@given(data=st.data())
def test_floating_keys_and_structs_are_grouped_as_spark_groups_them(
    name: str, key: str, data: st.DataObject
) -> None:
    kind, values = KEYS[key]
    given_ = data.draw(st.lists(st.tuples(st.integers(0, 3), values), max_size=10))
    rows = [{"at": second(number), "key": value} for number, value in given_]
    graph = Graph("keys")
    steps, lateness = data.draw(timely("rows", rows, "at"))
    source = InputSource("rows", pa.schema([("at", pa.timestamp("us", "UTC")), ("key", kind)]))
    timed = graph.source("rows", source).event_time("timed", "at", lateness=lateness)
    counted(name, kind, timed).sink("out", CallSink(print))
    made = play_with_trouble(graph, steps, data, end=True).rows("out")
    found = {repr(row["key"]): row.get("n", row.get("count")) for row in made}  # the last one of a key
    assert found == Counter(repr(normal(row["key"])) for row in rows)
    if name not in ("count", "aggregate"):
        assert len(made) == len(found)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.float64(), [-1.5, 0.0, float("inf"), float("nan"), None]),
        (pa.struct([("a", pa.float64())]), [{"a": 0.0}, {"a": float("nan")}, {"a": None}, None]),
    ],
    ids=str,
)
def test_timers_of_one_time_fire_in_the_order_of_keys_with_nan_and_null_last(
    kind: pa.DataType, keys: list[Any]
) -> None:
    for arrived in (keys, keys[::-1]):
        graph = Graph("timers")
        schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("key", kind)])
        rows = graph.source("rows", InputSource("rows", schema))
        timed = rows.event_time("timed", "at", lateness=timedelta(0))
        counted("map_state", kind, timed).sink("out", CallSink(print))
        trial = Trial(graph)
        trial.step({"rows": [{"at": second(0), "key": key} for key in arrived]}, checkpoint=True)
        trial.crash()
        trial.step({"rows": [{"at": second(0.5), "key": keys[0]}, {"at": second(200), "key": keys[0]}]})
        trial.step({"rows": [{"at": second(300), "key": keys[0]}]})
        assert [repr(row["key"]) for row in trial.rows("out")][: len(keys)] == list(map(repr, keys))


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=10)
@given(data=st.data())
def test_rows_of_floating_keys_and_structs_are_deduplicated_and_joined(key: str, data: st.DataObject) -> None:
    kind, values = KEYS[key]
    lefts, rights = (data.draw(st.lists(values, max_size=6)) for _ in range(2))
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("key", kind)])
    graph = Graph("pairs")
    streams = [
        graph.source(name, InputSource(name, schema))
        .event_time(f"{name}_timed", "at", lateness=timedelta(0))
        .key_by(f"{name}_by", "key")
        for name in ("left", "right")
    ]
    streams[0].dedup("once").sink("once_out", CallSink(print))
    pairs = streams[0].join("pairs", streams[1], times=("at", "at"), within=timedelta(1), suffix="_r")
    pairs.sink("pairs_out", CallSink(print))
    rows = [[{"at": second(0), "key": value} for value in side] for side in (lefts, rights)]
    trial = Trial(graph, workers=2)
    trial.step({"left": rows[0]}, checkpoint=True)
    trial.crash()
    trial.step({"right": rows[1]})
    left, right = ([repr(normal(value)) for value in side] for side in (lefts, rights))
    assert sorted(repr(row["key"]) for row in trial.rows("once_out")) == sorted(set(left))
    expected = [one for one in left for other in right if one == other != "None"]
    assert sorted(repr(row["key"]) for row in trial.rows("pairs_out")) == sorted(expected)


def test_a_broadcast_table_refuses_structs_and_nan_as_keys() -> None:
    def graph_by(kind: str) -> Graph:
        graph = Graph("g")
        rates = graph.source("rates", InputSource("rates", f"key {kind}, rate double"))
        table = graph.broadcast_table("table", rates, "key")
        lines = graph.source("lines", InputSource("lines", "x bigint"))
        made = lines.map("made", lambda row, table: len(table), schema="n bigint", broadcast=table)
        made.sink("out", CallSink(print))
        return graph

    with pytest.raises(GraphError, match="key column 'key' of a broadcast table is a struct"):
        graph_by("struct<a:int>").plan()
    trial = Trial(graph_by("double"))
    trial.step({"rates": [{"key": 0.0, "rate": 1.0}, {"key": -0.0, "rate": 2.0}]}, checkpoint=True)
    trial.crash()
    trial.step({"lines": [{"x": 1}]})
    assert trial.rows("out") == [{"n": 1}]
    with pytest.raises(OperatorError, match="is null or NaN"):
        trial.step({"rates": [{"key": float("nan"), "rate": 1.0}]})


def test_a_floating_key_of_state_that_is_edited_is_the_key_that_rows_have() -> None:
    kind = pa.struct([("d", pa.float64())])
    schema = block_schema(pa.schema([("key", kind)]), pa.schema([("count", pa.int64())]))
    keys = normalized_key(pa.array([{"d": 0.0}, {"d": float("nan")}, {"d": None}, None], kind))
    stored = make_block(schema, [keys], hash_keys([keys]), [pa.array([1, 2, 3, 4])])
    given_ = pa.array([{"d": -0.0}, {"d": -float("nan")}, {"d": None}, {"d": 7.0}], kind)
    table = GivenTable([("key", given_), ("count", pa.array([10, 20, 30, 40]))], 4)
    rows = given_rows("op", schema, table, stored)
    assert rows.stored_column("count").to_pylist() == [1, 2, 3, None]
    assert [str(key["d"]) for key in rows.keys[0].to_pylist()] == ["0.0", "nan", "None", "7.0"]
    assert not np.signbit(rows.keys[0].field(0).to_numpy(zero_copy_only=False)[:2]).any()
    with pytest.raises(EditRefusedError, match="the key occurs twice"):
        given_rows("op", schema, GivenTable([("key", [{"d": 0.0}, {"d": -0.0}])], 2), stored)


# --- times of functions written for Spark -------------------------------------------------------------------

ZONES = ["UTC", "Asia/Tokyo", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "+05:30"]
TIMED = "at timestamp, key string, ats array<timestamp>, by map<timestamp,bigint>, s struct<t:timestamp>"
RETURNED = "key string, at timestamp, ats array<timestamp>, s struct<t:timestamp>, hour int"
_instants = st.integers(-10_000_000, 20_000_000).map(second)
"""From January to December."""


def is_ambiguous(time: datetime, zone: str) -> bool:
    there = time.astimezone(zone_of(pa.timestamp("us", zone)))
    return there.fold == 1 or there.replace(fold=1).utcoffset() != there.utcoffset()


def naive_times(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """It checks what it gets, and returns the times as it got them."""
    for frame in frames:
        (row,) = frame.to_dict("records")
        if state.exists:
            assert state.get == (row["at"].to_pydatetime(), [*row["ats"]])
        state.update((row["at"], list(row["ats"])))
        assert {one.tzinfo for one in (row["at"], *row["ats"], *row["by"], row["s"]["t"])} == {None}
        out = {"key": key[0], **{name: row[name] for name in ("at", "ats", "s")}, "hour": row["at"].hour}
        yield pd.DataFrame([out])


class AwareTimes:
    """The same with rows, whose times have the zone."""

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "at timestamp, by map<timestamp,bigint>")

    def handleInputRows(self, key: Any, rows: Iterator[Any], times: Any) -> Iterator[Any]:
        for row in rows:
            last = self.last.get()
            if last is not None:
                assert last == (row.at, dict(row.by))
            self.last.update((row.at.replace(tzinfo=None, fold=row.at.fold), row.by))
            yield key[0], row.at, row.ats, row.s, row.at.hour


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("shape", ["function", "row"])
@settings(max_examples=10)
@given(instants=st.lists(_instants, min_size=1, max_size=4))
def test_functions_for_spark_get_times_in_the_zone_and_give_them_back(
    shape: str, zone: str, instants: list[datetime]
) -> None:
    if shape == "function":  # a time of a DataFrame cannot say which of two it is
        instants = [one for one in instants if not is_ambiguous(one, zone)]
    rows = [
        {"at": at, "key": f"k{number}", "ats": [at, at], "by": {at: 1}, "s": {"t": at}}
        for number, at in enumerate(instants)
    ]
    graph = Graph("times")
    timed = graph.source("rows", InputSource("rows", TIMED)).event_time(
        "timed", "at", lateness=timedelta(days=400)
    )
    keyed = timed.key_by("by", "key")
    if shape == "function":
        state = "last timestamp, several array<timestamp>"
        made = keyed.apply_in_pandas_with_state(
            "made", naive_times, RETURNED, state, "append", time="at", time_zone=zone
        )
    else:
        made = keyed.transform_with_state(
            "made", AwareTimes(), RETURNED, "append", "none", time="at", time_zone=zone
        )
    made.sink("out", CallSink(print))
    trial = Trial(graph)
    trial.step({"rows": rows}, checkpoint=True)
    trial.crash()
    trial.step({"rows": rows}, end=True)
    found = sorted(trial.rows("out"), key=lambda row: row["key"])
    there = zone_of(pa.timestamp("us", zone))
    expected = [
        {
            "key": row["key"],
            "at": row["at"],
            "ats": row["ats"],
            "s": row["s"],
            "hour": row["at"].astimezone(there).hour,
        }
        for row in rows
        for _ in range(2)
    ]
    assert found == expected


def test_a_data_frame_has_the_wall_clock_of_its_zone() -> None:
    schema = parse_schema("at timestamp, ats array<timestamp>, wall timestamp_ntz")
    wall = datetime(2024, 5, 1, 3)  # noqa: DTZ001
    batch = pa.RecordBatch.from_pylist([{"at": second(0), "ats": [second(0)], "wall": wall}], schema)
    (row,) = SessionTimes("Asia/Tokyo", naive=True).batch(batch).to_pylist()
    there = datetime(2024, 5, 1, 21)  # noqa: DTZ001
    assert row == {"at": there, "ats": [there], "wall": wall}


def returning(value: Any, schema: str, **options: Any) -> Trial:
    graph = Graph("times")
    timed = graph.source("rows", InputSource("rows", "at timestamp, key string")).event_time(
        "timed", "at", lateness=timedelta(0)
    )
    made = timed.key_by("by", "key").apply_in_pandas_with_state(
        "made", lambda key, frames, state: [pd.DataFrame({"t": [value]})], schema, "n int", "append",
        time="at", **options,
    )  # fmt: skip
    made.sink("out", CallSink(print))
    trial = Trial(graph)
    trial.step({"rows": [{"at": second(0), "key": "a"}]}, end=True)
    return trial


def test_a_time_that_a_zone_has_twice_is_the_later_one_as_in_spark_and_one_that_it_has_not_is_refused() -> (
    None
):
    twice = returning(pd.Timestamp("2024-11-03 01:30"), "t timestamp", time_zone="America/New_York")
    assert twice.rows("out") == [{"t": datetime(2024, 11, 3, 6, 30, tzinfo=ZoneInfo("UTC"))}]
    with pytest.raises(OperatorError, match="a time does not exist in the zone America/New_York"):
        returning(pd.Timestamp("2024-03-10 02:30"), "t timestamp", time_zone="America/New_York")
    wall = returning(pd.Timestamp("2024-03-10 02:30"), "t timestamp_ntz", time_zone="America/New_York")
    assert wall.rows("out") == [{"t": datetime(2024, 3, 10, 2, 30)}]  # noqa: DTZ001
    day = returning(date(2024, 5, 1), "t timestamp", time_zone="Asia/Tokyo")
    assert day.rows("out") == [{"t": datetime(2024, 4, 30, 15, tzinfo=ZoneInfo("UTC"))}]


def test_a_zone_that_is_not_known_is_refused_and_another_zone_is_another_graph() -> None:
    with pytest.raises(SchemaError, match="time zone 'Mars/Olympus' is not known"):
        returning(None, "t timestamp", time_zone="Mars/Olympus")
    details = []
    for zone in ("UTC", "Asia/Tokyo"):
        graph = Graph("times")
        timed = graph.source("rows", InputSource("rows", TIMED)).event_time(
            "timed", "at", lateness=timedelta(0)
        )
        made = timed.key_by("by", "key").transform_with_state(
            "made", AwareTimes(), RETURNED, "append", "none", time="at", time_zone=zone
        )
        made.sink("out", CallSink(print))
        details.append(graph.plan().specs["made"].detail())
    assert details[1] == f"{details[0]} zone Asia/Tokyo"
