"""Parse schemas: a DDL string ("word string, n bigint", as in Spark), a `pa.Schema`, or Spark's StructType.

Type names are Spark's, so one string serves DataFrames and graphs. `schema_text` is the canonical form in a
graph's fingerprint. Columns like `_time`, `_hash` are ours; a user's schema must not contain them.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from dataflow import limits
from dataflow.errors import SchemaError

RESERVED_COLUMNS: Final = frozenset({"_time", "_id", "_weight", "_hash", "_deleted"})

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES: Final[tuple[tuple[pa.DataType, str], ...]] = tuple(
    (_SIMPLE[name], name)
    for name in (
        "string", "binary", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date",
        "timestamp", "timestamp_ntz",
    )
)  # fmt: skip

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_]*|\d+)|([(),:<>]))")


def parse_schema(schema: "str | pa.Schema") -> pa.Schema:
    """Return the Arrow schema of a DDL string, a StructType or a `pa.Schema`. Raises SchemaError."""
    if isinstance(schema, pa.Schema):
        return check_schema(schema)
    if hasattr(schema, "simpleString"):
        schema = _ddl_of(schema)
    if not isinstance(schema, str):
        raise SchemaError(
            "a schema is a string such as 'word string, n bigint', a pyarrow.Schema or a StructType, not "
            f"{type(schema).__name__}"
        )
    return check_schema(_Parser(schema).schema())


def _ddl_of(schema: Any) -> str:
    """Return the DDL of Spark's StructType. Raises SchemaError for another type."""
    if not hasattr(schema, "fields"):
        raise SchemaError(
            f"a schema is a StructType or a string such as 'n bigint', not {schema.simpleString()}"
        )
    return ", ".join(f"{quoted(one.name)} {one.dataType.simpleString()}" for one in schema.fields)


