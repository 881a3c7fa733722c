"""Output modes of frames on streams: programs of PySpark's distribution, written after their description with
files in place of sockets, have the rows of Spark in each micro-batch, over a restart and a repeated batch.
"""

import json
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

import spark_integration as dos
from dos_server.testing import Servers, ThreadedServer
from spark_integration.core.dividing import FrameError
from tests.spark_integration.frame_cases import START
from tests.spark_integration.test_frame import nothing_runs
from tests.support.polling import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FILES: list[list[tuple[int, str]]] = [
    [],
    [(0, "a b a a"), (12, "b c"), (61, "d a a b")],
    [(59, "a c c"), (62, "e e")],
    [(200, "a a"), (55, "b"), (190, "f a"), (1, "late a b")],
]
"""(minute, words) of the lines of each micro-batch. The first one has no row. The late row is a micro-batch
below the one that makes it late, because Spark counts it that much longer.
"""


def put(folder: Path, number: int, files: Sequence[list[tuple[int, str]]] = FILES) -> None:
    hidden = folder / f"{number}.json"
    lines = [(START + timedelta(minutes=minute), text) for minute, text in files[number]]
    hidden.write_text("".join(f"{json.dumps({'at': at.isoformat(), 'value': text})}\n" for at, text in lines))
    os.utime(hidden, (1_700_000_000 + number,) * 2)  # a stream takes the oldest first
    (folder / "in").mkdir(exist_ok=True)
    hidden.rename(folder / "in" / hidden.name)


def desks() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("dos-desk-")]


def words_of(lines: Any) -> Any:
    return lines.select(F.explode(F.split(lines.value, " ")).alias("word"), lines["at"])


def windowed(words: Any) -> Any:
    return words.groupBy(F.window(words.at, "20 minutes", "10 minutes"), words.word).count()


class Program(NamedTuple):
    """`made`: of the words. `repeats`: the last micro-batch before the restart is repeated after it."""

    made: Callable[[Any], Any]
    mode: str
    repeats: bool = True
    is_sorted: bool = False


PROGRAMS: dict[str, Program] = {
    "word count": Program(lambda words: words.groupBy("word").count(), "complete"),
    "windowed word count": Program(
        lambda words: windowed(words).orderBy("window", F.desc("count"), "word").limit(7),
        "complete",
        is_sorted=True,
    ),
    "word count, update": Program(lambda words: words.groupBy("word").count(), "update"),
    "late data, update": Program(
        # Spark has one more micro-batch at the end, without rows, when the watermark has moved.
        lambda words: windowed(words.withWatermark("at", "10 minutes")).filter("count > 1"), "update", False
    ),
    "all rows, update": Program(
        lambda words: words.agg(F.count("*").alias("n"), F.max("word").alias("last")), "update"
    ),
}  # fmt: skip


class Running:
    """A program with or without the changed line. `batches`: the rows of each micro-batch that has some."""

    def __init__(self, spark: SparkSession, folder: Path, store: str | None, workers: int = 2) -> None:
        lines: Any = spark.readStream.schema("at timestamp, value string").option("maxFilesPerTrigger", 1)
        self.words = lines.json(str(folder / "in"))
        self.place = folder / ("plain" if store is None else "framed")
        if store is not None:
            self.words = dos.frame(self.words, store=store, workers=workers)
        self.batches: list[list[Any]] = []

    def run(self, program: Program) -> None:
        def take(df: DataFrame, _batch: int) -> None:
            if rows := [tuple(row) for row in df.collect()]:
                self.batches.append(rows if program.is_sorted else sorted(rows, key=repr))

        made = program.made(words_of(self.words))
        writer = made.writeStream.outputMode(program.mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.place))
        writer.foreachBatch(take).start().awaitTermination()

    def forget_last(self) -> None:
        """Spark's checkpoint loses that the last micro-batch has ended."""
        last = max(int(one.name) for one in (self.place / "commits").iterdir() if one.name.isdigit())
        (self.place / "commits" / str(last)).unlink()
        (self.place / "commits" / f".{last}.crc").unlink()


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_each_micro_batch_has_sparks_rows(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, program: Program
) -> None:
    found = []
    for number in (0, 1, 2):
        put(tmp_path, number)
    for store in (None, servers.url):
        running = Running(spark, tmp_path, store)
        running.run(program)
        found.append(running)
    if program.repeats:
        for running in found:
            running.forget_last()
    put(tmp_path, 3)
    for running in found:
        running.run(program)
    plain, framed = (running.batches for running in found)
    assert framed == plain
    assert len(framed) >= 3 + program.repeats
    for rows in framed:
        keys = [row[:-1] for row in rows]
        assert len(keys) == len({*keys}), "a group is once in a micro-batch"


