"""Programs of a site: its regions, producers, and what reads an output.

python -m tests.hosts.site_process regions ORDER    runs regions; ends with them
python -m tests.hosts.site_process producers ORDER  sends readings until standard input is closed
python -m tests.hosts.site_process read STORE       for each line REGION, prints its output so far

ORDER is JSON. Answers are lines of JSON.
"""

import json
import sys
import time
from typing import Any

import msgspec
import trio

from dataflow import EntryPoints, open_producer
from dataflow.errors import NoOutputError
from dataflow.local import run_local
from dataflow.outputs import read_output
from dos_client import open_store
from tests.hosts.site_query import GRAPHS, READING

CHECKPOINT_INTERVAL_S = 0.5


class RegionOrder(msgspec.Struct, frozen=True):
    """A region to run. sites: site -> URL of the stores that it reads."""

    name: str
    store: str
    entry: str
    sites: dict[str, str]


class ProducerOrder(msgspec.Struct, frozen=True):
    """Servers to measure. points: handle -> entry points; a producer begins with the one of its server's
    number. begin: the first round.
    """

    servers: int
    points: dict[str, list[str]]
    begin: int
    interval_s: float


def report(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def run_regions(orders: list[RegionOrder]) -> None:
    handles = [
        run_local(
            GRAPHS[order.name](order.name, order.entry, order.sites),
            name=order.name,
            workers=1,
            store=order.store,
            checkpoint_interval=CHECKPOINT_INTERVAL_S,
            standby=0,
        )
        for order in orders
    ]
    report(event="started")
    for order, handle in zip(orders, handles, strict=True):
        handle.wait()
        error = handle.exception()
        report(event="end", region=order.name, state=handle.status.state.value, error=str(error or ""))


async def send_readings(order: ProducerOrder) -> None:
    sent: dict[str, int] = {}
    start, stop = trio.Event(), trio.Event()
    opened = 0

    async def produce(handle: str, server: int) -> None:
        nonlocal opened
        addresses = order.points[handle]
        near = server % len(addresses)
        points = EntryPoints(",".join(addresses[near:] + addresses[:near]))
        name = f"{handle}-{server}"
        async with open_producer(points, handle, handle, name, READING) as producer:
            opened += 1
            if opened == order.servers * len(order.points):
                report(event="sending")
                start.set()
            await start.wait()
            number, begun = order.begin, trio.current_time()
            while not stop.is_set():
                reading = {"server": f"s{server}", "round": number, "sent_us": time.time_ns() // 1000}
                await producer.send([{**reading, "value": number / 8}])
                number += 1
                with trio.move_on_at(begun + (number - order.begin) * order.interval_s):
                    await stop.wait()
            await producer.wait_recorded()
            sent[name] = number

    async with trio.open_nursery() as nursery:
        for handle in order.points:
            for server in range(order.servers):
                nursery.start_soon(produce, handle, server)
        await start.wait()
        await trio.to_thread.run_sync(sys.stdin.read)
        stop.set()
    report(event="sent", ends=sent)


async def answer_reads(url: str) -> None:
    async with open_store(url) as store:
        report(event="reading")
        while region := (await trio.to_thread.run_sync(sys.stdin.readline)).strip():
            report(rows=await rows_of(store, region))


async def rows_of(store: Any, region: str) -> list[list[Any]]:
    """Return the rows of all steps, each with the time of its step in milliseconds as the first value."""
    found: list[list[Any]] = []
    try:
        async for step in read_output(store, region, "out"):
            if step.table is not None:
                values = [column.to_pylist() for column in step.table.columns]
                found += [[step.time_ms, *map(str, row)] for row in zip(*values, strict=True)]
    except NoOutputError:
        return []
    return found


def main() -> None:
    what, order = sys.argv[1:]
    if what == "regions":
        run_regions(msgspec.json.decode(order, type=list[RegionOrder]))
    elif what == "producers":
        trio.run(send_readings, msgspec.json.decode(order, type=ProducerOrder))
    else:
        trio.run(answer_reads, order)


if __name__ == "__main__":
    main()
