"""A damaged data directory is judged alike by the server that is started on it and by the offline reader."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from dos_client.store import connect
from dos_protocol.errors import DosError
from dos_server.limits import extent_header_bytes
from dos_server.memory.disk import MemoryDisk, _Folder, _Node
from dos_server.offline.reading import DataDirectory
from dos_server.testing import memory_server
from journal import Op, Record
from journal.chain import take_over
from journal.inspecting import DAMAGE, inspect_url, read_data_directories_with
from journal.writer import ChainWriter

Disk = dict[str, bytes]


class Verdict(NamedTuple):
    """What a reader made of a directory. `refusal`: empty, "damage", or the name of another error."""

    records: tuple[bytes, ...]
    refusal: str


def files_of(folder: _Folder, path: str = "") -> Disk:
    found: Disk = {}
    for name, node in folder.seen.items():
        if isinstance(node, _Folder):
            found |= files_of(node, f"{path}{name}/")
        else:
            assert isinstance(node, _Node)
            found[path + name] = bytes(node.seen)
    return found


async def judged(url: str, *, history: bool) -> Verdict:
    records: list[bytes] = []
    try:
        outcome = await inspect_url(
            url,
            b"",
            lambda some: (
                not records.extend(one.record.strings[-1] for one in some if one.record.op is Op.WRITE)
            ),
            lambda *_: None,
            history=history,
        )
    except DosError as error:
        return Verdict((), "damage" if isinstance(error, DAMAGE) else type(error).__name__)
    return Verdict(tuple(records) if outcome.fault is None else (), "damage" if outcome.fault else "")


@cache
def healthy() -> Disk:
    """What is on the disk of a server that holds a chain of three segments, synced, and was stopped."""
    return trio.run(make_chain, clock=MockClock(autojump_threshold=0))


async def make_chain() -> Disk:
    async with memory_server(seed=1) as server:
        for epoch in (1, 2, 3):
            async with connect(server.url) as store, await store.claim("ledger", epoch, b"w" * 16) as claim:
                state = await take_over(claim, "files", generation=0)
                async with await ChainWriter.open(claim, "files", state, 0) as writer:
                    for number in range(20):
                        writer.append(Record(Op.WRITE, 0, (0,), (b"f", b"%d:%02d" % (epoch, number) * 40)))
                    await writer.wait_synced()
        await server.stop()
        return files_of(server.disk.root)


async def online(disk: Disk, *, history: bool) -> Verdict:
    """The verdict of a client of a server that is started on the directory."""
    async with memory_server(seed=2) as server:
        server.crash()
        await server.host.wait_ended()
        server.disk.root = MemoryDisk().root
        for path, data in disk.items():
            server.disk.put(path, data)
        server.host.start(server._nursery)
        return await judged(f"{server.url}/ledger/files", history=history)


async def offline(disk: Disk, root: Path, *, history: bool) -> Verdict:
    """The verdict of the offline reader."""
    for path, data in disk.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    read_data_directories_with(DataDirectory)
    return await judged(str(root / "ledger" / "files"), history=history)


class Both(NamedTuple):
    online: Verdict
    offline: Verdict


def both(disk: Disk, root: Path, *, history: bool = True) -> Both:
    async def main() -> Both:
        return Both(await online(disk, history=history), await offline(disk, root, history=history))

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def segments(disk: Disk) -> list[str]:
    return sorted(path for path in disk if path.startswith("d/ledger/files"))


def flip(disk: Disk, path: str, at: int, bit: int) -> None:
    data = bytearray(disk[path])
    data[at] ^= 1 << bit
    disk[path] = bytes(data)


def halve(disk: Disk, path: str) -> None:
    disk[path] = disk[path][: len(disk[path]) // 2]


def delete(disk: Disk, path: str) -> None:
    del disk[path]


def all_of(tmp_path: Path) -> tuple[bytes, ...]:
    sound = both(healthy(), tmp_path)
    assert sound.online == sound.offline
    assert (len(sound.online.records), sound.online.refusal) == (60, "")
    return sound.online.records


@pytest.mark.parametrize("number", [0, 1, 2], ids=["the oldest segment", "the middle one", "the newest"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda disk, path: flip(disk, path, len(disk[path]) // 2, 0),
        halve,
        delete,
        lambda disk, path: disk.__setitem__(path, b""),
        lambda disk, path: disk.__setitem__(path, bytes(len(disk[path]))),
    ],
    ids=["a flipped bit", "halved", "deleted, its mark is there", "emptied", "zeroed"],
)
def test_a_damaged_segment_is_refused_by_both(
    tmp_path: Path, number: int, damage: Callable[[Disk, str], None]
) -> None:
    disk = dict(healthy())
    damage(disk, segments(disk)[number])
    assert both(disk, tmp_path) == Both(Verdict((), "damage"), Verdict((), "damage"))


def test_a_torn_tail_that_was_never_acknowledged_is_left_out_by_both_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = all_of(tmp_path / "whole")
    disk = dict(healthy())
    newest = segments(disk)[-1]
    disk[newest] += disk[newest][: extent_header_bytes // 2]
    assert both(disk, tmp_path / "torn") == Both(Verdict(whole, ""), Verdict(whole, ""))
    report = [one.getMessage() for one in caplog.records if one.name == "dos.offline"]
    assert len(report) == 1
    assert newest.removeprefix("d/") in report[0]
    assert "the next start cuts 32 bytes" in report[0]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_one_fault_of_a_data_directory_gets_the_same_verdict_online_and_offline(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Nothing is ever short in silence: a sound verdict comes with all records."""
    rng, disk = random.Random(seed), dict(healthy())
    path = rng.choice([path for path in sorted(disk) if path.startswith("d/")])
    size, kind = len(disk[path]), rng.choice(["flip", "cut", "zeros", "gone", "longer", "swapped"])
    if kind == "flip":
        flip(disk, path, rng.randrange(size), rng.randrange(8))
    elif kind == "cut":
        disk[path] = disk[path][: rng.randrange(size)]
    elif kind == "zeros":
        begin = rng.randrange(size)
        end = rng.randint(begin + 1, size)
        disk[path] = disk[path][:begin] + bytes(end - begin) + disk[path][end:]
    elif kind == "gone":
        delete(disk, path)
    elif kind == "longer":
        disk[path] += rng.randbytes(rng.randrange(1, 200))
    else:
        disk[path] = disk[rng.choice(segments(disk))]
    found = both(disk, tmp_path_factory.mktemp("disk"), history=rng.random() < 0.5)
    assert found.online == found.offline, (path, kind)
    assert found.offline.refusal in {"", "damage"}
    if not found.offline.refusal:
        assert len(found.offline.records) == 60, (path, kind)
