"""The `dos region` commands, on regions of toy workers and real servers."""

import json
import os
import subprocess
import sys

import pytest

from checkpoint.core.region import RegionState
from dos_protocol.errors import LocalProtocolError
from tests.support.dos_command import dos

pytestmark = pytest.mark.process


def test_the_command_shows_the_region_has_it_cut_reset_and_stopped(region) -> None:
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
    assert "no driver of region" in gone.stderr
    assert dos("region", "status", url, name, "--no-ask", "--json").returncode == 0
    for what in (("stop",), ("scale", "--workers", 3)):
        silent = dos("region", what[0], url, name, *what[1:], "--timeout", 1)
        assert silent.returncode == 1
        assert "may still start it until" in silent.stderr


def test_a_savepoint_is_held_and_let_go_by_its_handle_and_by_the_command(region) -> None:
    url, name = region.store, region.control.spec.name
    savepoint = region.control.savepoint("here", timeout=60)
    assert region.control.status().savepoints == {"here": savepoint}
    with pytest.raises(LocalProtocolError, match=f"savepoint 'here' holds checkpoint {savepoint}"):
        region.control.savepoint("here", savepoint + 1, timeout=60)
    done = dos("region", "savepoint", url, name, "there", "--checkpoint", savepoint, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"] == {"name": "there", "checkpoint": savepoint}
    region.wait_cuts(7)
    found = json.loads(dos("checkpoint", "ls", url, name, "--json").stdout)
    assert found["savepoints"] == {"here": savepoint, "there": savepoint}
    (row,) = [one for one in found["checkpoints"] if one["checkpoint"] == savepoint]
    assert row["retained"]
    assert region.control.drop_savepoint("there", timeout=60) == savepoint
    gone = dos("region", "savepoint", url, name, "there", "--drop")
    assert (gone.returncode, "savepoint 'there' does not exist" in gone.stderr) == (1, True)
    found = json.loads(dos("region", "status", url, name, "--json").stdout)
    assert found["status"]["savepoints"] == {"here": savepoint}


@pytest.mark.parametrize("what", ["status", "checkpoint", "reset", "stop"])
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


def test_names_of_regions_and_checkpoints_are_completed(region) -> None:
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
    assert "nothing" not in completions("region", "status", "dos://127.0.0.1:1", "nothing")
