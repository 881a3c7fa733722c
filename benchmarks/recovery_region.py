"""Compare the predicted time of a recovery with the measured one, for a size of state and of output.

benchmarks/recovery_region.py KEYS OUTPUT_MB ROUNDS [--held-mb N] [--warm-standby]

A region of two local workers over three servers, with three branches: it counts KEYS keys, it copies lines
until its sink has written OUTPUT_MB, and it writes 1,000 generated rows per second. Then a worker is
killed (SIGKILL), alternately, ROUNDS times after a first time that is not counted: before it, no launch of
a single worker was measured. `--held-mb`: a fourth branch keeps so much state, which does not compress, on
the disk of the workers. `--warm-standby`: each worker has a stand-by that loads its state.

Predicted: `status.recovery` just before the kill. Measured: from the detection of the loss until the sink
of the generated rows has written again what it had written when the worker was killed. Prints one line of
JSON.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from checkpoint.core.progress import as_json  # noqa: E402
from checkpoint.core.region import RegionEvent, ResetReport  # noqa: E402
from dataflow import FileSink, FileSource, Graph, KeyState, RateSource  # noqa: E402
from dataflow.handle import RegionHandle  # noqa: E402
from dataflow.local import run_local  # noqa: E402
from dos_client import init_store  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402

WORKERS = 2
FILES = 8
LINE = b"%09d this line is copied from the input to the output of the region, and to nothing else\n"
SETTLE_S = 4.0
"""Between a recovery and the next kill: after this time a stand-by is ready again."""
HELD_BYTES = 64 << 10
"""Of each key that is kept on disk."""
HELD_PER_S = 500
LOADED_BEHIND = 4
"""A warm stand-by loads every few checkpoints."""
WAIT_S_MAX = 900.0
POLL_S = 0.005


class Events:
    """The events of the region, with the time of each."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, RegionEvent]] = []
        self._lock = threading.Lock()

    def __call__(self, event: RegionEvent) -> None:
        with self._lock:
            self.seen.append((time.perf_counter(), event))

    def of(self, kind: type, after: float) -> list[tuple[float, Any]]:
        with self._lock:
            return [(when, event) for when, event in self.seen if when > after and isinstance(event, kind)]


def write_lines(folder: Path, line: bytes, count: int) -> None:
    """Write that many different lines to eight files, which both workers share."""
    folder.mkdir()
    for number in range(FILES):
        with (folder / f"part-{number}").open("wb") as file:
            for begin in range(number, count, FILES * 10_000):
                end = min(begin + FILES * 10_000, count)
                file.write(b"".join(line % one for one in range(begin, end, FILES)))


def keep(row: dict[str, Any], state: KeyState) -> Iterator[tuple[int]]:
    state.value = {"kept": random.Random(row["value"]).randbytes(HELD_BYTES)}
    yield (row["value"],)


def held_of(graph: Graph, folder: Path, keys: int) -> None:
    """Add a branch that keeps a value of `HELD_BYTES` for each of these keys."""
    rows = graph.source("held_rows", RateSource(HELD_PER_S, rows=keys))
    timed = rows.event_time("timed", "timestamp", lateness=timedelta(0))
    timed.key_by("by_value", "value").map_state(
        "held", keep, time="timestamp", state="kept binary", schema="value bigint", state_on="disk"
    ).sink("kept", FileSink(folder / "kept"))


def graph_of(folder: Path) -> Graph:
    graph = Graph("recovery")
    keys = graph.source("keys", FileSource(folder / "keys", watch=True))
    keys.key_by("by_key", "line").count("counts").sink("counted", FileSink(folder / "counted"))
    lines = graph.source("lines", FileSource(folder / "lines", watch=True))
    lines.sink("copied", FileSink(folder / "copied"))
    graph.source("rows", RateSource(1_000)).sink("generated", FileSink(folder / "generated"))
    return graph


def wait(until: Callable[[], Any]) -> Any:
    """Return the first result of `until` that is true."""
    deadline = time.perf_counter() + WAIT_S_MAX
    while not (found := until()):
        if time.perf_counter() > deadline:
            raise RuntimeError(f"the region did not get there within {WAIT_S_MAX:.0f} s")
        time.sleep(POLL_S)
    return found


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("part-*"))


def all_loaded(region: RegionHandle) -> bool:
    """Return whether all warm stand-bys have loaded all but the last checkpoints."""
    status = region.status
    loaded = [worker.warm_standby for worker in status.workers]
    return all(one is not None and one >= status.last_checkpoint - LOADED_BEHIND for one in loaded)


def recover(
    region: RegionHandle, events: Events, worker: int, output: Path, *, warm_standby: bool
) -> dict[str, Any]:
    """Kill a worker, whose stand-by has state, if it may; return the predicted and the measured recovery."""
    time.sleep(SETTLE_S)
    if warm_standby:
        wait(lambda: all_loaded(region))
    status = region.status
    predicted = as_json(status.recovery)
    written = bytes_in(output)
    killed = time.perf_counter()
    os.kill(status.workers[worker].pid, signal.SIGKILL)
    reported, reset = wait(lambda: events.of(ResetReport, killed))[0]
    wait(lambda: bytes_in(output) >= written)
    again = time.perf_counter()
    noticed = reported - reset.seconds
    return {
        "predicted": predicted,
        "seconds": round(again - noticed, 3),
        "reset_s": round(reset.seconds, 3),
        "phases_s": {name: round(seconds, 3) for name, seconds in reset.phases_s.items()},
    }


def measure(folder: Path, url: str, options: argparse.Namespace) -> Sequence[dict[str, Any]]:
    keys, rounds = options.keys, options.rounds
    lines = int(options.output_mb * 1e6 / len(LINE % 0))
    write_lines(folder / "keys", b"k%09d\n", keys)
    write_lines(folder / "lines", LINE, lines)
    graph, held = graph_of(folder), int(options.held_mb * 1e6 / HELD_BYTES)
    if held:
        held_of(graph, folder, held)
    events = Events()
    region = run_local(
        graph,
        name="recovery",
        workers=WORKERS,
        store=url,
        on_event=events,
        logs=folder / "logs",
        scratch=folder / "scratch",
        warm_standby=options.warm_standby,
    )
    assert isinstance(region, RegionHandle)
    wait(lambda: bytes_in(folder / "copied") >= lines * len(LINE % 0))
    wait(lambda: bytes_in(folder / "counted") >= keys * len(b"k%09d\t1\n" % 0))
    wait(lambda: sum(path.read_bytes().count(b"\n") for path in folder.glob("kept/part-*")) >= held)
    region.checkpoint()
    found = [
        recover(region, events, number % WORKERS, folder / "generated", warm_standby=options.warm_standby)
        for number in range(rounds + 1)
    ]
    region.stop()
    return found[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("keys", type=int)
    parser.add_argument("output_mb", type=float)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--held-mb", type=float, default=0)
    parser.add_argument("--warm-standby", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        servers = [stack.enter_context(ServerProcess(folder / f"s{index}")) for index in range(3)]
        url = url_of(servers)
        trio.run(init_store, url)
        found = measure(folder, url, options)
    print(json.dumps({"keys": options.keys, "output_mb": options.output_mb, "rounds": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
