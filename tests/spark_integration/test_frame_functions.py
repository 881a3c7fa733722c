"""Functions of groups through a frame: programs of PySpark's documentation, written after their description,
have the rows of Spark in each micro-batch, over a restart and a repeated batch.
"""

# ruff: noqa: N803  # names of Spark

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException, UnsupportedOperationException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.streaming import StatefulProcessor

import spark_integration as dos
from dataflow.testing import Trial
from dos_server.testing import Servers, ThreadedServer
from spark_integration.core.dividing import FrameError
from spark_integration.versions import PROCESSOR_OF_ROWS, pyspark_has
from tests.spark_integration.frame_cases import START
from tests.spark_integration.pyspark_versions import refused_before
from tests.spark_integration.test_frame import nothing_runs
from tests.spark_integration.test_frame_modes import Program, Running, put, words_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ZONE = "Europe/Berlin"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
GAP_MS = 45 * 60_000


@contextmanager
def confs(spark: SparkSession, changed: dict[str, str]) -> Iterator[None]:
    former = {name: spark.conf.get(name) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in former.items():
            spark.conf.set(name, value)


@pytest.fixture(autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    """The state store that Spark's own transformWithState needs, and a zone that shows in times."""
    with confs(spark, {PROVIDER: ROCKSDB, "spark.sql.session.timeZone": ZONE}):
        yield


# --- the programs -------------------------------------------------------------------------------------------


def check_is_now(ms: int) -> None:
    assert abs(ms - pd.Timestamp.now("UTC").timestamp() * 1000) < 3_600_000


def count_words(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    given = list(frames)
    n = (state.get[0] if state.exists else 0) + sum(map(len, given))
    state.update((n,))
    check_is_now(state.getCurrentProcessingTimeMs())
    first = min(frame["at"].min() for frame in given)
    assert list(given[0].columns) == ["word", "at"]
    yield pd.DataFrame({"word": [key[0]], "first": [first], "as_text": [str(first)], "n": [n]})
    yield pd.DataFrame()


class Violations(StatefulProcessor):
    """How many readings of a sensor came, and how many were too high in all."""

    def init(self, handle: Any) -> None:
        self.violations = handle.getValueState("violations", "value int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        readings = [value for frame in rows for value in frame["temperature"]]
        yield pd.DataFrame([self.counted(key, readings, timerValues)])

    def counted(self, key: Any, readings: list[int], times: Any) -> dict[str, Any]:
        violations = self.violations.get()[0] if self.violations.exists() else 0
        violations += sum(one > 30 for one in readings)
        self.violations.update((violations,))
        assert times.getCurrentProcessingTimeInMs() == times.getCurrentWatermarkInMs() == -1
        return {"id": key[0], "count": len(readings), "violations": violations}


class ViolationsOfRows(Violations):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(**self.counted(key, [row.temperature for row in rows], timerValues))


def millis(time: Any) -> int:
    time = pd.Timestamp(time)
    return int((time.tz_localize(ZONE) if time.tzinfo is None else time).timestamp() * 1000)


def sessions(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        (n,) = state.get
        state.remove()
        yield pd.DataFrame({"word": [key[0]], "watermark": [state.getCurrentWatermarkMs()], "n": [n]})
        return
    given = pd.concat(list(frames))
    state.update(((state.get[0] if state.exists else 0) + len(given),))
    state.setTimeoutTimestamp(max(millis(given["at"].max()) + GAP_MS, state.getCurrentWatermarkMs()))


class Sessions(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        times = [millis(row.at) for row in rows]
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.n.update(((self.n.get()[0] if self.n.exists() else 0) + len(times),))
        self.handle.registerTimer(max(times) + GAP_MS)
        check_is_now(timerValues.getCurrentProcessingTimeInMs())
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        (n,) = self.n.get()
        self.n.clear()
        yield Row(word=key[0], watermark=timerValues.getCurrentWatermarkInMs(), n=n)


class VisitsOfRows(Sessions):
    """How many rows of a word came in a micro-batch, at the latest of them; and the end of its session."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        found = list(rows)
        yield from super().handleInputRows(key, iter(found), timerValues)
        yield Row(word=key[0], seen=max(row.at for row in found), n=len(found))
        yield Row(word=key[0], seen=None, n=1000)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            seen = datetime.fromtimestamp(expiredTimerInfo.getExpiryTimeInMs() / 1000, UTC)
            yield Row(word=key[0], seen=seen, n=100 * row.n)


class Visits(VisitsOfRows):
    """The same of DataFrames, whose times are naive, in the zone of the session."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        found = [Row(at=at) for frame in rows for at in frame["at"]]
        yield self.frame_of(super().handleInputRows(key, iter(found), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield self.frame_of(super().handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def frame_of(self, rows: Iterator[Row]) -> pd.DataFrame:
        def naive(at: Any) -> Any:
            return None if at is None else pd.Timestamp(millis(at), unit="ms", tz=ZONE).tz_localize(None)

        made = [(word, naive(seen), n) for word, seen, n in rows]
        seen = pd.Series([one[1] for one in made], dtype="datetime64[us]")
        return pd.DataFrame(made, columns=["word", "seen", "n"]).assign(seen=seen)


def windows_of_visits(name: str, processor: Any) -> Callable[[Any], Any]:
    def made(words: Any) -> Any:
        grouped = words.withWatermark("at", "10 minutes").groupBy("word")
        visits = getattr(grouped, name)(processor, VISITS, "Append", "EventTime", eventTimeColumnName="SEEN")
        visits = visits.withColumnRenamed("n", "visits")
        return visits.groupBy(F.window("seen", "20 minutes", "10 minutes"), "word").agg(F.sum("visits"))

    return made


COUNTED = "word string, first timestamp, as_text string, n bigint"
COUNTS = "id string, count int, violations int"
SESSIONS = "word string, watermark bigint, n bigint"
VISITS = "word string, seen timestamp, n bigint"


def readings(words: Any) -> Any:
    temperature = F.minute("at").cast("bigint").alias("temperature")
    return words.select(F.col("word").alias("id"), temperature)


PROGRAMS: dict[str, tuple[Program, ...]] = {
    "a function": (
        Program(
            lambda words: words.groupBy("word").applyInPandasWithState(
                count_words, COUNTED, "n bigint", "Update", "NoTimeout"
            ),
            "update",
        ),
    ),
    "a processor": (
        Program(
            lambda words: readings(words).groupBy("id").transformWithStateInPandas(
                Violations(), COUNTS, "Update", "None"
            ),
            "update",
        ),
        Program(
            lambda words: readings(words).groupBy(F.col("ID")).transformWithState(
                ViolationsOfRows(), COUNTS, "Update", "None"
            ).filter("count > 0"),
            "update",
        ),
    ),
    # Spark calls for the timers that a micro-batch has passed in the next one, a region at its end: here no
    # row of their keys comes in between.
    "timers": (
        Program(
            lambda words: words.withWatermark("at", "10 minutes").groupBy("word").applyInPandasWithState(
                sessions, SESSIONS, "n bigint", "Append", "EventTimeTimeout"
            ),
            "append",
        ),
        Program(
            lambda words: words.withWatermark("at", "10 minutes").groupBy("word").transformWithState(
                Sessions(), SESSIONS, "Append", "EventTime"
            ),
            "append",
        ),
    ),
    "windows of emitted times": (
        Program(windows_of_visits("transformWithStateInPandas", Visits()), "append"),
        Program(windows_of_visits("transformWithState", VisitsOfRows()), "append"),
    ),
}  # fmt: skip
"""Programs that make the same rows; the second one has a processor of rows."""
TIMED = {"timers": 1, "windows of emitted times": 2}
"""Those with timers -> how many micro-batches have rows."""


@pytest.mark.parametrize("kind", PROGRAMS)
def test_functions_make_sparks_rows_over_a_restart_and_a_repeated_micro_batch(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, kind: str
) -> None:
    programs = PROGRAMS[kind] if pyspark_has(PROCESSOR_OF_ROWS) else PROGRAMS[kind][:1]
    for number in (0, 1, 2):
        put(tmp_path, number)
    stores = [None, *(servers.url for _ in programs)]
    workers = 2 if len(programs) == 1 else 1  # there are slots for two at once
    runs = [Running(spark, tmp_path, store, workers) for store in stores]
    for number, running in enumerate(runs):
        running.place = tmp_path / str(number)

    def run_all() -> None:
        with ThreadPoolExecutor(2) as beside:  # two at once take less time
            [*beside.map(Running.run, runs, [programs[0], *programs])]

    run_all()
    timed = kind in TIMED
    for running in runs[timed:]:  # Spark's last one has no rows, and fires timers
        running.forget_last()
    put(tmp_path, 3)
    run_all()
    plain, *framed = [running.batches for running in runs]
    assert len(plain) == TIMED.get(kind, 4), "of three with rows one is repeated"
    for found in framed:
        assert found == plain


# --- a batch, errors, refusals ------------------------------------------------------------------------------


@pytest.fixture
def words(spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path) -> Any:
    """A frame of a stream."""
    put(tmp_path, 1)
    return words_of(Running(spark, tmp_path, servers.url).words)


@refused_before(PROCESSOR_OF_ROWS)
def test_a_batch_has_sparks_rows(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3):
        put(tmp_path, number)
    plain = spark.read.schema("at timestamp, value string").json(f"{tmp_path}/in")

    def counted(lines: Any) -> Any:
        grouped = readings(words_of(lines)).groupBy("id")
        return grouped.transformWithState(ViolationsOfRows(), COUNTS, "Update", "None").filter("count > 1")

    framed = counted(dos.frame(plain, store=servers.url, workers=1)).named("counted")
    assert {*map(tuple, framed.collect())} == {*map(tuple, counted(plain).collect())} != set()
    framed.explain()
    shown = capsys.readouterr().out
    assert "transform counted\n  key     id\n  state   violations struct<value: int32>" in shown


def test_no_row_is_late_for_a_function_without_timers_when_the_clock_goes_back(words: Any) -> None:
    made = words.groupBy("word").applyInPandasWithState(
        count_words, COUNTED, "n bigint", "Update", "NoTimeout"
    )
    trial = Trial(made._call.divided.graph("counts", "update"))
    for minutes in (0, -10, -5):  # the second micro-batch is planned ten minutes before the first one
        planned = datetime.now(UTC) + timedelta(minutes=minutes)
        trial.step({"input": [{"word": "a", "at": START, "#time": planned}]}, checkpoint=True)
    assert [row["n"] for row in trial.rows("out")] == [1, 2, 3]


def test_an_error_of_the_function_ends_the_query_with_operator_and_line(words: Any, tmp_path: Path) -> None:
    def broken(key: Any, frames: Any, state: Any) -> Any:
        raise ValueError("this word is wrong")

    made = words.groupBy("word").applyInPandasWithState(broken, SESSIONS, "n bigint", "Update", "NoTimeout")
    query = made.writeStream.outputMode("update").format("noop").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    text = str(caught.value)
    assert "transform_by_word" in text
    assert "ValueError: this word is wrong" in text
    assert "in broken" in text


@pytest.mark.long
@pytest.mark.parametrize("mode", ["update", "complete"])
def test_windows_of_emitted_times_are_sparks_in_the_other_output_modes(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, mode: str
) -> None:
    for number in (0, 1, 2, 3):
        put(tmp_path, number)
    program = Program(windows_of_visits("transformWithStateInPandas", Visits()), mode)
    plain, framed = [Running(spark, tmp_path, store) for store in (None, servers.url)]
    for running in (plain, framed):
        running.run(program)
    assert framed.batches[:2] == plain.batches[:2]
    # Spark calls for the timers of the last one in a micro-batch of its own.
    ends = [running.batches[2:] if mode == "update" else running.batches[-1:] for running in (plain, framed)]
    expected, found = ([sorted(chain(*end), key=repr)] for end in ends)
    assert found == expected != [[]]


def test_an_emitted_time_behind_the_watermark_is_an_error_as_in_spark(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        put(tmp_path, number)

    class First(Visits):
        """The time of the first row of a word, of which Spark waits for later ones for 10 minutes."""

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            found = [at for frame in rows for at in frame["at"]]
            if not self.n.exists():
                self.n.update((millis(found[0]),))
            seen = datetime.fromtimestamp(self.n.get()[0] / 1000, UTC)
            yield self.frame_of(iter([Row(word=key[0], seen=seen, n=1)]))

    program = Program(windows_of_visits("transformWithStateInPandas", First()), "append")
    for store, text in (
        (None, "EMITTING_ROWS_OLDER_THAN_WATERMARK"),
        (servers.url, r"transform_by_word.*'seen', which is not above the watermark.*word 'a'"),
    ):
        running = Running(spark, tmp_path, store)
        with pytest.raises(StreamingQueryException, match=text):
            running.run(program)


def test_a_call_above_emitted_times_that_a_region_does_not_compute_is_refused(
    words: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    timed = words.withWatermark("at", "10 minutes").groupBy("word")
    visits = timed.transformWithStateInPandas(
        Visits(), VISITS + ", other timestamp", "Append", "EventTime", eventTimeColumnName="seen"
    )
    window = F.window("seen", "1 hour")
    calls: dict[str, Callable[[], Any]] = {
        r"dropDuplicates after transform_by_word": lambda: visits.dropDuplicates(["word", "seen"]),
        r"Filter lies between": lambda: visits.filter("n > 1").groupBy(window).count(),
        r"'#time' is computed": lambda: (
            visits.withColumn("seen", F.col("seen") + F.expr("interval 1 hour")).groupBy(window).count()
        ),
        r"uses window\(\.\.\.\) of a time that is no window": lambda: visits.groupBy(
            F.window("other", "1 hour")
        ).count(),
        r"the key 'seen' has a watermark": lambda: (
            visits.groupBy("seen").count().writeStream.format("noop").start()
        ),
    }
    for text, call in calls.items():
        with pytest.raises(FrameError, match=text) as caught:
            call()
        assert caught.value.remedy, text
    batch = dos.frame(spark.createDataFrame([("a", START)], "word string, at timestamp"))
    with pytest.raises(AnalysisException, match="CANNOT_ASSIGN_EVENT_TIME_COLUMN_WITHOUT_WATERMARK"):
        batch.withWatermark("at", "1 minute").groupBy("word").transformWithStateInPandas(
            Visits(), VISITS, "Append", "EventTime", eventTimeColumnName="seen"
        )


def test_what_a_region_does_not_compute_is_refused_by_name(
    words: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    grouped = words.groupBy("word")
    timed = words.withWatermark("at", "1 minute")
    two = timed.withColumn("other", F.col("at"))

    def applied(of: Any = grouped, mode: str = "Update", timeout: str = "NoTimeout") -> Callable[[], Any]:
        return lambda: of.applyInPandasWithState(sessions, SESSIONS, "n bigint", mode, timeout)

    class Ttl(Violations):
        def init(self, handle: Any) -> None:
            handle.getValueState("n", "n bigint", 1000)

    def processed(
        time_mode: str = "None", processor: Any = None, of: Any = grouped, **options: Any
    ) -> Callable[[], Any]:
        made, columns = processor or Sessions(), f"{SESSIONS}, at timestamp"
        return lambda: of.transformWithStateInPandas(made, columns, "Update", time_mode, **options)

    calls: dict[str, Callable[[], Any]] = {
        r"applyInPandasWithState of a frame has no time-outs.*ProcessingTimeTimeout": applied(
            timeout="ProcessingTimeTimeout"
        ),
        r"transformWithStateInPandas of a frame has no time-outs and timers.*processingTime": processed(
            "processingTime"
        ),
        r"the processor cannot run in a region.*ttlDurationMs": processed(processor=Ttl()),
        r"has no initial state": processed(initialState=grouped),
        r"eventTimeColumnName='at' needs a watermark: the time mode 'None' has none": processed(
            of=timed.groupBy("word"), eventTimeColumnName="at"
        ),
        r"need one column with a watermark, and 0 columns": processed("EventTime"),
        r"and 2 columns have one": applied(two.groupBy("word"), timeout="EventTimeTimeout"),
        r"a batch has no timers": lambda: (
            dos.frame(spark.createDataFrame([("a",)], "word string"))
            .groupBy("word")
            .transformWithStateInPandas(Violations(), COUNTS, "Update", "EventTime")
        ),
        r"keys that are different columns": applied(words.groupBy()),
        r"the key 's' of a function is nested": applied(words.withColumn("s", F.struct("word")).groupBy("s")),
        r"transform_by_word.*dos\.frame\(first\.df\(\)\)": lambda: applied()().groupBy("word").count(),
        r"a column '#time'": applied(words.withColumn("#time", F.col("at")).groupBy("word")),
    }
    for text, call in calls.items():
        with pytest.raises(FrameError, match=text) as caught:
            call()
        assert caught.value.remedy, text


def test_what_spark_refuses_has_its_own_error(
    words: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    grouped = words.groupBy("word")
    batch = dos.frame(spark.createDataFrame([("a",)], "word string")).groupBy("word")

    def applied(mode: str) -> Any:
        return grouped.applyInPandasWithState(sessions, SESSIONS, "n bigint", mode, "NoTimeout")

    with pytest.raises(UnsupportedOperationException, match="unsupported in batch query"):
        batch.applyInPandasWithState(sessions, SESSIONS, "n bigint", "Update", "NoTimeout")
    for mode, of_query in (("Update", "append"), ("Append", "update")):
        with pytest.raises(AnalysisException, match=f"in {mode.lower()} mode is not supported") as caught:
            applied(mode).writeStream.outputMode(of_query).format("noop").start()
        assert not isinstance(caught.value, FrameError)
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        words.groupBy(F.upper("word")).transformWithStateInPandas(Violations(), COUNTS, "Update", "None")
    for wrong in ("Complete", "Upward"):
        with pytest.raises(Exception, match=r"append or update|STREAMING_OUTPUT_MODE.INVALID") as error:
            applied(wrong)
        assert not isinstance(error.value, FrameError)
