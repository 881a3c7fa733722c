"""The rule for values at every border of user code. `test_values_of_states.py` has states and timers."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from checkpoint.errors import EditRefusedError
from dataflow import IteratorSource, KeyState
from dataflow.editing import as_table
from dataflow.errors import OperatorError, SchemaError, UserFault
from dataflow.operators.apply import apply_spec
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec
from dataflow.operators.functions import FlatMapSpec, MapSpec
from dataflow.operators.spark_functions import GroupState
from dataflow.operators.user_operator import UserOperator
from dataflow.producing import parts_of
from dataflow.state.given_rows import typed
from dataflow.state.migration import Migration, StateHistory
from dataflow.state.processor_states import ProcessorHandle
from dataflow.testing.trial import batch_of
from dataflow.values.columns import column_of
from dataflow.values.kinds import values_of
from tests.dataflow.sample_values import KINDS, VALUES, shape

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
        state = GroupState(schema, KeyState(), 0, "NoTimeout", out=False)
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
