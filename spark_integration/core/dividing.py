"""Divides an aggregation of a DataFrame into columns that Spark computes before the region, aggregates that
the region keeps, and columns that Spark computes after it. Pure: types are text, expressions `Expression`.

    groupBy("shop").agg((sum("price") / count("*")).alias("mean"))

    before  select(shop, price)                                  Spark
    region  by shop: `sum(price)` = Sum(price), `count(*)` = Count()
    after   select(shop, (`sum(price)` / `count(*)`) as mean)    Spark

Only names of aggregate functions are recognized. Spark evaluates every other expression: as an argument
before the region, or, with its aggregates replaced by columns of the state, after it.

Columns of the state are named by content, never by position: the state of `sum(v)` must not be continued as
`sum(w)` because a column was inserted before it. Two expressions share a column if their texts are equal, so
a text contains all that the expression is: quotes, types, everything that is no child. A function of the user
has no such text: it is never shared, and its column is named by the column of the result. Reasons and
what did not work: docs/decisions/0274.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, NamedTuple, NoReturn

from pyspark.errors import AnalysisException

from dataflow.schema import quoted
from dos_protocol.errors import DosError


class FrameError(DosError, AnalysisException):  # type: ignore[misc]  # PySpark has no types here
    """A call on a frame cannot be computed by a region. Nothing was started."""


class ExpressionKind(Enum):
    """What the division must know of an expression."""

    CALL = auto()
    """Of a function. `name`: in lower case; `children`: the arguments, then a FILTER, then an ORDER BY."""
    COLUMN = auto()
    LITERAL = auto()
    NULL = auto()
    STAR = auto()
    """`*`. `rest`: what it is restricted to, as in `t.*`."""
    ALIAS = auto()
    OVER = auto()
    SUBQUERY = auto()
    SQL = auto()
    """`rest`: text that only Spark's server can parse: a client of Spark Connect has no parser."""
    USER_FUNCTION = auto()
    USER_AGGREGATE = auto()
    VARIABLE = auto()
    """Of a lambda function. Spark numbers them anew in each program."""
    STATE = auto()
    """A column that the region returns, in place of an aggregate or a key."""
    OTHER = auto()


@dataclass(frozen=True, eq=False, slots=True)
class Expression:
    """An expression of Spark. `parts`: of the name of a column. `rest`: all that it has besides its children.
    `origin`: Spark's object, from which it is rebuilt.
    """

    kind: ExpressionKind
    name: str = ""
    children: tuple["Expression", ...] = ()
    parts: tuple[str, ...] = ()
    arguments: int = 0
    filtered: bool = False
    distinct: bool = False
    rest: str = ""
    origin: Any = None

    def walk(self) -> Iterator["Expression"]:
        yield self
        for child in self.children:
            yield from child.walk()


class Columns(NamedTuple):
    """Columns of the DataFrame that is aggregated."""

    names: tuple[str, ...]
    case_sensitive: bool = False

    def fold(self, name: str) -> str:
        return name if self.case_sensitive else name.lower()

    def spelled(self, name: str) -> str:
        """Return the name as the schema spells it."""
        folded = self.fold(name)
        return next((one for one in self.names if self.fold(one) == folded), name)

    def ambiguous(self) -> frozenset[str]:
        folded = [self.fold(one) for one in self.names]
        return frozenset(one for one in folded if folded.count(one) > 1)


class Form(Enum):
    """How Spark computes an argument of an aggregate of the region."""

    VALUE = auto()
    DOUBLE = auto()
    """The value as a double, to which Spark's own function casts it."""
    PRESENT = auto()
    """1 in rows in which no value is null, otherwise null."""
    TRUE = auto()
    """1 in rows in which the value is true, otherwise null."""


class Argument(NamedTuple):
    """A column that Spark computes before the region. `where`: a condition (FILTER): null where it fails."""

    name: str
    form: Form
    values: tuple[Expression, ...]
    where: Expression | None


class Partial(NamedTuple):
    """An aggregate of the region. `aggregate`: the name of its class; `argument`: None counts all rows."""

    name: str
    aggregate: str
    argument: str | None


class Key(NamedTuple):
    """A key of the region. `is_window`: its value is the start and the end of the region's window."""

    name: str
    expression: Expression
    is_window: bool


