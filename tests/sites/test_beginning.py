"""A replica whose rows are not retained any more begins with a checkpoint of another one."""

from functools import partial

import msgspec
import pytest
import trio

import dos
from checkpoint import RetentionRule, input_register
from checkpoint import limits as checkpoint_limits
from checkpoint.chains.consumer_register import change_register
from checkpoint.chains.input_log import InputLog
from checkpoint.chains.manifest_log import StoreHost
from checkpoint.maintenance.retention import InputRows, Retention
from dos_client import Store, open_store
from sites.core.deployed import Deployed
from sites.core.description import Description
from sites.records import change_deployed
from sites.runner import run_site
from tests.sites.deployments import States, application, deployed_at, record, until_shown


async def trim(store: Store) -> int:
    """Let the entry store delete all that its limit allows. Return the position up to which."""
    await change_register(
        StoreHost(store),
        input_register("board", "loads"),
        lambda one: msgspec.structs.replace(one, rule=RetentionRule(bytes_max=1)),
    )
    async with await InputLog.open(store, "board", "loads", "p") as log:
        assert await log.trim_completely(10.0)
    (gone,) = await Retention(store, InputRows(store, "board", "loads")).trimmed_of("source", None)
    return gone.begin


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_replica_is_placed_and_comes_back_after_what_it_needs_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_limits, "input_segment_bytes_max", 1)
    with application() as description:
        trio.run(follow, description)


async def follow(description: Description) -> None:
    urls = {site.name: str(site.store) for site in description.sites}
    start = partial(dos.run_local, standby=0, checkpoint_interval=0.5)
    states = States()
    async with (
        open_store(str(description.entry_store)) as entry,
        open_store(urls["purdue"]) as purdue,
        open_store(urls["wisc"]) as wisc,
        trio.open_nursery() as nursery,
    ):

        async def deploy(*sites: str) -> None:
            made = deployed_at(description, *sites)

            def change(present: Deployed) -> Deployed:
                return msgspec.structs.replace(made, number=present.number + 1)

            await change_deployed(entry, "board", change)

        nursery.start_soon(partial(run_site, description, "purdue", start=start))
        nursery.start_soon(partial(run_site, description, "wisc", start=start, changed=states))
        await deploy("purdue")
        for first in (1000, 1010):
            await record(entry, first, 10)
        await until_shown(purdue, "board.joined", range(1000, 1020))
        assert await trim(entry) > 0
        await deploy("purdue", "wisc")
        await states.until({"joined": "RUNNING"})
        await record(entry, 1020, 10)
        await until_shown(wisc, "board.joined", range(1000, 1030))
        await deploy("purdue")
        await states.until({})
        for first in (1030, 1040):
            await record(entry, first, 10)
        await until_shown(purdue, "board.joined", range(1000, 1050))
        await trim(entry)
        await deploy("purdue", "wisc")
        await states.until({"joined": "RUNNING"})
        await record(entry, 1050, 10)
        await until_shown(wisc, "board.joined", range(1000, 1060))
        nursery.cancel_scope.cancel()
