"""State that is given and edited as DataFrames, on a real Spark session: the examples of the pages."""

import pytest
from pyspark.sql import SparkSession

from dataflow import collect_output
from dataflow.blocking import close_input, open_producer
from dos_client.blocking import open_store
from dos_server.testing import Servers, ThreadedServer
from tests.support.examples import run_example

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.long
def test_a_region_begins_with_a_dataframe_is_edited_by_one_and_goes_on(
    spark: SparkSession, servers: Servers[ThreadedServer], capsys: pytest.CaptureFixture[str]
) -> None:
    names = run_example("docs/state.md", "bootstrap", {"spark": spark}, store=servers.url)
    assert "counts: 3 added, 0 changed, 0 deleted" in capsys.readouterr().out
    with open_store(servers.url) as store:
        with open_producer(store, "wordcount", "words", "hand", "word string") as producer:
            producer.wait_recorded(producer.send([{"word": "the"}, {"word": "new"}]))
        close_input(store, "wordcount", "words")
    names = run_example("docs/cookbook.md", "edit", names, store=servers.url)
    dry, done = capsys.readouterr().out.splitlines()
    assert "nothing was written" in dry
    assert "checkpoint 2: counts: 0 added, 1 changed, 1 deleted, 0 unchanged" in done
    names["region"].awaitTermination(120)
    state = spark.read.format("dos-state").option("operator", "counts").load(f"{servers.url}/wordcount")
    assert {row["word"]: row["count"] for row in state.collect()} == {"the": 43, "a": 7, "new": 1}
    output = collect_output(servers.url, "wordcount", "out")
    assert output is not None
    assert {row["word"]: row["count"] for row in output.to_pylist()} == {"the": 43, "new": 1}