def test_a_table_is_on_the_console_and_in_memory(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, 1)
    words = Running(spark, tmp_path, servers.url).words
    counted = words_of(words).groupBy("word").count().orderBy(F.desc("count"), "word")
    expected = [("a", 5), ("b", 3), ("c", 1), ("d", 1)]
    for _ in range(2):  # without a checkpointLocation each query begins anew
        started = counted.writeStream.outputMode("complete").trigger(availableNow=True)
        started.queryName("counted").start(format="memory").awaitTermination()
        assert [tuple(row) for row in spark.table("counted").collect()] == expected
    shown = counted.writeStream.outputMode("complete").trigger(availableNow=True).format("console")
    capsys.readouterr()
    shown.option("numRows", 2).start().awaitTermination()
    text = capsys.readouterr().out
    assert "Batch: 0\n" in text
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in row] for row in cells] == [["word", "count"], ["a", "5"], ["b", "3"]]


def test_a_function_that_does_not_evaluate_its_micro_batch_leaves_none_out(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        put(tmp_path, number)
    words = words_of(Running(spark, tmp_path, servers.url).words)
    for mode in ("update", "complete"):
        last: dict[str, int] = {}

        def each(df: DataFrame, batch: int, last: dict[str, int] = last) -> None:
            if batch == 2:
                last.update({row["word"]: row["count"] for row in df.collect()})

        writing = words.groupBy("word").count().writeStream.outputMode(mode).foreachBatch(each)
        writing = writing.option("checkpointLocation", str(tmp_path / mode)).trigger(availableNow=True)
        writing = writing.queryName(f"words, {mode}")  # no region has such a name
        writing.start().awaitTermination()
        assert {"a": 10, "b": 5, "f": 1}.items() <= last.items()
        assert ("e" in last) == (mode == "complete"), "the word is in batch 1 only"
    until(lambda: not desks(), "an ended query leaves no thread and no port behind", 60)


def test_ticks_make_micro_batches_and_end_no_window(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    put(tmp_path, 1)
    words = Running(spark, tmp_path, None).words
    ticking = words_of(dos.frame(words, store=servers.url, workers=1, tick=True))
    counted = ticking.withWatermark("at", "1 minute").groupBy(F.window("at", "20 minutes")).count()
    shown: list[int] = []
    enough = threading.Event()

    def each(df: DataFrame, batch: int) -> None:
        shown.append(df.count())
        if batch == 3:
            enough.set()

    query = counted.writeStream.foreachBatch(each).start()
    try:
        assert enough.wait(200)
    finally:
        query.stop()
    assert sorted(shown)[-2:] == [0, 1], "the window of minutes 0 and 12 is over, that of minute 61 is not"


def test_what_a_mode_does_not_have_is_refused_before_anything_starts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    (tmp_path / "in").mkdir()
    words = words_of(Running(spark, tmp_path, "dos://127.0.0.1:9").words)
    counted = words.groupBy("word").count()
    timed = words.withWatermark("at", "1 hour")

    def started(df: Any, mode: str, **options: Any) -> Callable[[], Any]:
        return lambda: df.writeStream.outputMode(mode).start(**options)

    calls: dict[str, Callable[[], Any]] = {
        "'parquet' does not take the whole table": started(counted, "complete", path=str(tmp_path)),
        "'noop' does not take the whole table": started(counted, "complete", format="noop"),
        "'a table' does not take the whole table": lambda: counted.writeStream.outputMode("complete").toTable(
            "x"
        ),
        "'foreach' does not take": lambda: counted.writeStream.outputMode("complete").foreach(print).start(),
        "memory needs a name": started(counted, "complete", format="memory"),
        "a DataFrame of a stream has no whole tables": lambda: counted.df("complete"),
        "observe of whole tables": started(
            counted.observe("seen", F.count("*")), "complete", format="console"
        ),
        "the key 'at' has a watermark": started(timed.groupBy("at").count(), "update", format="noop"),
        "limit of a stream needs its whole table, which the output mode 'append'": started(
            timed.groupBy(F.window("at", "1 hour")).count().limit(3), "append", format="noop"
        ),
        "orderBy of a stream needs its whole table, which is not kept": lambda: words.orderBy("word"),
        "describe of a stream": counted.describe,
        # Also without a stateful call: SQL on it would have one, of Spark.
        "createTempView of a stream": lambda: words.createTempView("words"),
        "createOrReplaceTempView of a stream": lambda: spark.sql("select count(*) from {df}", df=words),
        "createGlobalTempView of a stream": lambda: counted.createGlobalTempView("words"),
    }
    for text, call in calls.items():
        with pytest.raises(FrameError, match=text) as caught:
            call()
        assert caught.value.remedy, text
    for df, mode in [
        (counted.orderBy("word"), "update"),
        (counted.limit(3), "update"),
        (timed.dropDuplicates(), "complete"),
    ]:
        with pytest.raises(AnalysisException) as spark_error:
            started(df, mode, format="console")()
        assert not isinstance(spark_error.value, FrameError)


def test_a_sink_that_takes_no_updates_is_refused_by_spark(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    put(tmp_path, 0)
    counted = words_of(Running(spark, tmp_path, servers.url).words).groupBy("word").count()
    writer = counted.writeStream.outputMode("update").format("parquet")
    with pytest.raises(AnalysisException, match="output mode: update"):
        writer.start(f"{tmp_path}/out", checkpointLocation=f"{tmp_path}/checkpoint")
