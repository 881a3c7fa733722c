"""Who serves a tree, as the store alone shows it, and what a gateway that waits answers."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from dos_client import Claim, Store, open_store
from dos_gateway import gateway as gateway_module
from dos_gateway import serving, status
from dos_gateway.core import space
from dos_gateway.core.hadoop import HadoopError
from dos_gateway.core.status import TreeStatus
from dos_gateway.core.tree import Tree
from dos_gateway.gateway import Gateway
from dos_gateway.limits import alone_wait_s, tree_files_max
from dos_gateway.serving import ServedTree
from dos_gateway.status import read_status, tree_rows
from dos_gateway.webhdfs import serve_gateway
from dos_protocol.limits import MIB
from dos_server.testing import memory_store
from journal import ChainState

NOW_MS = 1_800_000_000_000
SERVED = TreeStatus(
    "orders", "orders-1a2b3c4d", epoch=12, claimed=12, grows=True, served_at="h4:9870", sign_ms=NOW_MS
)


@pytest.fixture(autouse=True)
def simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (serving, gateway_module, status):
        monkeypatch.setattr(module, "clock", trio.current_time)


def there() -> None:
    """The client waits for its answer."""


async def body(data: bytes = b"12345") -> AsyncIterator[bytes]:
    yield data


@asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[trio.CancelScope]:
    """Run it during the block. Cancelling the scope ends it as a killed process ends."""
    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            await gateway.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield scope
        scope.cancel()


@asynccontextmanager
async def a_store() -> AsyncIterator[Store]:
    async with memory_store() as servers, open_store(servers.url) as store:
        yield store


def two_gateways(store: Store, *, second_is_alone: bool) -> tuple[Gateway, Gateway]:
    second = Gateway(store, "t", served_at="h5:9870", alone=second_is_alone)
    return Gateway(store, "t", served_at="h4:9870"), second


def test_the_store_shows_who_serves_what_is_there_and_that_nobody_serves_it() -> None:
    async def run() -> None:
        async with a_store() as store:
            never = await read_status(store, "t")
            assert [one.problem for one in never.problems(NOW_MS)] == ["nobody has ever served this tree"]
            gateway = Gateway(store, "t", served_at="h4:9870", max_bytes=792 * MIB)
            async with running(gateway):
                served = await gateway.served()
                await served.create(("a", "b"), body(), overwrite=True, still_there=there)
                found = await read_status(store, "t")
            assert (found.grows, found.served_at, found.epoch) == (True, "h4:9870", 1)
            assert (found.files, found.directories, found.live_bytes) == (1, 1, 5)
            assert found.room_bytes == 450 * MIB - 5
            assert not found.problems(found.sign_ms)
            alone = await read_status(store, "t")
            assert alone.sign_ms >= found.sign_ms
            (problem,) = map(str, alone.problems(alone.sign_ms))
            assert problem.startswith(
                "nobody serves it; the last one was the gateway at h4:9870 (epoch 1): start"
            )

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_all_trees_of_a_store_are_shown_and_no_other_directories() -> None:
    async def run() -> None:
        async with a_store() as store:
            async with await store.claim("notes.fs", 1, b"n" * 16) as claim:
                claim.open_object("text").append(b"no chain")
            async with running(gateway := Gateway(store, "t", served_at="h4:9870")):
                await gateway.served()
                rows = await tree_rows(store)
            assert [(row["tree"], row["served"], row["problems"]) for row in rows] == [("t", True, [])]

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_a_gateway_whose_clients_know_no_other_one_refuses_and_names_the_one_that_serves() -> None:
    async def run() -> None:
        async with a_store() as store, trio.open_nursery() as nursery:
            first, second = two_gateways(store, second_is_alone=True)
            async with running(first):
                assert not await first.standby_of()
                nursery.start_soon(second.run)
                text = "t is served by the gateway at h4:9870 (epoch 1)"
                assert (await second.standby_of()).startswith(f"{text}; this one is its standby")
                begun = trio.current_time()
                with pytest.raises(HadoopError) as caught:
                    await second.served()
                # A StandbyException, and its client would ask here again, 10,000 times.
                assert caught.value.java == "java.io.IOException"
                assert caught.value.text.startswith(f"{text}: stop it, use it")
                assert trio.current_time() - begun == pytest.approx(alone_wait_s, abs=0.1)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_a_gateway_whose_clients_know_no_other_one_takes_over_while_a_request_waits() -> None:
    async def run() -> None:
        async with a_store() as store, trio.open_nursery() as nursery:
            first, second = two_gateways(store, second_is_alone=True)
            async with running(first) as scope:
                await first.served()
                nursery.start_soon(second.run)
                assert await second.standby_of()

                async def end() -> None:
                    await trio.sleep(4)
                    scope.cancel()

                nursery.start_soon(end)
                served = await second.served()
            assert served.epoch == 2
            assert (await read_status(store, "t")).served_at == "h5:9870"
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_a_standby_sends_a_client_on_only_for_what_it_saw_after_the_request_came() -> None:
    """A client whose gateway has just died asks the others dozens of times without a pause, and gives up."""

    async def run() -> None:
        async with a_store() as store, trio.open_nursery() as nursery:
            first, second = two_gateways(store, second_is_alone=False)
            async with running(first) as scope:
                await first.served()
                nursery.start_soon(second.run)
                assert await second.standby_of()
                with pytest.raises(HadoopError, match="another gateway serves the tree"):
                    await second.served()
                scope.cancel()
                assert (await second.served()).epoch == 2
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("host", "alone", "named"),
    [
        ("0.0.0.0", False, "{own}:{port}"),
        ("127.0.0.1", False, "127.0.0.1:{port} on {own}"),
        ("127.0.0.1", True, "127.0.0.1:{port} on {own}, beside process {parent}"),
    ],
    ids=["every address", "loopback", "of a driver"],
)
def test_a_gateway_is_named_by_where_others_find_it(host: str, alone: bool, named: str) -> None:
    async def run() -> None:
        async with a_store() as store, trio.open_nursery() as nursery:
            gateway = Gateway(store, "t", alone=alone)
            port = await nursery.start(
                lambda task_status: serve_gateway(gateway, host, 0, task_status=task_status)
            )
            own = socket.gethostname()
            assert gateway.served_at == named.format(own=own, port=port, parent=os.getppid())
            await gateway.served()
            assert (await read_status(store, "t")).served_at == gateway.served_at
            nursery.cancel_scope.cancel()

    trio.run(run)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"epoch": 0, "claimed": 0, "grows": False}, "nobody has ever served"),
        ({"grows": False}, "nobody serves it; the last one was the gateway at h4:9870 (epoch 12): start"),
        ({"grows": False, "claimed": 13}, "epoch 13 was claimed, and nobody writes"),
        ({"max_bytes": 792 * MIB, "chain_bytes": 600 * MIB, "live_bytes": 400 * MIB}, ""),
        ({"max_bytes": 792 * MIB, "live_bytes": 410 * MIB}, f"{40 * MIB} bytes are left for new files: "),
        ({"max_bytes": 792 * MIB, "chain_bytes": 665 * MIB}, "new files are refused: 0 bytes in files, "),
        ({"files": tree_files_max}, ""),
        ({"files": tree_files_max + 1}, "200001 files"),
        ({"newest_ms": NOW_MS + 59_000}, ""),
        ({"newest_ms": NOW_MS + 3_600_000}, "times of files stand still for 3600 s"),
        ({"unproved": "7 more bytes of chain fs"}, "7 more bytes of chain fs"),
    ],
)
def test_what_is_wrong_with_a_tree_is_named(changed: dict[str, object], problem: str) -> None:
    found = TreeStatus(**{name: getattr(SERVED, name) for name in SERVED.__slots__} | changed)
    texts = [str(one) for one in found.problems(NOW_MS)]
    assert [text[: len(problem)] for text in texts] == ([problem] if problem else [])
    assert [one["problem"] for one in found.as_json(NOW_MS)["problems"]] == [
        one.problem for one in found.problems(NOW_MS)
    ]


def test_a_tree_is_read_while_its_segments_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"segment_bytes": 6_000, "inline_bytes_max": 300, "piece_bytes": 500}.items():
        monkeypatch.setattr(serving, name, size)
    monkeypatch.setattr(space, "slack_bytes", 2_000)

    async def overwrite(served: ServedTree) -> None:
        while True:
            await served.create(("a",), body(b"x" * 900), overwrite=True, still_there=there)
            await trio.sleep(0.002)  # simulated: the clock stands still while a task can run

    delays = iter([0.0, 1.0])

    async def replay_late(reader: Claim | Store, state: ChainState, directory: str | None = None) -> Tree:
        await trio.sleep(next(delays, 0.0))
        return await serving.replay(reader, state, directory)

    monkeypatch.setattr(status, "replay", replay_late)

    async def run() -> None:
        async with a_store() as store, trio.open_nursery() as nursery:
            gateway = Gateway(store, "t", served_at="h4:9870")
            nursery.start_soon(gateway.run)
            nursery.start_soon(overwrite, await gateway.served())
            for _ in range(3):
                found = await read_status(store, "t")
                assert (found.grows, found.files, found.live_bytes) == (True, 1, 900)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))
