"""`through` of a stream: the micro-batches of one query, whose tasks carry the rows to the workers.

Whatever a query and its foreachBatch do, each row counts once, or the query ends with an error that says why.
"""

import functools
import gc
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions

import dos
from checkpoint.core.region import WorkerJoined
from dataflow import Count, Graph, InputSource, IteratorSource, LogSink, Tumbling, UserOperator, consistent
from dos_protocol.errors import DosError
from dos_server.testing import Servers, ThreadedServer
from spark_integration import batches, limits
from tests.spark_integration import killing_task

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class Job:
    """A query that counts the words of files, one file in a micro-batch, on two workers."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, name: str) -> None:
        self.spark, self.folder, self.url, self.name = spark, folder, url, name
        (folder / "in").mkdir()
        self.expected: Counter[str] = Counter()
        self.shown: list[tuple[int, list[tuple[str, int]]]] = []
        """(batch, its rows), at each evaluation."""
        self.lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
        self.frame = self.through()

    def through(self, **options: Any) -> DataFrame:
        return dos.through(self.lines, self.graph(), workers=2, store=self.url, **options)

    def graph(self) -> Graph:
        graph = Graph(self.name)
        lines = graph.source("lines", InputSource("lines", "value string"))
        words = lines.flat_map("words", lambda row: row["value"].split(), schema="word string")
        words.key_by("by_word", "word").count("counts").sink("out", LogSink())
        return graph

    def put(self, number: int, text: str) -> None:
        hidden = self.folder / f"{number}.txt"
        hidden.write_text(text)
        os.utime(hidden, (1_700_000_000 + number,) * 2)  # a stream takes the oldest first
        hidden.rename(self.folder / "in" / hidden.name)
        self.expected.update(text.split())

    def show(self, df: DataFrame, batch: int) -> None:
        self.shown.append((batch, [tuple(row) for row in df.collect()]))

    def start(self, each: Callable[[DataFrame, int], None] | None = None) -> Any:
        writing = self.frame.writeStream.foreachBatch(each or self.show)
        return writing.option("checkpointLocation", str(self.folder / "checkpoint")).start()

    def run(self, each: Callable[[DataFrame, int], None] | None = None) -> None:
        query = self.start(each)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def fails(self, match: str, each: Callable[[DataFrame, int], None] | None = None) -> None:
        with pytest.raises(StreamingQueryException, match=match):
            self.run(each)

    def counts(self) -> Counter[str]:
        """The newest count of each word: counts only grow."""
        found: Counter[str] = Counter()
        for _, rows in self.shown:
            for word, count in rows:
                found[word] = max(found[word], count)
        return found

    def forget(self, *logs: str, number: int) -> None:
        """Spark's checkpoint loses what it has of a micro-batch."""
        for log in logs:
            (self.folder / "checkpoint" / log / str(number)).unlink()
            (self.folder / "checkpoint" / log / f".{number}.crc").unlink()


@pytest.fixture
def job(spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, name: str) -> Iterator[Job]:
    found = Job(spark, tmp_path, servers.url, name)
    yield found
    found.frame.dos.stop()


@pytest.mark.every_pyspark
def test_a_query_continues_where_it_stopped_and_a_repeated_batch_has_the_recorded_rows(job: Job) -> None:
    for number in range(3):
        job.put(number, f"a b{number} a\n")
    job.run()
    assert [batch for batch, _ in job.shown] == [0, 1, 2]
    job.forget("commits", number=2)  # as if the sink had failed after its output
    job.put(3, "a b0 c")
    job.run()
    assert [batch for batch, _ in job.shown] == [0, 1, 2, 2, 3]
    assert job.shown[2] == job.shown[3]
    assert job.counts() == job.expected
    region = job.frame.dos.region
    job.frame.dos.stop()
    assert region.status.state.is_end
    job.frame = job.through()  # another driver would do the same
    job.put(4, "a")
    job.run()
    assert job.shown[-1] == (4, [("a", 8)])


def is_counted(row: dict[str, Any]) -> bool:
    return row["word"] != "c"


def edited(name: str, *sinks: str) -> Graph:
    """The graph of a job with a filter, and these sinks."""
    graph = Graph(name)
    lines = graph.source("lines", InputSource("lines", "value string"))
    words = lines.flat_map("words", lambda row: row["value"].split(), schema="word string")
    counts = words.filter("some", is_counted).key_by("by_word", "word").count("counts")
    for sink in sinks:
        counts.sink(sink, LogSink())
    return graph


