"""Example programs of Spark's documentation, written after their description, with the changed line. Those
that have the rows of Spark are in `test_frame.py` (windows over restarts, a join with a table, duplicates),
in `test_frame_modes.py` (output modes) and here. The others are refused by name, before anything starts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

import spark_integration as dos
from dos_server.testing import Servers, ThreadedServer
from spark_integration.core.dividing import FrameError
from tests.spark_integration.test_frame import Rerun, nothing_runs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class Program(NamedTuple):
    """`made`: of the stream and another one. `text`: of the error with which it is refused."""

    made: Callable[[Any, Any], Any]
    mode: str
    text: str


def windowed(words: Any) -> Any:
    window = F.window("at", "10 minutes", "5 minutes")
    return words.withWatermark("at", "10 minutes").groupBy(window, "word").count()


def joined(how: str) -> Callable[[Any, Any], Any]:
    condition = "ad = click AND at >= seen AND at <= seen + interval 1 hour"
    return lambda ads, clicks: ads.withWatermark("at", "1 hour").join(
        clicks.withWatermark("seen", "2 hours"), F.expr(condition), how
    )


def sessions(gap: Any) -> Callable[[Any, Any], Any]:
    return lambda words, _: (
        words.withWatermark("at", "10 minutes").groupBy(F.session_window("at", gap), "word").count()
    )


FUNCTION = r"of a frame is not computed by a region .*use the method of that kind of a graph"
CHAIN = "a stateful call after aggregate_by_word_10m"
PROGRAMS: dict[str, Program] = {
    "sessions": Program(sessions("5 minutes"), "append", "session_window is not computed"),
    "sessions of a gap by row": Program(
        lambda words, other: sessions(F.when(F.col("word") == "a", "5 seconds").otherwise("5 minutes"))(
            words, other
        ),
        "append",
        "session_window is not computed",
    ),
    "sessions by a function": Program(
        lambda words, _: words.groupBy("word").applyInPandasWithState(None, "", "", "Update", ""),
        "update",
        f"applyInPandasWithState {FUNCTION}",
    ),
    "a window of the time of a window": Program(
        lambda words, _: windowed(words).groupBy(F.window(F.window_time("window"), "1 hour"), "word").count(),
        "append",
        CHAIN,
    ),
    "a window of a window": Program(
        lambda words, _: windowed(words).groupBy(F.window("window", "1 hour"), "word").count(),
        "append",
        CHAIN,
    ),
    **{
        f"a join of two streams, {how}": Program(joined(how), "append", "join of streams is not computed")
        for how in ("inner", "left_outer", "left_semi")
    },
    "duplicates within the watermark": Program(
        lambda words, _: words.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["word"]),
        "append",
        "dropDuplicatesWithinWatermark is not computed",
    ),
    "a processor of pandas": Program(
        lambda words, _: words.groupBy("word").transformWithStateInPandas(None, "", "Update", "None"),
        "update",
        f"transformWithStateInPandas {FUNCTION}",
    ),
    "a processor of rows": Program(
        lambda words, _: words.groupBy("word").transformWithState(None, "", "Update", "ProcessingTime"),
        "update",
        f"transformWithState {FUNCTION}",
    ),
}


@pytest.fixture(scope="module")
def streams(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("streams")
    words = spark.readStream.schema("at timestamp, word string, ad string").json(str(folder))
    clicks = spark.readStream.schema("seen timestamp, click string").json(str(folder))
    return dos.frame(words), dos.frame(clicks)


def started(program: Program, streams: tuple[Any, Any], folder: Path) -> None:
    writer = program.made(*streams).writeStream.outputMode(program.mode)
    writer.format("noop").start(checkpointLocation=str(folder))


def test_programs_that_no_region_computes_are_refused_by_name(
    streams: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nothing_runs(monkeypatch)
    for name, program in PROGRAMS.items():
        with pytest.raises(FrameError, match=program.text) as caught:
            started(program, streams, tmp_path)
        assert caught.value.remedy, name


def test_what_spark_refuses_on_a_stream_has_its_condition(
    streams: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    words = streams[0]
    for made in (words.groupBy("word").count(), words.groupBy(F.window("at", "1 hour")).count()):
        with pytest.raises(Exception, match=r"STREAMING_OUTPUT_MODE\.UNSUPPORTED_OPERATION"):
            made.writeStream.outputMode("append").format("noop").start()
    with pytest.raises(FrameError, match="collect of a stream: start it with writeStream"):
        words.groupBy("word").count().collect()
    with pytest.raises(FrameError, match="asyncProgressTrackingEnabled"):
        windowed(words).writeStream.option("asyncProgressTrackingEnabled", "true").format("noop").start()
    for select in (lambda given: given.select(F.max("at")), lambda given: given.selectExpr("count(*) as n")):
        for given in (words, windowed(words)):
            with pytest.raises(FrameError, match=r"would keep state in Spark \(Aggregate\).*use agg"):
                select(given if given is words else given.select(F.col("window.start").alias("at")))
    counted = words._shadow.groupBy("word").count()
    with pytest.raises(FrameError, match=r"keeps state in Spark already \(Aggregate\)"):
        dos.frame(counted)


def test_a_stream_without_a_watermark_drops_sparks_duplicates_and_shows_what_it_observed(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    rerun = Rerun(spark, tmp_path, servers.url)

    def program(given: DataFrame) -> DataFrame:
        return given.observe("seen", F.count(F.lit(1)).alias("rows")).dropDuplicates(["k"]).select("k")

    for number, minutes in enumerate([[0, 1], [1, 2]]):
        rerun.add(minutes, number)
        expected, found = rerun.run(program, framed=False), rerun.run(program, framed=True)
        assert found == expected == [("k0",), ("k1",), ("k2",)]
    assert rerun.observed == {"framed": 14, "plain": 14}
