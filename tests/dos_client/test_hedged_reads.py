"""Reads go on when a member is slow or stopped, cost little when none is, and late answers hurt nobody.

Real servers behind proxies, stopped processes, or servers in memory with a virtual clock."""

import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dos_client import init_store, open_store
from dos_client.limits import (
    answers_owed_max,
    hedge_burst,
    hedge_order_samples,
    hedge_sample_age_s,
    hedge_share,
    read_timeout_s,
)
from dos_client.live_store import Store
from dos_client.reading.member_queries import MemberAnswers, MemberQuery, query_members
from dos_client.sessions.connection import Connection
from dos_server.testing import memory_store
from tests.dos_client.support import Threads, ThreadServer, claimed, has, until, url_of
from tests.support.proxy import Proxy, Way, proxies
from tests.support.servers import ServerProcess

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
async def test_reads_continue_when_a_member_is_stopped(three_servers: list[ServerProcess]) -> None:
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
            while store.readers.owed(member, "d") == 0:
                await read_times(store, content, 1)
        owed = store.readers.owed(member, "d")
        assert 0 < owed <= answers_owed_max
        await read_times(store, content, 50)
        assert store.readers.owed(member, "d") <= answers_owed_max, "one that owes is asked last"
        rule.end()
        await until(lambda: store.readers.owed(member, "d") == 0, "late answers came, and were dropped")
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


class Latencies:
    """The latencies from host to host of a network in memory, and how much was sent to each host."""

    def __init__(self, network: Any, usual_s: float) -> None:
        self.usual_s = usual_s
        self.from_host: dict[str, float] = {}
        self.messages_to: Counter[str] = Counter()
        network._latency_s = self.latency_s

    def latency_s(self, source: str, target: str) -> float:
        self.messages_to[target] += 1
        return self.from_host.get(source, self.usual_s)


@pytest.mark.parametrize("usual_s", [0.0005, 0.002, 0.01, 0.03])
async def test_a_slow_member_is_left_to_itself_and_tried_again(
    autojump_clock: MockClock, usual_s: float
) -> None:
    """By the virtual clock, so that only the decisions count, on fast networks and on slow ones."""
    del autojump_clock
    async with memory_store(seed=1) as servers, open_store(servers.url) as store:
        content = bytes(range(256)) * (16 * SIZE // 256)
        async with await store.claim("d", 1, b"w" * 16) as claim:
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(content))
            await until(lambda: all(one.connected for one in store.members()), "all connected")
            await trio.sleep(1)  # all three have it
        slow = servers[2].address.partition(":")[0]
        network = Latencies(servers[2].host.network, usual_s)
        await read_times(store, content, 60)
        network.from_host[slow] = 2 * SLOW_S
        times = await read_times(store, content, 300)
        assert sum(seconds > SLOW_S for seconds in times) <= hedge_order_samples // 2
        network.messages_to.clear()
        await read_times(store, content, 60)
        assert network.messages_to[slow] <= 5, "it is left to itself, but for what is sent at intervals"
        del network.from_host[slow]
        await trio.sleep(hedge_sample_age_s + 1)
        network.messages_to.clear()
        await read_times(store, content, 60)
        assert network.messages_to[slow] > 5, "it is tried again"


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
