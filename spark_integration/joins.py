"""An inner join of two streams of a frame, in a region.

The region pairs rows with equal keys whose times are near each other. Spark evaluates the whole condition on
the pairs after it, so the region may find too many, never too few. The columns with a watermark are the
times; how far apart they can be follows from conditions like `clickTime <= impressionTime + interval 1 hour`.
No interval is parsed: Spark evaluates `impressionTime + interval 1 hour` at instants.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from dataflow.graph.builder import KeyedStream, Stream
from dataflow.schema import quoted
from spark_integration.catalyst import Catalyst, all_of, identifier, join_plan
from spark_integration.core.dividing import (
    Columns,
    Expression,
    ExpressionKind,
    FrameError,
    call_name,
    digest,
    is_opaque,
    text_of,
)
from spark_integration.stateful import (
    MICROSECOND,
    WATERMARK,
    Mode,
    StatefulCall,
    check_columns,
    columns_as,
    columns_of,
    delay_of,
    refuse_ambiguous,
    refuse_collations,
    timed_as_spark,
)

LEFT: Final = "left"
RIGHT: Final = "right"
_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
_DAY_US: Final = 86_400_000_000
_INTERVAL_ADDED: Final = frozenset({"TimeAdd", "TimestampAddInterval"})
"""The expression that adds an interval to a time; `TimeAdd` before PySpark 4.1."""
_ADDED: Final = _INTERVAL_ADDED | {"Cast", "DatetimeSub"}
"""Expressions that add to a time. A cast of one time to another adds nothing."""
_COMPARED: Final = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">",
    "LessThan": "<",
    "LessThanOrEqual": "<",
}
_JOIN_REMEDY: Final = (
    "join a stream with a DataFrame that is no stream; two streams in a graph with dos.through"
)


class Shifted(NamedTuple):
    """A time of one side plus an amount, in microseconds, that is between two."""

    side: str
    least: int = 0
    most: int = 0


def reach_us(comparisons: Sequence[tuple[str, Shifted, Shifted]]) -> int | None:
    """Return how far apart, in microseconds, two times can be for which all comparisons hold; None if any
    distance can. A comparison: "<", ">" or "=" (or equal, in each case), between a time of each side.
    """
    lowest: int | None = None
    highest: int | None = None
    for sign, first, second in comparisons:
        if first.side == LEFT:
            first, second, sign = second, first, {"<": ">", ">": "<"}.get(sign, sign)
        # The right time less the left one, compared with the amounts.
        if sign in "<=":
            most = second.most - first.least
            highest = most if highest is None else min(highest, most)
        if sign in ">=":
            least = second.least - first.most
            lowest = least if lowest is None else max(lowest, least)
    return None if lowest is None or highest is None else max(abs(lowest), abs(highest))


@dataclass(frozen=True)
class StreamJoin(StatefulCall):
    """An inner join of two streams. `times`: the columns with a watermark; `reach`: how far apart they can be
    in a pair; `condition`: on the output of the region; `columns`: of that, for each column of the shadow.
    """

    keys: tuple[str, ...]
    times: tuple[str, str]
    reach: timedelta
    condition: Column
    columns: tuple[str, ...]

    def add(self, inputs: Mapping[str, Stream], mode: Mode | None) -> Stream:
        if mode in ("append", "update"):
            _check_policy(self.shadow)
        sides = []
        for side, time in zip((LEFT, RIGHT), self.times, strict=True):
            rows: Any = self.inputs[side]
            delay = delay_of(rows.schema[time])
            assert delay is not None, "the column has a watermark"
            timed = timed_as_spark(inputs[side], f"{self.name}.{side}.time", time, delay)
            sides.append(timed.key_by(f"{self.name}.{side}.key", *self.keys))
        left, right = sides
        assert isinstance(left, KeyedStream)
        # Pairs are less than `within` apart.
        within = self.reach + MICROSECOND
        return left.join(self.name, right, times=self.times, within=within, one_watermark=True)

    def after(self, rows: DataFrame) -> DataFrame:
        return columns_as(rows.where(self.condition), self.columns, self.shadow.schema)

    def describe(self) -> str:
        times = " and ".join(self.times)
        keys = ", ".join(self.keys)
        return f"join {self.name}\n  key     {keys}\n  times   {times}, at most {self.reach} apart"


def _check_policy(df: DataFrame) -> None:
    if df.sparkSession.conf.get(_POLICY, "min") != "min":
        raise FrameError(
            f"{_POLICY} is not 'min': the watermark of a region is the smallest one of its streams",
            remedy=f'spark.conf.set("{_POLICY}", "min")',
        )


def stream_join(left: DataFrame, right: DataFrame, shadow: DataFrame) -> StreamJoin:
    """Return a join of two streams. shadow: the same on Spark's own DataFrames. Raises FrameError."""
    plan = join_plan(shadow)
    if plan.how != "Inner":
        raise FrameError(f"a {plan.how} join of streams is not computed through a frame", remedy=_JOIN_REMEDY)
    _check_policy(shadow)
    times = _time_of(left, LEFT), _time_of(right, RIGHT)
    sides = dict.fromkeys(plan.left, LEFT) | dict.fromkeys(plan.right, RIGHT)
    given = dict(zip(plan.left, left.columns, strict=True)) | dict(
        zip(plan.right, right.columns, strict=True)
    )
    used = _output_names(left.columns, right.columns)
    made = dict(zip(plan.left, left.columns, strict=True)) | dict(zip(plan.right, used, strict=True))
    time_ids = {
        plan.left[left.columns.index(times[0])]: LEFT,
        plan.right[right.columns.index(times[1])]: RIGHT,
    }
    catalyst = Catalyst(shadow.sparkSession)

    def named(names: Mapping[int, str]) -> Callable[[Expression], Column | None]:
        return lambda one: (
            F.col(quoted(names[identifier(one)])) if one.kind is ExpressionKind.COLUMN else None
        )

    keys: dict[str, dict[str, Column]] = {}
    key_names = []
    compared = []
    for one in plan.conditions:
        between = _comparisons(one, time_ids)
        compared += between
        parts = {side: child for child in one.children if (side := _side(child, sides)) is not None}
        if one.name == "EqualTo" and not between and len(parts) == 2 and not is_opaque(one):
            # By content: the state must not be continued with other keys after conditions changed places.
            texts = [_text(parts[side], given) for side in (LEFT, RIGHT)]
            keys[f"#{texts[0]}={texts[1]}"] = {
                side: catalyst.column(child, named(given)) for side, child in parts.items()
            }
            key_names.append(texts[0])
    if not keys:
        raise FrameError(
            "a join of streams is not computed through a frame without equal columns", remedy=_JOIN_REMEDY
        )
    reach = _reach(shadow, catalyst, compared, times)
    inputs = {}
    for side, df, columns, time in ((LEFT, left, left.columns, times[0]), (RIGHT, right, used, times[1])):
        rows = [F.col(quoted(old)).alias(new) for old, new in zip(df.columns, columns, strict=True)]
        rows += [key[side].alias(name) for name, key in keys.items()]
        # As Spark: a row without a time is in no pair.
        inputs[side] = df.select(*rows).where(F.col(quoted(columns[df.columns.index(time)])).isNotNull())
        refuse_collations([inputs[side].schema[name] for name in keys])
    join = StreamJoin(
        call_name("join", key_names),
        inputs,
        shadow,
        tuple(keys),
        (times[0], used[right.columns.index(times[1])]),
        reach,
        all_of(catalyst.column(one, named(made)) for one in plan.conditions),
        tuple(made[number] for number in plan.output),
    )
    check_columns(join.name, join.after(join.empty_output()), shadow)
    return join


