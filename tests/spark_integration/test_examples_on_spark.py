"""Run the examples of README.md, docs/inputs.md, docs/operating-regions.md and docs/spark.md that start a
region or write a DataFrame, on a real Spark session.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dataflow import collect_output
from dataflow.errors import NoOutputError
from dos_server.testing import Servers, ThreadedServer, threaded_store
from spark_integration import register
from tests.spark_integration.test_through import newest
from tests.support.examples import run_example
from tests.support.polling import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
TEXT = "to be or not to be"


def test_the_ten_lines_of_the_readme_count_words_and_a_listener_sees_the_progress(
    spark: SparkSession,
    servers: Servers[ThreadedServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_example("README.md", "wordcount", {"spark": spark}, store=servers.url)
    counts = spark.read.format("dos").option("output", "out").load(f"{servers.url}/wordcount")
    assert newest(counts.select("word", "count").collect()) == Counter(TEXT.split())
    assert "|  to|    2|" in capsys.readouterr().out

    Path("logs/b.txt").write_text(f"{TEXT}\n", encoding="utf-8")
    names = run_example("docs/operating-regions.md", "listener", names, store=servers.url)
    names["region"].awaitTermination()
    assert capsys.readouterr().out
    region = run_example("docs/changing-regions.md", "autoscale", names, store=servers.url)["region"]
    assert (region.status.autoscale.minimum, region.status.autoscale.maximum) == (2, 8)
    region.awaitTermination()
    again = run_example("docs/spark.md", "supervised", names, store=servers.url)
    assert not again["region"].isActive


def test_the_changed_line_of_the_readme_has_the_sums_of_windows_that_are_over(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    rows = [("09:10", "a", 2.0), ("09:50", "a", 3.5), ("09:55", "b", 1.0), ("10:30", "a", 9.0)]
    (tmp_path / "orders").mkdir()
    lines = [json.dumps({"at": f"2026-05-01T{at}:00Z", "shop": shop, "price": x}) for at, shop, x in rows]
    (tmp_path / "orders" / "1.json").write_text("\n".join(lines), encoding="utf-8")
    names = run_example("README.md", "changed_line", {"spark": spark}, store=servers.url, data=f"{tmp_path}/")
    names["query"].processAllAvailable()
    names["query"].stop()
    sold = spark.read.parquet(f"{tmp_path}/sold").select("shop", "sum").collect()
    assert Counter(map(tuple, sold)) == Counter([("a", 5.5), ("b", 1.0)]), "10:00 to 11:00 is not over"


def test_a_producer_writes_what_the_region_of_the_page_counts(
    spark: SparkSession, servers: Servers[ThreadedServer]
) -> None:
    def sales_after(mark: bytes) -> Iterator[tuple[bytes, list[dict[str, Any]]]]:
        assert mark == b""
        yield b"1", [{"item": "tea", "price": 3}, {"item": "milk", "price": 1}]
        yield b"2", [{"item": "tea", "price": 4}]

    region = run_example("docs/inputs.md", "input", {"spark": spark}, store=servers.url)["region"]
    run_example("docs/inputs.md", "producer", {"sales_after": sales_after}, store=servers.url)

    def counted() -> bool:
        """A checkpoint covers what the worker has read: perhaps not yet the last batch."""
        region.checkpoint()
        try:
            table = collect_output(servers.url, "shop", "out")
        except NoOutputError:
            return False
        return table is not None and "milk" in table["item"].to_pylist() and 2 in table["count"].to_pylist()

    until(counted, "the region counts all sales", within_s=60)
    region.stop()
    register(spark)
    sold = spark.read.format("dos").option("output", "out").load(f"{servers.url}/shop")
    assert newest(sold.select("item", "count").collect()) == {"tea": 2, "milk": 1}


def test_a_batch_and_a_stream_are_written_into_an_input(spark: SparkSession, tmp_path: Path) -> None:
    columns = "item string, price bigint"
    register(spark)
    orders = spark.createDataFrame([("tea", 3), ("milk", 1)], columns)
    folder = str(tmp_path / "new")
    orders.write.parquet(folder)
    names = {"spark": spark, "orders": orders, "new_orders": spark.readStream.schema(columns).parquet(folder)}
    with threaded_store() as servers:
        run_example("docs/spark.md", "write", names, store=servers.url, data=f"{tmp_path}/")
        names["query"].processAllAvailable()
        names["query"].stop()
        written = spark.read.format("dos").option("input", "orders").load(f"{servers.url}/shop")
        assert Counter(written.collect()) == dict.fromkeys(orders.collect(), 2)