class Result(NamedTuple):
    """A column that Spark computes after the region."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class DividedCall:
    keys: tuple[Key, ...]
    arguments: tuple[Argument, ...]
    partials: tuple[Partial, ...]
    results: tuple[Result, ...]

    @property
    def window(self) -> Key | None:
        return next((key for key in self.keys if key.is_window), None)

    @property
    def plain_keys(self) -> tuple[Key, ...]:
        return tuple(key for key in self.keys if not key.is_window)


COMPUTED: Final = (
    "any", "approx_count_distinct", "avg", "bool_and", "bool_or", "count", "count_if", "every", "max", "mean",
    "min", "some", "sum",
)  # fmt: skip
"""Aggregate functions that a region computes."""

OTHER_AGGREGATES: Final = frozenset(
    [
        "any_value",
        "approx_percentile",
        "approx_top_k",
        "approx_top_k_accumulate",
        "approx_top_k_combine",
        "array_agg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bitmap_and_agg",
        "bitmap_construct_agg",
        "bitmap_or_agg",
        "collect_list",
        "collect_set",
        "collect_union",
        "corr",
        "count_distinct",
        "count_min_sketch",
        "covar_pop",
        "covar_samp",
        "first",
        "first_value",
        "grouping",
        "grouping_id",
        "histogram_numeric",
        "hll_sketch_agg",
        "hll_union_agg",
        "kurtosis",
        "last",
        "last_value",
        "listagg",
        "max_by",
        "measure",
        "median",
        "min_by",
        "mode",
        "percentile",
        "percentile_approx",
        "percentile_cont",
        "percentile_disc",
        "product",
        "regr_avgx",
        "regr_avgy",
        "regr_count",
        "regr_intercept",
        "regr_r2",
        "regr_slope",
        "regr_sxx",
        "regr_sxy",
        "regr_syy",
        "skewness",
        "std",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "string_agg",
        "sum_distinct",
        "theta_intersection_agg",
        "theta_sketch_agg",
        "theta_union_agg",
        "try_avg",
        "try_sum",
        "var_pop",
        "var_samp",
        "variance",
        "kll_sketch_agg_bigint",
        "kll_sketch_agg_double",
        "kll_sketch_agg_float",
        "kll_merge_agg_bigint",
        "kll_merge_agg_double",
        "kll_merge_agg_float",
        "tuple_sketch_agg_double",
        "tuple_sketch_agg_integer",
        "tuple_union_agg_double",
        "tuple_union_agg_integer",
        "tuple_intersection_agg_double",
        "tuple_intersection_agg_integer",
    ]
)
"""Aggregate functions of Spark that no region computes: refused by name. A function that is missing here is
refused all the same, by the analysis of the columns after the region, but with a text that names no remedy.
"""

WINDOWS: Final = ("window", "session_window")
DISTINCT_ERROR_MIN: Final = 1 / 64
"""The relative standard deviation of `ApproxDistinct` (precision 12)."""

NAME_CHARS_MAX: Final = 80
"""Of a derived name: an operator's has at most 128 characters."""
_UNITS: Final = (
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1000),
)
_NUMBERS: Final = re.compile(r"(tinyint|smallint|int|bigint|float|double|decimal\(\d+,\d+\))")
_MORE_THAN_VALUE: Final = re.compile(
    r"(^|[.(,])\s*\*|--|/\*|\b(identifier|select|session_window|window)\b", re.IGNORECASE
)
"""SQL text that may be a star, a window or a subquery, or hides one. So is a column of this name."""
_VARIABLE: Final = re.compile("\x00([^\x00]*)\x00")
_OPERATORS: Final = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "Remainder": "%", "GreaterThan": ">",
    "LessThan": "<", "EqualTo": "=", "GreaterThanOrEqual": ">=", "LessThanOrEqual": "<=", "And": "and",
    "Or": "or", "Not": "not", "==": "=",
}  # fmt: skip
"""SQL text is parsed to operators, methods of Column make functions: one text for both."""


def text_of(expression: Expression, columns: Columns) -> str:
    """Return a text that is equal for two expressions only if they are equal, unless they contain functions
    of the user (`is_opaque`). Variables of lambda functions are numbered in the order of their occurrence.
    """
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f"\x00{numbers.setdefault(found[1], len(numbers))}\x00"

    return _VARIABLE.sub(numbered, _text(expression, columns))


