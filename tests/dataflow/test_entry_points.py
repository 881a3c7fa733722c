"""Entry points on a store in memory and real sockets: fail-over, marks, new origins, clocks, refusals."""

import time
from contextlib import AsyncExitStack
from functools import partial

import pyarrow as pa
import pytest
import trio

from checkpoint import limits as checkpoint_limits
from checkpoint.chains.input_log import InputHandle, close_input
from checkpoint.core.records.inputs import EntrySettings
from checkpoint.core.records.manifest import SplitPosition
from checkpoint.errors import EntryRefusedError, InputClosedError
from dataflow import InputSource, limits
from dataflow.producing import EntryPoints, open_producer
from dataflow.sources.prefetched import Reading
from dos_client import init_store, live_store, open_store
from dos_protocol.errors import FencedError
from dos_server.testing import memory_store
from tests.dataflow.entry_sites import SCHEMA, Reader, marked_until, numbers, rows_of, site, status_of, until
from tests.support.examples import run_example
from tests.support.proxy import proxies
from tests.support.servers import ServerProcess, three_servers

__all__ = ["three_servers"]


@pytest.mark.trio
async def test_rows_get_their_time_once_and_two_readers_read_the_same() -> None:
    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        open_store(servers.url) as other,
        site(store) as one,
        open_producer(EntryPoints(one.address), "app", "loads", "p1", SCHEMA) as producer,
    ):
        before = time.time_ns() // 1000
        for number in range(5):
            await producer.send(numbers(number, number), mark=b"%d" % number)
        assert await producer.wait_recorded() > 0
        assert producer.last[:2] == (5, b"4")
        first, second = await Reader(store).read(), await Reader(other).read()
        assert first.rows("p1") == second.rows("p1")
        times = [at for at, _ in first.rows("p1")]
        assert [row for _, row in first.rows("p1")] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert times == sorted(times)
        assert before <= times[0] <= times[-1] <= time.time_ns() // 1000
        await marked_until(first, time.time_ns() // 1000), "marks without rows"


@pytest.mark.trio
async def test_a_producer_continues_at_another_entry_point_with_each_batch_recorded_once() -> None:
    async with memory_store() as servers, open_store(servers.url) as store, open_store(servers.url) as other:
        readers = Reader(store), Reader(other)
        async with site(store, "s1") as one, site(other, "s2") as two:
            points = EntryPoints(f"{one.address},{two.address}")
            async with open_producer(points, "app", "loads", "p1", SCHEMA) as producer:
                await producer.wait_recorded(await producer.send(numbers(0)))
                for number in range(1, 40):
                    await producer.send(numbers(number))
                    if number == 20:
                        await producer.wait_recorded(10)
                        one.kill()
                await producer.wait_recorded()
                assert (await status_of(two)).attended == ("p1",)
                for reader in readers:
                    await reader.read()
            assert readers[0].rows("p1") == readers[1].rows("p1")
            assert [row for _, row in readers[0].rows("p1")] == list(range(40))
            times = [at for at, _ in readers[0].rows("p1")]
            assert times == sorted(set(times))


@pytest.mark.trio
async def test_an_origin_that_nobody_serves_is_claimed_and_marked_by_another_entry_point() -> None:
    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        open_store(servers.url) as other,
        site(store, "s1") as one,
        site(other, "s2") as two,
        open_producer(EntryPoints(one.address), "app", "loads", "p1", SCHEMA) as producer,
    ):
        await producer.wait_recorded(await producer.send(numbers(0)))
        one.kill()
        gone = time.time_ns() // 1000
        await until(lambda: "p1" in two.point.status().marks, "claimed")
        assert time.time_ns() // 1000 - gone > 2_500_000, "only after it was unattended"
        await marked_until(Reader(other), gone + 3_000_000)


