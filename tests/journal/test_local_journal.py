"""The original's mode: a journal file on this machine, mirrored to servers behind, versions 0 and 1."""

import json
import os
from pathlib import Path

import pytest
import trio

from dos_client.store import open_store
from dos_protocol.errors import ClosedError, LocalProtocolError
from journal import Directory, LocalClaim, LocalJournal, LocalStore, Mirror, Op, Record, parse_segment_name
from journal.core.errors import CorruptRecordError, LocalFilesError, MirrorDiffersError
from journal.core.record import encode
from tests.journal.journaled_files import Clock, files
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess


@pytest.mark.trio
@pytest.mark.parametrize("version", [0, 1])
async def test_a_directory_on_a_local_journal_is_made_again_from_it(tmp_path: Path, version: int) -> None:
    path = tmp_path / "worker3.journal"
    async with Directory.open_local(
        tmp_path / "live", LocalJournal(path, version), clock_ms=Clock()
    ) as directory:
        await directory.append("log", b"one ")
        await directory.truncate("empty")
        await directory.append("gone", b"x")
        await directory.remove("gone")
        await directory.wait_synced()
    (tmp_path / "live" / "log").unlink()
    async with Directory.open_local(tmp_path / "live", LocalJournal(path, version)) as directory:
        await directory.append("log", b"two")
        assert files(tmp_path / "live") == {"log": b"one two", "empty": b""}
        assert directory.end.size == path.stat().st_size


def test_version_0_is_what_the_original_writes(tmp_path: Path) -> None:
    with LocalJournal(tmp_path / "j", 0) as journal:
        journal.append(Record(Op.WRITE, tag=1, ints=(0,), strings=(b"/w/tcp-control", b"localhost\n")))
        journal.append(Record(Op.TRUNCATE, tag=2, ints=(0,), strings=(b"/w/addresses",)))
        with pytest.raises(LocalProtocolError, match="version 0 has only TRUNCATE, WRITE and REMOVE"):
            journal.append(Record(Op.MARK, ints=(1,)))
    expected = (
        b"\0\0\0\x3c\0\1\1\2" + (1).to_bytes(8) + (0).to_bytes(8) + (14).to_bytes(8) + (10).to_bytes(8)
    ) + b"/w/tcp-controllocalhost\n"
    expected += b"\0\0\0\x28\0\0\1\1" + (2).to_bytes(8) + (0).to_bytes(8) + (12).to_bytes(8) + b"/w/addresses"
    assert (tmp_path / "j").read_bytes() == expected


@pytest.mark.parametrize("version", [0, 1])
def test_every_cut_off_end_is_cut_away_and_what_stands_before_it_stays(tmp_path: Path, version: int) -> None:
    path, records = tmp_path / "j", [Record(Op.WRITE, ints=(n,), strings=(b"f", b"abc")) for n in range(3)]
    whole = [encode(record, version) for record in records]
    for length in range(sum(map(len, whole))):
        path.write_bytes(b"".join(whole)[:length])
        kept = length // len(whole[0])
        with LocalJournal(path, version) as journal:
            assert journal.end.size == kept * len(whole[0])
            journal.append(records[0])
            assert [record for batch in journal.records() for _, record in batch] == [
                *records[:kept],
                records[0],
            ]


def test_a_journal_that_is_damaged_or_of_the_other_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j"
    record = encode(Record(Op.REMOVE, strings=(b"f",)))
    for damaged in range(len(record)):
        bad = bytearray(record * 2)
        bad[damaged] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises((CorruptRecordError, LocalProtocolError)):
            LocalJournal(path)
        assert path.read_bytes() == bad
    path.write_bytes(encode(Record(Op.REMOVE, strings=(b"f",)), 0))
    with pytest.raises(LocalProtocolError, match="version 0, not 1"):
        LocalJournal(path)


@pytest.mark.trio
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
async def test_after_a_write_or_sync_that_failed_nothing_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    journal = LocalJournal(tmp_path / "j")
    journal.append(Record(Op.REMOVE, strings=(b"f",)))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        if call == "pwrite":
            with pytest.raises(LocalFilesError, match="Input/output error"):
                journal.append(Record(Op.REMOVE, strings=(b"g",)))
        else:
            with pytest.raises(LocalFilesError, match="Input/output error"):
                await journal.wait_synced()
    with pytest.raises(ClosedError, match="Input/output error"):
        journal.append(Record(Op.REMOVE, strings=(b"h",)))


