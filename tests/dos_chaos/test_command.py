"""`dos chaos` on real processes and disks, as a user runs it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from dos_chaos import RunRefusedError, cli, servers, story
from dos_chaos.cli import run_in_directories, run_in_store
from dos_chaos.core.plan import KINDS, STOP
from dos_chaos.core.report import GOOD, NOT_RECOVERED, VIOLATION, ChaosResult
from dos_chaos.servers import RUNNING, LocalServers, Place, restart_all, servers_in
from dos_chaos.story import ChaosRequest
from dos_chaos.visited import VisitedStore
from dos_chaos.workload import Found
from dos_client import init_store, open_store
from dos_protocol.limits import MIB
from tests.support.servers import ServerProcess, three_servers, url_of  # noqa: F401

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
SPACE_MIB = 48


def request(*kinds: str, seconds: float = 3.0, discard: bool = False) -> ChaosRequest:
    return ChaosRequest(1, seconds, SPACE_MIB * MIB, discard, 3, kinds, "dos chaos again", quiet=True)


def dos_chaos(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dos_cli", "chaos", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_run_with_every_fault_is_good_stays_in_its_space_and_leaves_nothing(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-1, P-2, P-10
    (tmp_path / "d2").mkdir()
    options = ["--minutes", "0.2", "--seed", "1", "--space-mib", str(SPACE_MIB), "--faults", ",".join(KINDS)]
    process = dos_chaos(tmp_path, "d1", "d2", *options, "--report", "r.md", "--json")
    out, err = process.communicate()
    result = json.loads(out)
    assert process.returncode == 0, f"{result}\n{err}"
    assert result["outcome"] == GOOD
    notes = {fault["kind"]: fault["note"] for fault in result["faults"]}
    skipped = [note for note in result["notes"] if note.startswith("no time was left")]
    assert set(notes) == set(KINDS) or skipped, result
    if "disk-full" in notes:
        assert notes["disk-full"].startswith("appends refused by"), "the fault had an effect"
    assert result["checked"]["acknowledged"] > 1_000
    assert result["checked"]["copies"] >= 3 * 4, "three members, four chains"
    assert result["checked"]["committed_reads"] >= 4
    assert 0 < result["used_bytes_max"] <= SPACE_MIB * MIB
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d2", "r.md"], "only what was there before"
    assert not list((tmp_path / "d2").iterdir())
    assert (tmp_path / "r.md").read_text().startswith("# dos chaos: GOOD")
    assert not servers_in(tmp_path)


def test_an_interrupted_run_ends_its_servers_and_deletes_its_data(tmp_path: Path) -> None:
    process = dos_chaos(tmp_path, "d1", "--minutes", "0.1", "--space-mib", str(SPACE_MIB), "--faults", "stop")
    assert process.stderr is not None
    for line in process.stderr:
        if " stop s" in line:  # the servers run, and one of them is stopped
            break
    assert len(servers_in(tmp_path)) == 3
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "dos: interrupted"
    assert not list(tmp_path.iterdir())
    assert not servers_in(tmp_path)


def test_servers_that_a_killed_run_left_are_named_and_not_robbed_of_their_data(tmp_path: Path) -> None:
    place = Place(tmp_path, discard=False)
    place.mark(RUNNING, 1)
    place.close()
    with servers.ServerProcess(tmp_path / "s1") as server:  # not forked: it is found by its command line
        with pytest.raises(RunRefusedError, match=f"kill -9 {server.pid} "):
            Place(tmp_path, discard=True)
        assert (server.data / "identity").exists()
    Place(tmp_path, discard=False).remove()
    assert not list(tmp_path.iterdir())


def test_servers_that_cannot_start_are_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunRefusedError, match="a server cannot be started"):
        run_in_directories([tmp_path / "d"], request(STOP))
    assert not list(tmp_path.iterdir())


def lose_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks that lose what they had synced: the segments of a chain are gone when the servers start again."""

    async def reopen(self: LocalServers) -> None:
        await self.end()
        for member in self.members:
            shutil.rmtree(member.server.data / "d" / "chaos.coord")
            (member.server.data / "directories").write_bytes(b"")  # or it would be damage, and no loss
        await restart_all(self.members)

    monkeypatch.setattr(LocalServers, "reopen", reopen)


def read_back_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is missing, one is there twice, and a byte of one member's copy is another one."""
    real = story.harvest

    async def harvest(url: str, directory: str, **options: Any) -> Found:
        found = await real(url, directory, **options)
        if directory == "chaos.w0002":
            found.entries.append(found.entries[60])
            del found.entries[50]
            copies = next(iter(found.copies.values()))
            name, copy = next((name, copy) for name, copy in copies.items() if copy)
            copies[name] = bytes([copy[0] ^ 1]) + copy[1:]
        return found

    monkeypatch.setattr(story, "harvest", harvest)


