"""Formats of files whose rows are records of text, JSON and CSV: bytes to rows. Pure: no I/O.

pyarrow decodes the values. It tells neither where a record ends in the file nor which one is wrong, and its
result must not depend on how a file was divided into blocks, because a replay divides it in another way.
Hence these rules, which make a record's rows a function of the record alone:

1. A record of JSON is a line that begins with { and ends with }, white space aside. Two objects in a line, or
   one in two lines, would pass pyarrow, and `null` ends the process (pyarrow 26).
2. A record of CSV ends at the first newline outside of quotes; quotes count at the beginning of a field only.
   A carriage return outside of quotes belongs to a newline: pyarrow would end the record there.
3. A block is decoded at once. If that fails, or gives another number of rows than records, it is divided in
   two, down to the single records that are wrong.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from dataflow.errors import SchemaError, nearest
from dataflow.schema import check_schema, parse_schema, schema_text, type_text
from dos_protocol.digests import digest64

Format: TypeAlias = Literal["text", "json", "csv", "parquet", "arrow"]
OnBad: TypeAlias = Literal["error", "drop", "side"]
Indexes: TypeAlias = npt.NDArray[np.int64]
BAD_PORT: Final = "bad"
"""The side output of rows that do not fit the format and the schema."""
BAD_SCHEMA: Final = parse_schema("file string, line bigint, byte bigint, reason string, data binary")
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = 10
FAULTS: Final = (pa.ArrowException, UnicodeDecodeError)
"""What pyarrow raises for bytes that do not fit; UnicodeDecodeError for an error text that is not UTF-8."""


def end_of_lines(block: bytes) -> int:
    """Return how many of the first bytes are whole lines."""
    return block.rfind(b"\n") + 1


class BadRecord(NamedTuple):
    """A record that is no row: bytes `begin` to `end` of the block."""

    begin: int
    end: int
    reason: str


class Decoded(NamedTuple):
    """The rows of a block, the byte at which each begins, and the records that are none, in their order."""

    rows: pa.RecordBatch
    begins: Indexes
    bad: list[BadRecord]


class GroupFooter(Protocol):
    """What a file of row groups tells of them: the columns, and how many there are."""

    schema: pa.Schema
    count: int

    def first_row(self, group: int) -> int:
        """Return how many rows of those that are numbered with it are before a group."""
        ...

    def tables(
        self, groups: Sequence[int], data: bytes, begin: int, names: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Yield the columns of each group. data: the bytes of the file from `begin` on. Raises what `FAULTS`
        has and OSError for damage.
        """
        ...


class Head(NamedTuple):
    """The beginning of a file: `size` bytes that are no row, and the names of the columns in the file."""

    size: int = 0
    columns: tuple[str, ...] = ()
    digest: int = 0
    """Of a header, or of a footer; 0 if there is none. A reset far from it must find the same one."""
    ends: tuple[int, ...] = ()
    """Of groups of rows, from `begin` on, the last one at the end of the file or of its part."""
    footer: "GroupFooter | None" = None
    begin: int = 0
    """Where the part of the file begins that is read; positions count from there."""
    first: int = 0
    """The number of the group that begins there."""


NO_HEAD: Final = Head()


