"""A state whose declared schema changes: checkpoints of older versions are taken over, or refused in
words.
"""

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.chains.state_blocks import decode_block, state_version_of
from checkpoint.errors import GraphChangeRefusedError
from dataflow import (
    CallSink,
    FileSink,
    FileSource,
    Graph,
    InputSource,
    KeyState,
    Migration,
    SchemaError,
    blocking,
)
from dataflow.errors import OperatorError
from dataflow.handle import RegionHandle
from dataflow.testing import Trial
from dataflow.worker.messages import CheckpointTaken, ToLinks
from dos_client.blocking import BlockingStore
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_in_one_thread import write_files
from tests.dataflow.test_region_processes import finished, kill, running
from tests.dataflow.test_windows_in_regions import parsed, texts_of
from tests.dataflow.trials import Row
from tests.support.polling import until

NEVER = datetime(2100, 1, 1, tzinfo=UTC)
"""A timer that comes when all sources are at their end."""
PRINT = CallSink(print)
ROWS = "at timestamp, key string"
RESULT = "key string, n bigint, note string"
STATES = {1: "n int", 2: "n bigint, note string", 3: "tenths bigint, note string"}


def to_two(old: dict[str, Any]) -> dict[str, Any]:
    return {"n": old["n"], "note": "from 1"}


def to_three(old: dict[str, Any]) -> dict[str, Any]:
    return {"tenths": old["n"] * 10, "note": f"{old['note']}, from 2"}


MIGRATIONS = {1: Migration(1, STATES[1], to_two), 2: Migration(2, STATES[2], to_three)}


def count(version: int, row: dict[str, Any], state: KeyState) -> None:
    value = dict(state.value or {"n": 0, "tenths": 0, "note": "new"})
    if version == 3:
        state.value = {"tenths": value["tenths"] + 10, "note": value["note"]}
    else:
        new = {"n": value["n"] + 1}
        state.value = new if version == 1 else new | {"note": value["note"]}
    state.timer = NEVER


