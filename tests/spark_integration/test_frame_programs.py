"""The 28 example programs of Spark's documentation, by number. Those of PySpark's distribution (1 to 5) run
as they are shipped, with files in place of sockets and Kafka; others are written after their description.

A program that a region computes runs on Spark and with the changed line, a file in a micro-batch, and has the
same rows. Every other one is refused by name, before anything starts. Restarts and repeated micro-batches are
in `test_frame.py`, `test_frame_modes.py` and `test_frame_functions.py`.
"""

# ruff: noqa: N803  # names of Spark

import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.streaming import StatefulProcessor

import spark_integration as dos
from dos_server.testing import Servers, ThreadedServer
from spark_integration.core.dividing import FrameError
from tests.spark_integration.frame_cases import START
from tests.spark_integration.test_frame import nothing_runs
from tests.spark_integration.test_frame_functions import (
    COUNTS,
    PROVIDER,
    ROCKSDB,
    Violations,
    ViolationsOfRows,
    confs,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

# --- rows of the streams ----------------------------------------------------------------------------------


class Input(NamedTuple):
    """A stream. `files`: the rows of each micro-batch; a number in a time column is a minute."""

    schema: str
    files: tuple[tuple[tuple[Any, ...], ...], ...]

    def put(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        columns = [one.split() for one in self.schema.split(", ")]
        for number, rows in enumerate(self.files):
            file = folder / f"{number}.json"
            file.write_text("".join(f"{json.dumps(_row(columns, row))}\n" for row in rows))
            os.utime(file, (1_700_000_000 + number,) * 2)  # a stream takes the oldest first


def _row(columns: list[list[str]], row: tuple[Any, ...]) -> dict[str, Any]:
    return {
        name: (START + timedelta(minutes=value)).isoformat() if kind == "timestamp" else value
        for (name, kind), value in zip(columns, row, strict=True)
    }


# A row that is late, or comes after its key is forgotten, is two micro-batches below the one that makes it
# so, because Spark looks at the watermark that much later.
WORDS = Input(
    "timestamp timestamp, value string",
    (
        ((2, "cat dog"), (3, "dog dog"), (7, "owl cat")),
        ((11, "dog"), (13, "owl"), (4, "dog late cat"), (45, "cat")),
        ((46, "owl owl"),),
        ((8, "donkey"), (100, "dog cat")),
    ),
)
EVENTS = Input(
    "guid string, eventTime timestamp",
    (
        (("a", 0), ("b", 1), ("a", 0), ("c", 30)),
        (("c", 30), ("c", 31), ("d", 29)),
        (("a", 25), ("c", 40), ("d", 29), ("e", 90)),
        (("e", 90), ("g", 91)),
        (("a", 85), ("c", 95), ("f", 200)),
        (("a", 2), ("f", 201)),
    ),
)
TYPED = Input("id bigint, type string", (((1, "x"), (2, "y")), ((3, "z"), (4, "x"))))
ADS = Input(
    "impressionAdId string, impressionTime timestamp",
    ((("a", 0), ("b", 10)), (("c", 70), ("a", 80)), (("d", 300),)),
)
CLICKS = Input(
    "clickAdId string, clickTime timestamp",
    ((("a", 20), ("b", 90)), (("c", 75), ("a", 85), ("z", 90)), (("d", 330), ("d", 300))),
)
SENSORS = Input(
    "id string, temperature bigint", ((("s1", 10), ("s2", 120), ("s1", 150)), (("s1", 130), ("s2", 20)))
)


# --- the programs -----------------------------------------------------------------------------------------


class Run:
    """A program on Spark (store None) or with the changed line. `batches`: the rows of each micro-batch that
    has some; `seen`: what else is compared.
    """

    def __init__(self, spark: SparkSession, folder: Path, store: str | None) -> None:
        self.spark = spark
        self._store = store
        self.place = str(folder / ("plain" if store is None else "framed"))
        self.batches: list[list[Any]] = []
        self.seen: list[Any] = []

    def stream(self, given: Input) -> Any:
        folder = Path(self.place) / "in" / given.schema.split()[0]
        given.put(folder)
        rows = self.spark.readStream.schema(given.schema).option("maxFilesPerTrigger", 1).json(str(folder))
        return rows if self._store is None else dos.frame(rows, store=self._store, workers=1)

    def take(self, df: DataFrame, _batch: int) -> None:
        if rows := sorted((tuple(row) for row in df.collect()), key=repr):
            self.batches.append(rows)

    def write(
        self,
        df: Any,
        mode: str,
        take: Callable[[DataFrame, int], None] | None = None,
        place: str = "checkpoint",
    ) -> Any:
        writer = df.writeStream.outputMode(mode).option("checkpointLocation", f"{self.place}/{place}")
        query = writer.trigger(availableNow=True).foreachBatch(take or self.take).start()
        query.awaitTermination()
        return query


Program = Callable[[Run], Any]


def of(made: Callable[..., Any], *inputs: Input, mode: str = "append") -> Program:
    return lambda run: run.write(made(*map(run.stream, inputs)), mode)


def shipped(name: str, *arguments: str) -> Program:
    """Return a program of PySpark's distribution: its text, with another source and sink."""
    path = Path(pyspark.__file__).parent / f"examples/src/main/python/sql/streaming/{name}.py"
    sink = ".foreachBatch(TAKE).option('checkpointLocation', PLACE).trigger(availableNow=True)"

    def run(run: Run) -> None:
        text = path.read_text(encoding="utf-8")
        text, sources = re.subn(r"( +)lines = .*?\n\n", r"\1lines = LINES\n\n", text, flags=re.DOTALL)
        text, sinks = re.subn(r"\.format\(['\"]console['\"]\)", sink, text)
        assert (sources, sinks) == (1, 1)
        text = text.replace("sys.argv", "ARGV")
        names = {"LINES": run.stream(WORDS), "TAKE": run.take, "PLACE": f"{run.place}/checkpoint"}
        names |= {"ARGV": [path.name, *arguments], "__name__": "__main__"}
        exec(compile(text, str(path), "exec"), names)  # code of PySpark

    return run


def words(lines: Any) -> Any:
    return lines.select(F.explode(F.split(lines.value, " ")).alias("word"), lines.timestamp)


def windowed(lines: Any) -> Any:
    late = words(lines).withWatermark("timestamp", "10 minutes")
    return late.groupBy(F.window(late.timestamp, "10 minutes", "5 minutes"), late.word).count()


def hours(counts: Any, time: Any) -> Any:
    return counts.groupBy(F.window(time, "1 hour"), "word").count()


def sessions(lines: Any, gap: Any = "5 minutes") -> Any:
    events = words(lines).withWatermark("timestamp", "10 minutes")
    return events.groupBy(F.session_window(events.timestamp, gap), events.word).count()


def sessions_by_expression(lines: Any) -> Any:
    gap = F.when(F.col("word") == "cat", "5 seconds").when(F.col("word") == "dog", "20 seconds")
    return sessions(lines, gap.otherwise("5 minutes"))


def joined(how: str = "inner", delays: tuple[str, str] = ("2 hours", "3 hours")) -> Callable[[Any, Any], Any]:
    condition = (
        "clickAdId = impressionAdId AND clickTime >= impressionTime"
        " AND clickTime <= impressionTime + interval 1 hour"
    )

    def made(ads: Any, clicks: Any) -> Any:
        ads = ads.withWatermark("impressionTime", delays[0])
        clicks = clicks.withWatermark("clickTime", delays[1])
        return ads.join(clicks, F.expr(condition), how)

    return made


def with_static(run: Run) -> None:
    static = run.spark.createDataFrame([("x", "first"), ("y", "second")], "type string, title string")
    rows = run.stream(TYPED)
    for how in ("inner", "left_outer"):
        run.write(rows.join(static, "type", how), "append", place=how)


def upsert(run: Run) -> None:
    """Only with each key once in a micro-batch can it be merged into a table."""
    table: dict[str, int] = {}

    def merge(df: DataFrame, _batch: int) -> None:
        rows = df.collect()
        assert len(rows) == len({row["word"] for row in rows})
        table.update({row["word"]: row["count"] for row in rows})

    run.write(words(run.stream(WORDS)).groupBy("word").count(), "update", merge)
    run.seen.append(table)


def observed(run: Run) -> None:
    rows = run.stream(EVENTS).observe("my_event", F.count(F.lit(1)).alias("rc"), F.count("guid").alias("n"))
    query = run.write(rows.dropDuplicates(["guid"]), "append")
    reports = [one["observedMetrics"]["my_event"] for one in query.recentProgress if one["numInputRows"]]
    run.seen += [(one["rc"], one["n"]) for one in reports]


# --- functions of the user --------------------------------------------------------------------------------


def count_fn(key: Any, pdfs: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    total = sum(map(len, pdfs)) + (state.get[0] if state.exists else 0)
    state.update((total,))
    yield pd.DataFrame({"id": [key[0]], "countAsString": [str(total)]})


def counted(sensors: Any) -> Any:
    return sensors.groupBy("id").applyInPandasWithState(
        count_fn, "id string, countAsString string", "len bigint", "Update", "NoTimeout"
    )


class Latest(StatefulProcessor):
    """The latest row of a word in each call, with a number."""

    def init(self, handle: Any) -> None:
        self.calls = handle.getValueState("calls", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        self.calls.update(((self.calls.get()[0] if self.calls.exists() else 0) + 1,))
        latest = max(frame["timestamp"].max() for frame in rows)
        yield pd.DataFrame({"word": [key[0]], "latest": [latest], "call": [self.calls.get()[0]]})


def windows_of_latest(lines: Any) -> Any:
    timed = words(lines).withWatermark("timestamp", "10 minutes").groupBy("word")
    latest = timed.transformWithStateInPandas(
        Latest(),
        "word string, latest timestamp, call bigint",
        "Append",
        "EventTime",
        eventTimeColumnName="latest",
    )
    return latest.groupBy(F.window("latest", "10 minutes"), "word").agg(F.sum("call"))


def processed(name: str, processor: Any, mode: str = "None", **options: Any) -> Program:
    def call(sensors: Any) -> Any:
        return getattr(sensors.groupBy("id"), name)(processor, COUNTS, "Update", mode, **options)

    return of(call, SENSORS, mode="update")


# --- all of them ------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """`refused`: text of the error; empty for a program that has Spark's rows."""

    name: str
    program: Program
    refused: str = ""
    per_batch: bool = False
    """Whether each micro-batch has the rows of Spark's; otherwise all of them together."""


SESSIONS = r"session_window is not computed"
PROCESSING = r"of a frame has no time-outs and timers of processing time"
STREAMS = r"join of streams is not computed .*two streams in a graph with dos\.through"
CASES: dict[int, Case] = {
    1: Case("network_wordcount", shipped("structured_network_wordcount", "host", "1"), per_batch=True),
    2: Case(
        "kafka_wordcount", shipped("structured_kafka_wordcount", "host", "subscribe", "t"), per_batch=True
    ),
    3: Case(
        "network_wordcount_windowed",
        shipped("structured_network_wordcount_windowed", "host", "1", "600", "300"),
        per_batch=True,
    ),
    4: Case("sessionization", shipped("structured_sessionization", "host", "1"), SESSIONS),
    5: Case(
        "network_wordcount_session_window",
        shipped("structured_network_wordcount_session_window", "host", "1"),
        f"applyInPandasWithState {PROCESSING}",
    ),
    6: Case("late data, update", of(windowed, WORDS, mode="update"), per_batch=True),
    7: Case("late data, append", of(windowed, WORDS)),
    8: Case("sessions with a fixed gap", of(sessions, WORDS), SESSIONS),
    9: Case("sessions with a gap by an expression", of(sessions_by_expression, WORDS), SESSIONS),
    10: Case(
        "window_time, then a second window",
        of(
            lambda lines: (
                windowed(lines).groupBy(F.window(F.window_time("window"), "1 hour"), "word").count()
            ),
            WORDS,
        ),
    ),
    11: Case(
        "a window of a window",
        of(lambda lines: hours(windowed(lines), "window"), WORDS),
    ),
    12: Case("joins of a stream and a table", with_static),
    13: Case("inner join of streams", of(joined(), ADS, CLICKS)),
    14: Case("left outer join of streams", of(joined("leftOuter"), ADS, CLICKS), STREAMS),
    15: Case("left semi join of streams", of(joined("leftSemi"), ADS, CLICKS), STREAMS),
    16: Case("duplicates", of(lambda events: events.dropDuplicates(["guid"]), EVENTS)),
    17: Case(
        "duplicates with a watermark",
        of(
            lambda events: events.withWatermark("eventTime", "10 minutes").dropDuplicates(
                ["guid", "eventTime"]
            ),
            EVENTS,
        ),
    ),
    18: Case(
        "duplicates within the watermark",
        of(
            lambda events: events.withWatermark("eventTime", "10 minutes").dropDuplicatesWithinWatermark(
                ["guid"]
            ),
            EVENTS,
        ),
    ),
    19: Case("several watermarks", of(joined(delays=("1 hour", "2 hours")), ADS, CLICKS)),
    20: Case("applyInPandasWithState", of(counted, SENSORS, mode="update"), per_batch=True),
    21: Case(
        "transformWithStateInPandas", processed("transformWithStateInPandas", Violations()), per_batch=True
    ),
    22: Case("transformWithState", processed("transformWithState", ViolationsOfRows()), per_batch=True),
    23: Case(
        "timers of processing time",
        processed("transformWithStateInPandas", None, "ProcessingTime"),
        f"transformWithStateInPandas {PROCESSING}",
    ),
    24: Case(
        "state that expires (TTL)",
        processed("transformWithStateInPandas", None, "ProcessingTime"),
        f"transformWithStateInPandas {PROCESSING}",
    ),
    25: Case(
        "initial state",
        processed("transformWithStateInPandas", None, initialState=object),
        "transformWithStateInPandas of a frame has no initial state",
    ),
    26: Case("a window after transformWithState", of(windows_of_latest, WORDS)),
    27: Case("an upsert in foreachBatch", upsert),
    28: Case("observe", observed),
}


def numbered(*, refused: bool) -> list[Any]:
    return [
        pytest.param(
            case,
            id=f"{number} {case.name}",
            marks=pytest.mark.skipif(
                case.name == "transformWithState" and not hasattr(GroupedData, case.name),
                reason="PySpark 4.0 has no transformWithState of rows",
            ),
        )
        for number, case in CASES.items()
        if bool(case.refused) == refused
    ]


@pytest.mark.parametrize("case", numbered(refused=False))
def test_a_program_has_sparks_rows(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, case: Case
) -> None:
    plain, framed = Run(spark, tmp_path, None), Run(spark, tmp_path, servers.url)
    uses = {PROVIDER: ROCKSDB} if "transformWithState" in case.name else {}
    with confs(spark, uses), ThreadPoolExecutor(1) as beside:  # both at once take less time
        running = beside.submit(case.program, plain)
        case.program(framed)
        running.result()
    expected, found = plain.batches, framed.batches
    if not case.per_batch:
        expected, found = ([sorted(chain(*batches), key=repr)] for batches in (expected, found))
    assert found == expected
    assert framed.seen == plain.seen
    assert any(expected) or plain.seen


@pytest.mark.parametrize("case", numbered(refused=True))
def test_a_program_that_no_region_computes_is_refused_by_name(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: Case
) -> None:
    nothing_runs(monkeypatch)
    with pytest.raises(FrameError, match=case.refused) as caught:
        case.program(Run(spark, tmp_path, "dos://unused"))
    assert caught.value.remedy


def test_each_of_the_28_programs_has_a_case() -> None:
    assert [*CASES] == [*range(1, 29)]
    refused = {number for number, case in CASES.items() if case.refused}
    assert refused == {4, 5, 8, 9, 14, 15, 23, 24, 25}


def test_a_program_that_spark_refuses_is_refused_by_a_frame_too(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"STREAMING_OUTPUT_MODE\.UNSUPPORTED_OPERATION"):
        CASES[4].program(Run(spark, tmp_path, None))


def test_what_spark_refuses_on_a_stream_has_its_condition(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nothing_runs(monkeypatch)
    words = dos.frame(spark.readStream.schema("at timestamp, word string").json(str(tmp_path)))

    def windowed(words: Any) -> Any:
        return words.withWatermark("at", "10 minutes").groupBy(F.window("at", "10 minutes"), "word").count()

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
    with pytest.raises(FrameError, match=r"dropDuplicatesWithinWatermark after aggregate_by_word_10m"):
        windowed(words).dropDuplicatesWithinWatermark(["word"])
    without = words.dropDuplicatesWithinWatermark(["word"]).writeStream.format("noop")
    with pytest.raises(AnalysisException, match=r"not supported on streaming .* without watermark"):
        without.start()
    counted = words._shadow.groupBy("word").count()
    with pytest.raises(FrameError, match=r"keeps state in Spark already \(Aggregate\)"):
        dos.frame(counted)
