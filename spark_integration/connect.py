"""The expression behind a `Column` of Spark Connect: the protobuf message that the client sends.

Messages are walked by their descriptors, so unknown kinds are read and rebuilt like the known ones. SQL text
(`F.expr`) stays text, because a client has no parser.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.connect.column import Column as ConnectColumn
from pyspark.sql.connect.expressions import Expression as Sent
from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

from spark_integration.core.dividing import Expression, ExpressionKind
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

_EXPRESSION: Final = "spark.connect.Expression"
_OF_PLANS: Final = {"UnresolvedAttribute", "UnresolvedRegex", "UnresolvedStar"}
"""What `df["a"]`, `df.colRegex("a")` and `df["*"]` are: of a plan, by its number."""
_KINDS: Final = {
    "expression_string": ExpressionKind.SQL,
    "subquery_expression": ExpressionKind.SUBQUERY,
    "typed_aggregate_expression": ExpressionKind.USER_AGGREGATE,
    "unresolved_regex": ExpressionKind.STAR,
    "unresolved_star": ExpressionKind.STAR,
    "window": ExpressionKind.OVER,
}
_LITERALS: Final = {"boolean": "boolean", "double": "double", "integer": "int", "long": "bigint"}
_SUFFIXES: Final = {"double": "D", "long": "L"}
_NAME_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
_PLAN_LINE: Final = re.compile(r"([ :+-]*)[~!]?(\w+)")


class ConnectExpressions(Expressions):
    """Reads and makes Columns of a client of Spark Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark

    def read(self, column: Column) -> Expression:
        given: Any = column
        return self._read(given.to_plan(self._spark.client))

    def column(self, expression: Expression, replaced: Replaced = state_column) -> Column:
        return _column(self._message(expression, replaced))

    def _message(self, expression: Expression, replaced: Replaced) -> Any:
        other: Any = replaced(expression)
        if other is not None:
            return other.to_plan(self._spark.client)
        copy = _copied(expression.origin)
        # The variables of a lambda function are children without an expression in the message: the last ones.
        for one, child in zip(list(_below(copy)), expression.children, strict=False):
            one.CopyFrom(self._message(child, replaced))
        return copy

    def _read(self, message: Any) -> Expression:
        kind = message.WhichOneof("expr_type")
        given = getattr(message, kind)
        name = "".join(part.capitalize() for part in kind.split("_"))  # as Catalyst calls most of them
        children = tuple(map(self._read, _below(message)))
        match kind:
            case "unresolved_attribute" if not given.is_metadata_column:
                column = tuple(_name_parts(given.unparsed_identifier))
                return Expression(ExpressionKind.COLUMN, name, parts=column, origin=message)
            case "literal":
                return _literal(message)
            case "unresolved_function" | "call_function":
                is_parsed = kind == "call_function" or given.is_user_defined_function
                parts = _name_parts(given.function_name) if is_parsed else [given.function_name]
                return Expression(
                    ExpressionKind.CALL,
                    known_function(parts),
                    children,
                    arguments=len(children),
                    distinct=kind == "unresolved_function" and given.is_distinct,
                    origin=message,
                )
            case "alias" if len(given.name) == 1:
                return Expression(ExpressionKind.ALIAS, name, children, rest=given.name[0], origin=message)
            case "lambda_function":
                variables = tuple(_variable(one, one) for one in given.arguments)
                return Expression(ExpressionKind.OTHER, name, (*children, *variables), origin=message)
            case "unresolved_named_lambda_variable":
                return _variable(given, message)
            case "common_inline_user_defined_function":
                is_aggregate = (
                    given.python_udf.eval_type in GROUPED_FUNCTIONS
                    or given.scalar_scala_udf.aggregate
                    or given.java_udf.aggregate
                )
                found = ExpressionKind.USER_AGGREGATE if is_aggregate else ExpressionKind.USER_FUNCTION
                return Expression(found, given.function_name, children, origin=message)
        if kind == "cast":
            rest = self._cast(given)
        elif kind in _KINDS:
            rest = ", ".join(str(value) for _, value in given.ListFields())
        else:
            rest = _all_but_children(message)
        found = _KINDS.get(kind, ExpressionKind.OTHER)
        return Expression(found, name, children, rest=rest, origin=message)

    def _cast(self, given: Any) -> str:
        by_type = given.WhichOneof("cast_to_type") == "type"
        to = proto_schema_to_pyspark_data_type(given.type).simpleString() if by_type else given.type_str
        ansi = "ANSI" if self._spark.conf.get("spark.sql.ansi.enabled") == "true" else "LEGACY"
        return f"{to} {_eval_mode(given) or ansi}"

    def stateful_parts(self, df: DataFrame) -> list[str]:
        # The plan that Spark has analyzed, as text. The plan that the client sends has neither what SQL text
        # and views contain, nor that `select` of an aggregate function is an aggregation.
        given: Any = df
        text = given._explain_string(extended=True)  # noqa: SLF001  # what `explain` prints
        plan = text.partition("== Analyzed Logical Plan ==\n")[2].partition("\n== ")[0]
        lines = [found for line in plan.splitlines()[1:] if (found := _PLAN_LINE.match(line))]
        nodes = [(len(found[1]), found[2]) for found in lines]
        assert any(name.startswith("Streaming") for _, name in nodes), f"no plan of a stream: {text[:2000]}"
        parts = []
        for at, (depth, name) in enumerate(nodes):
            streams = [False]
            for inner, below in nodes[at + 1 :]:
                if inner <= depth:
                    break
                if inner == depth + 3:
                    streams.append(False)
                streams[-1] |= below.startswith("Streaming")
            if name in STATEFUL_PLANS and sum(streams) > (name in TWO_SIDED_PLANS):
                parts.append(name)
        return parts

    def rebinding(self) -> Rebinding:
        return PlanRebinding(self)


