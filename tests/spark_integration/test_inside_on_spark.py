"""The formats that look inside, on a real Spark session: what only Spark can show. The rest is in
`test_inside.py`.
"""

import re
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dos_client.blocking import BlockingStore, open_store
from dos_server.testing import Servers, ThreadedServer
from spark_integration import register
from tests.spark_integration.stored_data import write_checkpoints, write_state
from tests.support.examples import run_example

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def store(servers: Servers[ThreadedServer], spark: SparkSession) -> Iterator[BlockingStore]:
    """What all tests of this file read."""
    register(spark)
    with open_store(servers.url) as found:
        first = write_state(
            found,
            "wordcount",
            0,
            [{"counts": {"a": 1, "b": 1}}, {"counts": {"a": 20}}, {"counts": {"b": None}}],
        )
        second = write_state(found, "wordcount", 1, [{"counts": {"y": 3}}, {}, {"counts": {"y": 4}}])
        states = [dict(enumerate(at)) for at in zip(first, second, strict=True)]
        write_checkpoints(
            found, "wordcount", "out", states, states=states, operators={"counts": "count"}, retain=3
        )
        yield found


def test_the_examples_of_the_page_look_inside(
    spark: SparkSession,
    servers: Servers[ThreadedServer],
    store: BlockingStore,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_example("docs/spark.md", "inside", {"spark": spark}, store=servers.url)
    shown = [re.findall(r"\w+", line) for line in capsys.readouterr().out.splitlines() if line[:1] == "|"]
    assert shown == [
        ["checkpoint", "step", "retained"],
        ["1", "1", "true"],
        ["2", "2", "true"],
        ["3", "3", "true"],
        ["word", "count"],
        ["a", "20"],
        ["word", "count", "_deleted"],
        ["b", "NULL", "true"],
        ["y", "4", "false"],
        ["name", "count"],
        ["SEGMENT_START", "1"],
        ["STATE_BLOCK", "3"],
    ]


def test_all_columns_come_to_spark_as_they_are(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    checkpoints = spark.read.format("dos-checkpoints").options(
        columns="*, workers, shards, operators, parent, fingerprint"
    )
    row = checkpoints.load(f"{servers.url}/wordcount").where("checkpoint = 2").collect()[0]
    assert row["time"].timestamp() == 2.0
    assert row["workers"][1]["sources"] == {
        "lines": {"part1": row["workers"][1]["sources"]["lines"]["part1"]}
    }
    assert row["workers"][1]["sources"]["lines"]["part1"]["position"] == 20
    assert row["operators"] == {"counts": "count from ()"}
    records = spark.read.format("dos-journal").load(f"{servers.url}/wordcount.w0000/state")
    assert records.schema.simpleString() == (
        "struct<segment:string,offset:bigint,end:bigint,version:int,op:int,name:string,tag:bigint,flags:int,"
        "ints:array<bigint>,strings:array<binary>>"
    )
    assert records.count() == 4
    state = spark.read.format("dos-state").options(operator="counts", columns="word, _worker, _hash")
    assert {row["_worker"] for row in state.load(f"{servers.url}/wordcount").collect()} == {0, 1}


def test_what_is_wrong_is_reported_when_load_is_called(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    def refused(text: str, kind: str, path: str, **options: str) -> None:
        with pytest.raises(PySparkException, match=text):
            spark.read.format(kind).options(**options).load(f"{servers.url}/{path}")

    refused(
        r"BadOptionError: the source dos-checkpoints .*did you mean 'columns'\?",
        "dos-checkpoints",
        "x",
        colums="a",
    )
    refused("NoRegionError: this store has no region 'wrods'", "dos-state", "wrods", operator="counts")
