"""`frame`: programs of Spark, and the same programs with one changed line."""

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.streaming import DataStreamWriter

import spark_integration as dos
from dos_server.testing import Servers, ThreadedServer
from spark_integration.catalyst import session_settings
from spark_integration.core.dividing import FrameError
from spark_integration.frame_class import (
    METHODS,
    STORE_CONF,
    WORKERS_CONF,
    FrameGroupedData,
    FrameStreamWriter,
    MethodClass,
)
from tests.spark_integration.frame_cases import START, output_of_trial, table, typed
from tests.support.examples import run_example

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> Iterator[DataFrame]:
    found = typed(spark)
    yield found
    found.unpersist()


@pytest.fixture(scope="module")
def framed(df: DataFrame, servers: Servers[ThreadedServer]) -> dos.RegionFrame:
    return dos.frame(df, store=servers.url, workers=2)


def both(df: DataFrame, framed: dos.RegionFrame, program: Callable[[DataFrame], DataFrame]) -> None:
    """The program has the same rows, names and types with the changed line."""
    expected, found = program(df), program(framed)
    assert isinstance(found, dos.RegionFrame)
    assert found.schema == expected.schema
    assert table(found) == table(expected)


@pytest.mark.every_pyspark
def test_a_batch_has_sparks_rows(df: DataFrame, framed: dos.RegionFrame) -> None:
    def program(given: DataFrame) -> DataFrame:
        # Spark before the region, each aggregate, and Spark after it with columns of the result.
        shops = given.filter(given.a.isNull() | (given["a"] > -8)).withColumn("twice", F.col("v") * 2)
        sold = shops.groupBy("k", F.window("ts", "1 hour", "20 minutes").alias("at")).agg(
            (F.sum("twice") / F.count("*")).alias("mean"),
            F.avg("b").alias("b"),
            F.sum("d").alias("d"),
            F.max("s").alias("s"),
            F.min("ts").alias("first"),
            F.bool_or("flag").alias("any"),
            F.count_if(F.col("a") > 0).alias("positive"),
            F.approx_count_distinct("s").alias("different"),
            F.sum(F.udf(lambda x: None if x is None else x + 1, "int")("a")).alias("udf"),
        )
        kept = sold.where(sold["mean"] > 0).select("at.start", sold.k, "*").drop("at")
        return kept.withColumn("upper", F.upper(sold["s"]))

    both(df, framed, program)


def test_a_batch_without_keys_has_a_row_also_for_no_rows(df: DataFrame, framed: dos.RegionFrame) -> None:
    def program(given: DataFrame) -> DataFrame:
        return given.filter("a > 1000").agg(F.sum("a"), F.count("*").alias("n"), F.count("v"))

    both(df, framed, program)


def test_the_example_of_the_page(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, capsys: Any
) -> None:
    rows = [(shop, START, price) for shop, price in [("b", 4.0), ("a", 8.0), ("a", 2.0), ("c", 1.0)]]
    orders = spark.createDataFrame(rows, "shop string, at timestamp, price double")
    orders.write.parquet(f"{tmp_path}/orders")
    spark.conf.set(STORE_CONF, servers.url)
    spark.conf.set(WORKERS_CONF, "1")
    try:
        names = run_example("docs/spark.md", "frame", {"spark": spark}, data=f"{tmp_path}/")
    finally:
        spark.conf.unset(STORE_CONF)
        spark.conf.unset(WORKERS_CONF)
    lines = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines() if "|" in line]
    shown = [[cell.strip() for cell in (line[0], *line[2:])] for line in lines]
    assert shown == [["shop", "mean", "most"], ["a", "5.0", "8.0"], ["b", "4.0", "4.0"]]
    assert names["sold"].columns == ["shop", "window", "mean", "most"]