class PlanRebinding(Rebinding):
    """A column of a DataFrame has the number of its plan, and is found by name in it."""

    def __init__(self, expressions: Expressions) -> None:
        super().__init__(expressions)
        self._plans: dict[int, int] = {}

    def add(self, shadow: DataFrame, result: DataFrame) -> None:
        self._plans.setdefault(_plan_id(shadow), _plan_id(result))

    def bound(self, expression: Expression, others: Sequence[DataFrame]) -> Column | None:  # noqa: ARG002
        if expression.name not in _OF_PLANS:
            return None
        copy = _copied(expression.origin)
        column = getattr(copy, copy.WhichOneof("expr_type"))
        if not column.HasField("plan_id") or column.plan_id not in self._plans:
            return None
        column.plan_id = self._plans[column.plan_id]
        return _column(copy)


class _Given(Sent):  # type: ignore[misc]  # PySpark has no types here
    """An expression of the client that is sent as this message."""

    def __init__(self, message: Any) -> None:
        super().__init__()
        self._message = message

    def to_plan(self, session: Any) -> Any:  # noqa: ARG002
        return self._message

    def __repr__(self) -> str:
        return str(self._message.WhichOneof("expr_type"))


def _column(message: Any) -> Column:
    made: Column = ConnectColumn(_Given(message))
    return made


def _plan_id(df: DataFrame) -> int:
    given: Any = df
    number: int = given._plan._plan_id  # noqa: SLF001  # PySpark has no public API for plans
    return number


def _copied(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _below(message: Any) -> Iterator[Any]:
    """The expressions directly below a message, wherever it has them."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in [value] if hasattr(value, "ListFields") else value:
            if field.message_type.full_name == _EXPRESSION:
                yield one
            else:
                yield from _below(one)


def _all_but_children(message: Any) -> str:
    copy = _copied(message)
    copy.ClearField("common")  # the line of the program
    for one in _below(copy):
        one.Clear()
    return str(copy.SerializeToString(deterministic=True).hex())


def _name_parts(text: str) -> list[str]:
    return [found[2] or found[1].replace("``", "`") for found in _NAME_PART.finditer(text)]


def _variable(given: Any, message: Any) -> Expression:
    return Expression(ExpressionKind.VARIABLE, ".".join(given.name_parts), origin=message)


def _literal(message: Any) -> Expression:
    """Return a literal with the text that Catalyst has for it, if it is of a common type."""
    literal = message.literal
    kind = literal.WhichOneof("literal_type")
    value = getattr(literal, kind)
    found = ExpressionKind.NULL if kind == "null" else ExpressionKind.LITERAL
    is_plain = [field.name for field, _ in literal.ListFields()] == [kind]  # no type is written beside it
    if is_plain and kind in _LITERALS:
        text = str(value).lower() if kind == "boolean" else f"{value!r}{_SUFFIXES.get(kind, '')}"
        rest = f"{_LITERALS[kind]} {text}"
    elif is_plain and kind == "string":
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        rest = f"string '{escaped}'"
    elif kind == "decimal":
        rest = f"decimal({value.precision},{value.scale}) {value.value}BD"
    else:
        rest = f"{kind} #{_all_but_children(message)}"
    return Expression(found, "Literal", rest=rest, origin=message)


def _eval_mode(given: Any) -> str:
    name = str(type(given).EvalMode.Name(given.eval_mode))
    return name.removeprefix("EVAL_MODE_").replace("UNSPECIFIED", "")
