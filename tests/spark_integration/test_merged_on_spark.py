"""The format `dos-merged` on a real Spark session, over real servers and replicas: a query that stops and
continues from its checkpoint, while stores and sites come and go.
"""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_integration import register
from spark_integration.versions import ADMISSION_CONTROL
from tests.dataflow.merged_sites import Row, Site, open_sites, rows_of
from tests.dataflow.test_merged_streams import keys_of
from tests.spark_integration.pyspark_versions import refused_before
from tests.spark_integration.test_merged_source import options_of
from tests.support.examples import run_example
from tests.support.polling import until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(300)]
WAIT_S = 120.0


class Table:
    """A sink that has the rows of each micro-batch as often as Spark wrote it, and the query's checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        register(spark)
        self.spark, self.checkpoint = spark, folder / "checkpoint"
        self.written: dict[int, list[Counter[tuple[int, str, int]]]] = {}

    def query(self, sites: Sequence[Site], *, now: bool = False, **options: str) -> StreamingQuery:
        stream = self.spark.readStream.format("dos-merged").options(**options_of(sites, **options)).load()
        sink = stream.writeStream.foreachBatch(self._write).option("checkpointLocation", str(self.checkpoint))
        return (sink.trigger(availableNow=True) if now else sink).start()

    def _write(self, rows: DataFrame, number: int) -> None:
        keys = Counter((round(1000 * row["at"].timestamp()), row["key"], row["n"]) for row in rows.collect())
        self.written.setdefault(number, []).append(keys)

    @property
    def rows(self) -> "Counter[tuple[int, str, int]]":
        """The rows of all micro-batches, each counted once."""
        return sum((one[0] for one in self.written.values()), Counter())

    def wait_for(self, rows: Sequence[Row], query: StreamingQuery) -> None:
        def reached() -> bool:
            if (error := query.exception()) is not None:
                raise error
            return self.rows.total() >= len(rows)

        until(reached, f"{len(rows)} rows were written", WAIT_S)
        assert self.rows == keys_of(rows)

    def ends(self) -> list[Any]:
        """The mark at the end of each micro-batch, from Spark's checkpoint."""
        files = [one for one in (self.checkpoint / "offsets").iterdir() if one.name.isdecimal()]
        texts = [one.read_text() for one in sorted(files, key=lambda one: int(one.name))]
        return [json.loads(text.splitlines()[-1])["markUs"] for text in texts]


@pytest.mark.long
@refused_before(ADMISSION_CONTROL)
def test_a_query_has_each_row_once_while_stores_and_sites_come_and_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = rows_of(900)
    table = Table(spark, tmp_path)
    with open_sites(tmp_path, "ab") as (one, two), one.replica(), two.replica():
        one.send(rows[:300], mark_ms=900)
        query = table.query([one, two], maxRowsPerTrigger="100")
        table.wait_for([row for row in rows if row.at_ms <= 900], query)
        one.server.kill()
        try:
            two.send(rows[:600], mark_ms=1900)
            table.wait_for([row for row in rows if row.at_ms <= 1900], query)
            query.stop()
            # Spark makes a micro-batch again if its checkpoint does not have the commit.
            last = max(table.written)
            for name in (f"{last}", f".{last}.crc"):
                (table.checkpoint / "commits" / name).unlink(missing_ok=True)
            two.send(rows[600:], mark_ms=3000, close=True)
            assert table.query([two], now=True).awaitTermination(WAIT_S), "all replicas of the query ended"
        finally:
            one.server.restart()
    assert table.rows == keys_of(rows)
    assert len(table.written[last]) == 2
    for number, (above, upto) in enumerate(pairwise([None, *table.ends()])):
        low, high = (-1 if mark is None else mark // 1000 for mark in (above, upto))
        expected = keys_of([row for row in rows if low < row.at_ms <= high])
        assert all(found == expected for found in table.written[number])


@pytest.mark.every_pyspark
@refused_before(ADMISSION_CONTROL)
def test_the_example_of_the_page_is_a_stream(spark: SparkSession) -> None:
    register(spark)
    frame = run_example("docs/spark.md", "merged", {"spark": spark})["shown"]
    assert frame.isStreaming
    assert frame.schema.simpleString() == "struct<at:timestamp,load:double>"
