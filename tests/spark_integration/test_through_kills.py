"""`through` as a whole, a stream and a batch, on three real servers and a Spark of its own, which are killed:
the driver with its JVM, workers, a server. Called again with the same arguments it gives what a run without
any of that gives, byte for byte.

Nobody sleeps here until a moment might have come. Functions of the program wait at places where they are held
(`through_program`), so that what is to be killed was seen to be where it should.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil
import pytest
import trio

from dataflow.testing import Trial
from dos_client import init_store
from tests.spark_integration.conftest import WARM_DAEMON
from tests.spark_integration.through_program import (
    FILES,
    FRAMES,
    LINES,
    LOOK_S,
    NAMES,
    WORKERS,
    Holds,
    as_bytes,
    graph_of,
    line,
)
from tests.support.parts import with_long
from tests.support.servers import ServerProcess, three_servers, url_of
from tests.support.spark_driver import END_S_MAX, SparkDriver

__all__ = ["three_servers"]
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(500)]
SETTINGS = f"--conf spark.python.daemon.module={WARM_DAEMON} --conf spark.sql.streaming.pollingDelay=100ms"
"""Of the shared sessions too: less time of a core for the same."""
MOMENT_S_MAX = 150.0


class Killed(SparkDriver):
    """One process of the program, and what it says."""

    def __init__(self, url: str, folder: Path, runs: Iterable[str] = FILES) -> None:
        own = Path(mkdtemp(prefix="program", dir=folder))
        module = "tests.spark_integration.through_program"
        log = own / "program.log"
        super().__init__(module, [url, folder, own], folder=folder, log=log, settings=SETTINGS)
        self.order(*runs)

    def order(self, *runs: str) -> None:
        self.write("".join(f"{run}\n" for run in runs))

    def heard(self, run: str, event: str) -> list[dict[str, Any]]:
        """What it said of that kind, in order."""
        return [one for one in list(self.said) if (one["run"], one["event"]) == (run, event)]

    def has_joined(self, runs: Iterable[str]) -> bool:
        """Return whether a worker of each run has joined."""
        return all(self.heard(run, "joined") for run in runs)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a moment. Raises AssertionError if the program fails, or it does not come."""
        deadline = time.monotonic() + MOMENT_S_MAX
        while not condition():
            failed = any(one["event"] == "failed" for one in self.said)
            alive = self.process.poll() is None and time.monotonic() < deadline
            assert alive, self.words()
            assert not failed, self.words()
            time.sleep(LOOK_S)

    def worker(self, run: str, worker: int) -> psutil.Process:
        """The process of a worker, as it last joined. It is one of Spark's."""
        (*_, joined) = [one for one in self.heard(run, "joined") if one["worker"] == worker]
        process = psutil.Process(joined["pid"])
        assert "pyspark" in " ".join(process.cmdline())
        return process

    def finish(self) -> None:
        """No more orders: it ends on its own."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(END_S_MAX) == 0


def undisturbed(folder: Path, run: str) -> bytes:
    """The output of the same graph with nothing around it that could be killed."""
    trial = Trial(graph_of(Holds(folder), run, "value string"))
    for number in range(FILES[run]):
        lines = range(number * LINES, (number + 1) * LINES)
        trial.step({"lines": [{"value": line(one)} for one in lines]})
    rows = trial.rows("out")
    assert [row["number"] for row in rows] == list(range(FILES[run] * LINES))
    return as_bytes([tuple(row.values()) for row in rows])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for run, files in (FILES | FRAMES).items():
        (tmp_path / run).mkdir()
        for number in range(files):
            path = tmp_path / run / f"{number}.txt"
            path.write_text("".join(f"{line(number * LINES + one)}\n" for one in range(LINES)))
            os.utime(path, (1_700_000_000 + number,) * 2)  # a stream takes the oldest first
    return tmp_path


def under_way(checkpoint: Path) -> tuple[int, set[int]]:
    """Of a query: how many micro-batches are committed, and which were begun and are not."""
    begun, committed = (
        {int(path.name) for path in (checkpoint / log).glob("[0-9]*")} for log in ("offsets", "commits")
    )
    return len(committed), begun - committed


# EVIDENCE-OF: P-7, P-10
def test_killed_anywhere_and_called_again_through_gives_what_an_undisturbed_run_gives(
    three_servers: list[ServerProcess], folder: Path
) -> None:
    trio.run(init_store, url_of(three_servers))
    holds = Holds(folder)
    with ExitStack() as stack:

        def start() -> Killed:
            return stack.enter_context(Killed(url_of(three_servers), folder))

        # Of the stream: the first micro-batch is recorded, and its rows are on the way into the table. Of the
        # batch: nothing is recorded.
        moment = ["stream.reading0", "batch.feeding0"]
        holds.hold(*moment)
        program = start()
        program.until(lambda: all(map(holds.reached, moment)))
        assert program.heard("stream", "checkpoint")
        assert under_way(folder / "checkpoint") == (0, {0})
        program.kill()
        holds.release(*moment)

        # Of the stream: its workers are given back their state. Of the batch: it is recorded, in the middle.
        moment = ["stream.restoring", "batch.graph6"]
        holds.hold(*moment, "batch.feeding6")
        program = start()
        # What the graph waits for must not be in the step that this checkpoint needs.
        program.until(lambda: bool(program.heard("batch", "checkpoint")))
        holds.release("batch.feeding6")
        program.until(lambda: all(map(holds.reached, moment)))
        assert program.heard("stream", "state")[-1]["state"] == "RESTORING"
        program.kill()
        holds.release(*moment)

        # A worker while a micro-batch is in it, and the last one while they restore; then a server.
        last_but_one, last = (
            {run: f"{run}.graph{files - at}" for run, files in FILES.items()} for at in (2, 1)
        )
        holds.hold(*last_but_one.values())
        program = start()
        for run in FILES:
            program.until(partial(holds.reached, last_but_one[run]))
            holds.hold(f"{run}.restoring", last[run])
            program.worker(run, 0).kill()
            holds.release(last_but_one[run])
            program.until(partial(holds.reached, f"{run}.restoring"))
            program.worker(run, WORKERS[run] - 1).kill()
            holds.release(f"{run}.restoring")
        program.until(lambda: all(map(holds.reached, last.values())))
        three_servers[1].kill()
        holds.release(*last.values())
        program.until(lambda: all(program.heard(run, "done") for run in FILES))
        assert all(program.heard(run, "reset") for run in FILES)
        program.finish()

    for run in FILES:
        expected = undisturbed(folder, run)
        assert (folder / f"{run}.rows").read_bytes() == expected


def all_reached(holds: Holds, places: list[str]) -> bool:
    return all(map(holds.reached, places))


JOINED = ["parquet.reading0", "each.writing0"]
"""The workers have joined. The first micro-batch may be recorded, and Spark has not committed it."""
MOMENTS = [["parquet.feeding1", "each.writing0"], ["parquet.reading1", "each.feeding2"]]
"""Before the rows of a micro-batch are on their way to the region, or after it is recorded."""


# EVIDENCE-OF: P-7, P-10
@pytest.mark.parametrize(
    "moments", with_long([MOMENTS[:1]], [[JOINED, *MOMENTS]]), ids=lambda moments: f"{len(moments)} times"
)
def test_frames_whose_driver_is_killed_have_the_rows_of_spark(
    three_servers: list[ServerProcess], folder: Path, moments: list[list[str]]
) -> None:
    trio.run(init_store, url_of(three_servers))
    holds = Holds(folder)
    with ExitStack() as stack:

        def start() -> Killed:
            return stack.enter_context(Killed(url_of(three_servers), folder, FRAMES))

        for moment in moments:
            holds.hold(*moment)
            program = start()
            if moment is JOINED:
                program.until(partial(program.has_joined, FRAMES))
            else:
                program.until(partial(all_reached, holds, moment))
            program.kill()
            holds.release(*moment)
        program = start()
        program.until(lambda: all(program.heard(run, "done") for run in FRAMES))
        program.finish()

    first = as_bytes([(number, number) for number in range(NAMES)])
    assert (folder / "parquet.rows").read_bytes() == first, "the first line of each name, once"
    counts, totals = Counter[int](), Counter[int]()
    for batch in range(FRAMES["each"]):
        numbers = range(batch * LINES, (batch + 1) * LINES)
        for number in numbers:
            counts[number % NAMES] += 1
            totals[number % NAMES] += number
        names = {number % NAMES for number in numbers}
        expected = as_bytes([(name, counts[name], totals[name]) for name in names])
        assert (folder / f"each{batch}.rows").read_bytes() == expected
