"""`dos checkpoint`, listeners and progress on a real region of real workers, and `dos region` on it."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from typer.testing import CliRunner

from checkpoint.coordinator.control import RegionListener
from checkpoint.core.region import RegionState, coordinator_directory
from checkpoint.errors import RegionFailedError
from dataflow import Graph
from dataflow.handle import RegionHandle
from dataflow.limits import WorkerLimits
from dataflow.local import run_local
from dos_cli.main import app
from dos_client import open_store
from spark_integration.core.options import parse_state
from spark_integration.reading.inspection import InsideReader, OperatorStateTable, columns_of
from tests.dataflow.support import true_counts, word_count
from tests.support.polling import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]
WAIT_S = 60.0
SMALL_STEPS = WorkerLimits(step_bytes_max=4096, batch_bytes_max=2048)


class Heard(RegionListener):
    """Records its calls, and raises in some of them."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._failing = failing
        self._changed = threading.Condition()

    def _note(self, method: str, what: dict[str, Any]) -> None:
        with self._changed:
            self.calls.append((method, json.loads(json.dumps(what))))
            self._changed.notify_all()
        if method == self._failing:
            raise RuntimeError("a listener of a careless user")

    def onStart(self, start: dict[str, Any]) -> None:
        self._note("onStart", start)

    def onProgress(self, progress: dict[str, Any]) -> None:
        self._note("onProgress", progress)

    def onReset(self, reset: dict[str, Any]) -> None:
        self._note("onReset", reset)

    def onTerminated(self, end: dict[str, Any]) -> None:
        self._note("onTerminated", end)

    def wait(self, holds: Callable[[list[str]], bool]) -> None:
        with self._changed:
            methods = lambda: [method for method, _ in self.calls]  # noqa: E731
            assert self._changed.wait_for(lambda: holds(methods()), WAIT_S), methods()


def state_of(store: str, region: str, operator: str, **options: str) -> dict[str, int]:
    """What the operator keeps, as `dos-state` gives it to Spark."""
    table = OperatorStateTable(parse_state({"path": f"{store}/{region}", "operator": operator, **options}))
    reader = InsideReader(table, columns_of(table))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert len({row["word"] for row in rows}) == len(rows)
    return {row["word"]: row["count"] for row in rows}


def a_graph(folder: Path, *, passes: int) -> Graph:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "a.txt", folder / "b.txt"]
    for path in paths:
        path.write_text("".join(f"word{number} and\n" for number in range(100)))
    return word_count(paths, folder / "out", repeat=passes)


@contextlib.contextmanager
def running(
    store: str, folder: Path, name: str, *, passes: int = 100_000, **options: Any
) -> Iterator[RegionHandle]:
    control = run_local(
        a_graph(folder / name, passes=passes),
        name=name,
        store=store,
        logs=folder / "logs",
        worker_limits=SMALL_STEPS,
        checkpoint_interval=0.2,
        **options,
    )
    assert isinstance(control, RegionHandle)
    try:
        yield control
    finally:
        control.stop()
        control.wait(WAIT_S)


def dos(*arguments: Any, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"NO_COLOR": "1"})
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.stderr if code else done.stdout


def test_a_paused_region_takes_nothing_until_it_is_told_to_continue_even_if_it_is_reset(
    store: str, tmp_path: Path
) -> None:
    with running(store, tmp_path, "paused") as control:
        control.checkpoint(WAIT_S)
        said = json.loads(dos("region", "pause", store, "paused", "--json"))
        checkpoint, status = said["result"]["checkpoint"], control.status
        assert (said["result"]["state"], status.state, status.last_checkpoint) == (
            "PAUSED",
            RegionState.PAUSED,
            checkpoint,
        )
        assert len({worker.step for worker in status.workers} - {status.last_checkpoint_step}) == 0
        taken = sum(worker.rows_in for worker in status.workers)
        assert control.checkpoint(WAIT_S) == checkpoint + 1, "a checkpoint can be had meanwhile"
        control.reset()
        # a checkpoint that was due may be taken once more, of the same rows
        assert control.pause(WAIT_S) >= checkpoint + 1, "the wish outlives the reset"
        assert sum(worker.rows_in for worker in control.status.workers) == taken
        assert "resumed from checkpoint" in dos("region", "resume", store, "paused")
        until(lambda: sum(worker.rows_in for worker in control.status.workers) > taken, "it reads on", WAIT_S)