@pytest.mark.trio
async def test_a_new_origin_waits_for_its_version_and_is_above_what_readers_were_promised() -> None:
    ahead = 200_000_000  # ns
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(memory_store())
        store = await stack.enter_async_context(open_store(servers.url))
        async with (
            site(store, "fast", wall_ns=lambda: time.time_ns() + ahead) as one,
            site(store, "slow") as two,
            open_producer(EntryPoints(one.address), "app", "loads", "old", SCHEMA) as old,
        ):
            await old.wait_recorded(await old.send(numbers(1)))
            reader = Reader(store)
            await marked_until(reader, 1)
            async with open_producer(EntryPoints(two.address), "app", "loads", "new", SCHEMA) as new:
                sent = await new.send(numbers(2))
                with trio.fail_after(20):
                    while not rows_of(reader.pieces.get("new", [])):
                        await reader.read()  # asserts that no row is at or below the input mark
                await new.wait_recorded(sent)
            (mark, *_) = [piece.mark for piece in reader.pieces["new"] if piece.mark is not None]
            assert mark is not None
            older = [one.mark.mark for one in reader.pieces["old"] if one.mark and one.mark.version < 2]
            assert mark.mark >= max(older)
            assert (mark.origin, mark.version) == (2, 2)


@pytest.mark.trio
async def test_a_clock_that_is_off_stamps_nothing_and_its_producers_move() -> None:
    off = [0]
    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        site(store, "s2") as two,
        site(store, "s3") as three,
        site(
            store,
            "s1",
            peers=(two.address, three.address),
            wall_ns=lambda: time.time_ns() + off[0],
        ) as one,
    ):
        await until(lambda: len(one.point.status().errors) == 2, "measured")
        assert one.point.status().is_good
        points = EntryPoints(f"{one.address},{two.address}")
        async with open_producer(points, "app", "loads", "p1", SCHEMA) as producer:
            await producer.wait_recorded(await producer.send(numbers(0)))
            assert one.point.status().attended == ("p1",)
            off[0] = 2_000_000_000
            for number in range(1, 4):
                await producer.wait_recorded(await producer.send(numbers(number)))
            assert (await status_of(two)).attended == ("p1",)
            status = await status_of(one)
            assert not status.is_good
            assert all(bound >= 1_990_000 for _, bound in status.errors.values())
            rows = (await Reader(store).read()).rows("p1")
            assert [row for _, row in rows] == [0, 1, 2, 3]
            assert rows[-1][0] < time.time_ns() // 1000 + 250_000


# EVIDENCE-OF: P-1
@pytest.mark.trio
async def test_a_batch_is_neither_acknowledged_nor_read_before_a_majority_has_it() -> None:
    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        site(store) as one,
        open_producer(EntryPoints(one.address), "app", "loads", "p1", SCHEMA) as producer,
    ):
        await producer.wait_recorded(await producer.send(numbers(0)))
        for server in (servers[1], servers[2]):
            await server.stop()
        number = await producer.send(numbers(1))
        with trio.move_on_after(1) as waited:
            await producer.wait_recorded(number)
        assert waited.cancelled_caught, "one of three has it"
        await servers[1].restart()
        with trio.fail_after(20):
            await producer.wait_recorded(number)
        assert [row for _, row in (await Reader(store).read()).rows("p1")] == [0, 1]


@pytest.mark.trio
async def test_producers_wait_while_the_entry_store_has_no_majority_and_then_continue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "entry_silence_s", 0.3)
    monkeypatch.setattr(live_store, "inspect_timeout_s", 0.2)
    caplog.set_level("INFO", "dos.dataflow")
    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        open_store(servers.url) as other,
        site(store, "s1") as one,
        site(other, "s2") as two,
    ):
        points = EntryPoints(f"{one.address},{two.address}")
        async with open_producer(points, "app", "loads", "p1", SCHEMA) as producer:
            await producer.wait_recorded(await producer.send(numbers(0)))
            for server in servers[:2]:
                server.crash()
            number = await producer.send(numbers(1))
            await until(lambda: caplog.text.count("producer p1 moves from") >= 3, "it tries all")
            for server in servers[:2]:
                await server.restart()
            with trio.fail_after(30):
                await producer.wait_recorded(number)
        monkeypatch.undo()  # a reader may take its usual time to connect again
        assert [row for _, row in (await Reader(store).read()).rows("p1")] == [0, 1]


