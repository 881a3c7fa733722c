"""Regions that continue with another graph, with workers that are processes: every row counts once, in the
graph in whose steps it was read, whatever is killed.
"""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checkpoint.coordinator.control import RegionListener
from checkpoint.coordinator.shell import RegionShell
from checkpoint.core.region import RegionState, StateChanged
from checkpoint.errors import GraphChangeRefusedError, RegionFailedError
from dataflow import (
    Graph,
    InputSource,
    LogSink,
    LogSource,
    Max,
    RuntimeContext,
    Sum,
    UserOperator,
    blocking,
    read_output,
)
from dataflow.errors import NoOutputError
from dataflow.handle import RegionHandle
from dos_client import Store
from dos_client.blocking import BlockingStore
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.test_edited_regions import state_of
from tests.dataflow.test_region_processes import finished, kill, running
from tests.support.dos_command import dos
from tests.support.http import fetch_url
from tests.support.polling import until

ROWS = "key string, n bigint"


def is_even(row: dict[str, Any]) -> bool:
    return int(row["n"]) % 2 == 0


def with_text(row: dict[str, Any]) -> tuple[str, str]:
    return row["key"], f"{row['n']}"


def graph_of(version: int, publish: Any) -> Graph:
    """Version 2 counts only even rows, and version 3 all again, through a function with another column. The
    names of all operators without state differ.
    """
    graph = Graph("counts")
    rows = graph.source("rows", InputSource("rows", ROWS))
    if version == 2:
        rows = rows.filter("even", is_even)
    if version == 3:
        rows = rows.map("texts", with_text, schema="key string, text string")
    counts = rows.key_by(f"by_key_{version}", "key").count("counts")
    counts.sink("out", LogSink(publish=publish))
    return graph


async def last_rows(store: Store, region: str, sink: str = "out") -> tuple[dict[str, int], list[int]]:
    """The last value of each key, and the steps that have rows, in the order in which a reader meets them."""
    found, steps = {}, []
    async for step in read_output(store, region, sink):
        if step.table is not None:
            steps.append(step.step)
            for row in step.table.to_pylist():
                key, value = row.values()
                found[key] = value
    return found, steps


def send(client: BlockingStore, region: str, numbers: range, handle: str = "rows") -> None:
    with blocking.open_producer(client, region, handle, "p", ROWS) as producer:
        producer.wait_recorded(producer.send([{"key": f"k{one % 3}", "n": one} for one in numbers]))


@pytest.mark.process
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("publish", ["step", "checkpoint"])
def test_a_filter_is_put_in_and_taken_out_and_the_counts_continue(
    shared_store: str, tmp_path: Path, publish: str
) -> None:
    name = tmp_path.name
    with open_blocking(shared_store) as client:
        shown = partial(client.portal.call, last_rows, client.store, name)
        with running(graph_of(1, publish), shared_store, tmp_path, workers=2) as (control, watch):
            send(client, name, range(30))
            watch.checkpoints(1)
            until(lambda: sum(shown()[0].values()) == 30, "all rows are shown by version 1", 60)
        assert control.status.state is RegionState.STOPPED
        with running(graph_of(2, publish), shared_store, tmp_path, workers=3) as (control, watch):
            send(client, name, range(30, 60))
            until(lambda: sum(shown()[0].values()) == 45, "the even rows are shown by version 2", 60)
            watch.checkpoints(2)
            kill(control, 0, wipe=True)
            send(client, name, range(60, 66))
            until(lambda: sum(shown()[0].values()) == 48, "they are after a reset", 60)
        with running(graph_of(3, publish), shared_store, tmp_path) as (control, _):
            send(client, name, range(66, 72))
            blocking.close_input(client, name, "rows")
            assert finished(control), control.status
        found, steps = shown()
        assert sum(found.values()) == 30 + 15 + 3 + 6
        assert steps == sorted(set(steps)), "no step is shown twice"


