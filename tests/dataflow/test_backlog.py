"""What each source knows of the input that waits, in the unit of what it reads."""

import gzip
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from checkpoint.chains.input_log import InputLog
from dataflow import FileSource, InputSource, RateSource, limits
from dataflow.limits import MIB
from dataflow.sources.base import SourceReader
from dataflow.sources.file_source import reader_of
from dataflow.sources.prefetched import Reading
from dataflow.sources.rate import RateReader
from dataflow.worker.prefetching import Prefetcher
from dos_client import open_store
from dos_server.testing import memory_store
from tests.dataflow.fed_circuit import FedCircuit, a_piece, row
from tests.dataflow.test_directory_source import append

LINES = "x" * 9 + "\n"


def reads_all(reader: SourceReader, bytes_max: int = 30) -> int:
    """Read to the present end. What is read, and what waits, is always the same together. Return it."""
    total = reader.backlog_bytes
    assert total is not None
    read = 0
    while reader.has_input:
        batch = reader.read(bytes_max)
        reader.take_division()
        read += 0 if batch is None else batch.bytes_read
        assert (reader.backlog_bytes, read) == (total - read, read)
    assert reader.backlog_bytes == 0
    return total


def test_files_are_known_to_their_end_in_every_pass(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for index, path in enumerate(paths):
        path.write_text(LINES * (index + 1))
    source = FileSource([*paths], repeat=2)
    assert [reads_all(reader_of(source, worker, 2)) for worker in range(2)] == [60, 60]
    reader = reader_of(source, 0, 2)
    reader.read(20)
    reader.take_division()
    again = reader_of(source, 0, 2)
    again.reset_to(reader.positions())
    assert again.backlog_bytes == reader.backlog_bytes == 30


def test_a_list_with_gzip_files_or_too_long_is_not_known(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a", tmp_path / "b.gz"
    plain.write_text(LINES)
    packed.write_bytes(gzip.compress(LINES.encode()))
    assert reader_of(FileSource([plain, packed]), 0, 1).backlog_bytes is None
    assert reader_of(FileSource([plain], repeat=20_000), 0, 1).backlog_bytes is None
    assert reader_of(FileSource([plain], repeat=9_000), 0, 1).backlog_bytes == 90_000
    missing = reader_of(FileSource([plain]), 0, 1)
    plain.unlink()
    assert missing.backlog_bytes is None, "reading reports it"


def test_a_directory_is_known_from_its_first_listing_on(tmp_path: Path) -> None:
    now = 0.0
    (tmp_path / "a").write_text(LINES * 3)
    reader = reader_of(FileSource(tmp_path, watch=True), 0, 1, lambda: now)
    assert reader.backlog_bytes is None
    assert reader.has_input
    assert reads_all(reader) == 30
    append(tmp_path / "a", LINES + "half a line")
    append(tmp_path / "b", LINES)
    assert reader.backlog_bytes == 0, "as of the last listing"
    now = 10.0
    assert reader.has_input
    assert reader.backlog_bytes == 31
    reader.read(1000)
    reader.take_division()
    assert reader.backlog_bytes == 0, "what is not a whole line is not read"
    (tmp_path / "c.gz").write_bytes(gzip.compress(LINES.encode()))
    now = 20.0
    assert reader.has_input
    assert reader.backlog_bytes is None
    while reader.has_input:
        reader.read(1000)
        reader.take_division()
    assert reader.backlog_bytes == 0


def test_rows_at_a_rate_wait_from_when_they_are_due() -> None:
    now = 1_000_000
    reader = RateReader(RateSource(10, rows=100), 0, 1, lambda: now)
    assert reads_all(reader) == 16
    now += 1_000_000
    assert reads_all(reader) == 160
    now += 100_000_000
    assert reads_all(reader) == 16 * (100 - 11)


def test_an_input_is_known_beyond_what_is_prefetched() -> None:
    parts = [(1, bytes(MIB))] * 12

    async def main() -> None:
        async with (
            memory_store() as servers,
            open_store(servers.url) as store,
            trio.open_nursery() as nursery,
        ):
            async with await InputLog.open(store, "app", "orders", "p") as log:
                for number, part in enumerate(parts, 1):
                    await log.append([part], number=number)
                await log.recorded(len(parts))
            prefetcher = Prefetcher(
                "rows",
                InputSource("orders", "word string"),
                store,
                uid="rows",
                reader=Reading("app"),
                worker=0,
                workers=1,
                positions={},
                woken=lambda: None,
            )
            buffer = prefetcher.buffer
            assert buffer.backlog_bytes is None, "who the producers are is not known"
            nursery.start_soon(prefetcher.run)
            await trio.sleep(10)
            assert buffer.backlog_bytes == pytest.approx(12 * MIB, rel=0.01)
            assert limits.feed_split_bytes_max < 5 * MIB, "the rest is not in the buffer"
            for taken in range(1, 13):
                assert buffer.take("p") is not None
                await trio.sleep(2)
                assert buffer.backlog_bytes == pytest.approx((12 - taken) * MIB, rel=0.01)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_worker_counts_at_most_once_per_second_and_until_nothing_waits() -> None:
    fed = FedCircuit()

    def counted(now: float) -> int:
        fed.now = now
        fed.reading.note_backlog(now)
        return fed.shared.backlog_bytes

    assert counted(10.0) == -1
    assert fed.reading.backlog_in() is None
    fed.buffer.known(["p"])
    one = a_piece("p", 1, [row(1)])
    fed.buffer.put(one)
    assert counted(10.9) == -1
    assert counted(11.0) == len(one.data)
    assert fed.reading.backlog_in() == 1.0, "an idle worker must notice that nothing waits any more"
    fed.step()
    assert counted(12.0) == 0
    assert fed.reading.backlog_in() is None
