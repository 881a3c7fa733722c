"""Where a session may come from: a notebook, and `spark-submit`. Each has a Spark of its own, so there is one
test for each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from dos_server.testing import Servers, ThreadedServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
SUBMITTED = '''
"""Submitted as a file: its function is in no package, and the session is what spark-submit says."""
import logging
import sys

from pyspark.sql import SparkSession

from dataflow import FileSource, Graph, LogSink, RateSource
from spark_integration import register, run


def split(row):
    logging.getLogger("mine").warning("a line")
    return row["line"].split()


url, text = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
assert spark.sparkContext.master == "local[3]", spark.sparkContext.master
register(spark)
graph = Graph("submitted")
words = graph.source("lines", FileSource(text)).flat_map("words", split, schema="word string")
words.key_by("by_word", "word").count("counts").sink("out", LogSink())
run(spark, graph, workers=1, store=url).awaitTermination()
counts = spark.read.format("dos").option("output", "out").load(f"{url}/submitted")
print("rows:", counts.select("word").distinct().count())

endless = Graph("endless")
endless.source("numbers", RateSource(100)).sink("out", LogSink())
region = run(spark, endless, workers=1, store=url)
region.checkpoint(100)
spark.stop()
calls = {
    "stopped under it": lambda: region.awaitTermination(100),
    "stopped before": lambda: run(spark, endless, workers=1, store=url),
    "registered": lambda: register(spark),
    "exchanged": lambda: run(endless, spark, workers=1, store=url),
    "none": lambda: run(None, endless, workers=1, store=url),
}
for name, call in calls.items():
    try:
        call()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
print("resets:", len(region.status.resets))
'''


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wordcount", ("FINISHED", "question|  100")),
        (
            "first_hour",
            ("RUNNING, 2 workers", "worker 0 was lost", "3 workers after", "('STOPPED', 'STOPPED')"),
        ),
    ],
)
def test_a_notebook_runs_as_it_stands(
    name: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the page leaves its files
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = "".join(
        output.get("text", "") or output["data"]["text/plain"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result" or output.get("name") == "stdout"
    )
    for one in words:
        assert one in shown


@pytest.mark.long
def test_a_program_given_to_spark_submit_runs_a_region_and_reads(
    servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    program, text = tmp_path / "program.py", tmp_path / "text.txt"
    program.write_text(SUBMITTED)
    text.write_text("to be or not to be\n" * 50)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("spark-submit"),
            "--master",
            "local[3]",
            "--conf",
            "spark.ui.enabled=false",
            "--conf",
            f"spark.pyspark.python={sys.executable}",
            program,
            servers.url,
            text,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
        | {"DOS_LOG": "json:info"},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert "rows: 4" in done.stdout
    texts = [*done.stderr.splitlines(), *done.stdout.splitlines()]  # of workers; of the driver, by Spark
    logged = [json.loads(line) for line in texts if line.startswith('{"time": ')]
    by_worker = {(one["region"], one["worker"]) for one in logged if one["message"] == "a line"}
    assert by_worker == {("submitted", 0)}
    by_driver = [one for one in logged if one["message"].startswith("region submitted: ")]
    assert {one["region"] for one in by_driver} == {"submitted"}
    for line in (
        "stopped under it: SessionStoppedError: region endless: its Spark session was stopped",
        "stopped before: SessionStoppedError: this Spark session was stopped",
        "registered: SessionStoppedError",
        "exchanged: TypeError: the first argument is a SparkSession, got Graph",
        "none: TypeError: the first argument is a SparkSession, got NoneType",
        "resets: 0",
    ):
        assert line in done.stdout, done.stdout
