"""The mirror of a local journal: a chain of the store at all times, through crashes of either side."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

import dos.blocking
from dos_client.store import Store, open_store
from dos_protocol.errors import DosError, FencedError, LocalProtocolError, NotFoundError
from dos_server.testing import memory_store
from journal import Directory, LocalClaim, LocalJournal, LocalStore, Position, inspect_chain, restore
from journal.core.chain import parse_segment_name
from journal.core.errors import HistoryTrimmedError, MirrorDiffersError
from journal.files.mirroring import ChainMirror, Mirror
from tests.journal.journaled_files import files
from tests.support.dos_command import dos as command
from tests.support.servers import ServerProcess

SMALL: dict[str, Any] = {"recovery_bytes": 1_500, "segment_bytes": 600}


class MirrorCrash(BaseException):
    """The process of the mirror ends here."""


class MirroredModel:
    """A local directory that is written by one process after another, and its mirror."""

    def __init__(self, root: Path, store: Store) -> None:
        self.root, self.store = root, store
        self.versions: list[tuple[int, dict[str, bytes]]] = []
        self.positions: dict[int, Position] = {}
        self.copied = 0
        """The logical offset that a mirror has reported."""

    async def write(self, rng: random.Random, changes: int) -> None:
        with LocalClaim(self.root / "journal") as claim:
            async with await Directory.open(self.root / "live", claim, **SMALL) as directory:
                for _ in range(changes):
                    name = rng.choice("abc")
                    await directory.truncate(name)
                    self.note_version(directory)
                    await directory.append(name, rng.randbytes(rng.randrange(90)))
                    self.note_version(directory)

    def note_version(self, directory: Directory) -> None:
        self.versions.append((directory.end.size, files(self.root / "live")))
        self.positions[directory.end.size] = directory.end

    async def mirror(self, passes: int) -> None:
        with ChainMirror.open(self.root / "journal", self.store, "copy") as mirror:
            try:
                for _ in range(passes):
                    await mirror.pass_on(lambda progress: self.note(progress.synced))
                assert mirror.progress.synced == mirror.progress.end == self.versions[-1][0]
                assert await mirror.verify() > 0
            finally:
                await mirror.aclose()

    def note(self, synced: int) -> None:
        self.copied = max(self.copied, synced)  # a mirror that starts again reports what it compares

    async def check(self, number: int) -> None:
        """The store has a version, and everything that the mirror reported."""
        into = self.root / f"copy-{number}"
        try:
            done = await restore(into, self.store, "copy")
        except NotFoundError:
            assert self.copied == 0
            return
        assert files(into) == self.state_at(done.end)
        reported = [end for end, _ in self.versions if end <= self.copied]
        if reported and done.end < reported[-1]:  # the mirror crashed while it claimed
            assert (await inspect_chain(self.store, "copy", "files")).unproved
            await restore(self.root / f"at-{number}", self.store, "copy", at=self.positions[reported[-1]])
            assert files(self.root / f"at-{number}") == self.state_at(reported[-1])

    def state_at(self, size: int) -> dict[str, bytes]:
        return [{}, *(state for end, state in self.versions if end <= size)][-1]


async def play(root: Path, seed: int, patch: pytest.MonkeyPatch) -> int:
    """Write and mirror in turns; the mirror crashes before any of its appends. Return the crashes."""
    rng, crashes, pass_on = random.Random(seed), 0, Mirror.pass_on
    left = rng.randrange(1, 6)

    async def crashing(mirror: Mirror, upto: int | None = None) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            part = None if upto is None else rng.randint(mirror.size, max(upto, mirror.size))
            await pass_on(mirror, part)  # some of it is on its way
            raise MirrorCrash
        return await pass_on(mirror, upto)

    patch.setattr(Mirror, "pass_on", crashing)
    async with memory_store(seed=seed) as servers, open_store(servers.url) as store:
        model = MirroredModel(root, store)
        for number in range(8):
            await model.write(rng, rng.randrange(1, 14))
            try:
                await model.mirror(2)
            except MirrorCrash:
                crashes += 1
                left = rng.randrange(1, 9)
            await model.check(number)
        patch.setattr(Mirror, "pass_on", pass_on)
        await model.mirror(2)
        await model.write(rng, 1)  # deletes what was kept for the mirror
        await model.mirror(2)
        await model.check(100)
        local = LocalStore(root / "journal")
        for count, (end, state) in enumerate(model.versions[::11]):
            for reader, name in ((store, "copy"), (local, "journal")):
                into = root / f"{name}-{count}-then"
                try:
                    await restore(into, reader, name, at=end)
                    assert files(into) == state
                except HistoryTrimmedError:
                    assert model.versions[-1][0] - end > 700, "the last two snapshots reach farther back"
        held = await store.inspect("copy")
        mirrored = {name for objects in held.answers.values() for name in objects}
        assert {str(one) for one in local.segments()} <= mirrored
    return crashes


def play_some(folders: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> int:
    return sum(trio.run(play, folders.mktemp("mirror"), seed, patch) for seed in range(3))


def test_the_copy_is_a_version_at_all_times(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert play_some(tmp_path_factory, monkeypatch) > 5


@pytest.mark.parametrize("planted", ["the newest segment first", "deletes what is not copied"])
def test_a_planted_fault_of_the_mirror_is_found(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    if planted == "the newest segment first":

        async def only_the_newest(*_: object) -> None:
            await trio.lowlevel.checkpoint()

        monkeypatch.setattr(ChainMirror, "_copy", only_the_newest)
    else:
        monkeypatch.setattr(LocalStore, "mirrored", lambda _: None)
    with pytest.raises((AssertionError, DosError, BaseExceptionGroup)):
        play_some(tmp_path_factory, monkeypatch)


@pytest.mark.trio
async def test_another_journal_and_a_second_mirror_are_refused(tmp_path: Path) -> None:
    async def write(name: str, data: bytes, times: int) -> None:
        for _ in range(times):
            with LocalClaim(tmp_path / name) as claim:
                async with await Directory.open(tmp_path / "live", claim) as directory:
                    await directory.append("log", data)

    async with memory_store() as servers, open_store(servers.url) as store:
        await write("one", b"one", 2)
        await write("other", b"another", 2)
        await write("longer", b"another", 3)
        with ChainMirror.open(tmp_path / "one", store, "copy") as mirror:
            await mirror.pass_on()
            with (
                pytest.raises(LocalProtocolError, match="being mirrored by another process"),
                ChainMirror.open(tmp_path / "one", store, "copy"),
            ):
                pass
            await mirror.aclose()
        for name in ("other", "longer"):
            with ChainMirror.open(tmp_path / name, store, "copy") as mirror:
                with pytest.raises(
                    FencedError, match=r"mirrors another journal: .*mirror to another directory"
                ):
                    await mirror.pass_on()
                await mirror.aclose()
        await restore(tmp_path / "into", store, "copy")
        assert files(tmp_path / "into") == {"log": b"oneone"}
        with LocalClaim(tmp_path / "one") as claim:
            async with await Directory.open(tmp_path / "live", claim, **SMALL) as directory:
                for _ in range(4):
                    await directory.append("log", bytes(500))
        with ChainMirror.open(tmp_path / "one", store, "copy") as mirror:
            await mirror.pass_on()
            await mirror.aclose()
        newest = tmp_path / "one" / str(LocalStore(tmp_path / "one").segments()[0])
        newest.unlink()
        with ChainMirror.open(tmp_path / "one", store, "copy") as mirror:
            with pytest.raises(MirrorDiffersError, match=f"holds {newest.name}, which .* does not have"):
                await mirror.pass_on()
            await mirror.aclose()
        with (
            pytest.raises(NotFoundError, match="has no segment of a chain files"),
            ChainMirror.open(tmp_path, store, "copy"),
        ):
            pass


# --- the command, with real processes ---------------------------------------------------------------------


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dos_cli", "files", "mirror", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(mirror: subprocess.Popen[str], end: int) -> None:
    assert mirror.stdout is not None
    for line in mirror.stdout:
        if json.loads(line)["synced"] >= end:
            return
    raise AssertionError(mirror.communicate())


def finished(mirror: subprocess.Popen[str], code: int) -> str:
    _, errors = mirror.communicate(timeout=30)
    assert mirror.returncode == code, errors
    return errors


@pytest.mark.process
def test_the_command_follows_through_restarts_until_another_machine_takes_over(
    tmp_path: Path, servers: list[ServerProcess], store_url: str
) -> None:
    name = f"ledger.{os.urandom(4).hex()}"
    live, url = tmp_path / "ledger", f"{store_url}/{name}"

    def write(rounds: int) -> int:
        with dos.blocking.open_local_directory(live, **SMALL) as ledger:
            for number in range(rounds):
                ledger.append(f"f{number % 3}", os.urandom(200))
                ledger.truncate(f"f{number % 3}", 150)
            return ledger.end.size

    def copied() -> dict[str, bytes]:
        into = tmp_path / f"copy-{os.urandom(4).hex()}"
        with dos.blocking.open_store(store_url) as store:
            dos.blocking.restore(into, store, name)
        return files(into)

    end = write(20)
    mirror = started("--json", str(live), url)
    wait_for(mirror, end)
    assert copied() == files(live)
    wait_for(mirror, write(20))  # another process of the writer: another epoch, another claim
    mirror.kill()
    finished(mirror, -signal.SIGKILL)
    servers[0].kill()
    try:
        end = write(20)
        mirror = started("--json", str(live), url)
        wait_for(mirror, end)
    finally:
        servers[0].restart()
    assert copied() == files(live)
    mirror.send_signal(signal.SIGINT)
    assert "interrupted" in finished(mirror, 130)
    once = command("files", "mirror", "--once", "--json", live, url)
    assert once.returncode == 0, once.stderr
    assert json.loads(once.stdout)["synced"] == end
    assert (
        f"offset {end:,}: copied and verified on a quorum"
        in command("files", "mirror", "--once", live, url).stdout
    )
    listed = [command("journal", "files", "--json", place) for place in (f"{url}/files", f"{live}.journal")]
    assert len({one.stdout for one in listed}) == 1

    with (
        dos.blocking.open_store(store_url) as store,
        store.claim(name, 100, os.urandom(16)) as claim,
        dos.blocking.open_directory(tmp_path / "elsewhere", claim) as elsewhere,
    ):
        assert files(tmp_path / "elsewhere") == files(live)
        elsewhere.append("f0", b"from here on")
        elsewhere.wait_synced()
        write(1)
        refused = command("files", "mirror", "--once", live, url)
        assert (refused.returncode, "has another writer, which took this copy over" in refused.stderr) == (
            2,
            True,
        )


@pytest.mark.process
def test_the_command_mirrors_a_journal_of_one_file_and_names_what_it_refuses(
    tmp_path: Path, store_url: str
) -> None:
    name = f"worker.{os.urandom(4).hex()}"

    async def write(text: bytes) -> None:
        async with Directory.open_local(
            tmp_path / "live", LocalJournal(tmp_path / "app.journal")
        ) as directory:
            await directory.append("log", text)

    for text in (b"one ", b"two"):
        trio.run(write, text)
        done = command("files", "mirror", "--once", "--json", tmp_path / "app.journal", f"{store_url}/{name}")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["synced"] == (tmp_path / "app.journal").stat().st_size
    shown = command("journal", "cat", f"{store_url}/{name}/app.journal", "log")
    assert shown.stdout == "one two"
    (tmp_path / "app.journal").write_bytes(b"other")
    for arguments, text in [
        ((tmp_path / "app.journal", f"{store_url}/{name}"), "has only 5"),
        ((tmp_path / "none", f"{store_url}/{name}"), "is no journal, and there is no journal"),
        ((tmp_path / "app.journal", store_url), "must name a directory of a store"),
        ((tmp_path / "app.journal", f"{store_url}/a/b"), "must name a directory of a store"),
    ]:
        refused = command("files", "mirror", "--once", *arguments)
        assert (refused.returncode, text in refused.stderr) == (2, True), refused.stderr


def test_segments_have_one_name_on_both_sides() -> None:
    assert parse_segment_name(f".mirrored.{1:016x}.{0:016x}") is None, "no record of a mirror is a segment"
