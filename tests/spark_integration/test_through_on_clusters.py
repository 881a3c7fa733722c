"""`through` of a stream on executors that are processes: those of the carrying task and of a worker are
killed in the middle of a micro-batch, two attempts of the task run at once, two actions use one micro-batch.

Each row comes out once, with its place among the rows of its key, and the region goes on. `local-cluster` is
in every run. Spark speculates between hosts only, which a standalone cluster has as addresses on loopback.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from dos_server.testing import Servers, ThreadedServer
from tests.spark_integration.cluster_program import HELPER, PROGRAM_S_MAX
from tests.spark_integration.test_local_cluster import standalone

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(500)]
LINES = 60
"""Of each micro-batch."""
KEYS = 7
DRIVER = """
import json, os, signal, sys, threading, time
from pathlib import Path
import psutil
from pyspark import InheritableThread, TaskContext
from checkpoint.core.region import RegionState
from dataflow import Graph, InputSource, LogSink, UserOperator
from spark_integration import batches, through
from helper import executor_of, session, until

here, master, store, steps = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].split(",")
LINES, KEYS = int(sys.argv[5]), int(sys.argv[6])

class Held(batches.CarryingTask):
    # Waits in the middle of its rows, when a part is sent, for as long as the test holds this attempt. Where
    # the first attempt is held, a second one waits for it.
    __slots__ = ()
    def __call__(self, given):
        def watched():
            context = TaskContext.get()
            number = context.getLocalProperty("streaming.sql.batchId")
            place, first = f"{number}.{context.attemptNumber()}", f"{number}.0"
            if place != first and (here / "held" / first).exists():
                while not (here / "began" / first).exists():
                    time.sleep(0.01)
            for index, batch in enumerate(given):
                if index == 3:
                    (here / "files" / place).write_text(str(os.getpid()))
                    (here / "files" / place).rename(here / "began" / place)
                    while (here / "held" / place).exists():
                        time.sleep(0.01)
                yield batch
        return batches.CarryingTask.__call__(self, watched())

class Numbering(UserOperator):
    needs = "number bigint, key string"
    schema = "number bigint, key string, nth bigint"
    state = "key string, count bigint"

    def __init__(self):
        self.counts = {}

    def reset(self, state):
        self.counts = dict(zip(state["key"].to_pylist(), state["count"].to_pylist()))

    def process(self, batch):
        for row in batch.to_pylist():
            nth = self.counts[row["key"]] = self.counts.get(row["key"], 0) + 1
            yield row["number"], row["key"], nth

    def checkpoint(self):
        return list(self.counts.items())

batches.CarryingTask = Held
confs = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    "spark.sql.streaming.pollingDelay": "100ms",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.executor.cores": "1" if master.startswith("local") else "2",
}
spark = session(master, here, confs)
for folder in ("in", "held", "began", "files"):
    (here / folder).mkdir()
graph = Graph("numbered")
rows = graph.source("rows", InputSource("rows", "number bigint, key string"))
rows.key_by("by_key", "key").apply("numbering", Numbering()).sink("out", LogSink())
files = spark.readStream.schema("number bigint, key string").option("maxFilesPerTrigger", 1)
frame = through(files.csv(str(here / "in")), graph, workers=2, store=store, insecure=True, start_timeout=120)
shown = []
several = set()
beside = set()

def show(df, batch):
    shown.append((batch, [tuple(row) for row in df.collect()]))

