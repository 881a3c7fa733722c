"""What counts as acknowledged, and how much is remembered."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from dos_client import init_store, open_store
from dos_client.core.quorum import Quorums
from dos_client.core.window import SendWindow
from dos_client.limits import (
    chunk_bytes_max,
    journal_lag_bytes_max,
    silence_ping_s,
    window_bytes_max,
    witness_again_s,
)
from dos_client.membership.replacing import add_spare, remove_spare
from dos_client.writing.object_writer import Waiters, WriteTarget
from dos_protocol.store_record import StoreRecord
from dos_server.testing import MemoryServer, Servers, memory_server, memory_store
from tests.dos_client.records import record, server_id
from tests.dos_client.support import ThreadServer, claimed, until, url_of

A, B, C, J = (server_id(letter) for letter in "abcj")
OLD = Quorums(record("abc", 2))
JOINING = Quorums(record("abc", 2, 2, joining="j", after="c"))
NEW = Quorums(record("abj", 2, 3))


def target_of(size: int) -> WriteTarget:
    window = SendWindow()
    for _ in range(size // 65_536):
        window.append(bytes(65_536))
    window.append(bytes(size % 65_536))
    return WriteTarget("x", 1, OLD, window)


@pytest.mark.trio
async def test_received_is_not_synced() -> None:
    # EVIDENCE-OF: P-1
    target = target_of(100)
    target.note(A, 100, 40)
    target.note(B, 90, 30)
    assert (target.received, target.synced) == (90, 30)


@pytest.mark.trio
async def test_what_a_member_told_in_one_generation_does_not_count_in_the_next() -> None:
    # EVIDENCE-OF: P-4
    target = target_of(100)
    target.note(A, 100, 100)
    target.requorum(JOINING)
    target.note(J, 100, 100)
    target.requorum(NEW)
    assert target.synced == 0, "a told it in the first generation, j in the second, nobody in the third"
    target.note(A, 100, 100)
    assert target.synced == 0
    target.note(J, 100, 100)
    assert target.synced == 100


@pytest.mark.trio
async def test_what_was_acknowledged_stays_acknowledged() -> None:
    target = target_of(100)
    target.note(A, 100, 100)
    target.note(B, 100, 100)
    target.requorum(JOINING)
    target.note(A, 50, 50)
    assert target.synced == target.received == 100


@pytest.mark.trio
async def test_a_member_that_is_unavailable_keeps_no_more_than_the_window_in_memory() -> None:
    # EVIDENCE-OF: P-9
    target = target_of(3 * window_bytes_max)
    for size in range(0, 3 * window_bytes_max + 1, 65_536):
        target.note(A, size, size)
        target.note(B, size, size)
    assert target.window is not None
    assert target.window.retained_bytes <= window_bytes_max + (1 << 20)


@pytest.mark.trio
async def test_what_no_quorum_has_is_never_forgotten() -> None:
    # EVIDENCE-OF: P-5
    target = target_of(3 * window_bytes_max)
    target.note(A, 3 * window_bytes_max, 3 * window_bytes_max)
    target.trim(window_bytes_max)
    assert target.window is not None
    assert target.window.base == 0


@pytest.mark.trio
@pytest.mark.parametrize("more", [0, 1])
async def test_of_more_chunks_than_the_limit_a_quarter_of_the_window_is_kept(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    # EVIDENCE-OF: P-9
    target, keep = target_of(8 * 65_536), 4 * 65_536
    assert target.window is not None
    chunks = target.window.chunks_count - more
    monkeypatch.setattr("dos_client.writing.object_writer.window_chunks_max", chunks)
    for member in (A, B):
        target.note(member, 8 * 65_536, 8 * 65_536)
    target.trim(keep)
    assert target.window.base == 8 * 65_536 - (keep // 4 if more else keep)


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 1000)), max_size=20))
def test_the_quorum_watermark_never_goes_back(acks: list[tuple[bytes, int]]) -> None:
    async def run() -> None:
        target, last = target_of(1000), 0
        for member, size in acks:
            target.note(member, size, size)
            assert target.synced >= last
            last = target.synced

    trio.run(run)


def test_waiters_are_woken_when_their_size_is_reached() -> None:
    waiters = Waiters()
    low, high = waiters.add(5), waiters.add(9)
    waiters.wake(5)
    assert low.is_set()
    assert not high.is_set()
    waiters.wake_all()
    assert high.is_set()


@pytest.mark.trio
async def test_a_writer_without_a_quorum_is_held_back_at_the_lag_allowed(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-9
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"a"))
        for server in three[1:]:
            await trio.to_thread.run_sync(server.kill)
        await until(lambda: claim.waiting, "waiting")
        with trio.move_on_after(1.5) as scope:
            while True:
                writer.append(bytes(1 << 20))
                await writer.wait_room()
        assert scope.cancelled_caught
        assert journal_lag_bytes_max <= writer.size - writer.synced <= journal_lag_bytes_max + (1 << 20)
        await trio.to_thread.run_sync(three[1].restart)
        await writer.wait_room()


Story = Callable[[Servers[MemoryServer]], Awaitable[None]]


def run(story: Story, members: int = 3, seed: int = 1) -> None:
    async def main() -> None:
        async with memory_store(members, seed=seed) as servers:
            await story(servers)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("limit", [1, chunk_bytes_max, 2 * chunk_bytes_max + 1])
def test_an_ack_that_makes_room_continues_a_burst_that_nothing_is_appended_to(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The burst is longer than what may be in flight. Nobody appends or waits, so only acks can wake the
    link.
    """
    monkeypatch.setattr("dos_client.writing.claim.in_flight_bytes_max", limit)

    async def story(servers: Servers[MemoryServer]) -> None:
        async with open_store(servers.url) as store, await store.claim("d", 1, bytes(15) + b"w") as claim:
            log = claim.open_object("log")
            for _ in range(14):
                log.append(bytes(chunk_bytes_max))
            await trio.sleep(silence_ping_s - 1)  # a PING would wake the link, too
            assert log.synced == log.size == 14 * chunk_bytes_max

    run(story)


