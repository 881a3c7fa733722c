"""The rule for values at every border of user code; what a state gives back after calls, crashes, kills."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from checkpoint.core.region import RegionState
from checkpoint.errors import EditRefusedError
from dataflow import CallSink, FileSink, Graph, InputSource, IteratorSource, KeyState, blocking
from dataflow.core.event_time import END
from dataflow.editing.planning import as_table
from dataflow.editing.rows import typed
from dataflow.errors import OperatorError, SchemaError, UserFault
from dataflow.operators.apply import apply_spec
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec
from dataflow.operators.functions import FlatMapSpec, MapSpec
from dataflow.operators.group_state import GroupState
from dataflow.operators.map_state import MapStateSpec
from dataflow.operators.user_operator import UserOperator
from dataflow.producing import parts_of
from dataflow.state.migration import Migration, StateHistory
from dataflow.state.processor_states import ProcessorHandle
from dataflow.testing import Trial
from dataflow.testing.step_batches import batch_of
from dataflow.values.columns import column_of
from dataflow.values.nested import values_of
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.sample_values import KINDS, VALUES, shape
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_processes import WAIT_S, finished, kill, running

ONE = pa.record_batch({"line": pa.array(["x"])})
REFUSALS = (UserFault, OperatorError, SchemaError, EditRefusedError)
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
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


# --- states -------------------------------------------------------------------------------------------------


def taken_values(kind: pa.DataType) -> list[Any]:
    taken = []
    for value in VALUES:
        with suppress(UserFault):
            column_of([value], pa.field("c", kind))
            taken.append(value)
    return taken


def state_graph(columns: pa.Schema, write: Callable[[str], dict[str, Any]], seen: Any, place: Any) -> Graph:
    """The first row of a key writes a state, the later ones read it and write it again."""

    def on_row(row: dict[str, Any], state: KeyState) -> None:
        if row["n"] == 0:
            state.value = write(row["k"])
            return
        assert state.value is not None
        seen.append((row["k"], shape(state.value)))
        state.value = state.value if row["n"] == 1 else dict(reversed(state.value.items()))

    graph = Graph("states")
    rows = graph.source("rows", InputSource("rows", "at timestamp, k string, n bigint"))
    keyed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_key", "k")
    made = keyed.map_state("state", on_row, time="at", schema="n bigint", state=columns, state_on=place)
    made.sink("out", CallSink(print))
    return graph


def step(trial: Trial, n: int, keys: Iterable[str]) -> None:
    time = NOON + timedelta(seconds=n)
    later = {"at": time + timedelta(seconds=0.5), "k": "z", "n": 0}
    trial.step({"rows": [*({"at": time, "k": key, "n": n} for key in keys), later]}, checkpoint=True)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_state_gives_back_the_same_at_once_and_after_a_crash(
    place: str, *, crash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataflow.limits.cached_values_min", 1)
    monkeypatch.setattr("dataflow.limits.cached_values_max", 1)
    kinds = [kind for kind in KINDS if not pa.types.is_dictionary(kind)]
    columns = pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)])
    values = [taken_values(kind) for kind in kinds]
    written = {
        str(number): {f"c{at}": several[number % len(several)] for at, several in enumerate(values)}
        for number in range(max(map(len, values)))
    }
    expected = {
        key: shape({field.name: values_of(column_of([value[field.name]], field))[0] for field in columns})
        for key, value in written.items()
    }
    seen: list[tuple[str, Any]] = []
    trial = Trial(state_graph(columns, lambda key: written.get(key, written["0"]), seen, place))
    for n in range(4):
        step(trial, n, written)
        if crash:
            trial.crash()
    trial.step({}, end=True)
    assert len(seen) == 3 * len(written)
    assert {key: read for key, read in seen if read != expected[key]} == {}


def test_what_a_function_keeps_and_changes_is_not_what_the_state_keeps() -> None:
    kept: dict[str, Any] = {"c": [1], "d": {"a": 1}}
    seen: list[tuple[str, Any]] = []
    columns = pa.schema([("c", pa.list_(pa.int64())), ("d", pa.map_(pa.string(), pa.int64()))])

    def write(key: str) -> dict[str, Any]:
        kept["c"].append(len(kept["c"]) + 1)
        return kept

    trial = Trial(state_graph(columns, write, seen, "memory"))
    step(trial, 0, "ab")
    step(trial, 1, "ab")
    trial.step({}, end=True)
    d = {"a": 1}
    assert seen == [("a", shape({"c": [1, 2], "d": d})), ("b", shape({"c": [1, 2, 3], "d": d}))]


@pytest.mark.parametrize(
    ("timer", "said"),
    [
        (1_714_564_800, "timer is timestamp, which holds times.* given int 1714564800"),
        ("2024-05-01", "given str '2024-05-01'"),
        (pd.Timestamp(1, tz="UTC"), "given Timestamp"),
    ],
)
def test_a_timer_takes_what_its_time_column_takes(timer: Any, said: str) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("k", pa.string())])
    one = pa.record_batch([[NOON], ["a"]], schema=schema).append_column("_hash", pa.array([1], pa.uint64()))

    def run(value: Any) -> list[Any]:
        def on_row(row: Any, state: KeyState) -> None:
            state.timer = value

        fired: list[Any] = []
        spec = MapStateSpec(
            ("k",),
            "at",
            on_row,
            lambda key, at, state: fired.append(at),
            schema,
            pa.schema([("n", pa.int64())]),
        )
        operator = spec.open(OperatorContext("r", "op", 0, 1, b"", (schema,), schema))
        operator.process(one)
        operator.on_punctuation(END)
        return fired

    with pytest.raises(UserFault, match=said):
        run(timer)
    for same in (NOON, NOON.replace(tzinfo=None), pd.Timestamp(NOON)):
        assert run(same) == [NOON]


# --- real processes -----------------------------------------------------------------------------------------


def adds(row: dict[str, Any], state: KeyState) -> Iterator[tuple[str, str]]:
    before = state.value or {"d": 0, "m": {}, "xs": [], "at": None}
    state.value = {
        "d": before["d"] + Decimal("0.4"),
        "m": {**before["m"], str(len(before["m"])): 1.0},
        "xs": [*before["xs"][-2:], 0.5],
        "at": row["at"].replace(tzinfo=None),
    }
    yield row["k"], repr(before)


def adding(sink: Any, on_row: Any) -> Graph:
    graph = Graph("adding")
    rows = graph.source("rows", InputSource("rows", "at timestamp, k string"))
    keyed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_key", "k")
    state = "d decimal(9,2), m map<string,bigint>, xs array<float>, at timestamp"
    made = keyed.map_state("adds", on_row, time="at", schema="k string, was string", state=state)
    made.sink("out", sink)
    return graph


def at(second: int) -> dict[str, Any]:
    return {"at": NOON + timedelta(seconds=second), "k": f"k{second % 3}"}


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_killed_worker_changes_nothing_that_functions_see_of_their_state(
    shared_store: str, tmp_path: Path
) -> None:
    rows = [at(second) for second in range(30)]
    trial = Trial(adding(CallSink(print), adds))
    trial.step({"rows": rows}, end=True)

    with (
        open_blocking(shared_store) as client,
        running(adding(FileSink(tmp_path / "out"), adds), shared_store, tmp_path) as (control, watch),
    ):
        with blocking.open_producer(client, tmp_path.name, "rows", "p", "at timestamp, k string") as sender:
            sender.wait_recorded(sender.send(rows[:15]))
            watch.cuts(1)
            kill(control, 0, wipe=True)
            sender.wait_recorded(sender.send(rows[15:]))
        blocking.close_input(client, tmp_path.name, "rows")
        assert finished(control), control.status
    found = sorted((key, was) for _, (key, was) in rows_of(tmp_path / "out"))
    assert found == sorted((row["k"], row["was"]) for row in trial.rows("out"))


def wrong(row: dict[str, Any], state: KeyState) -> None:
    state.value = {"d": 0.1, "m": {}, "xs": [], "at": None}


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_value_that_a_column_does_not_hold_stops_the_region_at_once(
    shared_store: str, tmp_path: Path
) -> None:
    graph = adding(FileSink(tmp_path / "out"), wrong)
    with open_blocking(shared_store) as client, running(graph, shared_store, tmp_path) as (control, _):
        with blocking.open_producer(client, tmp_path.name, "rows", "p", "at timestamp, k string") as sender:
            sender.wait_recorded(sender.send([at(0)]))
        blocking.close_input(client, tmp_path.name, "rows")
        assert control.wait(WAIT_S)
        assert control.status.state is RegionState.FAILED
        said = str(control.exception())
        assert not control.status.resets
    for part in ("operator 'adds'", "state 'd' is decimal(9,2)", "float 0.1", "k 'k0'", "quantize"):
        assert part in said
