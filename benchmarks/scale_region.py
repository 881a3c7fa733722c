"""Change the number of workers of a running region, again and again, and measure for how long it pauses.

benchmarks/scale_region.py KEYS ROUNDS

The region of `recovery_region.py`: it counts KEYS keys, and writes 1,000 generated rows per second. It has
two local workers over three servers, and goes to three and back ROUNDS times. Measured: the time without
input (`pause_s`) and the whole change as the region reports them, and the longest time in which the sink
of the generated rows did not grow; from the checkpoints before and after, how many rows moved.

Then the same again while there always is input to count. Measured: the rows that are counted per second,
before a change is requested, and from then until the region pauses, which is the time in which workers are
launched and state is copied. Prints one line of JSON.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import numpy as np
import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from recovery_region import FILES, SETTLE_S, WORKERS, Events, bytes_in, graph_of, wait, write_lines  # noqa: E402

from checkpoint.chains.manifest_log import read_manifest  # noqa: E402
from checkpoint.chains.state_blocks import HASH_COLUMN, StateFold, encode_block  # noqa: E402
from checkpoint.chains.state_store import blocks_at  # noqa: E402
from checkpoint.core.records.manifest import Checkpoint  # noqa: E402
from dataflow.handle import RegionHandle  # noqa: E402
from dataflow.local import run_local  # noqa: E402
from dos_client import init_store, open_store  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402

REGION = "scaled"
KEY = b"k%09d\n"
COUNTED = b"k%09d\t1\n"
CHANGE_S_MAX = 300.0
POLL_S = 0.005
AFTERWARDS_S = 1.0
"""After a change the output is watched for so long: the gap ends when it grows again."""
BEFORE_S = 3.0
"""For so long before a change the rate of the input is measured."""
ROWS_AHEAD = 4_000_000
"""So much input is always there to count."""


class Watch(threading.Thread):
    """Watches the outputs of a region while its workers change.

    longest_s: the longest time in which the generated rows did not grow. copied_bytes: what the workers read
    before the pause. pauses_at: when it began. grown: when the counts grew, and their bytes.
    """

    def __init__(self, region: RegionHandle, folder: Path) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.copied_bytes = 0
        self.pauses_at = 0.0
        self.grown: list[tuple[float, int]] = []
        self._region = region
        self._folder = folder
        self._over = threading.Event()

    def run(self) -> None:
        size, since = bytes_in(self._folder / "generated"), time.perf_counter()
        while not self._over.wait(POLL_S):
            now, counted, at = *map(bytes_in, self._sinks()), time.perf_counter()
            self.longest_s = max(self.longest_s, at - since)
            if now != size:
                size, since = now, at
            if not self.grown or counted != self.grown[-1][1]:
                self.grown.append((at, counted))
            if (change := self._region.status.scaling) is not None:
                self.copied_bytes = max(self.copied_bytes, change.copied_bytes)
                if not self.pauses_at and change.phase in ("pausing", "moving state"):
                    self.pauses_at = at

    def _sinks(self) -> tuple[Path, Path]:
        return self._folder / "generated", self._folder / "counted"

    def rows_per_s(self, begin: float, end: float) -> float:
        """Return the rows counted per second. Rows that are visible together count as evenly spread over the
        time since those before.
        """
        first, last = np.interp([begin, end], *zip(*self.grown, strict=True))
        return float((last - first) / len(COUNTED % 0) / (end - begin))

    def end(self) -> None:
        self._over.set()
        self.join()


class Feeder(threading.Thread):
    """Appends every key to the input again and again, `ROWS_AHEAD` before what is counted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._keys, self._counted = folder / "keys", folder / "counted"
        self._passes = [path.read_bytes() for path in sorted(self._keys.iterdir())]
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(POLL_S):
            ahead = bytes_in(self._keys) / len(KEY % 0) - bytes_in(self._counted) / len(COUNTED % 0)
            if ahead < ROWS_AHEAD:
                for number, lines in enumerate(self._passes):
                    with (self._keys / f"part-{number}").open("ab") as file:
                        file.write(lines)

    def end(self) -> None:
        self._over.set()
        self.join()


