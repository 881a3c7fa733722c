"""What can never be answered is an error at once: wrong arguments, a store of another run, a taken name."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dos_client.live_store import Store
from dos_client.store import connect, open_store
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.errors import DosError, LocalProtocolError
from dos_server.testing import MemoryServer, Servers, memory_store

ID = b"w" * 16


async def read_all(store: Store, *arguments: Any) -> None:
    async for _ in store.stream("d", "o", *arguments):
        pass


async def follow_some(store: Store, offset: Any) -> None:
    await anext(store.follow("d", "o", offset))


CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "claim: a fraction for an epoch": lambda store: store.claim("d", 1.5, ID),  # type: ignore[arg-type]
    "claim: a truth value for an epoch": lambda store: store.claim("d", True, ID),
    "claim: epoch 0": lambda store: store.claim("d", 0, ID),
    "claim: an epoch of 65 bits": lambda store: store.claim("d", 1 << 64, ID),
    "claim: text for a writer id": lambda store: store.claim("d", 1, "w" * 16),  # type: ignore[arg-type]
    "claim: a short writer id": lambda store: store.claim("d", 1, b"w"),
    "claim: no directory": lambda store: store.claim(None, 1, ID),  # type: ignore[arg-type]
    "claim: bytes for a directory": lambda store: store.claim(b"d", 1, ID),  # type: ignore[arg-type]
    "look: no directory": lambda store: store.inspect(None),  # type: ignore[arg-type]
    "list: no prefix": lambda store: store.list_directories(None),  # type: ignore[arg-type]
    "read: a negative length": lambda store: store.read("d", "o", 0, -1),
    "read: a negative offset": lambda store: store.read("d", "o", -1, 1),
    "read: a fraction": lambda store: store.read("d", "o", 0, 0.5),  # type: ignore[arg-type]
    "read: no name": lambda store: store.read("d", None, 0, 1),  # type: ignore[arg-type]
    "read: no directory": lambda store: store.read(None, "o", 0, 1),  # type: ignore[arg-type]
    "committed read: a negative length": lambda store: store.read("d", "o", 0, -1, committed=True),
    "stream: a negative offset": lambda store: read_all(store, -1),
    "stream: text for an end": lambda store: read_all(store, 0, "9"),
    "follow: a negative offset": lambda store: follow_some(store, -1),
    "stat: no name": lambda store: store.stat("d", None),  # type: ignore[arg-type]
    "stat: no directory": lambda store: store.stat(None, "o"),  # type: ignore[arg-type]
    "stat: a negative size": lambda store: store.stat("d", "o", -1),
}


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(60):
            await main()

    trio.run(bounded, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_an_argument_of_a_wrong_type_or_range_is_an_error_at_once(
    call: Callable[[Store], Awaitable[object]],
) -> None:
    async def main() -> None:
        async with memory_store(seed=1) as servers, open_store(servers.url) as store:
            begun = trio.current_time()
            with pytest.raises(DosError):
                await call(store)
            assert trio.current_time() == begun

    run(main)


@pytest.mark.parametrize("url", [None, b"dos://h", 7])
@pytest.mark.parametrize("opening", [connect, open_store])
def test_a_url_that_is_no_text_is_refused(opening: Callable[[Any], Any], url: object) -> None:
    async def main() -> None:
        with pytest.raises(DosError, match="a URL must be text"):
            async with opening(url):
                pass

    run(main)


def test_a_new_object_of_a_name_that_is_taken_is_refused() -> None:
    async def main() -> None:
        async with memory_store(seed=1) as servers, open_store(servers.url) as store:
            async with await store.claim("d", 1, ID) as claim:
                writer = claim.open_object("o")
                await writer.wait_synced(writer.append(b"some"))
            async with await store.claim("d", 2, ID) as claim:
                with pytest.raises(LocalProtocolError, match="d/o exists on 3 members"):
                    claim.open_object("o")
                writer = claim.open_object("other")
                await writer.wait_synced(writer.append(b"more"))

    run(main)


@asynccontextmanager
async def new_object() -> AsyncGenerator[tuple[Servers[MemoryServer], Store, ObjectWriter]]:
    """An object in a store in memory, opened for writing."""
    async with (
        memory_store(seed=1) as servers,
        open_store(servers.url) as store,
        await store.claim("d", 1, ID) as claim,
    ):
        yield servers, store, claim.open_object("o")


def test_what_was_never_appended_is_not_waited_for() -> None:
    async def main() -> None:
        async with new_object() as (_, _, writer):
            size = writer.append(b"some")
            for wait in (writer.wait_synced, writer.wait_received):
                for wrong in (size + 1, 0.5, None):
                    with pytest.raises(LocalProtocolError, match="size must be a whole number"):
                        await wait(wrong)  # type: ignore[arg-type]
            await writer.wait_synced(size)

    run(main)


def test_a_store_of_another_run_is_an_error_at_once() -> None:
    """In the other run nothing would ever answer."""

    async def main() -> None:
        async with new_object() as (servers, store, writer):
            await writer.wait_synced(writer.append(b"some"))
            await store.read("d", "o", 0, 4)
            for server in servers.servers[1:]:
                server.crash()
            size = writer.append(b"more")
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: store.read("d", "o", 0, 4),
                lambda: store.read("d", "o", 0, 4, committed=True),
                lambda: read_all(store),
                lambda: store.inspect("d"),
                lambda: store.list_directories(),
                lambda: store.stat("d", "o"),
                lambda: store.ping(),
                lambda: store.claim("d", 2, ID),
                lambda: writer.wait_synced(size),
            ]

            def elsewhere() -> list[str]:
                return [trio.run(one_call, call) for call in calls]

            async def one_call(call: Callable[[], Awaitable[object]]) -> str:
                with trio.move_on_after(5):
                    try:
                        await call()
                    except LocalProtocolError as error:
                        return str(error)
                    return "answered"
                return "hangs"

            found = await trio.to_thread.run_sync(elsewhere)
            assert [one for one in found if "another trio.run" not in one] == []

    trio.run(main)
