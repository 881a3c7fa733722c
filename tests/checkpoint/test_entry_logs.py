"""The chain of an origin: batches with the time that an entry point gave them, and marks between them."""

import pytest

from checkpoint.chains.input_log import InputFollower, InputLog, last_recorded
from checkpoint.core.records.inputs import (
    InputPart,
    InputPiece,
    InputSequence,
    OriginMark,
    decode_input,
    decode_mark,
    encode_mark,
    encode_part,
)
from dos_client import Store, open_store
from dos_protocol.errors import CorruptDataError
from dos_server.testing import memory_store
from journal import Op, Record


async def pieces_of(store: Store, at: InputPiece | None = None) -> list[InputPiece]:
    position, digest = (0, 0) if at is None else (at.end, at.digest)
    follower = InputFollower(store, "app", "orders", "p1", at=position, digest=digest)
    return [piece async for piece in follower.poll()]


def mark_at(mark: int, version: int = 1) -> OriginMark:
    return OriginMark(mark, version, 1, mark)


@pytest.mark.trio
async def test_a_claimant_finds_the_last_batch_its_time_and_the_last_mark() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        log = await InputLog.open(store, "app", "orders", "p1")
        assert (log.origin_mark, log.last_time) == (None, 0)
        await log.append_mark(mark_at(99))
        await log.append([(1, b"a"), (1, b"b")], number=1, mark=b"one", time_us=150, late=b"too late")
        await log.append_mark(mark_at(199))
        await log.append([(1, b"c")], number=2, mark=b"two", time_us=250)
        await log.recorded(2)
        again = await InputLog.open(store, "app", "orders", "p1")
        assert again.origin_mark is not None
        assert (again.origin_mark.mark, again.origin_mark.batch, again.last_time) == (199, 1, 250)
        assert (again.last, again.last_mark) == (2, b"two")
        found = await pieces_of(store)
        assert [(piece.data, piece.late, piece.mark and piece.mark.mark) for piece in found] == [
            (b"", b"", 99),
            (b"a", b"", None),
            (b"b", b"too late", None),
            (b"", b"", 199),
            (b"c", b"", None),
        ]
        for at, piece in enumerate(found):
            assert await pieces_of(store, piece) == found[at + 1 :], "a reader continues at any piece"
        await log.aclose()
        await again.aclose()


@pytest.mark.trio
async def test_marks_alone_let_a_claimant_find_the_last_batch_in_the_newest_segment() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        log = await InputLog.open(store, "app", "orders", "p1")
        await log.append_mark(mark_at(9))
        await log.append([(1, b"a")], number=1, mark=b"one", time_us=50)
        await log.recorded(1)
        for number in range(2, 5):  # each claim begins a segment
            log = await InputLog.open(store, "app", "orders", "p1")
            assert (log.last, log.last_mark, log.last_time) == (1, b"one", 50)
            await log.append_mark(log.origin_mark._replace(mark=10 * number, last_time=log.last_time))  # type: ignore[union-attr]
            await log.all_synced()
            await log.aclose()
        assert (await last_recorded(store, "app", "orders", "p1")).batch == 1
        log = await InputLog.open(store, "app", "orders", "p1")
        await log.append([(1, b"b")], number=2, time_us=60)
        await log.recorded(2)
        assert log.origin_mark is not None
        marks = [piece.mark.mark for piece in await pieces_of(store) if piece.mark is not None]
        assert marks == [9, 20, 30, 40, 40], "the last one is repeated where its segment begins"
        await log.aclose()


def test_parts_before_a_mark_that_complete_no_batch_do_not_count() -> None:
    line = InputSequence("p")
    part = InputPart(1, 0, False, 1, 0, 0, b"half")
    assert line.add(part, 0, 10) == []
    assert line.add(OriginMark(5, 1, 1, 0), 10, 20) == [
        InputPiece("p", 10, 20, 0, 0, b"", mark=OriginMark(5, 1, 1, 0))
    ]
    whole = InputPart(1, 0, True, 1, 0, 0, b"whole", time_us=7)
    pieces = line.add(whole, 20, 30)
    assert [one.data for one in pieces if isinstance(one, InputPiece)] == [b"whole"]
    assert line.last_time == 7
    with pytest.raises(CorruptDataError, match="a mark after batch 1"):
        line.add(OriginMark(9, 1, 1, 0), 30, 40)


def test_records_of_entry_points_are_decoded_and_older_ones_too() -> None:
    for part in (
        InputPart(7, 0, True, 3, 1 << 63, 5, b"rows", b"mark"),
        InputPart(7, 0, True, 3, 1 << 63, 5, b"rows", b"mark", 1 << 50, b"late"),
    ):
        arguments = encode_part(part)
        record = Record(Op.INPUT, ints=arguments.ints, strings=arguments.strings)
        assert decode_input(record, where="d", at=9) == part
    assert len(encode_part(InputPart(7, 0, True, 3, 0, 5, b"rows")).ints) == 6, "as before there were any"
    mark = OriginMark(1 << 50, 3, 2, 1 << 49, 7, 1 << 63, 5, b"mark")
    arguments = encode_mark(mark)
    assert decode_mark(*arguments, where="d", at=9) == mark
    for ints in (arguments.ints[:6], (9, 1, 2, 0, 0, 0, 0), (9, 1, 0, 0, 0, 0, 0)):
        with pytest.raises(CorruptDataError, match="a mark of 7 ints"):
            decode_mark(ints, arguments.strings, where="d", at=9)
