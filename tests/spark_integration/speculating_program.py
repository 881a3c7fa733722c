"""A driver whose queries keep checkpoints behind gateways, on executors that are killed and stopped, with two
attempts of one task at once: for tests of checkpoints.

    python -m tests.spark_integration.speculating_program MASTER FOLDER URL

FOLDER/confs has what `dos gateway confs` prints, FOLDER/gateways the ports and process ids of the gateways.
Prints a line of JSON: the output and the state of each query.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import trio
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from dos_client import open_store
from dos_gateway.core.records import read_change
from dos_gateway.core.tree import MoveNode
from dos_gateway.serving import CHAIN, directory_of
from journal import Op, inspect_whole, read_plain_batches
from tests.dos_gateway.gateways import WebHdfsClient

STATE = "org.apache.spark.sql.execution.streaming.state."
QUERIES = {
    "hdfs": (f"{STATE}HDFSBackedStateStoreProvider", 1),
    "rocks": (f"{STATE}RocksDBStateStoreProvider", 1),
    "rocks2": (f"{STATE}RocksDBStateStoreProvider", 2),
}
ROWS, KEYS = 60, 20
SPECULATED_MIN, SPECULATED_MAX = 2, 15
"""Batches of each query in which the first task has two attempts."""
WAIT_S = 200
LOST = ("Connection reset", "Connection refused", "Broken pipe", "Unexpected end of file", "Premature EOF")


def session(master: str, folder: Path, confs: dict[str, str]) -> SparkSession:
    own = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.executor.memory": "600m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.locality.wait": "0",
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.minTaskRuntime": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master(master)
    for name, value in {**own, **confs}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Program:
    """The queries, one after the other. A place is QUERY.BATCH.ATTEMPT, of the first partition's task."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, place: str) -> None:
        self.spark, self.folder, self.url, self.place = spark, folder, url, place
        self.name = ""
        self.batch = 0
        self.failures: list[str] = []
        for one in ("in", "began", "held"):
            (folder / one).mkdir()

    def begin(self, name: str) -> None:
        provider, version = QUERIES[name]
        store = "spark.sql.streaming.stateStore"
        self.spark.conf.set(f"{store}.providerClass", provider)
        self.spark.conf.set(f"{store}.rocksdb.changelogCheckpointing.enabled", "true")
        self.spark.conf.set(f"{store}.checkpointFormatVersion", version)
        self.name, self.batch = name, 0
        (self.folder / "in" / name).mkdir()
        self.put()
        self.query = self.start()
        self.wait()

    def start(self) -> StreamingQuery:
        folder, name = self.folder, self.name

        def count(key: Any, parts: Any, state: Any) -> Iterator[pd.DataFrame]:
            hold(folder, name)
            before = state.get[0] if state.exists else 0
            state.update((before + sum(len(part) for part in parts),))
            yield pd.DataFrame({"k": [key[0]], "n": [state.get[0]]})

        rows = self.spark.readStream.schema("k long").option("maxFilesPerTrigger", 1)
        counted = rows.csv(f"{folder}/in/{name}").groupBy("k")
        frame = counted.applyInPandasWithState(
            count, "k long, n long", "n long", "append", GroupStateTimeout.NoTimeout
        )
        at = f"{self.place}/{name}"
        writer = frame.writeStream.format("json").option("checkpointLocation", f"{at}/at")
        return writer.start(f"{at}/out")

    def put(self) -> None:
        path = self.folder / f"{self.batch}.csv"
        path.write_text("".join(f"{row % KEYS}\n" for row in range(ROWS)))
        os.utime(path, (1_700_000_000 + self.batch,) * 2)
        path.rename(self.folder / "in" / self.name / path.name)

    def next_batch(self, *held: int) -> None:
        """Give the rows of the next batch, with these attempts of the first task held."""
        self.batch += 1
        for attempt in held:
            (self.folder / "held" / f"{self.name}.{self.batch}.{attempt}").touch()
        self.put()

    def release(self, *held: int) -> None:
        for attempt in held:
            (self.folder / "held" / f"{self.name}.{self.batch}.{attempt}").unlink()

    def began(self, attempt: int) -> psutil.Process:
        """The executor of an attempt, once it is in the middle of its rows."""
        file = self.folder / "began" / f"{self.name}.{self.batch}.{attempt}"
        until(lambda: file.exists() or self.query.exception() is not None, f"{file.name} begins")
        assert self.query.exception() is None, self.query.exception()
        executor = psutil.Process(int(file.read_text())).parent().parent()
        assert executor.name() == "java"
        return executor

    def wait(self) -> None:
        """Wait until all rows are processed. A query that lost a body with its gateway is started again."""
        try:
            self.query.processAllAvailable()
        except Exception as error:
            if not any(text in str(error) for text in LOST):
                raise
            self.failures.append(str(error)[:200])
            self.query = self.start()
            self.wait()

    def committed_twice(self) -> int:
        """How many versions of the state of the first partition two attempts have committed."""
        versions = Counter(trio.run(committed, self.url, f"/{self.name}/at/state/0/0/"))
        return sum(count > 1 for count in versions.values())

    def end(self) -> dict[str, Any]:
        self.query.stop()
        at = f"{self.place}/{self.name}"
        state = self.spark.read.format("statestore").load(f"{at}/at")
        kept = state.selectExpr("key.*", "value.groupState.*").collect()
        shown = self.spark.read.schema("k long, n long").json(f"{at}/out").collect()
        return {
            "batches": self.batch + 1,
            "state": sorted(map(list, kept)),
            "shown": sorted(map(list, shown)),
            "failures": self.failures,
        }


