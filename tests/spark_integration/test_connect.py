"""A client of Spark Connect: what works through a real Connect server, in a process of its own, and what is
refused by name.

The client is a program, because a process has one kind of session. It has no JVM.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dos_client.blocking import open_store
from dos_server.testing import Servers, ThreadedServer
from tests.spark_integration import frames_on_connect
from tests.spark_integration.frame_cases import merged, refused, typed
from tests.spark_integration.stored_data import write_checkpoints, write_state, write_steps
from tests.spark_integration.test_local_cluster import SparkProgram
from tests.support.parts import with_long

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(300)]
COUNTS = pa.schema([("word", pa.string()), ("count", pa.int64())])
CLIENT = """
import json, sys
from pyspark.sql import SparkSession
import spark_integration as dos
from dataflow import Graph, InputSource, LogSink

connect, store, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(connect).getOrCreate()
dos.register(spark)
said = {}

def rows(frame):
    return sorted(map(list, frame.collect()))

def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def written(writing):
    query = writing.trigger(availableNow=True).start(f"{store}/shop")
    assert query.awaitTermination(120)

said["session"] = type(spark).__module__
said["output"] = rows(spark.read.format("dos").option("output", "out").load(f"{store}/words"))
orders = spark.range(4).selectExpr("id AS n", "repeat('x', 100000) AS text")
orders.write.format("dos").option("input", "orders").mode("append").save(f"{store}/shop")
stream = spark.readStream.format("dos").option("input", "orders").load(f"{store}/shop").select("n")
written(stream.writeStream.format("dos").options(input="copies", checkpointLocation=checkpoint))
written(stream.writeStream.format("dos").options(input="copies", checkpointLocation=checkpoint))
said["copies"] = rows(spark.read.format("dos").option("input", "copies").load(f"{store}/shop"))
said["checkpoints"] = rows(spark.read.format("dos-checkpoints").load(f"{store}/words").select("checkpoint"))
said["state"] = rows(spark.read.format("dos-state").option("operator", "counts").load(f"{store}/words"))
records = spark.read.format("dos-journal").load(f"{store}/words.w0000/state")
said["records"] = rows(records.groupBy("name").count())
wrong = spark.read.format("dos").option("outptu", "out")
said["option"] = refused(lambda: wrong.load(f"{store}/words").collect())

graph = Graph("counting")
lines = graph.source("lines", InputSource("lines", stream.schema))
lines.key_by("by_n", "n").count("counts").sink("out", LogSink())
said["run"] = refused(lambda: dos.run(spark, graph, store=store))
said["through"] = refused(lambda: dos.through(stream, graph, store=store))
said["through of a batch"] = refused(lambda: dos.through(orders.select("n"), graph, store=store))
print(json.dumps(said))
"""


ROOT = Path(__file__).parents[2]


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Connect server on loopback, with executors of its own JVM; its URL."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "INFO",
        "spark.pyspark.python": sys.executable,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    confs = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = ("org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", "--class", server)
    program = SparkProgram(*submit, *confs, "spark-internal", memory="700m")
    try:
        port = program.first(r"Spark Connect server started at: \S*:(\d+)\s*$")
        yield f"sc://127.0.0.1:{port}"
    finally:
        program.end()


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


def test_formats_work_through_connect_and_what_submits_jobs_is_refused_by_name(
    servers: Servers[ThreadedServer], connect: str, tmp_path: Path
) -> None:
    with open_store(servers.url) as store:
        (end,) = write_steps(store, "words", "out", 0, {1: [{"word": "a", "count": 1}]}, COUNTS)
        states = [write_state(store, "words", 0, [{"counts": {"a": 1}}, {"counts": {"b": 2}}])]
        checkpoints = [dict(enumerate(at)) for at in zip(*states, strict=True)]
        write_checkpoints(
            store, "words", "out", [{0: end}] * 2, states=checkpoints, operators={"counts": "count"}, retain=2
        )
        said = run_client(connect, servers.url, tmp_path)
        assert "counting.coord" not in store.list_directories()
    assert said["session"] == "pyspark.sql.connect.session"
    assert said["output"] == [["a", 1]]
    assert said["copies"] == [[0], [1], [2], [3]]
    assert said["checkpoints"] == [[1], [2]]
    assert said["state"] == [["a", 1], ["b", 2]]
    assert ["STATE_BLOCK", 2] in said["records"]
    assert "BadOptionError" in said["option"]
    assert "did you mean 'output'?" in said["option"]
    for call in ("run", "through", "through of a batch"):
        assert said[call].startswith("ConnectSessionError: a region needs a session that can submit"), call
        assert "in a program with its own driver session" in said[call]


@pytest.mark.parametrize("every", with_long([False], [True]))
def test_a_frame_is_divided_as_in_a_classic_session_and_runs_nothing(
    spark: SparkSession, connect: str, *, every: bool
) -> None:
    words = [sys.executable, "-m", "tests.spark_integration.frames_on_connect", connect]
    said = client([*words, *(["--all"] if every else [])])
    df = typed(spark)
    found: dict[str, Any] = {}
    for name, texts in said["texts"].items():
        keys, results = merged()[name]
        results = [one for at, one in enumerate(results) if at not in texts]
        if results:
            found[name] = [*frames_on_connect.divided(df, (keys, results))]
    for name, (region, before, after) in found.items():
        # Names by content are 64 bits of a text, which is not the same for `when`, st["y"] and a null.
        others = [_DIGEST.sub("#", one) for one in said["divided"][name]]
        assert others == [_DIGEST.sub("#", one) for one in (region, before, after)], name
        only_here = {*_DIGEST.findall(region)} - {*_DIGEST.findall(said["divided"][name][0])}
        assert len(only_here) == (3 if name == "by k" else 0), name
    assert said["divided"].keys() == found.keys()
    assert said["rows"] == (dict.fromkeys(found, True) if every else {})
    assert len(found) == (18 if every else 4)
    assert said["frames"] == {
        name: [*frames_on_connect.region(one)] for name, one in frames_on_connect.frames(spark).items()
    }
    for name, (_, text) in refused().items():
        of_text = said["refused"][name].startswith("FrameError: the SQL text")
        assert of_text or re.search(text, said["refused"][name]), name
    for name, error in said["errors"].items():
        assert re.match(ERRORS[name.partition(":")[0]], error), (name, error)


_DIGEST = re.compile("#[0-9a-f]{16}")
ERRORS = {
    "run": r"ConnectSessionError: .* needs a session that can submit jobs.*explain\(\) shows how",
    "state": r"FrameError: .*keep.* state in Spark .*\(Aggregate\)",
    "text": r"FrameError: the SQL text .* a client of Spark Connect has no parser \(write it with functions",
    "spark": r"AnalysisException: \[UNRESOLVED_COLUMN",
}


def run_client(connect: str, store: str, folder: Path) -> dict[str, Any]:
    (folder / "client.py").write_text(CLIENT)
    return client([sys.executable, str(folder / "client.py"), connect, store, str(folder / "checkpoint")])


def client(words: list[str]) -> dict[str, Any]:
    """Run a client, which has no JVM; return the JSON that it prints last."""
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=250,
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": "/there/is/none"},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said
