"""Requests through the store and the `dos region` commands: regions of real processes on real servers."""

import base64
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from checkpoint import limits
from checkpoint.chains.manifest_log import StoreHost, read_manifest
from checkpoint.core.region import (
    RegionState,
    answers_directory,
    requests_directory,
)
from checkpoint.core.requests import Answer, Request, encode_record
from checkpoint.errors import NoAnswerError, RegionFailedError, RegionFencedError
from checkpoint.maintenance.stopped_region import savepoint_stopped
from checkpoint.requests.client import RequestClient, requester
from checkpoint.requests.queue import write_records
from checkpoint.runtime import this_driver
from dos_client import QuorumUnavailableError, init_store, open_store
from dos_protocol.errors import LocalProtocolError
from tests.checkpoint.real_region import NAME, ticking
from tests.support.dos_command import dos
from tests.support.polling import until
from tests.support.servers import ServerProcess, url_of

pytestmark = pytest.mark.process


def test_of_two_live_drivers_the_newer_fences_the_older(region, tmp_path) -> None:
    # EVIDENCE-OF: P-4
    name = region.control.spec.name
    with ticking(region.store, tmp_path / "newer", name=name) as newer:
        assert region.control.wait(60)
        assert region.control.status().state is RegionState.FENCED
        assert isinstance(region.control.exception(), RegionFencedError)
        with pytest.raises(RegionFailedError, match="has the workers that it had: it is FENCED; "):
            region.control.scale(3)
        answer = send_request(region.store, name, "status").answer
        assert answer.incarnation == newer.control.status().incarnation


# --- requests through the store ---------------------------------------------------------------------------


def send_request(url, name, what, **options):
    """Ask from here; the last word."""

    async def main():
        async with open_store(url) as store:
            return await RequestClient(store, name).send(what, **options)

    return trio.run(main)


def put(url, name, *requests, directory=requests_directory):
    """Write records as they are."""

    async def main():
        async with open_store(url) as store:
            data = b"".join(one if isinstance(one, bytes) else encode_record(one) for one in requests)
            await write_records(store, directory(name), data)

    trio.run(main)


def a_request(region, number, what, **fields):
    now_ms = time.time_ns() // 1_000_000
    fields = {"wall_time_ms": now_ms, "patience_ms": 10_000, **fields}
    return Request(id=f"{number:032x}", region=region, what=what, **fields)


def test_a_server_that_was_unavailable_gets_the_requests_and_answers_that_it_missed_while_the_region_runs(
    three_servers, tmp_path, monkeypatch
):
    monkeypatch.setattr(limits, "queue_repair_s", 0.5)
    url = url_of(three_servers)
    trio.run(init_store, url)
    name = "missed"

    async def wait_equal():
        async with open_store(url) as store:
            for directory in (requests_directory(name), answers_directory(name)):
                with trio.fail_after(60):
                    while True:
                        copies = list((await store.inspect(directory)).answers.values())
                        if len(copies) == 3 and all(copy == copies[0] != {} for copy in copies):
                            break
                        await trio.sleep(0.1)

    with ticking(url, tmp_path, name=name):
        three_servers[2].kill()
        for _ in range(2):
            assert send_request(url, name, "status").answer.verdict == "done"
        three_servers[2].restart()
        trio.run(wait_equal)


def test_a_request_written_twice_is_carried_out_once(region) -> None:
    name = region.control.spec.name
    request = a_request(name, 7, "reset")
    put(region.store, name, request, request)
    put(region.store, name, request)
    region.wait_for(lambda: len(region.resets) == 1)
    assert send_request(region.store, name, "checkpoint", wait_s=60).answer.verdict == "done"
    assert len(region.resets) == 1


def test_requests_that_are_older_than_the_driver_are_not_heard(shared_store, tmp_path) -> None:
    put(shared_store, "late", a_request("late", 1, "stop"), a_request("late", 2, "reset"))
    with ticking(shared_store, tmp_path, name="late") as region:
        assert send_request(shared_store, "late", "checkpoint", wait_s=60).answer.verdict == "done"
        assert region.control.status().state is RegionState.RUNNING
        assert region.resets == []


def test_garbage_among_requests_is_skipped_said_and_harms_nothing(region, caplog) -> None:
    name = region.control.spec.name
    caplog.set_level(logging.WARNING, logger="dos.checkpoint")
    torn = encode_record(a_request(name, 1, "stop"))[:60]
    strange = a_request("other", 2, "stop")
    late = a_request(name, 3, "stop", wall_time_ms=1)
    put(region.store, name, b"stop it!" + torn, strange, late, a_request(name, 4, "explode"))
    assert send_request(region.store, name, "status").answer.verdict == "done"
    assert region.control.status().state is RegionState.RUNNING
    assert f"skipped a record in the requests directory {name}.requests: 8 bytes" in caplog.text
    assert "60 bytes: torn record, followed by another one" in caplog.text