@pytest.mark.process
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("publish", ["step", "checkpoint"])
def test_a_running_region_is_handed_over_to_a_program_with_another_graph(
    shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: str
) -> None:
    """Every row counts once, in one of the graphs. `STEPS` has all messages between the drivers' cores."""
    name = tmp_path.name
    seen: dict[str, set[str]] = {"new": set(), "old": set()}
    for method in ("_handle", "_perform"):
        original = getattr(RegionShell, method)

        def noted(shell: RegionShell, step: Any, original: Any = original) -> None:
            who = "new" if shell.spec.hand_over else "old"
            if who == "new" or "HandOverWanted" in seen["old"] or name_of(step) == "HandOverWanted":
                seen[who].add(name_of(step))
            original(shell, step)

        monkeypatch.setattr(RegionShell, method, noted)
    sent = 0
    with open_blocking(shared_store) as client, ExitStack() as programs:
        shown = partial(client.portal.call, last_rows, client.store, name)

        def begin(graph: Graph, folder: str, **options: Any) -> RegionHandle:
            place = tmp_path / folder / name
            place.mkdir(parents=True)
            control, _ = programs.enter_context(running(graph, shared_store, place, **options))
            return control

        old = begin(graph_of(1, publish), "old", workers=2)
        send(client, name, range(30))
        until(lambda: old.status.checkpoints_committed > 0, "there is a checkpoint", 60)
        until(lambda: sum(shown()[0].values()) == 30, "the rows are shown", 60)
        heir = begin(graph_of(2, publish), "heir", hand_over=True)
        while old.isActive:  # rows come all the time
            send(client, name, range(30 + sent, 40 + sent))
            sent += 10
        assert old.status.state is RegionState.FENCED
        until(lambda: heir.status.state is RegionState.RUNNING, "the other driver runs it", 60)
        assert {*STEPS["new"]} <= seen["new"] <= {*STEPS["new"]} | OF_ANY_TIME | {"RequestCheckpoint"}
        assert seen["old"] <= {*STEPS["old"]} | OF_ANY_TIME
        assert {*STEPS["old"]} <= seen["old"] or publish == "checkpoint", (
            "without new rows it has a checkpoint"
        )
        send(client, name, range(100_000, 100_010))
        blocking.close_input(client, name, "rows")
        assert finished(heir), heir.status
        found, steps = shown()
    # All of the rows before the change count, and half of those after it.
    assert 30 + sent // 2 + 5 <= sum(found.values()) <= 30 + sent + 5
    assert steps == sorted(set(steps)), "no step is shown twice"


class Slow(UserOperator):
    """Opens once a file is there, and fails if that has a text."""

    needs = "key string, count bigint"
    schema = "key string, count bigint"
    state = "opened bigint"

    def __init__(self, opens: Path) -> None:
        self._opens = opens

    def open(self, ctx: RuntimeContext) -> None:
        with Path(f"{self._opens}.began").open("a") as file:
            file.write(f"{ctx.worker}\n")
        while not self._opens.exists():
            time.sleep(0.05)
        if self._opens.read_text():
            raise ValueError(self._opens.read_text())

    def process(self, batch: Any) -> Any:
        return batch

    def checkpoint(self) -> list[int]:
        return [1]

    def reset(self, state: Any) -> None:
        assert state.to_pylist() in ([], [{"opened": 1}]), state


def with_slow(opens: Path) -> Graph:
    graph = Graph("counts")
    rows = graph.source("rows", InputSource("rows", ROWS)).filter("even", is_even)
    counts = rows.key_by("by_key_2", "key").count("counts")
    counts.apply("slow", Slow(opens)).sink("out", LogSink(publish="step"))
    return graph


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_operators_are_opened_before_the_region_pauses_for_a_hand_over(
    shared_store: str, tmp_path: Path
) -> None:
    """It shows rows meanwhile. If they cannot be opened, it runs on. Each is opened once for a hand-over."""
    name, opens = tmp_path.name, tmp_path / "opens"
    began = Path(f"{opens}.began")
    with open_blocking(shared_store) as client, ExitStack() as programs:
        shown = partial(client.portal.call, last_rows, client.store, name)

        def begin(graph: Graph, folder: str, **options: Any) -> RegionHandle:
            place = tmp_path / folder / name
            place.mkdir(parents=True)
            control, _ = programs.enter_context(running(graph, shared_store, place, **options))
            return control

        old = begin(graph_of(1, "step"), "old", workers=2)
        send(client, name, range(30))
        until(lambda: old.status.checkpoints_committed > 0, "there is a checkpoint", 60)
        opens.write_text("there is no model")
        failed = begin(with_slow(opens), "failed", hand_over=True)
        assert not finished(failed)
        assert "there is no model" in str(failed.exception())
        opens.unlink()
        began.unlink()
        heir = begin(with_slow(opens), "heir", hand_over=True)
        until(lambda: began.exists() and len(began.read_text()) == 4, "both workers open it", 60)
        assert "open their operators and load the state" in heir.status.reason
        send(client, name, range(30, 60))
        until(lambda: sum(shown()[0].values()) == 60, "the rows are shown by the old program", 60)
        old.checkpoint(60)
        assert not old.status.resets
        opens.touch()
        until(lambda: not old.isActive, "it is handed over", 60)
        send(client, name, range(60, 72))
        blocking.close_input(client, name, "rows")
        assert finished(heir), heir.status
        found, steps = shown()
    assert sum(found.values()) == 60 + 6
    assert steps == sorted(set(steps)), "no step is shown twice"
    assert sorted(began.read_text().split()) == ["0", "1"], "it is opened once on each worker"


