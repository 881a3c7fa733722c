"""Faults of the proxy that concern bytes: each alone, on an echo."""

import pytest
import trio

from tests.support import proxy_pipes
from tests.support.echo import SHORT_S, dial, echoing, ending, exactly, silent, until
from tests.support.proxy import Ending, Way

pytestmark = pytest.mark.trio


async def test_without_a_rule_bytes_and_endings_pass() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        sent = bytes(range(256)) * 4_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, sent)
            assert await exactly(stream, len(sent)) == sent
        await stream.send_eof()
        assert await ending(stream) == (b"", Ending.FIN)
        await until(lambda: echo.endings == ["FIN"], "the server saw the end")
        await until(lambda: not proxy.connections, "the proxy forgot it")


async def test_a_partition_towards_the_server_holds_bytes_which_arrive_late() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        await stream.send_all(b"a")
        await exactly(stream, 1)
        with proxy.hold(Way.TO_SERVER):
            await stream.send_all(b"b")
            assert await silent(stream)
            assert echo.got == b"a"
        assert await exactly(stream, 1) == b"b"
        assert echo.got == b"ab"


async def test_a_partition_towards_the_client_holds_answers_which_arrive_late() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        with proxy.hold(Way.TO_CLIENT):
            await stream.send_all(b"a")
            await until(lambda: echo.got == b"a", "the server has it")
            assert await silent(stream)
        assert await exactly(stream, 1) == b"a"


async def test_a_partition_holds_new_connections_and_the_ends_of_old_ones() -> None:
    async with echoing() as (echo, proxy):
        old = await dial(proxy)
        await old.send_all(b"a")
        await exactly(old, 1)
        rule = proxy.hold()
        await old.aclose()
        new = await dial(proxy)
        await new.send_all(b"b")
        assert await silent(new)
        assert (echo.connections, echo.endings, echo.got) == (1, [], b"a")
        rule.end()
        assert await exactly(new, 1) == b"b"
        await until(lambda: echo.endings != [], "the server saw the first one's end")


async def test_a_partition_that_loses_bytes_ends_the_connections_that_lost_some() -> None:
    async with echoing() as (echo, proxy):
        loser, other = await dial(proxy), await dial(proxy)
        for stream in (loser, other):
            await stream.send_all(b"a")
            await exactly(stream, 1)
        with proxy.lose(Way.TO_CLIENT):
            await loser.send_all(b"b")
            await until(lambda: echo.got == b"aab", "the server has it")
            assert await silent(loser)
        assert await ending(loser) == (b"", Ending.RST)
        await other.send_all(b"c")
        assert await exactly(other, 1) == b"c"


async def test_a_stall_takes_nothing_so_that_the_sender_has_to_wait() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        rule = proxy.stall()
        sent = 0
        with trio.move_on_after(SHORT_S):
            while True:
                await stream.send_all(bytes(65_536))
                sent += 65_536
        assert sent < 64 << 20, "the sender was held up"
        assert not echo.got
        rule.end()
        await until(lambda: len(echo.got) > 0, "it continues")


async def test_a_partition_keeps_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_pipes, "held_bytes_max", 1 << 20)
    async with echoing() as (_, proxy):
        stream = await dial(proxy)
        with proxy.hold(Way.TO_SERVER):
            with trio.move_on_after(SHORT_S):
                while True:
                    await stream.send_all(bytes(65_536))
            (connection,) = proxy.connections
            assert connection._pipes[0]._queued <= (1 << 20) + proxy_pipes.piece_bytes_max


async def test_slow_has_the_requested_rate() -> None:
    async with echoing() as (_, proxy):
        stream = await dial(proxy)
        begin = trio.current_time()
        with proxy.slow(Way.TO_SERVER, bytes_per_s=100_000):
            await stream.send_all(bytes(20_000))
            await exactly(stream, 20_000)
        assert trio.current_time() - begin >= 0.2
        begin = trio.current_time()
        with proxy.slow(delay_s=0.1):
            await stream.send_all(b"x")
            await exactly(stream, 1)
        assert trio.current_time() - begin >= 0.2, "there and back"


@pytest.mark.parametrize("how", Ending)
@pytest.mark.parametrize("count", [0, 1, 10_000])
async def test_cut_after_the_kth_byte_towards_the_server(how: Ending, count: int) -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        await stream.send_all(b"before")
        await exactly(stream, 6)
        rule = proxy.cut_after(count, Way.TO_SERVER, ending=how)
        await stream.send_all(bytes(20_000))
        assert (await ending(stream))[1] is how
        await rule.done.wait()
        await until(lambda: echo.endings != [], "the server sees an end")
        assert len(echo.got) <= 6 + count
        if how is Ending.FIN:
            assert len(echo.got) == 6 + count
            assert echo.endings == ["FIN"]
        again = await dial(proxy)
        await again.send_all(b"z")
        assert await exactly(again, 1) == b"z", "one cut a rule"


async def test_cut_after_the_kth_byte_towards_the_client() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        proxy.cut_after(5, Way.TO_CLIENT, ending=Ending.FIN)
        await stream.send_all(b"0123456789")
        assert await ending(stream) == (b"01234", Ending.FIN)
        assert echo.got == b"0123456789"


@pytest.mark.parametrize("how", Ending)
async def test_cut_now(how: Ending) -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        await stream.send_all(b"a")
        await exactly(stream, 1)
        proxy.cut(how)
        assert await ending(stream) == (b"", how)
        await until(lambda: echo.endings == [how.name], "the server sees it too")


async def test_refused_connections_end_and_those_there_continue() -> None:
    async with echoing() as (echo, proxy):
        there = await dial(proxy)
        await there.send_all(b"a")
        await exactly(there, 1)
        with proxy.refuse():
            assert (await ending(await dial(proxy)))[0] == b""
            await there.send_all(b"b")
            assert await exactly(there, 1) == b"b"
        again = await dial(proxy)
        await again.send_all(b"c")
        assert await exactly(again, 1) == b"c"
        assert echo.connections == 2


async def test_heal_ends_all_rules_and_nothing_less() -> None:
    async with echoing() as (_, proxy):
        stream = await dial(proxy)
        first, _ = proxy.hold(Way.TO_CLIENT), proxy.stall(Way.TO_CLIENT)
        await stream.send_all(b"a")
        first.end()
        assert await silent(stream)
        proxy.heal()
        assert await exactly(stream, 1) == b"a"
        assert not proxy.rules


async def test_the_strictest_of_several_rules_counts() -> None:
    async with echoing() as (_, proxy):
        stream = await dial(proxy)
        _, losing = proxy.hold(Way.TO_CLIENT), proxy.lose(Way.TO_CLIENT)
        await stream.send_all(b"a")
        await until(lambda: any(one.torn for one in proxy.connections), "it is lost, not held")
        losing.end()
        assert await ending(stream) == (b"", Ending.RST)
