"""Functions and classes written for Spark's stateful operators run as they are, in event time."""

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dataflow import CallSink, Count, Graph, InputSource, LogSink, SchemaError, Tumbling
from dataflow.errors import GraphError, OperatorError, UserFault
from dataflow.schema import parse_schema
from dataflow.testing import Trial
from dataflow.values.python_rows import batch_of_result, columns_of_frame
from dataflow.values.spark_rows import Frames, InSlices, SessionTimes, batch_of_cells, cells_of_frames, millis
from tests.dataflow.trials import SCHEMA, multiset, play_with_trouble, row, second, timely
from tests.dataflow.trials import Row as AnyRow

GAP_MS = 5_000
SESSIONS = StructType([StructField("key", StringType()), StructField("n", LongType())])
STATE = StructType([StructField("n", LongType())])


def sessions(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """As in the examples of Spark: how many rows a session had, when it timed out."""
    if state.hasTimedOut:
        (n,) = state.get
        state.remove()
        yield pd.DataFrame({"key": [key[0]], "n": [n]})
        return
    n = state.get[0] if state.exists else 0
    latest = 0
    for frame in frames:
        n += len(frame)
        latest = max(latest, int(frame["at"].max().timestamp() * 1000))
    state.update((n,))
    state.setTimeoutTimestamp(latest + GAP_MS)


class Sessions(StatefulProcessor):
    """The same with transformWithState: a value, and a timer that is put off."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], times: Any) -> Iterator[Row]:
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        n = self.count.get()[0] if self.count.exists() else 0
        for one in rows:
            n += 1
            assert one.at == one["at"] == one[0]
            self.handle.registerTimer(int(one.at.timestamp() * 1000) + GAP_MS)
        self.count.update((n,))
        return iter([])

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Iterator[Row]:
        assert info.getExpiryTimeInMs() == times.getCurrentWatermarkInMs()
        (n,) = self.count.get()
        self.count.clear()
        yield Row(n=n, key=key[0])


class SessionsOfFrames(Sessions):
    """The same with transformWithStateInPandas."""

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], times: Any) -> Iterator[Any]:
        return super().handleInputRows(key, (Row(**r) for f in rows for r in f.to_dict("records")), times)

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Iterator[Any]:
        for one in super().handleExpiredTimer(key, times, info):
            yield pd.DataFrame([one.asDict()])


def graph_of(shape: str, lateness: timedelta = timedelta(0), **given: Any) -> Graph:
    graph = Graph("sessions")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    keyed = rows.key_by("by_key", "key")
    mode, schema = given.get("mode", "append"), given.get("schema", SESSIONS)
    if shape == "function":
        function, timeout = given.get("function", sessions), given.get("timeout", "EventTimeTimeout")
        calls = given.get("calls", "row")
        made = keyed.apply_in_pandas_with_state(
            "s", function, schema, STATE, mode, timeout, time="at", calls=calls
        )
    else:
        processor = given.get("processor", Sessions() if shape == "row" else SessionsOfFrames())
        options = {"takes": shape, "time": "at", **given.get("options", {})}
        made = keyed.transform_with_state(
            "s", processor, schema, mode, given.get("time_mode", "eventTime"), **options
        )
    made.sink("out", CallSink(print))
    return graph


def expected(rows: list[AnyRow]) -> list[AnyRow]:
    made: list[AnyRow] = []
    for key in "ab":
        times = sorted(one["at"] for one in rows if one["key"] == key)
        for index, time in enumerate(times):
            if index == 0 or time > times[index - 1] + timedelta(milliseconds=GAP_MS):
                made.append({"key": key, "n": 0})
            made[-1]["n"] += 1
    return made


_rows = st.lists(st.builds(row, st.integers(0, 60), st.sampled_from("ab"), st.just(1.0)), max_size=12)


@pytest.mark.parametrize("shape", ["function", "row", "pandas"])
@settings(max_examples=12)
@given(rows=_rows, data=st.data())
def test_they_give_the_same_in_any_order_the_checkpoints_and_the_crashes(
    shape: str, rows: list[AnyRow], data: st.DataObject
) -> None:
    steps, lateness = data.draw(timely("rows", rows, "at"))
    trial = play_with_trouble(graph_of(shape, lateness), steps, data, end=True)
    assert multiset(trial.rows("out")) == multiset(expected(rows))
    assert [counters["s"]["keys"] for counters in trial.counters()] == [0] * len(trial.counters())


class Everything(StatefulProcessor):
    """Lists, maps and several timers; says what it finds."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getListState("seen", "at timestamp, x double")
        self.tens = handle.getMapState("tens", "at timestamp", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Any], times: Any) -> Iterator[Any]:
        for one in rows:
            ten = (one.at.replace(second=one.at.second // 10 * 10),)
            self.seen.appendValue((one.at, one.x))
            self.tens.updateValue(ten, ((self.tens.getValue(ten) or (0,))[0] + 1,))
            assert self.tens.containsKey(ten)
            for later in (20, 10):
                self.handle.registerTimer(times.getCurrentWatermarkInMs() + 1 + later * 1000)
        yield self._tell(key)

    def _tell(self, key: Any, word: str = "row") -> tuple[Any, ...]:
        tens = ",".join(f"{k.second}:{n}" for (k,), (n,) in self.tens.iterator())
        assert [len(list(self.tens.keys())), len(list(self.tens.values()))] == [tens.count(":")] * 2
        return key[
            0
        ], f"{word} {len(list(self.seen.get()))} {tens} timers {len(list(self.handle.listTimers()))}"

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Iterator[Any]:
        first = next(self.tens.keys(), None)
        if first is not None:
            self.tens.removeKey(first)
        self.seen.put(list(self.seen.get())[1:])
        yield self._tell(key, "timer")


@pytest.mark.parametrize("crash", [False, True])
def test_lists_maps_and_several_timers_are_kept_over_a_crash(crash: bool) -> None:
    graph = graph_of("row", processor=Everything(), schema="key string, told string")
    trial = Trial(graph)
    trial.step({"rows": [row(1), row(2), row(3, "b")]}, checkpoint=True)
    if crash:
        trial.crash()
    trial.step({"rows": [row(11), row(14, "b")]}, checkpoint=True)
    if crash:
        trial.crash()
    trial.step({}, end=True)
    told = [one["told"] for one in trial.rows("out") if one["key"] == "a"]
    assert told == [
        "row 1 0:1 timers 2",
        "row 2 0:2 timers 4",
        "row 3 0:2,10:1 timers 5",  # the timer for second 11 comes behind the row of second 11
        "timer 2 10:1 timers 4",
        "timer 1  timers 3",
        "timer 0  timers 2",
        "timer 0  timers 1",
        "timer 0  timers 0",
    ]


class Calls:
    """Not of Spark's class, and no handleExpiredTimer: what matters is the shape."""

    closed = 0

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], times: Any) -> Iterator[Any]:
        self.count.update(((self.count.get() or (0,))[0] + len(list(rows)),))
        return iter([(key[0], self.count.get()[0])])

    def close(self) -> None:
        Calls.closed += 1