class Told(RegionListener):
    """Keeps the starts and ends that a listener of a handle receives."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[str] = []

    def onStart(self, start: dict[str, Any]) -> None:
        self.starts.append(start["incarnation"])

    def onTerminated(self, end: dict[str, Any]) -> None:
        self.ends.append(end["state"])


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_handle_continues_with_another_graph_or_with_its_own(shared_store: str, tmp_path: Path) -> None:
    """The end of the former driver is not reported as that of the region. Every row counts once."""
    name, told = tmp_path.name, Told()
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    with open_blocking(shared_store) as client:
        shown = partial(client.portal.call, last_rows, client.store, name)
        first, later = graph_of(1, "step"), {"listeners": [told], "metrics": listen}
        with running(first, shared_store, tmp_path, workers=2, **later) as (region, watch):
            ended = threading.Thread(target=region.awaitTermination, daemon=True)
            ended.start()
            send(client, name, range(30))
            watch.checkpoints(1)
            until(lambda: sum(shown()[0].values()) == 30, "the rows are shown", 60)
            before = [worker.pid for worker in region.status.workers]
            with pytest.raises(GraphChangeRefusedError, match='drop_state=\\("counts",\\)'):
                region.replace(graph=by_number())
            with pytest.raises(TypeError, match="replace takes no 'restore'"):
                region.replace(graph=graph_of(2, "step"), restore="checkpoint:1")
            with pytest.raises(RegionFailedError, match=r"was not handed over within 0\.1 s: it is RUNNING"):
                region.replace(graph=graph_of(2, "step"), timeout=0.1)
            assert [worker.pid for worker in region.status.workers] == before
            assert not region.status.resets
            settled = region.replace(graph=graph_of(2, "step"), timeout=90)
            assert settled.replaced == (0, 1)
            assert 0 < settled.pause_s < settled.seconds
            assert not {*before} & {worker.pid for worker in region.status.workers}
            send(client, name, range(30, 60))
            until(lambda: sum(shown()[0].values()) == 45, "the even rows are shown", 60)
            region.replace(graph=graph_of(3, "step"), workers=3, timeout=90)
            assert len(region.status.workers) == 3
            assert region.status.metrics == listen
            assert fetch_url(f"http://{listen}/readyz")[0] == 200, "the new driver has the port"
            send(client, name, range(60, 66))
            region.checkpoint(60)
            assert ended.is_alive()
            assert told.ends == []
            blocking.close_input(client, name, "rows")
            assert finished(region), region.status
            ended.join(60)
        assert not ended.is_alive()
        assert sum(shown()[0].values()) == 30 + 15 + 6
    assert told.ends == ["FINISHED"]
    assert len(told.starts) == 3
    ends = [event.state for event in watch.events if isinstance(event, StateChanged) and event.state.is_end]
    assert ends == [RegionState.FINISHED], "the observer receives no other end"


def without_top(row: dict[str, Any]) -> tuple[str, int]:
    return row["key"], row["total"]


def with_sums(version: int) -> Graph:
    """Version 2 has another result, and a log of it."""
    graph = Graph("sums")
    results = {"total": Sum("n"), **({"top": Max("n")} if version == 2 else {})}
    keyed = graph.source("rows", InputSource("rows", ROWS)).key_by("by_key", "key")
    sums = keyed.aggregate("sums", **results)
    totals = sums.map("totals", without_top, schema="key string, total bigint")
    totals.sink("out", LogSink(publish="step"))
    if version == 2:
        sums.sink("tops", LogSink(publish="checkpoint"))
    return graph


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_state_that_is_loaded_before_a_hand_over_is_stored_as_it_is_found_again(
    shared_store: str, tmp_path: Path
) -> None:
    """A result that comes with the graph has a uid, which the operator was opened with before the claim."""
    name = tmp_path.name
    with open_blocking(shared_store) as client, ExitStack() as programs:

        def begin(version: int, **options: Any) -> RegionHandle:
            place = tmp_path / f"{version}" / name
            place.mkdir(parents=True)
            control, _ = programs.enter_context(running(with_sums(version), shared_store, place, **options))
            return control

        old = begin(1, workers=2)
        send(client, name, range(30))
        until(lambda: old.status.checkpoints_committed > 0, "there is a checkpoint", 60)
        heir = begin(2, new_aggregates=("sums:top",), hand_over=True)
        until(lambda: not old.isActive, "it is handed over", 60)
        until(lambda: heir.status.state is RegionState.RUNNING, "the new program runs it", 60)
        send(client, name, range(30, 36))
        heir.checkpoint(60)
        kill(heir, 0, wipe=True)
        send(client, name, range(3))
        blocking.close_input(client, name, "rows")
        assert finished(heir), heir.status

        async def results() -> dict[str, tuple[int, int]]:
            found = {}
            async for step in read_output(client.store, name, "tops"):
                for row in [] if step.table is None else step.table.to_pylist():
                    found[row["key"]] = row["total"], row["top"]
            return found

        found = client.portal.call(results)
    rows = [*range(36), *range(3)]
    assert found == {f"k{key}": (sum(n for n in rows if n % 3 == key), 33 + key) for key in range(3)}


DRIVER = """
import os, signal, sys
from checkpoint.coordinator.shell import RegionShell
from dataflow.local import run_local
from tests.dataflow.test_changed_graphs import PROGRAMS, name_of

store, name, program, dies_at, folder = sys.argv[1:]
handle, perform = RegionShell._handle, RegionShell._perform
begun = [program != "former"]

def die_at(step):
    begun[0] |= name_of(step) == "HandOverWanted"
    if begun[0] and name_of(step) == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)

