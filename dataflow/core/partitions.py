"""Columns whose values are in the names of directories, COLUMN=VALUE/..., as Spark, Hive and Arrow have them.

Names are escaped as Spark does (`ExternalCatalogUtils.escapePathName`). Bytes of other characters that are
escaped are UTF-8, as Arrow writes them. As in Spark, null and the empty string are both in the directory of
`__HIVE_DEFAULT_PARTITION__`, which is read as null.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from dataflow.errors import SchemaError, UserFault, nearest
from dataflow.schema import type_text

PartitionBy: TypeAlias = "str | Sequence[str]"
DEFAULT_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_NAME_BYTES_MAX: Final = 255
"""Of file systems."""
_INTEGER: Final = re.compile(r"-?[0-9]+")
_BOOLEANS: Final = {"true": True, "false": False}


def partition_columns(given: PartitionBy) -> tuple[str, ...]:
    """Return the columns that name directories. Raises SchemaError if one is given twice, or hides them."""
    columns = (given,) if isinstance(given, str) else tuple(given)
    if len(set(columns)) != len(columns):
        raise SchemaError(f"partition_by has a column twice: {', '.join(map(repr, columns))}")
    for name in columns:
        if not name or name.startswith(("_", ".")):
            raise SchemaError(
                f"partition_by has the column {name!r}: readers skip directories with such names",
                remedy="rename the column with a map, or partition by another one",
            )
    return columns


def columns_in_files(schema: pa.Schema, by: Sequence[str]) -> pa.Schema:
    """Return the columns that are not in the names of directories. Raises SchemaError if rows of the schema
    cannot be partitioned so.
    """
    for name in by:
        if name not in schema.names:
            similar = nearest(name, schema.names)
            raise SchemaError(f"partition_by has the column {name!r}, which the rows do not have{similar}")
        kind = schema.field(name).type
        is_named = pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        if not (is_named or pa.types.is_date32(kind)):
            raise SchemaError(
                f"partition_by has the column {name!r} of type {kind}, whose values do not name directories",
                remedy="partition by strings, integers, booleans or dates; a map makes a date of a timestamp",
            )
    kept = pa.schema([field for field in schema if field.name not in by])
    if by and not len(kept):
        raise SchemaError("partition_by has all columns, so that none is left for the files")
    return kept


def directory_of(name: str, value: pa.Scalar) -> str:
    """Return the name of the directory of rows with this value. Raises UserFault if it is too long."""
    text = value.cast(pa.string()).as_py() or DEFAULT_PARTITION
    found = f"{_escaped(name)}={_escaped(text)}"
    if len(found.encode()) > _NAME_BYTES_MAX:
        raise UserFault(
            f"the directory of a partition would have a name of {len(found.encode())} bytes, of which the"
            f" first are {found[:80]!r}; the maximum is {_NAME_BYTES_MAX}",
            remedy="partition by a column with shorter values",
        )
    return found


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


@dataclass(frozen=True)
class PathColumns:
    """The columns of rows whose columns `by` are in the path of their file."""

    schema: pa.Schema
    by: tuple[str, ...]

    def values_of(self, path: str) -> tuple[pa.Scalar, ...]:
        """Return the values of `by` for the rows of a file. Raises SchemaError if its path lacks one."""
        found: dict[str, pa.Scalar] = {}
        for directory in path.split("/")[:-1]:
            name, equals, text = directory.partition("=")
            name = _unescaped(name)
            if not equals or name not in self.by:
                continue
            if name in found:
                raise SchemaError(f"its path has two directories for the column {name!r}")
            found[name] = self._value_of(name, text)
        if missing := [name for name in self.by if name not in found]:
            raise SchemaError(f"its path has no directory {missing[0]}=VALUE for the column of that name")
        return tuple(found[name] for name in self.by)

    def _value_of(self, name: str, text: str) -> pa.Scalar:
        kind = self.schema.field(name).type
        if text == DEFAULT_PARTITION:
            return pa.scalar(None, kind)
        text = _unescaped(text)
        value: Any = None
        try:
            if pa.types.is_string(kind):
                value = text or None
            elif pa.types.is_boolean(kind):
                value = _BOOLEANS.get(text.lower())
            elif pa.types.is_date32(kind):
                value = pa.scalar(text).cast(kind)
            elif _INTEGER.fullmatch(text):
                value = pa.scalar(int(text)).cast(kind)
        except (pa.ArrowException, OverflowError):
            value = None
        if value is None:
            raise SchemaError(f"its directory {name}={text} has no {type_text(kind)} for that column")
        return value if isinstance(value, pa.Scalar) else pa.scalar(value, kind)

    def extended(
        self, rows: pa.RecordBatch, files: Sequence[tuple[int, Sequence[pa.Scalar]]]
    ) -> pa.RecordBatch:
        """Return rows with all columns. files: how many of them each file has, and the values of its path."""

        def column(index: int, kind: pa.DataType) -> pa.Array:
            parts = [pa.repeat(values[index], count) for count, values in files]
            return pa.concat_arrays(parts) if parts else pa.array([], kind)

        return pa.RecordBatch.from_arrays(
            [
                column(self.by.index(field.name), field.type)
                if field.name in self.by
                else rows.column(field.name)
                for field in self.schema
            ],
            schema=self.schema,
        )


def _unescaped(text: str) -> str:
    if "%" not in text:
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError as error:
        raise SchemaError(f"its directory {text} is not UTF-8") from error