def hold(folder: Path, name: str) -> None:
    """Wait in the middle of the rows of a task for as long as this attempt is held."""
    context = TaskContext.get()
    assert context is not None
    if context.partitionId():
        return
    place = f"{name}.{context.getLocalProperty('streaming.sql.batchId')}.{context.attemptNumber()}"
    began = folder / "began" / place
    if not began.exists():
        (folder / place).write_text(str(os.getpid()))
        (folder / place).rename(began)
    while (folder / "held" / place).exists():
        time.sleep(0.01)


async def committed(url: str, prefix: str) -> list[int]:
    """The versions of state whose files came to their names below a path, as the chain of the tree has it."""
    found = []
    async with open_store(url.rpartition("/")[0]) as store:
        directory = directory_of(url.rpartition("/")[2])
        state = await inspect_whole(store, directory, CHAIN)
        async with aclosing(read_plain_batches(store, state, directory=directory)) as batches:
            async for batch in batches:
                for end, record in batch:
                    change = read_change(record, end) if record.op is Op.FS_CHANGE else None
                    path = change.target if isinstance(change, MoveNode) else ""
                    name = path.removeprefix(prefix)
                    if path.startswith(prefix) and name.endswith((".delta", ".changelog")):
                        found.append(int(name.replace(".", "_").split("_")[0]))
    return found


def main() -> None:
    master, url = sys.argv[1], sys.argv[3]
    folder = Path(sys.argv[2])
    lines = [line.split(" ", 1) for line in (folder / "confs").read_text().splitlines()]
    confs = dict(lines)
    place = f"webhdfs://{confs['spark.hadoop.dfs.nameservices']}"
    gateways: list[tuple[int, int]] = json.loads((folder / "gateways").read_text())
    spark = session(master, folder, confs)
    program = Program(spark, folder, url, place)
    said: dict[str, Any] = {}
    for name in QUERIES:
        program.begin(name)
        twice = 0
        while program.batch < SPECULATED_MIN or (not twice and program.batch < SPECULATED_MAX):
            program.next_batch(0, 1)
            program.began(0)
            program.began(1)
            program.release(0, 1)
            program.wait()
            twice = program.committed_twice()
        program.next_batch(0)
        program.began(0).kill()
        program.release(0)  # with its shuffle files the stage is lost, and begins anew
        program.wait()
        program.next_batch(0, 1)
        stopped = program.began(0)
        program.began(1)
        stopped.suspend()
        program.release(1)
        program.wait()  # the second attempt has committed
        program.release(0)
        program.next_batch()
        stopped.resume()  # the first one continues during the next batch, until Spark ends it
        program.wait()
        if name == "rocks":
            program.next_batch(0)
            program.began(0)
            os.kill(active(gateways), signal.SIGKILL)
            program.release(0)
            program.wait()
        said[name] = {"twice": twice, **program.end()}
    print(json.dumps(said))
    spark.stop()


def active(gateways: list[tuple[int, int]]) -> int:
    """The process of the gateway that serves."""
    for port, pid in gateways:
        if not WebHdfsClient(port).ask("GET", "LISTSTATUS", "/").refusal:
            return pid
    raise AssertionError("no gateway serves")


if __name__ == "__main__":
    main()