@pytest.mark.process
def test_a_mirror_follows_through_a_crash_and_a_server_that_is_unavailable(
    tmp_path: Path, servers: list[ServerProcess], store_url: str
) -> None:
    name, path = f"worker.{os.urandom(4).hex()}", tmp_path / "my_app.journal"

    async def mirrored(epoch: int, texts: list[bytes], *, crash: bool) -> None:
        async with (
            open_store(store_url) as store,
            await store.claim(name, epoch, os.urandom(16)) as claim,
            trio.open_nursery() as nursery,
        ):
            with LocalJournal(path, 0) as journal:
                for text in texts:
                    journal.append(Record(Op.WRITE, ints=(0,), strings=(b"f", text)))
                mirror = await Mirror.open(path, store, claim, "my_app.journal")
                nursery.start_soon(mirror.run)
                if not crash:
                    await mirror.wait_synced(journal.end.size)
            nursery.cancel_scope.cancel()

    async def copy() -> bytes:
        async with open_store(store_url) as store:
            return b"".join([chunk async for chunk in store.stream(name, "my_app.journal")])

    trio.run(lambda: mirrored(1, [b"one", b"two"], crash=False))
    assert trio.run(copy) == path.read_bytes()
    trio.run(lambda: mirrored(2, [b"three" * 100_000], crash=True))
    assert path.read_bytes().startswith(trio.run(copy))
    servers[0].kill()
    try:
        trio.run(lambda: mirrored(3, [b"four"], crash=False))
    finally:
        servers[0].restart()
    assert trio.run(copy) == path.read_bytes()


@pytest.mark.process
def test_a_mirror_never_continues_behind_other_bytes(tmp_path: Path, store_url: str) -> None:
    name, path = f"worker.{os.urandom(4).hex()}", tmp_path / "my_app.journal"

    async def mirror_once(epoch: int) -> None:
        async with open_store(store_url) as store, await store.claim(name, epoch, os.urandom(16)) as claim:
            mirror = await Mirror.open(path, store, claim, "j")
            await mirror.pass_on()
            await mirror.wait_synced(mirror.size)

    path.write_bytes(b"x" * 1000)
    trio.run(mirror_once, 1)
    path.write_bytes(b"x" * 999 + b"y" * 1000)
    with pytest.raises(MirrorDiffersError, match=r"first 1000 bytes .* are not those"):
        trio.run(mirror_once, 2)
    path.write_bytes(b"x" * 10)
    with pytest.raises(MirrorDiffersError, match=r"has 1000 bytes, .* only 10"):
        trio.run(mirror_once, 3)


def test_a_journal_on_the_local_disk_is_trimmed_if_nobody_writes_it_and_keeps_what_a_mirror_needs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.journal"

    async def write(claim: LocalClaim) -> None:
        async with await Directory.open(
            tmp_path / "live", claim, recovery_bytes=600, segment_bytes=250
        ) as one:
            for number in range(1, 41):
                await one.append("log", bytes([number]) * 40)
                await one.truncate("log", 40)
                await one.checkpoint(number, number)

    trim = ["journal", "trim", "--before", "checkpoint:40", "--json", path]
    with LocalClaim(path) as claim:
        trio.run(write, claim)
        plan = json.loads(dos(*trim).stdout)
        assert plan["segments"]
        refused = dos(*trim, "--apply", "--stopped")
        assert (refused.returncode, "is being written by another process" in refused.stderr) == (2, True)
    first = next(one for one in sorted(path.iterdir()) if one.name.startswith("files."))
    lowest = parse_segment_name(first.name)
    assert lowest is not None
    store = LocalStore(path)
    store.set_mirrored(lowest.order)
    kept = dos(*trim, "--apply", "--stopped")
    assert (kept.returncode, "a mirror needs some of it" in kept.stderr, first.exists()) == (3, True, True)
    store.set_mirrored(None)
    done = dos(*trim, "--apply", "--stopped")
    assert (done.returncode, first.exists()) == (0, False), done.stderr
    for at, code in (("checkpoint:40", 0), ("checkpoint:3", 2)):
        assert dos("journal", "cat", "--at", at, path, "log").returncode == code
    assert dos("journal", "verify", path).returncode == 0