def test_a_violation_is_reported_and_its_evidence_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disks lose a chain; of another chain, what is read back is wrong. With a group log the
    servers would know what they lost."""
    monkeypatch.setenv("DOS_GROUP_LOG", "0")
    lose_a_chain(monkeypatch)
    read_back_wrong(monkeypatch)
    folder = tmp_path / "d"
    result = run_in_directories([folder], request(STOP))
    assert result.outcome == VIOLATION, result
    assert (result.verdict.duplicated, result.verdict.diverged) == (1, 1), result
    lost = [text.partition(":")[0] for text in result.verdict.examples if ": lost " in text]
    assert lost.count("chaos.w0002") == 1, result.verdict.examples
    assert "chaos.coord" in lost, result.verdict.examples
    assert result.kept == str(folder)
    report = (folder / "evidence" / "report.md").read_text()
    assert report.startswith("# dos chaos: VIOLATION")
    assert "dos chaos again" in report
    assert json.loads((folder / "evidence" / "report.json").read_text())["outcome"] == VIOLATION
    assert (folder / "evidence" / "chaos.w0002.acknowledged").stat().st_size > 0
    assert {"s1", "s2", "s3"} <= {path.name for path in folder.iterdir()}
    assert not servers_in(folder)
    with pytest.raises(RunRefusedError, match="pass --discard"):
        run_in_directories([folder], request(STOP))


def test_a_store_that_does_not_recover_is_neither_good_nor_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def heal(self: LocalServers) -> None:
        for member in self.members[:2]:
            await member.kill()

    monkeypatch.setattr(LocalServers, "heal", heal)
    monkeypatch.setattr(story, "RECOVERED_S", 1.0)
    result = run_in_directories([tmp_path / "d"], request(STOP))
    assert result.outcome == NOT_RECOVERED, result
    assert "s1:down s2:down s3:up" in result.problems[0]


def contents(url: str) -> dict[str, set[str]]:
    async def read() -> dict[str, set[str]]:
        async with open_store(url) as store:
            names = await store.list_directories()
            views = {name: await store.inspect(name) for name in names}
            return {
                name: {one for held in view.answers.values() for one in held} for name, view in views.items()
            }

    return trio.run(read)


def test_a_store_is_checked_while_its_user_breaks_it(
    three_servers: list[ServerProcess],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = url_of(three_servers)
    trio.run(init_store, url)
    broken = threading.Event()
    real = VisitedStore.faults

    async def faults(self: VisitedStore, log: Any, seconds: float) -> None:
        broken.set()
        await real(self, log, seconds)

    def break_it() -> None:
        broken.wait()
        three_servers[1].kill()
        three_servers[1].restart()

    monkeypatch.setattr(VisitedStore, "faults", faults)
    user = threading.Thread(target=break_it)
    user.start()
    result = run_in_store(url, b"", request())
    user.join()
    assert result.outcome == GOOD, result
    (outage,) = result.faults
    assert (outage.kind, outage.servers) == ("outage", (three_servers[1].location,))
    assert outage.quorum_left
    assert result.verdict.copies >= 3 * 4
    assert not any(contents(url).values()), "its objects are deleted"
    what_is_left_of_a_killed_run_is_deleted_on_request(url, monkeypatch)
    a_store_that_holds_anything_else_is_refused(url)


def what_is_left_of_a_killed_run_is_deleted_on_request(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cli, "_cleaned", kept)
        left = run_in_store(url, b"", request(seconds=1.0))
    assert left.outcome == GOOD
    before = contents(url)
    assert any(before.values())
    with pytest.raises(RunRefusedError, match="data of an earlier run"):
        run_in_store(url, b"", request(seconds=1.0))
    assert contents(url) == before
    assert run_in_store(url, b"", request(seconds=1.0, discard=True)).outcome == GOOD
    assert not any(contents(url).values())


async def kept(ground: VisitedStore, result: ChaosResult) -> None:
    """Delete nothing, as a run that was killed."""


def a_store_that_holds_anything_else_is_refused(url: str) -> None:
    async def write() -> None:
        async with (
            open_store(url) as store,
            await store.claim("dos-chaos.0123456789ab.w0000", 1, os.urandom(16)) as claim,
        ):
            writer = claim.open_object("J")
            await writer.wait_synced(writer.append(b"precious"))

    trio.run(write)
    before = contents(url)
    with pytest.raises(RunRefusedError, match="no run has marked it"):
        run_in_store(url, b"", request(seconds=1.0, discard=True))
    assert contents(url) == before

    async def write_elsewhere() -> None:
        async with open_store(url) as store, await store.claim("mine", 1, os.urandom(16)) as claim:
            writer = claim.open_object("J")
            await writer.wait_synced(writer.append(b"precious"))

    trio.run(write_elsewhere)
    before = contents(url)
    with pytest.raises(RunRefusedError, match="directories of others: mine"):
        run_in_store(url, b"", request(seconds=1.0, discard=True))
    assert contents(url) == before