@pytest.mark.process
@pytest.mark.trio
async def test_an_entry_point_that_is_cut_off_acknowledges_nothing_and_its_producer_moves(
    three_servers: list[ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "entry_silence_s", 1.0)
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(proxies(three_servers))
        url = "dos://" + ",".join(proxy.location for proxy in network)
        await init_store(url)
        near = await stack.enter_async_context(open_store(url, client="near"))
        far = await stack.enter_async_context(open_store(url, client="far"))
        one = await stack.enter_async_context(site(far, "s1"))
        two = await stack.enter_async_context(site(near, "s2"))
        points = EntryPoints(f"{one.address},{two.address}")
        producer = await stack.enter_async_context(open_producer(points, "app", "loads", "p1", SCHEMA))
        await producer.wait_recorded(await producer.send(numbers(0)))
        assert one.point.status().attended == ("p1",)
        for proxy in network:
            proxy.hold(client="far")
        await producer.wait_recorded(await producer.send(numbers(1)))
        assert (await status_of(two)).attended == ("p1",)
        for proxy in network:
            proxy.heal()
        await until(lambda: "p1" not in one.point.status().marks, "the fenced one serves it no more")
        await producer.wait_recorded(await producer.send(numbers(2)))
        rows = (await Reader(near).read()).rows("p1")
        assert [row for _, row in rows] == [0, 1, 2]
        assert [at for at, _ in rows] == sorted({at for at, _ in rows})


@pytest.mark.trio
async def test_a_new_producer_that_cannot_be_opened_stops_no_other() -> None:
    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        site(store) as one,
        open_producer(EntryPoints(one.address), "app", "loads", "p1", SCHEMA) as producer,
    ):
        await producer.wait_recorded(await producer.send(numbers(0)))
        await servers[2].stop()
        with trio.move_on_after(1) as waited:
            async with open_producer(EntryPoints(one.address), "app", "loads", "p2", SCHEMA):
                pass
        assert waited.cancelled_caught, "a new name needs every member"
        now = time.time_ns() // 1000
        await producer.wait_recorded(await producer.send(numbers(1)))
        await marked_until(Reader(store), now)


@pytest.mark.trio
async def test_rows_wait_and_marks_go_on_while_the_least_mark_is_behind_the_horizon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        site(store) as one,
        open_producer(EntryPoints(one.address), "app", "loads", "p1", SCHEMA) as producer,
    ):
        await producer.wait_recorded(await producer.send(numbers(0)))
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_limits, "entry_horizon_us", -60_000_000)
            number = await producer.send(numbers(1))
            reader = Reader(store)
            await marked_until(reader, time.time_ns() // 1000)
            assert [row for _, row in reader.rows("p1")] == [0]
        await producer.wait_recorded(number)
        assert [row for _, row in (await reader.read()).rows("p1")] == [0, 1]


@pytest.mark.trio
async def test_late_rows_are_recorded_once_apart_from_the_others() -> None:
    settings = EntrySettings(lateness_us=500_000, marks_every_us=50_000)
    schema = "at timestamp, number bigint"

    def rows(*ages_s: float) -> list[dict[str, object]]:
        now = time.time_ns() // 1000
        return [
            {"at": pa.scalar(now - int(age * 1e6), pa.timestamp("us", "UTC")).as_py(), "number": int(age)}
            for age in ages_s
        ]

    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        site(store, settings=settings) as one,
        open_producer(EntryPoints(one.address), "app", "loads", "p1", schema) as producer,
    ):
        await producer.wait_recorded(await producer.send(rows(0, 30, 0, 40)))
        reader = await Reader(store).read()
        assert [row for _, row in reader.rows("p1")] == [0, 0]
        assert [row for _, row in rows_of(reader.pieces["p1"], late=True)] == [30, 40]
        with pytest.raises(EntryRefusedError, match="these rows have no times"):
            async with open_producer(EntryPoints(one.address), "app", "loads", "p2", SCHEMA) as bad:
                await bad.wait_recorded(await bad.send(numbers(1)))


