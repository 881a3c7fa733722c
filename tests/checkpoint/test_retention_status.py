"""What `dos input consumers` shows while a real server deletes a segment."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import change_register
from checkpoint.chains.input_log import InputLog
from checkpoint.chains.manifest_log import StoreHost
from checkpoint.core.records.consumers import RetentionRule, input_register, with_rule
from checkpoint.core.records.inputs import producer_directory
from checkpoint.maintenance.retention import InputRows, Retention
from dos_client import Store, init_store, open_store
from dos_server import storage
from dos_server.marks import remove_object
from tests.dos_client.support import thread_servers, until

pytestmark = pytest.mark.trio
DIRECTORY = producer_directory("shop", "orders", "till")


class LateList:
    """A store whose first list of the input's segments is from before the release: its answer came late."""

    def __init__(self, store: Store, view: Any) -> None:
        self._store, self._views = store, [view]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def inspect(self, directory: str) -> Any:
        if directory == DIRECTORY and self._views:
            return self._views.pop()
        return await self._store.inspect(directory)


@pytest.mark.parametrize("removed", [False, True], ids=["being removed", "removed"])
async def test_a_segment_that_goes_while_the_chain_is_read_is_no_error(
    removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "input_segment_bytes_max", 1)
    monkeypatch.setattr(limits, "trim_poll_s", 0.05)
    removing, may_end = threading.Event(), threading.Event()
    remove = remove_object

    def slow_remove(*args: Any) -> Any:
        removing.set()
        assert may_end.wait(60)
        return remove(*args)

    monkeypatch.setattr(storage, "remove_object", slow_remove)
    rule, place = RetentionRule(by_consumers=False, bytes_max=1), input_register("shop", "orders")
    try:
        with thread_servers(tmp_path, 1) as (server,):
            await init_store(server.url)
            async with (
                open_store(server.url) as store,
                await InputLog.open(store, "shop", "orders", "till") as log,
            ):
                for number in range(1, 6):
                    await log.append([(1, b"a row")], number=number)
                    await log.all_synced()
                late = cast("Store", LateList(store, await store.inspect(DIRECTORY)))
                await change_register(StoreHost(store), place, lambda found: with_rule(found, rule))
                await until(removing.is_set, "a segment is being removed")
                if removed:
                    may_end.set()
                    assert await log.trim_completely(30)
                with trio.fail_after(30):
                    status = await Retention(late, InputRows(late, "shop", "orders")).status()
                (split,) = status.splits
                assert split.end > split.begin > 0
                may_end.set()
    finally:
        may_end.set()
