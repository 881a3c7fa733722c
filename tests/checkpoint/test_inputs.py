"""Input handles: which parts of a producer's chain count, and the chain itself on real servers in memory."""

import random
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest
import trio
from trio.testing import MockClock

from checkpoint import limits
from checkpoint.chains.input_log import InputFollower, InputHandle, InputLog, close_input
from checkpoint.core.records.inputs import (
    BatchDecision,
    BatchNotKept,
    InputPart,
    InputPiece,
    InputSequence,
    decode_part,
    encode_part,
    judge_batch,
    producer_directory,
    producers_among,
)
from checkpoint.errors import InputClosedError
from dos_client import Store, open_store
from dos_protocol.errors import BadNameError, CorruptDataError, FencedError, LocalProtocolError
from dos_server.testing import MemoryServer, Servers, memory_store

InMemory = Servers[MemoryServer]


def on_servers(test: Callable[..., Coroutine[object, object, None]]) -> Callable[[], None]:
    """Three servers in memory, virtual time, and a store opened on them."""

    @wraps(test)
    def run() -> None:
        async def main() -> None:
            async with memory_store() as servers, open_store(servers.url) as store:
                await test(store, servers)

        trio.run(main, clock=MockClock(autojump_threshold=0))

    del run.__wrapped__  # type: ignore[attr-defined] # or pytest takes its arguments for fixtures
    return run


async def all_of(follower: InputFollower) -> list[InputPiece]:
    return [piece async for piece in follower.poll()]


def opened(store: Store, producer: str = "p1") -> Coroutine[object, object, InputLog]:
    return InputLog.open(store, "app", "orders", producer)


def follower(store: Store, producer: str = "p1", *, at: int = 0, digest: int = 0) -> InputFollower:
    return InputFollower(store, "app", "orders", producer, at=at, digest=digest)


async def record(log: InputLog, number: int) -> None:
    await log.append([(1, b"late")], number=number)
    await log.recorded(number)


@on_servers
async def test_a_batch_counts_when_it_is_recorded_and_is_read_once(store: Store, servers: InMemory) -> None:
    reader = follower(store)
    assert await all_of(reader) == []
    async with await opened(store) as log:
        assert (log.last, log.last_mark) == (0, b"")
        assert await log.append([(2, b"one"), (1, b"two")], number=1, mark=b"a") is BatchDecision.APPEND
        end = await log.recorded(1)
        first = await all_of(reader)
        assert [(piece.rows, piece.data) for piece in first] == [(2, b"one"), (1, b"two")]
        assert first[-1].end == end
        assert await log.append([(1, b"again")], number=1) is BatchDecision.DISCARD
        for number in range(2, 50):
            await log.append([(1, b"%d" % number)], number=number)
        await log.recorded(49)
    rest = await all_of(reader)
    assert [piece.data for piece in rest] == [b"%d" % number for number in range(2, 50)]
    assert await all_of(reader) == []
    assert [piece.begin for piece in rest[1:]] == [piece.end for piece in rest[:-1]]
    middle = first[0]
    assert await all_of(follower(store, at=middle.end, digest=middle.digest)) == [first[1], *rest]


@on_servers
async def test_a_producer_that_died_in_a_batch_begins_it_anew_and_knows_where_it_ended(
    store: Store, servers: InMemory
) -> None:
    reader = follower(store)
    async with await opened(store) as log:
        await log.append([(1, b"whole")], number=1, mark=b"at 1")
        await log.recorded(1)
    died = await opened(store)
    with trio.CancelScope() as scope:
        scope.cancel()
        await died.append([(1, bytes(limits.input_part_bytes_max)), (1, b"never")], number=2)
    await trio.sleep(5)  # virtual time: the first part is on the servers
    assert [piece.data for piece in await all_of(reader)] == [b"whole"]
    log = await opened(store)
    with pytest.raises(FencedError):
        await record(died, 2)
    assert (log.last, log.last_mark) == (1, b"at 1")
    await log.append([(1, b"anew"), (1, b"second")], number=2, mark=b"at 2")
    await log.recorded(2)
    assert [piece.data for piece in await all_of(reader)] == [b"anew", b"second"]
    again = await opened(store)
    assert (again.last, again.last_mark, again.last_end) == (2, b"at 2", reader.seen)
    assert [piece.data for piece in await all_of(follower(store))] == [b"whole", b"anew", b"second"]


