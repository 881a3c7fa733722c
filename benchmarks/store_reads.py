"""Measure the restore of an object of 1 GB from one and from two members, and the effect of hedging.

python benchmarks/store_reads.py [--megabytes 1000] [--gets 2000] [--folder DIR] [--json]

*Restore*: `stream`, which reads ahead and verifies every byte against the digest of a quorum: from one
server alone, and from a store of three of which two are available. Reports MB/s and the peak resident MB
of client and servers, which must not depend on the size of the object.

*Hedging*: GETs of 64 KiB at random positions, one after the other, in a store of three: all members
running; one member stopped (SIGSTOP); one member paused for 50 ms in every 200 ms. The last two are also
measured without hedging: the next member is then asked after the first one has not answered for 5 s.
Reports percentiles in milliseconds, and the percentage of GETs that were sent to a second member because
the first one was slow.

*Following*: milliseconds from an append of 100 bytes until a follower in the same process has received and
verified it, compared with the time until the writer receives the acknowledgement of a quorum.
"""

import argparse
import json
import math
import os
import random
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from store_stream import resident_mb, running_servers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_client import Store, connect, init_store, open_store  # noqa: E402

GET_BYTES = 64 * 1024
APPEND_BYTES = 1_000_000
STUTTER_S, STUTTER_EVERY_S = 0.05, 0.2


async def write(url: str, total: int) -> None:
    """Write one object to all members."""
    block = os.urandom(APPEND_BYTES)
    await init_store(url)
    async with (
        open_store(url, client="store_reads") as store,
        await store.claim("bench", 1, secrets.token_bytes(16)) as claim,
    ):
        writer = claim.open_object("stream")
        while writer.size < total:
            writer.append(block)
            await writer.wait_room()
        await writer.wait_synced(writer.size)
        while any(one.lag_bytes for one in store.members()):  # noqa: ASYNC110 - there is no event for it
            await trio.sleep(0.05)


async def restore(url: str) -> dict[str, float]:
    """Read the whole object. Runs in a process of its own, whose memory is measured."""
    opened = open_store if "," in url else connect
    async with opened(url, client="store_reads") as store:
        size, begin = 0, time.perf_counter()
        async for data in store.stream("bench", "stream"):
            size += len(data)
        seconds = time.perf_counter() - begin
    return {"bytes": size, "mb_per_s": size / seconds / 1e6, "client_mb": resident_mb(os.getpid())}


