"""The division of an aggregation, on expressions that are written by hand: no Spark is needed."""

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DoubleType, StringType, StructField, StructType

from spark_integration.core.dividing import (
    Columns,
    DividedCall,
    Expression,
    ExpressionKind,
    Form,
    FrameError,
    Result,
    aggregate_calls,
    call_name,
    divide,
    text_of,
    typed_arguments,
)
from spark_integration.frame_class import METHODS, MethodClass, RegionFrame, _define_methods
from spark_integration.stateful import Aggregation, WindowShape, check_columns, shape_of

COLUMNS = Columns(("k", "V", "s", "s.b", "flag"))


def col(*parts: str) -> Expression:
    return Expression(ExpressionKind.COLUMN, "UnresolvedAttribute", parts=parts)


def literal(text: str) -> Expression:
    return Expression(ExpressionKind.LITERAL, "Literal", rest=text)


def call(name: str, *arguments: Expression, where: Expression | None = None, **more: Any) -> Expression:
    children = arguments if where is None else (*arguments, where)
    return Expression(
        ExpressionKind.CALL, name, children, arguments=len(arguments), filtered=where is not None, **more
    )


def cast(child: Expression, kind: str) -> Expression:
    return Expression(ExpressionKind.OTHER, "Cast", (child,), rest=kind)


def function_of_user(child: Expression) -> Expression:
    return Expression(ExpressionKind.USER_FUNCTION, "<lambda>", (child,))


def divided(
    *results: Expression, keys: Sequence[Expression] = (col("k"),), kind: str = "double"
) -> DividedCall:
    calls = aggregate_calls(keys, results, COLUMNS)
    types = {one: kind for found in calls for one in typed_arguments(found)}
    named = [Result(key.parts[-1] if key.parts else f"key{at}", key) for at, key in enumerate(keys)]
    return divide(named, [Result(f"r{at}", one) for at, one in enumerate(results)], COLUMNS, types)


def state(*results: Expression, **more: Any) -> list[str]:
    return [one.name for one in divided(*results, **more).partials]


STAR = Expression(ExpressionKind.STAR, "UnresolvedStar")


def test_equal_calls_share_a_column_that_is_named_by_what_it_is() -> None:
    found = divided(call("sum", col("v")), call("+", call("sum", col("V")), call("count", STAR)))
    assert [one.name for one in found.partials] == ["sum(V)", "count(*)"]
    assert [one.name for one in found.arguments] == ["V"], "as the schema spells it"
    total = found.results[2].expression
    assert [(one.kind, one.name) for one in total.children] == [
        (ExpressionKind.STATE, "sum(V)"),
        (ExpressionKind.STATE, "count(*)"),
    ]


def test_a_name_does_not_depend_on_what_was_before_it() -> None:
    twice = call("max", call("*", col("v"), literal("int 2")))
    assert state(twice)[0] in state(call("sum", col("v")), call("max", call("*", col("v"), col("k"))), twice)
    opaque = call("sum", function_of_user(col("v")))
    assert state(opaque) == ["sum(#0 of r0)"]
    assert state(opaque, call("min", col("v"))) == ["sum(#0 of r0)", "min(V)"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(function_of_user(col("v")), function_of_user(col("v")), id="functions of the user"),
        pytest.param(call("abs", col("s", "b")), call("abs", col("s.b")), id="a field and a column"),
        pytest.param(cast(col("v"), "int"), cast(col("v"), "double"), id="casts"),
        pytest.param(literal("int 1"), literal("string '1'"), id="literals"),
        pytest.param(cast(cast(col("v"), "a"), "b"), cast(cast(col("v"), "b"), "a"), id="nested"),
    ],
)
def test_different_arguments_share_no_column(one: Expression, other: Expression) -> None:
    assert len({*state(call("sum", one), call("sum", other))}) == 2


def test_counts_are_of_rows_or_of_values_that_are_not_null() -> None:
    null = Expression(ExpressionKind.NULL, "Literal", rest="void NULL")
    counted = [call("count", STAR), call("count", literal("int 1")), call("count", null)]
    found = divided(*counted, call("count", col("flag")), call("count", STAR, where=col("flag")))
    arguments = {one.name: one for one in found.arguments}
    by_name = {one.name: one.argument and arguments[one.argument] for one in found.partials}
    assert [*by_name][0::3] == ["count(*)", "count_if(flag)"]
    assert by_name["count(*)"] is None
    assert by_name["count(flag)"].form is Form.PRESENT  # type: ignore[union-attr]
    assert by_name["count_if(flag)"].form is Form.TRUE  # type: ignore[union-attr]
    assert next(iter(arguments.values())).values == (null,)


