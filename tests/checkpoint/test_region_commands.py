"""The `dos region` commands, on regions of toy workers and real servers."""

import json
import os
import re
import subprocess
import sys

import pytest
import trio

from checkpoint.chains.manifest_log import StoreHost
from checkpoint.core.region import RegionState
from checkpoint.maintenance.stopped_region import savepoint_stopped
from checkpoint.requests.client import requester
from checkpoint.runtime import this_driver
from dos_client import open_store
from dos_protocol.errors import LocalProtocolError
from tests.support.dos_command import dos
from tests.support.polling import until

pytestmark = pytest.mark.process


def test_the_command_shows_the_region_has_it_checkpoint_reset_and_stopped(region) -> None:
    url, name = region.store, region.control.spec.name
    result = dos("region", "status", url, name)
    assert result.returncode == 0, result.stderr
    assert f"region {name}: last checkpoint" in result.stdout
    assert "RUNNING, reported by driver" in result.stdout
    found = json.loads(dos("region", "status", url, name, "--json").stdout)
    assert found["answered"]
    assert found["driver"].endswith(f":{os.getpid()}")
    assert found["status"]["state"] == "RUNNING"
    assert found["status"]["lastProgress"]["name"] == name
    assert found["manifest"]["lastCheckpoint"]["driver"] == found["driver"]
    assert [one["worker"] for one in found["status"]["workers"]] == [0, 1]

    before = region.control.status().last_checkpoint
    result = dos("region", "checkpoint", url, name, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["result"]["checkpoint"] > before

    incarnation = found["status"]["incarnation"]
    result = dos("region", "reset", url, name, "--incarnation", incarnation)
    assert result.returncode == 0, result.stderr
    assert f"incarnation {incarnation + 1}" in result.stdout
    assert [one.worker for one in region.resets] == [-1]
    refused = dos("region", "reset", url, name, "--incarnation", incarnation)
    assert refused.returncode == 1
    assert f"for incarnation {incarnation}, and {incarnation + 1} is running" in refused.stderr
    assert len(region.resets) == 1

    result = dos("region", "stop", url, name, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["result"]["state"] == "STOPPED"
    assert region.control.wait(20)
    assert region.control.status().state is RegionState.STOPPED
    assert json.loads(result.stdout)["result"]["lastCheckpoint"] == region.control.status().last_checkpoint

    gone = dos("region", "status", url, name, "--timeout", 1)
    assert gone.returncode == 1
    assert f"last checkpoint {region.control.status().last_checkpoint} at step" in gone.stdout
    assert f"by {found['driver']}" in gone.stdout
    assert f"driver {found['driver']} ended region {name} as STOPPED" in gone.stderr
    assert re.search(rf"STOPPED.*, last reported .* ago .* by driver {found['driver']}", gone.stdout)
    assert dos("region", "status", url, name, "--no-ask", "--json").returncode == 0
    for what in (("stop",), ("scale", "--workers", 3)):
        silent = dos("region", what[0], url, name, *what[1:], "--timeout", 1)
        assert silent.returncode == 1
        assert "may still start it until" in silent.stderr


def test_a_savepoint_is_held_and_let_go_by_its_handle_and_by_the_command(region) -> None:
    url, name = region.store, region.control.spec.name
    savepoint = region.control.savepoint("here", timeout=60)
    until(lambda: region.control.status().savepoints == {"here": savepoint}, "the status shows it", 60)
    with pytest.raises(LocalProtocolError, match=f"savepoint 'here' holds checkpoint {savepoint}"):
        region.control.savepoint("here", savepoint + 1, timeout=60)
    with pytest.raises(LocalProtocolError, match="are reserved for"):
        region.control.savepoint("backup-1a1b1c1d", timeout=60)
    done = dos("region", "savepoint", url, name, "there", "--checkpoint", savepoint, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"] == {"name": "there", "checkpoint": savepoint}
    region.wait_checkpoints(7)
    found = json.loads(dos("checkpoint", "ls", url, name, "--json").stdout)
    assert found["savepoints"] == {"here": savepoint, "there": savepoint}
    (row,) = [one for one in found["checkpoints"] if one["checkpoint"] == savepoint]
    assert row["retained"]
    assert region.control.drop_savepoint("there", timeout=60) == savepoint
    gone = dos("region", "savepoint", url, name, "there", "--drop")
    assert (gone.returncode, "savepoint 'there' does not exist" in gone.stderr) == (1, True)
    found = json.loads(dos("region", "status", url, name, "--json").stdout)
    assert found["status"]["savepoints"] == {"here": savepoint}


def test_savepoints_of_a_running_and_a_stopped_region_are_listed_with_their_makers_and_notes(region) -> None:
    url, name = region.store, region.control.spec.name
    assert f"region {name} has no savepoints" in dos("region", "savepoints", url, name).stdout
    here = region.control.savepoint("here", timeout=60, why="by the program")
    done = dos("region", "savepoint", url, name, "there", "--why", "before the move", "--json")
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)["result"]["checkpoint"]

    rows = json.loads(dos("region", "savepoints", url, name, "--json").stdout)["savepoints"]
    assert [(row["savepoint"], row["checkpoint"], row["why"]) for row in rows] == [
        ("here", here, "by the program"),
        ("there", there, "before the move"),
    ]
    assert [row["madeBy"] for row in rows] == [this_driver(), requester()]
    listed = json.loads(dos("checkpoint", "ls", url, name, "--json").stdout)
    for row in rows:
        (own,) = [one for one in listed["checkpoints"] if one["checkpoint"] == row["checkpoint"]]
        assert [row[key] for key in ("step", "timeMs", "stateBytes")] == [
            own["step"],
            own["timeMs"],
            own["stateBytes"],
        ]
        # the request may be older than the checkpoint that was the last when it arrived
        assert abs(row["madeMs"] - row["timeMs"]) < 60_000
        assert 0 < row["restoreBytes"] <= row["stateBytes"]
    status = json.loads(dos("region", "status", url, name, "--json").stdout)
    assert status["status"]["savepoints"] == {"here": here, "there": there}

    assert dos("region", "savepoint", url, name, "here", "--drop").returncode == 0
    region.control.stop()
    assert region.control.wait(20)
    epoch = json.loads(dos("region", "status", url, name, "--no-ask", "--json").stdout)["manifest"]["epoch"]
    done = dos("region", "savepoint", url, name, "end", "--stopped", "--why", "the end")
    assert done.returncode == 0, done.stderr
    taken = json.loads(dos("region", "status", url, name, "--no-ask", "--json").stdout)["manifest"]["epoch"]
    (kept, end) = json.loads(dos("region", "savepoints", url, name, "--json").stdout)["savepoints"]
    assert {key: kept[key] for key in ("savepoint", "madeBy", "madeMs", "why")} == {
        key: rows[1][key] for key in ("savepoint", "madeBy", "madeMs", "why")
    }
    assert (end["savepoint"], end["why"], end["madeBy"]) == ("end", "the end", requester())
    assert end["madeMs"] > kept["madeMs"]
    shown = dos("region", "savepoints", url, name)
    assert (shown.returncode, "before the move" in shown.stdout) == (0, True)
    left = json.loads(dos("region", "status", url, name, "--no-ask", "--json").stdout)["manifest"]["epoch"]
    assert epoch < taken == left, "a list claims nothing"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("good", "--why", "x" * 501), "at most 500 characters, got 501: shorten it"),
        (("good", "--why", "a\nb"), "one line of printable characters, got '\\n'"),
        (("good", "--why", "gone", "--drop"), "without --checkpoint and --why"),
        (("fork-0a0b0c0d",), "are reserved for the savepoints"),
    ],
)
def test_notes_and_names_that_a_savepoint_cannot_have(shared_store, arguments, text) -> None:
    result = dos("region", "savepoint", shared_store, "words", *arguments)
    assert result.returncode == 2
    assert text in result.stderr


