"""The one rule for values: every value against every type, at every border, and what is read back.

The oracle (`same`) compares what was written with what is read, and knows nothing of the code. `TAKEN` is the
table of docs/operators.md.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import EditRefusedError
from dataflow import IteratorSource, KeyState
from dataflow.editing import as_table
from dataflow.errors import OperatorError, SchemaError, UserFault
from dataflow.operators.apply import apply_spec
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec
from dataflow.operators.functions import FlatMapSpec, MapSpec
from dataflow.operators.spark_functions import GroupState, TimerValues
from dataflow.operators.user_operator import UserOperator
from dataflow.producing import parts_of
from dataflow.schema import parse_schema
from dataflow.state.disk_value_store import ValueBytes
from dataflow.state.given_rows import typed
from dataflow.state.migration import Migration, StateHistory
from dataflow.state.processor_states import ProcessorHandle
from dataflow.testing.trial import batch_of
from dataflow.values.columns import column_of, fitted_column, taker
from dataflow.values.kinds import values_of
from dataflow.values.python_rows import batch_of_result
from dataflow.values.spark_rows import UTC_ZONE, SessionTimes, Tuples
from tests.dataflow.sample_values import (
    EAST,
    FIRST,
    KINDS,
    LAST,
    MIDNIGHT,
    NOON,
    VALUES,
    Color,
    SparkRow,
    Word,
    same,
    shape,
)


def read_back(value: Any, kind: pa.DataType) -> Any:
    """What is read after a column took the value. Raises UserFault."""
    (read,) = values_of(column_of([value], pa.field("c", kind)))
    return read


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_a_column_takes_is_read_back_the_same_and_all_else_is_refused_by_name(kind: pa.DataType) -> None:
    take = taker(pa.field("c", kind), "state 'c'")
    for value in VALUES:
        try:
            read = read_back(value, kind)
        except UserFault as fault:
            refused = fault
            with pytest.raises(UserFault):
                take(value)
            assert (refused.row, "column 'c'" in str(refused), bool(refused.remedy)) == (0, True, True)
            continue
        assert same(value, read), (value, kind, read)
        assert shape(take(value)) == shape(read), (value, kind)
        assert shape(read_back(read, kind)) == shape(read), (value, kind)
        for several in ([value, read], [None, value], [read, None, value]):
            column = column_of(several, pa.field("c", kind))
            assert [shape(one) for one in values_of(column)] == [
                shape(None if one is None else read) for one in several
            ], (several, kind)


TAKEN: dict[str, list[Any]] = {
    "tinyint": [0, 127, Color.RED, 1.0, Decimal("2.000"), np.int64(5), None],
    "bigint": [2**53 + 1, -(2**63), 2.0**60],
    "float": [0.5, 2**24, np.float32(0.1), math.nan, -math.inf, Decimal("0.5")],
    "double": [0.1, 2**53, 1e300, math.nan, math.inf, Decimal("0.5"), np.float32(0.1)],
    "decimal(5,2)": [Decimal("2.7"), Decimal("1E+2"), 3, 1.5, 999],
    "boolean": [True, False, np.bool_(True)],
    "string": ["é", "", Word.A],
    "binary": [b"\xff", bytearray(b"a")],
    "date": [date(1, 1, 1), MIDNIGHT],
    "timestamp": [NOON, NOON.replace(tzinfo=EAST), date(2024, 5, 1), LAST, pd.Timestamp(NOON)],
    "timestamp_ntz": [NOON, date(2024, 5, 1), FIRST],
    "array<int>": [[], [1, None], (1, 2), np.array([1, 2])],
    "struct<a:bigint,b:double>": [{"b": 1, "a": 1}, (1, 0.5), SparkRow((0.5, 1))],
    "map<string,bigint>": [{"a": 1}, [("a", 1)], {}],
}
REFUSED: dict[str, list[Any]] = {
    "tinyint": [128, 1.5, True, "1", math.nan, Decimal("2.7")],
    "bigint": [1.5, Decimal("2.7"), 2**63, "1", b"1", NOON, True],
    "float": [0.1, 1e300, 2**24 + 1, True, "0.5"],
    "double": [2**53 + 1, True, "nan", Decimal("0.1")],
    "decimal(5,2)": [Decimal("1.005"), 0.1, 1000, math.nan, True, "1"],
    "boolean": [0, 1, "false", 0.5],
    "string": [1, b"a", math.nan, "\ud800", NOON],
    "binary": ["a", [1]],
    "date": [NOON, MIDNIGHT.replace(tzinfo=UTC), 5, "2024-05-01"],
    "timestamp": [1_700_000_000, 1.5, "2024-05-01", pd.Timestamp(1), time(1)],
    "timestamp_ntz": [NOON.replace(tzinfo=UTC), 5],
    "array<int>": [[1.7], 1, {1, 2}, [True]],
    "array<string>": ["ab", [1], {"a": 1}],
    "struct<a:bigint,b:double>": [{"a": 1}, {"a": 1, "B": 0.5}, {"a": 1, "b": 0.5, "c": 0}, (1,), [("a", 1)]],
    "map<string,bigint>": [{None: 1}, [("a", 1), ("a", 2)], {"a": 1.5}, "a"],
    "struct<a:bigint not null>": [{"a": None}],
}


def test_the_table_in_the_docs_is_what_columns_take() -> None:
    for declared, values in TAKEN.items():
        for value in values:
            (kind,) = parse_schema(f"c {declared}").types
            assert same(value, read_back(value, kind)), (declared, value)
    for declared, values in REFUSED.items():
        for value in values:
            (kind,) = parse_schema(f"c {declared}").types
            with pytest.raises(UserFault, match="column 'c'"):
                read_back(value, kind)


def test_a_fault_names_the_place_in_a_nested_value_and_shows_a_value_whose_repr_fails() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError

    (field,) = parse_schema("c array<struct<a:bigint,b:map<string,int>>>")
    with pytest.raises(
        UserFault, match=r"column 'c'\[1\]\.b\[str 'x'\] is int, which holds .* given float 1.5"
    ):
        column_of([[{"a": 1, "b": {}}, {"a": 1, "b": {"x": 1.5}}]], field)
    with pytest.raises(UserFault, match="given Bad that cannot be shown"):
        column_of([[Bad()]], field)


def arrow_columns() -> Iterator[pa.Array]:
    """One column of Arrow for each kind, of all values that it takes."""
    for kind in KINDS:
        taken = []
        for value in VALUES:
            try:
                taken.append(read_back(value, kind))
            except UserFault:
                continue
        yield pa.array(taken, kind)


def test_a_column_of_arrow_is_taken_as_its_values_are() -> None:
    columns = list(arrow_columns())
    for column in columns:
        for kind in KINDS:
            for at in range(len(column)):
                one = column.slice(at, 1)
                try:
                    (value,) = values_of(one)
                except (ValueError, OverflowError):
                    continue
                try:
                    expected = shape(read_back(value, kind))
                except UserFault:
                    with pytest.raises(UserFault):
                        fitted_column(one, pa.field("c", kind))
                    continue
                (read,) = values_of(fitted_column(one, pa.field("c", kind)))
                assert shape(read) == expected, (one.type, kind, value)


@given(data=st.data())
def test_any_number_is_held_exactly_or_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([kind for kind in KINDS if pa.types.is_primitive(kind)]))
    numbers = (
        st.integers() | st.floats() | st.decimals(allow_nan=False) | st.floats(width=32) | st.integers(0, 300)
    )
    values = data.draw(st.lists(numbers | st.none(), max_size=4))
    try:
        read = values_of(column_of(values, pa.field("c", kind)))
    except UserFault as fault:
        with pytest.raises(UserFault):
            read_back(values[fault.row or 0], kind)
    else:
        assert all(map(same, values, read)), (values, kind, read)


def test_a_null_in_a_column_of_arrow_that_is_not_null_is_refused_with_its_row() -> None:
    field = pa.field("c", pa.int64(), nullable=False)
    for column in (pa.array([1, None]), pa.chunked_array([[1], [None]]), pa.array([1, None], pa.int8())):
        with pytest.raises(UserFault, match="column 'c' is bigint, which holds no null") as caught:
            fitted_column(column, field)
        assert caught.value.row == 1
    with pytest.raises(UserFault, match="which holds no null"):
        batch_of_result(pa.record_batch([pa.array([1, None])], schema=pa.schema([field])), pa.schema([field]))


# --- values of a declared state become bytes and come back as Arrow would give them -------------------------


NINETEEN_HUNDRED = datetime(1900, 1, 1)  # noqa: DTZ001 - of a column without a zone
_ints = st.integers(-(2**63), 2**63 - 1)
_times = st.timedeltas(timedelta(0), timedelta(110_000)).map(lambda since: NINETEEN_HUNDRED + since)
_aware = _times.map(lambda time: time.replace(tzinfo=UTC))
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
BYTE_KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), _ints),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.string(), _texts),
    (pa.large_string(), _texts),
    (pa.binary(), st.binary(max_size=5)),
    (pa.timestamp("us", "UTC"), _aware),
    (pa.timestamp("ms", "Europe/Zurich"), _aware.map(lambda time: time.replace(microsecond=0))),
    (pa.timestamp("us"), _times),
    (pa.timestamp("ns"), _times),
    (pa.timestamp("s"), _times.map(lambda time: time.replace(microsecond=0))),
    (pa.date32(), st.dates(date(1, 1, 1))),
    (pa.time32("s"), _times.map(lambda time: time.time().replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(timedelta(-9_999), timedelta(9_999))),
    (pa.decimal128(12, 2), st.decimals(-9_999, 9_999, places=2)),
    (pa.list_(pa.string()), st.lists(_texts | st.none(), max_size=3)),
    (pa.list_(pa.timestamp("us", "UTC")), st.lists(_aware, max_size=2)),
    (pa.struct([("n", pa.int64()), ("s", pa.string())]), st.fixed_dictionaries({"n": _ints, "s": _texts})),
    (pa.struct([("d", pa.decimal128(5, 1))]), st.just({"d": Decimal("1.5")})),
    (pa.map_(pa.string(), pa.int64()), st.dictionaries(_texts, _ints, max_size=2)),
    (pa.list_(pa.struct([("n", pa.int64())])), st.lists(st.fixed_dictionaries({"n": _ints}), max_size=2)),
    (pa.null(), st.none()),
]


@given(data=st.data())
def test_what_returns_is_what_arrow_gives_one_by_one_and_all_together(data: st.DataObject) -> None:
    drawn = data.draw(
        st.lists(st.sampled_from(range(len(BYTE_KINDS))), min_size=1, max_size=4), label="kinds"
    )
    columns = pa.schema([(f"c{place}", BYTE_KINDS[kind][0]) for place, kind in enumerate(drawn)])
    one = st.fixed_dictionaries(
        {f"c{place}": st.none() | BYTE_KINDS[kind][1] for place, kind in enumerate(drawn)}
    )
    values = data.draw(st.lists(one, max_size=4), label="values")
    arrays = [pa.array([value[field.name] for value in values], field.type) for field in columns]
    expected = [
        dict(zip(columns.names, row, strict=True)) for row in zip(*map(values_of, arrays), strict=True)
    ]

    made = ValueBytes(columns)
    rows = made.of_values(values)
    assert rows == made.of_columns(arrays)
    assert repr([made.value(row) for row in rows]) == repr(expected)
    for found, array in zip(made.columns(rows), arrays, strict=True):
        assert found.equals(array)


def test_where_there_is_no_value_columns_are_null() -> None:
    made = ValueBytes(pa.schema([("n", pa.int64()), ("d", pa.decimal128(5, 1)), ("at", pa.date32())]))
    (row,) = made.of_values([{"n": 1, "d": Decimal("1.5"), "at": date(2024, 5, 1)}])
    assert [column.to_pylist() for column in made.columns([None, row])] == [
        [None, 1],
        [None, Decimal("1.5")],
        [None, date(2024, 5, 1)],
    ]


@pytest.mark.parametrize("wrap", [lambda kind: kind, pa.list_, lambda kind: pa.struct([("a", kind)])])
def test_a_dictionary_is_refused_by_the_columns_name(wrap: Any) -> None:
    kind = wrap(pa.dictionary(pa.int32(), pa.string()))
    with pytest.raises(SchemaError, match=r"state column 'tag' of type .* cannot be kept on disk: declare"):
        ValueBytes(pa.schema([("tag", kind)]))


# --- the rule for values at every border of user code -------------------------------------------------------


ONE = pa.record_batch({"line": pa.array(["x"])})
REFUSALS = (UserFault, OperatorError, SchemaError, EditRefusedError)
Border = Callable[[pa.Schema, list[Any]], Callable[[], Any]]
"""From a column c and a list of one, the value to write, to a function that writes and reads it."""


def opened(spec: OperatorSpec) -> Operator:
    output = spec.output_schema([ONE.schema])
    return spec.open(OperatorContext("r", "op", 0, 1, b"", (ONE.schema,), output))


def read_of(batches: Any) -> Any:
    (batch,) = batches
    ((value,),) = map(values_of, batch.columns)
    return value


def of_function(made: Callable[[list[Any]], Callable[[Any], Any]], takes: Any, spec: Any = MapSpec) -> Border:
    def border(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
        operator = opened(spec(made(value), takes, schema))
        return lambda: read_of(operator.process(ONE))

    return border


def side_output(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
    function = lambda row, emit: emit("side", {"c": value[0]}) or row  # noqa: E731
    operator = opened(MapSpec(function, "row", side_outputs=(("side", schema),)))

    def write() -> Any:
        operator.process(ONE)
        return read_of(operator.take_side_output("side"))

    return write


def own_operator(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
    class Gives(UserOperator):
        def process(self, batch: pa.RecordBatch) -> Any:
            return [(value[0],)]

        def __deepcopy__(self, memo: Any) -> "Gives":
            return self

    Gives.schema = schema
    operator = opened(apply_spec(Gives()))
    operator.restored()
    return lambda: read_of(operator.process_of(0, ONE))


def state_of_own_operator(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
    class Keeps(UserOperator):
        def process(self, batch: pa.RecordBatch) -> None:
            return None

        def checkpoint(self) -> Any:
            return [{"c": value[0]}]

        def reset(self, rows: pa.RecordBatch) -> None:
            """Nothing is restored here."""

        def __deepcopy__(self, memo: Any) -> "Keeps":
            return self

    Keeps.state = schema

    operator = opened(apply_spec(Keeps()))
    operator.restored()
    (table,) = operator.tables().values()

    def write() -> Any:
        table.checkpoint()
        return values_of(table.snapshot().column("c"))[-1]

    return write


def iterator_source(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
    source = IteratorSource(lambda split, at: iter([(1, {"c": value[0]})]), schema)

    def write() -> Any:
        batch = source.open(OperatorContext("r", "op", 0, 1, b"", (), schema)).read(1)
        assert batch is not None
        return read_of([batch.batch])

    return write


def producer(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
    def write() -> Any:
        ((_, data),) = parts_of([{"c": value[0]}], schema)
        return read_of(pa.ipc.open_stream(data).read_all().to_batches())

    return write


def group_state(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
    def write() -> Any:
        tuples = Tuples(schema, SessionTimes(UTC_ZONE, naive=True))
        state = GroupState(tuples, KeyState(), TimerValues(0), "NoTimeout", out=False)
        state.update((value[0],))
        return (state.as_value() or {})["c"]

    return write


def processor_state(which: str) -> Border:
    def border(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
        handle = ProcessorHandle(timers=False)
        one, several, by_key = (
            handle.getValueState("one", schema),
            handle.getListState("several", schema),
            handle.getMapState("by_key", "k int", schema),
        )

        def write() -> Any:
            if which == "value":
                one.update((value[0],))
                (read,) = one.get() or ()
            elif which == "list":
                several.put([(value[0],)])
                ((read,),) = several.get()
            else:
                by_key.updateValue((1,), (value[0],))
                (read,) = by_key.getValue((1.0,)) or ()
            return read

        return write

    return border


def migration(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
    history = StateHistory(schema, 2, [Migration(1, "n int", lambda old: {"c": value[0]})])
    return lambda: history.migrated(1, {"n": 1})["c"]


def edited(schema: pa.Schema, value: list[Any]) -> Callable[[], Any]:
    def write() -> Any:
        ((name, column),) = as_table("op", [{"c": value[0]}]).columns
        return values_of(typed("op", name, column, schema.types[0]))[0]

    return write


BORDERS: dict[str, Border] = {
    "map": of_function(lambda value: lambda row: {"c": value[0]}, "row"),
    "flat_map": of_function(lambda value: lambda row: [(value[0],)], "row", FlatMapSpec),
    "batches": of_function(lambda value: lambda batch: {"c": [value[0]]}, "batch"),
    "frames": of_function(
        lambda value: lambda frame: pd.DataFrame({"c": pd.Series([value[0]], dtype=object)}), "pandas"
    ),
    "side output": side_output,
    "own operator": own_operator,
    "state of an own operator": state_of_own_operator,
    "iterator": iterator_source,
    "producer": producer,
    "trial": lambda schema, value: lambda: read_of([batch_of([{"c": value[0]}], schema)]),
    "group state": group_state,
    "value state": processor_state("value"),
    "list state": processor_state("list"),
    "map state": processor_state("map"),
    "migration": migration,
    "edit": edited,
}


@pytest.mark.parametrize("name", BORDERS)
def test_every_border_takes_and_refuses_the_same_values_and_gives_the_same_back(name: str) -> None:
    for kind in KINDS:
        schema = pa.schema([("c", kind)])
        with suppress(SchemaError):  # of a type that a state cannot have
            written: list[Any] = [None]
            write = BORDERS[name](schema, written)
            for value in VALUES:
                written[0] = value
                try:
                    expected = values_of(column_of([value], schema.field("c")))
                except UserFault:
                    with pytest.raises(REFUSALS):
                        write()
                    continue
                assert shape(write()) == shape(expected[0]), (name, kind, value)


def test_frames_of_numbers_keep_nan_and_never_make_a_null_of_it() -> None:
    def run(declared: str, frame: pd.DataFrame) -> list[Any]:
        spec = MapSpec(lambda given: frame, "pandas", pa.schema([("c", pa.float64())]))
        if declared == "bigint":
            spec = MapSpec(lambda given: frame, "pandas", pa.schema([("c", pa.int64())]))
        return [read_of(opened(spec).process(ONE))]

    nan = pd.DataFrame({"c": [float("nan")]})
    assert repr(run("double", nan)) == "[nan]"
    with pytest.raises(UserFault, match=r"column 'c' is bigint.* given float nan") as caught:
        run("bigint", nan)
    assert "NaN is a number, not null" in caught.value.remedy
    assert run("bigint", pd.DataFrame({"c": pd.Series([None], dtype="Int64")})) == [None]
    assert run("bigint", pd.DataFrame({"c": [3.0]})) == [3]
