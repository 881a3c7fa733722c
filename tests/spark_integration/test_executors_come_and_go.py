"""Executors that are requested when a region grows, drained when they leave, and given back when it shrinks.

Dynamic allocation and decommissioning are Spark's own, on executors that are processes. The signal to an
executor is the one that Kubernetes and YARN send when a node is drained.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.dataflow.support import made
from tests.dataflow.test_rescaled_regions import counts_in
from tests.spark_integration.test_local_cluster import HELPER
from tests.support.servers import ServerProcess, three_servers

__all__ = ["three_servers"]
pytestmark = pytest.mark.spark

PASSES = 2_000
DRIVER = """
import json, os, signal, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from checkpoint.core.region import RegionState
from checkpoint.core.region_events import WorkerJoined
from dataflow import FileSink, FileSource, Graph
from spark_integration import run
from helper import HURRY, split

here, store = Path(sys.argv[1]), sys.argv[2]
spark = (
    SparkSession.builder.master("local-cluster[4,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "600m")
    .config("spark.executor.memory", "600m")
    .config("spark.executor.cores", "1")
    .config("spark.dynamicAllocation.enabled", "true")
    .config("spark.dynamicAllocation.shuffleTracking.enabled", "true")
    .config("spark.dynamicAllocation.minExecutors", "0")
    .config("spark.dynamicAllocation.maxExecutors", "4")
    .config("spark.dynamicAllocation.executorIdleTimeout", "5s")
    .config("spark.decommission.enabled", "true")
    .config("spark.sql.warehouse.dir", str(here / "warehouse"))
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
graph = Graph("wordcount")
lines = graph.source("lines", FileSource([here / "a.txt", here / "b.txt"], repeat=2_000))
words = lines.flat_map("words", split, schema="word string", takes="batch")
words.key_by("by_word", "word").count("counts").sink("out", FileSink(here / "out"))
region = run(spark, graph, store=store, workers=2, checkpoint_interval=0.2, spare_slots=0, start_timeout=120)

def until(what, condition):
    deadline = time.monotonic() + 150
    while not condition():
        assert region.isActive and time.monotonic() < deadline, (what, region.status, region.exception())
        time.sleep(0.05)

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

def executors():
    return [parent(parent(worker.pid)) for worker in region.status.workers]

def registered():
    return spark.sparkContext._jsc.sc().getExecutorIds().size()

said = {}
region.checkpoint(120)
said["at first"] = registered()
region.scale(3, 120)
said["of three"] = len(set(executors()))
leaving = executors()[1]
os.kill(leaving, signal.SIGPWR)
until("drained", lambda: region.status.workers[1].attempt == 2 and region.status.state is RegionState.RUNNING)
said["moved"] = leaving not in executors()
until("left", lambda: not Path(f"/proc/{leaving}").exists())
said["resets"] = len(region.status.resets)
region.scale(1, 120)
until("given back", lambda: registered() == 1)
HURRY.touch()
region.awaitTermination(150)
said["state"] = region.status.state.value
print(json.dumps(said))
spark.stop()
"""


@pytest.mark.timeout(500)
def test_executors_are_requested_drained_and_given_back(
    three_servers: list[ServerProcess], tmp_path: Path
) -> None:
    text = "one two two three three three\n" * 200
    for name, content in (("helper.py", HELPER), ("driver.py", DRIVER), ("a.txt", text), ("b.txt", text)):
        (tmp_path / name).write_text(content)
    done = subprocess.run(
        [sys.executable, tmp_path / "driver.py", tmp_path, made(three_servers)],
        capture_output=True,
        text=True,
        timeout=450,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == {
        "at first": 2,
        "of three": 3,
        "moved": True,
        "resets": 0,
        "state": "FINISHED",
    }
    assert counts_in(tmp_path / "out") == {word: 2 * PASSES * n for word, n in Counter(text.split()).items()}