def test_methods_of_groups_and_what_follows_them(
    df: DataFrame, framed: dos.RegionFrame, spark: SparkSession
) -> None:
    names = spark.createDataFrame([("u", "U"), ("v", "V")], "k string, name string")

    def program(given: DataFrame) -> DataFrame:
        counted = given.groupBy(given.k).count()
        named = counted.join(names, counted.k == names.k, "left").select(counted.k, names.name, "count")
        return named.na.fill("?", ["name"]).orderBy(F.desc("count"), "k").limit(3)

    both(df, framed, program)
    grouped, spark_grouped = framed.groupBy("k"), df.groupBy("k")
    for name, args in [("sum", ()), ("avg", ("a", "v")), ("max", ("b",)), ("min", ()), ("mean", ("f",))]:
        if name in ("sum", "min"):
            args = ("a", "b", "v", "f")
        assert getattr(grouped, name)(*args).schema == getattr(spark_grouped, name)(*args).schema
    assert grouped.agg({"a": "max", "*": "count"}).columns == ["k", "max(a)", "count(1)"]
    given = {"b": "max", "a": "sum", "flag": "count", "v": "count", "s": "size", "*": "count"}
    of_dict = grouped.agg(given)._call
    assert of_dict is not None, "columns of one type, which Spark has in the order of a map of the JVM"
    found = of_dict.divided.after(output_of_trial(of_dict.divided))
    assert table(found) == table(spark_grouped.agg(given))


def test_each_public_name_of_a_dataframe_is_in_one_class_and_defined_by_the_frame() -> None:
    public = {name for name in vars(DataFrame) if not name.startswith("_")}
    assert public <= METHODS.keys()
    for name in public:
        assert name in vars(dos.RegionFrame), f"the parent's {name} would return nothing, or run in Spark"
        ours, parent = vars(dos.RegionFrame)[name], vars(DataFrame)[name]
        assert isinstance(ours, property) == isinstance(parent, property), name
        if METHODS[name] not in (MethodClass.STATEFUL, MethodClass.OWN) and not isinstance(parent, property):
            assert inspect.signature(ours) == inspect.signature(parent)
    grouped = {name for name in dir(GroupedData) if not name.startswith("_")}
    assert grouped <= vars(FrameGroupedData).keys()
    writer = {name for name in dir(DataStreamWriter) if not name.startswith("_")}
    assert writer <= vars(FrameStreamWriter).keys()
    special = {"__getitem__", "__getattr__", "__dir__", "__repr__", "_repr_html_", "__arrow_c_stream__"}
    assert special <= vars(dos.RegionFrame).keys()


