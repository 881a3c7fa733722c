"""`dos region release`, and what the commands on checkpoints show of a region that a query drives."""

import json
from functools import partial

import trio

from checkpoint.chains.manifest_log import StoreHost, read_manifest
from checkpoint.core.records.manifest import BatchNote, Checkpoint
from checkpoint.maintenance.stopped_region import append_first
from dos_client import open_store
from dos_server.testing import threaded_store
from tests.checkpoint.manifest_samples import a_checkpoint, part
from tests.support.dos_command import dos

BATCH = BatchNote(
    query="9f0c",
    number=41,
    time_us=1_700_000_000_019_000,
    rows=3,
    after_step=30,
    step=40,
    ends={0: {"out": 9}},
)


def first(incarnation: int, batch: BatchNote | None) -> Checkpoint:
    return a_checkpoint(
        number=1,
        parent=0,
        incarnation=incarnation,
        batch=batch,
        workers={0: part(), 1: part()},
        savepoints={"s": 1},
    )


async def begin(url: str, region: str, batch: BatchNote | None) -> None:
    async with open_store(url) as store:
        await append_first(StoreHost(store), region, partial(first, batch=batch), above=0)


async def checkpoints(url: str, region: str) -> tuple[Checkpoint, ...]:
    async with open_store(url) as store:
        return (await read_manifest(store, region)).kept


def test_a_stopped_region_is_released_by_one_record_and_the_commands_show_its_batches() -> None:
    with threaded_store(1) as servers:
        trio.run(begin, servers.url, "words", BATCH)
        trio.run(begin, servers.url, "plain", None)
        shown = dos("checkpoint", "show", servers.url, "words").stdout
        assert "batch 41 of query 9f0c, planned" in shown
        assert "3 rows; its output is that of steps 31 to 40" in shown
        (row,) = json.loads(dos("checkpoint", "ls", servers.url, "words", "--json").stdout)["checkpoints"]
        assert row["batch"] == {
            "query": "9f0c",
            "number": 41,
            "plannedMicroseconds": 1_700_000_000_019_000,
            "rows": 3,
            "afterStep": 30,
            "step": 40,
        }
        assert dos("region", "savepoint", servers.url, "words", "t", "--stopped").returncode == 0
        done = dos("region", "release", servers.url, "words", "--timeout", "0.2")
        assert done.returncode == 0, done.stderr
        assert "region words is released from query 9f0c: its state is that after batch 41" in done.stdout
        before, saved, last = trio.run(checkpoints, servers.url, "words")
        assert (last.batch, saved.batch, before.batch) == (None, BATCH, BATCH)
        assert (last.number, last.rolled_back_to, last.workers) == (3, 1, before.workers)
        assert (last.savepoints, last.line) == ({"s": 1, "t": 1}, 0)
        for region in ("words", "plain"):
            refused = dos("region", "release", servers.url, region, "--timeout", "0.2", "--json")
            assert refused.returncode == 1
            assert f"region '{region}' is driven by no query" in refused.stderr
        missing = dos("region", "release", servers.url, "nowhere")
        assert missing.returncode == 1
