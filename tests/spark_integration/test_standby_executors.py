"""A stand-by on executors that are processes: its executor is drained, and then that of a worker is lost."""

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
import psutil
from pyspark.sql import SparkSession
from checkpoint.core.region import RegionState
from dataflow import FileSink, FileSource, Graph
from spark_integration import run
from spark_integration.executors import Executors
from spark_integration.standbys import standby_tag
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
    .config("spark.decommission.enabled", "true")
    .config("spark.sql.warehouse.dir", str(here / "warehouse"))
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
graph = Graph("wordcount")
lines = graph.source("lines", FileSource([here / "a.txt", here / "b.txt"], repeat=2_000))
words = lines.flat_map("words", split, schema="word string", takes="batch")
words.key_by("by_word", "word").count("counts").sink("out", FileSink(here / "out"))
region = run(
    spark, graph, store=store, workers=2, checkpoint_interval=0.2, spare_slots=0, start_timeout=120, standby=1
)

def until(what, condition):
    deadline = time.monotonic() + 150
    while not condition():
        assert region.isActive and time.monotonic() < deadline, (what, region.status, region.exception())
        time.sleep(0.05)

def executor_of_worker(number):
    python = psutil.Process(region.status.workers[number].pid)
    return python.parent().parent().pid

def executor_of_standby(number):
    until(f"stand-by {number} waits", lambda: region._control.standbys.numbers() == [number])
    place = Executors(spark)._place_of(standby_tag("wordcount", number))
    for one in psutil.Process().children(recursive=True):
        line = one.cmdline() if one.status() != psutil.STATUS_ZOMBIE else []
        if "--executor-id" in line and line[line.index("--executor-id") + 1] == place.executor:
            return one.pid
    raise AssertionError(place)

said = {}
drained = executor_of_standby(1)
os.kill(drained, signal.SIGPWR)
waits = executor_of_standby(2)
until("left", lambda: not Path(f"/proc/{drained}").exists())
said["moved"] = waits != drained
said["resets of a stand-by"] = len(region.status.resets)
os.kill(executor_of_worker(1), signal.SIGKILL)
until("reset", lambda: len(region.status.resets) == 1 and region.status.state is RegionState.RUNNING)
said["took over"] = executor_of_worker(1) == waits
executor_of_standby(3)
HURRY.touch()
region.awaitTermination(150)
said["state"] = region.status.state.value
print(json.dumps(said))
spark.stop()
"""


@pytest.mark.timeout(500)
def test_a_stand_by_moves_from_a_drained_executor_and_replaces_a_worker_of_a_lost_one(
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
        "moved": True,
        "resets of a stand-by": 0,
        "took over": True,
        "state": "FINISHED",
    }
    assert counts_in(tmp_path / "out") == {word: 2 * PASSES * n for word, n in Counter(text.split()).items()}