def test_a_savepoint_without_a_note_has_an_unknown_maker_and_a_reserved_one_can_be_dropped(region) -> None:
    url, name = region.store, region.control.spec.name
    region.control.stop()
    assert region.control.wait(20)

    async def older():
        async with open_store(url) as store:
            await savepoint_stopped(StoreHost(store), name, "move-1a", 0, on=True)

    trio.run(older)
    (row,) = json.loads(dos("region", "savepoints", url, name, "--json").stdout)["savepoints"]
    assert (row["savepoint"], row["madeBy"], row["madeMs"], row["why"]) == ("move-1a", None, None, "")
    shown = dos("region", "savepoints", url, name)
    assert (shown.returncode, shown.stdout.count("unknown")) == (0, 2)
    done = dos("region", "savepoint", url, name, "move-1a", "--drop", "--stopped")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["status", "checkpoint", "reset", "stop", "savepoints"])
def test_a_region_that_never_was_is_told_with_those_that_were(shared_store, region, what) -> None:
    result = dos("region", what, shared_store, "nobody")
    assert result.returncode == 1
    assert "no region 'nobody'" in result.stderr
    assert region.control.spec.name in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("dos://127.0.0.1/words", "words"), 2, "names a directory"),
        (("http://127.0.0.1", "words"), 2, "dos://"),
        (("dos://127.0.0.1:1", "words"), 3, "127.0.0.1:1"),
        (("SHARED", "no/name"), 2, "no/name"),
        (("SHARED", "words", "--timeout", "-3"), 2, "timeout"),
        (("SHARED",), 2, "NAME"),
    ],
)
def test_wrong_usage_and_stores_that_are_missing(shared_store, monkeypatch, arguments, code, text) -> None:
    monkeypatch.setattr("dos_client.store.open_timeout_s", 0.2)
    result = dos("region", "status", *(shared_store if one == "SHARED" else one for one in arguments))
    assert result.returncode == code
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_names_of_regions_checkpoints_and_savepoints_are_completed(region) -> None:
    def completions(*arguments):
        result = subprocess.run(
            [sys.executable, "-m", "dos_cli"],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "_DOS_COMPLETE": "complete_zsh",
                "_TYPER_COMPLETE_ARGS": " ".join(("dos", *arguments)),
            },
        )
        return result.stdout

    name = region.control.spec.name
    assert name in completions("region", "status", region.store, name[:3])
    assert '"1"' in completions("checkpoint", "show", region.store, name, "1")
    region.control.savepoint("before-the-move", timeout=60)
    assert "before-the-move" in completions("region", "savepoint", "--drop", region.store, name, "be")
    assert "nothing" not in completions("region", "status", "dos://127.0.0.1:1", "nothing")