def _time_of(df: DataFrame, side: str) -> str:
    """Return the column with a watermark. Raises FrameError."""
    refuse_ambiguous(columns_of(df), f"the {side} stream of a join")
    times: list[str] = [field.name for field in df.schema.fields if WATERMARK in field.metadata]
    if len(times) != 1:
        raise FrameError(
            f"a join of streams is not computed through a frame if the {side} one has {len(times)} columns"
            " with a watermark, because its rows would be kept for ever",
            remedy="call withWatermark on each stream, and compare the times, for example"
            " b >= a AND b <= a + interval 1 hour",
        )
    return times[0]


def _output_names(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Return names of the right columns beside the left ones, which differ also without their case."""
    taken = {name.lower() for name in left}
    names = []
    for name in right:
        while name.lower() in taken:
            name += "_right"
        taken.add(name.lower())
        names.append(name)
    return names


def _side(expression: Expression, sides: Mapping[int, str]) -> str | None:
    """Return the side of which all columns of an expression are; None if there is none, or of both."""
    found = {sides.get(identifier(one)) for one in expression.walk() if one.kind is ExpressionKind.COLUMN}
    return found.pop() if len(found) == 1 else None


def _text(expression: Expression, names: Mapping[int, str]) -> str:
    """Return a name for the key that an expression of one side is."""
    if expression.kind is ExpressionKind.COLUMN:
        return names[identifier(expression)]
    return f"#{digest(text_of(expression, Columns(())))}"


_Side: TypeAlias = tuple[str, Expression]
"""Side, and an expression that adds to its time."""


def _comparisons(condition: Expression, times: Mapping[int, str]) -> list[tuple[str, _Side, _Side]]:
    """Return the comparison of the two times that a condition is; none for any other one."""
    if condition.name not in _COMPARED:
        return []
    first, second = condition.children
    one, other = _added_to(first, times), _added_to(second, times)
    if one is None or other is None or one == other:
        return []
    return [(_COMPARED[condition.name], (one, first), (other, second))]


def _added_to(expression: Expression, times: Mapping[int, str]) -> str | None:
    """Return the side to whose time a constant is added; None for any other expression."""
    if expression.kind is ExpressionKind.COLUMN:
        return times.get(identifier(expression))
    if expression.name not in _ADDED:
        return None
    first, *more = expression.children
    if expression.name == "Cast" and not expression.origin.dataType().equals(first.origin.dataType()):
        return None
    if any(one.kind is ExpressionKind.COLUMN for other in more for one in other.walk()):
        return None
    return _added_to(first, times)


def _reach(
    shadow: DataFrame,
    catalyst: Catalyst,
    comparisons: Sequence[tuple[str, _Side, _Side]],
    times: tuple[str, str],
) -> timedelta:
    """Return how far apart the times of a pair can be. Raises FrameError if that is not limited."""
    sides = [side for _, *both in comparisons for side in both]
    shifted = iter(_shifted(shadow, catalyst, sides))
    reach = reach_us([(sign, next(shifted), next(shifted)) for sign, *_ in comparisons])
    if reach is None:
        raise FrameError(
            f"a join of streams is not computed through a frame unless {times[0]!r} and {times[1]!r}, the"
            " columns with a watermark, are compared in both directions, because rows would be kept for ever",
            remedy="add conditions like b >= a AND b <= a + interval 1 hour",
        )
    return timedelta(microseconds=reach)


def _shifted(shadow: DataFrame, catalyst: Catalyst, sides: Sequence[_Side]) -> list[Shifted]:
    """Return what each expression adds, by its values at instants. Raises FrameError if it differs much."""
    if not sides:
        return []
    rng = random.Random(0)  # noqa: S311  # the same instants in each run
    instants = [rng.randrange(0, 2**51) for _ in range(40)]
    listed = F.array(*[F.lit(one).cast("bigint") for one in instants])
    rows = shadow.sparkSession.range(0, 1, 1, 1).select(F.explode(listed).alias("instant"))
    at = F.timestamp_micros("instant")

    def added(expression: Expression) -> Column:
        column = catalyst.column(expression, lambda one: at if one.kind is ExpressionKind.COLUMN else None)
        return F.unix_micros(column.cast("timestamp")) - F.col("instant")

    columns = [added(expression) for _, expression in sides]
    made = rows.select(*[F.struct(F.min(one), F.max(one)) for one in columns]).first()
    assert made is not None
    found = []
    for (side, expression), (least, most) in zip(sides, made, strict=True):
        if least is None or most - least > _DAY_US // 8:
            raise FrameError(
                f"{expression.origin.toString()} adds no fixed time in a join of streams",
                remedy="add an interval of days, hours, minutes or seconds",
            )
        # Hours are the same at each instant. A day of a time zone has more, fewer or none at a few instants.
        spare = 0 if _is_of_hours(expression) and max(abs(least), abs(most)) < _DAY_US * 7 // 8 else _DAY_US
        found.append(Shifted(side, least - spare, most + spare))
    return found


def _is_of_hours(expression: Expression) -> bool:
    """Whether an expression adds at most one interval, which is no one of a calendar."""
    added = [one for one in expression.walk() if one.name in _INTERVAL_ADDED]
    kinds = [one.children[1].origin.dataType().simpleString() for one in added]
    return len(kinds) <= 1 and "interval" not in kinds
