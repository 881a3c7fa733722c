"""Files, and objects of a bucket, as a source: one row per line, column `line`, or per record of a format.

`FileReader` decides which bytes a step reads and verifies that a replay reads the same. Its two forms decide
the splits and their order:

- `ListReader`: a fixed list. A split is one file in one pass. File f of pass p belongs to worker (f + p) mod
  workers, so that passes balance out files of unequal size. A worker reads one split after the other.
- `WatchReader`: files that are added and grow. A split is a file, named by its path, whose hash determines
  its worker. Files are read in turns, each at most once per step, so a busy file does not delay the others.
"""

import os
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar, get_args

import pyarrow as pa

from checkpoint import SplitPosition
from dataflow import limits
from dataflow.core.event_time import SourceTime, Watermark
from dataflow.core.file_digest import FileDigest, Verify, check_verify, resumed
from dataflow.core.partitions import PartitionBy, PathColumns, columns_in_files, partition_columns
from dataflow.errors import (
    InputChangedError,
    InputGoneError,
    InputListChangedError,
    InputReadError,
    SchemaError,
)
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.operators.event_time import RememberedCount, check_choice
from dataflow.schema import parse_schema
from dataflow.sources import base
from dataflow.sources.formats import (
    BAD_PORT,
    BAD_SCHEMA,
    NO_HEAD,
    CsvFormat,
    Format,
    Head,
    JsonFormat,
    OnBad,
    RecordFormat,
    check_delimiter,
    csv_lexer,
    end_of_lines,
    inferred_schema,
    nameable_schema,
)
from dataflow.sources.input_files import (
    COMPRESSED,
    DecompressedBytes,
    FileBytes,
    FilePart,
    FileSeen,
    InputFiles,
    OpenInputs,
    Paths,
    PlainBytes,
    WatchedFiles,
    check_version,
    decompressed,
    end_path,
    input_files,
    input_paths,
    is_url,
    open_regular,
    part_of_name,
)
from dataflow.sources.lines import (
    LINE_SCHEMA,
    Errors,
    LineChunks,
    RecordChunks,
    SplitChunk,
    check_errors,
    position_text,
    replay_lines,
    whole_lines,
)
from dataflow.sources.row_groups import GroupFormat, group_head, is_complete
from dos_protocol.digests import digest64
from dos_protocol.errors import DosError

Batches = TypeVar("Batches")
Gone: TypeAlias = Literal["stop", "forget"]

DONE_LATER: Final = ">"
"""Begins the key whose rest names the splits that are done although one before them is not."""
_BEGINNING: Final = SplitPosition(0)
_read_bytes_min: Final = 4 * limits.KIB
"""Minimum number of bytes per read, even if less room is left in the batch: avoids very small reads."""
_mark_bytes: Final = 4 * limits.KIB
_head_bytes: Final = 4 * limits.KIB
_files_open_max: Final = 256
_splits_started_max: Final = 10_000
"""Splits of a list read by time at once; a checkpoint holds the position of each, and event time waits for
the others.
"""
_LOST: Final = "bad_rows_dropped"
_HEAD_REMEDY: Final = (
    "remove or repair the file, or pass another format=, or name columns that each file has in schema="
)
_CSV_REMEDY: Final = (
    f"{_HEAD_REMEDY}; for CSV without a header, pass header=False; with another separator, delimiter="
)
_splits_counted_max: Final = 10_000
"""Splits of a worker's list that are visited to count what is unread: some milliseconds per second."""


