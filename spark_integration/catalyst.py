"""The expression behind a `Column` of classic PySpark: read into `Expression`, and made into a Column again.

Catalyst's expressions are case classes with the methods `children` and `withNewChildren`, so unknown ones are
read and rebuilt like the known ones. SQL text (`F.expr`) has been parsed by Spark. Nothing is resolved here:
what a name means is decided by Spark where the Column is used.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession

from dataflow.schema import quoted
from spark_integration.core.dividing import Expression, ExpressionKind, FrameError
from spark_integration.expressions import (
    GROUPED_FUNCTIONS,
    STATEFUL_PLANS,
    TWO_SIDED_PLANS,
    Expressions,
    Rebinding,
    Replaced,
    known_function,
    state_column,
)

_ALIASES: Final = frozenset({"Alias", "UnresolvedAlias"})
_COLUMNS: Final = frozenset({"UnresolvedAttribute", "AttributeReference"})
_STARS: Final = frozenset({"UnresolvedStar", "UnresolvedRegex", "UnresolvedDataFrameStar"})
_SUBQUERIES: Final = frozenset(
    {
        "ScalarSubquery",
        "Exists",
        "InSubquery",
        "ListQuery",
        "LateralSubquery",
        "UnresolvedScalarSubqueryPlanId",
    }
)
_USER_FUNCTIONS: Final = frozenset({"PythonUDF", "ScalaUDF"})
_USER_AGGREGATES: Final = frozenset({"ScalaAggregator", "ScalaUDAF", "PythonUDAF", "AggregateExpression"})
_ONLY_CHILDREN: Final = frozenset(
    {"CaseWhen", "EqualNullSafe", "In", "IsNotNull", "IsNull", "LambdaFunction", "UnresolvedExtractValue"}
)
"""These have nothing besides their children. Of others the text of all fields is a part of their text."""
_NUMBERED: Final = re.compile(r"#\d+L?")
_SEPARATOR: Final = "\x01"


class Catalyst(Expressions):
    """Reads and makes Columns of a classic session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        jvm = self._spark._jvm  # noqa: SLF001  # PySpark has no public API for expressions
        self._utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
        self._to_seq = jvm.PythonUtils.toSeq
        from pyspark.sql.classic.column import Column as ClassicColumn  # not there in a client of Connect

        self._make = ClassicColumn

    def read(self, column: Column) -> Expression:
        given: Any = column
        return self._read(self._spark._jsparkSession.expression(given._jc))  # noqa: SLF001

    def resolved(self, node: Any) -> Expression:
        """Return the expression behind one of Spark's in an analyzed plan. Its columns have identifiers."""
        return self._read(node)

    def column(self, expression: Expression, replaced: Replaced = state_column) -> Column:
        return self._make(self._utils.column(self._node(expression, replaced)))

    def stateful_parts(self, df: DataFrame) -> list[str]:
        return stateful_parts(df)

    def rebinding(self) -> Rebinding:
        return CatalystRebinding(self)

    def _node(self, expression: Expression, replaced: Replaced) -> Any:
        other: Any = replaced(expression)
        if other is not None:
            return self._spark._jsparkSession.expression(other._jc)  # noqa: SLF001
        children = [self._node(child, replaced) for child in expression.children]
        same = all(new is old.origin for new, old in zip(children, expression.children, strict=True))
        return expression.origin if same else expression.origin.withNewChildren(self._to_seq(children))

    def _read(self, node: Any) -> Expression:
        kind = node.productPrefix()
        if kind in _COLUMNS:
            names = _elements(node.nameParts()) if kind == "UnresolvedAttribute" else [node.name()]
            return Expression(ExpressionKind.COLUMN, kind, parts=tuple(names), origin=node)
        if kind == "Literal":
            found = ExpressionKind.NULL if node.value() is None else ExpressionKind.LITERAL
            return Expression(found, kind, rest=f"{node.dataType().simpleString()} {node.sql()}", origin=node)
        children = tuple(self._read(child) for child in _elements(node.children()))
        if kind == "UnresolvedFunction":
            return _call(node, children)
        if kind == "UnresolvedNamedLambdaVariable":
            return Expression(ExpressionKind.VARIABLE, node.name(), origin=node)
        if kind in _ALIASES:
            return Expression(
                ExpressionKind.ALIAS, kind, children, rest=node.name() if kind == "Alias" else "", origin=node
            )
        if kind in _STARS:
            # A plain star is the case class UnresolvedStar(None).
            target = node.productIterator().mkString(_SEPARATOR)
            return Expression(
                ExpressionKind.STAR, kind, children, rest="" if target == "None" else target, origin=node
            )
        if kind in _USER_FUNCTIONS:
            is_aggregate = kind == "PythonUDF" and node.evalType() in GROUPED_FUNCTIONS
            found = ExpressionKind.USER_AGGREGATE if is_aggregate else ExpressionKind.USER_FUNCTION
            return Expression(found, str(node.name()), children, origin=node)
        found = _KINDS.get(kind, ExpressionKind.OTHER)
        if kind in _ONLY_CHILDREN:
            rest = ""
        elif kind == "Cast":  # its field `child` has another text for df["a"] than for "a"
            rest = f"{node.dataType().simpleString()} {node.evalMode().toString()}"
        else:
            rest = node.productIterator().mkString(_SEPARATOR)
        return Expression(found, kind, children, rest=_NUMBERED.sub("", rest), origin=node)


