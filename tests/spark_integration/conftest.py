"""One Spark session for all tests of a process that use it, because starting one takes six to ten seconds.
And a store for each file.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

from dos_client import init_store
from dos_client.blocking import BlockingStore, open_store
from dos_server.testing import Servers, ThreadedServer, threaded_store
from spark_integration.core.options import SinkOptions, parse_sink_options
from spark_integration.reading.opening import KEPT
from spark_integration.writing.committing import release_producers
from tests.support.servers import ServerProcess, url_of

SLOTS = 6
WARM_DAEMON = "tests.spark_integration.warm_daemon"


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers[ThreadedServer]]:
    """A store of three in memory, for all tests of a file."""
    with threaded_store() as found:
        yield found
        KEPT.close()  # they outlive a test, as they do a task


@pytest.fixture(scope="module")
def store(servers: Servers[ThreadedServer]) -> Iterator[BlockingStore]:
    with open_store(servers.url) as found:
        yield found


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A region, application or directory of the test's own."""
    return f"r{abs(hash(request.node.name)) % 10**8}"


@pytest.fixture(params=["handed", "read"])
def transfer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the rows of small micro-batches reach tasks: with their partitions, or from the store."""
    if request.param == "read":
        monkeypatch.setattr("spark_integration.reading.chains.HANDED_BYTES_MAX", -1)
    return str(request.param)


@pytest.fixture
def options(three_servers: list[ServerProcess]) -> Iterator[SinkOptions]:
    """Of a sink into the input `orders` of application `shop`, on three real servers."""
    trio.run(init_store, url_of(three_servers))
    yield parse_sink_options({"path": url_of(three_servers, "shop"), "input": "orders"})
    release_producers()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on `local[6]`: two regions of two workers, and slots for other jobs."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warehouse: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master(f"local[{SLOTS}]")
        .appName("dos tests")
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.daemon.module", WARM_DAEMON)
        .config("spark.sql.streaming.pollingDelay", "100ms")  # each poll of a source runs Python
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.driver.memory", "700m")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
