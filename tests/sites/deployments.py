"""An application deployed over stores in this process: what its tests describe, record and wait for."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

import dos
from checkpoint import OriginMark
from checkpoint.chains.input_log import InputLog
from checkpoint.errors import InputTrimmedError
from dataflow.errors import NoOutputError
from dataflow.producing import parts_of
from dataflow.schema import parse_schema
from dos_client import Store, open_store
from dos_server.testing import threaded_store
from sites.core.deployed import Deployed
from sites.core.deployment import Deployment
from sites.core.description import Description, FixedPlace, ReplicatedRegion, decode_description
from tests.sites.graphs import SCHEMA, TIMED
from tests.support.polling import POLL_S

WAIT_S: Final = 60.0
PAGE: Final = (Path(__file__).parents[2] / "docs" / "sites.md").read_text(encoding="utf-8")
EXAMPLE: Final = PAGE.split("```toml\n")[1].split("```")[0]


def described(entry: str = "dos://entry", **stores: str) -> Description:
    one = decode_description(EXAMPLE)
    sites = tuple(
        msgspec.structs.replace(site, store=stores.get(site.name, f"dos://{site.name}")) for site in one.sites
    )
    regions = (ReplicatedRegion("joined", 0.4, "tests.sites.graphs:words", workers=1),)
    return msgspec.structs.replace(
        one, application="board", entry_store=entry, sites=sites, regions=regions, theta=0.0
    )


def deployed_at(description: Description, *sites: str) -> Deployed:
    streams = Deployment(description, {"joined": sites}).streams()
    return Deployed(number=1, replicas={"joined": sites}, streams=tuple(streams))


@contextmanager
def stores(count: int) -> Iterator[list[str]]:
    """Stores of one server; the first one is the entry store."""
    with ExitStack() as stack:
        yield [stack.enter_context(threaded_store(1)).url for _ in range(count)]


@contextmanager
def application() -> Iterator[Description]:
    """Replicas of `joined` at two of three sites, and the exit `board` at osu."""
    with stores(4) as (entry, *urls):
        one = described(entry, **dict(zip(("purdue", "wisc", "osu"), urls, strict=True)))
        yield msgspec.structs.replace(
            one,
            kmax=2,
            kmin=1,
            distance_ms=0.0,
            regions=(ReplicatedRegion("joined", 0.4, "tests.sites.graphs:passed", workers=1),),
            exits=(FixedPlace("board", "osu", "tests.sites.graphs:board", 1),),
        )


async def record(store: Store, first: int, count: int) -> None:
    """Rows of one entry point, a second apart, and its mark."""
    schema = parse_schema(TIMED)
    async with await InputLog.open(store, "board", "loads", "p") as log:
        rows = [
            {"at": datetime.fromtimestamp(second, UTC), "word": "ab"[second % 2]}
            for second in range(first, first + count)
        ]
        await log.append(parts_of(rows, schema), number=log.last + 1)
        await log.append_mark(OriginMark(1_000_000 * (first + count) - 1, 1, 1, 0))
        await log.all_synced()


async def shown(store: Store, region: str) -> list[dict[str, Any]]:
    """The rows that a region has published; none if it has begun no output, or it is trimmed."""
    found = list[dict[str, Any]]()
    with suppress(NoOutputError, InputTrimmedError):
        async with aclosing(dos.read_output(store, region, "shown")) as steps:
            async for step in steps:
                found += [] if step.table is None else step.table.to_pylist()
    return found


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(WAIT_S):
        while not await reached():  # noqa: ASYNC110 - of another process
            await trio.sleep(POLL_S)


async def until_shown(store: Store, region: str, seconds: range) -> None:
    """Wait until the region has published each row of `record` once."""

    async def reached() -> bool:
        rows = [(int(row["at"].timestamp()), row["word"]) for row in await shown(store, region)]
        return sorted(rows) == [(second, "ab"[second % 2]) for second in seconds]

    await until(reached)


async def until_counted(store: Store, expected: dict[str, int]) -> None:
    """Wait until the newest counts that the replica of `words` has published are these."""

    async def reached() -> bool:
        return {row["word"]: row["count"] for row in await shown(store, "board.joined")} == expected

    await until(reached)


async def send_and_count(url: str, count: int = 1) -> None:
    """Send a word to the replica of `words`, and wait until it has counted it so often."""
    async with (
        open_store(url) as store,
        dos.open_producer(store, "board.joined", "loads", "p", SCHEMA) as producer,
    ):
        await producer.wait_recorded(await producer.send([{"word": "a"}]))
        await until_counted(store, {"a": count})


@dataclass
class States:
    """What the process of a site reported last, for other tasks."""

    now: dict[str, str] = field(default_factory=dict)
    changed: trio.Event = field(default_factory=trio.Event)

    def __call__(self, states: dict[str, str]) -> None:
        self.now = states
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, states: dict[str, str]) -> None:
        with trio.fail_after(WAIT_S):
            while self.now != states:
                await self.changed.wait()