@dataclass(frozen=True, slots=True, init=False)
class FileSource(base.SourceSpec):
    """Reads files: text, one row per line (column `line`), or records of a format, one row each. Every worker
    must see them under the same paths.

        FileSource(["a.txt", "b.txt.gz"], repeat=2)
        FileSource("logs", watch=True, until="logs/END")
        FileSource("orders.csv", format="csv", schema="id bigint, item string", on_bad="side")

    format: "text"; "json", an object per line; "csv", with quotes by RFC 4180; "parquet" and "arrow" (files
    and streams), in which a reset returns to the beginning of a row group. schema: the columns of a format,
    found in the files by name; None infers them from the first file, which must have a row then. on_bad: what
    becomes of a record that is no row of the schema: "error" stops the region, "drop" counts it, "side" is
    the side output "bad" (file,
    line, byte, reason, data). delimiter, header: of CSV; without a header, columns are found by their order.

    paths: one path, pattern (`logs/**/*.log`) or URL of objects in a bucket (`s3://bucket/logs/*.txt`), or a
    list of them. Patterns are resolved when the source is created, in sorted order; each file is read
    `repeat` times.

    watch: also read files that are added later, and lines that are appended. A path may then be a directory
    or the prefix of a bucket. Names that begin with . or _ are skipped: write a file as _name and rename it
    when complete. The source ends when the path `until` exists and all files are read. poll_s: seconds
    between two listings, by default 1, and 10 for a bucket. gone: what to do if a file no longer exists,
    "stop" the region, or "forget" the file; with "forget", a file may be removed once a checkpoint covers it.

    Files whose names end with .gz, .bz2 or .zst are decompressed, and positions refer to the decompressed
    content. local: True confirms that a run on a cluster may use these paths, because all hosts have the same
    files. errors: of bytes of text that are not UTF-8, "strict" (stop) or "replace" (by U+FFFD). verify: how
    much of a file that is being read a reset verifies, "tail" (the last 64 KiB before the position, in the
    same time for any size) or "whole". endpoint: the URL of a bucket's service other than AWS. With
    trigger="operator" it requests a checkpoint after it has read a file to its end.

    Raises SchemaError, also for a watched directory that does not exist; BadUrlError; for a pattern of
    objects InputReadError, InputUnavailableError.
    """

    paths: tuple[str, ...]
    pieces: tuple[str, ...]
    """The names of `FilePart`s: the files of `paths`, a large one of row groups in parts."""
    repeat: int
    patterns: tuple[WatchedFiles, ...]
    """What is watched; empty for a fixed list."""
    until: str | None
    poll_s: float
    gone: Gone
    errors: Errors
    local: bool
    verify: Verify
    endpoint: str | None
    records: RecordFormat | GroupFormat | None
    """How records become rows; None for text."""
    on_bad: OnBad
    sizes: tuple[int | None, ...] = ()
    """Of `paths` that are objects, if a listing told any; None: not known."""
    in_path: PathColumns | None = None
    """The columns that are in the paths of files."""

    def __init__(
        self,
        paths: Paths,
        repeat: int = 1,
        *,
        watch: bool = False,
        until: "str | os.PathLike[str] | None" = None,
        poll_s: float | None = None,
        gone: Gone = "stop",
        errors: Errors = "strict",
        local: bool = False,
        verify: Verify = "tail",
        endpoint: str | None = None,
        format: Format = "text",  # noqa: A002 - as Spark's reader names it
        schema: "str | pa.Schema | None" = None,
        on_bad: OnBad = "error",
        delimiter: str | None = None,
        header: bool | None = None,
        partition_by: PartitionBy = (),
    ) -> None:
        given, endpoint = input_paths(paths, endpoint)
        if not given:
            raise SchemaError("a FileSource needs at least one file, directory or pattern: none was given")
        if not isinstance(repeat, int) or repeat < 1 or (watch and repeat > 1):
            raise SchemaError(
                f"repeat must be an integer of 1 or more, and 1 with watch=True, not {repeat!r}"
            )
        if not watch and (until is not None or poll_s is not None or gone != "stop"):
            raise SchemaError("until, poll_s and gone are about files that come and go; pass watch=True too")
        check_errors(errors)
        check_verify(verify)
        check_choice(format, get_args(Format), "format")
        check_choice(on_bad, get_args(OnBad), "on_bad")
        _check_options(format, schema, errors, on_bad, delimiter, header)
        files = input_files(given[0], endpoint)
        if poll_s is None:
            poll_s = limits.object_poll_s if files.versioned else 1.0
        if not poll_s > 0:
            raise SchemaError(f"poll_s must be a number of seconds above 0, not {poll_s!r}")
        if gone not in ("stop", "forget"):
            raise SchemaError(f"gone must be 'stop' or 'forget', not {gone!r}")
        expanded = () if watch else _expanded(files.expand(given), given)
        patterns = tuple(map(files.watched, given)) if watch else ()
        end = None if until is None else end_path(until, given[0])
        sizes = tuple(map(files.size_listed, expanded))
        set_fields(self, sizes=sizes if any(sizes) else (), in_path=None)
        set_fields(self, paths=expanded, repeat=repeat, patterns=patterns, until=end, poll_s=poll_s)
        set_fields(self, gone=gone, errors=errors, local=local, verify=verify, endpoint=endpoint)
        records: RecordFormat | GroupFormat | None = None
        by, columns = partition_columns(partition_by), LINE_SCHEMA
        if schema is not None:
            columns = parse_schema(schema)
        elif format != "text":
            delimiter, header = delimiter or ",", header is None or header
            found = list(files.listing(patterns)) if watch else expanded
            columns = _inferred(files, found, format, delimiter, header=header)
        if by:
            columns = self._divide(columns, by, given=schema is not None)
        if format != "text":
            delimiter, header = delimiter or ",", header is None or header
            if format == "parquet" or format == "arrow":
                records = GroupFormat(columns, format)
            else:
                records = JsonFormat(columns) if format == "json" else CsvFormat(columns, delimiter, header)
        pieces = [part.name for path in expanded for part in _parts_of(files, path, None, records)]
        set_fields(self, records=records, on_bad=on_bad, pieces=tuple(pieces))

    def _divide(self, columns: pa.Schema, by: tuple[str, ...], *, given: bool) -> pa.Schema:
        """Note that the columns `by` are in the paths, and return the others. Raises SchemaError."""
        if not given:  # a string is what each name is: one that comes later may be no number
            others = [field for field in columns if field.name not in by]
            columns = pa.schema([*others, *(pa.field(name, pa.string()) for name in by)])
        in_files, in_path = columns_in_files(columns, by), PathColumns(columns, by)
        for path in self.paths:
            _values_in(path, in_path, SchemaError)
        set_fields(self, in_path=in_path)
        return in_files

    @property
    def place(self) -> str:
        """Its first path, or the directory or prefix that is watched first."""
        return self.patterns[0].root if self.patterns else self.paths[0]

    @property
    def can_trigger(self) -> bool:
        return True

    def host_path(self) -> str:
        return "" if self.local or is_url(self.place) else self.place

    def check_access(self) -> None:
        input_files(self.place, self.endpoint).check_access(self.place)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        if self.in_path is not None:
            return self.in_path.schema
        return LINE_SCHEMA if self.records is None else self.records.schema

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        del inputs
        return {BAD_PORT: BAD_SCHEMA} if self.on_bad == "side" else {}

    def detail(self) -> str:
        # A list may become longer, and other directories may be watched, too: it begins with the same one.
        watches = "watches " if self.patterns else ""
        records = "" if self.records is None else f" as {self.records.name}"
        by = "" if self.in_path is None else f" partition_by {', '.join(self.in_path.by)}"
        return f"FileSource {watches}{self.place}{records}{by}"

    def open(self, context: OperatorContext) -> "FileReader":
        return reader_of(self, context.worker, context.workers, stop_after_file=context.triggers_checkpoints)

    def redeal(self, positions: Sequence[base.Positions], worker: int, workers: int) -> base.Positions:
        if self.patterns:
            return base.own_positions(positions, lambda path: base.owner_by_name(path, workers) == worker)
        done: set[str] = set()
        reading: base.Positions = {}
        for place, at in enumerate(positions):
            ended, begun = ListReader(self, place, len(positions)).begin_at(at)
            done |= ended
            reading |= begun
        return ListReader(self, worker, workers).take_over(done, reading)

    def splits_of(self, worker: int, workers: int) -> Iterator[tuple[str, str]]:
        """Yield (split, path) of one worker, in the order in which it reads them. For a fixed list."""
        for index in range(self.repeat):
            for number in range((worker - index) % workers, len(self.pieces), workers):
                piece = self.pieces[number]
                yield f"{index}:{piece}", part_of_name(piece).path


