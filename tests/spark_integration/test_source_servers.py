"""A stream of the source `dos` on Spark, from three real servers, one of which is killed while a batch
reads.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark.sql import DataFrame, SparkSession

from dos_client import init_store
from dos_client.blocking import open_store
from spark_integration import register
from tests.spark_integration.stored_data import write_steps
from tests.support.servers import ServerProcess, three_servers, url_of

__all__ = ["three_servers"]
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(400)]
COLUMNS = pa.schema([("n", pa.int64()), ("text", pa.string())])
STEPS = 24
STEP_BYTES = 1024 * 1024


def steps(first: int, last: int) -> dict[int, list[dict[str, Any]]]:
    return {step: [{"n": step, "text": "x" * STEP_BYTES}] for step in range(first, last + 1)}


def slow(said: str, go_on: str) -> Any:
    """A function for a stream: at the first rows it creates a file, and waits for another one."""

    def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        for batch in batches:
            Path(said).touch()
            while not Path(go_on).exists():
                time.sleep(0.01)
            yield batch.select(["n"])

    return take


def until(start: Callable[[], Any], done: Callable[[Any], bool]) -> Any:
    """Start a query and wait. Spark gives the process of a Python source ten seconds to import PySpark, which
    a busy machine may not do: then nothing was begun, and it is started again.
    """
    for _ in range(5):
        query = start()
        while not done(query):
            trio.run(trio.sleep, 0.02)
        error = query.exception()
        if error is None:
            return query
        assert "failed to connect back" in str(error), error
    raise AssertionError(error)


def test_a_server_that_dies_in_the_middle_of_a_batch_costs_no_row_and_a_query_continues_from_its_checkpoint(
    spark: SparkSession, three_servers: list[ServerProcess], tmp_path: Path
) -> None:
    register(spark)
    url = url_of(three_servers)
    trio.run(init_store, url)
    batches: list[list[int]] = []

    def note(frame: DataFrame, number: int) -> None:
        assert number == len(batches)
        batches.append(sorted(row["n"] for row in frame.collect()))

    def start() -> Any:
        read = spark.readStream.format("dos").options(output="out", maxRowsPerTrigger="20")
        stream = read.load(f"{url}/words").mapInArrow(
            slow(str(tmp_path / "said"), str(tmp_path / "go-on")), "n bigint"
        )
        writing = stream.writeStream.foreachBatch(note).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        return writing.trigger(availableNow=True).start()

    with open_store(url) as store:
        write_steps(store, "words", "out", 0, steps(1, STEPS), COLUMNS)
        query = until(start, lambda query: (tmp_path / "said").exists() or not query.isActive)
        three_servers[2].kill()
        (tmp_path / "go-on").touch()
        query.awaitTermination()
        assert batches == [list(range(1, 21)), list(range(21, STEPS + 1))]
        offset = json.loads(query.lastProgress["sources"][0]["endOffset"])
        assert (offset["version"], offset["what"], list(offset["splits"])) == (
            1,
            "output words/out",
            ["w0000"],
        )
        write_steps(store, "words", "out", 0, steps(STEPS + 1, STEPS + 2), COLUMNS, epoch=2)
        until(start, lambda query: not query.isActive)
    assert batches[2:] == [[STEPS + 1, STEPS + 2]]
