"""Reads go on when a member is slow or stopped, cost little when none is, and late answers hurt nobody.

Real servers behind proxies, or stopped processes."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from dos_client import init_store, open_store
from dos_client.limits import answers_owed_max, hedge_burst, hedge_share, read_timeout_s
from dos_client.live_store import Store
from dos_client.reading.member_queries import MemberAnswers, MemberQuery, query_members
from dos_client.sessions.connection import Connection
from tests.dos_client.support import Threads, ThreadServer, claimed, has, until, url_of
from tests.support.proxy import Proxy, Way, proxies
from tests.support.servers import ServerProcess, three_servers  # noqa: F401

pytestmark = pytest.mark.trio
SIZE = 65_536
SLOW_S = 0.25
"""Far more than a read takes here even on a busy machine, far less than a stopped member would make it."""


async def filled(url: str, servers: list[ThreadServer] | list[ServerProcess]) -> bytes:
    content = os.urandom(16 * SIZE)
    await init_store(url)
    async with claimed(servers, url=url) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(content[: len(content) // 2]))
        await writer.wait_synced(writer.append(content[len(content) // 2 :]))
        for server in servers:
            await has(server, "d", "x", content)
    return content


@asynccontextmanager
async def filled_behind_proxies(servers: Threads) -> AsyncGenerator[tuple[list[Proxy], Store, bytes]]:
    """A filled store that is reached through proxies: these, the store, and its content."""
    async with proxies(servers) as between:
        content = await filled(url_of(between), servers)
        async with open_store(url_of(between)) as store:
            yield between, store, content


async def read_times(store: Store, content: bytes, count: int) -> list[float]:
    """Seconds of reads of 64 KiB, each checked."""
    times = []
    for number in range(count):
        offset = number % 16 * SIZE
        begin = trio.current_time()
        assert await store.read("d", "x", offset, SIZE) == content[offset : offset + SIZE]
        times.append(trio.current_time() - begin)
    return times


@pytest.mark.process
async def test_reads_continue_when_a_member_is_stopped(three_servers: list[ServerProcess]) -> None:  # noqa: F811
    # EVIDENCE-OF: P-10
    content = await filled(url_of(three_servers), three_servers)
    async with open_store(url_of(three_servers)) as store:
        await until(lambda: all(one.connected for one in store.members()), "all connected")
        await read_times(store, content, 60)
        times = []
        for server in three_servers:
            server.pause()
            try:
                times += await read_times(store, content, 70)
            finally:
                server.resume()
        assert sum(seconds > SLOW_S for seconds in times) <= 2, "the 99th percentile is near the normal one"
        assert max(times) < read_timeout_s / 2
        assert b"".join([data async for data in store.stream("d", "x")]) == content


async def test_hedges_keep_to_their_budget_when_all_is_well(three: Threads) -> None:
    # EVIDENCE-OF: P-9
    content = await filled(url_of(three), three)
    async with open_store(url_of(three)) as store:
        await read_times(store, content, 300)
        assert store.counts.questions == 300
        assert store.counts.hedges <= hedge_burst + hedge_share * 300


async def test_answers_that_nobody_waits_for_are_dropped_when_they_come(three: Threads) -> None:
    # EVIDENCE-OF: P-9, P-10
    async with filled_behind_proxies(three) as (between, store, content):
        await until(lambda: all(one.connected for one in store.members()), "all connected")
        await read_times(store, content, 30)
        member = store.record.members[0]
        session = await store.reader(member, "d")
        rule = between[0].hold(Way.TO_CLIENT)
        with trio.move_on_after(20):
            while store.owed(member, "d") == 0:
                await read_times(store, content, 1)
        owed = store.owed(member, "d")
        assert 0 < owed <= answers_owed_max
        await read_times(store, content, 50)
        assert store.owed(member, "d") <= answers_owed_max, "one that owes is asked last"
        rule.end()
        await until(lambda: store.owed(member, "d") == 0, "late answers came, and were dropped")
        assert await store.reader(member, "d") is session, "the session lives"
        assert await session.get("x", 0, 10) == content[:10]


async def test_a_member_that_owes_too_much_is_not_asked(three: Threads) -> None:
    # EVIDENCE-OF: P-9
    async with filled_behind_proxies(three) as (between, store, content):
        member = store.record.members[0]
        session = await store.reader(member, "d")
        rule = between[0].hold(Way.TO_CLIENT)
        for _ in range(answers_owed_max):
            with trio.move_on_after(0.001):
                await session.get("x", 0, 10)

        async def ask(connection: Connection) -> bytes:
            return await connection.get("x", 0, 10)

        def judge(answers: MemberAnswers[bytes]) -> tuple[int, bool]:
            return 1 - len(answers.given), False

        question = MemberQuery("d", "x", 10, ask, judge)
        answers = await query_members(store, [[member]], question)
        assert "still owes 8 answers" in str(answers.failed[member.server_id])
        rule.end()
        await until(lambda: session.owed == 0, "they came")
        assert (await query_members(store, [[member]], question)).given == {member.server_id: content[:10]}


async def test_a_slow_member_is_left_to_itself_and_tried_again(three: Threads) -> None:
    async with filled_behind_proxies(three) as (between, store, content):
        await until(lambda: all(one.connected for one in store.members()), "all connected")
        await read_times(store, content, 60)
        with between[2].slow(Way.TO_CLIENT, delay_s=SLOW_S):
            times = await read_times(store, content, 150)
        assert sum(seconds > SLOW_S for seconds in times) <= 2
        assert max(times) < read_timeout_s / 2


async def test_a_take_over_reads_past_a_member_that_falls_silent(three: Threads) -> None:
    # EVIDENCE-OF: P-10
    async with proxies(three) as between:
        url = url_of(between)
        content = await filled(url, three)
        async with claimed(three, url=url, epoch=2) as (_, claim):
            await until(lambda: len(claim.answers) == 3, "all claimed")
            for proxy in between:
                with proxy.hold(Way.TO_CLIENT):
                    begin = trio.current_time()
                    for number in range(32):
                        offset = number % 16 * SIZE
                        assert await claim.read("x", offset, SIZE) == content[offset : offset + SIZE]
                    assert trio.current_time() - begin < read_timeout_s / 2
