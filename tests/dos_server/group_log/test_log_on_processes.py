"""A server with a group log as users run it: killed, its files lost, its log failing, read by tools."""

import hashlib
import os
from pathlib import Path

import pytest
import trio

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import CorruptDataError, ErrorCode
from dos_server.core.files.extent import ExtentHeader, decode_header, object_seed
from dos_server.core.files.findings import Severity
from dos_server.core.files.log_replay import LogState, decode_life
from dos_server.core.files.records import decode_marks, is_log_in_use
from dos_server.limits import extent_header_bytes
from dos_server.offline.fsck import Check
from dos_server.offline.reading import DataDirectory
from tests.dos_server.core_requests import to_claim
from tests.support.servers import NO_LOG, ServerProcess
from tests.support.strace import PWRITES, SYNCS, Injected
from tests.support.wire import Wire

pytestmark = pytest.mark.process
WITH_LOG = ("--group-log", "1")


def fill(server: ServerProcess) -> dict[str, bytes]:
    """Append in small pieces, all acknowledged; remove one object and begin it anew."""
    contents: dict[str, bytes] = {}
    with Wire(server.address) as wire:
        wire.claim("dir", epoch=7)
        for turn in range(60):
            name = f"o{turn % 5}"
            old, more = contents.get(name, b""), bytes([turn]) * (turn * 17 % 900 + 1)
            wire.append(name, old, more)
            wire.wait_synced(name, len(old + more))
            contents[name] = old + more
            if turn == 30:
                assert wire.ask(m.Delete("o3")) == m.Deleted("o3")
                del contents["o3"]
    return contents


def tree(data: Path) -> dict[str, str]:
    return {
        str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in data.rglob("*")
        if path.is_file()
    }


async def read_offline(data: Path, names: list[str]) -> dict[str, bytes]:
    with DataDirectory(data) as found:
        return {name: b"".join([part async for part in found.stream("dir", name)]) for name in names}


def served(server: ServerProcess, names: list[str]) -> dict[str, bytes]:
    with Wire(server.address) as wire:
        wire.ask(m.ChangeDirectory("dir"))
        return {name: bytes(wire.ask(m.Get(name, 0, 1 << 20)).payload) for name in names}


def lose_files(data: Path) -> None:
    """Take what a power cut may take: the extents that were not synced in the object's own file. Its mark
    tells what was.
    """
    folder = data / "d" / "dir"
    marks = folder / ".marks"
    stored = decode_marks(marks.read_bytes()) if marks.exists() else []
    filed = {one.name: one.synced for one in stored if one is not None}
    taken = 0
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        content, kept = path.read_bytes(), 0
        size = filed.get(path.name, 0)
        while kept < len(content):
            header = decode_header(content, object_seed("dir", path.name), kept)
            assert isinstance(header, ExtentHeader)
            if header.end > size:
                break
            kept += extent_header_bytes + header.payload_bytes
        taken += len(content) - kept
        if kept:
            os.truncate(path, kept)
        else:
            path.unlink()
    assert taken, "the log has bytes that the files lack"


# EVIDENCE-OF: P-1, P-2, P-4
def test_what_is_in_the_log_only_is_read_by_tools_and_served_by_the_next_start(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", options=WITH_LOG) as server:
        data = server.data
        contents = fill(server)
        server.kill()
        lose_files(data)
        before = tree(data)
        assert trio.run(read_offline, data, list(contents)) == contents
        report = Check(data).run()
        assert (report.objects, {one.verdict for one in report.findings} <= {Severity.NOTE}) == (5, True)
        assert tree(data) == before, "nothing was written"
        server.restart()
        assert served(server, list(contents)) == contents
        with Wire(server.address) as wire:
            refused = wire.ask(to_claim(6, b"z" * 16))
            assert (refused.code, refused.actual) == (ErrorCode.FENCED, 7)
        assert server.stop() == 0


def test_fsck_repair_files_the_log_and_a_server_without_one_serves_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", options=WITH_LOG) as server:
        contents = fill(server)
        server.kill()
        lose_files(server.data)
        assert Check(server.data, repair=True).run().complete
        assert decode_life((server.data / "life").read_bytes()).state is LogState.CLEAN
        server.options = NO_LOG
        server.restart()
        assert served(server, list(contents)) == contents


def test_a_log_is_turned_off_and_on_and_older_releases_refuse_it_while_it_is_in_use(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", options=WITH_LOG) as server:
        identity = server.data / "identity"
        assert is_log_in_use(identity.read_bytes()), "an older release accepts one line only"
        contents = fill(server)
        assert server.stop() == 0
        assert not is_log_in_use(identity.read_bytes())
        for options in (NO_LOG, ("--group-log", "2"), WITH_LOG, NO_LOG):
            server.options = options
            server.restart()
            assert is_log_in_use(identity.read_bytes()) is (options != NO_LOG)
            assert served(server, list(contents)) == contents
            with Wire(server.address) as wire:
                wire.claim("dir", epoch=8)
                old = contents["o1"]
                wire.append("o1", old, b"more")
                wire.wait_synced("o1", len(old) + 4)
                contents["o1"] = old + b"more"
            server.kill()


@pytest.mark.parametrize("calls", [SYNCS, PWRITES])
def test_a_log_that_fails_ends_the_server_which_acknowledges_nothing_more(tmp_path: Path, calls: str) -> None:
    # EVIDENCE-OF: P-1
    with ServerProcess(tmp_path / "data", options=WITH_LOG) as server:
        contents = fill(server)
        slots = tuple(server.data / "log" / str(slot) for slot in range(4))
        with Wire(server.address) as wire:
            wire.claim("dir", epoch=8)
            old = contents["o1"]
            with Injected(
                server.pid,
                tmp_path / "strace.log",
                f"trace={calls}",
                f"inject={calls}:error=EIO",
                paths=slots,
            ):
                wire.append("o1", old, b"never acknowledged")
                assert server.process.wait(timeout=30) == 1
            acked = [one for one in wire.unasked if isinstance(one, m.DurabilityAck)]
            assert all(one.synced <= len(old) for one in acked if one.name == "o1")
        assert "a write or sync of the group log failed" in server.log_path.read_text()
        server.restart()
        found = served(server, list(contents))
        assert found["o1"].startswith(old)
        assert {name: found[name] for name in contents if name != "o1"} == {
            name: content for name, content in contents.items() if name != "o1"
        }


def test_a_log_without_its_life_or_a_slot_is_refused_by_name(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", options=WITH_LOG) as server:
        fill(server)
        server.kill()
        for name in ("life", "log/2"):
            path = server.data / name
            kept = path.read_bytes()
            path.unlink()
            found = [one for one in Check(server.data).run().findings if one.verdict is Severity.DAMAGED]
            assert any(name in one.place for one in found), found
            with pytest.raises(CorruptDataError, match=name):
                trio.run(read_offline, server.data, ["o1"])
            path.write_bytes(kept)
        server.restart()


def test_version_0_appends_are_acknowledged_by_the_log_and_survive(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", options=WITH_LOG) as server:
        with Wire(server.address) as wire:
            wire.ask(m.ChangeDirectory("dir"))
            wire.append("x", b"", b"unclaimed")
            wire.wait_synced("x", 9)
            entry = wire.ask(m.Stat("x")).info
            assert (entry.synced, entry.digest) == (9, prefix_digest(b"unclaimed"))
        server.kill()
        lose_files(server.data)
        server.restart()
        assert served(server, ["x"]) == {"x": b"unclaimed"}