def each(df, batch):
    if batch in beside:
        # In one stage with tasks that end soon: Spark speculates no stage of one task.
        others = spark.range(0, 3, 1, 3).selectExpr("-1L number", "'' key", "id nth")
        df = df.union(others)
    if batch not in several:
        return show(df, batch)
    threads = [InheritableThread(target=show, args=(df, batch)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def put(batch):
    path = here / "files" / f"{batch}.csv"
    numbers = range(batch * LINES, (batch + 1) * LINES)
    path.write_text("".join(f"{number},k{number % KEYS}\\n" for number in numbers))
    os.utime(path, (1_700_000_000 + batch,) * 2)
    path.rename(here / "in" / path.name)

def wait(what, condition):
    until(frame.dos.region, what, lambda: condition() or query.exception())
    assert not query.exception(), query.exception()

def began(place):
    wait(f"{place} begins", (here / "began" / place).exists)
    return psutil.Process(int((here / "began" / place).read_text()))

def hold(place):
    (here / "held" / place).touch()

def release(place):
    (here / "held" / place).unlink()

def of_carrier(batch):
    hold(f"{batch}.0")
    put(batch)
    began(f"{batch}.0").parent().parent().kill()
    release(f"{batch}.0")

def of_worker(batch):
    region = frame.dos.region
    hold(f"{batch}.0")
    put(batch)
    began(f"{batch}.0")
    before = len(region.status.resets)
    psutil.Process(executor_of(region.status.workers[1])).kill()
    wait("a reset", lambda: len(region.status.resets) > before)
    release(f"{batch}.0")

def actions(batch):
    several.add(batch)
    put(batch)

def second_wins(batch):
    beside.add(batch)
    hold(f"{batch}.0")
    put(batch)
    began(f"{batch}.0")
    began(f"{batch}.1")
    wait("the second attempt wins", lambda: any(number == batch for number, _ in shown))
    release(f"{batch}.0")

def both_at_once(batch):
    beside.add(batch)
    hold(f"{batch}.0")
    hold(f"{batch}.1")
    put(batch)
    began(f"{batch}.0")
    began(f"{batch}.1")
    release(f"{batch}.0")
    release(f"{batch}.1")

writing = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(here / "checkpoint"))
put(0)
query = writing.start()
query.processAllAvailable()
for batch, step in enumerate(steps, 1):
    globals()[step](batch)
    query.processAllAvailable()
put(len(steps) + 1)
query.processAllAvailable()
query.stop()
resets = len(frame.dos.region.status.resets)
frame.dos.stop()
print(json.dumps({"shown": shown, "resets": resets, "state": frame.dos.region.status.state.value}))
spark.stop()
"""


def expected(batches: int) -> list[set[tuple[int, str, int]]]:
    """Of each batch: (key, place) of the rows, without the numbers, whose order within a batch is free."""
    counts: Counter[str] = Counter()
    found = []
    for batch in range(batches):
        rows = set()
        for number in range(batch * LINES, (batch + 1) * LINES):
            key = f"k{number % KEYS}"
            counts[key] += 1
            rows.add((key, counts[key]))
        found.append(rows)
    return found


def run(folder: Path, master: str, store: str, steps: list[str]) -> dict:
    """Run the driver; check what it has shown. Return the rest of what it says."""
    (folder / "helper.py").write_text(HELPER)
    (folder / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, folder / "driver.py", folder, master, store, ",".join(steps), str(LINES), str(KEYS)],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    for batch, rows in said["shown"]:
        ours = [row for row in rows if row[0] >= 0]
        assert sorted(row[0] for row in ours) == list(range(batch * LINES, (batch + 1) * LINES))
        assert all(key == f"k{number % KEYS}" for number, key, _ in ours)
        assert {(key, nth) for _, key, nth in ours} == expected(len(steps) + 2)[batch]
    return said


# EVIDENCE-OF: P-7
def test_executors_of_a_carrying_task_and_of_a_worker_are_lost_in_the_middle_of_a_batch(
    servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    said = run(tmp_path, "local-cluster[3,1,1024]", servers.url, ["of_carrier", "of_worker", "actions"])
    assert [batch for batch, _ in said["shown"]] == [0, 1, 2, 3, 3, 4]
    assert said["shown"][3] == said["shown"][4], "two actions have the same rows in the same order"
    assert (said["resets"], said["state"]) == (1, "STOPPED")


@pytest.mark.long
def test_two_attempts_of_a_carrying_task_at_once_and_the_second_one_may_win(
    servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    steps = ["second_wins", "both_at_once", "of_carrier", "of_worker", "actions", "both_at_once"]
    hosts = [f"127.0.0.{number}" for number in (1, 2, 3)]
    with standalone(tmp_path, hosts=hosts) as master:
        said = run(tmp_path, master, servers.url, steps)
    assert [batch for batch, _ in said["shown"]] == [0, 1, 2, 3, 4, 5, 5, 6, 7]
    assert said["shown"][5] == said["shown"][6]
    assert said["state"] == "STOPPED"