def test_an_answer_of_a_superseded_driver_is_not_believed(region) -> None:
    """It says it runs the region; the manifest says it does not."""
    # EVIDENCE-OF: P-4
    name, url = region.control.spec.name, region.store
    region.control.stop()
    assert region.control.wait(20)
    epoch = region.control.status().incarnation

    async def main(incarnation):
        async with open_store(url) as store:
            asking = RequestClient(store, name)
            seen = []

            async def answer_as_the_old_one():
                requests = requests_directory(name)
                before = (await store.inspect(requests)).epoch_seen
                while (await store.inspect(requests)).epoch_seen == before:  # noqa: ASYNC110 - asks servers
                    await trio.sleep(0.02)
                answer = Answer(
                    requests=tuple(seen),
                    region=name,
                    incarnation=incarnation,
                    verdict="done",
                    wall_time_ms=0,
                    driver="old:1",
                    result={"state": "RUNNING"},
                )
                await write_records(store, answers_directory(name), encode_record(answer))

            request = asking._request

            def noted(*arguments):
                made = request(*arguments)
                seen.append(made.id)
                return made

            asking._request = noted
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer_as_the_old_one)
                try:
                    return (await asking.send("status", patience_s=4)).answer.result
                except NoAnswerError as error:
                    return str(error)
                finally:
                    nursery.cancel_scope.cancel()

    assert trio.run(main, epoch) == {"state": "RUNNING"}
    assert f"incarnation {epoch - 1}, old:1, answered, but epoch {epoch} has it" in trio.run(main, epoch - 1)


class Driver:
    """A driver process; its lines are read as they come."""

    def __init__(self, store: str, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.checkpoint.real_region", store, str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: list[dict] = []
        self.changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(json.loads(line))
                self.changed.notify_all()

    def wait_for(self, predicate, within=40.0) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: predicate(self.lines), within), self.lines

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_of_two_drivers_the_newer_one_answers_also_while_the_older_one_is_asleep(
    shared_store, tmp_path
) -> None:
    # EVIDENCE-OF: P-4
    old = Driver(shared_store, tmp_path / "old")
    try:
        old.wait_for(lambda lines: any("checkpoint" in line for line in lines))
        assert send_request(shared_store, NAME, "status").answer.driver.endswith(f":{old.process.pid}")
        old.process.send_signal(signal.SIGSTOP)
        with ticking(shared_store, tmp_path / "new") as new:
            assert send_request(shared_store, NAME, "status").answer.driver.endswith(f":{os.getpid()}")
            old.process.send_signal(signal.SIGCONT)
            old.wait_for(lambda lines: any(line.get("state") == "FENCED" for line in lines))
            answer = send_request(shared_store, NAME, "checkpoint", wait_s=60).answer
            assert answer.driver.endswith(f":{os.getpid()}")
            assert new.control.status().state is RegionState.RUNNING
    finally:
        old.process.send_signal(signal.SIGCONT)
        old.close()


def test_a_region_that_takes_no_requests_is_left_alone_and_that_is_reported(shared_store, tmp_path) -> None:
    with ticking(shared_store, tmp_path, name="deaf", answer_requests=False) as region:
        result = dos("region", "stop", shared_store, "deaf", "--timeout", 1)
        assert result.returncode == 1
        result = dos("region", "status", shared_store, "deaf", "--timeout", 1)
        assert result.returncode == 1
        assert "answer_requests=False" in result.stderr
        assert region.control.status().state is RegionState.RUNNING


def test_with_one_server_away_requests_work_and_without_a_quorum_the_command_reports_it(
    three_servers, tmp_path
) -> None:
    url = url_of(three_servers)
    trio.run(init_store, url)
    with ticking(url, tmp_path) as region:
        three_servers[0].kill()
        assert send_request(url, NAME, "checkpoint", wait_s=60).answer.verdict == "done"
        three_servers[1].kill()
        region.wait_for(lambda: region.control.status().state is RegionState.WAITING_FOR_STORE)
        result = dos("region", "status", url, NAME)
        assert result.returncode == 3
        assert three_servers[1].location in result.stderr
        three_servers[0].restart()
        three_servers[1].restart()
        region.wait_for(lambda: region.control.status().state is RegionState.RUNNING)
        answer = send_request(url, NAME, "stop", wait_s=60).answer
        assert answer.result["state"] == "STOPPED"
        assert region.control.wait(20)

        async def last():
            async with open_store(url) as store:
                return (await read_manifest(store, NAME)).last

        assert trio.run(last).number == answer.result["lastCheckpoint"]


