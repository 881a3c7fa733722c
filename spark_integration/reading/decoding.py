"""Rows from bytes: decodes each kind of content into record batches, and shapes these as Spark expects.

Nothing here opens a store; the caller passes the chunks in. A column whose type differs from the requested
one is an error that names the column; nothing is converted silently.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.json as pajson

from checkpoint import InputSequence, decode_output, decode_part
from journal import Op, RecordDecoder
from spark_integration.core.framing import (
    END_OF_STREAM,
    PREFIX_BYTES,
    ArrowMessages,
    MessageKind,
    PrefixFramer,
)
from spark_integration.core.options import ObjectContent, SourceOptions
from spark_integration.core.row_filter import ColumnCondition, check_filter, passing
from spark_integration.errors import NotReadableError, SchemaMismatchError, nearest, type_text
from spark_integration.limits import BATCH_BYTES, BATCH_ROWS, BATCH_ROWS_ALONE
from spark_integration.reading.origin import ByteRange

if TYPE_CHECKING:
    from dataflow.values.schema_fit import SchemaFit


def chosen(existing: pa.Schema, extra: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the columns of a DataFrame: those of the data, or those named, where `*` stands for all of
    these. Raises SchemaMismatchError for a name that is neither in the data nor in `extra`.
    """
    if not columns:
        return existing
    names = [name for column in columns for name in (existing.names if column == "*" else [column])]
    every = pa.schema([*existing, *(field for field in extra if field.name not in existing.names)])
    for name in names:
        if name not in every.names:
            raise SchemaMismatchError(
                f"the option 'columns' names {name!r}{nearest(name, every.names)};"
                f" the columns are {', '.join(existing.names)}, and {', '.join(extra.names)}"
            )
    return pa.schema([every.field(name) for name in dict.fromkeys(names)])


def check_columns(wanted: pa.Schema, existing: pa.Schema, source: str) -> None:
    """Check that rows with the columns `existing` can be returned as `wanted`. Raises SchemaMismatchError."""
    for field in wanted:
        if field.name not in existing.names:
            raise SchemaMismatchError(
                f"column {field.name!r} ({type_text(field.type)}) was requested, but {source} has"
                f" no such column{nearest(field.name, existing.names)}; it has {_listed(existing)}"
            )
        existing_type = existing.field(field.name).type
        if not existing_type.equals(field.type) and type_text(existing_type) != type_text(field.type):
            raise SchemaMismatchError(
                f"column {field.name!r} was requested as {type_text(field.type)}, but in {source} it is"
                f" {type_text(existing_type)}",
                remedy="omit .schema(...), or give the type of the data and cast it in Spark",
            )


def fit_to(
    wanted: pa.Schema,
    comparisons: Sequence[ColumnCondition],
    existing: pa.Schema,
    source: str,
    *,
    of_output: bool = False,
) -> "SchemaFit | None":
    """Return how rows of an input handle or an output with the columns `existing` fit those that a DataFrame
    has and a filter compares; None if they need no change but the choice of columns. Raises
    SchemaMismatchError.
    """
    if of_output and {*wanted.names} <= {*existing.names}:
        return None  # one graph writes it: only columns that it gained later are missing in some rows
    if all(
        field.name in existing.names
        and existing.field(field.name).type.equals(field.type)
        and (field.nullable or not existing.field(field.name).nullable)
        for field in wanted
    ):
        return None
    from dataflow.values.schema_fit import FitRule, Misfit, fit_of  # late, as in `errors.nearest`

    # the name of a column that describes the origin is no new column of the data
    origin = [field for field in wanted if field.name.startswith("_") and field.name not in existing.names]
    check_columns(pa.schema(origin), existing, source)
    names = dict.fromkeys(one.column for one in comparisons)
    more = [existing.field(one) for one in names if one not in wanted.names and one in existing.names]
    fit = fit_of(pa.schema([*wanted, *more]), existing)
    if isinstance(fit, Misfit):
        if of_output and fit.rule is not FitRule.RENAMED:
            check_columns(wanted, existing, source)
        unknown = [field.name for field in wanted if field.name not in existing.names]
        meant = nearest(unknown[0], existing.names) if unknown else ""
        text = f"{source} has rows with {_listed(existing)}: {fit}{meant}"
        raise SchemaMismatchError(text, remedy=fit.remedy)
    return fit


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {type_text(field.type)}" for field in schema)


