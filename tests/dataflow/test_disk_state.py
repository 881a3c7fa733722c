"""A state on disk: what comes out is what comes out of one in memory, whatever happens on the way."""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from subprocess import run
from sys import executable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from checkpoint.core.region import ResetReport
from dataflow import (
    CallSink,
    FileSink,
    Graph,
    InputSource,
    KeyState,
    Migration,
    SchemaError,
    blocking,
    limits,
)
from dataflow.errors import OperatorError
from dataflow.state import keyed_table
from dataflow.state.disk_value_store import DiskValueStore
from dataflow.state.key_states import MemoryValueStore, ValueStore
from dataflow.testing import Trial
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_processes import finished, running
from tests.dataflow.test_spark_shapes import Sessions, SessionsOfFrames, sessions
from tests.dataflow.trials import SCHEMA, Row, Step, row, timely
from tests.support.small_disk import SmallDisk, small_disk

RESULT = "key string, at timestamp, total bigint, seen array<double>"
STATES = {1: "n int, since timestamp", 2: "n bigint, since timestamp, seen array<double>"}


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little is held that values come and go all the time, and so few keys are dead that slots move."""
    monkeypatch.setattr(limits, "cached_values_max", 2)
    monkeypatch.setattr(limits, "cached_values_min", 2)
    monkeypatch.setattr(limits, "snapshot_piece_rows", 2)
    monkeypatch.setattr(keyed_table, "_dead_min", 1)


# --- the two places, side by side ---------------------------------------------------------------------------

COLUMNS = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])
_value = st.none() | st.fixed_dictionaries(
    {"n": st.none() | st.integers(-5, 5), "tags": st.lists(st.sampled_from(["a", "bb"]), max_size=2)}
)
_slots = st.lists(st.integers(0, 7), max_size=5, unique=True)
_actions = st.lists(
    st.tuples(st.just("put"), st.integers(0, 7), _value)
    | st.tuples(st.just("clear"), _slots)
    | st.tuples(st.just("keep"), _slots)
    | st.tuples(st.sampled_from(["settle", "swap"])),
    max_size=30,
)


def as_stored(values: ValueStore, slots: int) -> list[Any]:
    every = np.arange(slots)
    return [values.has(every).tolist(), *(column.to_pylist() for column in values.store(every))]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=_actions)
@example([("put", 6, {"n": 1, "tags": []}), ("put", 7, {"n": 2, "tags": []}), ("swap",)])
@pytest.mark.usefixtures("tight")
def test_values_on_disk_are_those_in_memory(actions: list[Any]) -> None:
    both: list[ValueStore] = [MemoryValueStore(COLUMNS), DiskValueStore(COLUMNS)]
    slots = 8
    for one in both:
        one.reach(slots)
    for action, *given_ in actions:
        for place, one in enumerate(both):
            if action == "put":
                slot, value = given_
                assert one.get(slot) == both[0].get(slot) or place == 1
                one.put(slot, None if value is None else dict(value))
            elif action == "clear":
                one.clear(np.array(given_[0], np.int64))
            elif action == "keep":
                one.keep(np.array(given_[0], np.int64))
                one.reach(slots)
            elif action == "settle":
                one.settle()
            else:
                kept = np.flatnonzero(one.has(np.arange(slots)))
                columns = one.store(kept)
                one.clear(np.arange(slots))
                one.load(kept[::-1], columns)
        assert [both[1].get(slot) for slot in range(slots)] == [both[0].get(slot) for slot in range(slots)]
    assert as_stored(both[1], slots) == as_stored(both[0], slots)
    both[1].close()


# --- in a dataflow ------------------------------------------------------------------------------------------


def count(version: int, row: Row, state: KeyState) -> Iterator[Any]:
    """In version 2 with all values of the life; a life ends with an odd row, a timer or its time to live."""
    value = state.value or {"n": 0, "since": row["at"]}
    value["n"] += 1
    if version == 2:
        value.setdefault("seen", []).append(row["x"])
    state.value = value
    state.timer = row["at"] + timedelta(seconds=4) if row["x"] > 2 else None
    yield row["key"], value["since"], value["n"], list(value.get("seen", []))
    if row["x"] == 1.0:
        state.value = None


def end(key: Row, time: Any, state: KeyState) -> Iterator[Any]:
    yield key["key"], time, -1 if state.value is None else state.value["n"], []
    state.value = None


def graph_of(version: int, state_on: str, lateness: timedelta, ttl: timedelta | None) -> Graph:
    graph = Graph("counted")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    to_two = Migration(1, STATES[1], lambda old: {**old, "seen": [0.5]})
    rows.key_by("by_key", "key").map_state(
        "counted",
        partial(count, version),
        time="at",
        schema=RESULT,
        state=STATES[version],
        on_timer=end,
        state_version=version,
        migrations=[to_two] if version == 2 else [],
        ttl=ttl,
        state_on=state_on,
    ).sink("out", CallSink(print))
    return graph


_rows = st.lists(
    st.builds(row, st.integers(0, 30), st.sampled_from("abcdef"), st.sampled_from([1.0, 2.0, 3.0])),
    max_size=25,
)
_play = st.lists(
    st.tuples(
        st.sampled_from(["", "checkpoint", "snapshot"]), st.sampled_from(["", "", "crash", "other place"])
    ),
    min_size=8,
    max_size=8,
)


def played(
    state_on: str,
    steps: list[Step],
    play: list[tuple[str, str]],
    workers: int,
    migrates_at: int,
    lateness: timedelta,
    ttl: timedelta | None,
) -> tuple[list[Row], list[int]]:
    make = partial(graph_of, lateness=lateness, ttl=ttl)
    trial = Trial(make(1, state_on), workers=workers)
    troubles, at, version = list(play), 0, 1
    steps = [*steps, {}]
    while at < len(steps):
        checkpoint, trouble = troubles.pop() if troubles else ("", "")
        trial.step(
            steps[at],
            checkpoint=bool(checkpoint),
            snapshot=checkpoint == "snapshot",
            end=at == len(steps) - 1,
        )
        at += 1
        if trouble == "crash":
            at = trial.crash()
        elif trouble and state_on == "disk":
            other = "memory" if len(troubles) % 2 else "disk"
            at = trial.go_on_with(make(version, other))
        elif trouble:
            at = trial.go_on_with(make(version, "memory"))
        if version == 1 and at >= migrates_at:
            version = 2
            at = trial.go_on_with(make(2, state_on))
    return trial.rows("out"), [counters["counted"]["keys"] for counters in trial.counters()]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=_rows,
    play=_play,
    workers=st.integers(1, 2),
    migrates_at=st.integers(1, 4),
    ttl=st.none() | st.integers(1, 10).map(lambda seconds: timedelta(seconds=seconds)),
    data=st.data(),
)
@pytest.mark.usefixtures("tight")
def test_with_checkpoints_crashes_migrations_and_time_to_live_the_result_is_that_of_memory(
    rows: list[Row],
    play: list[tuple[str, str]],
    workers: int,
    migrates_at: int,
    ttl: timedelta | None,
    data: st.DataObject,
) -> None:
    steps, lateness = data.draw(timely("rows", rows, "at"))
    in_memory = played("memory", steps, play, workers, migrates_at, lateness, ttl)
    assert played("disk", steps, play, workers, migrates_at, lateness, ttl) == in_memory


def test_another_place_is_no_other_graph() -> None:
    plans = [graph_of(2, place, timedelta(0), None).plan() for place in ("memory", "disk")]
    assert plans[0].operators == plans[1].operators


def test_a_place_that_is_none_is_reported() -> None:
    with pytest.raises(
        SchemaError, match=r"state_on is 'memory' or 'disk', not 'disc' \(did you mean 'disk'\?"
    ):
        graph_of(1, "disc", timedelta(0), None)


def test_on_disk_nothing_has_a_name_and_what_lies_there_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trial = Trial(graph_of(2, "disk", timedelta(0), None))
    trial.step(
        {"rows": [row(second_, str(second_), 2.0) for second_ in range(20)]}, checkpoint=True, snapshot=True
    )
    assert trial.counters()[0]["counted"]["disk_bytes"] > 0
    assert list(tmp_path.iterdir()) == []
    trial.crash()
    assert trial.counters()[0]["counted"]["disk_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def spark_shape(shape: str, state_on: str) -> Graph:
    graph = Graph("spark")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=timedelta(0))
    keyed, options = rows.key_by("by_key", "key"), {"time": "at", "state_on": state_on}
    made = "key string, n bigint"
    if shape == "function":
        result = keyed.apply_in_pandas_with_state(
            "sessions", sessions, made, "n bigint", "append", "EventTimeTimeout", **options
        )
    else:
        processor = Sessions() if shape == "row" else SessionsOfFrames()
        result = keyed.transform_with_state(
            "sessions", processor, made, "append", "eventTime", takes=shape, **options
        )
    result.sink("out", CallSink(print))
    return graph


@pytest.mark.parametrize("shape", ["function", "row", "pandas"])
@pytest.mark.usefixtures("tight")
def test_functions_and_classes_written_for_spark_find_the_same_on_disk(shape: str) -> None:
    results = []
    for place in ("memory", "disk"):
        trial = Trial(spark_shape(shape, place))
        trial.step({"rows": [row(0), row(1, "b"), row(2), row(3, "c")]}, checkpoint=True, snapshot=True)
        trial.step({"rows": [row(9), row(4, "b")]})
        assert trial.crash() == 1
        trial.step({"rows": [row(4, "b"), row(9)]}, checkpoint=True)
        trial.crash()
        trial.step({}, end=True)
        results.append((trial.rows("out"), trial.counters()[0]["sessions"].get("disk_bytes", 0) > 0))
    assert results[0][0] == results[1][0] != []
    assert [on_disk for _, on_disk in results] == [False, True]


# --- a disk that is full ------------------------------------------------------------------------------------


def keep_text(row: Row, state: KeyState) -> list[Any]:
    """20 KB for each key."""
    n = state.value["n"] + 1 if state.value else 1
    state.value = {"n": n, "text": row["key"] * 10_000}
    return [(row["key"], n)]


def texts(rows: Any) -> Any:
    timed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_key", "key")
    return timed.map_state(
        "texts", keep_text, time="at", schema="key string, n bigint", state="n bigint, text string",
        state_on="disk",
    )  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "scratch", 1 << 20) as made:
        yield made


def test_a_full_disk_is_told_with_its_place_and_remedy_and_nothing_is_lost(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(disk.path))
    graph = Graph("texts")
    texts(graph.source("rows", InputSource("rows", SCHEMA))).sink("out", CallSink(print))
    trial = Trial(graph)
    trial.step({"rows": [row(number, f"{number:02}") for number in range(10)]}, checkpoint=True)
    with pytest.raises(OperatorError, match="its state could not be written in ") as caught:
        trial.step({"rows": [row(number, f"{number:02}") for number in range(10, 99)]}, checkpoint=True)
    assert str(disk.path) in str(caught.value)
    assert re.search(r"scratch', where 0\.\d MiB are free: ", str(caught.value))
    assert "or start the region with scratch= on a larger one; nothing is lost" in caught.value.remedy
    assert caught.value.wants_reset
    disk.resize(16 << 20)
    trial.crash()
    trial.step({"rows": [row(number, f"{number % 50:02}") for number in range(10, 99)]}, checkpoint=True)
    trial.step({}, end=True)
    assert trial.rows("out")[-1] == {"key": "48", "n": 2}
    assert len(trial.rows("out")) == 99


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_region_whose_disk_is_full_resets_and_continues_when_there_is_space(
    disk: SmallDisk, shared_store: str, tmp_path: Path
) -> None:
    graph, name = Graph("texts"), tmp_path.name
    texts(graph.source("rows", InputSource("rows", SCHEMA))).sink("out", FileSink(tmp_path / "out"))
    with (
        open_blocking(shared_store) as client,
        running(graph, shared_store, tmp_path, fields={"max_consecutive_reset_attempts": 100}) as (
            control,
            watch,
        ),
        blocking.open_producer(client, name, "rows", "p", SCHEMA) as producer,
    ):
        producer.wait_recorded(producer.send([row(number, f"{number:02}") for number in range(99)]))
        watch.wait(lambda event: isinstance(event, ResetReport))
        reason = next(event.reason for event in watch.events if isinstance(event, ResetReport))
        assert "operator 'texts' failed in worker" in reason
        assert "its state could not be written in " in reason
        assert re.search(r"where 0\.\d MiB are free: ", reason)
        disk.resize(64 << 20)
        blocking.close_input(client, name, "rows")
        assert finished(control), control.status
    assert sorted(made[0] for _, made in rows_of(tmp_path / "out")) == [
        f"{number:02}" for number in range(99)
    ]


# --- a state larger than memory -----------------------------------------------------------------------------


def test_a_state_three_times_as_large_as_the_memory_that_is_left_works() -> None:
    command = [executable, "-m", "tests.dataflow.limited_state"]
    found = {
        place: run([*command, place], capture_output=True, text=True, timeout=100, check=False)
        for place in ("disk", "memory")
    }
    assert found["disk"].stdout.split() == ["2000", "2000"], found["disk"].stderr
    assert "MemoryError" in found["memory"].stderr or found["memory"].returncode < 0, "the limit is one"