def restored(url: str, pids: list[int], total: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--restore", url]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    found: dict[str, float] = json.loads(text)
    assert found.pop("bytes") >= total, "bytes are missing"
    return found | {"server_mb": max(resident_mb(pid) for pid in pids)}


def restores(folder: Path, total: int) -> dict[str, dict[str, float]]:
    """Measure the restore from one member alone, and from two after the third one was killed."""
    with tempfile.TemporaryDirectory(dir=folder) as data, running_servers(Path(data), 3) as (url, pids):
        trio.run(write, url, total)
        first = re.split(",", url)[0]
        one = restored(first, pids[:1], total)
        os.kill(pids[2], signal.SIGKILL)
        return {"one server": one, "two servers": restored(url, pids[:2], total)}


async def times_of_gets(store: Store, size: int, count: int) -> dict[str, float]:
    """Return the milliseconds of GETs, one after the other, and the percentage of hedged ones."""
    rng, found = random.Random(7), []
    races, hedges = store.counts.questions, store.counts.hedges
    for _ in range(count):
        offset = rng.randrange(size // GET_BYTES - 1) * GET_BYTES
        begin = time.perf_counter()
        assert len(await store.read("bench", "stream", offset, GET_BYTES)) == GET_BYTES
        found.append(1_000 * (time.perf_counter() - begin))
    share = 100 * (store.counts.hedges - hedges) / (store.counts.questions - races)
    return percentiles(found) | {"hedged_percent": share}


def percentiles(found: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(found, n=1_000, method="inclusive")
    return {"p50_ms": cuts[499], "p99_ms": cuts[989], "p999_ms": cuts[998], "max_ms": max(found)}


@asynccontextmanager
async def paused(pid: int) -> AsyncIterator[None]:
    """Pause the process repeatedly while the block runs."""

    async def run() -> None:
        try:
            while True:
                os.kill(pid, signal.SIGSTOP)
                await trio.sleep(STUTTER_S)
                os.kill(pid, signal.SIGCONT)
                await trio.sleep(STUTTER_EVERY_S - STUTTER_S)
        finally:
            os.kill(pid, signal.SIGCONT)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield
        nursery.cancel_scope.cancel()


async def hedging(url: str, pids: list[int], size: int, count: int) -> dict[str, dict[str, float]]:
    """Measure all cases, each with its own client, which has already measured the members' response times."""
    found = {}
    for case in ("all running", "paused", "paused, not hedged", "stopped", "stopped, not hedged"):
        async with open_store(url, client="store_reads") as store:
            if case.endswith("not hedged"):
                store.pace.delay_s = lambda *_: math.inf  # type: ignore[method-assign]
            await times_of_gets(store, size, 200)
            if case == "all running":
                found[case] = await times_of_gets(store, size, count)
            elif case.startswith("paused"):
                async with paused(pids[0]):
                    found[case] = await times_of_gets(store, size, count)
            else:
                os.kill(pids[0], signal.SIGSTOP)
                try:
                    found[case] = await times_of_gets(store, size, count)
                finally:
                    os.kill(pids[0], signal.SIGCONT)
    return found


async def following(url: str, count: int) -> dict[str, dict[str, float]]:
    """Measure from an append until the writer has the acknowledgement, and until a follower has the bytes."""
    acknowledged, followed = [], []
    async with (
        open_store(url, client="store_reads") as store,
        open_store(url, client="store_reads follower") as other,
        await store.claim("follow", 1, secrets.token_bytes(16)) as claim,
    ):
        writer, seen_at = claim.open_object("x"), trio.Event()

        async def follow() -> None:
            async with aclosing(other.follow("follow", "x")) as stream:
                async for _ in stream:
                    seen_at.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for number in range(count + 50):
                seen_at = trio.Event()
                begin = time.perf_counter()
                await writer.wait_synced(writer.append(os.urandom(100)))
                middle = time.perf_counter()
                await seen_at.wait()
                if number >= 50:
                    acknowledged.append(1_000 * (middle - begin))
                    followed.append(1_000 * (time.perf_counter() - begin))
            nursery.cancel_scope.cancel()
    return {"acknowledged": percentiles(acknowledged), "followed": percentiles(followed)}


def measured(folder: Path, count: int) -> dict[str, dict[str, dict[str, float]]]:
    """Measure the latencies."""
    size = 64_000_000
    with tempfile.TemporaryDirectory(dir=folder) as data, running_servers(Path(data), 3) as (url, pids):
        trio.run(write, url, size)
        gets = trio.run(hedging, url, pids, size, count)
        return {"gets": gets, "follow": trio.run(following, url, count // 2)}


def show(found: dict[str, Any]) -> None:
    for members, one in found["restore"].items():
        print(
            f"restore from {members}: {one['mb_per_s']:.0f} MB/s, client {one['client_mb']:.0f} MB,"
            f" servers at most {one['server_mb']:.0f} MB each"
        )
    for case, one in (found["gets"] | found["follow"]).items():
        times = "   ".join(f"{key[:-3]} {one[key]:.2f}" for key in ("p50_ms", "p99_ms", "p999_ms", "max_ms"))
        share = f"   hedged {one['hedged_percent']:.1f} %" if "hedged_percent" in one else ""
        print(f"{case:<22} ms: {times}{share}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--gets", type=int, default=2_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--restore", metavar="URL", help="only restore from this URL, and print the figures")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.restore:
        print(json.dumps(trio.run(restore, options.restore)))
        return
    found = {
        "restore": restores(options.folder, options.megabytes * 1_000_000),
        **measured(options.folder, options.gets),
    }
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
