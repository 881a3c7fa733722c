"""A source that is prefetched from the store: which pieces a step reads, and that a replay reads the same."""

import random

import numpy as np
import pyarrow as pa
import pytest
import trio
from trio.testing import MockClock

from checkpoint.chains.consumer_register import settled_register
from checkpoint.chains.input_log import InputHandle, InputLog
from checkpoint.core.records.consumers import input_register
from checkpoint.core.records.inputs import InputPiece
from checkpoint.core.records.manifest import SplitPosition
from dataflow import InputSource, limits
from dataflow.errors import InputChangedError, InputReadError
from dataflow.sources.base import SourceDivision, owner_by_name
from dataflow.sources.prefetched import PrefetchBuffer, PrefetchedReader, Reading
from dataflow.worker.prefetching import Prefetcher
from dos_client import open_store
from dos_protocol.digests import digest64
from dos_server.testing import memory_store

SOURCE = InputSource("orders", "n bigint")
SCHEMA = pa.schema([("split", pa.string()), ("number", pa.int64())])


def stream(rows: list[dict[str, object]], schema: pa.Schema = SCHEMA) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return bytes(sink.getvalue())


def pieces_of(split: str, count: int) -> list[InputPiece]:
    """`count` pieces of two rows, with holes between them as segments make them."""
    pieces, at, digest = [], 0, 0
    for index in range(count):
        data = stream([{"split": split, "number": 2 * index + k} for k in range(2)])
        begin = at + 7
        at, digest = begin + len(data), digest64(data, digest)
        pieces.append(InputPiece(split, begin, at, digest, 2, data))
    return pieces


def a_reader(buffer: PrefetchBuffer, positions: dict[str, SplitPosition] | None = None) -> PrefetchedReader:
    reader = PrefetchedReader(SCHEMA, "input 'x'")
    reader.reset_to(positions or {})
    reader.attach(buffer)
    return reader


def filled(pieces: list[InputPiece]) -> PrefetchBuffer:
    buffer = PrefetchBuffer()
    for piece in pieces:
        buffer.put(piece)
    return buffer


Step = tuple[SourceDivision, list[dict[str, object]], dict[str, SplitPosition]]


def steps_read(seed: int) -> tuple[list[InputPiece], list[Step]]:
    """Pieces of three splits that came in random order while steps were read: the pieces, and what steps
    took.
    """
    rng = random.Random(seed)
    waiting = [pieces_of(split, 12) for split in ("a", "b", "c")]
    every = [piece for pieces in waiting for piece in pieces]
    buffer = PrefetchBuffer()
    reader = a_reader(buffer)
    steps: list[Step] = []
    while any(waiting) or reader.has_input:
        for _ in range(rng.randint(0, 6)):
            pieces = rng.choice(waiting)
            if pieces:
                buffer.put(pieces.pop(0))
        rows: list[dict[str, object]] = []
        for _ in range(rng.randint(1, 4)):
            batch = reader.read(rng.choice([1, 500, 2000]))
            rows += [] if batch is None else batch.batch.to_pylist()
            if any(waiting) and rng.random() < 0.3:
                pieces = next(pieces for pieces in waiting if pieces)
                buffer.put(pieces.pop(0))
        steps.append((reader.take_division(), rows, reader.positions()))
    return every, steps


@pytest.mark.parametrize("seed", range(15))
def test_a_replay_of_divisions_gives_the_same_rows_in_the_same_order(seed: int) -> None:
    every, steps = steps_read(seed)
    reader = a_reader(filled(every))
    for division, rows, positions in steps:
        assert reader.can_replay(division)
        assert [row for batch in reader.replay(division) for row in batch.batch.to_pylist()] == rows
        assert reader.take_division() == division
        assert reader.positions() == positions
    assert sum(len(rows) for _, rows, _ in steps) == 72


def test_rows_of_a_step_with_text_above_2_gib_are_refused_and_no_row_is_left_out() -> None:
    """No memory is touched: both texts are the same bytes, which are zeros."""
    half = (1 << 30) + 1
    buffers = [None, pa.py_buffer(np.array([0, half], np.int32)), pa.py_buffer(np.zeros(half, "u1"))]
    text = pa.Array.from_buffers(pa.string(), 1, buffers)
    rows = pa.record_batch([text], names=["text"])
    reader = PrefetchedReader(rows.schema, "input 'x'")
    piece = InputPiece("a", 0, 9, 0, 2, b"compressed")
    with pytest.raises(InputReadError, match="over 2 GiB") as refused:
        reader._batch([piece], [[rows, rows]])
    assert "fewer rows" in refused.value.remedy


@pytest.mark.parametrize("seed", range(5))
def test_from_the_positions_of_any_step_reading_continues_with_what_follows(seed: int) -> None:
    every, steps = steps_read(seed)
    for index, (_, _, positions) in enumerate(steps[:-1]):
        at = {split: stand.position for split, stand in positions.items()}
        behind = [piece for piece in every if piece.end > at.get(piece.split, 0)]
        reader = a_reader(filled(behind), positions)
        division, rows, _ = steps[index + 1]
        assert [row for batch in reader.replay(division) for row in batch.batch.to_pylist()] == rows