@on_servers
async def test_the_latest_position_is_behind_the_last_whole_batch(store: Store, servers: InMemory) -> None:
    handle = InputHandle(store, "app", "orders")
    assert await handle.latest() == {}
    await opened(store, "p0")
    log = await opened(store)
    assert await handle.latest() == {}, "nothing was recorded"
    for number in (1, 2):
        await log.append([(1, b"old"), (1, b"%d" % number)], number=number)
    await log.recorded(2)
    latest = await handle.latest()
    assert latest.keys() == {"p1"}
    reader = handle.follower("p1", latest["p1"])
    assert await all_of(reader) == []
    died = await opened(store)
    await died.append([(1, b"of a batch"), (1, b"that is cut short")], number=3)
    async with await opened(store) as log:
        await log.append([(1, b"new")], number=3 + (log.last == 3))
        await log.recorded(log.last)
    assert (await all_of(reader))[-1].data == b"new", "the position has the digest of what is before it"


@on_servers
async def test_a_batch_larger_than_memory_is_read_a_second_time(store: Store, servers: InMemory) -> None:
    parts = [(1, bytes([number]) * 10_000) for number in range(20)]
    async with await opened(store) as log:
        await log.append([(1, b"before")], number=1)
        await log.append(parts, number=2)
        await log.append([(1, b"after")], number=3)
        await log.recorded(3)
    found = await all_of(InputFollower(store, "app", "orders", "p1", pending_bytes_max=100_000))
    assert [piece.data for piece in found] == [b"before", *(data for _, data in parts), b"after"]
    assert [piece.begin for piece in found[1:]] == [piece.end for piece in found[:-1]]


@on_servers
async def test_reading_continues_with_a_server_lost_and_over_segments(
    store: Store, servers: InMemory
) -> None:
    reader = follower(store)
    sent = []
    for incarnation in range(4):
        async with await opened(store) as log:
            assert log.last == 3 * incarnation
            for number in range(3 * incarnation + 1, 3 * incarnation + 4):
                await log.append([(1, b"%d" % number)], number=number)
                sent.append(b"%d" % number)
            await log.recorded(3 * incarnation + 3)
        if incarnation == 1:
            servers[0].crash()
        if incarnation == 2:
            assert [piece.data for piece in await all_of(reader)] == sent
    assert [piece.data for piece in await all_of(reader)] == sent[9:]


@on_servers
async def test_a_closed_handle_names_the_place_every_producer_ended_and_takes_no_other(
    store: Store, servers: InMemory
) -> None:
    assert await InputHandle(store, "app", "orders").ends() is None
    first = await opened(store, "p1")
    await first.append([(1, b"x")], number=1)
    await first.recorded(1)
    second = await opened(store, "p2")
    assert await InputHandle(store, "app", "orders").splits() == ["p1", "p2"]
    ends = await close_input(store, "app", "orders")
    assert ends.producers == {"p1": first.last_end, "p2": 0}
    assert await InputHandle(store, "app", "orders").ends() == ends.producers
    for log, number in ((first, 2), (second, 1)):
        with pytest.raises(FencedError):
            await record(log, number)
    for producer in ("p1", "p3"):
        with pytest.raises(InputClosedError, match="input 'orders' is closed"):
            await opened(store, producer)
    assert (await close_input(store, "app", "orders")).producers == {**ends.producers, "p3": 0}


@on_servers
async def test_a_handle_is_closed_while_an_entry_point_takes_over_and_members_leave_for_a_moment(
    store: Store, servers: InMemory
) -> None:
    """Both try again for a while before they report that too few members are available."""
    rng, closed = random.Random(5), trio.Event()

    async def entry_point(client: Store) -> None:
        while not closed.is_set():
            try:
                async with await opened(client, "p1") as log:
                    await record(log, log.last + 1)
                    await trio.sleep(rng.uniform(0, 0.1))
            except FencedError:
                continue
            except InputClosedError:
                return

    async def outages() -> None:
        while not closed.is_set():
            for number in (1, 2):
                servers[number].crash()
            await trio.sleep(rng.uniform(3, 7))
            for number in (1, 2):
                await servers[number].restart()
            await trio.sleep(rng.uniform(1, 2))

    async with open_store(servers.url) as other, trio.open_nursery() as nursery:
        await (await opened(store, "p1")).aclose()
        nursery.start_soon(entry_point, other)
        nursery.start_soon(outages)
        try:
            ends = await close_input(store, "app", "orders")
        finally:
            closed.set()
    assert await InputHandle(store, "app", "orders").ends() == ends.producers


