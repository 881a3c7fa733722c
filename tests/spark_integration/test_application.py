"""An application of two regions and a part outside of any on a real Spark session, fed by an input handle."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from checkpoint.core.region import RegionState
from dataflow import (
    CallSink,
    Graph,
    InputSource,
    LogSink,
    LogSource,
    autonomous,
    blocking,
    collect_output,
    consistent,
)
from dataflow.handle import Application
from dos_client.blocking import open_store
from dos_server import embedded
from spark_integration import run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]  # a busy machine is slow, not wrong

WORDS = "word string"


def any_row(row: dict[str, Any]) -> bool:
    return bool(row)


def note(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(f"{row['word']}\n")


def regions_and_a_board(folder: Path, first: str) -> Graph:
    graph = Graph("app")
    words = graph.source(first, InputSource("words", WORDS)).annotate(consistent(period=0.5))
    words.sink("out", LogSink(publish="checkpoint"))
    words.filter("noted", any_row).sink("board", CallSink(partial(note, folder / "seen")))
    graph.annotate("noted", autonomous)
    again = graph.source("again", LogSource("out", WORDS)).annotate(consistent(period=0.5))
    again.key_by("by_word", "word").count("counts").sink("counted", LogSink())
    return graph


@pytest.mark.long
def test_two_regions_and_a_board_run_as_one_application_with_one_handle(
    spark: SparkSession, tmp_path: Path
) -> None:
    with embedded.start(tmp_path / "store") as server:
        app = run(spark, regions_and_a_board(tmp_path, "words"), workers=1, store=server.url)
        assert isinstance(app, Application)
        try:
            with (
                open_store(server.url) as store,
                blocking.open_producer(store, "app", "words", "p", WORDS) as producer,
            ):
                for _ in range(3):
                    producer.wait_recorded(producer.send([{"word": "a"}, {"word": "b"}, {"word": "a"}]))
                blocking.close_input(store, "app", "words")
            assert app.awaitTermination(150), app
        finally:
            app.stop()
        assert {name: status.state for name, status in app.status.items()} == {
            "app.words": RegionState.FINISHED,
            "app.again": RegionState.FINISHED,
            "app.noted": RegionState.FINISHED,
        }
        table = collect_output(server.url, "app.again", "counted")
        renamed = {"words": "rows", "words.leaves": "rows.leaves"}
        app = run(
            spark, regions_and_a_board(tmp_path / "no", "rows"), workers=1, store=server.url, renamed=renamed
        )
        try:
            assert isinstance(app, Application)
            assert list(app.parts) == ["app.words", "app.again", "app.noted"], "named as their regions are"
            assert app.parts["app.words"].awaitTermination(150), app
        finally:
            app.stop()
            assert app.wait(150)
    assert table is not None
    assert sorted((tmp_path / "seen").read_text().split()) == sorted("aba" * 3), "outside of any region"
    assert {row["word"]: row["count"] for row in table.to_pylist()} == {"a": 6, "b": 3}
