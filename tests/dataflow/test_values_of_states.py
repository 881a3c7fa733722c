"""What a state gives back: at once, from disk, after crashes and a kill; what a timer takes."""

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
from dataflow import CallSink, FileSink, Graph, InputSource, KeyState, blocking
from dataflow.core.event_time import END
from dataflow.errors import UserFault
from dataflow.operators.base import OperatorContext
from dataflow.operators.map_state import MapStateSpec
from dataflow.testing import Trial
from dataflow.values.columns import column_of
from dataflow.values.kinds import values_of
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.sample_values import KINDS, VALUES, shape
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_processes import WAIT_S, finished, kill, running

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


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
            watch.checkpoints(1)
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
