"""Stores that tasks leave open for those that come after them."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dos_client import init_store
from dos_client.blocking import BlockingStore, open_store
from dos_client.errors import StoreNotReadyError
from dos_protocol.errors import NotFoundError
from dos_server.testing import Servers, ThreadedServer
from spark_integration import limits
from spark_integration.core.options import StoreOptions
from spark_integration.reading.opening import StoreCache
from tests.spark_integration.stored_data import write_objects
from tests.support.servers import ServerProcess, three_servers, url_of

__all__ = ["three_servers"]


@pytest.fixture(scope="module")
def options(servers: Servers[ThreadedServer]) -> StoreOptions:
    with open_store(servers.url) as store:
        write_objects(store, "kept", {"a": b"x"})
    return StoreOptions(servers=servers.url)


@pytest.fixture
def kept() -> Iterator[StoreCache]:
    """Whose stores are kept until the test ends."""
    stores = StoreCache(idle_s=3600.0)
    yield stores
    stores.close()


def used(stores: StoreCache, options: StoreOptions) -> BlockingStore:
    """The store of a task that goes well."""
    with stores.lent(options) as store:
        assert store.read("kept", "a", 0, 10) == b"x"
        return store


def test_the_next_task_finds_it_open_and_another_store_is_another(
    kept: StoreCache, options: StoreOptions, servers: Servers[ThreadedServer]
) -> None:
    first = used(kept, options)
    assert used(kept, options) is first
    with kept.lent(options) as store:
        assert store is first
        assert used(kept, options) is not first, "it is lent to one at a time"
    with pytest.raises(StoreNotReadyError, match="token"):  # what others opened lets nobody in
        used(kept, StoreOptions(servers=servers.url, token=b"other"))


def test_after_an_error_it_is_closed_and_where_a_reader_had_enough_it_is_kept(
    kept: StoreCache, options: StoreOptions
) -> None:
    before = set(threading.enumerate())
    with pytest.raises(NotFoundError), kept.lent(options) as store:
        store.read("kept", "missing", 0, 1)
    assert set(threading.enumerate()) <= before

    def reading() -> Iterator[BlockingStore]:
        with kept.lent(options) as store:
            yield store
            raise AssertionError("nobody asks for more")

    rows = reading()
    first = next(rows)
    rows.close()  # type: ignore[attr-defined]  # as Spark does where a limit is reached
    assert used(kept, options) is first


def test_it_is_closed_when_nobody_has_come_for_a_while(options: StoreOptions) -> None:
    before = set(threading.enumerate())
    used(StoreCache(idle_s=0.0), options)
    for thread in set(threading.enumerate()) - before:
        thread.join(limits.STORE_ANSWER_S)
    assert set(threading.enumerate()) <= before


def test_a_process_that_was_forked_opens_its_own(
    kept: StoreCache, options: StoreOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, mine = used(kept, options), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: mine + 1)
    assert used(kept, options) is not first


@pytest.mark.process
def test_servers_may_restart_between_two_tasks(
    kept: StoreCache, three_servers: list[ServerProcess], tmp_path: Path
) -> None:
    url = url_of(three_servers)
    trio.run(init_store, url)
    with open_store(url) as store:
        write_objects(store, "kept", {"a": b"x"})
    options = StoreOptions(servers=url)
    first = used(kept, options)
    for server in three_servers:
        server.kill()
        server.restart()
    assert used(kept, options) is first