RegionShell._handle = lambda shell, event: (die_at(event), handle(shell, event))
RegionShell._perform = lambda shell, effect: (die_at(effect), perform(shell, effect))
graph, options = PROGRAMS[program](name)
options = {"workers": 2, "checkpoint_interval": 0.2, "standby": 0} | options
run_local(graph, name=name, store=store, logs=folder, **options).awaitTermination()
"""

PROGRAMS: dict[str, Callable[[str], tuple[Graph, dict[str, Any]]]] = {
    "former": lambda _: (graph_of(1, "step"), {}),
    "heir": lambda _: (graph_of(2, "step"), {"hand_over": True}),
    "without audit": lambda _: (audited(audit=False), {"removed": {"audit": None}}),
    "more results": lambda _: more_results(),
    "more sources": lambda name: (of_sources(name, *LATER), {"begins": dict.fromkeys(LATER, "latest")}),
    "with first rows": lambda _: (
        with_totals(2),
        {"bootstrap": ("savepoint:before", FIRST_ROWS)},
    ),
}
"""Programs of processes of their own: the name of the region -> its graph, and the options of its start."""


def more_results() -> tuple[Graph, dict[str, Any]]:
    from tests.dataflow.test_changed_aggregates_in_regions import NAMED, sold

    return sold(2), {"workers": 3, **NAMED}


@contextmanager
def killed_at(
    store: str, name: str, program: str, dies_at: str, logs: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that kills itself when it is to handle or to send such a message, or to do what has that name;
    the former one of a hand-over once it is asked for its region.
    """
    command = [sys.executable, "-c", DRIVER, store, name, program, dies_at, str(logs)]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


STEPS = {
    "new": (
        *("LaunchWorker", "Join", "ReadLastCheckpoint", "LastCheckpointRead", "CopyAhead", "CopiedAhead"),
        *("AskForRegion", "HandOverAnswered", "OpenManifest", "ManifestOpened", "Restore", "Restored"),
        *("Vote", "AppendCheckpoint", "CheckpointAppended", "CheckpointCommitted", "Committed", "Start"),
    ),
    "old": (
        *("HandOverWanted", "Pause", "Paused", "RequestCheckpoint", "Vote", "AppendCheckpoint"),
        *(
            "CheckpointAppended",
            "CheckpointCommitted",
            "Committed",
            "HandOverSettled",
            "ManifestLost",
            "Stop",
        ),
        *("OpenManifest", "ManifestTaken"),
    ),
}
"""Driver -> the messages of a hand-over, in its process: what its core gets, and what it orders, in order."""
OF_ANY_TIME = {
    *("CoordinatorTick", "Heartbeat", "Progress", "CompanionReport", "StateChanged", "WorkerJoined", "Begin"),
    *("StoreWaiting", "LinkDown", "CloseLink", "WorkerEnded", "CancelWorker", "WorkerLost", "End"),
}
QUICK = {("new", "AppendCheckpoint"), ("old", "HandOverSettled")}


def name_of(step: Any) -> str:
    return type(getattr(step, "message", getattr(step, "event", step))).__name__


@pytest.mark.process
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("who", "dies_at"),
    [
        pytest.param(who, step, marks=() if (who, step) in QUICK else pytest.mark.long, id=f"{who}-{step}")
        for who, steps in STEPS.items()
        for step in steps
    ],
)
def test_a_driver_that_is_killed_in_a_hand_over_leaves_a_region_that_runs_or_can_be_started(
    shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, dies_at: str
) -> None:
    """At each message, just before it counts. The other driver runs the region, unless the new one had
    committed, or the old one had shown steps that no checkpoint has: then its program can be started again.
    """
    monkeypatch.setattr("checkpoint.limits.lease_s", 5.0)
    monkeypatch.setattr("checkpoint.limits.heir_commits_s", 5.0)
    version = 1 if who == "old" else 2
    name, other = tmp_path.name, 3 - version
    with open_blocking(shared_store) as client, ExitStack() as drivers:
        shown = partial(client.portal.call, last_rows, client.store, name)

        def killed() -> subprocess.Popen[bytes]:
            program = "former" if version == 1 else "heir"
            return drivers.enter_context(killed_at(shared_store, name, program, dies_at, tmp_path / program))

        def start(of: int, folder: str, **options: Any) -> RegionHandle:
            place = tmp_path / folder / name
            place.mkdir(parents=True)
            return drivers.enter_context(running(graph_of(of, "step"), shared_store, place, **options))[0]

        def survivor() -> RegionHandle:
            return start(other, "other", hand_over=other == 2, workers=2)

        begin = (survivor, killed) if other == 1 else (killed, survivor)
        first = begin[0]()
        send(client, name, range(30))
        until(lambda: is_shown(shown, 30), "the rows are shown", 90)
        # Otherwise the newcomer may have compared itself with nothing, and is refused.
        until(lambda: dos("checkpoint", "show", shared_store, name).returncode == 0, "a checkpoint", 90)
        pair = (first, begin[1]())
        process, control = pair[::-1] if other == 1 else pair
        assert process.wait(90) == -signal.SIGKILL
        runs = other
        committed = who == "new" and STEPS["new"].index(dies_at) > STEPS["new"].index("AppendCheckpoint")
        unstated = who == "old" and STEPS["old"].index(dies_at) <= STEPS["old"].index("AppendCheckpoint")
        if committed or unstated:
            assert not finished(control)
            fenced = control.status.state is RegionState.FENCED
            assert fenced if committed else isinstance(control.exception(), GraphChangeRefusedError)
            runs, control = version, start(version, "again")
        send(client, name, range(30, 60))
        until(lambda: is_shown(shown, 60 if runs == 1 else 45), f"version {runs} runs the region", 90)
        assert control.status.state is RegionState.RUNNING
        blocking.close_input(client, name, "rows")
        assert finished(control), control.status
        found, steps = shown()
    assert sum(found.values()) == (60 if runs == 1 else 45)
    assert steps == sorted(set(steps)), "no step is shown twice"


