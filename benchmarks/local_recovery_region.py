"""Measure the gap of output after the loss of a worker, with local or global recovery.

benchmarks/local_recovery_region.py KEYS WORKERS local|global ROUNDS [--rate]

A region of local workers over three servers counts KEYS keys, and writes 1,000 generated rows per second.
A worker is killed (SIGKILL) ROUNDS times, after a first time that is not counted. The gap of a part of the
output: the longest time around the kill in which nothing new was in it. Prints one line of JSON: for each
round the gap of the lost worker's part, the longest of the others', and the timeline of that one by phase:

before    until the kill: the others wait for the next step anyway
notice    until the coordinator counts the worker as lost
gather    until another process has joined
claim     until that process holds the claim of the worker's directory
open      until its chains are open
load      until it is linked with its peers, and has read the state that its first steps need
start     until it is started, and its take-over is reported
steps     until the others have new output: it makes the steps of its chain again, and those that follow

With --rate nobody is killed: the keys are counted twelve times from their files, as fast as possible, and
the line has the rows per second from the first checkpoint to the end.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.recovery_region import Events, wait, write_lines  # noqa: E402
from checkpoint.core.region import CheckpointCommitted, ResetReport, WorkerLost  # noqa: E402
from dataflow import FileSink, FileSource, Graph, RateSource  # noqa: E402
from dataflow.handle import RegionHandle  # noqa: E402
from dataflow.local import run_local  # noqa: E402
from dos_client import init_store  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402

SETTLE_S = 4.0
AFTER_S = 2.0
POLL_S = 0.002
PASSES = 12
"""So often each key is counted for the rate."""


def graph_of(folder: Path) -> Graph:
    graph = Graph("gap")
    keys = graph.source("keys", FileSource(folder / "keys", watch=True))
    keys.key_by("by_key", "line").count("counts").sink("counted", FileSink(folder / "counted"))
    rows = graph.source("rows", RateSource(1_000))
    rows.key_by("by_row", "value").sink("generated", FileSink(folder / "generated"))
    return graph


class Gap(NamedTuple):
    """A time in which a part of the output did not grow."""

    seconds: float
    ended: float


class Gaps(threading.Thread):
    """Watches the parts of an output. `longest`: part -> its longest gap."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.longest: dict[str, Gap] = {}
        self._folder = folder
        self._over = threading.Event()

    def run(self) -> None:
        sizes: dict[str, tuple[int, float]] = {}
        while not self._over.wait(POLL_S):
            now = time.perf_counter()
            for path in self._folder.glob("part-*"):
                size = path.stat().st_size
                largest, at = sizes.get(path.name, (-1, now))
                if size > largest:  # a part that is cut back shows nothing new until it has grown again
                    sizes[path.name] = (size, now)
                else:
                    gap = Gap(now - at, now)
                    self.longest[path.name] = max(self.longest.get(path.name, gap), gap)

    def end(self) -> None:
        self._over.set()
        self.join()


def lose(region: RegionHandle, events: Events, worker: int, folder: Path) -> dict[str, Any]:
    """Kill a worker; return the gaps."""
    time.sleep(SETTLE_S)
    wait(lambda: region.status.standbys)  # one that still imports shows how busy the machine is
    gaps = Gaps(folder)
    gaps.start()
    time.sleep(0.5)
    quiet_s = max((gap.seconds for gap in gaps.longest.values()), default=0.0)
    killed = time.perf_counter()
    os.kill(region.status.workers[worker].pid, signal.SIGKILL)
    reported, reset = wait(lambda: events.of(ResetReport, killed))[0]
    noticed = events.of(WorkerLost, killed)[0][0]
    time.sleep(AFTER_S)
    gaps.end()
    others = max(gap for name, gap in gaps.longest.items() if f"{worker:04d}" not in name)
    lost = max(gap for name, gap in gaps.longest.items() if f"{worker:04d}" in name)
    phases_s = {"before": killed - (others.ended - others.seconds), "notice": noticed - killed}
    phases_s |= {**reset.phases_s, "steps": others.ended - reported}
    return {
        "lost_s": round(lost.seconds, 3),
        "others_s": round(others.seconds, 3),
        "quiet_s": round(quiet_s, 3),
        "phases_s": {name: round(seconds, 3) for name, seconds in phases_s.items()},
        "term": reset.term,
    }


def rate(folder: Path, url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Count every key again and again; return the rows per second."""
    graph = Graph("rate")
    lines = graph.source("keys", FileSource(sorted((folder / "keys").iterdir()), repeat=PASSES))
    lines.key_by("by_key", "line").count("counts").sink("counted", FileSink(folder / "rate"))
    events = Events()
    region = run_local(
        graph,
        name="rate",
        workers=options.workers,
        store=url,
        recovery=options.recovery,
        on_event=events,
        logs=folder / "logs",
    )
    region.awaitTermination()
    assert isinstance(region, RegionHandle)
    ended = time.perf_counter()
    first, _ = events.of(CheckpointCommitted, 0.0)[0]
    begun = region.recentProgress[0]["numInputRows"]
    return {"rows_per_s": round((PASSES * options.keys - begun) / (ended - first))}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("keys", type=int)
    parser.add_argument("workers", type=int)
    parser.add_argument("recovery", choices=["local", "global"])
    parser.add_argument("rounds", type=int)
    parser.add_argument("--rate", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        servers = [stack.enter_context(ServerProcess(folder / f"s{index}")) for index in range(3)]
        url = url_of(servers)
        trio.run(init_store, url)
        write_lines(folder / "keys", b"k%09d\n", options.keys)
        given = {"keys": options.keys, "workers": options.workers, "recovery": options.recovery}
        if options.rate:
            print(json.dumps({**given, **rate(folder, url, options)}))
            return 0
        events = Events()
        region = run_local(
            graph_of(folder),
            name="gap",
            workers=options.workers,
            store=url,
            recovery=options.recovery,
            on_event=events,
            logs=folder / "logs",
        )
        assert isinstance(region, RegionHandle)
        counted = options.keys * len(b"k%09d\t1\n" % 0)
        wait(lambda: sum(path.stat().st_size for path in (folder / "counted").glob("part-*")) >= counted)
        region.checkpoint()
        rounds = [
            lose(region, events, number % options.workers, folder / "generated")
            for number in range(options.rounds + 1)
        ]
        region.stop()
    print(json.dumps({**given, "rounds": rounds[1:]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