def _text(expression: Expression, columns: Columns) -> str:
    match expression.kind:
        case ExpressionKind.COLUMN:
            # The quotes stay: `s.b` is a column, s.b the field b of s.
            return ".".join(quoted(columns.fold(part)) for part in expression.parts)
        case ExpressionKind.VARIABLE:
            return f"\x00{expression.name}\x00"
    inside = ",".join(_text(child, columns) for child in expression.children)
    name = _OPERATORS.get(expression.name, expression.name)
    if name in _OPERATORS.values():
        return f"{name}({inside})"
    # The length before the rest: no rest can be mistaken for the end of it and the begin of children.
    rest = f"{expression.distinct:d}{expression.filtered:d}{len(expression.rest)}:{expression.rest}"
    return f"{name}<{rest}>({inside})"


def is_opaque(expression: Expression) -> bool:
    """Whether the text does not determine the expression, because it has a function of the user."""
    return any(one.kind is ExpressionKind.USER_FUNCTION for one in expression.walk())


def digest(text: str) -> str:
    """Return 64 bits of the text, as 16 digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def call_name(kind: str, keys: Sequence[str], window_us: int | None = None) -> str:
    """Return the name of a stateful call's operator: KIND_by_KEYS[_WINDOW], as `aggregate_by_shop_1h`."""
    parts = [kind]
    if keys:
        parts += ["by", *(re.sub(r"[^A-Za-z0-9]+", "_", key).strip("_") or "key" for key in keys)]
    if window_us is not None:
        parts.append(_span_text(window_us))
    return "_".join(parts)[:NAME_CHARS_MAX]


def _span_text(microseconds: int) -> str:
    for unit, size in _UNITS:
        if microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return f"{microseconds}us"


def without_alias(expression: Expression) -> Expression:
    while expression.kind is ExpressionKind.ALIAS:
        (expression,) = expression.children
    return expression


def aggregate_calls(
    keys: Sequence[Expression], results: Sequence[Expression], columns: Columns
) -> list[Expression]:
    """Return the calls of aggregate functions in the results. Raises FrameError for what no region computes.

    `divide` must know the types of their arguments (`typed_arguments`).
    """
    bare_keys = [without_alias(key) for key in keys]
    for key in bare_keys:
        _check_key(key, columns)
    known = {text_of(key, columns) for key in bare_keys if not is_opaque(key)}
    return [call for result in results for call in _calls(without_alias(result), known, columns)]


def typed_arguments(call: Expression) -> tuple[Expression, ...]:
    """Return the arguments of an aggregate whose types `divide` must know."""
    return () if call.name in ("count", "count_if") else call.children[:1]


def _calls(expression: Expression, keys: set[str], columns: Columns) -> Iterator[Expression]:
    if not is_opaque(expression) and text_of(expression, columns) in keys:
        return
    if expression.kind is ExpressionKind.CALL and expression.name in COMPUTED:
        _check_call(expression)
        _check_before(expression.children, columns)
        yield expression
        return
    _check_after(expression)
    for child in expression.children:
        yield from _calls(child, keys, columns)


def _refuse(problem: str, remedy: str) -> NoReturn:
    raise FrameError(problem, remedy=remedy)


def _refuse_sql(text: str) -> NoReturn:
    _refuse(
        f"the SQL text {text!r} cannot be divided, because a client of Spark Connect has no parser",
        'write it with functions, like F.sum("price") / F.count("*"); an argument of an aggregate may be text'
        " without stars, windows, subqueries and comments",
    )


def _check_key(key: Expression, columns: Columns) -> None:
    for one in key.walk():
        if one.kind is ExpressionKind.SQL:  # it may be a literal, or a window
            _refuse_sql(one.rest)
    if key.kind is ExpressionKind.CALL and key.name == "session_window":
        _refuse(
            "session_window is not computed by a region through a frame",
            "use a graph with dos.through, or session windows of Spark without dos.frame",
        )
    if key.kind in (ExpressionKind.LITERAL, ExpressionKind.NULL):
        _refuse(
            "a literal is a key, which Spark may read as the position of a column",
            "leave it out of groupBy, and add it to the result",
        )
    inside = key.children if key.kind is ExpressionKind.CALL and key.name in WINDOWS else (key,)
    _check_before(inside, columns)


def _check_before(expressions: Iterable[Expression], columns: Columns) -> None:
    """Of keys and arguments, which Spark computes before the region."""
    ambiguous = columns.ambiguous()
    for expression in (one for given in expressions for one in given.walk()):
        if expression.kind is ExpressionKind.CALL and expression.name in WINDOWS:
            # Spark multiplies the rows by the windows of each, before the region does it again.
            _refuse(f"{expression.name} is used inside another expression", "group by it, under an alias")
        if expression.kind is ExpressionKind.SUBQUERY:
            _refuse("a subquery is used in an aggregation", "join its result before")
        if expression.kind is ExpressionKind.SQL and _MORE_THAN_VALUE.search(expression.rest):
            _refuse_sql(expression.rest)
        for part in expression.parts if expression.kind is ExpressionKind.COLUMN else ():
            if columns.fold(part) in ambiguous:
                # Both columns have one text, and would share one column of the state.
                _refuse(
                    f"the DataFrame has several columns named {part!r}",
                    "rename one before the aggregation, for example with toDF or withColumnRenamed",
                )