def is_shown(shown: Callable[[], tuple[dict[str, int], list[int]]], rows: int) -> bool:
    try:
        return sum(shown()[0].values()) == rows
    except NoOutputError:  # the region has just begun
        return False


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_of_two_programs_that_begin_together_one_runs(shared_store: str, tmp_path: Path) -> None:
    name = tmp_path.name
    with open_blocking(shared_store) as client, ExitStack() as programs:

        def begin(version: int) -> RegionHandle:
            graph, folder = graph_of(version, "checkpoint"), tmp_path / f"{version}" / name
            folder.mkdir(parents=True)
            control, _ = programs.enter_context(running(graph, shared_store, folder, workers=2))
            return control

        first = begin(1)
        send(client, name, range(6))
        until(lambda: first.status.checkpoints_committed > 0, "the first program has a checkpoint", 60)
        others = [begin(2), begin(3)]
        until(lambda: [first.isActive, *(one.isActive for one in others)].count(False) == 2, "two end", 90)
        (winner,) = [one for one in (first, *others) if one.isActive]
        assert winner is not first, "both fit"
        send(client, name, range(6, 12))
        blocking.close_input(client, name, "rows")
        assert finished(winner), winner.status
        found, _ = client.portal.call(last_rows, client.store, name)
        assert sum(found.values()) == 6 + (3 if winner is others[0] else 6)


def next_version() -> Graph:
    return graph_of(2, "step")


def by_number() -> Graph:
    graph = Graph("counts")
    rows = graph.source("rows", InputSource("rows", ROWS))
    rows.key_by("by_n", "n").count("counts").sink("out", LogSink(publish="step"))
    return graph


def of_others() -> Graph:
    graph = Graph("counts")
    rows = graph.source("others", InputSource("others", ROWS))
    rows.key_by("by_key", "key").count("counts").sink("out", LogSink(publish="step"))
    return graph


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_dry_run_shows_what_an_upgrade_would_change_and_claims_nothing(
    shared_store: str, tmp_path: Path
) -> None:
    name = tmp_path.name
    dry_run = partial(dos, "region", "upgrade", "--dry-run", shared_store, name)
    with (
        open_blocking(shared_store) as client,
        running(graph_of(1, "step"), shared_store, tmp_path) as (control, watch),
    ):
        send(client, name, range(3))
        watch.checkpoints(1)
        fits = dry_run(f"{__name__}:next_version")
        assert fits.returncode == 0, fits
        first, *rows = fits.stdout.splitlines()
        assert first.startswith(f"{name}: checkpoint "), fits.stdout
        assert "steps may be shown after it" in first
        assert (
            "kept     counts (count, key (key)), out (sink, LogSink publish step), rows (source"
            in fits.stdout
        )
        assert "even (filter)" in fits.stdout
        assert "refused  -" in rows
        assert "hand it over while it runs" in rows[-1]
        refused = dry_run(f"{__name__}:by_number", "--json")
        assert refused.returncode == 1, refused
        (found,) = json.loads(refused.stdout)
        assert not found["fits"]
        assert [one["operator"] for one in found["refused"]] == ["counts", "out"]
        assert found["options"] == 'drop_state=("counts",), removed={"out": None}'
        gone = dry_run(f"{__name__}:of_others", "--removed", "rows", "--json")
        assert gone.returncode == 1, "the counts would continue with rows of another source"
        (removed,) = json.loads(gone.stdout)[0]["changes"]["removed"]
        assert (removed["operator"], removed["kind"]) == ("rows", "source")
        assert isinstance(removed["unreadBytes"], int), removed
        assert "there is no graph 'json:nothing'" in dry_run("json:nothing").stderr
        assert "is function, and no Graph" not in dry_run(f"{__name__}:by_number").stderr
        control.checkpoint(60)
        assert control.status.incarnation == 1, "nothing was claimed"
        assert not control.status.resets
    unknown = dos("region", "upgrade", "--dry-run", shared_store, "nobody", f"{__name__}:by_number")
    assert "nobody: no checkpoint, it begins anew" in unknown.stdout


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_program_that_does_not_fit_leaves_the_other_alone(shared_store: str, tmp_path: Path) -> None:
    """Also one that would fit if the region showed no steps, and one whose state would begin anew. The former
    continues if it takes back what was shown.
    """
    name = tmp_path.name
    with open_blocking(shared_store) as client:
        shown = partial(client.portal.call, last_rows, client.store, name)
        with running(graph_of(1, "step"), shared_store, tmp_path) as (control, watch):
            send(client, name, range(3))
            watch.checkpoints(1)
            until(lambda: sum(shown()[0].values()) == 3, "the first rows are shown", 60)
            control.savepoint("good", timeout=60)
            for graph in (graph_of(2, "step"), by_number()):
                with running(graph, shared_store, tmp_path) as (newcomer, _):
                    assert not finished(newcomer)
                    assert isinstance(newcomer.exception(), GraphChangeRefusedError)
            send(client, name, range(3, 9))
            until(lambda: sum(shown()[0].values()) == 9, "the first program runs on", 60)
            assert control.status.state is RegionState.RUNNING
            assert not control.status.resets
        back = {"restore": "savepoint:good"}
        with running(graph_of(2, "step"), shared_store, tmp_path, **back) as (control, _):
            blocking.close_input(client, name, "rows")
            assert finished(control), control.status
        assert sum(shown()[0].values()) == 3 + 3, "all rows up to the savepoint, and the even ones after it"