def test_a_region_tells_listeners_of_its_start_its_checkpoints_its_resets_and_its_end(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    careless, heard, late = Heard(failing="onProgress"), Heard(), Heard()
    with running(store, tmp_path, "heard", listeners=[careless, heard]) as control:
        heard.wait(lambda calls: calls.count("onProgress") >= 2)
        control.addListener(late)
        control.reset()
        late.wait(lambda calls: "onReset" in calls)
        control.removeListener(late)
        before = len(late.calls)
        checkpoint = control.checkpoint(WAIT_S)
        heard.wait(lambda _: any(what.get("checkpoint", 0) >= checkpoint for _, what in heard.calls))
        control.stop()
        assert control.awaitTermination(WAIT_S)
    methods = [method for method, _ in heard.calls]
    assert methods[0] == "onStart"
    assert methods[-1] == "onTerminated"
    assert methods.count("onStart") == methods.count("onTerminated") == methods.count("onReset") == 1
    assert [method for method, _ in careless.calls] == methods
    assert "onProgress of a listener failed" in caplog.text
    assert late.calls[0] == ("onStart", heard.calls[0][1])
    assert len(late.calls) == before
    end = heard.calls[-1][1]
    assert (end["state"], end["exception"], end["name"]) == ("STOPPED", None, "heard")
    assert end["lastCheckpoint"] == control.status.last_checkpoint
    after = Heard()
    control.addListener(after)
    after.wait(lambda calls: calls == ["onStart", "onTerminated"])


def test_progress_tells_rows_of_operators_lag_and_where_the_time_of_a_checkpoint_went(
    store: str, tmp_path: Path
) -> None:
    with running(store, tmp_path, "progress", passes=40) as control:
        assert control.awaitTermination(WAIT_S)
        assert not control.isActive
    shown = CliRunner().invoke(app, ["region", "status", store, "progress"])
    assert (shown.exit_code, shown.stderr) == (0, ""), "nothing is wrong"
    assert "FINISHED (all input is processed)" in shown.stdout
    assert "no driver needs to run" in shown.stdout
    assert "no driver needs to run" in dos(
        "region", "status", store, "progress", "--prometheus-targets", code=1
    )
    reports = control.recentProgress
    last = control.lastProgress
    assert last == reports[-1]
    assert last is not None
    assert last["final"]
    assert json.loads(json.dumps(reports)) == reports
    assert [one["checkpoint"] for one in reports] == sorted({one["checkpoint"] for one in reports})
    assert sum(one["numInputRows"] for one in reports) == 40 * 200
    assert [one["name"] for one in last["operators"]] == ["lines", "words", "by_word", "counts", "out"]
    rows = {
        name: sum(one["rowsIn"] for report in reports for one in report["operators"] if one["name"] == name)
        for name in ("words", "by_word")
    }
    assert rows == {"words": 40 * 200, "by_word": 40 * 400}
    assert next(one for one in last["operators"] if one["name"] == "counts")["keys"] == 101
    assert all(one["busySeconds"] >= 0 for report in reports for one in report["operators"])
    assert set(last["phaseSeconds"]) == {"align", "drain", "write", "sync", "commit"}
    assert [set(one["phaseSeconds"]) for one in last["workers"]] == [{"align", "drain", "write", "sync"}] * 2


def test_a_region_that_cannot_be_has_an_end_without_a_start(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("dos_client.store.open_timeout_s", 0.2)
    heard = Heard()
    with running("dos://127.0.0.1:1", tmp_path, "nowhere", listeners=[heard]) as control:
        with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
            control.awaitTermination(WAIT_S)
        with pytest.raises(RegionFailedError, match="committed no checkpoint"):
            control.checkpoint(0.1)
    assert [method for method, _ in heard.calls] == ["onTerminated"]
    assert heard.calls[0][1]["state"] == "FAILED"
    assert "127.0.0.1:1" in heard.calls[0][1]["exception"]


def test_checkpoints_are_listed_shown_and_compared_with_the_keys_that_changed(
    store: str, tmp_path: Path
) -> None:
    with running(store, tmp_path, "checkpoints", passes=3, retain=1_000) as control:
        assert control.awaitTermination(WAIT_S)
    with running(
        store, tmp_path, "checkpoints", passes=4, retain=1_000
    ) as control:  # the inputs have grown by a pass
        assert control.awaitTermination(WAIT_S)
    last = control.status.last_checkpoint
    listed = json.loads(dos("checkpoint", "ls", store, "checkpoints", "--json"))
    numbers = [one["checkpoint"] for one in listed["checkpoints"]]
    assert numbers == list(range(1, last + 1))
    assert listed["checkpoints"][-1]["final"]
    assert set(listed["checkpoints"][-1]["phaseSeconds"]) == {"align", "drain", "write", "sync"}
    assert "final" in dos("checkpoint", "ls", store, "checkpoints")

    shown = json.loads(dos("checkpoint", "show", store, "checkpoints", "--json"))
    assert shown["checkpoint"] == last
    assert shown["operators"].keys() == {"lines", "words", "by_word", "counts", "out"}
    assert [one["worker"] for one in shown["workers"]] == [0, 1]
    assert shown["workers"][0]["sinks"]["out"]["size"] > 0
    text = dos("checkpoint", "show", store, "checkpoints", numbers[0])
    assert f"checkpoint {numbers[0]} of region checkpoints" in text
    assert "counts" in text

    whole = json.loads(dos("checkpoint", "diff", store, "checkpoints", 1, last, "--json"))
    assert whole["steps"] > 0
    assert whole["state"]["unknown"] == []
    (counts,) = whole["state"]["operators"]
    first = json.loads(dos("checkpoint", "diff", store, "checkpoints", "--json"))
    assert (first["from"], first["to"]) == (numbers[-2], last)
    assert counts["name"] == "counts"
    assert counts["keys"] == 101  # every word was counted once more in the last pass
    assert counts["rows"] >= counts["keys"]
    folder = tmp_path / "checkpoints"
    assert state_of(store, "checkpoints", "counts") == true_counts(
        [folder / "a.txt", folder / "b.txt"], repeat=4
    )
    assert (
        state_of(store, "checkpoints", "counts", since="1").keys()
        == state_of(store, "checkpoints", "counts").keys()
    )
    assert "keys changed" in dos("checkpoint", "diff", store, "checkpoints")
    assert "keys changed" not in dos("checkpoint", "diff", store, "checkpoints", "--no-keys")
    back = json.loads(dos("checkpoint", "diff", store, "checkpoints", last, 1, "--json"))
    assert back["steps"] == -whole["steps"]
    assert [one.split(":")[0] for one in back["state"]["unknown"]] == ["worker 0", "worker 1"]

    with running(store, tmp_path, "checkpoints", passes=5, retain=2) as control:
        assert control.awaitTermination(WAIT_S)
    listed = json.loads(dos("checkpoint", "ls", store, "checkpoints", "--json"))
    assert [one["retained"] for one in listed["checkpoints"]] == [False] * (
        len(listed["checkpoints"]) - 2
    ) + [True, True]
    assert "released" in dos("checkpoint", "ls", store, "checkpoints")
    kept = ", ".join(str(one["checkpoint"]) for one in listed["checkpoints"] if one["retained"])
    released = dos("checkpoint", "diff", store, "checkpoints", 1, kept.split(", ")[-1], code=1)
    assert f"checkpoint 1 of region checkpoints was released; retained are {kept}" in " ".join(
        released.split()
    )
    assert "steps in" in dos("checkpoint", "diff", store, "checkpoints", 1, 2, "--no-keys"), (
        "its record is there still"
    )

    assert "has no checkpoint 9999: it shows 1 to" in dos(
        "checkpoint", "show", store, "checkpoints", 9999, code=1
    )
    assert "no region 'nobody'" in dos("checkpoint", "ls", store, "nobody", code=1)
    assert "names a directory" in dos("checkpoint", "ls", f"{store}/checkpoints", "checkpoints", code=2)

    trio.run(claimed_only, store, coordinator_directory("checkpoints"))
    hidden = json.loads(dos("checkpoint", "ls", store, "checkpoints", "--json"))
    assert "a later checkpoint may be committed" in hidden["unproved"]
    numbers = [one["checkpoint"] for one in listed["checkpoints"]]
    assert [one["checkpoint"] for one in hidden["checkpoints"]] == numbers[:-1]
    assert dos("checkpoint", "ls", store, "checkpoints").splitlines()[-1] == hidden["unproved"]
    assert dos("region", "status", store, "checkpoints", "--no-ask").splitlines()[-1] == hidden["unproved"]
    assert "no driver of region" in dos("region", "status", store, "checkpoints", "--timeout", 1, code=1)


async def claimed_only(url: str, directory: str) -> None:
    """A driver that claims the manifest and is gone before it writes."""
    async with open_store(url) as store:
        epoch = (await store.inspect(directory)).epoch_seen + 1
        async with await store.claim(directory, epoch, b"w" * 16):
            pass


def verify_output(store: str, region: str, out: Path) -> None:
    """Verify the output files of a running region, also with a byte that differs for a moment, and in a
    directory that has none of them.
    """
    command = ("checkpoint", "verify", store, region)
    found = json.loads(dos(*command, "out", out, "--json"))
    assert [(one["worker"], one["problem"]) for one in found["files"]] == [(0, ""), (1, "")]
    assert found["files"][0]["bytes"] > 0
    with (out / "part-w0001.tsv").open("r+b") as file:
        first = file.read(1)
        for byte in (b"X", first):
            file.seek(0)
            file.write(byte)
            file.flush()
            if byte != first:
                assert "1 of 2 files are not as checkpoint" in dos(*command, "out", out, code=1)
    wrong = json.loads(CliRunner().invoke(app, [*command, "out", str(out.parent), "--json"]).stdout)
    missing = "it cannot be read on this host: No such file or directory"
    assert [one["problem"] for one in wrong["files"]] == [missing] * 2
    assert "sinks with files: out" in dos(*command, "counts", out, code=1)


def test_a_region_with_real_workers_is_reset_and_stopped_from_outside(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="dos.checkpoint")
    with running(store, tmp_path, "outside") as control:
        operators: list[dict[str, Any]] = []
        deadline = time.monotonic() + WAIT_S
        while (
            not operators and time.monotonic() < deadline
        ):  # the first checkpoints may come before what workers tell
            assert control.checkpoint(WAIT_S)
            status = json.loads(dos("region", "status", store, "outside", "--json"))["status"]
            assert [one["state"] for one in status["workers"]] == ["RUNNING", "RUNNING"]
            operators = status["lastProgress"]["operators"]
        assert operators[0]["name"] == "lines"
        recovery = status["recovery"]
        parts = [recovery[f"{part}Seconds"] for part in ("launch", "claim", "state", "replay")]
        assert recovery["seconds"] == pytest.approx(sum(parts), abs=0.01)
        assert min(parts[:2]) > 0
        assert "recovery: about" in dos("region", "status", store, "outside")
        verify_output(store, "outside", tmp_path / "outside" / "out")
        assert "back at checkpoint" in dos("region", "reset", store, "outside")
        assert "is committed" in dos("region", "checkpoint", store, "outside")
        assert "STOPPED: stopped; the last checkpoint is" in dos("region", "stop", store, "outside")
        assert control.awaitTermination(WAIT_S)
        assert control.status.state is RegionState.STOPPED
    assert "stop requested by" in caplog.text
