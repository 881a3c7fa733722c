"""A region on Spark, and a DataFrame of its checkpoints, over TLS. The session started without settings."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from dos_server import embedded
from dos_tls import VARIABLES
from spark_integration import register
from spark_integration.errors import ConnectSessionError, StoreNotUsableError
from spark_integration.runner import choose_store
from spark_integration.sessions import use_tls_of_driver
from tests.spark_integration.test_region import (
    Start,
    assert_right,
    checkpoints,
    split_slowly,
    start,
    wait_until,
    word_count,
)
from tests.support.certificates import Certificates, certificates

__all__ = ["certificates", "start"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
PASSES = 40


def forget_tls(spark: SparkSession) -> None:
    """Let the session of all tests be as it was started."""
    for name in VARIABLES:
        spark.sparkContext.environment.pop(name, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DOS_TLS", raising=False)
        register(spark)


@pytest.fixture
def tls_store(
    spark: SparkSession, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setenv("DOS_TLS", str(certificates.client))
    with embedded.start(tmp_path / "store", tls=certificates.context(client_certificates=True)) as server:
        yield server.url
    forget_tls(spark)


def test_a_worker_is_killed_and_the_region_continues_over_tls(
    spark: SparkSession, start: Start, tls_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = word_count(tmp_path, passes=PASSES, function=split_slowly)
    region = start(graph, store=tls_store, name="wc", workers=2, checkpoint_interval=0.3)
    wait_until(checkpoints(region, 1), region)
    os.kill(region.status.workers[0].pid, signal.SIGKILL)
    region.awaitTermination()
    assert region.status.incarnation > 1
    assert_right(tmp_path, PASSES)
    register(spark)
    rows = spark.read.format("dos-checkpoints").load(f"{tls_store}/wc").collect()
    assert len(rows) >= 1, "read by Python processes that Spark started"
    monkeypatch.delenv("DOS_TLS")
    register(spark)
    spark.read.format("dos-checkpoints").load(f"{tls_store}/wc").collect()  # nothing changes to plain text
    forget_tls(spark)
    with pytest.raises(Exception, match="accepts TLS only"):
        spark.read.format("dos-checkpoints").load(f"{tls_store}/wc").collect()


def test_the_store_inside_a_session_is_refused_because_it_speaks_plain_text(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOS_TLS", str(certificates.client))
    with pytest.raises(StoreNotUsableError, match="plain text"):
        choose_store(None, one_machine=True, master="local[2]", data_dir=None)


def test_a_connect_session_is_refused_because_its_server_has_the_settings(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_integration.sessions.is_connect", lambda _: True)
    session = cast("SparkSession", object())
    use_tls_of_driver(session)
    monkeypatch.setenv("DOS_TLS", str(certificates.client))
    with pytest.raises(ConnectSessionError, match="Spark Connect server"):
        use_tls_of_driver(session)
