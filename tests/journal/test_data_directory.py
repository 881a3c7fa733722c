"""A server's data directory as a target: what reached its disk is read, and nothing is changed."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import trio

from dos_client import init_store
from dos_client.store import open_store
from dos_server.limits import mark_bytes
from journal import Directory
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess, one_server

__all__ = ["one_server"]
pytestmark = pytest.mark.process


def state_of(root: Path) -> dict[str, tuple[str, int]]:
    """Every byte and every time of modification."""
    return {
        str(path.relative_to(root)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def data(one_server: ServerProcess, tmp_path: Path) -> Path:
    """The data directory of a server that had 30 cuts of a journaled directory, and was killed."""

    async def fill() -> None:
        async with (
            open_store(one_server.url) as store,
            await store.claim("ledger", 1, os.urandom(16)) as claim,
        ):
            options = {"recovery_bytes": 1500, "segment_bytes": 500}
            async with await Directory.open(tmp_path / "live", claim, **options) as directory:
                for number in range(1, 31):
                    await directory.append("log", b"%02d\n" % number)
                    await directory.checkpoint(number, number)
                await directory.append("large", bytes(range(256)) * 4096)
                await directory.wait_synced()

    trio.run(lambda: init_store(one_server.url))
    trio.run(fill)
    running = dos("journal", "files", one_server.data / "ledger" / "files")
    assert (running.returncode, "is in use by a server" in running.stderr) == (2, True), running.stderr
    one_server.kill()
    return one_server.data


def test_what_is_on_the_disk_of_a_server_that_is_down_is_read_and_nothing_is_changed(
    data: Path, tmp_path: Path
) -> None:
    before, target = state_of(data), data / "ledger" / "files"
    listed = json.loads(dos("journal", "files", target, "--json").stdout)
    assert listed["files"] == [{"path": "large", "bytes": 1 << 20}, {"path": "log", "bytes": 90}]
    assert dos("journal", "cat", target, "log", "--at", "checkpoint:7").stdout.splitlines()[-1] == "07"
    done = dos("journal", "replay", target, "--into", tmp_path / "into")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "into" / "large").read_bytes() == bytes(range(256)) * 4096
    assert dos("journal", "verify", target).stdout.startswith("sound: ")
    assert dos("journal", "status", target).returncode == 0
    assert dos("journal", "timeline", target).returncode == 0
    (segment, *_) = sorted(path.name for path in (data / "d" / "ledger").iterdir() if path.name[0] != ".")
    assert "SEGMENT_START" in dos("journal", "dump", data / "ledger" / segment).stdout
    assert state_of(data) == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("files", "ledger/other"), "no chain other"),
        (("files", "nobody/files"), "directory nobody holds no objects"),
        (("follow", "ledger/files"), "does not grow"),
        (("trim", "ledger/files", "--before", "0"), "not a chain of a running store"),
        (("verify", "ledger/nothing"), "no object and no chain nothing"),
    ],
)
def test_what_cannot_be_read_there_is_reported(data: Path, arguments: tuple[str, ...], text: str) -> None:
    command, name, *more = arguments
    done = dos("journal", command, *more, data / name)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr


def test_what_one_disk_has_is_not_archived(data: Path) -> None:
    done = dos("journal", "archive", data / "ledger" / "files", "s3://backups/dos")
    assert (done.returncode, "only a store knows" in done.stderr) == (2, True)


def test_history_that_is_gone_and_that_nobody_trimmed_is_reported_and_the_exit_code_is_1(data: Path) -> None:
    target, stored = data / "ledger" / "files", data / "d" / "ledger"
    assert dos("journal", "verify", "--history", target).returncode == 0
    with ServerProcess(data) as server:
        assert server.stop() == 0  # what its group log had is in the files now
    lowest = min(path.name for path in stored.iterdir() if path.name[0] != ".")
    (stored / lowest).unlink()
    marks = bytearray((stored / ".marks").read_bytes())
    slot = marks.index(lowest.encode()) // mark_bytes * mark_bytes
    marks[slot : slot + mark_bytes] = bytes(mark_bytes)
    (stored / ".marks").write_bytes(marks)
    done = dos("journal", "verify", "--history", target)
    assert done.returncode == 1
    assert done.stdout.startswith("sound as far as it is there: ")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("not verified: ")]
    assert "no segment start says that it was trimmed" in line, line
    found = json.loads(dos("journal", "verify", "--history", "--json", target).stdout)
    assert (found["sound"], found["missing"]) == (False, line.removeprefix("not verified: "))
    for command in ("dump", "timeline"):
        done = dos("journal", command, "--history", target)
        assert (done.returncode, "says that it was trimmed" in done.stderr) == (1, True), done.stderr
    assert dos("journal", "verify", target).returncode == 0, "nothing was asked of the history"


def test_a_flipped_bit_is_a_fault_and_nothing_is_made(data: Path, tmp_path: Path) -> None:
    file = max((path for path in (data / "d" / "ledger").iterdir()), key=lambda path: path.stat().st_size)
    broken = bytearray(file.read_bytes())
    broken[len(broken) // 2] ^= 1
    file.write_bytes(broken)
    done = dos("journal", "replay", data / "ledger" / "files", "--into", tmp_path / "into")
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert not (tmp_path / "into").exists()
