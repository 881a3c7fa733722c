"""The sink `dos` on a real Spark session, over a store of three in memory: what only Spark can show. What its
tasks and its commit do, and every way to die in between, is in `test_sink_store` and `test_sink_kills`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dos_client.blocking import BlockingStore, open_store
from dos_server.testing import Servers, ThreadedServer, threaded_store
from spark_integration import register

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def servers(spark: SparkSession) -> Iterator[Servers[ThreadedServer]]:
    register(spark)
    with threaded_store(token=b"secret") as found:
        yield found


@pytest.fixture(scope="module")
def store(servers: Servers[ThreadedServer]) -> Iterator[BlockingStore]:
    with open_store(servers.url, token=b"secret") as found:
        yield found


def rows_in(spark: SparkSession, url: str, handle: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("dos").options(input=handle, token="secret").load(f"{url}/shop")
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.every_pyspark
def test_a_batch_write_is_read_again_and_what_does_not_fit_is_refused_by_name(
    spark: SparkSession, servers: Servers[ThreadedServer]
) -> None:
    def write(frame: Any, mode: str = "append", **options: str) -> None:
        every = {"input": "orders", "token": "secret", **options}
        frame.write.format("dos").options(**every).mode(mode).save(f"{servers.url}/shop")

    orders = spark.range(4).selectExpr("id AS n", "repeat('x', 200000) AS text").repartition(2)
    write(orders)
    write(spark.createDataFrame([(9, None)], "n bigint, text string"), batch="2")
    write(spark.createDataFrame([(10, "again")], "n bigint, text string"), batch="2")
    assert [(n, text and len(text)) for n, text in rows_in(spark, servers.url, "orders")] == [
        *((n, 200000) for n in range(4)),
        (9, None),
    ]
    wrong = spark.createDataFrame([(1, 2)], "n int, txt int")
    refused: list[tuple[dict[str, Any], str]] = [
        (
            {},
            r".*column 'text' \(string\) is missing, and column 'txt' \(int\) is not expected",
        ),
        ({"token": "wrong"}, "(?i)token"),
    ]
    for options, said in refused:
        with pytest.raises(PySparkException, match=said):
            write(wrong, **options)
    assert len(rows_in(spark, servers.url, "orders")) == 5
    write(spark.createDataFrame([(0.5, 11, "new")], "more double, n int, text string"))
    write(spark.createDataFrame([("old", 12)], "text string, n bigint"))
    newest = "n bigint, more double, text string"
    reader = spark.read.format("dos").options(input="orders", token="secret")
    read = reader.schema(newest).load(f"{servers.url}/shop").where("n > 8 AND (more > 0 OR more IS NULL)")
    assert sorted(map(tuple, read.collect())) == [(9, None, None), (11, 0.5, "new"), (12, None, "old")]
    assert [n for n, _ in rows_in(spark, servers.url, "orders")][-2:] == [11, 12], "as the oldest rows are"


@pytest.mark.every_pyspark
def test_a_stream_is_written_once_also_when_spark_forgot_that_it_committed(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore, tmp_path: Path
) -> None:
    for name in ("1", "2", "3"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text("".join(f"{name}{at}\n" for at in range(3)))

    def run(**more: str) -> Any:
        stream = spark.readStream.option("maxFilesPerTrigger", "1").text(str(tmp_path / "in"))
        writing = (
            stream.repartition(2)
            .writeStream.format("dos")
            .options(input="lines", token="secret", checkpointLocation=str(tmp_path / "checkpoint"), **more)
        )
        query = writing.trigger(availableNow=True).start(f"{servers.url}/shop")
        query.awaitTermination()
        return query

    every = [(f"{name}{at}",) for name in "123" for at in range(3)]
    query = run()
    assert rows_in(spark, servers.url, "lines") == every
    assert f"shop.in.lines.q{query.id.replace('-', '')}" in store.list_directories("shop.in.lines")
    for log in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        log.unlink()  # as if the driver had died between the sink's commit and Spark's
    run()
    assert rows_in(spark, servers.url, "lines") == every
    (tmp_path / "in" / "4").write_text("40\n")
    run()
    assert rows_in(spark, servers.url, "lines") == [*every, ("40",)]
    (tmp_path / "in" / "5").write_text("50\n")
    with pytest.raises(
        PySparkException, match=r"OtherCheckpointError: .*is at micro-batch 4, but .*has none of its"
    ):
        run(producer="another")
    for folder, batch in (("offsets", 4), ("offsets", 3), ("commits", 3), ("sources/0", 4), ("sources/0", 3)):
        for log in (tmp_path / "checkpoint" / folder).glob(f"*{batch}*"):
            log.unlink()  # a disk that was not synced lost the newest batches
    (tmp_path / "in" / "4").unlink()
    with pytest.raises(
        PySparkException, match=r"BatchPlannedAgainError: micro-batch 3 was planned again.* with 1 other rows"
    ):
        run()
    assert rows_in(spark, servers.url, "lines") == [*every, ("40",)], "50 is not recorded, and not dropped"
    run(repeatedBatch="keep")