def test_a_batch_that_spark_repeats_has_the_rows_of_the_graph_that_made_it(job: Job) -> None:
    for number in range(2):
        job.put(number, "a c")
    job.run()
    job.frame.dos.stop()
    job.forget("commits", number=1)
    through = functools.partial(dos.through, job.lines, workers=2, store=job.url)
    job.frame = through(edited(job.name, "out", "other"), output="other")
    job.fails("batch 1 of region .* was made by another graph, which had no sink 'other'")
    job.frame.dos.stop()
    job.frame = through(edited(job.name, "out"))
    job.put(2, "a c")
    job.run()
    (_, recorded), (_, again), following = job.shown[-3:]
    assert sorted(recorded) == sorted(again) == [("a", 2), ("c", 2)]
    assert following == (2, [("a", 3)]), "the filter is behind the batch"


@pytest.mark.long
def test_savepoints_other_numbers_of_workers_and_forks_fall_between_the_batches_of_a_query(job: Job) -> None:
    job.put(0, "a b")
    query = job.start()
    try:
        query.processAllAvailable()
        region = job.frame.dos.region
        region.savepoint("good", timeout=100)
        for number, workers in enumerate((3, 1), 1):
            job.put(number, "a c " * 200)  # on its way while the workers change
            assert region.scale(workers, 100).workers == workers
            job.put(10 * number, f"d{number} a")
            query.processAllAvailable()
            assert job.counts() == job.expected
    finally:
        query.stop()
    assert [batch for batch, _ in job.shown] == list(range(5))
    dos.fork(job.url, job.name, f"{job.name}f", at="savepoint:good")
    job.frame.dos.stop()
    (job.folder / "fork").mkdir()
    fork = Job(job.spark, job.folder / "fork", job.url, f"{job.name}f")
    fork.put(0, "a")
    fork.run()
    fork.frame.dos.stop()
    assert fork.shown == [(0, [("a", 2)])], "it continues the state after batch 0 with a batch 0 of its own"


def test_spark_compiles_no_code_for_a_micro_batch_like_those_before(job: Job) -> None:
    metrics = job.spark._jvm.org.apache.spark.metrics.source.CodegenMetrics
    query = job.start()
    try:
        compiled = []
        for number in range(4):
            job.put(number, "a b")
            query.processAllAvailable()
            compiled.append(metrics.METRIC_COMPILATION_TIME().getCount())
    finally:
        query.stop()
    assert compiled[1] == compiled[3], "its time is in the code that Spark generates"
    assert job.counts() == job.expected


REGION = batches.DrivenRegion(
    name="r", host="127.0.0.1", desk_port=1, store_url="dos://h", sink="out", read_alone_s=1.0, key=b"k"
)


def test_the_time_of_a_batch_is_in_a_tag_and_the_row_of_a_tick_has_none() -> None:
    def tagged(*tags: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"0": ["a"] * len(tags), batches.TAG: tags})

    task = batches.CarryingTask(REGION, (pa.schema([("word", pa.string())]),))
    given = iter([tagged(batches.NO_TIME), tagged(0, 3, -9, batches.NO_TIME)])
    reading = batches.BatchReading(1)
    found = [(time, number, rows.num_rows) for time, number, rows in task._rows(reading, given)]
    assert found == [(0, batches.MARKER, 1), (0, 0, 2), (9, batches.MARKER, 2)]
    assert reading.partitions == 2


def test_the_collection_after_each_task_does_not_look_at_what_was_imported_before() -> None:
    gc.unfreeze()
    try:
        carrier = batches._carrier_of(REGION)
        assert batches._carrier_of(REGION) is carrier
        assert len(gc.get_objects()) < gc.get_freeze_count() // 10
        carrier.close()
    finally:
        batches._carriers.pop("r", None)
        gc.unfreeze()


def test_each_evaluation_of_a_batch_has_the_same_rows_and_an_old_frame_has_its_own(job: Job) -> None:
    kept: list[DataFrame] = []

    def each(df: DataFrame, batch: int) -> None:
        for rows in (*kept, df, df.union(df)):
            job.show(rows, batch)
        in_thread = InheritableThread(target=job.show, args=(df, batch))
        in_thread.start()
        in_thread.join()
        kept.append(df)

    for number, text in enumerate(["", "a b a", "a c"]):  # the old frame without rows is evaluated first
        job.put(number, text)
    job.run(each)
    every = [rows for _, rows in job.shown]
    first, second = every[4], every[9]
    assert every[:3] == [[], [], []]
    assert every[3:7] == [[], first, first + first, first]
    assert every[7:] == [[], first, second, second + second, second]
    assert sorted(second) == [("a", 3), ("c", 1)]
    assert job.counts() == job.expected


