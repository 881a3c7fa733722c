"""Journals on the disk of this machine: chains of segments, and the original's one file of version 0."""

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from dos_client.store import open_store
from dos_protocol.errors import ClosedError, DosError, LocalProtocolError, NotFoundError
from journal import (
    Directory,
    LocalClaim,
    LocalJournal,
    LocalStore,
    Mirror,
    Op,
    Record,
    parse_segment_name,
    restore,
)
from journal.core.errors import CorruptRecordError, HistoryTrimmedError, LocalFilesError, MirrorDiffersError
from journal.core.record import encode
from journal.files import directory as directory_module
from tests.journal.journaled_files import files
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess

SMALL: dict[str, Any] = {"recovery_bytes": 600, "segment_bytes": 250}


class MachineCrash(BaseException):
    """The machine stops before a system call."""


class Disk:
    """The disk below a local chain: crashes before a chosen call, and loses any of what was not synced."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self.root, self.calls, self.crash_at = root, 0, -1
        self.synced: dict[str, int] = {}
        self.durable_names: set[str] = set()
        self.unlinks_synced = True
        for name in ("pwrite", "fsync"):
            patch.setattr(os, name, self.counted(name, getattr(os, name)))
        patch.setattr(Path, "unlink", self.counted("unlink", Path.unlink))

    def counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(target: Any, *rest: Any, **named: Any) -> Any:
            path = str(target if isinstance(target, Path) else Path(f"/proc/self/fd/{target}").readlink())
            if not path.startswith(str(self.root)):
                return call(target, *rest, **named)
            if self.calls == self.crash_at:
                raise MachineCrash
            self.calls += 1
            result = call(target, *rest, **named)
            if name == "fsync" and path == str(self.root):
                self.durable_names = {one.name for one in self.root.iterdir()}
            elif name == "fsync":
                self.synced[path] = os.fstat(target).st_size
            return result

        return counting

    def lose(self, rng: random.Random) -> None:
        """Lose what was not synced: whole files without a durable name, and the ends of others."""
        for path in self.root.iterdir():
            if path.name not in self.durable_names and rng.random() < 0.5:
                path.unlink()
                continue
            size, synced = path.stat().st_size, self.synced.get(str(path), 0)
            os.truncate(path, rng.choice([synced, size, rng.randint(min(synced, size), size)]))


class LocalModel:
    """A directory on a local chain: what was recorded, and how much of it was acknowledged."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root, self.disk = root, disk
        self.versions: list[tuple[int, dict[str, bytes]]] = []
        self.acknowledged = 0
        self.before: dict[str, bytes] = {}

    async def run(self, changes: int, rng: random.Random, at: int | None = None) -> None:
        with LocalClaim(self.root / "journal") as claim:
            path = self.root / "live"
            async with await Directory.open(path, claim, at=at, **SMALL) as directory:
                self.opened(files(path))
                for number in range(changes):
                    name = rng.choice("abc")
                    data = bytes([number]) * rng.randrange(80)
                    after = self.now | {name: data}
                    await directory.truncate(name)
                    self.versions.append((directory.end.size, self.now | {name: b""}))
                    self.versions.append((10**9, after))  # recorded or not, if the machine stops now
                    await directory.append(name, data)
                    self.versions[-1] = directory.end.size, after
                    if rng.random() < 0.3:
                        await directory.wait_synced()
                        self.acknowledged = len(self.versions)

    @property
    def now(self) -> dict[str, bytes]:
        return self.versions[-1][1] if self.versions else self.before

    def opened(self, found: dict[str, bytes]) -> None:
        states = [self.before, *(state for _, state in self.versions)]
        kept = [n for n in range(self.acknowledged, len(states)) if states[n] == found]
        assert kept, f"found {found}, acknowledged {states[self.acknowledged]}"
        del self.versions[kept[-1] :]
        self.acknowledged = len(self.versions)

    async def check_readable(self) -> None:
        """A reader finds all that was acknowledged, before another writer opens the journal."""
        into, acknowledged = self.root / "read", self.versions[: self.acknowledged]
        try:
            await restore(into, LocalStore(self.root / "journal"), "journal")
        except (NotFoundError, FileNotFoundError):
            assert not acknowledged
        else:
            later = [state for _, state in self.versions[max(self.acknowledged - 1, 0) :]]
            assert files(into) in later or not (acknowledged or files(into))

    async def check_history(self) -> None:
        """Every version of the last two snapshots is restored, and earlier ones are refused as trimmed."""
        store, refused = LocalStore(self.root / "journal"), 0
        for number, (end, state) in list(enumerate(self.versions))[::10]:
            into = self.root / f"at-{self.disk.calls}-{number}"
            try:
                await restore(into, store, "journal", at=end)
            except HistoryTrimmedError:
                refused = number + 1
            else:
                assert files(into) == state
                assert number >= refused, "what is kept is the end of the history"


