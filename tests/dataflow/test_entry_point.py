"""Lines over TCP: recorded before they are acknowledged, with times that never go back."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import trio

from checkpoint.chains.input_log import InputHandle
from checkpoint.core.records.manifest import SplitPosition
from dataflow import SchemaError, limits
from dataflow.entry_point import ENTRY_SCHEMA, serve_lines
from dataflow.producing import Producer
from dataflow.schema import parse_schema
from dos_client import Store, open_store
from dos_protocol.errors import FencedError
from dos_server.testing import memory_store


@asynccontextmanager
async def entry_point(store: Store, **options: Any) -> AsyncIterator[int]:
    """Its port."""
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(serve_lines, store, "app", "lines", "entry", **options))
        nursery.cancel_scope.cancel()


async def recorded(store: Store) -> list[tuple[int, str]]:
    """(microseconds, line) of all that a region would read."""
    handle = InputHandle(store, "app", "lines")
    rows = []
    for split in await handle.splits():
        async for piece in handle.follower(split, SplitPosition(0)).poll():
            table = pa.ipc.open_stream(piece.data).read_all()
            assert table.schema.equals(parse_schema(ENTRY_SCHEMA))
            rows += [*zip(table["at"].cast(pa.int64()).to_pylist(), table["line"].to_pylist(), strict=True)]
    return rows


async def answers(stream: trio.SocketStream) -> list[str]:
    """All until the other side closes."""
    return b"".join([data async for data in stream]).decode().splitlines()


async def sent(port: int, data: bytes) -> list[str]:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(data)
        await stream.send_eof()
        return await answers(stream)


def has_come(stream: trio.SocketStream) -> bool:
    """Whether an answer lies in the socket. What this machine sends itself is there when it was sent."""
    with socket.socket(fileno=os.dup(stream.socket.fileno())) as same:
        try:
            return bool(same.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False


# EVIDENCE-OF: P-1
@pytest.mark.trio
async def test_lines_that_were_acknowledged_survive_the_power_of_all_servers() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        async with entry_point(store) as port:
            assert (await sent(port, b"one\ntwo\n\nhalf a li"))[-1] == "3"
            assert (await sent(port, "\u65e5\n".encode()))[-1] == "1"
        for server in servers:
            server.power_cut()
        for server in servers:
            await server.restart()
        async with open_store(servers.url) as again:
            found = await recorded(again)
        assert [line for _, line in found] == ["one", "two", "", "\u65e5"]


@pytest.mark.trio
async def test_nothing_is_acknowledged_before_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, may_end = trio.Event(), trio.Event()
    really = Producer.wait_recorded

    async def held_up(self: Producer, batch: int | None = None) -> int:
        asked.set()
        await may_end.wait()
        return await really(self, batch)

    monkeypatch.setattr(Producer, "wait_recorded", held_up)
    async with memory_store() as servers, open_store(servers.url) as store, entry_point(store) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"one\n")
            with trio.fail_after(20):
                await asked.wait()
            assert not has_come(stream)
            may_end.set()
            assert await stream.receive_some() == b"1\n"
            await stream.send_all(b"two\n")
            while not has_come(stream):
                await trio.lowlevel.wait_readable(stream.socket)


@pytest.mark.trio
async def test_many_clients_are_each_told_of_their_own_lines() -> None:
    async with memory_store() as servers, open_store(servers.url) as store, entry_point(store) as port:
        told: dict[int, list[str]] = {}

        async def client(number: int) -> None:
            told[number] = await sent(port, b"".join(b"%d-%d\n" % (number, n) for n in range(200)))

        async with trio.open_nursery() as clients:
            for number in range(5):
                clients.start_soon(client, number)
        assert all(said[-1] == "200" for said in told.values())
        lines = [line for _, line in await recorded(store)]
        for number in range(5):
            mine = [line for line in lines if line.startswith(f"{number}-")]
            assert mine == [f"{number}-{n}" for n in range(200)], "in the order of the connection"


@pytest.mark.trio
async def test_times_never_go_back_also_after_a_restart() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        for clock in ([5_000], [7_000], [6_000]):
            async with entry_point(store, clock=clock[-1].__int__) as port:
                await sent(port, b"line\n")
        assert [at for at, _ in await recorded(store)] == [5_000, 7_000, 7_000]


@pytest.mark.trio
async def test_lines_that_cannot_be_taken_are_refused_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "entry_line_bytes_max", 100)
    async with memory_store() as servers, open_store(servers.url) as store, entry_point(store) as port:
        said = await sent(port, b"x" * 101)
        assert said == ["error: line 1 has more than 100 bytes"]
        said = await sent(port, b"\xff\n")
        assert said == ["error: a line after line 0 is not UTF-8: invalid start byte"]
        assert await recorded(store) == []
        assert (await sent(port, b"good\n"))[-1] == "1"


@pytest.mark.trio
async def test_of_one_name_the_entry_point_that_was_started_last_serves() -> None:
    async with memory_store() as servers, open_store(servers.url) as store, open_store(servers.url) as other:
        with pytest.RaisesGroup(FencedError, allow_unwrapped=True, flatten_subgroups=True):
            async with entry_point(store) as port, entry_point(other) as newer:
                assert (await sent(newer, b"new\n"))[-1] == "1"
                await sent(port, b"old\n")
                await trio.sleep_forever()
        assert [line for _, line in await recorded(other)] == ["new"]


@pytest.mark.trio
async def test_an_address_that_others_reach_is_refused() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        with pytest.raises(SchemaError, match=r"an entry point at '0\.0\.0\.0' accepts lines from any"):
            await serve_lines(store, "app", "lines", "entry", host="0.0.0.0")
        async with entry_point(store, host="0.0.0.0", insecure=True) as port:
            assert await sent(port, b"one\n") == ["1"]