def test_what_spark_leaves_out_or_plans_again_ends_the_query_with_the_remedy(job: Job) -> None:
    job.put(0, "a")
    job.put(1, "a b")
    job.run()

    def unused(df: DataFrame, batch: int) -> None:
        if batch != 2:
            job.show(df, batch)

    job.put(2, "lost")
    job.put(3, "c")
    job.fails(r"BatchGapError.*has processed batch 1, and the query asks for batch 3.*did not use", unused)
    job.forget("offsets", number=3)
    job.forget("offsets", "commits", number=2)  # the remedy
    job.run()
    assert job.counts() == job.expected
    job.forget("offsets", "commits", number=2)
    job.put(4, "d")
    job.fails(r"BatchPlannedAgainError.*batch 2 .* Spark has planned it again .*lost its newest batches")
    shutil.rmtree(job.folder / "checkpoint")
    job.fails(r"OtherQueryError.*is driven by query .*start one query")


def test_a_query_that_may_not_drive_a_region_does_not_fence_the_driver_that_runs_it(job: Job) -> None:
    job.put(0, "a")
    first = job.start()
    first.processAllAvailable()
    frame = job.through()  # another program would do the same
    writing = frame.writeStream.foreachBatch(lambda df, batch: df.collect())
    with pytest.raises(
        StreamingQueryException, match=r"OtherQueryError.*is driven by query .*with another name="
    ):
        writing.option("checkpointLocation", str(job.folder / "other")).start().awaitTermination()
    assert frame.dos.region is None, "it has claimed the region"
    frame.dos.stop()
    job.put(1, "a b")
    first.processAllAvailable()
    first.stop()
    assert job.counts() == job.expected
    assert job.frame.dos.region.status.incarnation == 1


def test_each_batch_evaluates_what_a_function_does_not(job: Job) -> None:
    def each(df: DataFrame, batch: int) -> None:
        if batch != 1:
            job.show(df.join(functions.broadcast(df.limit(0)), "word", "left_anti"), batch)

    for number in range(3):
        job.put(number, f"a b{number}")
    job.run(dos.each_batch(each))
    assert [batch for batch, _ in job.shown] == [0, 2]
    assert sorted(job.shown[1][1]) == [("a", 3), ("b2", 1)]


