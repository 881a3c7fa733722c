"""The option `filter`: parses its text, and selects the rows that pass.

All comparisons must hold (AND). The semantics are those of SQL in Spark: a comparison with NULL is not true,
and NaN equals itself and is greater than all other doubles. Values are compared as the column's type; a value
that does not fit it is refused before anything is read.

    filter ::= comparison (AND comparison)*
    comparison ::= column (= | == | <> | != | < | <= | > | >=) value | column [NOT] IN (value, ...)
                 | column IS [NOT] NULL
    value ::= 12 | -1.5 | 'text, with '' for a quote' | true | false
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from spark_integration.errors import BadOptionError, nearest, type_text

Value = bool | int | float | str
_TOKEN: Final = re.compile(
    r"\s*(?:('(?:[^']|'')*')|(`(?:[^`]|``)+`)|(-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)"
    r"|(<>|!=|==|<=|>=|[=<>(),]))"
)
_ALIKE: Final = {"==": "=", "!=": "<>"}
_OPERATORS: Final = ("=", "<>", "<", "<=", ">", ">=")


class ColumnCondition(msgspec.Struct, frozen=True):
    """One condition. `operator`: `= <> < <= > >=`, `in`, `is null`; also, only from Spark, `starts`, `ends`,
    `contains`. `negated`: its opposite; for NULL neither is true.
    """

    column: str
    operator: str
    values: tuple[Any, ...] = ()
    negated: bool = False


def parse_filter(text: str) -> tuple[ColumnCondition, ...]:
    """Return the comparisons of a filter. Raises BadOptionError."""
    return tuple(_Parser(text).all())


def check_filter(comparisons: Sequence[ColumnCondition], schema: pa.Schema) -> None:
    """Raise BadOptionError for an unknown column, or a value that does not have the column's type."""
    for one in comparisons:
        if one.column not in schema.names:
            raise BadOptionError(
                f"the filter names column {one.column!r}{nearest(one.column, schema.names)}; the columns are"
                f" {', '.join(schema.names)}"
            )
        for value in one.values:
            _scalar(value, schema.field(one.column))


def passing(batch: pa.RecordBatch, comparisons: Sequence[ColumnCondition]) -> pa.RecordBatch:
    """Return the rows for which all comparisons are true."""
    for one in comparisons:
        field = batch.schema.field(one.column)
        batch = batch.filter(_mask(batch.column(field.name), one, field), null_selection_behavior="drop")
    return batch


def _mask(column: pa.Array, one: ColumnCondition, field: pa.Field) -> pa.Array:
    mask = _true_mask(column, one, [_scalar(value, field) for value in one.values])
    return pc.invert(mask) if one.negated else mask


def _true_mask(column: pa.Array, one: ColumnCondition, values: list[pa.Scalar]) -> pa.Array:
    if one.operator == "is null":
        return pc.is_null(column)
    if one.operator == "in":
        masks = [_compare("=", column, value) for value in values]
        combined = masks[0]
        for mask in masks[1:]:
            combined = pc.or_(combined, mask)
        return combined
    if one.operator in _TEXTUAL:
        return _TEXTUAL[one.operator](column, pattern=one.values[0])
    return _compare(one.operator, column, values[0])


_TEXTUAL: Final = {"starts": pc.starts_with, "ends": pc.ends_with, "contains": pc.match_substring}
_COMPARE: Final = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def _compare(operator: str, column: pa.Array, value: pa.Scalar) -> pa.Array:
    mask = _COMPARE[operator](column, value)
    if operator in (">", ">=") and pa.types.is_floating(column.type):
        return pc.or_(mask, pc.is_nan(column))  # no value of a filter is NaN
    return mask


def _scalar(value: Any, field: pa.Field) -> pa.Scalar:
    try:
        return _as_type(value, field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise BadOptionError(
            f"the filter compares column {field.name!r}, which is {type_text(field.type)}, with {value!r}:"
            f" {error}"
        ) from error


def _as_type(value: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, bool) != pa.types.is_boolean(kind):
        raise TypeError("only booleans are true or false")
    if isinstance(value, str):
        return pa.scalar(value).cast(kind)
    if isinstance(value, int | float) and (pa.types.is_string(kind) or pa.types.is_temporal(kind)):
        raise TypeError("write it as text")
    if isinstance(value, int | float) and pa.types.is_decimal(kind):
        return pa.scalar(str(value)).cast(kind)
    if isinstance(value, float) and not pa.types.is_floating(kind):
        raise TypeError("write a whole number")
    return pa.scalar(value, kind)


class _Parser:
    """A recursive descent parser of the grammar above."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split(text.rstrip()))
        self._at = 0

    def all(self) -> Iterator[ColumnCondition]:
        yield self._comparison()
        while self._at < len(self._tokens):
            if not self._accept("and"):
                raise self._error(f"expected AND instead of {self._peek()!r}")
            yield self._comparison()

    def _split(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"unreadable at character {at}, {text[at:][:20]!r}")
            yield match.group().strip()
            at = match.end()

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else "the end"

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _accept(self, word: str) -> bool:
        if self._at < len(self._tokens) and self._peek().lower() == word:
            self._at += 1
            return True
        return False

    def _error(self, what: str) -> BadOptionError:
        return BadOptionError(
            f"filter {self._text!r}: {what}",
            remedy="write it like: word <> 'the' AND count >= 10 AND day IS NOT NULL AND shop IN (1, 2)",
        )

    def _comparison(self) -> ColumnCondition:
        column = self._take()
        if column.startswith("`"):
            column = column[1:-1].replace("``", "`")
        elif not re.fullmatch(r"[A-Za-z_]\w*", column):
            raise self._error(f"expected a column instead of {column!r}")
        if self._accept("is"):
            negated = self._accept("not")
            self._expect("null")
            return ColumnCondition(column, "is null", negated=negated)
        negated = self._accept("not")
        if self._accept("in"):
            return ColumnCondition(column, "in", self._list(), negated)
        operator = self._take()
        operator = _ALIKE.get(operator, operator)
        if negated or operator not in _OPERATORS:
            raise self._error(f"expected a comparison after {column!r}, not {operator!r}")
        return ColumnCondition(column, operator, (self._value(),))

    def _list(self) -> tuple[Value, ...]:
        self._expect("(")
        values = [self._value()]
        while self._accept(","):
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _value(self) -> Value:
        token = self._take()
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.lower() in ("true", "false"):
            return token.lower() == "true"
        if re.fullmatch(r"-?\d+", token):
            return int(token)
        if re.match(r"-?[\d.]", token):
            return float(token)
        raise self._error(f"expected a value instead of {token!r} (text needs quotes, like 'this')")

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._error(f"expected {word.upper()!r} instead of {self._peek()!r}")
