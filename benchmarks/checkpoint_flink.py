"""Measure checkpoints, recovery and a change of the parallelism of PyFlink: a count by key in its Table API.

checkpoint_flink.py checkpoint KEYS CHECKPOINTS # 1 % of the keys changed for each checkpoint_flink.py
recovery KEYS ROUNDS # a TaskManager is killed, and started again at once checkpoint_flink.py scale KEYS
ROUNDS # from 2 to 3 and back: stop with a savepoint, start

`flink_cluster.py` has the cluster and the job. It has a task slot for each of two subtasks, three in
`scale`. A checkpoint is taken every second in `recovery` and `scale`. Prints one line of JSON.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from flink_cluster import CAP_S, Cluster, from_files, from_socket
from word_feed import WordFeed

PART_KEYS = 50_000
PACE_S = 0.02
RECOVERY_ROWS_PER_S = 5_000
SCALE_ROWS_PER_S = 1_000
SCALE_S_MAX = 300.0
"""So many rows are generated for the measurement of `scale`."""
SETTLE_S = 3.0
"""Between two changes of the parallelism."""
CHANGED = 0.01
PROBES = 64
"""Keys that are sent last when the state is built: after all of these are counted, so are those before."""
RECOVERIES_S = 90.0
"""No further measurement is begun after this time."""


def preload(cluster: Cluster, feed: WordFeed, keys: int) -> None:
    for begin in range(0, keys, PART_KEYS):
        feed.send(range(begin, min(begin + PART_KEYS, keys)), timed=False)
    wanted = set(range(0, keys, max(keys // PROBES, 1)))
    feed.send(wanted)
    cluster.until(lambda: wanted <= cluster.probes)


def checkpoint(cluster: Cluster, feed: WordFeed, job: str, keys: int, cuts: int) -> dict[str, Any]:
    """Measure checkpoints from the trigger to the end, as Flink reports it."""
    preload(cluster, feed, keys)
    rng, found = random.Random(1), []
    for number in range(cuts + 1):  # the first one contains all keys
        sent = feed.send(rng.sample(range(keys), int(keys * CHANGED)))
        cluster.visible(sent - 1e-6)
        time.sleep(0.3)  # the rows after the first one that was printed
        cluster.ask(f"/jobs/{job}/checkpoints", {"checkpointType": "CONFIGURED"})
        done: dict[str, Any] = {}
        deadline = time.monotonic() + CAP_S
        while done.get("count", 0) <= number:
            if time.monotonic() > deadline:
                raise RuntimeError("Flink's checkpoint did not complete")
            time.sleep(0.05)
            answer = cluster.ask(f"/jobs/{job}/checkpoints")
            done = {"count": answer["counts"]["completed"], **(answer["latest"]["completed"] or {})}
        found.append(done["end_to_end_duration"] / 1000)
    return {
        "keys": keys,
        "cuts": cuts,
        "median_s": statistics.median(found[1:]),
        "max_s": max(found[1:]),
        "first_s": found[0],
    }


def recovery(cluster: Cluster, feed: WordFeed, job: str, keys: int, rounds: int) -> dict[str, Any]:
    """Measure the seconds from the SIGKILL of a TaskManager until output of later input is visible."""
    preload(cluster, feed, keys)
    feed.paced(keys, RECOVERY_ROWS_PER_S, PACE_S)
    seconds: list[float] = []
    begun = time.monotonic()
    for number in range(rounds):
        if time.monotonic() > begun + RECOVERIES_S:
            break  # at least one was completed
        before = cluster.ask(f"/jobs/{job}/checkpoints")["counts"]["completed"]
        deadline = time.monotonic() + CAP_S
        while cluster.ask(f"/jobs/{job}/checkpoints")["counts"]["completed"] < before + 2:
            if time.monotonic() > deadline:
                raise RuntimeError("Flink made no checkpoints")
            time.sleep(0.1)
        killed = cluster.kill_manager(number % 2)
        # the other one still prints output of lines that it had read; the job must have gone back first
        while cluster.ask(f"/jobs/{job}/checkpoints")["counts"]["restored"] <= number:
            if time.monotonic() > deadline + CAP_S:
                raise RuntimeError("Flink did not restore")
            time.sleep(0.02)
        restored = time.time()
        seconds.append(round(cluster.visible(restored) - killed, 3))
        print(f"Flink is back after {seconds[-1]} s", file=sys.stderr, flush=True)
    return {"keys": keys, "seconds": seconds}


def scale(cluster: Cluster, keys: int, rounds: int) -> dict[str, Any]:
    """Change the parallelism from 2 to 3 and back, `rounds` times after a first time that is not counted.

    pause_s: the longest time between two rows of output. seconds: from the request until all subtasks of the
    new job run and its output is visible. savepoint_s: the part of that until the savepoint is complete.
    """
    stored, paced, rng = cluster.folder / "stored", cluster.folder / "paced", random.Random(2)
    wanted = set(range(0, keys, max(keys // PROBES, 1)))
    lines = [f"k{key:07d} 0\n" for key in range(keys)] + [f"k{key:07d} 1\n" for key in wanted]
    stored.write_text("".join(lines))
    count = int(SCALE_ROWS_PER_S * SCALE_S_MAX)
    paced.write_text("".join(f"k{rng.randrange(keys):07d} 1\n" for _ in range(count)))
    read = from_files(stored, paced, SCALE_ROWS_PER_S)
    job = cluster.submit(read)
    cluster.until(lambda: wanted <= cluster.probes)
    changes: list[dict[str, Any]] = []
    for parallelism in (3, 2) * (rounds + 1):
        time.sleep(SETTLE_S)
        began = time.time()
        savepoint = cluster.stop_with_savepoint(job)
        stopped = time.time()
        job = cluster.submit(read, parallelism, savepoint)
        cluster.wait_until_running(job)
        running = time.time()
        cluster.until(lambda running=running: cluster.printed[-1] > running)
        shown = [when for when in cluster.printed if began - 1 < when]
        before, back = max(pairwise(shown), key=lambda two: two[1] - two[0])
        changes.append(
            {
                "workers": parallelism,
                "pause_s": round(back - before, 3),
                "seconds": round(max(running, back) - began, 3),
                "savepoint_s": round(stopped - began, 3),
            }
        )
        print(f"Flink: {changes[-1]}", file=sys.stderr, flush=True)
    return {"keys": keys, "changes": changes[2:]}


def of_socket(measure: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a measurement of a job that reads the lines of a `WordFeed`."""

    def measured(cluster: Cluster, keys: int, count: int) -> dict[str, Any]:
        feed = WordFeed()
        try:
            return measure(cluster, feed, cluster.submit(from_socket(feed.port)), keys, count)
        finally:
            feed.close()

    return measured


MEASURES: dict[str, tuple[Callable[..., dict[str, Any]], str, int]] = {
    "checkpoint": (of_socket(checkpoint), "1 h", 2),
    "recovery": (of_socket(recovery), "1 s", 2),
    "scale": (scale, "1 s", 3),
}
"""Each measurement, with the interval of the checkpoints and the number of TaskManagers."""


def main() -> None:
    what, keys, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    measure, interval, managers = MEASURES[what]
    with (
        tempfile.TemporaryDirectory(prefix="dos-flink-", ignore_cleanup_errors=True) as name,
        ExitStack() as stack,
    ):
        cluster = Cluster(Path(name), interval, managers)
        stack.callback(cluster.close)
        cluster.wait_for_slots()
        print(json.dumps(measure(cluster, keys, count)), flush=True)


if __name__ == "__main__":
    main()