def test_tasks_end_that_hold_the_last_slots_while_they_wait_for_a_worker(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six slots, two are the workers', one the micro-batch's; another job gets the others, and that of a
    lost worker.
    """
    monkeypatch.setattr(limits, "SLOTS_LOOK_S", 0.2)
    monkeypatch.setattr(limits, "BATCH_SLOTS_S", 1.0)
    joined: list[WorkerJoined] = []
    seen = job.folder / "seen"
    seen.mkdir()

    def hold(held: Path, rows: Iterator[Any]) -> Iterator[Any]:
        (seen / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        while held.exists():
            time.sleep(0.02)
        yield from rows

    batch, others = job.folder / "batch", job.folder / "others"
    lines = job.spark.readStream.option("maxFilesPerTrigger", 1).text(str(job.folder / "in"))
    job.lines = lines.mapInArrow(functools.partial(hold, batch), lines.schema)
    job.frame = job.through(
        on_event=lambda one: joined.append(one) if isinstance(one, WorkerJoined) else None
    )
    job.put(0, "a")
    job.run()
    batch.touch()
    others.touch()
    job.put(1, "a b")
    query = job.start()
    until(lambda: len(list(seen.iterdir())) == 2)
    tasks = job.spark.sparkContext.parallelize(range(4), 4).mapPartitions(functools.partial(hold, others))
    counting = threading.Thread(target=tasks.count)
    counting.start()
    until(lambda: len(list(seen.iterdir())) == 2 + 3)
    os.kill(joined[0].pid, signal.SIGKILL)
    until(lambda: len(list(seen.iterdir())) == 2 + 4)
    batch.unlink()
    with pytest.raises(StreamingQueryException, match=r"NotEnoughSlotsError.*has had no slot for 1 s"):
        query.awaitTermination()
    others.unlink()
    counting.join()
    job.run()
    assert job.counts() == job.expected


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_thread_that_spark_knows_nothing_of_has_no_batch(job: Job) -> None:
    failures: list[str] = []

    def each(df: DataFrame, batch: int) -> None:
        def alone() -> None:
            try:
                job.show(df, batch)
            except Exception as error:
                failures.append(str(error))

        thread = threading.Thread(target=alone)
        thread.start()
        thread.join()
        job.show(df, batch)

    job.put(0, "a")
    job.run(each)
    (failure,) = failures
    assert "NoBatchError" in failure
    assert "InheritableThread" in failure
    assert job.counts() == job.expected


def test_available_now_empty_batches_and_a_filter_below(job: Job) -> None:
    for number, text in enumerate(["a", "", "b a"]):
        job.put(number, text)
    for frame in (job.frame, job.frame.where("word = 'a'")):
        query = job.frame.writeStream if frame is job.frame else frame.writeStream
        query = query.trigger(availableNow=True).format("parquet").option("path", str(job.folder / "out"))
        query.option("checkpointLocation", str(job.folder / "checkpoint")).start().awaitTermination()
        job.put(9, "a")
    rows = job.spark.read.parquet(str(job.folder / "out")).collect()
    assert sorted(map(tuple, rows)) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_a_task_that_is_killed_at_any_step_loses_and_doubles_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local master runs no task again: the query ends, and the next one repeats the micro-batch."""
    monkeypatch.setattr(batches, "CarryingTask", killing_task.KillingTask)
    job.spark.sparkContext.environment[killing_task.FOLDER] = str(job.folder)
    try:
        job.frame = job.through()
        for number, step in enumerate(killing_task.STEPS):
            job.put(number, f"a b{number} a\n" * 5)
            (job.folder / "turn").write_text(step)
            job.fails("Python worker exited unexpectedly|SocketException|EOFException")
            assert not (job.folder / "turn").exists(), step
            job.run()
            assert job.counts() == job.expected, step
    finally:
        del job.spark.sparkContext.environment[killing_task.FOLDER]
    assert [batch for batch, _ in job.shown] == list(range(len(killing_task.STEPS)))


def test_a_task_that_reads_several_partitions_alone_for_long_is_warned_of_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "READ_ALONE_S", 0.0)
    lines = job.lines
    warned = "one task has read and parsed the 3 partitions of a micro-batch"
    for number, (partitions, lines_of_log) in enumerate([(1, 0), (3, 1)]):
        job.lines = lines.repartition(partitions)
        job.frame.dos.stop()
        job.frame = job.through()
        for batch in range(2 * number, 2 * number + 2):
            job.put(batch, "a\nb\nc\n" * 10)
        job.run()
        assert job.counts() == job.expected
        assert len([one for one in caplog.messages if warned in one]) == lines_of_log
        assert len([one for one in caplog.messages if "one task has read" in one]) == lines_of_log


class Poisoned(UserOperator):
    """Raises at a word."""

    schema = "word string"

    def process(self, batch: Any) -> Any:
        for row in batch.to_pylist():
            if row["word"] == "poison" and not Path(self.antidote).exists():
                raise ValueError(f"cannot take {row['word']}")
            yield row["word"]

    def __init__(self, antidote: Path) -> None:
        self.antidote = str(antidote)


def test_a_row_that_fails_ends_the_query_and_the_same_batch_comes_again_with_the_next_one(job: Job) -> None:
    graph = Graph(f"{job.name}p")
    lines = graph.source("lines", InputSource("lines", "value string"))
    words = lines.flat_map("words", lambda row: row["value"].split(), schema="word string")
    words.apply("poisoned", Poisoned(job.folder / "antidote")).sink("out", LogSink())
    job.graph = lambda: graph  # type: ignore[method-assign]
    job.frame = job.through()
    job.put(0, "a")
    job.put(1, "poison b")
    for _ in range(2):  # the region starts again with each query
        job.fails(r"RegionFailedError.*cannot take poison")
    (job.folder / "antidote").touch()
    job.run()
    assert [(batch, sorted(rows)) for batch, rows in job.shown] == [
        (0, [("a",)]),
        (1, [("b",), ("poison",)]),
    ]