def _check_after(expression: Expression) -> None:
    """Of a part of a result that Spark computes after the region."""
    if expression.kind is ExpressionKind.SQL:
        _refuse_sql(expression.rest)
    computed = ", ".join(COMPUTED)
    if expression.kind is ExpressionKind.CALL and expression.name in OTHER_AGGREGATES:
        _refuse(
            f"{expression.name} is not computed by a region (it has {computed})",
            "use transformWithState, or aggregate on frame.df()",
        )
    if expression.kind is ExpressionKind.USER_AGGREGATE:
        _refuse(
            f"the aggregate function {expression.name!r} of the user is not computed by a region (it has"
            f" {computed})",
            "aggregate on frame.df()",
        )
    if expression.kind is ExpressionKind.CALL and expression.name in WINDOWS:
        _refuse(f"{expression.name} in agg is no key", "group by it, under an alias")
    if expression.kind is ExpressionKind.OVER:
        _refuse("a window function (OVER) is used in agg", "compute it on the result")
    if expression.kind is ExpressionKind.SUBQUERY:
        _refuse("a subquery is used in an aggregation", "join its result before or after")


def _check_call(call: Expression) -> None:
    if call.distinct:
        _refuse(
            f"{call.name}(DISTINCT ...) is not computed by a region",
            "use approx_count_distinct, or dropDuplicates on another frame before",
        )
    if len(call.children) > call.arguments + call.filtered:
        _refuse(f"{call.name} with an ORDER BY is not computed by a region", "leave the ORDER BY out")
    arguments = call.children[: call.arguments]
    if any(one.kind is ExpressionKind.STAR for one in arguments) and (
        call.name != "count" or len(arguments) > 1 or arguments[0].rest
    ):
        _refuse(f"{call.name} of several columns by a star is not computed by a region", "name the columns")
    if call.name == "approx_count_distinct" and len(arguments) > 1:
        error = arguments[1]
        value = error.rest.rpartition(" ")[2]  # without its type, which may have digits: decimal(3,3) 0.001BD
        found = re.search(r"\d+(\.\d+)?([Ee]-?\d+)?", value) if error.kind is ExpressionKind.LITERAL else None
        if found is None or float(found[0]) < DISTINCT_ERROR_MIN:
            _refuse(
                "approx_count_distinct through a region is exact up to 4,096 values, and then has a relative"
                f" standard deviation of {DISTINCT_ERROR_MIN:.3f}; a smaller one is requested",
                "leave the second argument out, or pass 0.02 or more",
            )


def divide(
    keys: Sequence[Result],
    results: Sequence[Result],
    columns: Columns,
    types: Mapping[Expression, str],
) -> DividedCall:
    """Divide an aggregation. keys, results: with the names that they have in Spark's own result. types: of
    each of `typed_arguments`, as Spark's `simpleString`. Raises FrameError.
    """
    divider = _Divider(columns, types)
    by_text: dict[str, Key] = {}
    found: list[Result] = []
    for name, given in keys:
        expression = without_alias(given)
        text = text_of(expression, columns)
        if is_opaque(expression):
            text = f"{text} of key {len(found)}"
        is_window = expression.kind is ExpressionKind.CALL and expression.name == "window"
        key = by_text.setdefault(text, Key(name, expression, is_window))
        divider.keys[text] = key.name
        found.append(Result(name, _state(key.name)))
    divider.key_names = {key.name for key in by_text.values()}
    if len(divider.key_names) < len(by_text):
        names = ", ".join(repr(key.name) for key in by_text.values())
        _refuse(f"two different keys have one name ({names})", "give one an alias")
    if sum(key.is_window for key in by_text.values()) > 1:
        _refuse("an aggregation has two windows", "group by one of them, and aggregate its result again")
    for name, given in results:
        found.append(Result(name, divider.after(name, without_alias(given))))
    return DividedCall(
        tuple(by_text.values()),
        tuple(divider.arguments.values()),
        tuple(divider.partials.values()),
        tuple(found),
    )