def parts_of(seed: int) -> tuple[list[tuple[InputPart, int, int]], list[bytes]]:
    """Batches of random parts with torn ones between: the records, and the data that counts."""
    rng = random.Random(seed)
    records, counts, at, digest = [], [], 0, 0
    for batch in range(1, 12):
        wanted = rng.randint(1, 4)
        for _ in range(rng.randint(0, 2)):
            running = digest
            for index in range(rng.randint(0, wanted - 1)):
                part = InputPart(batch, index, False, 1, running, 0, rng.randbytes(5))
                records.append((part, at, at := at + 10))
                running = part.digest
        for index in range(wanted):
            data = rng.randbytes(5)
            part = InputPart(batch, index, index == wanted - 1, 1, digest, 0, data)
            records.append((part, at, at := at + 10))
            digest = part.digest
            counts.append(data)
    return records, counts


@pytest.mark.parametrize("seed", range(20))
def test_from_any_position_given_out_reading_continues_with_what_follows(seed: int) -> None:
    records, counts = parts_of(seed)
    line, given = InputSequence("p"), []
    for record in records:
        pieces = line.add(*record)
        assert not isinstance(pieces, BatchNotKept)
        given += pieces
    assert [piece.data for piece in given] == counts
    for index, stand in enumerate(given):
        later = InputSequence("p", at=stand.end, digest=stand.digest)
        rest: list[InputPiece] = []
        for part, begin, end in records:
            if begin >= stand.end:
                pieces = later.add(part, begin, end)
                assert not isinstance(pieces, BatchNotKept)
                rest += pieces
        assert rest == given[index + 1 :]


def test_an_input_that_is_another_one_is_refused() -> None:
    records, _ = parts_of(3)
    stand = 3
    line = InputSequence("p", at=records[stand][1], digest=12345)
    with pytest.raises(CorruptDataError, match="after digest 0000000000003039"):
        line.add(*records[stand])


def test_numbers_decide_what_becomes_of_a_batch() -> None:
    assert judge_batch(4, 3) is BatchDecision.APPEND
    assert judge_batch(3, 3) is BatchDecision.DISCARD
    with pytest.raises(LocalProtocolError, match="batch 5 cannot follow batch 3"):
        judge_batch(5, 3)
    with pytest.raises(LocalProtocolError, match="begin at 1, got 0"):
        judge_batch(0, 3)


def test_a_part_survives_its_record_and_nonsense_is_refused() -> None:
    part = InputPart(7, 0, True, 3, 1 << 63, 5, b"rows", b"mark")
    record = encode_part(part)
    assert decode_part(*record, where="d", at=9) == part
    with pytest.raises(CorruptDataError, match="a part of 6 ints"):
        decode_part(record.ints[:5], record.strings, where="d", at=9)
    with pytest.raises(CorruptDataError, match="a batch from 1"):
        decode_part((0, *record.ints[1:]), record.strings, where="d", at=9)


def test_names_tell_which_directory_is_whose() -> None:
    names = ["a.in.h.p", "a.in.h", "a.in.h.x.in.h.p", "a.in.hh.p", "a.in.h.", "b.a.in.h.p", "a.in.h.q"]
    assert producers_among(names, "a", "h") == ["p", "q"]
    for handle, producer in (("h.x", "p"), ("h", "p.q"), ("", "p"), ("h", ""), ("h", "-p")):
        with pytest.raises(BadNameError, match="consists of letters"):
            producer_directory("a", handle, producer)


@on_servers
async def test_who_waits_is_notified_of_a_batch_as_soon_as_it_is_recorded(
    store: Store, servers: InMemory
) -> None:
    reader = follower(store)
    async with await opened(store) as log:
        await record(log, 1)
        assert len(await all_of(reader)) == 1
        begin = trio.current_time()
        await reader.wait(5.0)
        assert trio.current_time() - begin == pytest.approx(5.0), "nothing came"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.wait, 5.0)
            await record(log, 2)
            begin = trio.current_time()
        assert trio.current_time() - begin < 0.5
        begin = trio.current_time()
        await reader.wait(5.0)
        assert trio.current_time() - begin == pytest.approx(5.0), (
            "it is notified once of what it does not take"
        )
        assert [piece.data for piece in await all_of(reader)] == [b"late"]
    async with await opened(store) as log:
        begin = trio.current_time()
        await record(log, 3)
        await reader.wait(5.0)
        assert trio.current_time() - begin < 6.0
        assert len(await all_of(reader)) == 1, "a new segment is found when the time is up"
    reader.close()