def with_totals(version: int) -> Graph:
    """Version 2 adds a source, a state and a log. Version 3 renames the counts, and its totals are maxima; in
    version 4 they are sums again, as in version 2.
    """
    graph = Graph("totals")
    rows = graph.source("rows", InputSource("rows", ROWS))
    if version > 1:
        rows = rows.union("both", graph.source("more", InputSource("more", ROWS)))
    keyed = rows.key_by("by_key", "key")
    keyed.count("counts" if version < 3 else "tallies").sink("out", LogSink(publish="checkpoint"))
    if version > 1:
        totals = keyed.aggregate("totals", total=Max("n") if version == 3 else Sum("n"))
        totals.sink("totals_out", LogSink(publish="checkpoint"))
    return graph


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_states_sources_and_logs_come_and_states_are_dropped_and_renamed(
    shared_store: str, tmp_path: Path
) -> None:
    name = tmp_path.name
    permitted = {"drop_state": ("totals",), "renamed": {"counts": "tallies"}}

    def total_of(*parts: range, by: Any = sum) -> dict[str, int]:
        rows = [one for part in parts for one in part]
        return {f"k{key}": by(one for one in rows if one % 3 == key) for key in range(3)}

    with open_blocking(shared_store) as client:

        def shows(counted: int, totals: dict[str, int] | None = None) -> bool:
            counts = client.portal.call(last_rows, client.store, name)[0]
            if totals is not None:
                found = client.portal.call(last_rows, client.store, name, "totals_out")[0]
                return sum(counts.values()) == counted and found == totals
            return sum(counts.values()) == counted

        send(client, name, range(100, 112), "more")
        with running(with_totals(1), shared_store, tmp_path, workers=2) as (_, watch):
            send(client, name, range(30))
            watch.checkpoints(1)
            until(lambda: shows(30), "version 1 counts", 60)
        with running(with_totals(2), shared_store, tmp_path, workers=3) as (control, watch):
            send(client, name, range(30, 60))
            watch.checkpoints(1)
            until(lambda: shows(72, total_of(range(30, 60), range(100, 112))), "what came is summed", 60)
            watch.checkpoints(2)
            kill(control, 1, wipe=True)
            send(client, name, range(60, 66))
            until(lambda: shows(78, total_of(range(30, 66), range(100, 112))), "also after a reset", 60)
        last = control.status.last_checkpoint
        with running(with_totals(3), shared_store, tmp_path) as (control, _):
            assert not finished(control)
            assert isinstance(error := control.exception(), GraphChangeRefusedError)
            assert error.operators == ("counts", "totals")
            assert 'drop_state=("totals",)' in str(error)
            assert f'bootstrap=("checkpoint:{last}", {{"totals": rows}})' in str(error)
        first = {"bootstrap": (f"checkpoint:{last}", {"totals": [{"key": "k0", "total": 500}]})}
        with running(with_totals(3), shared_store, tmp_path, workers=2, **permitted, **first) as (
            control,
            watch,
        ):
            watch.checkpoints(1)
            send(client, name, range(66, 72))
            maxima = total_of(range(66, 72), by=max) | {"k0": 500}
            until(lambda: shows(84, maxima), "the maxima begin anew, with a row; the counts do not", 60)
            kill(control, 0, wipe=True)
            send(client, name, range(3), "more")
            until(lambda: shows(87, maxima), "and stay after a reset", 60)
        with running(with_totals(4), shared_store, tmp_path, **permitted) as (control, _):
            send(client, name, range(72, 78))
            for handle in ("rows", "more"):
                blocking.close_input(client, name, handle)
            assert finished(control), control.status
        assert shows(93, total_of(range(72, 78))), "the sums of version 2 do not come back"


LATER = ("prices", "log")
"""Sources that come with the second version of a program."""