_KINDS: Final = {
    "WindowExpression": ExpressionKind.OVER,
    **dict.fromkeys(_SUBQUERIES, ExpressionKind.SUBQUERY),
    **dict.fromkeys(_USER_AGGREGATES, ExpressionKind.USER_AGGREGATE),
}


def _call(node: Any, children: tuple[Expression, ...]) -> Expression:
    return Expression(
        ExpressionKind.CALL,
        known_function(_elements(node.nameParts())),
        children,
        arguments=node.arguments().size(),
        filtered=node.filter().isDefined(),
        distinct=bool(node.isDistinct()),
        rest="ignore nulls" if str(node.ignoreNulls()) in ("True", "Some(true)") else "",  # a bool before 4.2
        origin=node,
    )


def _elements(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def all_of(columns: Iterable[Column]) -> Column:
    """Return the conjunction of at least one column."""
    first, *more = columns
    for one in more:
        first = first & one
    return first


class CatalystRebinding(Rebinding):
    """A column has an identifier of its own."""

    def __init__(self, expressions: Expressions) -> None:
        super().__init__(expressions)
        self._found: dict[int, tuple[DataFrame, str]] = {}

    def add(self, shadow: DataFrame, result: DataFrame) -> None:
        same = {number for number, _ in _output(result)}
        for number, name in _output(shadow):
            if number not in same:
                self._found.setdefault(number, (result, name))

    def bound(self, expression: Expression, others: Sequence[DataFrame]) -> Column | None:
        if expression.kind is not ExpressionKind.COLUMN or expression.name != "AttributeReference":
            return None
        number = expression.origin.exprId().id()
        if number not in self._found:
            return None
        result, name = self._found[number]
        if any(number == one for other in others for one, _ in _output(other)):
            raise FrameError(
                f"column {name!r} is one of both DataFrames, because one was made from the other",
                remedy="give the columns of the other one new identities: other.toDF(*other.columns)",
            )
        if result.columns.count(name) > 1:
            raise FrameError(f"the result has several columns named {name!r}", remedy="rename one before")
        column: Column = result[quoted(name)]
        return column


def _output(df: DataFrame) -> list[tuple[int, str]]:
    """Return Spark's identifier and the name of each column."""
    given: Any = df
    output = given._jdf.queryExecution().analyzed().output()  # noqa: SLF001
    return [(one.exprId().id(), one.name()) for one in _elements(output)]


def plain_columns(df: DataFrame, below: DataFrame) -> list[int | None]:
    """Return for each column of `df` the position of the column of `below` that it is, under any name; None
    for one that is computed. Raises FrameError if between the two rows are made, left out or moved.
    """
    given: Any = df
    base: Any = below
    bottom = base._jdf.queryExecution().analyzed()  # noqa: SLF001
    plan = given._jdf.queryExecution().analyzed()  # noqa: SLF001
    projections = []
    while not plan.equals(bottom):
        name = str(plan.nodeName())
        if name not in ("Project", "SubqueryAlias"):
            raise FrameError(f"{name} lies between two stateful calls")
        if name == "Project":
            projections.append(plan.projectList())
        plan = plan.child()
    found: dict[int, int | None] = {number: at for at, (number, _) in enumerate(_output(below))}
    for projection in reversed(projections):
        for column in _elements(projection):
            if column.productPrefix() == "Alias":
                child = column.child()
                is_plain = child.productPrefix() == "AttributeReference"
                found[column.exprId().id()] = found.get(child.exprId().id()) if is_plain else None
    return [found.get(number) for number, _ in _output(df)]


class JoinPlan(NamedTuple):
    """A join in an analyzed plan. `left`, `right`, `output`: identifiers of columns, by position."""

    how: str
    left: list[int]
    right: list[int]
    output: list[int]
    conditions: list[Expression]
    """All of them hold (AND)."""


def join_plan(df: DataFrame) -> JoinPlan:
    """Return the join of two DataFrames that `df` is."""
    given: Any = df
    plan = given._jdf.queryExecution().analyzed()  # noqa: SLF001
    while plan.nodeName() == "Project":
        plan = plan.child()
    catalyst = Catalyst(df.sparkSession)
    made = given.sparkSession._jvm.org.apache.spark.sql.catalyst.expressions  # noqa: SLF001
    waiting = [plan.condition().get()] if plan.condition().isDefined() else []
    conditions = []
    while waiting:
        node = waiting.pop()
        if node.productPrefix() == "And":
            waiting += [node.right(), node.left()]
        elif node.productPrefix() == "Between":  # it names its value inside, which cannot be made again
            value = node.input()
            waiting += [
                made.LessThanOrEqual(value, node.upper()),
                made.GreaterThanOrEqual(value, node.lower()),
            ]
        else:
            conditions.append(catalyst.resolved(node))
    left, right = (
        [one.exprId().id() for one in _elements(side.output())] for side in (plan.left(), plan.right())
    )
    return JoinPlan(
        plan.joinType().toString(), left, right, [number for number, _ in _output(df)], conditions
    )


def identifier(column: Expression) -> int:
    """Return Spark's identifier of a column in an analyzed plan."""
    number: int = column.origin.exprId().id()
    return number


def stateful_parts(df: DataFrame) -> list[str]:
    """Return the names of the parts of a stream's plan that keep state in Spark."""
    found = []
    given: Any = df
    waiting = [given._jdf.queryExecution().analyzed()]  # noqa: SLF001
    while waiting:
        plan = waiting.pop()
        name = str(plan.nodeName())
        below = _elements(plan.children())
        streams = [one for one in below if one.isStreaming()]
        if name in STATEFUL_PLANS and len(streams) > (name in TWO_SIDED_PLANS):
            found.append(name)
        waiting += streams
    return found


_ZONE: Final = "spark.sql.session.timeZone"
_ANSI: Final = "spark.sql.ansi.enabled"
_BY_ANSI: Final = frozenset({"ansiEnabled", "evalContext", "evalMode", "failOnError"})
"""Fields of expressions that have another value, or another error, without ANSI mode."""
_PARSED: Final = frozenset({"csv", "json", "xml"})
"""Sources that read times of text in the zone of the session."""


def session_settings(df: DataFrame) -> str:
    """Return the settings of the session, with their values, on which the rows of a DataFrame depend: "" if
    they are the same in each session.
    """
    given: Any = df
    used: set[str] = set()
    plans = [given._jdf.queryExecution().analyzed()]  # noqa: SLF001
    while plans:
        plan = plans.pop()
        plans += _elements(plan.children())
        is_parsed = plan.nodeName() == "StreamingRelation" and plan.dataSource().className() in _PARSED
        if is_parsed and re.search(r"\btimestamp\b", plan.schema().simpleString()):
            used.add(_ZONE)
        expressions = _elements(plan.expressions())
        while expressions:
            one = expressions.pop()
            expressions += _elements(one.children())
            kind, fields = one.productPrefix(), {*one.productElementNames().mkString(",").split(",")}
            # A function of the user gets timestamps in the zone of the session. Most casts need none.
            if kind == "PythonUDF" or ("timeZoneId" in fields and (kind != "Cast" or one.needsTimeZone())):
                used.add(_ZONE)
            if fields & _BY_ANSI:
                used.add(_ANSI)
    return ", ".join(f"{name}={df.sparkSession.conf.get(name)}" for name in sorted(used))


def check_output_mode(df: DataFrame, mode: str) -> None:
    """Raise what Spark raises if it cannot run a stream in this output mode."""
    given: Any = df
    jvm = given.sparkSession._jvm.org.apache.spark.sql  # noqa: SLF001
    modes = jvm.streaming.OutputMode
    known = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}
    plan = given._jdf.queryExecution().analyzed()  # noqa: SLF001
    jvm.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, known[mode]())
