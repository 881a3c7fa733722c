"""A word count on Spark's `local-cluster`, where executors are processes of their own.

A session of another master cannot live beside the shared one, so the driver is a program: `counted` writes it
beside HELPER, which it imports, runs it, and returns what it printed last.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

PROGRAM_S_MAX = 450.0
TEXT = "one two two three three three\n" * 200
HELPER = """
import time
import psutil
import pyarrow.compute as pc
from pathlib import Path
from pyspark.sql import SparkSession
from dataflow import FileSink, FileSource, Graph

HURRY = Path(__file__).with_name("hurry")

def split(batch):
    if not HURRY.exists():
        time.sleep(batch.num_rows * 0.0005)
    words = pc.list_flatten(pc.ascii_split_whitespace(batch["line"]))
    return {"word": words.filter(pc.not_equal(words, ""))}

def word_count(here, passes, **place):
    graph = Graph("wordcount")
    lines = graph.source("lines", FileSource([here / "a.txt", here / "b.txt"], repeat=passes, **place))
    words = lines.flat_map("words", split, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(here / "out", **place))
    return graph

def session(master, here, settings):
    builder = SparkSession.builder.master(master)
    own = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.executor.memory": "600m",
        "spark.sql.warehouse.dir": str(here / "warehouse"),
    }
    for name, value in {**own, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark

def until(region, what, condition):
    deadline = time.monotonic() + 150
    while not condition():
        assert region.isActive and time.monotonic() < deadline, (what, region.status, region.exception())
        time.sleep(0.02)

def daemon_of(worker):
    return psutil.Process(worker.pid).ppid()

def executor_of(worker):
    return psutil.Process(daemon_of(worker)).ppid()
"""
COUNTS = Counter(TEXT.encode().split())
"""Word -> how often one pass over one of the two files has it."""


def write_program(folder: Path, driver: str) -> None:
    for name, content in (("helper.py", HELPER), ("driver.py", driver), ("a.txt", TEXT), ("b.txt", TEXT)):
        (folder / name).write_text(content)


def counted(folder: Path, driver: str, *arguments: object) -> Any:
    """Run a driver to its end. Return the JSON value of the last line that it prints."""
    write_program(folder, driver)
    done = subprocess.run(
        [sys.executable, folder / "driver.py", folder, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