def of_sources(region: str, *later: str) -> Graph:
    """Counts the rows of a handle, and of later sources: another handle, and the log of a region."""
    graph = Graph("read")
    application = region.removesuffix("-again")
    sources = {
        "rows": InputSource("rows", ROWS, application=application),
        "prices": InputSource("prices", ROWS, application=application),
        "log": LogSource("out", ROWS, region=f"{application}-log"),
    }
    first, *others = [graph.source(name, sources[name]) for name in ("rows", *later)]
    rows = first.union("all", *others) if others else first
    rows.key_by("by_key", "key").count("counts").sink("out", LogSink(publish="checkpoint"))
    return graph


def log_of(region: str) -> Graph:
    graph = Graph("log")
    rows = graph.source("rows", InputSource("prices", ROWS, application=region))
    rows.sink("out", LogSink(publish="checkpoint"))
    return graph


@pytest.mark.process
@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_new_sources_begin_at_their_end_as_it_was_when_their_graph_began(
    shared_store: str, tmp_path: Path
) -> None:
    """Whatever is killed: before that checkpoint another start finds another end, and after it none does."""
    name, sent = tmp_path.name, 0
    begins = dict.fromkeys(LATER, "latest")
    with open_blocking(shared_store) as client, ExitStack() as programs:

        def begin(region: str, graph: Graph, **options: Any) -> tuple[RegionHandle, Any]:
            folder = tmp_path / region
            folder.mkdir(exist_ok=True)
            return programs.enter_context(running(graph, shared_store, folder, workers=2, **options))

        log, _ = begin(f"{name}-log", log_of(name))

        def send_prices(count: int) -> None:
            """The same rows are in the log, in its last checkpoint."""
            nonlocal sent
            send(client, name, range(sent, sent + count), "prices")
            sent += count
            until(lambda: log.status.rows_in == sent, "the log has them", 60)
            log.checkpoint(60)

        def counts(region: str, expected: int) -> bool:
            return is_shown(partial(client.portal.call, last_rows, client.store, region), expected)

        send_prices(40)
        send(client, name, range(3))
        with running(of_sources(name), shared_store, tmp_path, workers=2) as (control, watch):
            watch.checkpoints(1)
            until(lambda: counts(name, 3), "the rows are counted", 60)
        for dies_at in ("AppendCheckpoint", "Start"):
            with killed_at(shared_store, name, "more sources", dies_at, tmp_path / dies_at) as process:
                assert process.wait(90) == -signal.SIGKILL
            send_prices(5)
        control, _ = begin(name, of_sources(name, *LATER), begins=begins)
        until(lambda: counts(name, 3 + 2 * 5), "what came after the checkpoint is read", 60)
        kill(control, 0, wipe=True)
        send_prices(7)
        until(lambda: counts(name, 3 + 2 * 12), "also after a reset", 60)
        control.stop()
        assert control.wait(60)
        # A region that begins: its first checkpoint states where.
        control, _ = begin(f"{name}-again", of_sources(f"{name}-again", *LATER), begins=begins)
        until(lambda: control.status.state is RegionState.RUNNING, "it runs", 60)
        assert control.status.last_checkpoint == 1
        send_prices(2)
        until(lambda: counts(f"{name}-again", 3 + 2 * 2), "it has the first rows, and no former price", 60)
        kill(control, 1, wipe=True)
        send_prices(1)
        until(lambda: counts(f"{name}-again", 3 + 2 * 3), "also after a reset", 60)


def first_totals() -> list[dict[str, Any]]:
    return [{"key": f"k{key}", "total": 1000 * key} for key in range(4)]


FIRST_ROWS = {"totals": first_totals}


def no_totals() -> list[dict[str, Any]]:
    raise ZeroDivisionError("totals")


@pytest.mark.process
@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_a_new_state_begins_with_rows_made_of_the_last_checkpoint(shared_store: str, tmp_path: Path) -> None:
    """Whatever is killed: before the first checkpoint of its graph the former program continues, and
    afterwards only the new one, with the rows.
    """
    name = tmp_path.name
    with open_blocking(shared_store) as client:

        def total(sink: str) -> int:
            return sum(client.portal.call(last_rows, client.store, name, sink)[0].values())

        def refusal(**options: Any) -> str:
            with running(with_totals(2), shared_store, tmp_path, **options) as (newcomer, _):
                assert not finished(newcomer)
                return f"{newcomer.exception()}"

        with running(with_totals(1), shared_store, tmp_path, workers=2) as (control, watch):
            send(client, name, range(30))
            watch.checkpoints(1)
            until(lambda: total("out") == 30, "they are counted", 60)
            last = f"checkpoint:{control.checkpoint(60)}"
            why = refusal(bootstrap=(last, {"totals": no_totals}))
            assert "operator 'totals': its rows for bootstrap were not made: ZeroDivisionError: totals" in why
            why = refusal(bootstrap=(last, {"totals": first_totals}), hand_over=True)
            assert "a hand-over takes another checkpoint" in why
            why = refusal(bootstrap=(last, {"totals": [{"key": "k1"}]}))
            assert "operator 'totals'" in why
            assert control.status.state is RegionState.RUNNING
            assert not control.status.resets, "nothing was claimed"

        def savepoint() -> None:
            assert dos("region", "savepoint", shared_store, name, "before", "--stopped").returncode == 0

        def killed(dies_at: str) -> None:
            with killed_at(shared_store, name, "with first rows", dies_at, tmp_path / dies_at) as process:
                assert process.wait(90) == -signal.SIGKILL

        savepoint()
        killed("AppendCheckpoint")
        begins = {"bootstrap": ("savepoint:before", FIRST_ROWS)}
        assert "has rows of a bootstrap for the new operator 'totals'" in refusal()
        with running(with_totals(1), shared_store, tmp_path, workers=3) as (control, watch):
            send(client, name, range(30, 40))
            until(lambda: total("out") == 40, "the former program continues", 60)
        assert "its rows are made of savepoint:before, and not of checkpoint" in refusal(**begins)
        assert dos("region", "savepoint", shared_store, name, "before", "--stopped", "--drop").returncode == 0
        savepoint()
        killed("AppendCheckpoint")
        send(client, name, range(40, 46))
        killed("Start")
        with running(with_totals(2), shared_store, tmp_path, **begins) as (control, watch):
            send(client, name, range(46, 48))
            until(lambda: total("out") == 48, "all rows are counted", 60)
            kill(control, 0, wipe=True)
            send(client, name, range(48, 50))
            until(lambda: total("out") == 50, "also after a reset", 60)
        shown = client.portal.call(last_rows, client.store, name, "totals_out")[0]
    sums = {f"k{key}": 1000 * key + sum(one for one in range(40, 50) if one % 3 == key) for key in range(3)}
    assert shown == sums, "what was read after the former program ended is added to the rows"
    stored = state_of(shared_store, name, "totals").to_pylist()
    assert {row["key"]: row["total"][1] for row in stored} == {**sums, "k3": 3000}