def test_a_key_in_a_result_is_the_column_of_the_region_unless_a_function_of_the_user_is_in_it() -> None:
    key = call("%", col("v"), literal("int 3"))
    found = divided(call("+", key, call("sum", col("v"))), keys=[key])
    assert found.results[1].expression.children[0].name == "key0"
    opaque = function_of_user(col("k"))
    kept = divided(call("upper", function_of_user(col("k"))), keys=[opaque, col("k")])
    inner = kept.results[2].expression.children[0]
    assert inner.kind is ExpressionKind.USER_FUNCTION
    assert inner.children[0].kind is ExpressionKind.STATE


def test_strings_are_summed_as_doubles_and_other_types_are_refused() -> None:
    assert [one.form for one in divided(call("sum", col("v")), kind="string").arguments] == [Form.DOUBLE]
    for kind in ("interval day to second", "boolean"):
        with pytest.raises(
            FrameError, match=f"sum of {kind} is not computed by a region .*cast the argument"
        ):
            divided(call("sum", col("v")), kind=kind)


def test_a_name_that_two_columns_have_is_refused() -> None:
    columns = Columns(("k", "v", "V"))
    with pytest.raises(FrameError, match=r"several columns named 'v'.*rename one"):
        aggregate_calls([col("k")], [call("sum", col("v"))], columns)
    exact = Columns(("k", "v", "V"), case_sensitive=True)
    assert aggregate_calls([col("k")], [call("sum", col("v"))], exact)


def test_variables_of_lambda_functions_are_numbered_by_their_occurrence() -> None:
    def added(first: str, second: str) -> Expression:
        x, y = (Expression(ExpressionKind.VARIABLE, name) for name in (first, second))
        return call("aggregate", Expression(ExpressionKind.OTHER, "LambdaFunction", (call("-", x, y), x, y)))

    assert text_of(added("x_1", "y_2"), COLUMNS) == text_of(added("x_7", "y_9"), COLUMNS)
    swapped = added("x_1", "y_2").children[0].children
    other = Expression(ExpressionKind.OTHER, "LambdaFunction", (swapped[0], swapped[2], swapped[1]))
    assert text_of(call("aggregate", other), COLUMNS) != text_of(added("x_1", "y_2"), COLUMNS)


def test_names_of_operators() -> None:
    hour = 3_600_000_000
    assert call_name("aggregate", []) == "aggregate"
    assert call_name("aggregate", ["shop", "the day"], hour) == "aggregate_by_shop_the_day_1h"
    assert call_name("aggregate", ["ä"], 90 * 60_000_000) == "aggregate_by_key_90m"
    assert call_name("dedup", ["k"], 1) == "dedup_by_k_1us"


def test_the_windows_of_a_region_are_those_that_spark_makes() -> None:
    rng = random.Random(3)
    shapes = [(10, 9, 5), (10, 10, 3), (7, 1, 0), *((size, rng.randint(1, size), 0) for size in range(2, 60))]
    for size, slide, offset in shapes:
        given = WindowShape(*(one * 1_000_000 for one in (size, slide, offset % slide)))
        assert shape_of(lambda times, given=given: {one: given.windows(one) for one in times}, "") == given  # type: ignore[misc]
        call = Aggregation("windows", None, None, divided(), given)  # type: ignore[arg-type]
        window: Any = call._window()
        found = (window.size, getattr(window, "slide", window.size), window.offset)
        assert found == tuple(timedelta(microseconds=one) for one in given)


def test_windows_that_have_no_shape_are_refused() -> None:
    def late(times: list[int]) -> dict[int, set[tuple[int, int]]]:
        """They are longer after some time."""
        sizes = {one: 10 if one < 2**40 else 11 for one in times}
        return {one: {(one // size * size, (one // size + 1) * size)} for one, size in sizes.items()}

    with pytest.raises(FrameError, match=r"the windows of window\(at\) are not regular"):
        shape_of(late, "window(at)")


def test_a_result_with_other_names_or_types_than_sparks_is_refused() -> None:
    class Rows(NamedTuple):
        schema: StructType

    def rows(**types: DataType) -> Any:
        return Rows(StructType([StructField(name, one) for name, one in types.items()]))

    text, number = StringType(), DoubleType()
    expected = rows(k=text, total=number)
    check_columns("sold", rows(k=text, total=number), expected)
    for other in (rows(k=text, total=text), rows(k=text, sum=number), rows(total=number, k=text)):
        with pytest.raises(FrameError, match=r"sold would have the columns .* but Spark makes"):
            check_columns("sold", other, expected)


def test_each_name_of_a_dataframe_is_defined_so_that_nothing_is_inherited() -> None:
    """What the parent class has under it would return None, as `write` does, or run in Spark."""
    made = type("Made", (), {})
    _define_methods(made)
    by_hand = {name for name, kind in METHODS.items() if kind in (MethodClass.STATEFUL, MethodClass.OWN)}
    public = {name for name in vars(DataFrame) if not name.startswith("_")}
    assert vars(made).keys() >= public - by_hand
    assert vars(RegionFrame).keys() >= public