def _state(name: str) -> Expression:
    return Expression(ExpressionKind.STATE, name)


class _Divider:
    def __init__(self, columns: Columns, types: Mapping[Expression, str]) -> None:
        self._columns = columns
        self._types = types
        self.keys: dict[str, str] = {}
        """Text -> name. A key of the user's function has a text that no expression of a result has."""
        self.key_names: set[str] = set()
        self.arguments: dict[str, Argument] = {}
        self.partials: dict[str, Partial] = {}
        self._opaque: Counter[str] = Counter()
        """Result -> number of its arguments that contain functions of the user."""

    def after(self, result: str, expression: Expression) -> Expression:
        """Return the expression with keys and aggregates replaced by columns of the region."""
        key = None if is_opaque(expression) else self.keys.get(text_of(expression, self._columns))
        if key is not None:
            return _state(key)
        if expression.kind is ExpressionKind.CALL and expression.name in COMPUTED:
            return _state(self._partial(result, expression))
        if not expression.children:
            return expression
        children = tuple(self.after(result, child) for child in expression.children)
        return replace(expression, children=children)

    def _partial(self, result: str, call: Expression) -> str:
        values = call.children[: call.arguments]
        where = call.children[call.arguments] if call.filtered else None
        match call.name:
            case "count":
                if all(one.kind in (ExpressionKind.STAR, ExpressionKind.LITERAL) for one in values):
                    if where is None:
                        return self._add("Count", "count(*)", None)
                    return self._of(result, "Count", "count_if", Form.TRUE, (where,), None)
                return self._of(result, "Count", "count", Form.PRESENT, values, where)
            case "count_if":
                return self._of(result, "Count", "count_if", Form.TRUE, values, where)
            case "sum" | "avg" | "mean":
                aggregate = "Sum" if call.name == "sum" else "Mean"
                return self._of(result, aggregate, aggregate.lower(), self._number(call), values, where)
            case "min" | "bool_and" | "every":
                self._check_order(call)
                return self._of(result, "Min", "min", Form.VALUE, values, where)
            case "max" | "bool_or" | "some" | "any":
                self._check_order(call)
                return self._of(result, "Max", "max", Form.VALUE, values, where)
        assert call.name == "approx_count_distinct", call.name
        self._check_order(call)
        return self._of(result, "ApproxDistinct", "approx_count_distinct", Form.VALUE, values[:1], where)

    def _number(self, call: Expression) -> Form:
        found = self._types[call.children[0]]
        if _NUMBERS.fullmatch(found):
            return Form.VALUE
        if found == "string":
            return Form.DOUBLE  # Spark's own function casts it, too
        _refuse(f"{call.name} of {found} is not computed by a region", "cast the argument to a number")

    def _check_order(self, call: Expression) -> None:
        found = self._types[call.children[0]]
        if " collate " in f"{found} ".lower():
            _refuse(f"{call.name} of {found} is not computed by a region", 'cast it to "string"')
        if call.name in ("bool_and", "every", "bool_or", "some", "any") and found != "boolean":
            _refuse(f"{call.name} of {found} is not computed by a region", 'cast it to "boolean"')

    def _of(
        self,
        result: str,
        aggregate: str,
        function: str,
        form: Form,
        values: tuple[Expression, ...],
        where: Expression | None,
    ) -> str:
        given = (*values, *(() if where is None else (where,)))
        (first, *more) = given
        if any(is_opaque(one) for one in given):
            inner = f"#{self._opaque[result]} of {result}"
            self._opaque[result] += 1
        elif not more and first.kind is ExpressionKind.COLUMN and len(first.parts) == 1:
            inner = self._columns.spelled(first.parts[0])
        else:
            texts = [text_of(one, self._columns) for one in given]
            inner = f"#{digest(f'{where is not None:d} ' + ' '.join(f'{len(one)}:{one}' for one in texts))}"
        name = {Form.VALUE: inner, Form.DOUBLE: f"double({inner})"}.get(form, f"{form.name.lower()}({inner})")
        if name in self.key_names:
            name = f"#{digest(name)}"
        self.arguments[name] = Argument(name, form, values, where)
        return self._add(aggregate, f"{function}({inner})", name)

    def _add(self, aggregate: str, name: str, argument: str | None) -> str:
        if name in self.key_names:
            _refuse(f"the key {name!r} has the name of a column of the state", "give the key an alias")
        partial = Partial(name, aggregate, argument)
        assert self.partials.setdefault(name, partial) == partial, (partial, self.partials[name])
        return name
