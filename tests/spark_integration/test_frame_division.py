"""How an aggregation is divided: the operators of the region run here without Spark, in several steps and
with a crash, and the result is compared with Spark's own.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from spark_integration.core.dividing import COMPUTED, OTHER_AGGREGATES, FrameError
from spark_integration.stateful import deduplicated
from tests.spark_integration.frame_cases import (
    Case,
    RandomResults,
    computed,
    divide_case,
    merged,
    output_of_trial,
    refused,
    refused_by_spark,
    table,
    typed,
)
from tests.support.parts import with_long

NAMES = Path(__file__).with_name("frame_names.json")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> Iterator[DataFrame]:
    found = typed(spark)
    yield found
    found.unpersist()


def test_each_aggregation_divided_is_equal_to_sparks(df: DataFrame) -> None:
    wrong = {}
    for name, case in merged().items():
        call = divide_case(df, case)
        found, expected = table(call.after(output_of_trial(call))), table(call.shadow)
        if found != expected or not expected:
            pairs = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]][:1]
            cells = [trio for one, two in pairs for trio in zip(call.shadow.columns, one, two, strict=True)]
            wrong[name] = len(found), len(expected), [trio for trio in cells if trio[1] != trio[2]]
    assert not wrong


@pytest.mark.every_pyspark
def test_the_names_of_what_a_region_keeps_are_those_of_every_pyspark(
    df: DataFrame, pytestconfig: pytest.Config
) -> None:
    """The state of a region is found by them. They contain digests of Spark's texts, and with another text a
    program that has not changed would be refused after an upgrade of PySpark.
    """
    made = {}
    for name, case in merged().items():
        found = divide_case(df, case).division
        made[name] = sorted({*(one.name for one in found.partials), *(one.name for one in found.arguments)})
    if pytestconfig.getoption("--rewrite"):
        NAMES.write_text(f"{json.dumps(made, indent=1, sort_keys=True)}\n", encoding="utf-8")
    kept = json.loads(NAMES.read_text(encoding="utf-8"))
    assert {name: names for name, names in made.items() if kept[name] != names} == {}


@pytest.mark.parametrize("seed", with_long([1], range(2, 12)))
def test_random_expressions_over_aggregates_are_equal_to_sparks(df: DataFrame, seed: int) -> None:
    case: Case = (["k"], RandomResults(seed).some(24))
    call = divide_case(df, case)
    assert len(call.division.partials) > 24
    assert table(call.after(output_of_trial(call))) == table(call.shadow)


def test_an_aggregation_without_keys_of_no_rows_is_one_row(df: DataFrame) -> None:
    call = divide_case(df.where("false"), computed()["global"])
    assert table(call.after(output_of_trial(call))) == table(call.shadow) == [(None, 0, 0, None)]


def test_duplicates_are_those_of_spark(df: DataFrame) -> None:
    few = df.select("k", "flag", "a", F.lit(1).alias("one"))
    call = deduplicated(few, None, few.distinct())
    assert call.name == "dedup"
    assert table(call.after(output_of_trial(call))) == table(call.shadow)
    by_key = deduplicated(few, ["K", "flag"], few.dropDuplicates(["K", "flag"]))
    assert (by_key.name, by_key.keys) == ("dedup_by_k_flag", ("k", "flag"))
    found = by_key.after(output_of_trial(by_key))
    assert table(found.select("k", "flag")) == table(by_key.shadow.select("k", "flag"))
    assert {*table(found)} <= {*table(few)}, "each is one of the rows"
    for wrong, text in [
        (few.select("k", "a", "k"), "several columns named 'k'"),
        (df.select("xs"), "cannot be computed"),
    ]:
        with pytest.raises(FrameError, match=text):
            deduplicated(wrong, None, wrong.distinct())


def test_what_a_region_cannot_compute_is_refused_by_name(df: DataFrame) -> None:
    for name, (case, text) in refused().items():
        with pytest.raises(FrameError, match=text) as caught:
            divide_case(df, case)
        assert caught.value.remedy or "cannot be computed" in str(caught.value), name


def test_what_spark_refuses_has_sparks_condition(df: DataFrame) -> None:
    for name, (case, condition) in refused_by_spark().items():
        with pytest.raises(AnalysisException) as caught:
            divide_case(df, case)
        assert caught.value.getCondition() == condition, name


def test_every_aggregate_function_of_this_spark_is_computed_or_refused_by_name(spark: SparkSession) -> None:
    registry = spark._jsparkSession.sessionState().functionRegistry()  # type: ignore[attr-defined]
    names, functions = set(), registry.listFunction().iterator()
    while functions.hasNext():
        function = functions.next()
        if registry.lookupFunction(function).get().getGroup() == "agg_funcs":
            names.add(function.funcName())
    assert len(names) > 50
    assert names <= {*COMPUTED, *OTHER_AGGREGATES}
    assert not {*COMPUTED} & OTHER_AGGREGATES