class BatchShaper:
    """Shapes the batches of one task. `wanted`: exactly the columns that Spark expects, in order. fits: rows
    of older and newer writers are fitted to them. of_output: those of older and newer graphs.
    """

    def __init__(
        self,
        wanted: pa.Schema,
        comparisons: Sequence[ColumnCondition],
        source: str,
        *,
        fits: bool = False,
        of_output: bool = False,
    ) -> None:
        self.wanted = wanted
        self._fits = fits or of_output
        self._of_output = of_output
        self._fit: SchemaFit | None = None
        self._comparisons = tuple(comparisons)
        self._source = source
        self._checked: pa.Schema | None = None

    def shape(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Filter rows, select columns, merge small batches. Raises SchemaMismatchError, BadOptionError."""
        buffered: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            one = self._shape_one(batch)
            if not one.num_rows:
                continue
            if one.num_rows >= BATCH_ROWS_ALONE:
                yield from self._merged(buffered)
                yield one
                buffered, rows, size = [], 0, 0
                continue
            buffered.append(one)
            rows, size = rows + one.num_rows, size + one.nbytes
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._merged(buffered)
                buffered, rows, size = [], 0, 0
        yield from self._merged(buffered)

    def _shape_one(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._checked is None or not self._checked.equals(batch.schema):
            self._check(batch.schema)
        batch = self._fit.fitted(batch) if self._fit is not None else batch
        batch = passing(batch, self._comparisons)
        columns = [_as(batch.column(field.name), field.type) for field in self.wanted]
        return pa.RecordBatch.from_arrays(columns, schema=self.wanted)

    def _check(self, existing: pa.Schema) -> None:
        if self._fits:
            self._fit = fit_to(
                self.wanted, self._comparisons, existing, self._source, of_output=self._of_output
            )
        if self._fit is None:
            check_columns(self.wanted, existing, self._source)
        check_filter(self._comparisons, existing if self._fit is None else self._fit.declared)
        self._checked = existing

    def _merged(self, buffered: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if len(buffered) == 1:
            yield buffered[0]
        elif buffered:
            yield from pa.Table.from_batches(buffered).combine_chunks().to_batches()


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


LINES: Final = pa.schema([("value", pa.string())])
PREFIXED: Final = pa.schema([("value", pa.binary())])
JOURNAL: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("op", pa.string()),
        ("ints", pa.list_(pa.int64())),
        ("strings", pa.list_(pa.binary())),
    ]
)
_PLAIN: Final = {
    ObjectContent.LINES: LINES,
    ObjectContent.LENGTH_PREFIXED: PREFIXED,
    ObjectContent.JOURNAL: JOURNAL,
}


def schema_in(data: bytes, options: SourceOptions, split: str) -> pa.Schema:
    """Return the columns of the first rows, of which `data` is the beginning. Raises NotReadableError."""
    if options.content is None or options.content is ObjectContent.ARROW:
        try:
            with pa.ipc.open_stream(data) as reader:
                return reader.schema
        except pa.ArrowInvalid as error:
            raise NotReadableError(f"{options.what}, {split}: not an Arrow stream: {error}") from error
    if options.content is ObjectContent.JSON:
        return _json_schema(data, f"{options.directory}/{split}")
    return _PLAIN[options.content]


def _json_schema(data: bytes, name: str) -> pa.Schema:
    """Infer the columns from some lines; a field that is null in all of them becomes a string."""
    try:
        found = pajson.read_json(io.BytesIO(data)).schema
    except pa.ArrowInvalid as error:
        raise NotReadableError(f"{name} is not JSON lines: {error}") from error
    return pa.schema([(field.name, _spark_type(field.type)) for field in found])


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind) or pa.types.is_temporal(kind):
        return pa.string()  # JSON has no type for times: what looks like one stays text
    if pa.types.is_list(kind):
        return pa.list_(_spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _spark_type(field.type)) for field in kind])
    return kind


class Decoder(ABC):
    """The decoder of one range. It takes the range's bytes in order."""

    @abstractmethod
    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are now complete."""

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows after all bytes were fed."""
        yield from ()


def decoder_of(
    options: SourceOptions, split: str, part: ByteRange, names: frozenset[str], wanted: pa.Schema
) -> Decoder:
    """Return the decoder for a range. `names`: all columns in use; `wanted`: the columns of the result."""
    extra = frozenset(name for name in names if name.startswith("_"))
    if options.output is not None:
        return OutputDecoder(split, part, extra)
    if options.input is not None:
        return InputDecoder(split, part, extra)
    assert options.content is not None, "exactly one of output, input and content is set"
    return _OBJECTS[options.content](part, extra, wanted)


def arrow_batches(data: bytes, name: str) -> list[pa.RecordBatch]:
    """Return the batches of a complete Arrow stream. Raises NotReadableError."""
    try:
        with pa.ipc.open_stream(data) as reader:
            return list(reader)
    except (pa.ArrowInvalid, OSError) as error:
        raise NotReadableError(f"{name} is not an Arrow stream: {error}") from error


def _with(
    batch: pa.RecordBatch, extra: frozenset[str], values: dict[str, Any], types: dict[str, pa.DataType]
) -> Any:
    for name, value in values.items():
        if name in extra and name not in batch.schema.names:
            column = pa.repeat(pa.scalar(value, types[name]), batch.num_rows)
            batch = batch.append_column(pa.field(name, types[name]), column)
    return batch


_TYPES: Final = {
    "_split": pa.string(),
    "_step": pa.int64(),
    "_batch": pa.int64(),
    "_written": pa.timestamp("us", "UTC"),
    "_object": pa.string(),
}


class ChainDecoder(Decoder):
    """Records of a chain."""

    def __init__(self, split: str, part: ByteRange, extra: frozenset[str]) -> None:
        self._split, self._part, self._extra = split, part, extra
        self._name = f"{part.directory}/{part.object}"
        self._records = RecordDecoder(where=self._name, offset=part.begin)

    def finish(self) -> Iterator[pa.RecordBatch]:
        torn = self._records.finish()
        if torn is not None and not self._part.at_head:
            raise torn
        yield from ()


class OutputDecoder(ChainDecoder):
    """Records of an output log."""

    def __init__(self, split: str, part: ByteRange, extra: frozenset[str]) -> None:
        super().__init__(split, part, extra)
        self._covered, self._line = part.above or (part.end, 0)

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        for end, record in self._records.feed(data):
            if record.op is not Op.OUTPUT:
                continue
            output = decode_output(record.ints, record.strings, where=self._name, at=end)
            if end > self._covered and output.head.line != self._line:
                continue  # a restore has taken it back: the checkpoint covers only what is below
            origin = {"_split": self._split, "_step": output.step, "_written": output.time_ms * 1000}
            if output.rows:
                for batch in arrow_batches(output.data, f"step {output.step} of {self._name}"):
                    yield _with(batch, self._extra, origin, _TYPES)


class InputDecoder(ChainDecoder):
    """Records of a producer's chain: the batches that are complete within the range."""

    def __init__(self, split: str, part: ByteRange, extra: frozenset[str]) -> None:
        super().__init__(split, part, extra)
        self._base, self._at = part.base, part.base + part.begin
        self._line = InputSequence(split, at=self._at, digest=None, where=self._name, bytes_max=1 << 62)

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        for end, record in self._records.feed(data):
            begin, self._at = self._at, self._base + end
            if record.op is not Op.INPUT:
                continue
            part = decode_part(record.ints, record.strings, where=self._name, at=end)
            pieces = self._line.add(part, begin, self._at)
            assert isinstance(pieces, list), "there is no size limit here"
            origin = {"_split": self._split, "_batch": part.batch, "_written": part.time_ms * 1000}
            for piece in pieces:
                for batch in arrow_batches(piece.data, f"{self._name}, {piece.begin} to {piece.end}"):
                    yield _with(batch, self._extra, origin, _TYPES)


class ObjectDecoder(Decoder):
    """A range of an object that is not part of a chain. Complete records become rows, one chunk at a time."""

    def __init__(self, part: ByteRange, extra: frozenset[str], wanted: pa.Schema) -> None:
        self.object_path = f"{part.directory}/{part.object}"
        self.wanted = wanted
        self._object, self._extra = part.object, extra
        self.at = part.begin
        self._rest = b""

    def with_origin(self, batch: pa.RecordBatch, offsets: Sequence[int] | None = None) -> pa.RecordBatch:
        batch = _with(batch, self._extra, {"_object": self._object}, _TYPES)
        if "_offset" in self._extra and offsets is not None:
            batch = batch.append_column(pa.field("_offset", pa.int64()), pa.array(offsets, pa.int64()))
        return batch

    @property
    def wants_offsets(self) -> bool:
        return "_offset" in self._extra


class LinesDecoder(ObjectDecoder):
    """UTF-8 text, one row per line. The last line of a batch may lack its newline."""

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        buffered = self._rest + data
        end = buffered.rfind(b"\n") + 1
        self._rest = buffered[end:]
        if end:
            yield self._rows(buffered[:end])
            self.at += end

    def finish(self) -> Iterator[pa.RecordBatch]:
        if self._rest:
            yield self._rows(self._rest)

    def _rows(self, data: bytes) -> pa.RecordBatch:
        lines = data.removesuffix(b"\n").split(b"\n")
        try:
            text = pa.array(lines, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid as error:
            raise NotReadableError(
                f"{self.object_path} is not UTF-8 between bytes {self.at} and {self.at + len(data)}: {error}"
            ) from error
        if b"\r" in data:
            text = pa.compute.replace_substring_regex(text, r"\r\z", "")
        offsets = self._offsets(lines) if self.wants_offsets else None
        return self.with_origin(pa.RecordBatch.from_arrays([text], schema=LINES), offsets)

    def _offsets(self, lines: list[bytes]) -> list[int]:
        offsets, at = [], self.at
        for line in lines:
            offsets.append(at)
            at += len(line) + 1
        return offsets


class JsonDecoder(LinesDecoder):
    """One JSON object per line. Fields that are not requested are ignored."""

    def _rows(self, data: bytes) -> pa.RecordBatch:
        names = [field for field in self.wanted if field.name not in self._extra]
        options = pajson.ParseOptions(explicit_schema=pa.schema(names), unexpected_field_behavior="ignore")
        try:
            table = pajson.read_json(io.BytesIO(data), parse_options=options)
        except pa.ArrowInvalid as error:
            raise NotReadableError(
                f"{self.object_path}, bytes {self.at} to {self.at + len(data)},"
                f" is not JSON lines with these columns: {error}"
            ) from error
        batches = table.combine_chunks().to_batches()
        batch = batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
        if not self.wants_offsets:
            return self.with_origin(batch)
        offsets = self._offsets(data.removesuffix(b"\n").split(b"\n"))
        return self.with_origin(batch, offsets if len(offsets) == batch.num_rows else None)


class PrefixedDecoder(ObjectDecoder):
    """One row per length-prefixed record (`core/framing`)."""

    def __init__(self, part: ByteRange, extra: frozenset[str], wanted: pa.Schema) -> None:
        super().__init__(part, extra, wanted)
        self._framer = PrefixFramer(self.object_path, part.begin)

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        buffered = self._rest + data
        values, offsets, begin = [], [], self.at
        for end in self._framer.feed(data):
            values.append(buffered[self.at - begin + PREFIX_BYTES : end - begin])
            offsets.append(self.at)
            self.at = end
        self._rest = buffered[self.at - begin :]
        if values:
            batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=PREFIXED)
            yield self.with_origin(batch, offsets)


class JournalDecoder(ObjectDecoder):
    """One row per record of a journal file or segment."""

    def __init__(self, part: ByteRange, extra: frozenset[str], wanted: pa.Schema) -> None:
        super().__init__(part, extra, wanted)
        self._records = RecordDecoder(None, where=self.object_path, offset=part.begin)

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        decoded = self._records.feed(data)
        if not decoded:
            return
        begins = [self.at, *(end for end, _ in decoded[:-1])]
        self.at = decoded[-1][0]
        records = [record for _, record in decoded]
        columns = [
            pa.array(begins, pa.int64()),
            pa.array([record.op.name for record in records], pa.string()),
            pa.array([signed(record.ints) for record in records], pa.list_(pa.int64())),
            pa.array([list(map(bytes, record.strings)) for record in records], pa.list_(pa.binary())),
        ]
        yield self.with_origin(pa.RecordBatch.from_arrays(columns, schema=JOURNAL), begins)


def signed(ints: Sequence[int]) -> list[int]:
    """Convert to signed integers, because Spark has no unsigned 64-bit type; large values keep their bits."""
    return [one - (1 << 64) if one >> 63 else one for one in ints]


class ArrowDecoder(ObjectDecoder):
    """Complete batches of consecutive Arrow IPC streams; an incomplete one at the end is ignored."""

    def __init__(self, part: ByteRange, extra: frozenset[str], wanted: pa.Schema) -> None:
        super().__init__(part, extra, wanted)
        self._messages = ArrowMessages(self.object_path, part.begin)
        self._bytes = bytearray()
        self._head = b""
        """The schema message of the stream and its dictionaries so far."""
        self._waiting: list[tuple[MessageKind, bytes]] = []

    def feed(self, data: bytes) -> Iterator[pa.RecordBatch]:
        self._bytes += data
        for message in self._messages.feed(data):
            size = message.end - message.begin
            piece, self.at = bytes(self._bytes[:size]), message.begin
            del self._bytes[:size]
            if message.kind in (MessageKind.SCHEMA, MessageKind.END):
                yield from self._flushed()
                self._head = piece if message.kind is MessageKind.SCHEMA else b""
            else:
                self._waiting.append((message.kind, piece))
        yield from self._flushed()

    def _flushed(self) -> Iterator[pa.RecordBatch]:
        waiting, self._waiting = self._waiting, []
        if any(kind is MessageKind.BATCH for kind, _ in waiting):
            stream = b"".join([self._head, *(piece for _, piece in waiting), END_OF_STREAM])
            for batch in arrow_batches(stream, f"{self.object_path}, up to byte {self.at}"):
                yield self.with_origin(batch)
        self._head += b"".join(piece for kind, piece in waiting if kind is MessageKind.DICTIONARY)


_OBJECTS: Final[dict[ObjectContent, type[ObjectDecoder]]] = {
    ObjectContent.LINES: LinesDecoder,
    ObjectContent.JSON: JsonDecoder,
    ObjectContent.LENGTH_PREFIXED: PrefixedDecoder,
    ObjectContent.JOURNAL: JournalDecoder,
    ObjectContent.ARROW: ArrowDecoder,
}
