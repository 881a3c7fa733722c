"""Pins and trimming by the `dos` command, of regions on a real server whose workers are threads."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from typer.testing import CliRunner

from checkpoint import limits as checkpoint_limits
from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import RegionState
from dataflow.worker.journals import Journals
from dos_cli.main import app
from dos_client import init_store
from tests.dataflow.support import last_counts, true_counts
from tests.dataflow.test_region_processes import SMALL_STEPS, WAIT_S, Watch, hurry, slow_word_count
from tests.dataflow.test_region_snapshots import run_in_threads
from tests.support.servers import ServerProcess, one_server

__all__ = ["one_server"]
pytestmark = pytest.mark.process


def dos(*arguments: object) -> Any:
    """The command, in this process."""
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"NO_COLOR": "1"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


class Region:
    """Word counts that write many times what their state has, with small limits, in threads."""

    def __init__(self, server: ServerProcess, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checkpoint_limits, "snapshot_growth", 1)
        monkeypatch.setattr(checkpoint_limits, "manifest_segment_bytes_max", 20_000)
        self.url, self.folder = server.url, folder
        self.path = folder / "input.txt"
        with self.path.open("w") as file:
            for number in range(15_000):
                file.write(f"word{number * 7919 % 997} and{number % 7} another\n")
        trio.run(lambda: init_store(server.url))

    def start(self) -> tuple[RegionControl, Watch]:
        watch = Watch()
        limits = replace(SMALL_STEPS, snapshot_bytes_min=20_000)
        graph = slow_word_count([self.path], self.folder / "out", repeat=6)
        return run_in_threads(graph, self.url, watch, limits, retain=2), watch

    def pinned(self, checkpoint: int) -> dict[str, Any]:
        """Return the state of a checkpoint, compared with no state, as read from the store."""
        shown = dos("checkpoint", "diff", self.url, "words", checkpoint, checkpoint, "--json")
        assert shown.exit_code == 0, shown.stderr
        found: dict[str, Any] = json.loads(shown.stdout)
        return found

    def checkpoints(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(dos("checkpoint", "ls", self.url, "words", "--json").stdout)
        return found

    def held(self) -> dict[str, int]:
        """Return savepoint -> the bytes that only it keeps."""
        shown = json.loads(dos("region", "savepoints", self.url, "words", "--json").stdout)
        return {row["savepoint"]: row["heldBytes"] for row in shown["savepoints"]}

    def garbage(self) -> int:
        """Return the bytes that nothing needs, on the one server."""
        found: int = json.loads(dos("region", "trim", self.url, "words", "--json").stdout)["bytes"]
        return found

    def finish(self, control: RegionControl) -> None:
        hurry(self.folder / "out")
        assert control.wait(WAIT_S), control.status()
        assert control.status().state is RegionState.FINISHED, control.exception()
        assert last_counts(self.folder / "out") == dict(true_counts([self.path], 6))


# EVIDENCE-OF: P-6
def test_a_savepoint_stays_restorable_until_it_is_let_go_also_by_the_next_driver(
    one_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = Region(one_server, tmp_path, monkeypatch)
    control, watch = region.start()
    watch.checkpoints(3)
    done = dos("region", "savepoint", region.url, "words", "good", "--json")
    assert done.exit_code == 0, done.stderr
    pinned = json.loads(done.stdout)["result"]["checkpoint"]
    watch.checkpoints(12)
    refused = dos("region", "savepoint", region.url, "words", "late", "--checkpoint", 1)
    assert (refused.exit_code, "checkpoint 1 is not retained" in refused.stderr) == (1, True)
    assert dos("region", "stop", region.url, "words").exit_code == 0
    assert control.wait(WAIT_S)

    control, watch = region.start()
    watch.checkpoints(8)
    assert "savepoint good" in dos("checkpoint", "ls", region.url, "words").stdout
    found = region.checkpoints()
    assert found["savepoints"] == {"good": pinned}
    retained = [row["checkpoint"] for row in found["checkpoints"] if row["retained"]]
    assert (retained[0], len(retained)) == (pinned, 3)
    assert region.pinned(pinned)["from"] == pinned
    assert dos("region", "savepoint", region.url, "words", "good", "--drop").exit_code == 0
    watch.checkpoints(10)
    assert region.checkpoints()["savepoints"] == {}
    gone = dos("checkpoint", "diff", region.url, "words", pinned, pinned)
    assert (gone.exit_code, "released" in gone.stderr) == (1, True)
    region.finish(control)


# EVIDENCE-OF: P-6
def test_what_workers_that_died_did_not_delete_is_visible_and_deleted_and_the_region_continues(
    one_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = Region(one_server, tmp_path, monkeypatch)
    with monkeypatch.context() as dying:  # each worker dies between the release and the deletion
        dying.setattr(Journals, "_release", lambda *_: None)
        control, watch = region.start()
        watch.checkpoints(10)
        assert dos("region", "savepoint", region.url, "words", "good").exit_code == 0
        watch.checkpoints(14)
        assert dos("region", "stop", region.url, "words").exit_code == 0
        assert control.wait(WAIT_S)

    shown = json.loads(dos("region", "trim", region.url, "words", "--json").stdout)
    assert shown["garbage"]
    assert shown["deleted"] is None
    assert list(shown["savepoints"]) == ["good"]
    pinned = shown["savepoints"]["good"]
    again = json.loads(dos("region", "trim", region.url, "words", "--json").stdout)
    assert again["garbage"] == shown["garbage"], "it was a dry run"
    silent = dos("region", "trim", region.url, "words", "--apply", "--timeout", 1)
    assert (silent.exit_code, "pass --stopped" in silent.stderr) == (1, True)
    before = region.pinned(pinned)
    done = dos("region", "trim", region.url, "words", "--apply", "--stopped", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["deleted"] == len(shown["garbage"])
    left = json.loads(dos("region", "trim", region.url, "words", "--json").stdout)
    assert left["garbage"] == []
    assert region.pinned(pinned) == before
    assert "nothing to delete" in dos("region", "trim", region.url, "words").stdout

    control, watch = region.start()
    watch.checkpoints(2)
    done = dos("region", "trim", region.url, "words", "--apply")
    assert done.exit_code == 0, done.stderr
    region.finish(control)


# EVIDENCE-OF: P-6
def test_the_last_checkpoint_of_a_stopped_region_is_pinned_and_the_region_continues_from_it(
    one_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = Region(one_server, tmp_path, monkeypatch)
    control, watch = region.start()
    watch.checkpoints(3)
    assert dos("region", "stop", region.url, "words").exit_code == 0
    assert control.wait(WAIT_S)
    last = region.checkpoints()["checkpoints"][-1]

    silent = dos("region", "savepoint", region.url, "words", "end", "--timeout", 1)
    assert (silent.exit_code, "pass --stopped" in silent.stderr) == (1, True)
    done = dos("region", "savepoint", region.url, "words", "end", "--stopped", "--json")
    assert (done.exit_code, json.loads(done.stdout)["checkpoint"]) == (0, last["checkpoint"]), done.stderr
    again = dos("region", "savepoint", region.url, "words", "end", "--stopped")
    assert (again.exit_code, again.stdout) == (
        0,
        f"savepoint end of checkpoint {last['checkpoint']} is created\n",
    )
    refused = dos("region", "savepoint", region.url, "words", "late", "--checkpoint", 99, "--stopped")
    assert (refused.exit_code, "checkpoint 99 is not retained" in refused.stderr) == (1, True)
    found = region.checkpoints()
    assert (found["checkpoints"][-1]["checkpoint"], found["savepoints"]) == (
        last["checkpoint"] + 1,
        {"end": last["checkpoint"]},
    )
    assert f"back to {last['checkpoint']}" in dos("checkpoint", "ls", region.url, "words").stdout
    before = region.pinned(last["checkpoint"])
    assert before["to"] == last["checkpoint"]

    control, watch = region.start()
    watch.checkpoints(6)
    retained = [row["checkpoint"] for row in region.checkpoints()["checkpoints"] if row["retained"]]
    assert (retained[0], len(retained)) == (last["checkpoint"], 3)
    assert region.pinned(last["checkpoint"]) == before
    region.finish(control)
    for _ in range(2):
        done = dos("region", "savepoint", region.url, "words", "end", "--stopped", "--drop")
    assert (done.exit_code, "savepoint 'end' does not exist" in done.stderr) == (1, True)
    assert region.checkpoints()["savepoints"] == {}
    assert region.checkpoints()["checkpoints"][-1]["final"]


# EVIDENCE-OF: P-6
def test_the_bytes_that_only_a_savepoint_keeps_are_those_that_are_deleted_after_it_is_dropped(
    one_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = Region(one_server, tmp_path, monkeypatch)
    control, watch = region.start()
    watch.checkpoints(2)
    done = dos("region", "savepoint", region.url, "words", "good", "--why", "a test", "--json")
    assert done.exit_code == 0, done.stderr
    good = json.loads(done.stdout)["result"]["checkpoint"]
    count = 4
    while region.held()["good"] < 20_000:  # until later checkpoints begin at a later snapshot
        count += 1
        watch.checkpoints(count)
    # No input is read from here on, and all but the savepoint need the same: the number is then exact.
    # Otherwise the checkpoint that drops the savepoint also releases an older one, and more is deleted.
    assert dos("region", "pause", region.url, "words").exit_code == 0
    for _ in range(2):
        assert dos("region", "trim", region.url, "words", "--apply").exit_code == 0
    done = dos("region", "savepoint", region.url, "words", "same", "--checkpoint", good)
    assert (done.exit_code, region.held()) == (0, {"good": 0, "same": 0}), "they hold the same checkpoint"

    monkeypatch.setattr(Journals, "_release", lambda *_: None)  # what is deleted is measured by the trim
    assert dos("region", "savepoint", region.url, "words", "same", "--drop").exit_code == 0
    assert region.garbage() == 0
    held = region.held()["good"]
    assert held >= 20_000
    assert dos("region", "savepoint", region.url, "words", "good", "--drop").exit_code == 0
    assert dos("region", "stop", region.url, "words").exit_code == 0
    assert control.wait(WAIT_S)
    assert region.garbage() == held
    done = dos("region", "trim", region.url, "words", "--apply", "--stopped", "--json")
    assert (done.exit_code, json.loads(done.stdout)["bytes"]) == (0, held), done.stderr
    assert region.garbage() == 0


def test_trimming_refuses_what_it_cannot_mean(one_server: ServerProcess) -> None:
    trio.run(lambda: init_store(one_server.url))
    assert dos("region", "trim", one_server.url, "nobody").exit_code == 1
    done = dos("region", "trim", one_server.url, "nobody", "--stopped")
    assert (done.exit_code, "--stopped needs --apply" in done.stderr) == (2, True)
    done = dos("region", "savepoint", one_server.url, "nobody", "a b")
    assert (done.exit_code, "a savepoint's name" in done.stderr) == (2, True)