def tell(key: dict[str, Any], time: Any, state: KeyState) -> list[Any]:
    value: dict[str, Any] = {"note": "old", **(state.value or {})}
    return [(key["key"], value["n"] if "n" in value else value["tenths"] // 10, value["note"])]


def counting(graph: Graph, rows: Any, version: int, sink: Any, **options: Any) -> Graph:
    given_state = {"state": STATES[version], "state_version": version, **options}
    given_state.setdefault("migrations", [MIGRATIONS[one] for one in range(1, version)])
    counts = rows.key_by("by_key", "key").map_state(
        "counts", partial(count, version), time="at", schema=RESULT, on_timer=tell, **given_state
    )
    counts.sink("out", sink)
    return graph


def graph_of(version: int, sink: Any = PRINT, **options: Any) -> Graph:
    graph = Graph("counts")
    rows = graph.source("rows", InputSource("rows", ROWS))
    timed = rows.event_time("timed", "at", lateness=timedelta(hours=1))
    return counting(graph, timed, version, sink, **options)


def at(second: int, key: str) -> Row:
    return {"at": datetime(2026, 5, 1, tzinfo=UTC) + timedelta(hours=2 * second), "key": key}


def counted(trial: Trial) -> dict[str, tuple[int, str]]:
    trial.step({}, end=True)
    return {row["key"]: (row["n"], row["note"]) for row in trial.rows("out")}


def test_a_checkpoint_of_version_1_is_restored_by_version_2_through_its_migration() -> None:
    trial = Trial(graph_of(1), workers=2)
    trial.step({"rows": [at(0, "a"), at(1, "a"), at(2, "b"), at(3, "c")]}, checkpoint=True)
    trial.step({"rows": [at(4, "a")]})
    assert trial.go_on_with(graph_of(2)) == 1
    trial.step({"rows": [at(5, "a"), at(6, "d")]})
    assert counted(trial) == {"a": (3, "from 1"), "b": (1, "from 1"), "c": (1, "new"), "d": (1, "new")}


@settings(max_examples=30)
@given(data=st.data(), keys=st.lists(st.sampled_from("abc"), min_size=6, max_size=12))
def test_a_state_goes_through_two_versions_wherever_its_checkpoints_and_crashes_are(
    data: st.DataObject, keys: list[str]
) -> None:
    trial = Trial(graph_of(1), workers=data.draw(st.integers(1, 2)))
    turns = sorted(data.draw(st.lists(st.integers(0, len(keys)), min_size=2, max_size=2)))
    if data.draw(st.booleans(), label="leave version 2 out"):
        turns[1] = turns[0]
    step, version, crashes = 0, 1, data.draw(st.integers(0, 3), label="crashes")
    while step < len(keys):
        due = 1 + sum(step >= turn for turn in turns)
        if due > version:
            version = due
            step = trial.go_on_with(graph_of(version))
        trial.step(
            {"rows": [at(step, keys[step])]},
            checkpoint=data.draw(st.booleans(), label="checkpoint"),
            snapshot=data.draw(st.booleans(), label="snapshot"),
        )
        step += 1
        if crashes and data.draw(st.booleans(), label="crash"):
            crashes -= 1
            step = trial.crash()
    assert {key: n for key, (n, _) in counted(trial).items()} == {key: keys.count(key) for key in keys}


def test_blocks_of_several_versions_lie_side_by_side_until_all_is_written_anew() -> None:
    trial = Trial(graph_of(1))
    trial.step({"rows": [at(0, "a"), at(1, "b"), at(2, "x")]}, checkpoint=True)
    trial.go_on_with(graph_of(2))
    trial.step({"rows": [at(3, "b"), at(4, "x")]}, checkpoint=True)
    blocks = [decode_block(data).schema for name, data in trial._blocks[0] if name == "counts"]
    assert [state_version_of(schema) for schema in blocks] == [1, 2]
    trial.go_on_with(graph_of(3))
    with pytest.raises(OperatorError) as caught:
        trial.go_on_with(graph_of(3, migrations=[MIGRATIONS[2]]))
    assert "operator 'counts' failed at the state of checkpoint 2: it holds a state of version 1" in str(
        caught.value
    )
    assert "Migration(1, ...) again, as long as a retained checkpoint needs it" in caught.value.remedy


def _file_graph(paths: list[Path], out: Path, version: int) -> Graph:
    graph = Graph("counts")
    rows = graph.source("lines", FileSource([*paths])).map(
        "rows", parsed, schema="at timestamp, key string", takes="batch"
    )
    timed = rows.event_time("timed", "at", lateness=timedelta(seconds=5))
    return counting(graph, timed, version, FileSink(out))


class _Watched(OneThreadRegion):
    """Remembers with which checkpoints all of the state came."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, 1, lambda n: 0)
        self.snapshots: dict[int, bool] = {}

    def _post_of(self, index: int) -> Callable[[ToLinks], None]:
        post = super()._post_of(index)

        def seen(message: ToLinks) -> None:
            if isinstance(message, CheckpointTaken):
                self.snapshots[message.barrier.checkpoint] = message.snapshot is not None
            post(message)

        return seen


def test_the_first_checkpoint_after_a_migration_writes_all_of_the_state_anew(tmp_path: Path) -> None:
    paths = write_files(tmp_path, texts_of([[(second, "k") for second in range(400)]]))
    region = _Watched(_file_graph(paths, tmp_path / "out", 1))
    for version in (1, 2, 2):
        region.plan = _file_graph(paths, tmp_path / "out", version).plan()
        region.restore()
        for _ in range(2):
            before = region.checkpoint
            region.request_checkpoint(all_workers=True)
            for _ in range(1_000):
                if region.checkpoint is before:
                    region.turn()
            assert region.checkpoint is not before
    # The block of checkpoint 1 is of version 1, and is read again in the third round.
    assert list(region.snapshots.values()) == [False, False, True, False, True, False]


REFUSALS = [
    # stored version, graph that comes, words
    (1, lambda: graph_of(1, state=STATES[2]), "(n int64, note string), but the checkpoint holds"),
    (1, lambda: graph_of(1, state=STATES[2]), "give it state_version=2 and Migration(1, state, function)"),
    (1, lambda: graph_of(2, migrations=[]), "v2 (n int64, note string), but the checkpoint holds"),
    (1, lambda: graph_of(3, migrations=[MIGRATIONS[2]]), "give it state_version=3 and Migration(1, state"),
    (1, lambda: graph_of(2, migrations=[Migration(1, "n bigint", to_two)]), "holds state (n int32)"),
    (2, lambda: graph_of(2, state="n int"), "give it state_version=3 and Migration(2, state, function)"),
    (2, lambda: graph_of(1), "but the checkpoint holds state v2 (n int64, note string): run a graph that"),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "graph", "words"), REFUSALS)
def test_a_checkpoint_without_a_migration_is_refused_with_both_schemas_and_what_to_do(
    stored: int, graph: Any, words: str
) -> None:
    trial = Trial(graph_of(stored))
    trial.step({"rows": [at(0, "a"), at(1, "b")]}, checkpoint=True)
    with pytest.raises(GraphChangeRefusedError) as caught:
        trial.go_on_with(graph())
    assert "operator 'counts' declares" in str(caught.value)
    assert words in str(caught.value)
    assert counted(trial) == {
        "a": (1, "old" if stored == 1 else "new"),
        "b": (1, "old" if stored == 1 else "new"),
    }


def test_a_migration_that_does_wrong_is_told_by_name() -> None:
    def gives(made: Any) -> Graph:
        return graph_of(2, migrations=[Migration(1, STATES[1], lambda old: made(old))])

    trial = Trial(graph_of(1))
    trial.step({"rows": [at(0, "a"), at(1, "b")]}, checkpoint=True)
    with pytest.raises(OperatorError, match="the migration from version 1: a state is a dict of n, note"):
        trial.go_on_with(gives(lambda old: None))
    with pytest.raises(OperatorError, match="the migration from version 1: KeyError: 'm'"):
        trial.go_on_with(gives(lambda old: old["m"]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"state_version": 0}, "state_version is a number of 1 or more, not 0"),
        (
            {"state_version": 3, "migrations": [MIGRATIONS[1]]},
            "up to state_version=3; those given are from 1",
        ),
        ({"migrations": [to_two]}, "a migration is Migration(version, state, function)"),
        ({"state": "pickle"}, "never as pickle or objects, and 'pickle' was declared"),
        ({"state": "data pickle"}, "never as pickle or objects"),
        ({"state": pickle}, "never as pickle or objects"),
        ({"state": pa.schema([("o", pa.uuid())])}, "never as pickle or objects, and column 'o'"),
        ({"state": "n nonsense"}, "'nonsense' is no type"),
    ],
)
def test_what_is_no_declared_state_is_refused_where_it_is_written(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        graph_of(2, **options)
    assert words in str(caught.value)


def counted_by(control: RegionHandle) -> int:
    """Return how many rows the workers have counted; a stop takes a checkpoint of them."""
    operators = [worker.counters.operators for worker in control.status.workers]
    return sum(one["counts"]["rows_in"] for one in operators if "counts" in one)


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_region_continues_with_a_newer_version_of_its_state(shared_store: str, tmp_path: Path) -> None:
    """Stopped under way, gone on with version 3, a worker killed there; an older graph is refused."""
    sink, name = FileSink(tmp_path / "out"), tmp_path.name

    def send(client: BlockingStore, seconds: range) -> None:
        with blocking.open_producer(client, name, "rows", "p", ROWS) as producer:
            producer.wait_recorded(producer.send([at(second, f"k{second % 4}") for second in seconds]))

    with open_blocking(shared_store) as client:
        with running(graph_of(1, sink), shared_store, tmp_path) as (control, watch):
            send(client, range(40))
            until(lambda: counted_by(control) == 40, "all rows are counted by version 1", 60)
            control.checkpoint(60)  # a stop takes none, and version 3 would count them anew
        with running(graph_of(3, sink), shared_store, tmp_path) as (control, watch):
            send(client, range(40, 60))
            watch.checkpoints(1)
            kill(control, 0, wipe=True)
            blocking.close_input(client, name, "rows")
            assert finished(control), control.status
    found = {str(row[0]): row[1:] for _, row in rows_of(tmp_path / "out")}
    assert found == {f"k{key}": ["15", "from 1, from 2"] for key in range(4)}
    with running(graph_of(2, sink), shared_store, tmp_path) as (control, _):
        assert not finished(control)
        assert "holds state v3 (tenths int64, note string): run a graph" in str(control.exception())