def test_a_name_of_a_newer_spark_is_refused(df: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_integration import frame_class

    for name, value in {
        "brandNew": lambda self: None,
        "brandNewProperty": property(lambda self: None),
    }.items():
        monkeypatch.setattr(DataFrame, name, value, raising=False)
        monkeypatch.setattr(dos.RegionFrame, name, None, raising=False)
    frame_class._define_methods(dos.RegionFrame)
    given = dos.frame(df)
    with pytest.raises(FrameError, match=r"brandNew is unknown .*frame\.df\(\)\.brandNew"):
        given.brandNew()
    with pytest.raises(FrameError, match="brandNewProperty is unknown"):
        given.brandNewProperty  # noqa: B018


def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise AssertionError("a region was started")

    monkeypatch.setattr("spark_integration.frame_class.through", fail)


def test_only_actions_run_a_region(df: DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    nothing_runs(monkeypatch)
    sold = dos.frame(df).groupBy("k").agg(F.sum("v").alias("total"))
    assert repr(sold) == "RegionFrame[k: string, total: double]"
    assert sold._repr_html_() is None
    assert {"total", "select", "df"} <= {*dir(sold)}
    assert (sold.columns, sold.isStreaming) == (["k", "total"], False)
    assert repr(sold.total) == repr(sold["total"]) == "Column<'total'>"
    assert isinstance(sold.write.mode("append").format("parquet"), type(sold.write))
    sold.named("sold").filter("total > 1").explain()
    text = capsys.readouterr().out
    assert "aggregate sold\n  key     k\n  state   sum(v) = Sum(v)" in text
    assert text.index("Spark, before") < text.index("Region") < text.index("Spark, after")
    for name in ("rdd", "storageLevel", "plot"):
        with pytest.raises(FrameError, match=rf"write frame\.df\(\)\.{name}"):
            getattr(sold, name)
    with pytest.raises(AttributeError, match=r"not a DataFrame of Spark \(_jdf\): pass frame.df\(\)"):
        F.broadcast(sold)
    with pytest.raises(AssertionError, match="a region was started"):
        sold.collect()
    assert {type(one) for one in dos.frame(df).randomSplit([1.0, 2.0])} == {dos.RegionFrame}


def test_refusals_name_the_call_and_the_remedy(df: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_runs(monkeypatch)
    given = dos.frame(df)
    sold = given.groupBy("k").count()
    calls: dict[str, Callable[[], Any]] = {
        r"cube is not computed by a region": lambda: given.cube("k"),
        r"pivot of a frame": lambda: given.groupBy("k").pivot("flag"),
        r"applyInPandas of a frame": lambda: given.groupBy("k").applyInPandas(None, ""),
        r"dropDuplicatesWithinWatermark of a batch": given.dropDuplicatesWithinWatermark,
        r"union with a frame that has a stateful call.*other\.df\(\)": lambda: given.union(sold),
        r"transformWithStateInPandas after aggregate_by_k.*dos\.frame": lambda: sold.groupBy(
            "k"
        ).transformWithStateInPandas(None, "", "Update", "None"),
        r"withWatermark after a stateful call": lambda: sold.withWatermark("count", "1 day"),
        r"no stateful call that could be named": lambda: given.named("x"),
        r"my name cannot be computed by a region: .*operator name 'my name'": lambda: sold.named("my name"),
        r"a literal is a key": lambda: given.groupBy(F.lit(1)).count(),
    }
    for text, call in calls.items():
        with pytest.raises(FrameError, match=text) as caught:
            call()
        assert isinstance(caught.value, AnalysisException)
    with pytest.raises(AnalysisException) as spark_error:
        given.groupBy("nope").count()
    assert spark_error.value.getCondition() == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    for wrong in (given, 3):
        with pytest.raises(TypeError):
            dos.frame(wrong)  # type: ignore[arg-type]


def test_a_column_of_both_sides_of_a_join_is_refused_instead_of_being_equal_to_itself(
    df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    counted = dos.frame(df).groupBy("k").count()
    joined = counted.join(df, counted["k"] == df["k"])
    with pytest.raises(FrameError, match="'k' is one of both DataFrames"):
        joined._preview()
    renamed = df.toDF(*df.columns)
    counted.join(renamed, counted["k"] == renamed["k"])._preview()


def test_names_of_the_state_follow_from_what_it_is_not_from_where_it_is(df: DataFrame) -> None:
    def state(*results: Any) -> dict[str, str]:
        call = dos.frame(df).groupBy("k").agg(*results)._call
        assert call is not None
        return {one.name: str(one.argument) for one in call.divided.division.partials}

    before = state(F.sum("v"), F.max(F.col("a") * 2))
    after = state(F.count("*"), F.sum("a"), F.sum("V"), F.max(F.col("a") * 2), F.max(F.col("a") * 3))
    assert before.items() <= after.items()
    assert min(before) == "max(#13e9ac4a937cdd05)", "a name that changes takes the state of users with it"
    assert max(before) == "sum(v)"
    assert state(F.expr("max(a * 2)")) == state(F.max(F.col("a") * 2))
    transformed = [F.aggregate("xs", F.lit(0), lambda x, y: x + y) for _ in range(2)]
    assert state(F.sum(transformed[0])) == state(F.sum(transformed[1])), "Spark numbers variables anew"

    name = dos.frame(df).groupBy(F.window("ts", "90 minutes"), "k").count()._call
    assert name is not None
    assert name.divided.name == "aggregate_by_k_90m"


class Rerun:
    """A streaming program that is started again on files that are added, with and without the line."""

    def __init__(self, spark: SparkSession, folder: Path, store: str) -> None:
        self._spark = spark
        self._folder = folder
        self._store = store
        self.observed: dict[str, int] = {}
        """Of the last run that observed rows under the name `seen`."""

    def add(self, minutes: list[int], number: int) -> None:
        rows = [
            (START + timedelta(minutes=minute, seconds=index), f"k{index % 3}", float(minute + index))
            for minute in minutes
            for index in range(7)
        ]
        rows_df = self._spark.createDataFrame(rows, "at timestamp, k string, v double").coalesce(1)
        rows_df.write.parquet(f"{self._folder}/in/{number}")

    def run(self, program: Callable[[DataFrame], DataFrame], *, framed: bool, **options: Any) -> list[Any]:
        """Run the program on all files that are there, to its end, and return the rows of its output."""
        name = "framed" if framed else "plain"
        source = self._spark.readStream.schema("at timestamp, k string, v double")
        given = source.parquet(f"{self._folder}/in/*")
        if framed:
            given = dos.frame(given, store=self._store, workers=2, **options)
        writer = program(given).writeStream.option("checkpointLocation", f"{self._folder}/{name}-checkpoint")
        query = writer.trigger(availableNow=True).format("parquet").start(f"{self._folder}/{name}")
        query.awaitTermination()
        observed = (query.lastProgress or {"observedMetrics": {}})["observedMetrics"]
        if observed:
            self.observed[name] = observed["seen"]["rows"]
        return table(self._spark.read.parquet(f"{self._folder}/{name}"))


def test_a_stream_has_sparks_rows_over_restarts_and_late_rows(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    rerun = Rerun(spark, tmp_path, servers.url)
    names = spark.createDataFrame([("k0", "zero"), ("k1", "one")], "k string, name string")

    def program(given: DataFrame) -> DataFrame:
        words = given.withWatermark("at", "5 minutes").join(names, "k", "left")
        counted = words.groupBy(F.window("at", "10 minutes"), "k", "name").agg(
            (F.sum("v") / F.count("*")).alias("mean"), F.count("*").alias("n")
        )
        return counted.filter(counted["n"] > 2).select("window.start", "k", "name", "mean", "n")

    sizes = []
    for number, minutes in enumerate([[*range(0, 25, 2)], [3, *range(20, 50, 3), 75]]):  # 3 is late
        rerun.add(minutes, number)
        expected, found = rerun.run(program, framed=False), rerun.run(program, framed=True)
        assert found == expected
        sizes.append(len(found))
    assert 0 < sizes[0] < sizes[1]


def test_settings_of_the_session_are_noted_where_rows_depend_on_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    confs = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"
    zone, ansi = (f"{name}={spark.conf.get(name)}" for name in confs)
    stream = spark.readStream.schema("k string, a int, ts timestamp")
    rows, lines = stream.parquet(str(tmp_path)), stream.json(str(tmp_path))
    for expected, given in [
        ("", rows.withWatermark("ts", "1 hour").filter("k = 'a'").select("ts", F.upper("k"))),
        (zone, rows.select(F.hour("ts"))),
        (zone, rows.select(F.udf(lambda x: x, "string")("k"))),
        (zone, lines.select("k")),  # the file has times as text
        (ansi, rows.select(F.col("a") + 1)),
        (f"{ansi}, {zone}", rows.select("a", F.to_timestamp("k").alias("at")).select("at")),
    ]:
        assert session_settings(given) == expected
    assert session_settings(spark.readStream.schema("n int").json(str(tmp_path))) == ""


def test_a_changed_expression_or_zone_is_refused_before_anything_is_lost(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    rerun = Rerun(spark, tmp_path, servers.url)
    zone = "spark.sql.session.timeZone"

    def program(factor: int) -> Callable[[DataFrame], DataFrame]:
        def made(given: DataFrame) -> DataFrame:
            timed = given.withWatermark("at", "5 minutes")
            keys = F.window("at", "10 minutes"), F.hour("at").alias("hour")
            return timed.groupBy(*keys).agg(F.sum(F.col("v") * factor).alias("n")).select("hour", "n")

        return made

    before = spark.conf.get(zone)
    rerun.add([0, 30], 0)
    rerun.run(program(2), framed=True)
    rerun.add([31, 60], 1)
    text = (
        r"cannot be started: checkpoint .* made by another graph: operator 'aggregate_by_hour_10m' has"
        r" the new result 'sum\(#.*had the result 'sum\(#"
    )
    with pytest.raises(StreamingQueryException, match=text):
        rerun.run(program(3), framed=True)
    try:
        spark.conf.set(zone, "Asia/Kolkata")
        text = rf"operator 'input' was source .*{zone}={before}.*, is source .*{zone}=Asia/Kolkata.*settings"
        with pytest.raises(StreamingQueryException, match=text):
            rerun.run(program(2), framed=True)
    finally:
        spark.conf.set(zone, before)
    assert rerun.run(program(2), framed=True) == rerun.run(program(2), framed=False)


def test_an_aggregation_that_gains_an_aggregate_keeps_the_others(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    rerun = Rerun(spark, tmp_path, servers.url)

    def program(**more: Column) -> Callable[[DataFrame], DataFrame]:
        def made(given: DataFrame) -> DataFrame:
            timed = given.withWatermark("at", "5 minutes")
            results = [F.sum("v").alias("total"), *(one.alias(name) for name, one in more.items())]
            return timed.groupBy(F.window("at", "10 minutes")).agg(*results).select("total", *more)

        return made

    rerun.add([0, 2, 30, 31], 0)
    rerun.run(program(), framed=True)
    rerun.add([33, 60], 1)
    least = program(least=F.min("v"))
    with pytest.raises(StreamingQueryException, match=r'new_aggregates=\("aggregate_10m:min\(v\)",\)'):
        rerun.run(least, framed=True)
    rerun.run(least, framed=True, new_aggregates=["aggregate_10m:min(v)"])
    # The window from 30 on was open: its sum is of all rows, and its least value of those since then.
    rows = spark.read.option("mergeSchema", True).parquet(f"{tmp_path}/framed").collect()
    windows = {(0, 2): None, (30, 31, 33): 33.0}
    sums = {sum(7 * one + 21 for one in minutes): least for minutes, least in windows.items()}
    assert {row["total"]: row["least"] for row in rows} == sums


def test_a_stream_drops_sparks_duplicates_within_the_watermark_over_restarts(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    rerun = Rerun(spark, tmp_path, servers.url)

    def program(given: DataFrame) -> DataFrame:
        # A key is forgotten 5 minutes after its first row, whose time ends in some microseconds.
        shifted = given.withColumn("at", F.col("at") + F.expr("interval 300 microseconds"))
        return shifted.withWatermark("at", "5 minutes").dropDuplicatesWithinWatermark(["k"])

    sizes = []
    # The first rows are of minute 1. The watermark of 11:00:06.000300 is at 6:00:06.000; k0 was first at
    # 1:00:00.000300, k1 a second and k2 two seconds later. 2 is late.
    for number, minutes in enumerate([[1, 3], [4, 11], [2, 12], [12, 13, 30], [29, 31]]):
        rerun.add(minutes, number)
        expected, found = rerun.run(program, framed=False), rerun.run(program, framed=True)
        assert found == expected
        sizes.append(len(found))
    assert sizes == [3, 3, 6, 6, 9]


@pytest.mark.every_pyspark
def test_a_stream_drops_sparks_duplicates_and_late_rows(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    rerun = Rerun(spark, tmp_path, servers.url)

    def program(given: DataFrame) -> DataFrame:
        marked = given.withWatermark("at", "5 minutes").select(
            "at", "k", F.round(F.col("v") / 100).alias("v")
        )
        return marked.dropDuplicates(["k", "at"]).withColumn("more", F.col("v") + 1)

    sizes = []
    # In the second run 30 to 32 minutes come again; 20 is late, and 27, whose last row is at the watermark.
    for number, minutes in enumerate([[0, 30, 30, 31, 32], [20, 27, 28, 30, 31, 32, 33]]):
        rerun.add(minutes, number)
        expected, found = rerun.run(program, framed=False), rerun.run(program, framed=True)
        assert found == expected
        sizes.append(len(found))
    assert sizes == [4 * 7, 6 * 7]
