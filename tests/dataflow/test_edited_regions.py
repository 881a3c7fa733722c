"""Regions on real servers whose state is edited while they are stopped, or given before they begin."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dos as dos_names
from checkpoint.errors import EditRefusedError, GraphChangeRefusedError, NoRegionError
from dataflow import CallSink, Count, Graph, InputSource, LogSink, collect_output
from dataflow.blocking import close_input, open_producer
from dos_client.blocking import open_store
from spark_integration.core.options import parse_state
from spark_integration.editing import bootstrap_state, edit_state
from spark_integration.reading.inspection import InsideReader, OperatorStateTable, columns_of
from tests.dataflow.test_region_processes import WAIT_S, finished, running
from tests.support.dos_command import dos
from tests.support.polling import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

ROWS = "at timestamp, k string, v bigint"
LIMITS = "k string, most bigint"
NINE = datetime(2026, 5, 1, 9, tzinfo=UTC)


def below(row: Mapping[str, Any], table: Mapping[Any, Any]) -> bool:
    return row["k"] not in table or row["v"] <= table[row["k"]]["most"]


def add(row: Mapping[str, Any], state: Any) -> Any:
    total = (state.value or {"total": 0})["total"] + row["v"]
    state.value = {"total": total}
    yield row["k"], total


def shop() -> Graph:
    graph = Graph("shop")
    table = graph.broadcast_table("limits", graph.source("given", InputSource("given", LIMITS)), "k")
    rows = graph.source("rows", InputSource("rows", ROWS)).filter("below", below, broadcast=table)
    keyed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_k", "k")
    keyed.count("counts").sink("counted", LogSink())
    totals = keyed.map_state("totals", add, time="at", state="total bigint", schema="k string, total bigint")
    totals.sink("summed", LogSink())
    return graph


def send(
    store: str, region: str, handle: str, rows: Sequence[tuple[Any, ...]], *, close: bool = False
) -> None:
    schema = {"rows": ROWS, "given": LIMITS}[handle]
    names = [column.split()[0] for column in schema.split(", ")]
    with open_store(store) as opened:
        with open_producer(opened, region, handle, "till", schema) as producer:
            producer.wait_recorded(producer.send([dict(zip(names, row, strict=True)) for row in rows]))
        if close:
            close_input(opened, region, handle)


def at(hour: int, key: str, value: int) -> tuple[datetime, str, int]:
    return NINE + timedelta(hours=hour), key, value


def state_of(store: str, region: str, operator: str) -> pa.Table:
    """What the operator keeps, as `dos-state` gives it to Spark."""
    table = OperatorStateTable(parse_state({"path": f"{store}/{region}", "operator": operator}))
    reader = InsideReader(table, columns_of(table))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches)


def pairs(table: pa.Table | None, value: str) -> dict[str, int]:
    """Key -> its last value."""
    assert table is not None
    return {row["k"]: row[value] for row in table.to_pylist()}


def test_read_the_state_change_some_keys_write_it_back_and_continue(
    shared_store: str, tmp_path: Path
) -> None:
    store, name, graph = shared_store, tmp_path.name, shop()
    send(store, name, "given", [("a", 10)])
    with running(graph, store, tmp_path, workers=2) as (control, _):
        until(lambda: control.status.rows_in >= 1, "the table is read", WAIT_S)
        control.checkpoint(WAIT_S)  # from the next step on, it is in effect
        first = [at(0, "a", 1), at(0, "b", 2), at(1, "a", 3), at(1, "c", 50), at(1, "a", 11), at(2, "z", 0)]
        send(store, name, "rows", first)
        until(lambda: control.status.rows_in >= 1 + len(first), "the rows are read", WAIT_S)
        number = control.checkpoint(WAIT_S)
        with pytest.raises(EditRefusedError, match="'count' must be above 0"):
            edit_state(graph, {"counts": [{"k": "a", "count": 0}]}, store=store, name=name)
        assert control.checkpoint(WAIT_S) > number, "what is refused ends no driver"
    read = state_of(store, name, "counts")
    assert pairs(read, "count") == {"a": 2, "b": 1, "c": 1, "z": 1}
    counts = pa.array([100 if key == "a" else 1 for key in read["k"].to_pylist()])
    changed = read.set_column(read.column_names.index("count"), "count", counts)
    tables: dict[str, Any] = {
        "counts": pa.concat_tables(
            [changed, pa.table({"k": ["new"], "count": [7]})], promote_options="default"
        ),
        "totals": [{"k": "a", "total": 1000}, {"k": "c", "total": None, "_deleted": True}],
        "limits": pa.table({"k": ["b"], "most": [5]}),
    }
    shown = edit_state(graph, tables, store=store, name=name, dry_run=True)
    assert (shown.checkpoint, str(shown.tables["counts"])) == (
        None,
        "1 added, 1 changed, 0 deleted, 3 unchanged",
    )
    assert "nothing was written" in str(shown)
    assert pairs(state_of(store, name, "counts"), "count") == {"a": 2, "b": 1, "c": 1, "z": 1}
    edit_state(graph, tables, store=store, name=name, savepoint="before", why="a was wrong")
    assert pairs(state_of(store, name, "counts"), "count") == {"a": 100, "b": 1, "c": 1, "new": 7, "z": 1}
    assert dos("region", "restore", store, name, "--to", "savepoint:before", "--stopped").returncode == 0
    assert pairs(state_of(store, name, "counts"), "count") == {"a": 2, "b": 1, "c": 1, "z": 1}, (
        "it is taken back"
    )
    done = edit_state(graph, tables, store=store, name=name)
    again = edit_state(graph, tables, store=store, name=name)
    assert (again.base, again.checkpoint) == (done.checkpoint, None), "the state has these rows already"
    listed = json.loads(dos("checkpoint", "ls", store, name, "--json").stdout)["checkpoints"]
    assert listed[-1]["edit"]["tables"]["totals"] == {"added": 0, "changed": 1, "deleted": 1}
    assert "edited" in dos("checkpoint", "ls", store, name).stdout
    assert "before" in dos("region", "savepoints", store, name).stdout
    send(store, name, "given", [("y", 1)], close=True)
    send(store, name, "rows", [at(3, "a", 1), at(3, "b", 6), at(4, "b", 5), at(4, "new", 2)], close=True)
    with running(graph, store, tmp_path, workers=3) as (control, _):
        assert finished(control), control.status
    assert pairs(state_of(store, name, "counts"), "count") == {"a": 101, "b": 2, "c": 1, "new": 8, "z": 1}
    totals = pairs(collect_output(store, name, "summed"), "total")
    assert totals == {"a": 1001, "b": 7, "c": 50, "new": 2, "z": 0}, (
        "b was limited; what was shown of c stays"
    )


def test_a_region_begins_with_the_state_of_a_batch_query(
    shared_store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, name, graph = shared_store, tmp_path.name, shop()
    send(store, name, "rows", [at(0, "a", 1), at(0, "b", 2)])
    send(store, name, "rows", [at(0, "a", 4)])
    history: dict[str, Any] = {
        "counts": [{"k": "a", "count": 2}, {"k": "b", "count": 1}, {"k": "c", "count": 5}],
        "totals": [{"k": "a", "total": 5}, {"k": "b", "total": 2}],
        "limits": [{"k": "c", "most": 3}],
    }
    begins = {"rows": "latest", "given": "first"}
    for positions, why in (
        ({"rows": "latest"}, "source 'given': it is not stated where it begins"),
        ({**begins, "rows": "now"}, "source 'rows': 'now' is not a position of a InputSource"),
        ({**begins, "rwos": "latest"}, r"no such source \(did you mean 'rows'\?\)"),
        ({**begins, "rows": {}}, "producer 'till' has no position"),
        ({**begins, "rows": {"till": 0, "tlil": 0}}, "no producer 'tlil'; it has till"),
        (
            {**begins, "rows": {"till": 3}},
            "no part of producer 'till' ends at position 3; what is recorded ends",
        ),
        ({**begins, "rows": {"till": "3"}}, "the position of split 'till' is '3', without its digest"),
    ):
        with pytest.raises(EditRefusedError, match=why):
            bootstrap_state(graph, history, positions, store=store, name=name, workers=2)
    with pytest.raises(NoRegionError):
        edit_state(graph, history, store=store, name=name)
    made = bootstrap_state(graph, history, begins, store=store, name=name, workers=2, why="from May on")
    assert (made.base, made.checkpoint, made.tables["counts"].added) == (0, 1, 3)
    with pytest.raises(EditRefusedError, match=f"region {name!r} exists: it has committed checkpoint 1"):
        bootstrap_state(graph, history, begins, store=store, name=name, workers=2)
    assert "given" in dos("checkpoint", "ls", store, name).stdout
    send(store, name, "given", [("z", 1)], close=True)
    send(store, name, "rows", [at(3, "a", 1), at(3, "c", 4), at(4, "c", 3)], close=True)
    with running(graph, store, tmp_path, workers=3) as (control, _):
        assert finished(control), control.status
    assert pairs(state_of(store, name, "counts"), "count") == {"a": 3, "b": 1, "c": 6}
    assert pairs(collect_output(store, name, "summed"), "total") == {"a": 6, "c": 3}
    other = Graph("shop")
    other.source("rows", InputSource("rows", ROWS)).key_by("by_k", "k").aggregate("sums", n=Count()).sink(
        "out", CallSink(print)
    )
    with running(other, store, tmp_path, workers=3) as (control, _):
        control.wait(WAIT_S)
        assert isinstance(control.exception(), GraphChangeRefusedError)
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert line.startswith(f"region {name}: failed: ")
    assert "was made by another graph" in line
    with pytest.raises(GraphChangeRefusedError, match="was made by another graph"):
        edit_state(other, {"sums": [{"k": "a", "n": 1}]}, store=store, name=name)


def test_the_names_are_public() -> None:
    assert dos_names.edit_state is edit_state
    assert dos_names.bootstrap_state is bootstrap_state