def test_each_worker_has_a_copy_of_its_own_that_is_closed() -> None:
    trial = Trial(graph_of("row", processor=Calls(), time_mode="none"), workers=2)
    trial.step({"rows": [row(0), row(1, "b"), row(2, "c"), row(3, "d"), row(4)]}, checkpoint=True)
    before = Calls.closed
    trial.crash()
    assert Calls.closed == before + 2
    trial.step({"rows": [row(6)]})
    trial.step({}, end=True)
    assert max(one["n"] for one in trial.rows("out") if one["key"] == "a") == 3


def calls(method: str, *arguments: Any) -> Any:
    def function(key: Any, frames: Any, state: Any) -> list[Any]:
        getattr(state, method)(*arguments)
        return []

    return function


class NoFrames(Sessions):
    """Its DataFrames without columns are no rows, as in Spark."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], times: Any) -> Iterator[Any]:
        yield pd.DataFrame()

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Iterator[Any]:
        yield pd.DataFrame()


@pytest.mark.parametrize("shape", ["function", "pandas"])
def test_a_data_frame_without_columns_is_no_row(shape: str) -> None:
    def function(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame()
        yield pd.DataFrame({"key": [key[0]], "n": [1]})
        yield pd.DataFrame()

    trial = Trial(graph_of(shape, function=function, processor=NoFrames()))
    trial.step({"rows": [row(1)]}, end=True)
    assert trial.rows("out") == ([{"key": "a", "n": 1}] if shape == "function" else [])


def test_a_data_frame_without_columns_from_a_flat_map_is_no_row_and_from_a_map_it_is_refused() -> None:
    for kind in ("flat_map", "map"):
        graph = Graph("frames")
        rows = graph.source("rows", InputSource("rows", SCHEMA))
        made = getattr(rows, kind)("made", lambda frame: pd.DataFrame(), schema="n bigint", takes="pandas")
        made.sink("out", CallSink(print))
        trial = Trial(graph)
        if kind == "flat_map":
            trial.step({"rows": [row(1)]})
            assert trial.rows("out") == []
        else:
            with pytest.raises(OperatorError, match="the schema says 'n'"):
                trial.step({"rows": [row(1)]})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"function": calls("setTimeoutDuration", 5)}, "setTimeoutDuration(5) is not supported here"),
        ({"function": calls("getCurrentProcessingTimeMs")}, "getCurrentProcessingTimeMs is not supported"),
        ({"function": calls("setTimeoutTimestamp", 5)}, "timeout 5 ms must be after the watermark"),
        ({"function": calls("setTimeoutTimestamp", 5), "timeout": "NoTimeout"}, "needs timeoutConf"),
        ({"function": calls("update", (1, 2))}, "a state is a tuple of n, not of 2 values"),
        ({"function": calls("update", ("x",))}, "state 'n' is bigint, which holds whole numbers"),
        ({"function": lambda *_: [pd.DataFrame({"n": [1]})]}, "DataFrames of key, n, and returned n"),
        ({"function": lambda key, frames, state: [state.get]}, "the key has no state yet"),
    ],
)  # fmt: skip
def test_what_a_function_may_not_do_is_told_by_name(given: dict[str, Any], words: str) -> None:
    trial = Trial(graph_of("function", **given))
    with pytest.raises(OperatorError) as caught:
        trial.step({"rows": [row(1), row(2)]})
    assert words in str(caught.value)


class Refused(Calls):
    def __init__(self, in_init: Any = None, in_rows: Any = None) -> None:
        self.in_init, self.in_rows = in_init, in_rows

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle
        if self.in_init is not None:
            self.in_init(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], times: Any) -> Iterator[Any]:
        self.in_rows(self.handle, times)
        return super().handleInputRows(key, rows, times)


@pytest.mark.parametrize(
    ("in_rows", "words"),
    [
        (lambda handle, _: handle.deleteIfExists("count"), "deleteIfExists('count') is not supported here"),
        (lambda handle, _: handle.getValueState("late", "n int"), "state variables are made in init"),
        (lambda handle, _: handle.registerTimer(5), "registerTimer needs timeMode 'eventTime'"),
        (
            lambda _, times: times.getCurrentProcessingTimeInMs(),
            "TimeInMs is not supported",
        ),
    ],
)
def test_what_a_processor_may_not_do_is_told_by_name(in_rows: Any, words: str) -> None:
    trial = Trial(graph_of("row", processor=Refused(in_rows=in_rows), time_mode="none"))
    with pytest.raises(OperatorError) as caught:
        trial.step({"rows": [row(1), row(2)]})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "given", "words"),
    [
        (
            "function",
            {"timeout": "ProcessingTimeTimeout"},
            "'ProcessingTimeTimeout' is not supported",
        ),
        ("function", {"mode": "complete"}, "output mode 'complete' is not supported"),
        ("row", {"mode": "complete"}, "output mode 'complete' is not supported"),
        ("row", {"time_mode": "processingTime"}, "timeMode 'processingTime' is not supported"),
        ("row", {"processor": Sessions}, "a processor must be an object with init and handleInputRows"),
        (
            "row",
            {"processor": Refused(lambda h: h.getValueState("x", "n int", 5))},
            "ttlDurationMs of",
        ),
        ("row", {"processor": Refused(lambda h: h.getValueState("x", "o pickle"))}, "'pickle' is no type"),
    ],
)
def test_what_spark_has_and_we_have_not_is_refused_where_it_is_written(
    shape: str, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        graph_of(shape, **given)
    assert words in str(caught.value)


def test_the_watermark_of_a_call_is_just_before_its_row() -> None:
    watermarks: list[int] = []

    def note(key: Any, frames: Any, state: Any) -> list[Any]:
        watermarks.append(state.getCurrentWatermarkMs())
        return []

    trial = Trial(graph_of("function", function=note))
    trial.step({"rows": [row(2), row(1)]})
    trial.step({}, end=True)
    assert watermarks == [millis(second(1)) - 1, millis(second(2)) - 1]


# --- rows that are converted together and given to calls in parts -------------------------------------------

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "big": (pa.int64(), [None, 0, 2**53 + 1, -(2**63)]),
    "small": (pa.uint8(), [None, 0, 255]),
    "flag": (pa.bool_(), [None, False, True]),
    "x": (pa.float64(), [None, -0.0, 0.5]),
    "text": (pa.string(), [None, "", "a"]),
    "at": (pa.timestamp("us", "Europe/Berlin"), [None, second(0), second(1.5)]),
    "day": (pa.date32(), [None, second(0).date()]),
    "cents": (pa.decimal128(5, 2), [None, Decimal("1.50")]),
    "list": (pa.list_(pa.int64()), [None, [], [2**53 + 1], [1, None]]),
    "struct": (pa.struct([("n", pa.int64())]), [None, {"n": 2**53 + 1}, {"n": None}]),
    "word": (pa.dictionary(pa.int32(), pa.string()), [None, "a", "b"]),
}


@settings(max_examples=150)
@given(data=st.data())
def test_the_dataframe_of_a_call_does_not_depend_on_the_rows_of_other_calls(data: st.DataObject) -> None:
    """Integers become doubles if one of them is null: only if it is in the same call."""
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))
    count = data.draw(st.integers(1, 8))
    columns = {
        name: pa.array(data.draw(st.lists(st.sampled_from(values), min_size=count, max_size=count)), kind)
        for name, (kind, values) in KINDS.items()
        if name in names
    }
    frames = Frames(pa.record_batch(columns), SessionTimes("UTC", naive=True))
    for _ in range(4):
        begin = data.draw(st.integers(0, count - 1))
        end = data.draw(st.integers(begin + 1, count))
        alone = {
            name: pa.array(
                column.slice(begin, end - begin).to_pylist(), pa.string() if name == "word" else column.type
            )
            for name, column in columns.items()
        }
        expected = pa.record_batch(alone).to_pandas(coerce_temporal_nanoseconds=True)
        if "at" in names:
            expected["at"] = expected["at"].dt.tz_convert("UTC").dt.tz_localize(None)
        found = frames.of(begin, end)
        assert repr(found.to_dict("list")) == repr(expected.to_dict("list"))
        assert [*found.dtypes] == [*expected.dtypes]
        assert [*found.index] == [*expected.index]


LIST = pa.list_(pa.int64())


def frames_of(column: list[Any]) -> list[pd.DataFrame]:
    return [pd.DataFrame({"n": cells, "m": cells}) for cells in column]


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("bigint", [[1], np.array([2**53 + 1]), pd.array([None, 3], "Int64"), [], pd.Categorical([4])]),
        ("bigint", [[1, None], [2.0], [2**62], [True]]),
        ("double", [[0.5, float("nan")], [1], pd.array([None], "Float64"), np.array([1.5], np.float32)]),
        ("string", [["a"], [None, "b"], pd.array(["c", None], "string"), pd.Categorical(["d", "e"])]),
        ("timestamp", [pd.to_datetime(["2024-05-01", None]), [second(0)], pd.to_datetime([second(0)])]),
        ("array<bigint>", [[[1, 2]], [None, np.array([3])], pd.Series([[4]], dtype=pd.ArrowDtype(LIST))]),
        ("binary", [[b"a", None], [bytearray(b"b")]]),
        ("decimal(9,2)", [[Decimal("1.5")], [2], [None]]),
    ],
)  # fmt: skip
def test_dataframes_that_are_returned_give_what_each_gives_alone(kind: str, cells: list[Any]) -> None:
    schema = parse_schema(f"n {kind}, m {kind}")
    results: list[Any] = []
    for convert in (together, alone):
        try:
            results.append(convert(frames_of(cells), schema).to_pylist())
        except UserFault as fault:
            results.append(str(fault))
    assert repr(results[0]) == repr(results[1])


def together(frames: list[pd.DataFrame], schema: pa.Schema) -> pa.RecordBatch:
    taken = []
    for frame in frames:
        taken += cells_of_frames([frame], schema, SessionTimes("UTC", naive=True))
        for name in frame.columns:
            frame[name] = frame[name].iloc[::-1].to_numpy()  # what the function does with it afterwards
    return batch_of_cells(taken, schema)


def alone(frames: list[pd.DataFrame], schema: pa.Schema) -> pa.RecordBatch:
    batches = [batch_of_result(columns_of_frame(frame), schema) for frame in frames]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def test_a_value_that_does_not_fit_is_told_with_the_call_that_returned_it() -> None:
    def function(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame({"key": [key[0]], "n": [1]})
            yield pd.DataFrame({"key": [key[0]], "n": [frame["x"].iloc[0]]})

    trial = Trial(graph_of("function", function=function))
    with pytest.raises(OperatorError) as caught:
        trial.step({"rows": [row(1), row(2, "b", 0.5), row(3)]})
    assert "column 'n' is bigint" in str(caught.value)
    assert "in the call for key 'b' at 2024-05-01T12:00:02" in str(caught.value)


def test_a_call_gets_more_rows_than_one_dataframe_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InSlices, "rows_max", 3)
    given: list[tuple[Any, ...]] = []

    def function(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> None:
        given.append((key[0], state.hasTimedOut))
        for frame in frames:
            given[-1] += (list(frame["x"]),)
            frame.loc[0, "x"] = -1.0  # its own rows, so neither another call nor a warning follows
            frame["mine"] = frame["at"].max()
        if key[0] == "b" and state.getCurrentWatermarkMs() < millis(second(4)):
            state.setTimeoutTimestamp(millis(second(4)))

    trial = Trial(graph_of("function", function=function, calls="group"))
    trial.step({"rows": [row(0, "b"), row(1, "b", 2.0)]})
    trial.step({"rows": [row(2 + n, "ab"[n % 2], float(n)) for n in range(10)]}, end=True)
    assert given == [
        ("b", False, [1.0]),
        ("b", False, [2.0, 1.0]),  # up to the timer for second 4, which this call sets again
        ("a", False, [0.0, 2.0, 4.0], [6.0, 8.0]),
        ("b", True),
        ("b", False, [3.0, 5.0, 7.0], [9.0]),
    ]


def test_an_unknown_division_into_calls_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"calls must be .row., a call for each row; .group.*not .key."):
        graph_of("function", calls="key")


# --- a call for the rows of a key in a micro-batch ----------------------------------------------------------


def batch_graph(calls: list[Any], lateness: timedelta | None, **given: Any) -> Graph:
    """A function that notes its calls: the key, the values of the rows, the watermark; and its timer."""

    def function(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> None:
        found = list(frames)
        seconds = [value for frame in found for value in frame["x"]]
        watermark = state.getCurrentWatermarkMs() if lateness is not None else None
        calls.append(("out" if state.hasTimedOut else key[0], seconds, watermark))
        if lateness is not None and found:
            state.setTimeoutTimestamp(millis(second(int(max(seconds))) + timedelta(seconds=5)))
        state.update((0,))

    graph = Graph("batches")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    if lateness is not None:
        rows = rows.event_time("timed", "at", lateness=lateness - timedelta(microseconds=1))
    timeout = "NoTimeout" if lateness is None else "EventTimeTimeout"
    made = rows.key_by("by_key", "key").apply_in_pandas_with_state(
        "s", function, SESSIONS, STATE, "append", timeout, time="at", calls="batch", **given
    )
    made.sink("out", CallSink(print))
    return graph


def at(*seconds: float) -> list[AnyRow]:
    return [row(0, "a", one) | {"at": second(0) + timedelta(seconds=one)} for one in seconds]


def test_without_event_time_no_row_is_late_whatever_a_clock_does() -> None:
    calls: list[Any] = []
    trial = Trial(batch_graph(calls, None))
    for rows in (at(50.0, 20.0), at(10.0), at(10.0, 50.0), at(-7.0)):  # the last ones are before all others
        trial.step({"rows": rows}, checkpoint=True)
        assert [counters["s"]["rows"] for counters in trial.counters()] == [0] * len(trial.counters())
    assert calls == [
        ("a", [20.0, 50.0], None),
        ("a", [10.0], None),
        ("a", [10.0, 50.0], None),
        ("a", [-7.0], None),
    ]


def test_a_call_for_a_micro_batch_has_sparks_watermark_and_timers_come_after_all_rows() -> None:
    calls: list[Any] = []
    trial = Trial(batch_graph(calls, timedelta(seconds=2)))
    zero = millis(second(0))
    trial.step({"rows": at(3.0004, 1.0)})
    # The watermark is at 1 second, in whole milliseconds: a row of 1 s is late, one of 1.0002 s is not.
    trial.step({"rows": at(20.0, 1.0, 1.0002)})
    # That row put the timer off to 25 s. With a watermark of exactly 25 s it waits, as in Spark.
    trial.step({"rows": [one | {"key": "b"} for one in at(27.0)]})
    trial.step({"rows": [one | {"key": "b"} for one in at(27.001)]})
    trial.step({"rows": at(26.0)})
    assert calls == [
        ("a", [1.0, 3.0004], 0),
        ("a", [1.0002, 20.0], zero + 1_000),
        ("b", [27.0], zero + 18_000),
        ("b", [27.001], zero + 25_000),
        ("out", [], zero + 25_001),
        ("a", [26.0], zero + 25_001),
    ]


@pytest.mark.parametrize("takes", ["row", "pandas"])
def test_a_processor_gets_a_micro_batch_and_the_timer_of_its_watermark_fires(takes: str) -> None:
    calls: list[Any] = []

    class Noted(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Iterator[Any], times: Any) -> Iterator[Any]:
            self.handle.registerTimer(millis(second(4)))
            found = [one.x if takes == "row" else list(one["x"]) for one in rows]
            calls.append((found, times.getCurrentWatermarkInMs(), times.getCurrentProcessingTimeInMs()))
            return iter([])

        def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Iterator[Any]:
            calls.append((info.getExpiryTimeInMs(), times.getCurrentWatermarkInMs()))
            return iter([])

    def copied(processor: Any, memo: Any) -> Any:
        return processor

    Noted.__deepcopy__ = copied  # type: ignore[attr-defined]
    graph = Graph("batches")
    rows = graph.source("rows", InputSource("rows", f"{SCHEMA}, clock timestamp"))
    rows = rows.event_time("timed", "at", lateness=timedelta(0))
    made = rows.key_by("by_key", "key").transform_with_state(
        "s", Noted(), SESSIONS, "append", "eventTime", time="at", takes=takes, calls="batch", clock="clock"
    )
    made.sink("out", CallSink(print))
    trial = Trial(graph)
    for fed in (at(0.0, 5.0), at(9.0)):
        trial.step({"rows": [one | {"clock": second(100)} for one in fed]})
    zero = millis(second(0))
    rows_of = (lambda *found: [*found]) if takes == "row" else (lambda *found: [[*found]])
    assert calls == [
        (rows_of(0.0, 5.0), 0, zero + 100_000),
        (zero + 4_000, zero + 4_999),
        (rows_of(9.0), zero + 4_999, zero + 100_000),
        (zero + 4_000, zero + 4_999),
    ]


def test_an_emitted_time_is_above_the_watermark_that_windows_below_have_reached() -> None:
    class Emits(StatefulProcessor):
        """Emits the time x of each row, and that of its timer."""

        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Iterator[Any], times: Any) -> Iterator[Any]:
            self.handle.registerTimer(millis(second(15)))
            for one in rows:
                yield key[0], second(0) + timedelta(seconds=one.x)

        def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Iterator[Any]:
            yield key[0], second(15)

    def graph_of(column: str) -> Graph:
        graph = Graph("emitted")
        rows = graph.source("rows", InputSource("rows", SCHEMA))
        rows = rows.event_time("timed", "at", lateness=timedelta(seconds=2, microseconds=-1))
        made = rows.key_by("by_key", "key").transform_with_state(
            "s",
            Emits(),
            "key string, seen timestamp",
            "append",
            "eventTime",
            time="at",
            eventTimeColumnName=column,
            calls="batch",
        )
        counts = made.key_by("again", "key").aggregate(
            "counts", Tumbling("seen", timedelta(seconds=10)), n=Count()
        )
        counts.sink("out", LogSink())
        return graph

    trial = Trial(graph_of("seen"))
    trial.step({"rows": at(12.0)})
    # The timer fires when the watermark passes both itself and its window, which has its row nevertheless.
    trial.step({"rows": [one | {"x": 10.001} for one in at(32.0)]})
    (counted,) = trial.rows("out")
    assert (counted["window_start"], counted["n"]) == (second(10), 3)
    text = r"event time .*:30.000000 UTC in 'seen', which is not above the watermark.*key 'a'"
    with pytest.raises(OperatorError, match=text) as caught:
        trial.step({"rows": [one | {"x": 30.0} for one in at(33.0)]})
    assert "getCurrentWatermarkInMs" in str(caught.value)
    with pytest.raises(GraphError, match="time column 'other' does not exist"):
        graph_of("other").plan()


def test_calls_for_micro_batches_have_no_time_to_live_and_no_watermark_of_nothing() -> None:
    with pytest.raises(SchemaError, match="ttl needs calls in the order of event time"):
        batch_graph([], None, ttl=timedelta(days=1))
    with pytest.raises(GraphError, match="clock must be another column"):
        batch_graph([], None, clock="key").plan()

    def function(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> None:
        state.getCurrentWatermarkMs()

    graph = Graph("batches")
    keyed = graph.source("rows", InputSource("rows", SCHEMA)).key_by("by_key", "key")
    made = keyed.apply_in_pandas_with_state(
        "s", function, SESSIONS, STATE, "append", time="at", calls="batch"
    )
    made.sink("out", CallSink(print))
    with pytest.raises(OperatorError, match="the operator has no event time above it"):
        Trial(graph).step({"rows": [row(0)]})
