"""Spark's own streaming queries with checkpoints in a store: their state is that of an undisturbed run."""

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming import StreamingQuery
from typer.testing import CliRunner

import dos
from dos_cli.main import app as dos_app
from dos_client import BadUrlError
from dos_client.blocking import BlockingStore
from dos_protocol.errors import LocalProtocolError
from dos_protocol.limits import MIB
from dos_server.testing import Servers, ThreadedServer
from spark_integration import gateway_process
from tests.dos_gateway.gateways import GatewayProcess, WebHdfsClient
from tests.support.examples import run_example
from tests.support.parts import with_long
from tests.support.polling import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
STATE = "org.apache.spark.sql.execution.streaming.state."
ROWS, KEYS = 100, 7
"""Rows of a batch, and keys."""
PROVIDERS = with_long(
    [("RocksDBStateStoreProvider", True, 1)],
    [
        ("HDFSBackedStateStoreProvider", False, 1),
        ("RocksDBStateStoreProvider", False, 1),
        ("RocksDBStateStoreProvider", True, 2),
    ],
)
"""(provider, with a changelog, version of the checkpoint's format)"""


@pytest.fixture(autouse=True)
def no_gateway_stays() -> Iterator[None]:
    yield
    for gateway in gateway_process._gateways.values():
        gateway.close()
    gateway_process._gateways.clear()


@pytest.fixture
def place(spark: SparkSession, servers: Servers[ThreadedServer], name: str) -> str:
    return dos.checkpoints(spark, f"{servers.url}/{name}")


def counted(spark: SparkSession) -> DataFrame:
    """The numbers from 0 on, counted by their rest."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", 1)
        .load()
    )
    return numbers.groupBy((col("value") % KEYS).alias("k")).count()


def begin(frame: DataFrame, at: str) -> StreamingQuery:
    return frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", at).start()


def run(frame: DataFrame, at: str, batch: int, meanwhile: Callable[[], None] = lambda: None) -> str:
    """Run a query until this batch is committed, or it fails. Return its errors, empty if it has none."""
    query = begin(frame, at)
    try:
        meanwhile()
        until(lambda: last_batch(query) >= batch or query.exception() is not None, f"batch {batch}", 240)
        return "" if query.exception() is None else java_trace(query)
    finally:
        query.stop()


def java_trace(query: StreamingQuery) -> str:
    """The exception with which it ended, and those that caused it."""
    jvm = SparkContext._jvm
    assert jvm is not None
    utils: Any = getattr(jvm, "org.apache.spark.util.Utils")
    return str(utils.exceptionString(query._jsq.exception().get()))


def last_batch(query: StreamingQuery) -> int:
    progress: Any = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def gateway_of(servers: Servers[ThreadedServer], name: str) -> int:
    """The process of the gateway."""
    return gateway_process._gateways[f"{servers.url}/{name}"]._process.pid


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_query_survives_its_gateway_and_continues_at_its_last_commit(
    spark: SparkSession,
    servers: Servers[ThreadedServer],
    name: str,
    place: str,
    provider: tuple[str, bool, int],
) -> None:
    kind, changelog, version = provider
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", f"{STATE}{kind}")
    rocks = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    spark.conf.set(rocks, str(changelog).lower())
    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", str(version))
    at = f"{place}/totals"
    assert not run(counted(spark), at, 1)
    error = run(counted(spark), at, 4, lambda: os.kill(gateway_of(servers, name), signal.SIGKILL))
    # A body that was on its way is lost with its gateway, and ends the query; it is started again.
    assert not error or "SocketException" in error or "ConnectException" in error, error
    assert not run(counted(spark), at, 6)
    state = spark.read.format("statestore").load(at).select("key.*", "value.*").collect()
    found = {int(row[0]): int(row[1]) for row in state}
    batches = sum(found.values()) // ROWS
    assert batches >= 7
    assert found == {key: len(range(key, batches * ROWS, KEYS)) for key in range(KEYS)}


@pytest.mark.long
def test_a_second_driver_learns_which_gateway_serves_the_tree(
    spark: SparkSession, servers: Servers[ThreadedServer], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{servers.url}/{name}"
    with GatewayProcess(url) as other:
        other.client.put("/x", b"")
        place = dos.checkpoints(spark, url)
        at = f"{name} is served by the gateway at 127.0.0.1:{other.port} on {socket.gethostname()} (epoch 1)"
        assert f"{at}; this one is its standby" in caplog.text
        with pytest.raises(Exception, match=re.escape(f"{at}: stop it, use it")):
            begin(counted(spark), f"{place}/totals")
    assert not run(counted(spark), f"{place}/totals", 0)  # the other one has ended


def test_one_place_for_one_tree_and_another_for_another_store(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore, name: str, place: str
) -> None:
    assert dos.checkpoints(spark, f"{servers.url}/{name}") == place
    assert place.startswith(f"webhdfs://{name}-")
    url = f"{servers.url}/Other_Tree"
    other = dos.checkpoints(spark, url, max_bytes="300MiB")
    shown = json.loads(CliRunner().invoke(dos_app, ["gateway", "status", url, "--json"]).output)
    assert shown["maxBytes"] == 300 * MIB
    with pytest.raises(LocalProtocolError, match="max_bytes='300MiB' in this process, and got '1GiB'"):
        dos.checkpoints(spark, url, max_bytes="1GiB")
    assert other.startswith("webhdfs://other-tree-")
    for at in (place, other):  # both can be used: a new file system is made for a query's log
        assert not run(counted(spark), f"{at}/totals", 0)


def test_a_place_that_this_jvm_has_at_another_gateway_is_refused(
    spark: SparkSession, servers: Servers[ThreadedServer], name: str, place: str
) -> None:
    """Another Python process with the same JVM, or gateways of the configuration: two file systems for one
    name would be asked for one query's files.
    """
    (gateway,) = gateway_process._gateways.values()
    gateway.close()
    gateway_process._gateways.clear()
    with pytest.raises(LocalProtocolError, match=f"{place} is served at 127.0.0.1:[0-9]+ in this JVM"):
        dos.checkpoints(spark, f"{servers.url}/{name}")
    assert not gateway_process._gateways, "and no second gateway stays"


def test_a_place_needs_a_tree(spark: SparkSession, servers: Servers[ThreadedServer]) -> None:
    with pytest.raises(BadUrlError, match="must name a tree"):
        dos.checkpoints(spark, servers.url)


def test_the_example_of_the_page_runs(spark: SparkSession, servers: Servers[ThreadedServer]) -> None:
    table = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    names = {"spark": spark, "table": table}
    query = run_example("docs/gateway.md", "checkpoints", names, store=servers.url)["query"]
    try:
        until(lambda: last_batch(query) >= 0 or query.exception() is not None, "a batch", 240)
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.long
def test_a_read_continues_where_it_was_when_its_connection_ends(
    spark: SparkSession, servers: Servers[ThreadedServer], name: str, place: str
) -> None:
    """So an answer that a slow client does not take may be cut off."""
    body = os.urandom(16 << 20)
    port = int(gateway_process._gateways[f"{servers.url}/{name}"]._listen.rsplit(":", 1)[1])
    assert WebHdfsClient(port).put("/large", body).code == 201
    path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(f"{place}/large")  # type: ignore[union-attr]
    stream = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).open(path)
    read = bytearray(stream.readNBytes(1000))
    os.kill(gateway_of(servers, name), signal.SIGKILL)
    while part := stream.readNBytes(1 << 20):
        read += part
    stream.close()
    assert bytes(read) == body