@dataclass(frozen=True)
class RecordFormat:
    """How records become rows of `schema`."""

    schema: pa.Schema

    @property
    @abstractmethod
    def name(self) -> str:
        """The format and its options, for the fingerprint: they decide which bytes are a record."""

    def __post_init__(self) -> None:
        try:
            self.rows_of(*self._probe())
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(f"schema {schema_text(self.schema)}: {error}") from error

    def head(self, block: bytes) -> Head:
        """Return the beginning of a file whose first bytes, whole records, are `block`. Raises SchemaError if
        the file does not have the columns of the schema.
        """
        return Head(len(BYTE_ORDER_MARK) if block.startswith(BYTE_ORDER_MARK) else 0)

    def whole(self, block: bytes) -> int:
        """Return how many of the first bytes are whole records. Default: whole lines."""
        return end_of_lines(block)

    @abstractmethod
    def rows_of(self, data: bytes, head: Head) -> pa.Table:
        """Let pyarrow decode records, at least one. Raises what `FAULTS` has."""

    @abstractmethod
    def _probe(self) -> "tuple[bytes, Head]":
        """Return a record with nulls only, and its head: pyarrow reports types that it cannot read."""

    @abstractmethod
    def _ends(self, data: bytes) -> Indexes:
        """Return the end of each record of `data`, which ends with a newline."""

    @abstractmethod
    def _is_plain(self, data: bytes, begins: Indexes, ends: Indexes) -> bool:
        """Return whether each record is surely not empty, and keeps the rules 1 and 2."""

    @abstractmethod
    def fault(self, record: bytes) -> str | None:
        """Return why a record is none by the rules 1 and 2; "" if it is empty, None if it may be a row."""

    def reason_of(self, error: Exception, record: bytes, head: Head) -> str:
        """Return why pyarrow made no row of one record, with the column if it is known."""
        del record, head
        return " ".join(str(error).split())

    def decode(self, data: bytes, head: Head) -> Decoded:
        """Return the rows of whole records; the last one may lack its newline."""
        if not data:
            return Decoded(no_rows(self.schema), _NONE, [])
        data = data if data.endswith(b"\n") else data + b"\n"
        ends = self._ends(data)
        begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        kept, bad = np.arange(len(ends)), list[BadRecord]()
        if not (self._is_plain(data, begins, ends) and _is_utf8(data)):
            kept, bad = self._sorted_out(data, begins, ends)
        parts, found, waiting = [no_rows(self.schema)], [_NONE], [kept]
        while waiting:
            part = waiting.pop()
            if not len(part):
                continue
            records = [data[begins[one] : ends[one]] for one in part] if len(part) < len(ends) else [data]
            try:
                rows = self.rows_of(b"".join(records), head)
                reason = f"{rows.num_rows} rows in one record"
            except FAULTS as error:
                rows = None
                reason = self.reason_of(error, records[0], head) if len(part) == 1 else ""
            if rows is not None and rows.num_rows == len(part):
                parts += [
                    pa.RecordBatch.from_arrays(b.columns, schema=self.schema) for b in rows.to_batches()
                ]
                found.append(begins[part])
            elif len(part) > 1:
                waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
            else:
                bad.append(BadRecord(int(begins[part[0]]), int(ends[part[0]]), reason))
        return Decoded(joined(parts), np.concatenate(found), sorted(bad))

    def _sorted_out(self, data: bytes, begins: Indexes, ends: Indexes) -> tuple[Indexes, list[BadRecord]]:
        kept, bad = [], []
        for index, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            record = data[begin:end]
            reason = self.fault(record)
            if reason is None and not record.isascii():
                try:
                    record.decode()
                except UnicodeDecodeError as error:
                    reason = f"not UTF-8 at its byte {error.start}"
            if reason is None:
                kept.append(index)
            elif reason:
                bad.append(BadRecord(begin, end, reason))
        return np.array(kept, np.int64), bad


_NONE: Final[Indexes] = np.zeros(0, np.int64)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


def joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    full = [part for part in parts if part.num_rows]
    return full[0] if len(full) == 1 else pa.concat_batches(full or parts[:1])


