"""What counts as acknowledged, how much is remembered, and the window against a plain byte string."""

import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from dos_client import init_store, open_store
from dos_client.core.quorum import Quorums
from dos_client.core.window import (
    AppendTimes,
    Chunk,
    Milestones,
    SendWindow,
    append_frame,
    milestone_range,
    tag_of,
)
from dos_client.limits import (
    append_times_max,
    append_times_step_s,
    chunk_bytes_max,
    journal_lag_bytes_max,
    milestone_bytes,
    silence_ping_s,
    window_bytes_max,
    witness_again_s,
)
from dos_client.membership.replacing import add_spare, remove_spare
from dos_client.writing.object_writer import Waiters, WriteTarget
from dos_protocol.digests import prefix_digest
from dos_protocol.frames import FrameDecoder
from dos_protocol.limits import digest_block_bytes
from dos_protocol.messages import Append, decode
from dos_protocol.store_record import StoreRecord
from dos_server.testing import MemoryServer, Servers, memory_server, memory_store
from tests.dos_client.records import record, server_id
from tests.dos_client.support import ThreadServer, claimed, off, on, until, url_of

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


REPORTS = st.lists(
    st.tuples(st.sampled_from([A, B, C, J]), st.integers(0, 9), st.integers(0, 9)), max_size=30
)


@given(REPORTS, st.sampled_from([OLD, JOINING]))
def test_each_report_of_a_member_counts_for_the_quorum(
    reports: list[tuple[bytes, int, int]], quorums: Quorums
) -> None:
    # EVIDENCE-OF: P-5
    async def run() -> None:
        target = WriteTarget("x", 1, quorums, SendWindow(tail=bytes(20)))
        received, synced = dict[bytes, int](), dict[bytes, int]()
        for member, size, more in reports:
            synced[member], received[member] = size, size + more
            before = target.received, target.synced
            target.note(member, received[member], synced[member])
            assert target.received == max(before[0], quorums.watermark(received))
            assert target.synced == max(before[1], quorums.watermark(synced))

    trio.run(run)


@pytest.mark.trio
async def test_waiters_are_woken_when_their_size_is_reached() -> None:
    waiters, woken = Waiters(), list[int]()

    async def wait(size: int) -> None:
        await waiters.wait(size)
        woken.append(size)

    async with trio.open_nursery() as nursery:
        for size in (5, 9, 7):
            nursery.start_soon(wait, size)
        with trio.move_on_after(0):
            await waiters.wait(6)  # a wait that was cancelled is woken no more
        await wait_all_tasks_blocked()
        waiters.wake(5)
        waiters.wake(5)
        await wait_all_tasks_blocked()
        assert woken == [5]
        waiters.wake_all()
    assert sorted(woken) == [5, 7, 9]


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


BLOCK = digest_block_bytes
sizes = st.one_of(
    st.integers(0, 300),
    st.sampled_from(
        [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, chunk_bytes_max, chunk_bytes_max + 7, 5 * BLOCK]
    ),
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), sizes),
        st.tuples(st.just("take"), st.integers(0, 1 << 20)),
        st.tuples(st.just("digest"), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 1 << 20)),
    ),
    max_size=25,
)


def pattern(start: int, count: int) -> bytes:
    return (
        bytes((start + i) * 31 % 251 for i in range(count)) if count < 1000 else bytes([start % 251]) * count
    )


@given(actions)
def test_chunks_are_the_bytes_appended_and_carry_the_digest_before_them(
    script: list[tuple[str, int]],
) -> None:
    window, content = SendWindow(), b""
    for action, number in script:
        if action == "append":
            data = pattern(len(content), number)
            content += data
            assert window.append(data) == len(content)
        elif action == "take":
            check_from(window, content, min(max(number, window.base), len(content)))
        elif action == "digest":
            assert window.digest == prefix_digest(content)
        else:
            before = window.base
            window.trim(min(number, len(content)))
            assert before <= window.base <= max(before, number)
            assert window.base % BLOCK == 0
    assert window.size == len(content)
    check_from(window, content, window.base)
    assert window.digest == prefix_digest(content)


def check_from(window: SendWindow, content: bytes, offset: int) -> None:
    for chunk in window.chunks_from(offset):
        assert chunk.start == offset
        assert chunk.digest == prefix_digest(content[:offset])
        assert 0 < len(chunk.payload) <= chunk_bytes_max
        assert content[offset : offset + len(chunk.payload)] == chunk.payload
        offset = chunk.end
    assert offset == len(content)


@given(
    st.lists(st.integers(1, 3 * BLOCK), max_size=8), st.integers(0, 12 * BLOCK), st.integers(0, 12 * BLOCK)
)
def test_digests_within_the_window_are_those_of_the_content_and_below_it_unknown(
    cuts: list[int], trimmed: int, requested: int
) -> None:
    window, content = SendWindow(), b""
    for cut in cuts:
        content += pattern(len(content), cut)
        window.append(content[-cut:])
        list(window.chunks_from(window.base))
    window.trim(min(trimmed, len(content)))
    found = window.digest_at(requested)
    if window.base <= requested <= len(content):
        assert found == prefix_digest(content[:requested])
    else:
        assert found is None
        with pytest.raises(ValueError, match="outside the window"):
            list(window.chunks_from(requested))


def test_small_appends_between_two_takes_travel_as_one_chunk() -> None:
    window = SendWindow()
    for _ in range(1000):
        window.append(b"twenty bytes or so..")
    assert [len(chunk.payload) for chunk in window.chunks_from(0)] == [20_000]


