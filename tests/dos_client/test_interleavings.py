"""Orders of completions under the shells of the client: what must hold in every one of them, on servers in
memory.

Each test repeats its story with another order of events, or asks for the order that is easily forgotten: the
event that nobody waits for any more, or the one that comes between two steps.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dos_client import open_store
from dos_client.limits import chunk_bytes_max, silence_ping_s, witness_again_s
from dos_client.membership.replacing import add_spare, remove_spare
from dos_protocol.store_record import StoreRecord
from dos_server.testing import MemoryServer, Servers, memory_server, memory_store

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