def check_once(name: str, columns: Sequence[str], where: str) -> None:
    """Raise SchemaError unless a file has a column once. where: what of the file has columns."""
    if columns.count(name) != 1:
        found = ", ".join(map(repr, columns))
        if name in columns:
            raise SchemaError(f"{where} has the column {name!r} twice: {found}")
        other_case = [one for one in columns if one.lower() == name.lower()]
        similar = f" (did you mean {other_case[0]!r}?)" if other_case else nearest(name, columns)
        raise SchemaError(f"{where} does not have the column {name!r}{similar}, but {found}")


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _newlines(data: bytes) -> Indexes:
    """Return the position after each newline."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE).astype(np.int64) + 1


@dataclass(frozen=True)
class JsonFormat(RecordFormat):
    """An object per line. Members that the schema does not name are ignored, missing ones are null."""

    @property
    def name(self) -> str:
        return "json"

    def rows_of(self, data: bytes, head: Head) -> pa.Table:
        del head
        return _json_rows(data, pa.schema([(one.name, _in_json(one.type)) for one in self.schema])).cast(
            self.schema
        )

    def reason_of(self, error: Exception, record: bytes, head: Head) -> str:
        text = super().reason_of(error, record, head)
        if found := _CHANGED.fullmatch(text):
            name, kind = found[1].replace("/", "."), found[2]
            kind = type_text(self.schema.field(name).type) if name in self.schema.names else kind
            return f"column {name!r} is {kind}, found a JSON {found[3]}"
        if found := _NO_JSON.fullmatch(text):
            return f"not JSON: {found[1]}"
        for field in self.schema:
            try:
                JsonFormat(pa.schema([field])).rows_of(record, head)
            except FAULTS:
                return f"column {field.name!r} is {type_text(field.type)}: {text}"
        return text

    def _probe(self) -> tuple[bytes, Head]:
        return b"{}\n", Head()

    def _ends(self, data: bytes) -> Indexes:
        return _newlines(data)

    def _is_plain(self, data: bytes, begins: Indexes, ends: Indexes) -> bool:
        found = np.frombuffer(data, np.uint8)
        last = found[np.maximum(ends - 2, 0)]
        last = np.where(last == ord("\r"), found[np.maximum(ends - 3, 0)], last)
        return bool((found[begins] == ord("{")).all() and (last == ord("}")).all())

    def fault(self, record: bytes) -> str | None:
        # Objects that end where lines end: if two lines were one object, } and { would meet within it, or a
        # string would hold a newline; neither is JSON. So equal numbers mean one object in each line.
        record = record.strip(b" \t\r\n")
        if not record:
            return ""
        return None if record[:1] == b"{" and record[-1:] == b"}" else "not an object in one line"


_CHANGED: Final = re.compile(r"JSON parse error: Column\(/(.*)\) changed from (\w+) to (\w+) in row \d+")
_NO_JSON: Final = re.compile(r"JSON parse error: (.*?)(?: in row \d+)?")


def _in_json(kind: pa.DataType) -> pa.DataType:
    """Return as which type pyarrow reads a column, before it is cast. It takes a number for a date, and drops
    the zone of a time that has none by its type.
    """
    if pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_in_json(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, _in_json(one.type)) for one in kind])
    return kind


def _json_rows(data: bytes, schema: pa.Schema | None) -> pa.Table:
    extra = "infer" if schema is None else "ignore"
    return pa.json.read_json(
        pa.BufferReader(data),
        pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=extra),
    )


def check_delimiter(delimiter: str) -> None:
    """Raise SchemaError for what does not separate the fields of CSV."""
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise SchemaError(f"delimiter must be one ASCII character, not {delimiter!r}")


@dataclass(frozen=True)
class CsvFormat(RecordFormat):
    """Fields by RFC 4180. An empty field is null, one in quotes is an empty string, as in Spark."""

    delimiter: str = ","
    header: bool = True
    """Whether the first record of each file names its columns, which are found by name."""

    def __post_init__(self) -> None:
        check_delimiter(self.delimiter)
        super().__post_init__()

    @property
    def name(self) -> str:
        return f"csv by {self.delimiter!r}{' with header' if self.header else ''}"

    @property
    def _lexer(self) -> "_Lexer":
        return csv_lexer(self.delimiter)

    def head(self, block: bytes) -> Head:
        size = super().head(block).size
        if not self.header or len(block) == size:
            return Head(size, tuple(self.schema.names))
        end = self._lexer.first(block, size)
        record = block[size:end]
        if reason := self.fault(record if record.endswith(b"\n") else record + b"\n"):
            raise SchemaError(f"its header has {reason}")  # pyarrow would take it for the end of the header
        columns = _header(record, self.delimiter)
        for name in self.schema.names:
            check_once(name, columns, "its header")
        return Head(end, columns, digest64(record))

    def whole(self, block: bytes) -> int:
        return self._lexer.whole(block)

    def rows_of(self, data: bytes, head: Head) -> pa.Table:
        # Other columns of the file get names that no column of the schema has; they may be equal.
        wanted = set(self.schema.names)
        names = [name if name in wanted else f"\0{at}" for at, name in enumerate(head.columns)]
        return _csv_rows(data, names, self.schema, self.delimiter)

    def reason_of(self, error: Exception, record: bytes, head: Head) -> str:
        text = super().reason_of(error, record, head)
        if found := _CONVERSION.fullmatch(text):
            name = head.columns[int(found[1])]
            return f"column {name!r} is {type_text(self.schema.field(name).type)}: {found[2]}"
        found = _NO_CSV.fullmatch(text)
        return found[1].replace("Expected", "expected") if found else text

    def _probe(self) -> tuple[bytes, Head]:
        # with one more column, because pyarrow skips an empty line
        names = (*self.schema.names, "")
        return (self.delimiter * (len(names) - 1)).encode() + b"\n", Head(columns=names)

    def _ends(self, data: bytes) -> Indexes:
        return self._lexer.ends(data)

    def _is_plain(self, data: bytes, begins: Indexes, ends: Indexes) -> bool:
        lengths = ends - begins
        first = np.frombuffer(data, np.uint8)[begins]
        closed = b'"' not in data or self._lexer.loose.fullmatch(data, begins[-1]) is not None
        return bool(closed and (lengths > 1).all() and (first != ord("\r")).all() and _returns_are_ends(data))

    def fault(self, record: bytes) -> str | None:
        if not record.strip(b"\r\n"):
            return ""
        if not self._lexer.loose.fullmatch(record):
            return "a quote that is not closed"
        if _returns_are_ends(record) or self._lexer.strict.fullmatch(record):
            return None
        return "a carriage return outside of quotes"


_CONVERSION: Final = re.compile(
    r"In CSV column #(\d+): (?:Row #\d+: )?(?:CSV conversion error to [^:]*: )?(.*)"
)
_NO_CSV: Final = re.compile(r"CSV parse error: (?:Row #\d+: )?(.*)")


def _returns_are_ends(data: bytes) -> bool:
    return data.count(b"\r") == data.count(b"\r\n")


class _Lexer:
    """Where records of CSV end."""

    def __init__(self, delimiter: str) -> None:
        other = re.escape(delimiter)
        # No possessive repetition of a group with alternatives: Python 3.11.2 matches them wrongly, and took
        # half of a quoted field for a record.
        quoted = r'"[^"]*+(?:""[^"]*+)*+"'

        def record(rest: str, end: str) -> "re.Pattern[bytes]":
            field = rf'(?:{quoted}[^{other}{rest}]*+|(?!")[^{other}{rest}]*+)'
            return re.compile(rf"{field}(?:{other}{field})*{end}".encode())

        self._bounds = np.frombuffer(f"{delimiter}\r\n".encode(), np.uint8)
        self.loose, self.strict = record(r"\n", r"\n"), record(r"\r\n", r"\r*\n")

    def first(self, data: bytes, begin: int) -> int:
        """Return the end of the record that begins there."""
        found = self.loose.match(data, begin)
        return found.end() if found else len(data)

    def _is_simple(self, data: bytes) -> bool:
        """Return whether each line is surely a record: fields in quotes have neither quotes nor newlines."""
        # Each odd quote follows a bound of a field, so it opens one, and each even one is before a bound, so
        # it closes it; both are in one line. Hence no newline is in quotes.
        quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord('"'))
        if not len(quotes):
            return True
        if len(quotes) % 2 or not data.endswith(b"\n"):
            return False
        found, opening, closing = np.frombuffer(data, np.uint8), quotes[::2], quotes[1::2]
        before = found[opening[opening > 0] - 1]
        if not (np.isin(before, self._bounds).all() and np.isin(found[closing + 1], self._bounds).all()):
            return False
        lines = np.searchsorted(_newlines(data), quotes, "right")
        return bool((lines[::2] == lines[1::2]).all())

    def ends(self, data: bytes) -> Indexes:
        """Return the end of each record; of one that is not whole, the end of the data."""
        if self._is_simple(data):
            return _newlines(data)
        ends, at = list[int](), 0
        while at < len(data):
            at = self.first(data, at)
            ends.append(at)
        return np.array(ends, np.int64)

    def whole(self, block: bytes) -> int:
        last = block.rfind(b"\n") + 1
        if self._is_simple(block[:last]):
            return last
        at = 0
        while found := self.loose.match(block, at):
            at = found.end()
        return at


csv_lexer = lru_cache(maxsize=16)(_Lexer)


def _csv_rows(data: bytes, names: Sequence[str] | None, schema: pa.Schema | None, delimiter: str) -> pa.Table:
    return pa.csv.read_csv(
        pa.BufferReader(data),
        pa.csv.ReadOptions(
            use_threads=False,
            block_size=len(data) + 1,
            column_names=names,
            autogenerate_column_names=False,
        ),
        pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pa.csv.ConvertOptions(
            column_types=schema,
            include_columns=schema.names if schema is not None else None,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _header(record: bytes, delimiter: str) -> tuple[str, ...]:
    try:
        # with an end, which the last line of a file may lack
        return tuple(_csv_rows(record + b"\n", None, None, delimiter).column_names)
    except FAULTS as error:
        raise SchemaError(f"its header cannot be read: {error}") from error


# --- schemas that are inferred ------------------------------------------------------------------------------


def inferred_schema(kind: str, sample: bytes, *, delimiter: str, header: bool) -> pa.Schema:
    """Return the columns of the records at the beginning of a file, with types that a schema can name. Raises
    SchemaError.
    """
    sample = sample.removeprefix(BYTE_ORDER_MARK)
    try:
        if kind == "json":
            _check_objects(sample)
            found = _with_large(_json_rows(sample, None).schema, lambda _: _json_texts(sample))
        elif header:
            found = _csv_rows(sample, None, None, delimiter).schema
            found = _with_large(found, lambda columns: _csv_texts(sample, columns, delimiter))
        else:
            raise SchemaError("a file without a header does not name its columns")
        # A time without a zone is UTC for pyarrow in JSON, and a time without a zone in CSV.
        return nameable_schema(found, utc=kind == "json")
    except FAULTS as error:  # also for a name that is not UTF-8
        raise SchemaError(f"its first {len(sample)} bytes do not have one schema: {error}") from error


def _with_large(found: pa.Schema, texts_of: Callable[[pa.Schema], Mapping[str, Sequence[str]]]) -> pa.Schema:
    """Return the schema with decimals for columns of integers that exceed 64 bits, of which pyarrow infers
    doubles, which would round them. texts_of: returns the numbers of columns.
    """
    doubles = pa.schema([(one.name, pa.string()) for one in found if pa.types.is_float64(one.type)])
    texts = texts_of(doubles) if len(doubles) else {}
    large = [
        name for name in doubles.names if (all_ := texts.get(name)) and all(map(_INTEGER.fullmatch, all_))
    ]
    for name in large:
        if any(len(text.lstrip("-0")) > _DIGITS_MAX for text in texts[name]):
            raise SchemaError(f"its column {name!r} has integers of more than {_DIGITS_MAX} digits")
    kinds = {name: pa.decimal128(_DIGITS_MAX, 0) for name in large}
    return pa.schema([(one.name, kinds.get(one.name, one.type)) for one in found])


def _csv_texts(sample: bytes, columns: pa.Schema, delimiter: str) -> Mapping[str, Sequence[str]]:
    table = _csv_rows(sample, None, columns, delimiter)
    return {name: table.column(name).drop_null().to_pylist() for name in columns.names}


def _json_texts(sample: bytes) -> Mapping[str, Sequence[str]]:
    texts: dict[str, list[str]] = {}
    for line in filter(bytes.strip, sample.split(b"\n")):
        try:
            values = json.loads(line, parse_int=_Number, parse_float=_Number)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"its line {line[:80]!r} is not one object: {error}") from error
        for name, value in values.items():
            if isinstance(value, _Number):
                texts.setdefault(name, []).append(value)
    return texts


class _Number(str):
    """The text of a number."""


def nameable_schema(found: pa.Schema, *, utc: bool = False) -> pa.Schema:
    """Return a schema with types that DDL names. utc: times without a zone are UTC. Raises SchemaError for a
    type for which there is none.
    """
    schema = check_schema(pa.schema([(field.name, _nameable(field.type, utc=utc)) for field in found]))
    for field in schema:
        try:
            parse_schema(schema_text(pa.schema([field])))
        except SchemaError:
            raise SchemaError(
                f"its column {field.name!r} has the type {field.type}, which no schema names"
            ) from None
    return schema


def _check_objects(sample: bytes) -> None:
    empty = JsonFormat(pa.schema([]))
    if bad := [line for line in sample.split(b"\n") if empty.fault(line)]:
        raise SchemaError(f"its line {bad[0][:80]!r} is not an object: JSON has one in each line")


_INTEGER: Final = re.compile("-?[0-9]+")
_DIGITS_MAX: Final = 38
"""Of decimals of Spark."""
_NAMEABLE: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[], pa.DataType]]]] = (
    *((is_kind, pa.string) for is_kind in (pa.types.is_null, pa.types.is_time)),  # read as text
    *((is_kind, pa.string) for is_kind in (pa.types.is_large_string, pa.types.is_string_view)),
    *((is_kind, pa.binary) for is_kind in (pa.types.is_large_binary, pa.types.is_binary_view)),
    (pa.types.is_fixed_size_binary, pa.binary),
    (pa.types.is_uint8, pa.int16),
    (pa.types.is_uint16, pa.int32),
    (pa.types.is_uint32, pa.int64),
    (pa.types.is_uint64, lambda: pa.decimal128(20, 0)),
    (pa.types.is_float16, pa.float32),
    (pa.types.is_date64, pa.date32),
)


def _nameable(kind: pa.DataType, *, utc: bool) -> pa.DataType:
    """Return the type of DDL for one that pyarrow inferred."""
    for is_kind, made in _NAMEABLE:
        if is_kind(kind):
            return made()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz or utc else None)
    if isinstance(kind, pa.BaseExtensionType):
        return _nameable(kind.storage_type, utc=utc)
    if pa.types.is_dictionary(kind):
        return _nameable(kind.value_type, utc=utc)
    if pa.types.is_decimal(kind) and kind.precision <= _DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    return _nameable_nested(kind, utc=utc)


def _nameable_nested(kind: pa.DataType, *, utc: bool) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_nameable(kind.value_type, utc=utc))
    if pa.types.is_map(kind):
        return pa.map_(_nameable(kind.key_type, utc=utc), _nameable(kind.item_type, utc=utc))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _nameable(field.type, utc=utc)) for field in kind])
    return kind