@pytest.mark.parametrize("changes", [0, 1, 2])
def test_a_view_is_of_the_record_in_use_when_the_last_member_answered(changes: int) -> None:
    """The record changes after members have answered, once, twice: their answers were counted by another
    record.
    """

    async def story(servers: Servers[MemoryServer]) -> None:
        asked: list[int] = []
        async with memory_server(seed=2) as spare, open_store(servers.url) as store:
            async with await store.claim("d", 1, bytes(15) + b"w") as claim:
                log = claim.open_object("log")
                await log.wait_synced(log.append(b"hello"))
            open_on_members = store._open_on_members

            async def answer_then_change(directory: str, record: StoreRecord) -> Any:
                found = await open_on_members(directory, record)
                asked.append(record.generation)
                if len(asked) <= changes:
                    change = remove_spare if record.spares else add_spare
                    await change(servers.url, **{"spare" if record.spares else "new": spare.address})
                    await store.wait_generation(record.generation + 1)
                return found

            store._open_on_members = answer_then_change
            view = await store.inspect("d")
        assert asked == [*range(1, changes + 2)]
        assert view.epoch_seen == 1

    run(story)


@pytest.mark.parametrize("members", [1, 3])
def test_a_session_that_ends_while_its_member_proves_a_stamp_delays_no_other_session(members: int) -> None:
    """Each claim makes a stamp, and its session ends at any moment of the proof. The member is sound."""

    async def story(servers: Servers[MemoryServer]) -> None:
        async with open_store(servers.url) as store:
            began = trio.current_time()
            for number in range(1, 31):
                async with await store.claim("d", number, number.to_bytes(16, "big")) as claim:
                    log = claim.open_object(f"log{number}")
                    if number % 3:
                        await log.wait_synced(log.append(b"short"))
                    await trio.sleep(number % 5 / 1_000)
                view = await store.inspect("d")
                assert view.epoch_seen == number
            assert trio.current_time() - began < witness_again_s, "nobody waited for a proof to be repeated"

    run(story, members)
