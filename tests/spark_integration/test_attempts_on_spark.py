"""Two attempts of one task at the same time, on a standalone cluster of two workers: Spark's speculation has
both write through the sink `dos`; then an executor is killed in the middle of a copy from source to sink.

Spark puts a speculative attempt on another host only, so the workers have addresses of their own on loopback;
those of `local-cluster` have one in common, and never speculate. A session of another master cannot live
beside the shared one, so the driver is a program.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dos_server.testing import Servers, ThreadedServer
from spark_integration.core.options import parse_options
from spark_integration.reading.planning import plan_batch
from spark_integration.reading.readers import rows_of
from tests.spark_integration.test_local_cluster import standalone

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(400)]
DRIVER = """
import json, os, signal, sys, threading, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from checkpoint.core.records.staged import staging_directory
from dos_client.blocking import open_store
from spark_integration import register

master, store, here = sys.argv[1], sys.argv[2], Path(sys.argv[3])
confs = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": f"file:{here}/events",
    "spark.eventLog.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": str(here / "warehouse"),
}
builder = SparkSession.builder.master(master)
for name, value in confs.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
register(spark)

def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

def seen(name):
    return lambda: (here / name).exists()

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

def slow_at_first(name, at):
    # Both attempts of the second partition stop before batch `at`. The second does not begin before the
    # first has claimed, and continues after the end of the first was observed.
    def rows(batches):
        task = TaskContext.get()
        second, number = task.partitionId() == 1, task.attemptNumber()
        if second and number:
            until(seen(f"{name}.claimed"))
        for index, batch in enumerate(batches):
            if second and index == at:
                (here / f"{name}.{number}").touch()
                until(seen(f"{name}.seen" if number else f"{name}.fenced"))
            yield batch
    return rows

def lost_at_first(batches):
    # The first attempt says which executor it is on, and waits for its end.
    for batch in batches:
        if TaskContext.get().attemptNumber() == 0 and not seen("killed")():
            (here / "pid").write_text(str(os.getpid()))
            (here / "pid").rename(here / "waits")
            until(seen("killed"))
        yield batch

def failed_tasks():
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numFailedTasks for stage in stages if stage is not None)

def write(handle, rows, at):
    register(spark)  # in this thread
    frame = spark.range(0, rows, 1, 2).selectExpr("id AS n", "sha2(string(id), 512) AS text")
    frame = frame.mapInArrow(slow_at_first(handle, at), frame.schema)
    frame.write.format("dos").options(input=handle, producer="p").mode("append").save(f"{store}/shop")

with open_store(store) as looking:
    def claims(at_least):
        return lambda: looking.inspect(staging_directory("shop", "staged", "p", 1)).epoch_seen >= at_least

    writing = threading.Thread(target=write, args=("staged", 60_000, 2))
    writing.start()
    until(claims(1))
    (here / "staged.claimed").touch()
    until(claims(2))
    (here / "staged.fenced").touch()
    until(lambda: failed_tasks() == 1)
    (here / "staged.seen").touch()
    writing.join()

    writing = threading.Thread(target=write, args=("small", 100, 0))
    (here / "small.claimed").touch()
    writing.start()
    until(lambda: seen("small.0")() and seen("small.1")())
    (here / "small.fenced").touch()
    (here / "small.seen").touch()
    writing.join()

rows = spark.readStream.format("dos").options(input="staged", partitionBytes="1000000").load(f"{store}/shop")
rows = rows.mapInArrow(lost_at_first, rows.schema).writeStream.format("dos")
rows = rows.options(input="copied", checkpointLocation=str(here / "checkpoint")).trigger(availableNow=True)
query = rows.start(f"{store}/shop")
until(seen("waits"))
executor = parent(parent(int((here / "waits").read_text())))
assert Path(f"/proc/{executor}/comm").read_text().strip() == "java"
os.kill(executor, signal.SIGKILL)
(here / "killed").touch()
query.awaitTermination()
spark.stop()
"""


def attempts(events: Path) -> list[tuple[int, bool, str]]:
    """Of each task of the second partition that ended: its attempt, whether it was speculative, and how."""
    found = []
    for path in events.rglob("*"):
        for line in path.read_text().splitlines() if path.is_file() and path.suffix != ".crc" else ():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and event["Task Info"]["Index"] == 1:
                task, end = event["Task Info"], event["Task End Reason"]
                said = end.get("Description", "") + end.get("Full Stack Trace", "")
                how = "fenced" if "FencedError" in said else end["Reason"]
                found.append((task["Attempt"], task["Speculative"], how))
    return found


def numbers(url: str, handle: str) -> list[int]:
    """The column `n` of what is recorded."""
    options = parse_options({"path": f"{url}/shop", "input": handle})
    schema = pa.schema([("n", pa.int64())])
    read = [rows_of(options, schema, (), one) for one in plan_batch(options, schema, ())]
    return sorted(number for batches in read for batch in batches for number in batch["n"].to_pylist())


# EVIDENCE-OF: P-7
def test_speculative_attempts_and_those_of_lost_executors_write_each_row_once(
    servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    (tmp_path / "events").mkdir()
    with standalone(tmp_path, hosts=("127.0.0.1", "127.0.0.2"), cores=1, memory="1g") as master:
        (tmp_path / "driver.py").write_text(DRIVER)
        done = subprocess.run(
            [sys.executable, tmp_path / "driver.py", master, servers.url, tmp_path],
            capture_output=True,
            text=True,
            timeout=350,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        assert done.returncode == 0, done.stderr[-5000:]
    assert numbers(servers.url, "staged") == list(range(60_000))
    assert numbers(servers.url, "small") == list(range(100))
    assert numbers(servers.url, "copied") == list(range(60_000))
    ended = attempts(tmp_path / "events")
    assert (0, False, "fenced") in ended
    assert (1, True, "Success") in ended
