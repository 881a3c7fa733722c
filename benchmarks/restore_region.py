"""Compare the restore of an older checkpoint with an ordinary reset, and the start of a fork with that of the
original, for a size of state.

benchmarks/restore_region.py KEYS ROUNDS

A region of two local workers over three servers counts KEYS keys and writes 1,000 generated rows per
second. Then, ROUNDS times: it is reset by hand; it is restored to a savepoint; it is forked, and the fork
is run; original and fork are stopped, and the original is started again. Times until the first output are
measured from the call until the sink of the generated rows has grown again. Prints one line of JSON.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.recovery_region import Events, bytes_in, wait, write_lines  # noqa: E402
from checkpoint.blocking import delete_region, fork  # noqa: E402
from checkpoint.core.region import ResetReport  # noqa: E402
from dataflow import FileSink, FileSource, Graph, RateSource  # noqa: E402
from dataflow.handle import RegionHandle  # noqa: E402
from dataflow.local import run_local  # noqa: E402
from dos_client import init_store  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402

WORKERS = 2
NAME = "original"


def graph_of(keys: Path, out: Path) -> Graph:
    graph = Graph("restored")
    lines = graph.source("keys", FileSource(keys, watch=True))
    lines.key_by("by_key", "line").count("counts").sink("counted", FileSink(out / "counted"))
    graph.source("rows", RateSource(1_000)).sink("generated", FileSink(out / "generated"))
    return graph


class Bench:
    """The store, the folders and the regions of one run."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.events = Events()

    def run(self, name: str) -> RegionHandle:
        region = run_local(
            graph_of(self.folder / "keys", self.folder / name),
            name=name,
            workers=WORKERS,
            store=self.url,
            on_event=self.events,
            logs=self.folder / "logs" / name,
        )
        assert isinstance(region, RegionHandle)
        return region

    def grown(self, name: str, than: int) -> Callable[[], bool]:
        """Return whether the sink of the generated rows has more bytes."""
        return lambda: bytes_in(self.folder / name / "generated") > than

    def until_output(self, act: Callable[[], object]) -> dict[str, Any]:
        """Return the seconds until the original writes output again after a reset that `act` causes."""
        begin = time.perf_counter()
        act()
        _, report = wait(lambda: self.events.of(ResetReport, begin))[0]
        wait(self.grown(NAME, bytes_in(self.folder / NAME / "generated")))
        seconds = time.perf_counter() - begin
        return {"seconds": round(seconds, 3), "reset_s": round(report.seconds, 3)}

    def started(self, name: str) -> tuple[RegionHandle, float]:
        """Return a region, and the seconds from its start until it writes output."""
        before, begin = bytes_in(self.folder / name / "generated"), time.perf_counter()
        region = self.run(name)
        wait(self.grown(name, before))
        return region, round(time.perf_counter() - begin, 3)


def measure(folder: Path, url: str, keys: int, rounds: int) -> dict[str, list[Any]]:
    write_lines(folder / "keys", b"k%09d\n", keys)
    bench = Bench(folder, url)
    region = bench.run(NAME)
    wait(lambda: bytes_in(folder / NAME / "counted") >= keys * len(b"k%09d\t1\n" % 0))
    region.checkpoint()
    region.savepoint("begin", timeout=60.0)
    found: dict[str, list[Any]] = {one: [] for one in ("reset", "restore", "fork", "fork_start", "start")}
    for number in range(rounds + 1):  # the first round warms up
        region.checkpoint()
        found["reset"].append(bench.until_output(region.reset))
        region.checkpoint()
        found["restore"].append(bench.until_output(partial(region.restore, "savepoint:begin")))
        region.checkpoint()
        new, begin = f"fork-{number}", time.perf_counter()
        fork(url, NAME, new)
        found["fork"].append(round(time.perf_counter() - begin, 3))
        region.stop()
        forked, seconds = bench.started(new)
        found["fork_start"].append(seconds)
        forked.stop()
        delete_region(url, new, stopped=True)
        region, seconds = bench.started(NAME)
        found["start"].append(seconds)
    region.stop()
    return {name: values[1:] for name, values in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("keys", type=int)
    parser.add_argument("rounds", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        servers = [stack.enter_context(ServerProcess(folder / f"s{index}")) for index in range(3)]
        url = url_of(servers)
        trio.run(init_store, url)
        found = measure(folder, url, options.keys, options.rounds)
    print(json.dumps({"keys": options.keys, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