def crash_everywhere(root: Path, seed: int, *, every: int) -> int:
    """Run the same history with a crash before each call, go on after each, and return the calls of a run."""
    calls = every
    for crash_at in range(0, 10_000, every):
        with pytest.MonkeyPatch.context() as patch:
            folder = root / f"{crash_at}"
            folder.mkdir()
            disk, rng = Disk(patch, folder / "journal"), random.Random(seed)
            model = LocalModel(folder, disk)
            disk.crash_at = crash_at
            try:
                trio.run(model.run, 25, rng)
            except MachineCrash:
                disk.crash_at = -1
                disk.lose(rng)
                trio.run(model.check_readable)
            else:
                return calls
            calls = disk.calls
            trio.run(model.run, 12, rng)
            model.acknowledged = len(model.versions)
            trio.run(model.check_history)
    raise AssertionError("the history does not end")


def test_a_crash_before_any_system_call_leaves_a_chain_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    assert crash_everywhere(tmp_path, 7, every=17) > 60, "segments were rolled, snapshots taken and released"


def test_a_trim_before_the_snapshot_is_synced_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the segments are deleted at once, although the snapshot above them is not on the disk."""

    async def at_once(self: Directory) -> None:
        writer, end = self.writer, self.end.size
        assert isinstance(writer, directory_module.ChainWriter)
        if writer.bytes_since_snapshot >= 600:
            await writer.roll(self._snapshot())
            writer._released = writer._claim.epoch, writer._base
            writer.collect_released()
        elif end - self._segment_base >= 250:
            await writer.roll()
        else:
            return
        self._segment_base = end

    monkeypatch.setattr(Directory, "_roll_if_due", at_once)
    with pytest.raises((AssertionError, DosError)):
        crash_everywhere(tmp_path, 7, every=1)


@pytest.mark.trio
async def test_the_disk_holds_two_times_what_an_opening_reads_however_long_it_is_written(
    tmp_path: Path,
) -> None:
    most, sizes = 20_000, []
    with LocalClaim(tmp_path / "journal") as claim:
        async with await Directory.open(
            tmp_path / "live", claim, recovery_bytes=most, segment_bytes=5_000
        ) as directory:
            for number in range(1_000):
                await directory.write_at("log", 400 * (number % 5), bytes(400))
                sizes.append(sum(one.stat().st_size for one in (tmp_path / "journal").iterdir()))
            end = directory.end.size
    assert end > 20 * most
    assert max(sizes) < 2.5 * most
    with LocalClaim(tmp_path / "journal") as claim:
        async with await Directory.open(tmp_path / "live", claim, at=end - most // 2):
            assert files(tmp_path / "live") == {"log": bytes(2_000)}


@pytest.mark.trio
async def test_a_reader_finds_everything_after_an_opening_that_crashed(tmp_path: Path) -> None:
    with LocalClaim(tmp_path / "journal") as claim:
        async with await Directory.open(tmp_path / "live", claim) as directory:
            await directory.append("log", b"all of it")
            end = directory.end.size
    whole = next((tmp_path / "journal").iterdir()).read_bytes()
    for torn in (b"", whole[:50]):
        (tmp_path / "journal" / f"files.{2:016x}.{end:016x}").write_bytes(torn)
        await restore(tmp_path / f"{len(torn)}", LocalStore(tmp_path / "journal"), "journal")
        assert files(tmp_path / f"{len(torn)}") == {"log": b"all of it"}
    with LocalClaim(tmp_path / "journal") as claim:
        assert claim.epoch == 3


@pytest.mark.trio
async def test_a_mirror_that_is_behind_keeps_what_it_needs(tmp_path: Path) -> None:
    with LocalClaim(tmp_path / "journal") as claim:
        claim.store.set_mirrored((1, 0))
        async with await Directory.open(tmp_path / "live", claim, **SMALL) as directory:
            for number in range(60):
                await directory.write_at("log", 0, bytes([number]) * 100)
            assert claim.store.segments()[-1].base == 0
            newer = claim.store.segments()[0].order
            claim.store.set_mirrored(newer)
            assert claim.store.mirrored() == newer
            for number in range(60):
                await directory.write_at("log", 0, bytes([number]) * 100)
            assert 0 < claim.store.segments()[-1].base <= newer[1]
            await directory.trim(claim.store, "journal", directory.end.size)  # type: ignore[arg-type]
            assert newer in [one.order for one in claim.store.segments()]
        claim.store.set_mirrored(None)
        assert claim.store.mirrored() is None


@pytest.mark.trio
async def test_one_process_writes_and_a_failed_write_or_sync_ends_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    for call in ("pwrite", "fsync"):
        with LocalClaim(tmp_path / "journal") as claim:
            with pytest.raises(LocalProtocolError, match="written by another process or claim"):
                LocalClaim(tmp_path / "journal")
            directory = await Directory.open(tmp_path / "live", claim)
            with monkeypatch.context() as patch:
                patch.setattr(os, call, fails)
                with pytest.raises(LocalFilesError, match="Input/output error"):  # noqa: PT012
                    await directory.append("log", b"x")
                    await directory.wait_synced()
            with pytest.raises(ClosedError, match="Input/output error"):
                await directory.append("log", b"y")
            await directory.aclose()
        with pytest.raises(ClosedError, match="is closed"):
            claim.collect(lambda _: True)


@pytest.mark.trio
async def test_damage_is_refused_and_named(tmp_path: Path) -> None:
    with LocalClaim(tmp_path / "journal") as claim:
        async with await Directory.open(tmp_path / "live", claim, segment_bytes=250) as directory:
            for number in range(10):
                await directory.append("log", bytes([number]) * 100)
    for path in sorted((tmp_path / "journal").iterdir())[:2]:
        whole = path.read_bytes()
        path.write_bytes(whole[:300] + bytes([whole[300] ^ 1]) + whole[301:])
        with LocalClaim(tmp_path / "journal") as claim, pytest.raises(DosError, match=path.name):
            await Directory.open(tmp_path / "live", claim)
        path.write_bytes(whole)
    with LocalClaim(tmp_path / "journal") as claim:
        async with await Directory.open(tmp_path / "live", claim):
            assert len(files(tmp_path / "live")["log"]) == 1_000


@pytest.mark.trio
async def test_a_directory_on_a_local_journal_is_made_again_from_it(tmp_path: Path) -> None:
    path = tmp_path / "worker3.journal"
    async with Directory.open_local(tmp_path / "live", LocalJournal(path)) as directory:
        await directory.append("log", b"one ")
        await directory.truncate("empty")
        await directory.append("gone", b"x")
        await directory.remove("gone")
        await directory.wait_synced()
    (tmp_path / "live" / "log").unlink()
    async with Directory.open_local(tmp_path / "live", LocalJournal(path)) as directory:
        await directory.append("log", b"two")
        assert files(tmp_path / "live") == {"log": b"one two", "empty": b""}
        assert directory.end.size == path.stat().st_size
        with pytest.raises(LocalProtocolError, match="version 0 has no checkpoints"):
            await directory.checkpoint(1)


def test_version_0_is_what_the_original_writes(tmp_path: Path) -> None:
    with LocalJournal(tmp_path / "j") as journal:
        journal.append(Record(Op.WRITE, tag=1, ints=(0,), strings=(b"/w/tcp-control", b"localhost\n")))
        journal.append(Record(Op.TRUNCATE, tag=2, ints=(0,), strings=(b"/w/addresses",)))
        with pytest.raises(LocalProtocolError, match="version 0 has only TRUNCATE, WRITE and REMOVE"):
            journal.append(Record(Op.MARK, ints=(1,)))
    expected = (
        b"\0\0\0\x3c\0\1\1\2" + (1).to_bytes(8) + (0).to_bytes(8) + (14).to_bytes(8) + (10).to_bytes(8)
    ) + b"/w/tcp-controllocalhost\n"
    expected += b"\0\0\0\x28\0\0\1\1" + (2).to_bytes(8) + (0).to_bytes(8) + (12).to_bytes(8) + b"/w/addresses"
    assert (tmp_path / "j").read_bytes() == expected


def test_every_cut_off_end_is_cut_away_and_what_stands_before_it_stays(tmp_path: Path) -> None:
    path, records = tmp_path / "j", [Record(Op.WRITE, ints=(n,), strings=(b"f", b"abc")) for n in range(3)]
    whole = [encode(record, 0) for record in records]
    for length in range(sum(map(len, whole))):
        path.write_bytes(b"".join(whole)[:length])
        kept = length // len(whole[0])
        with LocalJournal(path) as journal:
            assert journal.end.size == kept * len(whole[0])
            journal.append(records[0])
            assert [record for batch in journal.records() for _, record in batch] == [
                *records[:kept],
                records[0],
            ]


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        (encode(Record(Op.REMOVE, strings=(b"f",))), LocalProtocolError, "has records of version 1"),
        (encode(Record(Op.REMOVE, strings=(b"f",)), 0).replace(b"\2", b"\7"), CorruptRecordError, "an op of"),
    ],
    ids=["version", "damage"],
)
def test_a_journal_that_is_damaged_or_of_the_other_version_is_refused_and_left_alone(
    tmp_path: Path, content: bytes, error: type[Exception], text: str
) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(error, match=text):
        LocalJournal(path)
    assert path.read_bytes() == content


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
            with LocalJournal(path) as journal:
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

    async def whole_copy() -> bytes:
        """As many bytes as the file has. (Any member may be read, and one may still be behind.)"""
        async with open_store(store_url) as store:
            copied = b""
            with trio.fail_after(60):
                async with contextlib.aclosing(store.follow(name, "my_app.journal")) as chunks:
                    async for chunk in chunks:
                        copied += chunk
                        if len(copied) >= path.stat().st_size:
                            return copied
        raise AssertionError("a follower never ends")

    trio.run(lambda: mirrored(1, [b"one", b"two"], crash=False))
    assert trio.run(whole_copy) == path.read_bytes()
    trio.run(lambda: mirrored(2, [b"three" * 100_000], crash=True))
    assert path.read_bytes().startswith(trio.run(copy))
    servers[0].kill()
    try:
        trio.run(lambda: mirrored(3, [b"four"], crash=False))
    finally:
        servers[0].restart()
    assert trio.run(whole_copy) == path.read_bytes()


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