def change(region: RegionHandle, workers: int, folder: Path) -> dict[str, Any]:
    """Go to that number of workers; return the times, and the rates of the input before and meanwhile."""
    time.sleep(SETTLE_S - BEFORE_S)
    watch = Watch(region, folder)
    watch.start()
    time.sleep(BEFORE_S)
    asked = time.perf_counter()
    settled = region.scale(workers, CHANGE_S_MAX)
    time.sleep(AFTERWARDS_S)
    watch.end()
    return {
        "workers": workers,
        "pause_s": round(settled.pause_s, 3),
        "seconds": round(settled.seconds, 3),
        "gap_s": round(watch.longest_s, 3),
        "copied_bytes": watch.copied_bytes,
        "copy_s": round(watch.pauses_at - asked, 3),
        "rows_per_s": round(watch.rows_per_s(asked - BEFORE_S, asked)),
        "copying_rows_per_s": round(watch.rows_per_s(asked, watch.pauses_at)),
    }


async def checkpoint_of(url: str, number: int = 0) -> Checkpoint:
    """Return a checkpoint of the region, 0 for the last one."""
    async with open_store(url) as store:
        view = await read_manifest(store, REGION)
        assert view.last is not None
        return view.restorable(number or view.last.number)


async def moved(url: str, before: Checkpoint, after: Checkpoint) -> dict[str, int]:
    """Return how many rows of the counts other workers have after a change, the bytes of these rows as
    blocks, and the rows of all workers.
    """
    lasts, of_ranges = before.layout.upper_bounds("counts")
    bounds, owners = np.array(lasts, np.uint64), np.array(of_ranges)
    rows = moved_rows = moved_bytes = 0
    async with open_store(url) as store:
        for worker, part in after.workers.items():
            fold = StateFold()
            async with aclosing(blocks_at(store, REGION, worker, part.state)) as blocks:
                async for block in blocks:
                    if block.operator == "counts":
                        fold.add(block.operator, block.decoded())
            state = fold.take("counts")
            hashes = state.column(HASH_COLUMN).to_numpy()
            came = state.filter(owners[np.searchsorted(bounds, hashes)] != worker)
            rows, moved_rows = rows + state.num_rows, moved_rows + came.num_rows
            moved_bytes += sum(map(len, encode_block(came)))
    return {"rows": rows, "moved_rows": moved_rows, "moved_bytes": moved_bytes}


def measure(folder: Path, url: str, keys: int, rounds: int) -> dict[str, Any]:
    write_lines(folder / "keys", KEY, keys)
    assert len(list((folder / "keys").iterdir())) == FILES
    (folder / "lines").mkdir()
    region = run_local(
        graph_of(folder), name=REGION, workers=WORKERS, store=url, on_event=Events(), logs=folder / "logs"
    )
    assert isinstance(region, RegionHandle)
    wait(lambda: bytes_in(folder / "counted") >= keys * len(COUNTED % 0))
    region.checkpoint()
    idle = []
    changes = [WORKERS + 1, WORKERS] * rounds
    for workers in changes:
        before = trio.run(checkpoint_of, url)
        found = change(region, workers, folder)
        held = region.savepoint("measured")  # so that it is not released while it is read
        idle.append({**found, **trio.run(moved, url, before, trio.run(checkpoint_of, url, held))})
        region.drop_savepoint("measured")
    feeder = Feeder(folder)
    feeder.start()
    busy = [change(region, workers, folder) for workers in changes]
    feeder.end()
    region.stop()
    return {"keys": keys, "changes": idle, "with_input": busy}


def run_measure(measure: Callable[[Path, str, int, int], dict[str, Any]], text: str, name: str) -> int:
    """Print as one line of JSON what `measure(folder, url, keys, rounds)` finds on three servers; keys and
    rounds are those of the command line. text: of the program. name: begins that of its folder.
    """
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("keys", type=int)
    parser.add_argument("rounds", type=int)
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"dos-{name}-")))
        servers = [stack.enter_context(ServerProcess(folder / f"s{number}")) for number in range(3)]
        url = url_of(servers)
        trio.run(lambda: init_store(url))
        print(json.dumps(measure(folder, url, asked.keys, asked.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(run_measure(measure, __doc__ or "", "scale"))
