"""Change the number of workers of a running region, again and again, and measure for how long it pauses.

    benchmarks/scale_region.py KEYS ROUNDS

The region of `recovery_region.py`: it counts KEYS keys, and writes 1,000 generated rows per second. It has
two local workers over three servers, and goes to three and back ROUNDS times. Measured: the time without
input (`pause_s`) and the whole change as the region reports them, and the longest time in which the sink of
the generated rows did not grow. Prints one line of JSON.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from recovery_region import SETTLE_S, WORKERS, Events, bytes_in, graph_of, wait, write_lines  # noqa: E402

from dataflow.handle import RegionHandle  # noqa: E402
from dataflow.local import run_local  # noqa: E402
from dos_client import init_store  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402

CHANGE_S_MAX = 300.0
POLL_S = 0.005
AFTERWARDS_S = 1.0
"""After a change the output is watched for so long: the gap ends when it grows again."""


class Gaps(threading.Thread):
    """Watches the output of a sink. `longest_s`: the longest time without growth."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self._folder = folder
        self._over = threading.Event()

    def run(self) -> None:
        size, since = bytes_in(self._folder), time.perf_counter()
        while not self._over.wait(POLL_S):
            now, at = bytes_in(self._folder), time.perf_counter()
            self.longest_s = max(self.longest_s, at - since)
            if now != size:
                size, since = now, at

    def end(self) -> float:
        self._over.set()
        self.join()
        return self.longest_s


def change(region: RegionHandle, workers: int, output: Path) -> dict[str, Any]:
    """Go to that number of workers; return the times."""
    time.sleep(SETTLE_S)
    gaps = Gaps(output)
    gaps.start()
    settled = region.scale(workers, CHANGE_S_MAX)
    time.sleep(AFTERWARDS_S)
    return {
        "workers": workers,
        "pause_s": round(settled.pause_s, 3),
        "seconds": round(settled.seconds, 3),
        "gap_s": round(gaps.end(), 3),
    }


def measure(folder: Path, url: str, keys: int, rounds: int) -> list[dict[str, Any]]:
    write_lines(folder / "keys", b"k%09d\n", keys)
    (folder / "lines").mkdir()
    region = run_local(
        graph_of(folder), name="scaled", workers=WORKERS, store=url, on_event=Events(), logs=folder / "logs"
    )
    assert isinstance(region, RegionHandle)
    wait(lambda: bytes_in(folder / "counted") >= keys * len(b"k%09d\t1\n" % 0))
    region.checkpoint()
    changes = [WORKERS + 1, WORKERS] * rounds
    found = [change(region, workers, folder / "generated") for workers in changes]
    region.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("keys", type=int)
    parser.add_argument("rounds", type=int)
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dos-scale-")))
        servers = [stack.enter_context(ServerProcess(folder / f"s{number}")) for number in range(3)]
        url = url_of(servers)
        trio.run(lambda: init_store(url))
        print(json.dumps({"keys": asked.keys, "changes": measure(folder, url, asked.keys, asked.rounds)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