def test_a_source_that_begins_at_its_end_is_a_consumer_before_it_looks_where_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise what follows could be trimmed before its region has a checkpoint of where it began."""
    seen, latest_of = [], InputHandle.latest

    async def main() -> None:
        async with memory_store() as servers, open_store(servers.url) as store:

            async def latest(handle: InputHandle) -> dict[str, SplitPosition]:
                register = await settled_register(store, input_register("app", "orders"))
                seen.append(register.consumers["region"].sources)
                return await latest_of(handle)

            monkeypatch.setattr(InputHandle, "latest", latest)
            producers = [await InputLog.open(store, "app", "orders", f"p{number}") for number in range(4)]
            for log in producers:
                await log.append([(1, b"row")], number=1)
                await log.recorded(1)
            of_workers = [
                await Prefetcher(
                    "rows",
                    SOURCE,
                    store,
                    uid="_1f-rows",
                    reader=Reading("app"),
                    worker=worker,
                    workers=2,
                    positions={},
                    woken=lambda: None,
                    consumer="region",
                ).go_to_latest()
                for worker in range(2)
            ]
        assert {split: at.position for found in of_workers for split, at in found.items()} == {
            f"p{number}": log.last_end for number, log in enumerate(producers)
        }
        assert not of_workers[0].keys() & of_workers[1].keys()
        assert all(
            SOURCE.owner(split, 2) == worker for worker, found in enumerate(of_workers) for split in found
        )

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert seen == [("_1f-rows",)] * 2


def test_no_busy_split_holds_up_the_others() -> None:
    reader = a_reader(filled([*pieces_of("busy", 50), *pieces_of("quiet", 1)]))
    first = reader.read(1)
    assert first is not None
    assert set(reader.take_division()) == {"busy"}
    second = reader.read(1)
    assert second is not None
    assert set(reader.take_division()) == {"quiet"}


def test_a_replay_waits_for_what_is_missing_and_gets_it_without_regard_to_room() -> None:
    pieces = pieces_of("a", 3)
    wide = [piece._replace(data=bytes(limits.feed_split_bytes_max)) for piece in pieces]
    buffer = filled(wide[:1])
    reader = a_reader(buffer)
    division, _, _ = steps_of_all(pieces)
    assert not buffer.has_room("a")
    assert not reader.can_replay(division)
    assert buffer.has_room("a"), "a replay wants it"
    for piece in wide[1:]:
        buffer.put(piece)
    assert reader.can_replay(division)
    assert not buffer.has_room("a")


def steps_of_all(pieces: list[InputPiece]) -> Step:
    reader = a_reader(filled(pieces))
    batch = reader.read(1 << 20)
    assert batch is not None
    return reader.take_division(), batch.batch.to_pylist(), reader.positions()


def test_input_that_is_not_what_was_read_is_refused() -> None:
    pieces = pieces_of("a", 3)
    division, _, _ = steps_of_all(pieces)
    other = [pieces[0], pieces[1], pieces[2]._replace(digest=5)]
    with pytest.raises(InputChangedError, match=r"input 'x', a.*expected content with digest"):
        a_reader(filled(other)).replay(division)
    with pytest.raises(InputChangedError, match="expected a step from 0, found 9"):
        a_reader(filled(pieces), {"a": SplitPosition(9)}).replay(division)
    longer = [pieces[0], pieces[1], pieces[2]._replace(end=pieces[2].end + 1)]
    with pytest.raises(InputChangedError, match="expected a piece that ends there"):
        a_reader(filled(longer)).replay(division)


def test_rows_that_are_none_or_of_other_columns_say_whose_they_are() -> None:
    (piece,) = pieces_of("a", 1)
    with pytest.raises(InputReadError, match=r"the bytes from 7 to \d+ of input 'x', a are not valid rows"):
        a_reader(filled([piece._replace(data=b"nonsense")])).read(1)
    other = stream([{"number": "1"}], pa.schema([("number", pa.string())]))
    with pytest.raises(
        InputReadError, match="have columns number string, expected split string, number bigint: column 'numb"
    ):
        a_reader(filled([piece._replace(data=other)])).read(1)


def test_a_step_takes_as_much_as_its_rows_are_unpacked_and_what_cannot_be_unpacked_is_refused() -> None:
    rows = pa.table({"split": ["a"] * 50_000, "number": range(50_000)}, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_table(rows)
    data = bytes(sink.getvalue())
    assert len(data) < rows.nbytes // 3
    pieces = [InputPiece("a", at, at + 1, at, rows.num_rows, data) for at in range(8)]
    batch = a_reader(filled(pieces)).read(2 * rows.nbytes)
    assert batch is not None
    assert batch.batch.num_rows == 2 * rows.num_rows
    broken = data.replace(b"\x28\xb5\x2f\xfd", b"zstd")  # how its frames begin
    with pytest.raises(InputReadError, match="are not valid rows"):
        a_reader(filled([pieces[0]._replace(data=broken)])).read(1)


def test_it_is_at_its_end_when_all_is_taken_and_nothing_more_will_come() -> None:
    buffer = filled(pieces_of("a", 1))
    reader = a_reader(buffer)
    assert (reader.has_input, reader.exhausted) == (True, False)
    buffer.complete()
    assert not reader.exhausted
    assert reader.read(1) is not None
    assert (reader.has_input, reader.exhausted) == (False, True)


def test_a_batch_without_rows_is_read_and_passed_over() -> None:
    empty = InputPiece("a", 0, 9, 5, 0, stream([]))
    reader = a_reader(filled([empty]))
    batch = reader.read(1)
    assert batch is not None
    assert (batch.batch.num_rows, batch.batch.schema) == (0, SCHEMA)
    assert reader.positions() == {"a": SplitPosition(9, 5)}


def test_every_worker_knows_who_reads_a_split() -> None:
    owners = [owner_by_name(f"p{number}", 4) for number in range(400)]
    assert {owners.count(worker) > 50 for worker in range(4)} == {True}
