"""Programs of a site: its regions, producers, and what reads an output.

python -m tests.hosts.site_process site ORDER       serves entry points and runs regions
python -m tests.hosts.site_process producers ORDER  sends readings until standard input is closed
python -m tests.hosts.site_process read STORE       for each line REGION, prints what is new in its output

ORDER is JSON. Answers are lines of JSON.
"""

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import trio

from checkpoint import EntrySettings
from dataflow import EntryPoints, open_producer
from dataflow.entry.serving import EntryOptions, serve_entry
from dataflow.errors import NoOutputError
from dataflow.handle import RegionHandle
from dataflow.local import run_local
from dataflow.outputs import read_output
from dos_client import Store, open_store
from tests.hosts.site_query import GRAPHS, READING, READINGS

CHECKPOINT_INTERVAL_S = 1.0
MARKS_EVERY_US = 1_000_000


class RegionOrder(msgspec.Struct, frozen=True):
    """A region to run. graph: a name in `GRAPHS`. sites: site -> URL of the stores that it reads."""

    name: str
    graph: str
    store: str
    sites: dict[str, str]


class PointOrder(msgspec.Struct, frozen=True):
    """The entry point of a handle."""

    handle: str
    host: str
    port: int
    peers: list[str]


class SiteOrder(msgspec.Struct, frozen=True):
    """What a site runs."""

    name: str
    entry: str
    points: list[PointOrder]
    regions: list[RegionOrder]


class ProducerOrder(msgspec.Struct, frozen=True):
    """Servers to measure: handle -> their numbers. points: handle -> entry points; a producer begins with the
    one of its server's number.
    """

    servers: dict[str, list[int]]
    points: dict[str, list[str]]
    interval_s: float


def report(**event: Any) -> None:
    print(json.dumps(event), flush=True)


async def run_site(order: SiteOrder) -> None:
    """Serve and run until the inputs are closed."""
    settings = EntrySettings(marks_every_us=MARKS_EVERY_US)
    async with open_store(order.entry) as store, trio.open_nursery() as nursery:
        for point in order.points:
            serve = partial(serve_entry, host=point.host, port=point.port)
            options = EntryOptions(order.name, point.peers, settings)
            await nursery.start(serve, store, READINGS, point.handle, options)
        for region in order.regions:
            handle = await trio.to_thread.run_sync(start_region, region, order.entry)
            nursery.start_soon(report_end, region.name, handle)
        report(event="started")


def start_region(order: RegionOrder, entry: str) -> RegionHandle:
    handle = run_local(
        GRAPHS[order.graph](entry, order.sites),
        name=order.name,
        workers=1,
        store=order.store,
        checkpoint_interval=CHECKPOINT_INTERVAL_S,
        standby=0,
    )
    assert isinstance(handle, RegionHandle)
    return handle


async def report_end(region: str, handle: RegionHandle) -> None:
    await trio.to_thread.run_sync(handle.wait, limiter=trio.CapacityLimiter(1))
    error = handle.exception()
    report(event="end", region=region, state=handle.status.state.value, error=str(error or ""))


async def send_readings(order: ProducerOrder) -> None:
    start, stop = trio.Event(), trio.Event()
    opened = 0
    sent: dict[tuple[str, int], int] = {}

    def rounds() -> int:
        return max(sent.values())

    async def produce(handle: str, server: int) -> None:
        nonlocal opened
        addresses = order.points[handle]
        near = server % len(addresses)
        points = EntryPoints(",".join(addresses[near:] + addresses[:near]))
        async with open_producer(points, READINGS, handle, f"{handle}-{server}", READING) as producer:
            opened += 1
            if opened == sum(map(len, order.servers.values())):
                start.set()
            await start.wait()
            begun, number = trio.current_time(), 0
            while not stop.is_set() or number < rounds():
                reading = {"server": f"s{server}", "round": number, "sent_us": time.time_ns() // 1000}
                await producer.send([{**reading, "value": number / 8}])
                number += 1
                sent[handle, server] = number
                with trio.move_on_at(begun + number * order.interval_s):
                    await stop.wait()
            await producer.wait_recorded()

    async with trio.open_nursery() as nursery:
        for handle, servers in order.servers.items():
            for server in servers:
                nursery.start_soon(produce, handle, server)
        await start.wait()
        report(event="sending")
        await trio.to_thread.run_sync(sys.stdin.read)
        stop.set()
    report(event="sent", rounds=rounds())


async def answer_reads(url: str) -> None:
    steps: dict[str, int] = {}
    async with open_store(url) as store:
        report(event="reading")
        while region := (await trio.to_thread.run_sync(sys.stdin.readline)).strip():
            report(rows=[row async for row in new_rows(store, region, steps)])


async def new_rows(store: Store, region: str, steps: dict[str, int]) -> AsyncIterator[list[Any]]:
    """Yield the rows of the steps after the one in `steps`. The first value is the time of the step in
    milliseconds.
    """
    with suppress(NoOutputError):
        async for step in read_output(store, region, "out", after_step=steps.get(region, 0)):
            steps[region] = step.step
            if step.table is not None:
                for row in zip(*(column.to_pylist() for column in step.table.columns), strict=True):
                    yield [step.time_ms, *map(str, row)]


def main() -> None:
    what, order = sys.argv[1:]
    if what == "site":
        trio.run(run_site, msgspec.json.decode(order, type=SiteOrder))
    elif what == "producers":
        trio.run(send_readings, msgspec.json.decode(order, type=ProducerOrder))
    else:
        trio.run(answer_reads, order)


if __name__ == "__main__":
    main()