def test_an_append_of_one_block_is_not_copied() -> None:
    block = bytes(BLOCK)
    window = SendWindow()
    window.append(block)
    assert next(iter(window.chunks_from(0))).payload is block


def test_what_may_change_later_is_copied() -> None:
    data = bytearray(b"abc")
    window = SendWindow()
    window.append(data)
    data[:] = b"xyz"
    assert next(iter(window.chunks_from(0))).payload == b"abc"


@given(st.integers(0, 3 * BLOCK), st.integers(0, 2 * BLOCK))
def test_a_window_continues_from_a_block_boundary_and_a_tail(before: int, more: int) -> None:
    content = pattern(0, before)
    base = before - before % BLOCK
    window = SendWindow(base, prefix_digest(content[:base]), content[base:])
    window.append(pattern(before, more))
    content += pattern(before, more)
    assert window.size == len(content)
    assert window.digest == prefix_digest(content)
    assert window.digest_at(before) == prefix_digest(content[:before])


@given(st.integers(0, (1 << 20) - 1), st.integers(0, 1 << 39), st.binary(min_size=1, max_size=99))
def test_an_append_is_a_frame_whose_id_tells_the_object(tag: int, start: int, payload: bytes) -> None:
    chunk = Chunk(start, 77, payload)
    buffers = append_frame("name", tag, chunk)
    assert append_frame("name", tag, chunk) is buffers
    decoder = FrameDecoder()
    decoder.receive(b"".join(buffers))
    frame = decoder.next_frame()
    assert frame is not None
    assert tag_of(frame.request_id) == tag
    assert decode(frame) == Append("name", start, 77, payload)
    assert tag_of(5) is None


def test_many_small_appends_cost_little_more_than_their_bytes() -> None:
    # EVIDENCE-OF: P-9
    window, record, sent = SendWindow(), bytes(100), 0
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20_000):
            window.append(record)
            for chunk in window.chunks_from(sent):  # one member takes each append as it comes
                append_frame("object", 1, chunk)
                sent = chunk.end
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert window.chunks_count < 2_000_000 // BLOCK + BLOCK // 100 + 2
    assert after - before < 2_000_000 * 1.1


steps = st.lists(st.tuples(st.integers(0, 9), st.floats(0, 3)), max_size=60)


@given(steps, st.integers(0, 300))
def test_an_age_is_never_too_young_and_never_older_than_the_sample_before(
    appends: list[tuple[int, float]], offset: int
) -> None:
    times, size, now, appended_at = AppendTimes(0.0), 0, 0.0, []
    for count, seconds in appends:
        now += seconds
        times.note(size, now)  # bytes are about to be appended
        appended_at += [now] * count
        size += count
    if offset < size:
        age = times.age(offset, now)
        assert age >= now - appended_at[offset] - 1e-9
        longest = max((seconds for _, seconds in appends), default=0)
        assert age <= now - appended_at[offset] + longest + append_times_step_s + 1e-9


def test_times_are_kept_in_bounded_memory_and_the_newest_exactly() -> None:
    # EVIDENCE-OF: P-9
    times = AppendTimes(0.0)
    for second in range(1, 100_000):
        times.note(second * 10, float(second))
    assert len(times) <= append_times_max + 1
    assert times.age(999_990, 100_000.0) == 1.0
    assert times.age(999_900, 100_000.0) == 10.0
    assert 100_000.0 - 10 <= times.age(5, 100_000.0) <= 100_000.0, "what is old is known roughly"


def test_milestones_follow_each_other_without_a_gap() -> None:
    found = Milestones()
    found.note(3 * milestone_bytes, 30)
    found.note(5 * milestone_bytes, 50)
    found.note(4 * milestone_bytes, 40)
    found.note(4 * milestone_bytes, 41)
    assert [found.at(place * milestone_bytes) for place in range(2, 6)] == [None, 30, 40, None]
    assert found.at(3 * milestone_bytes + 1) is None
    with pytest.raises(ValueError, match="a milestone must be at a multiple of"):
        found.note(7, 7)


@given(st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_a_stretch_goes_from_one_milestone_to_the_next_or_to_the_limit(offset: int, more: int) -> None:
    begin, end = milestone_range(offset, offset + more)
    assert begin % milestone_bytes == 0
    assert begin <= offset <= end <= begin + milestone_bytes
    assert end in (begin + milestone_bytes, offset + more)


@pytest.mark.trio
async def test_a_members_lag_is_told_in_bytes_and_seconds_and_disappears(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-10
    await init_store(url_of(three))
    async with claimed(three) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"seen by all"))
        await until(lambda: not any(one.lag_bytes for one in store.members()), "all have it")
        assert [one.lag_s for one in store.members()] == [0.0] * 3
        await off(three[2])
        begin = trio.current_time()
        await writer.wait_synced(writer.append(b"first missing"))

        def lagging() -> tuple[int, float, str]:
            one = next(one for one in store.members() if one.address == three[2].location)
            return one.lag_bytes, one.lag_s, one.state

        await until(lambda: lagging()[1] > 0.3, "it grows")
        await writer.wait_synced(writer.append(b"second"))
        lag_bytes, lag_s, state = lagging()
        assert (lag_bytes, state) == (len(b"first missingsecond"), "unavailable")
        assert 0.3 < lag_s <= trio.current_time() - begin + append_times_step_s, (
            "the age of the first byte, not of the last"
        )
        await on(three[2])
        await until(lambda: lagging() == (0, 0.0, "in sync"), "it has caught up")