def test_several_inputs_in_one_query_and_a_tick_without_rows(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, name: str
) -> None:
    for one in ("orders", "payments"):
        (tmp_path / one).mkdir()
    graph = Graph(name)
    orders = graph.source("orders", InputSource("orders", "shop string, `o.id` bigint"))
    payments = graph.source("payments", InputSource("payments", "amount double"))
    ids = orders.map("ids", lambda row: (row["shop"], float(row["o.id"])), schema="what string, value double")
    paid = payments.map("paid", lambda row: ("paid", row["amount"]), schema="what string, value double")
    ids.union("both", paid).sink("out", LogSink())
    (tmp_path / "orders" / "0.csv").write_text("x,1\ny,2\n")
    (tmp_path / "payments" / "0.csv").write_text("0.5\n")
    reading = spark.readStream.schema
    streams = {
        "payments": reading("amount double").csv(str(tmp_path / "payments")),
        "orders": reading("shop string, `o.id` bigint").csv(str(tmp_path / "orders")),
    }
    frame = dos.through(streams, graph, workers=2, store=servers.url, tick=True)
    found: list[tuple[Any, ...]] = []
    batches = threading.Semaphore(0)

    def each(df: DataFrame, batch: int) -> None:
        found.extend(map(tuple, df.collect()))
        batches.release()

    query = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        for _ in range(3):  # two of them without a row of the inputs
            assert batches.acquire(timeout=100), query.exception()
        assert sorted(found) == [("paid", 0.5), ("x", 1.0), ("y", 2.0)]
        assert frame.dos.region.status.state.name == "RUNNING"
    finally:
        query.stop()
        frame.dos.stop()


def test_a_watermark_moves_at_the_end_of_a_batch_as_sparks_does(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, name: str
) -> None:
    """The same windows as Spark's own, whatever the order and the worker of rows in a batch. Spark may count
    a late row one batch longer, so the late ones come two later.
    """
    graph = Graph(name)
    rows = graph.source("rows", InputSource("rows", "s bigint, key string, at timestamp"))
    timed = rows.event_time("timed", "at", lateness=timedelta(seconds=10)).key_by("by_key", "key")
    counts = timed.aggregate("counts", Tumbling("at", timedelta(seconds=10)), rows=Count())
    counts.sink("out", LogSink())
    (tmp_path / "in").mkdir()
    for number, seconds in enumerate(([100, 50, 50, 95, 300, 299], [292, 310], [250, 400], [405])):
        text = "".join(f"{one}\n" for one in seconds * 200)
        (tmp_path / f"{number}.csv").write_text(text)
        os.utime(tmp_path / f"{number}.csv", (1_700_000_000 + number,) * 2)
        (tmp_path / f"{number}.csv").rename(tmp_path / "in" / f"{number}.csv")
    stream = spark.readStream.schema("s bigint").option("maxFilesPerTrigger", 1).csv(str(tmp_path / "in"))
    stream = stream.selectExpr("s", "'k' key", "timestamp_seconds(s) at")
    ours = dos.through(stream, graph, workers=2, store=servers.url)
    watermarked = stream.withWatermark("at", "10 seconds")
    theirs = watermarked.groupBy(functions.window("at", "10 seconds")).count()
    found = []
    for place, frame in (("ours", ours), ("theirs", theirs)):
        writing = frame.writeStream.trigger(availableNow=True).format("parquet")
        writing = writing.option("checkpointLocation", str(tmp_path / f"{place}-c"))
        writing.start(str(tmp_path / place)).awaitTermination()
        found.append(spark.read.parquet(str(tmp_path / place)).collect())
    ours.dos.stop()
    assert {(row["window_start"], row["rows"]) for row in found[0]} == {
        (row["window"]["start"], row["count"]) for row in found[1]
    }
    assert len(found[0]) == len(found[1])


def test_what_cannot_be_carried_is_refused_before_anything_is_started(
    spark: SparkSession, servers: Servers[ThreadedServer], name: str
) -> None:
    stream = spark.readStream.format("rate").load()
    graph = Graph(name)
    graph.source("rows", InputSource("rows", "value bigint")).sink("out", LogSink())
    counts = stream.groupBy("value").count().select("value")
    with pytest.raises(DosError, match=r"the stream for 'rows' is an aggregate"):
        dos.through({"rows": counts}, graph, workers=1, store=servers.url)
    with pytest.raises(DosError, match="some are streams and some are not"):
        dos.through({"rows": stream.select("value"), "more": spark.range(1)}, graph, store=servers.url)
    graph.source("more", IteratorSource(lambda: iter([1]), "n bigint")).sink("more_out", LogSink())
    with pytest.raises(DosError, match=r"source 'more' of graph .* gets no rows of a stream"):
        dos.through(stream.select("value"), graph, output="out", workers=1, store=servers.url)
    local = Graph(name)
    rows = local.source("rows", InputSource("rows", "value bigint"))
    rows.annotate(consistent(recovery="local")).sink("out", LogSink())
    with pytest.raises(DosError, match="recovery"):
        dos.through(stream.select("value"), local, workers=1, store=servers.url)