def columns_named(columns: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Return these columns, each once, in the order of the names."""
    return pa.schema([columns.field(name) for name in dict.fromkeys(names)])


def check_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema if its column names are valid and unique. Raises SchemaError."""
    names = schema.names
    if not names:
        raise SchemaError("a schema needs at least one column; write for example 'word string'")
    if len(names) > limits.columns_max:
        raise SchemaError(f"a schema has at most {limits.columns_max} columns, got {len(names)}")
    for name in names:
        if not name:
            raise SchemaError("a column needs a name; one in this schema is empty")
        if name in RESERVED_COLUMNS:
            raise SchemaError(f"column {name!r} is reserved for the envelope; choose another name")
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaError(f"column names must be unique; duplicates: {', '.join(twice)}")
    return schema


def schema_text(schema: pa.Schema) -> str:
    """Return the canonical DDL string: `parse_schema(schema_text(s))` has the same names and types."""
    return ", ".join(f"{_name_text(field.name)} {type_text(field.type)}" for field in schema)


def columns_of_text(text: str) -> pa.Schema:
    """Return the columns of a text of `schema_text`, perhaps with "changes " before it, as a checkpoint has
    them of an input. The type of a column is null if neither Spark nor Arrow has such a name.
    """
    columns, depth, begin, is_name = [], 0, 0, False
    for at, sign in enumerate(f"{text},"):
        is_name ^= sign == "`"
        if not is_name:
            depth += (sign in "<([") - (sign in ">)]")
            if sign == "," and not depth:
                columns.append(text[begin:at].strip())
                begin = at + 1
    first = [_column(columns[0]), _column(columns[0].removeprefix("changes "))]
    known = [one for one in first if one.type != pa.null()]
    return pa.schema([[*known, *first][0], *map(_column, columns[1:])])


def _column(text: str) -> pa.Field:
    try:
        return parse_schema(text).field(0)
    except SchemaError:
        pass
    name, _, kind = text.rpartition("` ") if text.startswith("`") else text.partition(" ")
    try:
        kind_of_arrow = pa.type_for_alias(kind)
    except ValueError:
        kind_of_arrow = pa.null()
    return pa.field(name.removeprefix("`").replace("``", "`"), kind_of_arrow)


def type_text(kind: pa.DataType) -> str:
    """Return Spark's name of a type, Arrow's name if Spark has none."""
    for known, name in _NAMES:
        if kind.equals(known):
            return name
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)},{type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        fields = ",".join(f"{_name_text(field.name)}:{type_text(field.type)}" for field in kind)
        return f"struct<{fields}>"
    return str(kind)


def _name_text(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else quoted(name)


def quoted(name: str) -> str:
    """Return a name as one part of a name in SQL."""
    return "`" + name.replace("`", "``") + "`"


class _Parser:
    """A recursive descent parser of `name [:] type [NOT NULL]`, separated by commas."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._tokens = self._split(text)

    def schema(self) -> pa.Schema:
        fields = self._fields(end="")
        return pa.schema(fields)

    def _split(self, text: str) -> list[str]:
        tokens, at, text = [], 0, text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise SchemaError(f"schema {text!r} cannot be parsed at character {at}: {text[at:][:20]!r}")
            tokens.append(match.group(1) or match.group(2) or match.group(3))
            at = match.end()
        return tokens

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        token_found = self._take()
        if token_found != token:
            raise self._error(f"expected {token!r}, found {token_found or 'its end'!r}")

    def _error(self, problem: str) -> SchemaError:
        return SchemaError(
            f"schema {self._text!r}: {problem}; write it like 'word string, n bigint, tags array<string>'"
        )

    def _fields(self, end: str) -> list[pa.Field]:
        fields = [self._field()]
        while self._peek() == ",":
            self._take()
            fields.append(self._field())
        if self._peek() != end:
            raise self._error(f"expected a comma or the end, found {self._peek()!r}")
        return fields

    def _field(self) -> pa.Field:
        name = self._take()
        if not name or name in "(),:<>":
            raise self._error(f"expected a column name, found {name or 'its end'!r}")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        if self._peek() == ":":
            self._take()
        kind = self._type()
        nullable = True
        if self._peek().lower() == "not":
            self._take()
            if self._take().lower() != "null":
                raise self._error("NULL must follow NOT")
            nullable = False
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        name = self._take().lower()
        if name == "string" and self._peek().lower() == "collate":
            self._take()
            self._collation(self._take())
        if name in _SIMPLE:
            return _SIMPLE[name]
        nested = {"decimal": self._decimal, "array": self._array, "map": self._map, "struct": self._struct}
        if name in nested:
            return nested[name]()
        raise self._error(
            f"{name or 'its end'!r} is no type (known: {', '.join(name for _, name in _NAMES)}, decimal, "
            "array, "
            "map, struct)"
        )

    def _collation(self, name: str) -> None:
        if name.upper() != "UTF8_BINARY":
            raise SchemaError(
                f"schema {self._text!r} has a string with the collation {name}, by which Spark takes"
                " different texts for equal; here texts are compared by their bytes. Convert it before:"
                " cast(column as string collate UTF8_BINARY), of lower(column) for one without case"
            )

    def _decimal(self) -> pa.DataType:
        if self._peek() != "(":
            return pa.decimal128(10, 0)
        self._expect("(")
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._take()
            scale = self._number()
        self._expect(")")
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise self._error(f"decimal({precision},{scale}) is outside 1..38 digits")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._take()
        if not token.isdigit():
            raise self._error(f"expected a number, found {token!r}")
        return int(token)

    def _array(self) -> pa.DataType:
        self._expect("<")
        kind = self._type()
        self._expect(">")
        return pa.list_(kind)

    def _map(self) -> pa.DataType:
        self._expect("<")
        key = self._type()
        self._expect(",")
        value = self._type()
        self._expect(">")
        return pa.map_(key, value)

    def _struct(self) -> pa.DataType:
        self._expect("<")
        fields = self._fields(end=">")
        self._expect(">")
        return pa.struct(fields)