@pytest.mark.trio
async def test_of_two_programs_with_one_name_the_one_that_opened_it_last_writes() -> None:
    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        site(store) as one,
        site(store) as two,
    ):
        points = EntryPoints(f"{one.address},{two.address}")
        async with open_producer(points, "app", "loads", "p1", SCHEMA) as old:
            await old.wait_recorded(await old.send(numbers(1), mark=b"a"))
            async with open_producer(EntryPoints(two.address), "app", "loads", "p1", SCHEMA) as new:
                assert new.last[:2] == (1, b"a")
                with pytest.raises(FencedError, match="opened again by another program"):
                    await old.wait_recorded(await old.send(numbers(2)))
                await new.wait_recorded(await new.send(numbers(3)))
                assert await new.send(numbers(9), batch=1) == 1, "recorded before: discarded"
        assert [row for _, row in (await Reader(store).read()).rows("p1")] == [1, 3]


@pytest.mark.trio
async def test_the_examples_of_the_manual() -> None:
    sent = [{"server": "b", "load": 0.8}], [{"server": "c", "load": 0.5}]

    def loads_after(mark: bytes) -> list[tuple[bytes, list[dict[str, object]]]]:
        return [(b"%d" % at, rows) for at, rows in enumerate(sent, 1)][int(mark or b"0") :]

    async with (
        memory_store() as servers,
        open_store(servers.url) as store,
        site(store, application="shop") as one,
    ):
        run = partial(run_example, points=f"{one.address},127.0.0.1:1")
        for _ in range(2):  # the second time, everything is recorded
            await trio.to_thread.run_sync(
                run, "docs/inputs.md", "entry_producer", {"loads_after": loads_after}
            )
        graph = run_example("docs/inputs.md", "entry", entry=servers.url)["graph"]
        (source,) = [one for one in graph.plan().specs.values() if isinstance(one, InputSource)]
        handle = source.origin(store, Reading("shop"))
        tables = [
            pa.ipc.open_stream(piece.data).read_all()
            async for piece in handle.follower("meter-7", SplitPosition(0)).poll()
            if piece.data
        ]
        assert all(table.schema.equals(source.schema) for table in tables)
        assert [table["server"].to_pylist() for table in tables] == [["b"], ["c"]]


@pytest.mark.trio
async def test_what_cannot_be_served_is_refused_with_its_reason() -> None:
    async with memory_store() as servers, open_store(servers.url) as store, site(store) as one:
        other = EntrySettings(time="when")
        with pytest.RaisesGroup(EntryRefusedError, allow_unwrapped=True, flatten_subgroups=True):
            async with site(store, settings=other):
                pass
        with pytest.raises(EntryRefusedError, match="reads the times in column 'when'"):
            await InputHandle(store, "app", "loads", time="when").register("region", "source")
        async with site(store, settings=None) as second:
            assert second.point.status().is_good
        with pytest.raises(EntryRefusedError, match="have a column 'at' already"):
            async with open_producer(
                EntryPoints(one.address), "app", "loads", "p1", "at timestamp, number bigint"
            ) as bad:
                await bad.wait_recorded(await bad.send([{"at": None, "number": 1}]))
        for points, handle, words in (
            (EntryPoints(one.address, token=b"other"), "loads", "for this token: it has another token"),
            (EntryPoints(one.address), "rates", "serve input 'rates' .* serves another application"),
        ):
            with trio.fail_after(20), pytest.raises(EntryRefusedError, match=words) as refused:
                async with open_producer(points, "app", handle, "p1", SCHEMA):
                    pass
            assert "`dos input serve`" in refused.value.remedy
        async with open_producer(EntryPoints(one.address), "app", "loads", "p2", SCHEMA) as producer:
            await producer.wait_recorded(await producer.send(numbers(1)))
            await close_input(store, "app", "loads")
            with pytest.raises(InputClosedError):
                await producer.wait_recorded(await producer.send(numbers(2)))
