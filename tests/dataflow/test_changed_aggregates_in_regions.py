"""Regions whose aggregation gains and loses results, with workers that are processes, whatever is killed."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from dataflow import Count, Graph, InputSource, LogSink, LogSource, Max, Sum, blocking, collect_output
from dataflow.errors import NoOutputError
from dataflow.handle import RegionHandle
from dos_client.blocking import open_store as open_blocking
from spark_integration.editing import edit_state
from tests.dataflow.test_changed_graphs import ROWS, killed_at, send
from tests.dataflow.test_edited_regions import state_of
from tests.dataflow.test_region_processes import finished, kill, running
from tests.support.dos_command import dos
from tests.support.polling import until

NAMED: Final[dict[str, Any]] = {"new_aggregates": ("sold:top",), "drop_state": ("sold:top",)}
OUTPUT: Final = "key string, n bigint, s bigint"


def without_top(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["key"], row["n"], None, row["s"]


def sold(version: int) -> Graph:
    """Versions 2 and 4 have the largest number, too. In version 3, which has none, its column is null."""
    graph = Graph("sold")
    keyed = graph.source("rows", InputSource("rows", ROWS)).key_by("by_key", "key")
    top = {"top": Max("n")} if version % 2 == 0 else {}
    made = keyed.aggregate("sold", n=Count(), **top, s=Sum("n"))
    if version == 3:
        made = made.map("without", without_top, schema="key string, n bigint, top bigint, s bigint")
    made.sink("out", LogSink(publish="checkpoint"))
    return graph


def reading(region: str, columns: str) -> Graph:
    """Passes the log on, with its own columns."""
    graph = Graph("reader")
    graph.source("log", LogSource("out", columns, region=region)).sink("copy", LogSink(publish="checkpoint"))
    return graph


def shown(store: str, region: str, sink: str = "out") -> dict[str, tuple[Any, ...]]:
    """Key -> its last results."""
    try:
        table = collect_output(store, region, sink)
    except NoOutputError:  # the region has just begun
        return {}
    rows = [] if table is None else table.to_pylist()
    return {row.pop("key"): tuple(row.values()) for row in rows}


def results(first: int, last: int, top_from: int | None = None) -> dict[str, tuple[Any, ...]]:
    """Key -> n, s, and top of the rows from that one on, of the rows from `first` to before `last`."""
    found = {}
    for key in range(3):
        rows = [one for one in range(first, last) if one % 3 == key]
        found[f"k{key}"] = (len(rows), sum(rows))
        if top_from is not None:
            found[f"k{key}"] += (max((one for one in rows if one >= top_from), default=None),)
    return found


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_result_comes_goes_and_comes_back_whatever_is_killed_and_readers_of_the_log_go_on(
    shared_store: str, tmp_path: Path
) -> None:
    store, name = shared_store, tmp_path.name
    with open_blocking(store) as client, ExitStack() as programs:

        def begin(graph: Graph, region: str = name, **options: Any) -> tuple[RegionHandle, Any]:
            folder = tmp_path / region
            folder.mkdir(exist_ok=True)
            return programs.enter_context(running(graph, store, folder, **options))

        def run(version: int, workers: int, **options: Any) -> tuple[RegionHandle, Any]:
            return begin(sold(version), workers=workers, **options)

        def end(control: RegionHandle) -> None:
            control.stop()
            assert control.wait(60)

        control, watch = run(1, 2)
        send(client, name, range(30))
        watch.checkpoints(1)
        until(lambda: control.status.rows_in == 30, "the rows are read", 60)
        begin(reading(name, OUTPUT), f"{name}-old", workers=1)
        until(lambda: shown(store, f"{name}-old", "copy") == results(0, 30), "a region reads the log", 60)
        end(control)
        send(client, name, range(30, 33))  # no row of most keys for now: their columns are in old blocks
        for dies_at in ("AppendCheckpoint", "Start"):  # before the change is committed, and after it
            with killed_at(store, name, "more results", dies_at, tmp_path / dies_at) as process:
                assert process.wait(90) == -signal.SIGKILL
        control, watch = run(2, 3, **NAMED)
        send(client, name, range(33, 60))
        watch.checkpoints(1)
        until(lambda: shown(store, name) == results(0, 60, 30), "the new result has later rows", 60)
        kill(control, 1, wipe=True)
        send(client, name, range(60, 63))
        until(lambda: shown(store, name) == results(0, 63, 30), "also after a reset", 60)
        until(
            lambda: shown(store, f"{name}-old", "copy") == results(0, 63), "a reader continues without it", 60
        )
        begin(reading(name, f"top bigint, {OUTPUT}"), f"{name}-new", workers=1)
        until(lambda: len(shown(store, f"{name}-new", "copy")) == 3, "another one reads it", 60)
        rows = collect_output(store, f"{name}-new", "copy")
        assert rows is not None
        assert {one["top"] is None for one in rows.to_pylist() if one["n"] <= 10} == {True}
        end(control)
        state = state_of(store, name, "sold").to_pylist()
        assert {one["key"]: one["top"] for one in state} == {"k0": 60, "k1": 61, "k2": 62}
        edited = [{**one, "top": 1000} for one in state if one["key"] == "k0"]
        edit_state(sold(2), {"sold": edited}, store=store, name=name)
        control, watch = run(2, 2, **NAMED)
        send(client, name, range(63, 66))
        until(lambda: shown(store, name)["k0"][2] == 1000, "the state was edited", 60)
        end(control)
        control, watch = run(3, 2, **NAMED)
        send(client, name, range(66, 69))
        until(lambda: shown(store, name)["k2"] == (23, 805, None), "version 3 has none", 60)
        end(control)
        control, watch = run(4, 3, **NAMED, graph_back=True)
        send(client, name, range(-9, 0))
        until(lambda: shown(store, name)["k0"][2] == -3, "it does not find what it left", 60)
        kill(control, 0, wipe=True)
        send(client, name, range(-12, -9))
        until(lambda: shown(store, name)["k0"] == (27, 729, -3), "also after a reset", 60)
        end(control)
        names = json.loads(dos("region", "savepoints", store, name, "--json").stdout)["savepoints"]
        first = min(names, key=lambda one: one["checkpoint"])["savepoint"]
        back = dos("region", "restore", store, name, "--to", f"savepoint:{first}", "--stopped")
        assert back.returncode == 0, back.stderr
        control, watch = run(1, 2)
        blocking.close_input(client, name, "rows")
        assert finished(control), control.status
        assert {key: (one[0], one[1]) for key, one in shown(store, name).items()} == {
            "k0": (27, 729),
            "k1": (27, 756),
            "k2": (27, 783),
        }
