"""Following an object: every byte once, in order, only what a quorum holds, even if members die."""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
import trio

from dos_client import init_store, open_store, replace_member
from dos_client.limits import reader_sessions_max, silence_broken_s
from dos_client.live_store import Store
from dos_client.reading import member_queries
from dos_client.reading.member_queries import ReaderSession
from dos_client.sessions.members import WitnessedStore
from dos_protocol.digests import prefix_digest
from dos_protocol.store_record import Member
from tests.dos_client.support import Threads, claimed, has, new_writer, record_of, until, url_of
from tests.support.proxy import proxies
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.trio


class Follower:
    """Collects what a store's follower gives."""

    def __init__(self, offset: int) -> None:
        self.found = bytearray()
        self.offset = offset

    async def run(self, store: Store) -> None:
        async with aclosing(store.follow("d", "x", self.offset)) as stream:
            async for data in stream:
                assert data, "nothing is no news"
                self.found += data

    async def has(self, count: int) -> None:
        await until(lambda: len(self.found) >= count, f"{count} bytes followed")


@asynccontextmanager
async def followed(url: str, *offsets: int) -> AsyncIterator[list[Follower]]:
    """Followers from these offsets, in a store of their own."""
    followers = [Follower(offset) for offset in offsets]
    async with open_store(url) as store, trio.open_nursery() as nursery:
        for follower in followers:
            nursery.start_soon(follower.run, store)
        yield followers
        nursery.cancel_scope.cancel()


@pytest.mark.process
async def test_a_follower_sees_every_byte_once_while_members_die_in_turn(
    three_servers: list[ServerProcess],
) -> None:
    # EVIDENCE-OF: P-2, P-10
    url = url_of(three_servers)
    await init_store(url)
    acknowledged = 0
    async with followed(url, 0, 100_001) as followers, claimed(three_servers) as (_, claim):
        writer = claim.open_object("x")
        content = b""

        async def append(count: int) -> None:
            nonlocal content, acknowledged
            for number in range(count):
                content += record_of(len(content) // 1_000 + number)
                writer.append(content[writer.size :])
                if number % 10 == 0:
                    await writer.wait_synced(writer.size)
                    acknowledged = writer.synced

        await append(200)
        for server in three_servers:
            await trio.to_thread.run_sync(server.kill)
            await append(200)
            for follower in followers:
                await follower.has(acknowledged - follower.offset)
            await trio.to_thread.run_sync(server.restart)
            await append(100)
        await writer.wait_synced(writer.size)
        for follower in followers:
            await follower.has(len(content) - follower.offset)
            assert follower.found == content[follower.offset :]


async def test_a_tail_that_a_take_over_leaves_out_was_never_shown(three: Threads) -> None:
    # EVIDENCE-OF: P-2, P-4
    url = url_of(three)
    await init_store(url)
    before = record_of(1) * 100
    async with followed(url, 0) as (follower,):
        async with claimed(three) as (_, claim):
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(before))
            await follower.has(len(before))
            three[1].kill()
            three[2].kill()
            writer.append(b"never acknowledged")
            await has(three[0], "d", "x", before + b"never acknowledged")
        three[0].kill()
        three[1].restart()
        three[2].restart()
        async with claimed(three, epoch=2) as (_, claim):
            base = len(before) - len(before) % 65_536
            again = claim.resume_object("x", base, prefix_digest(before[:base]), before[base:])
            await again.wait_synced(again.append(b"acknowledged"))
            await follower.has(len(before) + 12)
            three[0].restart()
            await again.wait_synced(again.append(b", and more"))
            await follower.has(len(before) + 22)
            assert follower.found == before + b"acknowledged, and more"


async def test_an_object_may_come_later_and_bytes_come_soon(three: Threads) -> None:
    await init_store(url_of(three))
    async with followed(url_of(three), 0, 3) as followers, claimed(three) as (_, claim):
        writer = claim.open_object("x")
        for number in range(20):
            await writer.wait_synced(writer.append(b"%d," % number))
            for follower in followers:
                await follower.has(writer.synced - follower.offset)
        assert followers[0].found == b"".join(b"%d," % number for number in range(20))
        assert followers[1].found == followers[0].found[3:]


async def test_a_follower_survives_the_replacement_of_the_store_record(three: Threads) -> None:
    await init_store(url_of(three[:2]), ack_quorum=2)
    content = os.urandom(300_000)
    async with followed(url_of(three[:2]), 0) as (follower,), claimed(three[:2]) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(content[:100_000]))
        await follower.has(100_000)
        await replace_member(url_of(three[:2]), old=three[0].location, new=three[2].location)
        await writer.wait_synced(writer.append(content[100_000:]))
        await follower.has(300_000)
        assert follower.found == content


async def test_more_directories_are_followed_than_sessions_are_kept(three: Threads) -> None:
    # EVIDENCE-OF: P-9, P-10
    await init_store(url_of(three))
    names = [f"d{number:02d}" for number in range(reader_sessions_max // 3 + 4)]
    found = dict.fromkeys(names, b"")
    async with open_store(url_of(three)) as store, trio.open_nursery() as nursery:

        async def follow(name: str) -> None:
            async with aclosing(store.follow(name, "x")) as stream:
                async for data in stream:
                    found[name] += data

        for name in names:
            nursery.start_soon(follow, name)
        for round_ in range(2):
            for name in names:
                async with await store.claim(name, 1 + round_, new_writer()) as claim:
                    writer = claim.resume_object("x", 0, 0, b"one") if round_ else claim.open_object("x")
                    await writer.wait_synced(writer.append(b"two" if round_ else b"one"))
        await until(lambda: set(found.values()) == {b"onetwo"}, "all are followed")
        nursery.cancel_scope.cancel()


async def test_more_reads_at_once_than_sessions_are_kept_do_not_end_the_sessions_of_each_other(
    three: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await init_store(url_of(three))
    made = Counter[tuple[str, str]]()

    class CountedSession(ReaderSession):
        def __init__(self, store: WitnessedStore, member: Member, directory: str) -> None:
            super().__init__(store, member, directory)
            made[member.address, directory] += 1

    monkeypatch.setattr(member_queries, "ReaderSession", CountedSession)
    names = [f"d{number:02d}" for number in range(2 * reader_sessions_max)]
    async with open_store(url_of(three)) as store:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(store.inspect, name)
        assert {directory for _, directory in made} == {*names}
        assert max(made.values()) == 1, "none was ended while it was in use"
        for name in names:  # one after the other: those that nobody uses end again
            await store.inspect(name)
        assert len(store.readers) <= reader_sessions_max + len(three)


@pytest.mark.parametrize("fault", ["hold", "stall", "lose"])
async def test_a_follower_continues_past_a_member_that_falls_silent(three: Threads, fault: str) -> None:
    # EVIDENCE-OF: P-10
    async with proxies(three) as between:
        await init_store(url_of(between))
        content = b""
        async with (
            followed(url_of(between), 0) as (follower,),
            claimed(three, url=url_of(between)) as (_, claim),
        ):
            writer = claim.open_object("x")
            for proxy in between:
                content += os.urandom(100_000)
                await writer.wait_synced(writer.append(content[writer.size :]))
                await follower.has(writer.size)
                with getattr(proxy, fault)():
                    begin = trio.current_time()
                    for _ in range(5):
                        content += os.urandom(50_000)
                        await writer.wait_synced(writer.append(content[writer.size :]))
                        await follower.has(writer.size)
                    assert trio.current_time() - begin < silence_broken_s
            assert follower.found == content
