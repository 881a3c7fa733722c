"""A region on `local-cluster`: executors are processes of their own, as on a real cluster, and import nothing
of ours but what is installed. A session of another master cannot live beside the shared one, so the driver is
a program.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.demo.verdict import judge

pytestmark = pytest.mark.spark

HELPER = """
import time
import pyarrow.compute as pc

def split(batch):
    time.sleep(batch.num_rows * 0.0002)
    words = pc.list_flatten(pc.ascii_split_whitespace(batch["line"]))
    return {"word": words.filter(pc.not_equal(words, ""))}
"""
DRIVER = """
import json, os, signal, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from checkpoint.core.region import RegionState
from dataflow import FileSink, FileSource, Graph
from spark_integration import run
from helper import split

here = Path(sys.argv[1])
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "600m")
    .config("spark.executor.memory", "600m")
    .config("spark.sql.warehouse.dir", str(here / "warehouse"))
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
graph = Graph("wordcount")
lines = graph.source("lines", FileSource([here / "a.txt", here / "b.txt"], repeat=150))
words = lines.flat_map("words", split, schema="word string", takes="batch")
words.key_by("by_word", "word").count("counts").sink("out", FileSink(here / "out"))
region = run(spark, graph, checkpoint_interval=0.2, data_dir=here / "data", spare_slots=0)
deadline = time.monotonic() + 60
while not (region.status.state is RegionState.RUNNING and region.status.cuts_committed >= 2):
    assert region.isActive and time.monotonic() < deadline, region.status
    time.sleep(0.02)
pids = [worker.pid for worker in region.status.workers]
parents = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in pids}
os.kill(pids[0], signal.SIGKILL)
region.awaitTermination(90)
state = region.status.state.value
print(json.dumps({"state": state, "resets": len(region.status.resets), "daemons": len(parents)}))
spark.stop()
"""


@pytest.mark.timeout(240)  # a Spark of three JVMs, on a busy machine
def test_two_executors_run_a_region_and_the_loss_of_a_worker_changes_nothing(tmp_path: Path) -> None:
    text = "one two two three three three\n" * 200
    for name, content in (("helper.py", HELPER), ("driver.py", DRIVER), ("a.txt", text), ("b.txt", text)):
        (tmp_path / name).write_text(content)
    done = subprocess.run(
        [sys.executable, tmp_path / "driver.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=220,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert said == {"state": "FINISHED", "resets": 1, "daemons": 2}
    verdict = judge((tmp_path / "out").glob("part-w*.tsv"), Counter(text.encode().split()), 300)
    assert verdict.right, verdict