def test_a_request_that_cannot_be_written_is_told_with_the_members_that_are_unavailable(
    three_servers, tmp_path, monkeypatch
) -> None:
    url = url_of(three_servers)
    trio.run(init_store, url)
    monkeypatch.setattr(limits, "request_write_s", 1.0)

    async def main():
        async with open_store(url) as store:
            asking = RequestClient(store, NAME)
            await asking._queue.skip_present()
            asking._began = True
            for server in three_servers[:2]:
                server.pause()
            try:
                await asking.send("stop", patience_s=1)
            finally:
                for server in three_servers[:2]:
                    server.resume()

    with pytest.raises(QuorumUnavailableError, match=r"could not be written within 1 s|members are needed"):
        trio.run(main)


# --- commands ---------------------------------------------------------------------------------------------


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


# --- support bundles --------------------------------------------------------------------------------------


TOKEN = "plum-tree/9+teapot"
PASSWORD = "correct horse battery"
LOG = f"""old line
2026-11-27 20:00:00 WARNING a member is silent
connecting to https://ann:{PASSWORD.replace(" ", "-")}@proxy:3128
hello, token {TOKEN}, again {base64.b64encode(TOKEN.encode()).decode()}
password = {PASSWORD.split()[0]}
"""


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory, token: Path) -> Iterator[str]:
    """A store of two that has an object, and what the driver of a region claims."""
    place = tmp_path_factory.mktemp("servers")
    options = ("--token-file", str(token))
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(place / name, options=options)) for name in ("a", "b")]
        url = url_of(servers)
        for words in (
            ["store", "init", url],
            ["append", f"{url}/notes/greetings", token],
            ["append", f"{url}/wordcount.coord/manifest", token],
        ):
            done = dos(*words, *options)
            assert done.returncode == 0, done.stderr
        yield url


def files_of(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_no_secret_is_in_the_bundle_and_all_else_is(
    bundled: str, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log := tmp_path / "server.log").write_text(LOG)
    (settings := tmp_path / "dos.toml").write_text(
        f'# password: {PASSWORD}\nstore = "{bundled}"\ntoken_file = "{token}"\n'
    )
    monkeypatch.setenv("DOS_CONFIG", str(settings))
    monkeypatch.setenv("DOS_DATABASE_PASSWORD", PASSWORD)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    done = dos("support-bundle", "--output", tmp_path / "b.zip", "--log", log, "--log-lines", 4)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b.zip").stat().st_mode & 0o077 == 0
    files = files_of(tmp_path / "b.zip")
    whole = "\n".join([*files, *files.values()])
    for secret in (TOKEN, PASSWORD, PASSWORD.replace(" ", "-"), base64.b64encode(TOKEN.encode()).decode()):
        assert secret not in whole
    assert len(json.loads(files["store/status.json"])["store"]["members"]) == 2
    assert "notes" in files["store/directories.json"]
    assert json.loads(files["store/verify.json"])
    assert json.loads(files["versions.json"])["installed"]["dos-journal"]
    assert json.loads(files["environment.json"])["DOS_CONFIG"] == str(settings)
    assert "AWS_SECRET_ACCESS_KEY" not in whole
    assert "token_file" in files["configuration/dos.toml"]
    assert "a member is silent" in files["logs/0-server.log"]
    assert "old line" not in files["logs/0-server.log"]
    assert json.loads(files["regions/wordcount/status.json"])["name"] == "wordcount"
    about = json.loads(files["bundle.json"])
    assert (about["format"], about["version"]) == ("dos-support-bundle", 1)
    assert set(about["files"]) | {"bundle.json"} == set(files)


def test_a_dry_run_lists_and_writes_nothing(
    bundled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = dos("support-bundle", bundled, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"dos store verify {bundled} --json" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_reached_keeps_nothing_else_out(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    assert dos("support-bundle", "dos://127.0.0.1:1", "--output", path, "--no-verify").returncode == 0
    files = files_of(path)
    assert "exit code 3" in files["store/status.json.error"]
    assert files["machine.json"]
    again = dos("support-bundle", "--output", path)  # no store is named, which is no error
    assert again.returncode == 2
    assert f"{path}: File exists" in again.stderr
