"""`dos journal follow`: every record once, in order, when it comes."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from dos_client.store import open_store
from journal import ChainWriter, LocalClaim, Op, Record
from journal.core.errors import CorruptRecordError, LostBytesError
from journal.core.inspection import Located
from journal.core.record import encode
from journal.ports import ClaimPort
from journal.showing import follow_chain, follow_file


def note(number: int) -> Record:
    return Record(Op.MARK, ints=(number,))


class PrintedRecords:
    """The printed records, with a wait for them."""

    def __init__(self) -> None:
        self.records: list[Located] = []
        self._more = trio.Event()

    def __call__(self, located: Located) -> None:
        self.records.append(located)
        self._more.set()
        self._more = trio.Event()

    async def wait(self, count: int) -> None:
        with trio.fail_after(30):
            while len(self.records) < count:
                await self._more.wait()

    async def numbers(self, count: int) -> list[int]:
        while len(self.numbers_now) < count:
            await self.wait(len(self.records) + 1)
        return self.numbers_now

    @property
    def numbers_now(self) -> list[int]:
        return [one.record.ints[0] for one in self.records if one.record.op is Op.MARK]


@asynccontextmanager
async def following(follow: Callable[..., Any], *arguments: Any) -> AsyncIterator[PrintedRecords]:
    result = PrintedRecords()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, *arguments, result)
        yield result
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def claimed(where: str, store_url: str, tmp_path: Path) -> AsyncIterator[tuple[ClaimPort, str]]:
    """Yield a claim in a store, or of a directory of this machine, and the target that names its chain."""
    name = f"follow.{os.urandom(4).hex()}"
    if where == "store":
        async with open_store(store_url) as store, await store.claim(name, 1, os.urandom(16)) as claim:
            yield claim, f"{store_url}/{name}/j"
    else:
        with LocalClaim(tmp_path / name) as local:
            yield local, str(tmp_path / name)


@pytest.mark.process
@pytest.mark.parametrize("where", ["store", "local disk"])
@pytest.mark.trio
async def test_a_chain_is_followed_through_segments_and_records_are_visible_once(
    where: str, store_url: str, tmp_path: Path
) -> None:
    async with (
        claimed(where, store_url, tmp_path) as (claim, url),
        await ChainWriter.open(claim, "j", None, 1) as writer,
    ):
        writer.append(note(1))
        await writer.wait_synced()
        begin = writer.end.size
        async with (
            following(follow_chain, url, b"", begin) as rest,
            following(follow_chain, url, b"", 0) as everything,
        ):
            writer.append(note(2))
            assert await rest.numbers(1) == [2]
            await writer.roll()
            for number in (3, 4, 5):
                writer.append(note(number))
            assert await rest.numbers(4) == [2, 3, 4, 5]
            assert await everything.numbers(5) == [1, 2, 3, 4, 5]
            places = [(one.offset, one.end) for one in everything.records]
            assert [begin for begin, _ in places] == [0, *(end for _, end in places[:-1])]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.trio
async def test_a_file_is_followed_record_by_record(tmp_path: Path, version: int) -> None:
    path = tmp_path / "some.journal"
    records = [Record(Op.TRUNCATE, ints=(number,), strings=(b"f",)) for number in range(4)]
    data = [encode(record, version) for record in records]
    path.write_bytes(data[0])
    async with (
        following(follow_file, path, None) as rest,
        following(follow_file, path, 0) as everything,
    ):
        await trio.testing.wait_all_tasks_blocked()
        with path.open("ab", buffering=0) as file:
            file.write(data[1] + data[2][:10])
            await rest.wait(1)
            file.write(data[2][10:] + data[3])
            await rest.wait(3)
            await everything.wait(4)
    assert [one.record for one in everything.records] == records
    assert [one.record for one in rest.records] == records[1:]


@pytest.mark.trio
async def test_a_file_that_becomes_shorter_or_is_damaged_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "some.journal"
    path.write_bytes(encode(note(1)))

    async def cut() -> None:
        await trio.testing.wait_all_tasks_blocked()
        os.truncate(path, 3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut)
        with pytest.raises(LostBytesError, match="was truncated from"):
            await follow_file(path, 0, PrintedRecords())
    path.write_bytes(encode(note(1)) + b"nothing of the kind, and long enough to be seen as that")
    with pytest.raises(CorruptRecordError):
        await follow_file(path, 0, PrintedRecords())


@pytest.mark.process
@pytest.mark.parametrize("what", ["file", "chain"])
def test_an_interrupt_ends_it_in_one_line(what: str, tmp_path: Path, store_url: str) -> None:
    path = tmp_path / "some.journal"
    path.write_bytes(encode(note(7)))
    target, first = str(path), "0 MARK "
    if what == "chain":
        target, first = f"{store_url}/interrupted/notes", "0 SEGMENT_START "
        trio.run(write_notes, store_url)
    command = [sys.executable, "-m", "dos_cli", "journal", "follow", "--from", "0", target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(first)
        process.send_signal(signal.SIGINT)
        rest, output = process.communicate(timeout=30)
    assert (process.returncode, output) == (130, "dos: interrupted\n")
    assert what == "chain" or not rest


async def write_notes(url: str) -> None:
    async with (
        open_store(url) as store,
        await store.claim("interrupted", 1, os.urandom(16)) as claim,
        await ChainWriter.open(claim, "notes", None, 1) as writer,
    ):
        await writer.wait_synced(writer.append(note(7)))
