"""Measure one small append at a time, acknowledged by two of three members: with all members running, and
with one stopped (SIGSTOP).

python benchmarks/store_latency.py [--appends 1000] [--rounds 5] [--folder DIR] [--json]

A stopped member must not slow down the others: the aim is a 99th percentile of at most 1.5 times the one
without it. The two are measured alternately (A B A B), each time after the stopped member has caught up.
The ratio is the median of the rounds, because the speed of the disk varies from second to second. Exit
code 1 if the aim is missed.
"""

import argparse
import json
import os
import secrets
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import trio
from store_stream import running_servers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_client import ObjectWriter, init_store, open_store  # noqa: E402

RECORD = os.urandom(100)
AIM = 1.5
Milliseconds = list[float]


async def times(writer: ObjectWriter, count: int) -> Milliseconds:
    """Return the milliseconds of each append, until it is durable on a quorum."""
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        await writer.wait_synced(writer.append(RECORD))
        found.append(1_000 * (time.perf_counter() - begin))
    return found


async def measure(
    url: str, pids: list[int], count: int, rounds: int
) -> list[tuple[Milliseconds, Milliseconds]]:
    """Measure rounds, each with all three members and with one of them stopped, a different one each time."""
    await init_store(url)
    async with (
        open_store(url, client="store_latency") as store,
        await store.claim("bench", 1, secrets.token_bytes(16)) as claim,
    ):
        writer = claim.open_object("records")
        await times(writer, count // 2)
        found = []
        for number in range(rounds):
            while any(member.lag_bytes for member in store.members()):  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.01)
            all_running = await times(writer, count)
            os.kill(pids[number % len(pids)], signal.SIGSTOP)
            try:
                one_stopped = await times(writer, count)
            finally:
                os.kill(pids[number % len(pids)], signal.SIGCONT)
            found.append((all_running, one_stopped))
        return found


def percentiles(found: Milliseconds) -> dict[str, float]:
    """Return p50 and p99, in milliseconds."""
    cuts = statistics.quantiles(found, n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--appends", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as data,
        running_servers(Path(data), 3) as (url, pids),
    ):
        found = trio.run(measure, url, pids, options.appends, options.rounds)
    rounds = [(percentiles(there), percentiles(stopped)) for there, stopped in found]
    there, stopped = (
        {key: median(one[side][key] for one in rounds) for key in ("p50_ms", "p99_ms")} for side in (0, 1)
    )
    ratios = [one["p99_ms"] / other["p99_ms"] for other, one in rounds]
    ratio = median(ratios)
    if options.json:
        print(json.dumps({"all_running": there, "one_stopped": stopped, "ratios": ratios, "ratio": ratio}))
    else:
        for what, figures in (("all three running", there), ("one stopped", stopped)):
            print(f"{what:<16} p50 {figures['p50_ms']:.2f} ms   p99 {figures['p99_ms']:.2f} ms")
        rounds_text = ", ".join(f"{one:.2f}" for one in ratios)
        print(f"ratio of p99: {ratio:.2f}, median of {rounds_text} (aim {AIM})")
    sys.exit(0 if ratio <= AIM else 1)


if __name__ == "__main__":
    main()