def _check_options(
    kind: Format, schema: object, errors: Errors, on_bad: OnBad, delimiter: str | None, header: bool | None
) -> None:
    if kind == "text" and (schema is not None or on_bad != "error"):
        raise SchemaError(
            'schema and on_bad are for records; pass format="json", "csv", "parquet" or "arrow" too'
        )
    if kind != "csv" and (delimiter, header) != (None, None):
        raise SchemaError('delimiter and header are for format="csv"')
    if delimiter is not None:
        check_delimiter(delimiter)
    if kind != "text" and errors != "strict":
        raise SchemaError('errors="replace" is for format="text"; on_bad is the rule for records')


def _inferred(
    files: InputFiles, paths: Sequence[str], kind: Format, delimiter: str, *, header: bool
) -> pa.Schema:
    """Return the columns of the first file that has a record. Raises SchemaError."""
    # In every checkpoint, as columns of the source: another run that infers other ones is refused.
    end_of = csv_lexer(delimiter).whole if kind == "csv" else end_of_lines
    for path in paths:
        try:
            file = files.open(path)
            try:
                if kind == "parquet" or kind == "arrow":
                    footer = group_head(kind, _size_of_open(file, path), file.read).footer
                    assert footer is not None
                    return nameable_schema(footer.schema)
                sample, rest, _ = whole_lines(file, path, 0, limits.infer_bytes, end_of)
            finally:
                file.close()
            if (sample + rest).strip():
                return inferred_schema(kind, sample + rest, delimiter=delimiter, header=header)
        except (SchemaError, InputReadError) as error:
            text = f"no schema can be inferred from {path!r}: {error.args[0]}"
            remedy = f"{_SCHEMA_REMEDY}; or remove or repair the file, or pass another format="
            raise SchemaError(text, remedy=remedy) from error
    raise SchemaError("no schema can be inferred, because no file has a row yet", remedy=_SCHEMA_REMEDY)


def _size_of_open(file: FileBytes, path: str) -> int:
    """Return the size of a file of row groups. Raises SchemaError if it is compressed as a whole."""
    if file.size() is None:
        file.read(0, 1)  # the first answer of a bucket has the size
    size = file.size()
    if size is None:
        raise SchemaError(
            f"{path!r} is compressed as a whole, and files of row groups are read from any of them"
        )
    return size


_SCHEMA_REMEDY: Final = "pass the columns, as in schema='id bigint, item string'"


