"""Hand a running region over to another driver, and measure for how long it pauses, beside `replace`.

benchmarks/hand_over_region.py KEYS ROUNDS

The region of `recovery_region.py`: it counts KEYS keys, and writes 1,000 generated rows per second. It has
two local workers over three servers. ROUNDS times, a worker is replaced, and then another driver takes the
region over, with a graph that has another filter. Measured: the longest time in which the sink
of the generated rows did not grow, and the steps of the hand-over. Prints one line of JSON.
"""

import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from recovery_region import SETTLE_S, WORKERS, Events, bytes_in, wait, write_lines  # noqa: E402
from scale_region import run_measure  # noqa: E402

from checkpoint.core.region import HandOverSettled, RegionState, StateChanged  # noqa: E402
from dataflow import FileSink, FileSource, Graph, RateSource  # noqa: E402
from dataflow.handle import RegionHandle  # noqa: E402
from dataflow.local import run_local  # noqa: E402

KEY, COUNTED = b"k%09d\n", b"k%09d\t1\n"
POLL_S = 0.005
CHANGE_S_MAX = 300.0


def graph_of(folder: Path, version: int) -> Graph:
    graph = Graph("handed")
    keys = graph.source("keys", FileSource(folder / "keys", watch=True))
    if version:
        keys = keys.filter(f"version_{version}", lambda row: bool(row["line"]))
    keys.key_by("by_key", "line").count("counts").sink("counted", FileSink(folder / "counted"))
    graph.source("rows", RateSource(1_000)).sink("generated", FileSink(folder / "generated"))
    return graph


class Gap(threading.Thread):
    """Watches an output. `longest_s`: the longest time in which it did not grow."""

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

    def __enter__(self) -> "Gap":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(1.0)  # the gap ends when the output grows again
        self._over.set()
        self.join()


def hand_over(
    old: RegionHandle, seen: Events, folder: Path, url: str, number: int
) -> tuple[RegionHandle, Events, dict[str, Any]]:
    """Let another driver take the region over; return it, its events, and what was measured."""
    time.sleep(SETTLE_S)
    events, begin = Events(), time.perf_counter()
    with Gap(folder / "generated") as gap:
        heir = run_local(
            graph_of(folder, number),
            name="handed",
            store=url,
            on_event=events,
            logs=folder / f"logs{number}",
            hand_over=True,
        )
        assert isinstance(heir, RegionHandle)
        wait(lambda: heir.status.state is RegionState.RUNNING or not heir.isActive)
        assert heir.isActive, heir.status
    assert old.wait(CHANGE_S_MAX)
    steps = [(when - begin, event) for when, event in seen.of(StateChanged, begin)]
    steps += [(when - begin, event) for when, event in seen.of(HandOverSettled, begin)]
    steps += [(when - begin, event) for when, event in events.of(StateChanged, begin)]
    told = [f"{when:.3f} {event}" for when, event in sorted(steps, key=lambda one: one[0])]
    return heir, events, {"gap_s": round(gap.longest_s, 3), "steps": told}


def measure(folder: Path, url: str, keys: int, rounds: int) -> dict[str, Any]:
    write_lines(folder / "keys", KEY, keys)
    events = Events()
    region = run_local(
        graph_of(folder, 0),
        name="handed",
        workers=WORKERS,
        store=url,
        on_event=events,
        logs=folder / "logs",
    )
    assert isinstance(region, RegionHandle)
    wait(lambda: bytes_in(folder / "counted") >= keys * len(COUNTED % 0))
    region.checkpoint()
    replaced, handed = [], []
    for number in range(1, rounds + 1):
        time.sleep(SETTLE_S)
        with Gap(folder / "generated") as gap:
            settled = region.replace(0, timeout=CHANGE_S_MAX)
        replaced.append({"gap_s": round(gap.longest_s, 3), "pause_s": round(settled.pause_s, 3)})
        region, events, found = hand_over(region, events, folder, url, number)
        handed.append(found)
    region.stop()
    return {"keys": keys, "replaced": replaced, "handed": handed}


if __name__ == "__main__":
    sys.exit(run_measure(measure, __doc__ or "", "hand-over"))