def audited(*, audit: bool = True) -> Graph:
    """It counts each number, on the worker of the number, and shows the counts in one log or in two."""
    graph = Graph("counts")
    counts = graph.source("rows", InputSource("rows", ROWS)).key_by("by_n", "n").count("counts")
    counts.sink("out", LogSink(publish="step"))
    if audit:
        counts.sink("audit", LogSink(publish="step"))
    return graph


def reader_of(region: str) -> Graph:
    graph = Graph("reader")
    source = LogSource("audit", "n bigint, count bigint", region=region)
    graph.source("audit", source).sink("seen", LogSink(publish="step"))
    return graph


async def numbers_in(store: Store, region: str, sink: str) -> list[int]:
    """The numbers of all rows of a log, sorted."""
    tables = [step.table async for step in read_output(store, region, sink)]
    return sorted(n for table in tables if table is not None for n in table.column("n").to_pylist())


@pytest.mark.process
@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_a_removed_log_is_read_to_its_end_although_a_worker_leaves_with_it(
    shared_store: str, tmp_path: Path
) -> None:
    """Also if the driver of the change is killed, before the first checkpoint of the graph and after it."""
    name, reader = tmp_path.name, tmp_path / f"{tmp_path.name}-reader"
    with open_blocking(shared_store) as client:

        def numbers(region: str, sink: str) -> list[int]:
            try:
                return client.portal.call(numbers_in, client.store, region, sink)
            except NoOutputError:  # it has just begun
                return []

        with running(audited(), shared_store, tmp_path, workers=3):
            send(client, name, range(6))
            with running(reader_of(name), shared_store, reader) as (_, watch):
                until(lambda: numbers(reader.name, "seen") == [*range(6)], "a part is read", 90)
                watch.checkpoints(1)
            send(client, name, range(6, 30))
            until(lambda: numbers(name, "out") == [*range(30)], "all is shown", 90)
        for dies_at in ("AppendCheckpoint", "Start"):
            with killed_at(shared_store, name, "without audit", dies_at, tmp_path / dies_at) as process:
                assert process.wait(90) == -signal.SIGKILL
        options: dict[str, Any] = {"workers": 2, "removed": {"audit": None}}
        with running(audited(audit=False), shared_store, tmp_path, **options) as (control, _):
            send(client, name, range(30, 36))
            until(lambda: numbers(name, "out") == [*range(36)], "the region runs on", 90)
            assert numbers(name, "audit") == [*range(30)]
            with running(reader_of(name), shared_store, reader) as (end, _):
                assert finished(end), "it knows that nothing follows"
            assert numbers(reader.name, "seen") == [*range(30)]
            assert len(control.status.workers) == 2
            assert "removed sink" in dos("checkpoint", "show", shared_store, name).stdout
            drop = partial(dos, "output", "drop", shared_store, name, "audit")
            shown = drop()
            assert shown.returncode == 0, shown
            assert f"on 3 workers; readers: {reader.name}; --apply drops it" in shown.stdout
            assert f"registered readers of the log of 'audit': {reader.name}" in drop("--apply").stderr
            running_still = drop("--apply", "--break", reader.name)
            assert running_still.returncode == 1, "the region runs"
        dropped = drop("--apply", "--break", reader.name)
        assert dropped.returncode == 0, dropped
        with pytest.raises(NoOutputError, match="dropped its log"):
            client.portal.call(numbers_in, client.store, name, "audit")
        assert "no removed sink 'audit' whose log can be read" in drop().stderr
        assert numbers(name, "out") == [*range(36)]