def _parts_of(
    files: InputFiles, path: str, seen: FileSeen | None, records: RecordFormat | GroupFormat | None
) -> list[FilePart]:
    """Return the parts of a file that several workers may read. seen: its status if it was listed. Raises
    InputReadError, InputUnavailableError.
    """
    if not isinstance(records, GroupFormat) or path.endswith(COMPRESSED):
        return [FilePart(path)]
    seen = seen or files.examine(path)
    count = 1 if seen is None else -(-seen.size // limits.file_part_bytes)
    if seen is None or count <= 1:
        return [FilePart(path)]
    mark = digest64(seen.identity.encode()) if isinstance(seen.identity, str) else _mark_of(path)
    return [FilePart(path, number, count, mark) for number in range(count)]


def _values_in(path: str, columns: PathColumns, error_type: type[DosError]) -> tuple[pa.Scalar, ...]:
    """Return the values of the columns that are in the path of a file. Raises `error_type` if one is not."""
    try:
        return columns.values_of(path)
    except SchemaError as error:
        text = f"input {path!r} has no place in the partitions: {error.args[0]}"
        raise error_type(text, remedy=_PARTITION_REMEDY) from error


_PARTITION_REMEDY: Final = (
    "move the file to a directory such as day=2026-01-31, name the files by a pattern without it, or correct"
    " partition_by= or the type in schema="
)


def _expanded(found: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    if not found:
        raise SchemaError(
            f"a FileSource needs at least one file: no file matches {', '.join(map(repr, given))}"
        )
    if len(set(found)) != len(found):
        twice = sorted({path for path in found if found.count(path) > 1})
        raise SchemaError(f"file {twice[0]!r} is given twice; use repeat= to read it again")
    return tuple(found)


def reader_of(
    spec: FileSource,
    worker: int,
    workers: int,
    clock: Callable[[], float] = time.monotonic,
    *,
    stop_after_file: bool = False,
) -> "FileReader":
    """Return a reader of one worker's splits. stop_after_file: request a checkpoint after each file."""
    if spec.patterns:
        return WatchReader(spec, worker, workers, clock, stop_after_file=stop_after_file)
    return ListReader(spec, worker, workers, stop_after_file=stop_after_file)


@dataclass(slots=True)
class OpenSplit:
    """A split that is being read. Invariant: `digest.size` is the position."""

    name: str
    path: str
    digest: FileDigest
    version: str
    """The version of the object that was read first."""
    begin: int
    """Start of the step's range in the split."""
    identity: tuple[int, int] | None = None
    """Device and inode of the file that was opened first."""
    line: int = 0
    """The number of lines before the position, for records."""
    head: Head = NO_HEAD
    values: tuple[pa.Scalar, ...] = ()
    """Of the columns that are in its path."""
    stamp: tuple[int, int] | None = None
    """Of the file, before anything was read that is not verified since."""


class FileReader(base.SourceReader):
    """Reads a worker's splits. `_at` has the position of each, without those that need none any more."""

    at_checkpoint = "tables"

    def __init__(self, spec: FileSource, worker: int, workers: int, *, stop_after_file: bool = False) -> None:
        self._spec, self._stop_after_file = spec, stop_after_file
        self._worker, self._workers = worker, workers
        self._input = input_files(spec.place, spec.endpoint)
        self._files = OpenInputs(self._input, _files_open_max)
        text = spec.records if isinstance(spec.records, RecordFormat) else None
        self._end_of = end_of_lines if text is None else text.whole
        self._dropped = RememberedCount()
        self._clear()

    def _clear(self) -> None:
        self.close()
        self._at: base.Positions = {}
        self._open: dict[str, OpenSplit] = {}
        self._division: base.SourceDivision = {}
        self._turns = base.RoundRobin()
        self._wants_checkpoint = False

    def close(self) -> None:
        self._files.close_all()

    def positions(self) -> base.Positions:
        return dict(self._at)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a file was read to its present end, in a region whose operators trigger checkpoints."""
        return self._wants_checkpoint

    def checkpoint_taken(self) -> None:
        self._wants_checkpoint = False

    # --- which splits: the two forms ------------------------------------------------------------------------

    def _look(self) -> None:
        """Find out which splits have input, if it is time for that."""

    @abstractmethod
    def _next(self) -> str | None:
        """Return the split to read next in this step, None if there is none."""

    @abstractmethod
    def _by_time(self, reached: Callable[[str], Watermark]) -> str | None:
        """As `_next`, for a graph that takes event time from the lines."""

    @abstractmethod
    def _find(self, name: str, part: base.SplitDivision) -> None:
        """Verify that a replay can continue with this split, at the beginning of the part."""

    @abstractmethod
    def _finish(self, split: OpenSplit) -> None:
        """Note that a split is at its end for good."""

    @property
    @abstractmethod
    def _has_others(self) -> bool:
        """Whether other splits wait to be read than the one that was chosen."""

    def _part_of(self, name: str) -> FilePart:
        return part_of_name(name)

    def _path_of(self, name: str) -> str:
        return self._part_of(name).path

    def _grows(self, name: str) -> bool:
        """Whether lines may be appended to a file that is read to its end."""
        del name
        return False

    def _takes_rest(self, name: str) -> bool:
        """Whether the last line is taken without its end."""
        return not self._grows(name)

    def _was_read(self, split: OpenSplit, *, at_end: bool, left: int) -> None:
        """Note that the step read a split; `left` bytes up to its end are no whole line."""

    # --- open splits ----------------------------------------------------------------------------------------

    def _opened(self, name: str) -> OpenSplit:
        """Return a split at its position, whose content before it is verified. Raises InputChangedError."""
        split = self._open.get(name)
        if split is not None and self._file(split).stamp != split.stamp:
            # It was written to: what follows belongs to what was read if that is still there.
            self._drop(name)
            split = None
        if split is None:
            at, path = self._at.get(name, _BEGINNING), self._path_of(name)
            whole = self._spec.verify == "whole" or path.endswith(COMPRESSED)
            begin = self._division[name].begin if name in self._division else at.position
            split = OpenSplit(name, path, resumed(at.resume, whole=whole), at.version, begin, line=at.line)
            if self._spec.in_path is not None:
                split.values = _values_in(path, self._spec.in_path, InputReadError)
            split.stamp = self._file(split).stamp
            self._find_head(split, at)
            if at.position:
                self._verify(split, at)
            self._open[name] = split
        return split

    def _find_head(self, split: OpenSplit, at: SplitPosition) -> None:
        """Read the header or footer, which may be far from the position. Raises InputChangedError."""
        block = b""
        if at.head and isinstance(self._spec.records, RecordFormat):
            block, rest, _ = whole_lines(self._file(split), split.path, 0, _head_bytes, self._end_of)
            block += rest
        split.head = self._head_of(split, block)
        if at.position and split.head.digest != at.head:
            expected, found = f"a header with digest {at.head:016x}", f"{split.head.digest:016x}"
            raise InputChangedError(split.path, split.head.size, expected, found)

    def _head_of(self, split: OpenSplit, block: bytes) -> Head:
        records = self._spec.records
        try:
            if isinstance(records, GroupFormat):
                file, part = self._file(split), self._part_of(split.name)
                size = _size_of_open(file, split.path)
                if part.parts > 1:
                    _check_mark(part, file, size)
                return records.head(size, file.read, part.number, part.parts)
            return NO_HEAD if records is None else records.head(block)
        except SchemaError as error:
            remedy = _CSV_REMEDY if isinstance(records, CsvFormat) else _HEAD_REMEDY
            raise InputReadError(f"input {split.path!r}: {error.args[0]}", remedy=remedy) from error

    def _verify(self, split: OpenSplit, at: SplitPosition) -> None:
        size, least = self._file(split).size(), split.head.begin + at.position
        if size is not None and size < least:
            raise InputChangedError(split.path, least, f"at least {least} bytes", f"{size}")
        digest = split.digest
        verified_from = digest.size
        digest.read_to(at.position, lambda _, count: self._read_exactly(split, count))
        if digest.value != at.digest:
            found = f"{digest.value:016x}; verified from byte {verified_from}"
            raise InputChangedError(split.path, at.position, f"content with digest {at.digest:016x}", found)

    def _file(self, split: OpenSplit) -> FileBytes:
        """Return the open file. Raises InputReadError; InputChangedError if the file was replaced."""
        file = self._files.opened(split.name, split.path, split.version)
        if split.identity not in (None, file.identity):
            at = split.digest.size
            raise InputChangedError(split.path, at, "the file that was read before", "another one")
        split.identity = file.identity
        return file

    def _read_exactly(self, split: OpenSplit, count: int) -> bytes:
        at = split.head.begin + split.digest.size
        block = self._file(split).read(at, count)
        if len(block) < count:
            expected, found = f"at least {at + count} bytes", f"{at + len(block)}"
            raise InputChangedError(split.path, at + count, expected, found)
        return block

    def _drop(self, name: str) -> None:
        """Forget what is known of a split beside its position: it is verified again."""
        self._open.pop(name, None)
        self._files.close(name)

    def _position_of(self, split: OpenSplit, *, done: bool = False) -> SplitPosition:
        digest, split.version = split.digest, self._file(split).version
        return SplitPosition(
            digest.size, digest.value, done, digest.resume, split.version, split.line, head=split.head.digest
        )

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        self._look()
        taken = self._chunks()
        reached = self.reached
        room = bytes_max if reached is None else 1  # by time, each batch has rows of one split
        while taken.size < room and not self._wants_checkpoint:
            name = self._next() if reached is None else self._by_time(reached)
            if name is None:
                break
            split = self._opened(name)
            begin = split.digest.size
            want = max(bytes_max - taken.size, min(_read_bytes_min, bytes_max))
            if reached is not None and not begin and self._has_others:
                want = min(want, base.begin_bytes)
            lines, rest, at_end = self._whole(split, want)
            chunk = lines + rest if self._takes_rest(name) else lines
            taken.add(self._chunk(split, chunk))
            done = at_end and not self._grows(name)
            if chunk or done:
                self._note(split, done=False)
            if done:
                self._note(self._opened(name), done=True)
            self._wants_checkpoint = self._stop_after_file and at_end and bool(done or chunk or begin)
            self._was_read(split, at_end=at_end, left=0 if chunk.endswith(rest) else len(rest))
        return self._taken(taken, taken.take())

    def _whole(self, split: OpenSplit, want: int) -> tuple[bytes, bytes, bool]:
        """Read whole lines, records or row groups from the position on, as `whole_lines` does."""
        begin, records = split.digest.size, self._spec.records
        if not isinstance(records, GroupFormat):
            return whole_lines(self._file(split), split.path, begin, want, self._end_of)
        end = records.end_of(split.head, begin, want)
        if end - begin > limits.row_group_bytes_max:
            raise InputReadError(
                f"input {split.path!r} has a row group of {end - begin} bytes at byte {begin}; the maximum is"
                f" {limits.row_group_bytes_max}",
                remedy="write the file with smaller row groups",
            )
        return self._read_exactly(split, end - begin), b"", end == max(split.head.ends, default=begin)

    def _chunks(self) -> LineChunks | RecordChunks:
        spec = self._spec
        if spec.records is None:
            return LineChunks(spec.errors, self._path_of, spec.in_path)
        return RecordChunks(spec.records, spec.on_bad, self._path_of, spec.in_path)

    def _chunk(self, split: OpenSplit, data: bytes) -> SplitChunk:
        """Return the next bytes of a split, and move it behind them."""
        begin, line = split.digest.size, split.line
        split.digest.update(data)
        if isinstance(self._spec.records, RecordFormat) and data:
            split.head = split.head if begin else self._head_of(split, data)
            split.line += data.count(b"\n")
        return SplitChunk(split.name, begin, data, line, split.head, split.values)

    def _taken(self, chunks: LineChunks | RecordChunks, batches: Batches) -> Batches:
        """Count the records that are no rows, and return the batches."""
        if isinstance(chunks, RecordChunks):
            self._dropped.rows += chunks.bad_count
        return batches

    # --- records that are no rows ---------------------------------------------------------------------------

    def lost_on(self, port: str) -> dict[str, int]:
        return {_LOST: self._dropped.rows} if port == BAD_PORT and self._dropped.rows else {}

    def counters(self) -> dict[str, int]:
        return {_LOST: self._dropped.rows} if self._spec.on_bad == "drop" and self._dropped.rows else {}

    def tables(self) -> Mapping[str, RememberedCount]:
        return {} if self._spec.on_bad == "error" else {"~bad": self._dropped}

    def remember(self, step: int) -> None:
        self._dropped.by_step.remember(step, self._dropped.rows)

    def forget(self, step: int) -> None:
        self._dropped.by_step.forget(step)

    def select_step(self, step: int) -> None:
        self._dropped.by_step.select(step)

    # --- positions of steps ---------------------------------------------------------------------------------

    def _note(self, split: OpenSplit, *, done: bool) -> None:
        at = split.digest.size
        self._division[split.name] = base.SplitDivision(split.begin, at, split.digest.value, int(done))
        if done:
            self._finish(split)
            self._drop(split.name)
        elif at:
            self._at[split.name] = self._position_of(split)

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        chunks = self._chunks()
        by_split = self.reached is not None
        return self._taken(chunks, replay_lines(chunks, division, self._replayed, split_by_split=by_split))

    def _replayed(self, name: str, part: base.SplitDivision) -> SplitChunk:
        self._find(name, part)
        split = self._opened(name)
        chunk = self._chunk(split, self._read_exactly(split, part.end - part.begin))
        if split.digest.value != part.digest:
            expected, found = f"content with digest {part.digest:016x}", f"{split.digest.value:016x}"
            raise InputChangedError(split.path, part.end, expected, found)
        at_end = bool(part.done) or (self._grows(name) and part.end == self._file(split).size())
        self._note(split, done=bool(part.done))
        self._wants_checkpoint |= self._stop_after_file and at_end
        return chunk

    def take_division(self) -> base.SourceDivision:
        division, self._division = self._division, {}
        for name in division:
            if name in self._open:
                self._open[name].begin = self._open[name].digest.size
        self._turns.step_over()
        return division

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        return position_text(source, row, self._name_of)

    def _name_of(self, piece: base.BatchPiece) -> str:
        index = piece.split.partition(":")[0] if self._spec.repeat > 1 else ""
        return f"file {self._path_of(piece.split)!r}" + (f" (pass {int(index) + 1})" if index else "")


class ListReader(FileReader):
    """Reads a fixed list. Invariant: in it, the first `_done_count` splits are done, those of `_later` and
    `_begun` follow in any order, then those that are not begun, of which `_coming` is the first.

    A checkpoint contains the number of splits done without a gap, those done after the gap as ">RANGES", each
    with a digest of their names, and the position of each split in progress.
    """

    def _clear(self) -> None:
        super()._clear()
        self._splits = self._spec.splits_of(self._worker, self._workers)
        self._coming = next(self._splits, None)
        self._begun_count = 0
        self._begun: dict[str, int] = {}
        """Split that is being read -> its number in the list."""
        self._later: dict[int, str] = {}
        self._later_key = ""
        """The key of `_later` in a checkpoint; "": not computed."""
        self._later_names = 0
        """The digests of their names, combined by XOR so that the order does not matter."""
        self._done_count = self._done_names = 0
        listed = zip(self._spec.paths, self._spec.sizes, strict=False)
        self._sizes = {path: size for path, size in listed if size is not None}

    # --- position -------------------------------------------------------------------------------------------

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self.begin_at(positions)
        for name in self._begun:
            self._opened(name)

    def begin_at(self, positions: Mapping[str, SplitPosition]) -> tuple[set[str], base.Positions]:
        """Move to the positions of a checkpoint, without reading. Return the splits that are done, and the
        positions of those in progress. Raises InputListChangedError if the list begins with other splits now.
        """
        self._clear()
        done: set[str] = set()
        first = positions.get(base.DONE_SPLITS, SplitPosition(0, done=True))
        key = next((key for key in positions if key.startswith(DONE_LATER)), "")
        later = _ranges_of_text(key[1:])
        reading = {name: at for name, at in positions.items() if name not in (base.DONE_SPLITS, key)}
        while self._coming is not None and (self._begun_count < first.position or later or reading):
            if self._begun_count < first.position or self._begun_count in later:
                later.discard(self._begun_count)
                name = self._begin()
                done.add(name)
                self._end(name)
            elif self._coming[0] in reading:
                name = self._begin()
                self._at[name] = reading.pop(name)
            else:
                break
        if (self._done_count, self._done_names) != (first.position, first.digest):
            raise InputListChangedError(
                f"the {first.position} inputs that worker {self._worker} has fully read are no longer the"
                f" first of its list: expected names with digest {first.digest:016x}, found"
                f" {self._done_count} with {self._done_names:016x}"
            )
        for name, at in reading.items():
            raise InputListChangedError(
                f"the input being read was {name!r} at byte {at.position}, now it is {self._coming_text}"
            )
        if later or (key and self._later_names != positions[key].digest):
            raise InputListChangedError(
                f"the inputs {key[1:]} of worker {self._worker}'s list, which it has fully read, have"
                f" other names now: expected digest {positions[key].digest:016x}"
            )
        return done, dict(self._at)

    def take_over(self, done: set[str], reading: base.Positions) -> base.Positions:
        """Begin with what the workers of another layout have read. Return the positions."""
        # Lists differ with the number of workers, so this one may have splits that nobody began before some
        # that are done: these count as being read, from byte 0.
        number = {piece: index for index, piece in enumerate(self._spec.pieces)}

        def is_own(name: str) -> bool:
            index, _, piece = name.partition(":")
            return (number[piece] + int(index)) % self._workers == self._worker

        left = {name for name in done | reading.keys() if is_own(name)}
        while left:
            name = self._begin()
            left.discard(name)
            if name in done:
                self._end(name)
            else:
                self._at[name] = reading.get(name, _BEGINNING)
        return self.positions()

    def positions(self) -> base.Positions:
        positions = {base.DONE_SPLITS: SplitPosition(self._done_count, self._done_names, done=True)}
        if self._later:
            self._later_key = self._later_key or DONE_LATER + _text_of_ranges(sorted(self._later))
            positions[self._later_key] = SplitPosition(len(self._later), self._later_names, done=True)
        return positions | self._at

    @property
    def exhausted(self) -> bool:
        return self._coming is None and not self._begun

    @property
    def backlog_bytes(self) -> int | None:
        """Not known of compressed files, and of an object while its size is requested."""
        total, known = 0, True
        for index, (name, path) in enumerate(self._spec.splits_of(self._worker, self._workers)):
            if index == _splits_counted_max:
                return None
            if index >= self._begun_count or name in self._begun:
                if path.endswith(COMPRESSED):
                    return None
                if path not in self._sizes:
                    size = self._input.size(path)
                    if size is None:
                        known = False  # goes on: all sizes are requested
                        continue
                    self._sizes[path] = size
                size = self._part_of(name).size(self._sizes[path])
                total += max(0, size - self._at.get(name, _BEGINNING).position)
        return total if known else None

    def time_now(self) -> SourceTime:
        return SourceTime(self.exhausted, unbegun=self._coming is not None, behind=self._begun)

    def counters(self) -> dict[str, int]:
        return {"splits_done": self._done_count + len(self._later), **super().counters()}

    # --- splits ---------------------------------------------------------------------------------------------

    def _part_of(self, name: str) -> FilePart:
        return part_of_name(name.partition(":")[2])

    @property
    def _coming_text(self) -> str:
        return repr(self._coming[0]) if self._coming else "'the end of the list'"

    @property
    def _has_others(self) -> bool:
        return self._coming is not None or len(self._begun) > 1

    def _next(self) -> str | None:
        if self._begun:
            return next(iter(self._begun))
        return self._begin() if self._coming is not None else None

    def _by_time(self, reached: Callable[[str], Watermark]) -> str | None:
        if self._coming is not None and len(self._begun) < _splits_started_max:
            name = self._begin()
            self._turns.begin(name)
            return name
        return self._turns.next(self._begun, reached)

    def _find(self, name: str, part: base.SplitDivision) -> None:
        if name not in self._begun:
            if self._coming is None or self._coming[0] != name:
                raise InputListChangedError(f"a step had read {name!r} next, now it is {self._coming_text}")
            self._begin()
        at = self._at.get(name, _BEGINNING).position
        if at != part.begin:
            raise InputListChangedError(f"a step had read {name!r} from byte {part.begin}, now it is at {at}")

    def _begin(self) -> str:
        assert self._coming is not None
        name, _ = self._coming
        self._begun[name] = self._begun_count
        self._begun_count += 1
        self._coming = next(self._splits, None)
        return name

    def _finish(self, split: OpenSplit) -> None:
        self._end(split.name)

    def _end(self, name: str) -> None:
        self._at.pop(name, None)
        self._later[self._begun.pop(name)] = name
        self._later_key = ""
        self._later_names ^= digest64(name.encode())
        while self._done_count in self._later:
            name = self._later.pop(self._done_count)
            self._done_count += 1
            self._done_names = digest64(name.encode(), self._done_names)
            self._later_names ^= digest64(name.encode())


class WatchReader(FileReader):
    """Reads files that are added and grow. `_at` has the position of every file that exists. A file with
    lines to read holds event time back; one at its present end does not: it may never grow again.
    """

    def __init__(
        self,
        spec: FileSource,
        worker: int,
        workers: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        stop_after_file: bool = False,
    ) -> None:
        self._clock = clock
        super().__init__(spec, worker, workers, stop_after_file=stop_after_file)

    def _clear(self) -> None:
        super()._clear()
        self._seen: dict[str, FileSeen] = {}
        """This worker's files when they were listed last."""
        self._whole_files: dict[str, tuple[int, bool]] = {}
        """Gzip file -> its size when it was last checked, and whether it was whole."""
        self._parts: dict[str, tuple[FileSeen, list[str]]] = {}
        self._incomplete_sizes: dict[str, int] = {}
        """File -> its size when there was no complete line after the position."""
        self._ready: deque[str] = deque()
        """Files with more to read, in the order of their turns."""
        self._last = ""
        """The file that was read last. `_more`: it has more to read."""
        self._more = False
        self._list_at_s = 0.0
        self._listed = self._replayed_since_listing = False  # since this incarnation began
        self._ending = self._at_end = False

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self._clear()
        self._at = dict(positions)

    @property
    def exhausted(self) -> bool:
        return self._at_end

    @property
    def _waiting(self) -> list[str]:
        return [self._last, *self._ready] if self._more else [*self._ready]

    def time_now(self) -> SourceTime:
        behind = {*self._waiting}
        quiet = [path for path, at in self._at.items() if path not in behind and not at.done]
        return SourceTime(self._at_end, self._listed, behind=behind, caught_up=quiet, caught_up_holds=False)

    @property
    def has_input(self) -> bool:
        self._look()
        return not self._wants_checkpoint and (self._more or bool(self._ready))

    @property
    def wakes_in(self) -> float | None:
        return None if self._at_end else max(0.0, self._list_at_s - self._clock())

    @property
    def backlog_bytes(self) -> int | None:
        waiting = self._waiting
        if not self._listed or any(path.endswith(COMPRESSED) for path in waiting):
            return None
        sizes = {one: self._part_of(one).size(self._seen[one].size) for one in waiting}
        return sum(max(0, size - self._at.get(one, _BEGINNING).position) for one, size in sizes.items())

    def counters(self) -> dict[str, int]:
        return {"files": len(self._at), "files_waiting": len(self._waiting), **super().counters()}

    # --- listing --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """List the files if it is time. Raises InputChangedError, InputGoneError, InputReadError."""
        due = self._clock() >= self._list_at_s
        if self._at_end or not (due or self._replayed_since_listing):
            return
        found, ending = self._list() if due else (self._seen, self._ending)
        ready = [path for path, seen in found.items() if self._is_ready(path, seen, ending=ending)]
        self._seen, self._ending = found, ending
        self._more = self._more and self._last in ready
        self._ready = deque(path for path in ready if path > self._last)
        self._ready += [path for path in ready if path < self._last]
        if self._last in ready and not self._more:
            self._put_back(self._last)
        self._at_end = ending and not ready
        self._listed, self._replayed_since_listing = True, False

    def _list(self) -> tuple[dict[str, FileSeen], bool]:
        """Return this worker's files, and whether no more will follow."""
        until = self._spec.until
        ending = until is not None and self._input.exists(until)  # before listing: misses no file
        listed = self._input.listing(self._spec.patterns)
        found = {
            name: seen
            for path, seen in listed.items()
            if path != until
            for name in self._pieces(path, seen)
            if base.owner_by_name(name, self._workers) == self._worker
        }
        if len(found) > limits.directory_files_max:
            raise InputReadError(
                f"{len(found)} input files exist for one worker, and a checkpoint holds the position of each:"
                f" the maximum is {limits.directory_files_max}",
                remedy='remove files that were read, with gone="forget"; or use more workers',
            )
        for name in [name for name in self._at if name not in found]:
            self._handle_missing(name, replaced=not self._input.versioned and self._path_of(name) in listed)
        self._whole_files = {name: known for name, known in self._whole_files.items() if name in found}
        self._list_at_s = self._clock() + self._spec.poll_s
        return found, ending

    def _pieces(self, path: str, seen: FileSeen) -> list[str]:
        """Return the names of the file's parts. Those of a file that is being written change with it."""
        known, names = self._parts.get(path, (None, [path]))
        if known != seen:
            try:
                names = [part.name for part in _parts_of(self._input, path, seen, self._spec.records)]
            except InputReadError:
                if self._input.exists(path):
                    raise
            self._parts[path] = (seen, names)
        return names

    def _handle_missing(self, name: str, *, replaced: bool) -> None:
        path, position = self._path_of(name), self._at[name].position
        unread = name in self._seen and name in self._waiting
        unread = unread or (self._input.versioned and not self._at[name].done)
        if replaced:
            raise InputChangedError(path, position, "the file that was read", "another one")
        if self._spec.gone == "stop" or unread:
            raise InputGoneError(path, position)
        self._forget(name)

    def _forget(self, path: str) -> None:
        """Forget a file; another file of this name is read from its beginning."""
        self._at.pop(path, None)
        self._whole_files.pop(path, None)
        self._incomplete_sizes.pop(path, None)
        self._drop(path)

    def _is_ready(self, path: str, seen: FileSeen, *, ending: bool) -> bool:
        """Return whether the file has more to read. Raises InputChangedError if it is a different file."""
        at = self._at.get(path, _BEGINNING)
        if isinstance(seen.identity, str):
            return self._object_is_ready(path, seen, seen.identity, at)
        last = self._seen.get(path)
        if last is not None and last.identity != seen.identity:
            self._drop(path)
            if at.position and not at.done and seen.size >= at.position:
                # verifies the digest: a file of this name with the same content counts as the same file
                self._opened(path)
                self._drop(path)
        if not self._grows(path):
            if at.done and last != seen:
                _check_unchanged(self._path_of(path), seen, at)
            return not at.done and (ending or self._is_whole_file(path, seen, last))
        if seen.size < at.position:
            raise InputChangedError(path, at.position, f"at least {at.position} bytes", f"{seen.size}")
        return seen.size > (at.position if ending else max(at.position, self._incomplete_sizes.get(path, 0)))

    def _object_is_ready(self, path: str, seen: FileSeen, version: str, at: SplitPosition) -> bool:
        if at.done and at.version != version and self._spec.gone == "forget":
            self._forget(path)
            at = _BEGINNING
        if at.position or at.done:  # it was replaced, also if by a longer one
            check_version(path, at.position, at.version, version)
        return not at.done and seen.size > 0

    def _is_whole_file(self, name: str, seen: FileSeen, last: FileSeen | None) -> bool:
        """Return whether a file is whole that is read from its end, once its size has stopped changing."""
        size, whole = self._whole_files.get(name, (-1, False))
        if size != seen.size and last in (None, seen):
            path = self._path_of(name)
            file = decompressed(path, PlainBytes(path, open_regular(path)))
            try:
                if isinstance(file, PlainBytes):
                    assert isinstance(self._spec.records, GroupFormat)
                    whole = is_complete(self._spec.records.name, seen.size, file.read)
                else:
                    assert isinstance(file, DecompressedBytes)
                    whole = file.is_complete()
            finally:
                file.close()
            self._whole_files[name] = (seen.size, whole)
        return whole

    # --- splits ---------------------------------------------------------------------------------------------

    def _grows(self, name: str) -> bool:
        whole = name.endswith(COMPRESSED) or isinstance(self._spec.records, GroupFormat)
        return not self._input.versioned and not whole

    def _takes_rest(self, name: str) -> bool:
        return self._ending or not self._grows(name)

    @property
    def _has_others(self) -> bool:
        return bool(self._ready)

    def _next(self) -> str | None:
        """Return the next file: a file continues while the step has room, and has one turn per step."""
        if self._more:
            return self._last
        for _ in range(len(self._ready)):
            path = self._ready.popleft()
            if path not in self._division:
                self._last, self._more = path, True
                return path
            self._ready.append(path)
        return None

    def _by_time(self, reached: Callable[[str], Watermark]) -> str | None:
        waiting = self._waiting
        path = self._turns.next(waiting, reached)
        if path is not None:
            self._ready = deque(other for other in waiting if other != path)
            self._last, self._more = path, True
        return path

    def _put_back(self, path: str) -> None:
        """Begin the next step with the next file, or with this one if it does not grow or ends with a
        checkpoint.
        """
        if self._stop_after_file or self._input.versioned:
            self._ready.appendleft(path)
        else:
            self._ready.append(path)

    def _was_read(self, split: OpenSplit, *, at_end: bool, left: int) -> None:
        self._more = not at_end
        if left:
            self._incomplete_sizes[split.path] = split.digest.size + left

    def _finish(self, split: OpenSplit) -> None:
        at = self._position_of(split, done=True)
        # A finished gzip file is identified by its compressed bytes, which a listing need not decompress.
        self._at[split.name] = (
            at if at.version else SplitPosition(at.position, _mark_of(split.path), done=True)
        )

    def _find(self, name: str, part: base.SplitDivision) -> None:
        path = self._path_of(name)
        if name not in self._seen and not self._input.exists(path):
            raise InputGoneError(path, part.end)
        at = self._at.get(name, _BEGINNING)
        if part.begin == 0 and at.position and self._spec.gone == "forget":
            self._forget(name)
        elif at.position != part.begin or at.done:
            raise InputChangedError(name, part.begin, f"a step from {part.begin}", f"{at.position}")

    def _replayed(self, name: str, part: base.SplitDivision) -> SplitChunk:
        chunk = super()._replayed(name, part)
        self._last, self._more = name, False
        seen = self._seen.get(name)
        if seen is None or self._at[name].version not in ("", seen.identity):
            self._list_at_s = 0.0
        self._replayed_since_listing = True
        return chunk

    def _note(self, split: OpenSplit, *, done: bool) -> None:
        by_line = not isinstance(self._spec.records, GroupFormat)  # otherwise its footer was found the same
        if by_line and done and self._file(split).read(split.digest.size, 1):  # a replay of a whole file
            at = split.digest.size
            raise InputChangedError(split.path, at, "its end there, as when it was read", "more after it")
        super()._note(split, done=done)

    def take_division(self) -> base.SourceDivision:
        division = super().take_division()
        # Verified again in the next step that reads it, because it may have been rewritten in place.
        for name in [name for name in self._open if self._grows(name)]:
            self._drop(name)
        if self._more:
            self._put_back(self._last)
            self._more = False
        return division


def _check_unchanged(path: str, seen: FileSeen, at: SplitPosition) -> None:
    """Raise InputChangedError if a gzip file that was read is another one now."""
    mark = _mark_of(path)
    if mark != at.digest:
        found = f"another file, of {seen.size} bytes ({mark:016x})"
        raise InputChangedError(path, at.position, f"the file that was read ({at.digest:016x})", found)


def _check_mark(part: FilePart, file: FileBytes, size: int) -> None:
    """Raise InputChangedError if the file has another content than the one that was divided into parts."""
    mark = digest64(file.version.encode()) if file.version else _mark_in(file, size)
    if mark != part.mark:
        found = f"another one, of {size} bytes ({mark:016x})"
        raise InputChangedError(
            part.path, 0, f"the file that was divided into parts ({part.mark:016x})", found
        )


def _mark_of(path: str) -> int:
    """Return a digest of a file's size and last bytes, which identifies it. Raises InputReadError."""
    file = PlainBytes(path, open_regular(path))
    try:
        return _mark_in(file, file.size())
    finally:
        file.close()


def _mark_in(file: FileBytes, size: int) -> int:
    return digest64(file.read(max(0, size - _mark_bytes), _mark_bytes), size)


def _text_of_ranges(numbers: Sequence[int]) -> str:
    """Return integers in increasing order as text: 3-7,9."""
    parts: list[list[int]] = []
    for index in numbers:
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def _ranges_of_text(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
