"""The inspection formats: `dos-journal` (records), `dos-checkpoints` (of a region) and `dos-state` (of its
operators).

They read with the code of `dos journal` and `dos checkpoint`, and use the same names. The driver determines
what exists and fixes it; tasks read what was fixed, so that a retried task returns the same rows. Reader and
table are pickled for every task: they hold options and columns, and nothing that is open.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from checkpoint import (
    Checkpoint,
    Layout,
    OperatorNote,
    checkpoint_full,
    checkpoint_row,
    output_chain,
    region_of_worker,
    result_uids,
)
from checkpoint.chains.directory_store import directory_chain
from checkpoint.chains.manifest_log import ManifestView, read_manifest
from checkpoint.chains.state_blocks import (
    DELETED_COLUMN,
    StateFold,
    hash_range,
    key_columns,
    slices,
    state_version_of,
    stored_names,
    with_columns,
)
from checkpoint.chains.state_store import STATE_CHAIN, StoredStateBlock, blocks_at, blocks_between
from checkpoint.chains.steps_log import STEPS_CHAIN
from checkpoint.errors import StateNotRecordedError
from checkpoint.key_hash import HASH_COLUMN
from dos_client import Store
from dos_client.blocking import BlockingStore
from dos_protocol.errors import CorruptDataError
from journal import (
    ChainState,
    Located,
    LostBytesError,
    Position,
    SegmentSpan,
    StopNotFoundError,
    inspect_chain,
    inspect_chain_at,
    report_unproved,
)
from journal.inspecting import object_records, span_records
from spark_integration.core.options import (
    CHECKPOINTS,
    JOURNAL,
    STATE,
    CheckpointsOptions,
    JournalOptions,
    JournalPoint,
    ReadOptions,
    StateOptions,
    parse_checkpoints,
    parse_journal,
    parse_state,
)
from spark_integration.core.row_filter import check_filter
from spark_integration.errors import (
    BadOptionError,
    DataLossError,
    NoSchemaError,
    NothingThereError,
    SchemaMismatchError,
    nearest,
)
from spark_integration.limits import BATCH_ROWS
from spark_integration.on_executor import expected_of_driver
from spark_integration.reading.decoding import BatchShaper, check_columns, chosen, signed
from spark_integration.reading.opening import KEPT, check_executor, opened, with_token
from spark_integration.reading.planning import check_once
from spark_integration.spark_api import arrow_schema, spark_schema

Options = TypeVar("Options", bound=ReadOptions)


class TableColumns(NamedTuple):
    """`default`: the default columns; `extra`: those that are only returned if they are named."""

    default: pa.Schema
    extra: pa.Schema

    @property
    def every(self) -> pa.Schema:
        return pa.schema([*self.default, *self.extra])


class TablePart(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """What one task reads."""


class InsideTable(ABC, Generic[Options]):
    """One format with its options. Pickled."""

    def __init__(self, options: Options) -> None:
        self.options = options

    @property
    @abstractmethod
    def what(self) -> str:
        """What is read, for people."""

    @abstractmethod
    async def columns(self, store: Store) -> TableColumns:
        """Return the columns. Raises an error if what the options name does not exist."""

    @abstractmethod
    async def parts(self, store: Store) -> Sequence[Any]:
        """Return what each task reads, as values that can be pickled."""

    @abstractmethod
    def read(self, store: BlockingStore, part: Any, names: frozenset[str]) -> Iterator[pa.RecordBatch]:
        """Return the rows of a part, with at least the columns `names`."""


def columns_of(table: InsideTable[Any]) -> pa.Schema:
    """Return the columns of a DataFrame without a user-defined schema."""
    with opened(table.options) as store:
        found = store.portal.call(table.columns, store.store)
    return chosen(found.default, found.extra, table.options.columns)


class InsideReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed here
    """Reads what exists when Spark plans the query."""

    def __init__(self, table: InsideTable[Any], wanted: pa.Schema) -> None:
        self._table = table
        self._wanted = wanted
        self._expected = expected_of_driver()

    def partitions(self) -> Sequence[InputPartition]:
        table, comparisons = self._table, self._table.options.filter

        async def plan(store: Store) -> Sequence[Any]:
            columns = (await table.columns(store)).every
            check_columns(self._wanted, columns, table.what)
            check_filter(comparisons, columns)
            return await table.parts(store)

        with opened(table.options) as store:
            return [TablePart(one) for one in store.portal.call(plan, store.store)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TablePart):
            return  # Spark's own partition, which it adds if there are none of ours
        check_executor(self._expected)
        table, comparisons = self._table, self._table.options.filter
        names = frozenset([*self._wanted.names, *(one.column for one in comparisons)])
        with KEPT.lent(table.options) as store:
            rows = table.read(store, partition.value, names)
            yield from BatchShaper(self._wanted, comparisons, table.what).shape(rows)


_POSITION: Final = pa.struct([("epoch", pa.int64()), ("size", pa.int64()), ("digest", pa.string())])
_SPLIT: Final = pa.struct([("position", pa.int64()), ("digest", pa.string()), ("done", pa.bool_())])
_SECONDS: Final = pa.map_(pa.string(), pa.float64())
_EDIT: Final = pa.struct(
    [
        ("by", pa.string()),
        ("timeMs", pa.int64()),
        ("why", pa.string()),
        ("tables", pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))),
    ]
)
_BATCH: Final = pa.struct(
    [
        ("query", pa.string()),
        ("number", pa.int64()),
        ("plannedMicroseconds", pa.int64()),
        ("rows", pa.int64()),
        ("afterStep", pa.int64()),
        ("step", pa.int64()),
    ]
)
_DEFAULT: Final = pa.schema(
    [
        ("checkpoint", pa.int64()),
        ("step", pa.int64()),
        ("incarnation", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("retained", pa.bool_()),
        ("savepoints", pa.list_(pa.string())),
        ("final", pa.bool_()),
        ("rolledBackTo", pa.int64()),
        ("line", pa.int64()),
        ("edit", _EDIT),
        ("batch", _BATCH),
        ("driver", pa.string()),
        ("stateBytes", pa.int64()),
        ("workerStateBytes", pa.list_(pa.int64())),
        ("splits", pa.int64()),
        ("phaseSeconds", _SECONDS),
    ]
)
_EXTRA: Final = pa.schema(
    [
        ("parent", pa.int64()),
        ("fingerprint", pa.string()),
        ("operators", pa.map_(pa.string(), pa.string())),
        (
            "shards",
            pa.list_(
                pa.struct(
                    [
                        ("begin", pa.int64()),
                        ("end", pa.int64()),
                        ("worker", pa.int32()),
                        ("operator", pa.string()),
                        ("replica", pa.int32()),
                    ]
                )
            ),
        ),
        (
            "workers",
            pa.list_(
                pa.struct(
                    [
                        ("worker", pa.int32()),
                        ("state", _POSITION),
                        ("steps", _POSITION),
                        ("sources", pa.map_(pa.string(), pa.map_(pa.string(), _SPLIT))),
                        ("sinks", pa.map_(pa.string(), pa.string())),
                        ("phaseSeconds", _SECONDS),
                    ]
                )
            ),
        ),
    ]
)


class CheckpointsTable(InsideTable[CheckpointsOptions]):
    """The committed checkpoints of a region, one row each, as in `dos checkpoint ls` and `dos checkpoint
    show`.
    """

    @property
    def what(self) -> str:
        return f"checkpoints of region {self.options.region}"

    async def columns(self, store: Store) -> TableColumns:
        del store
        return TableColumns(_DEFAULT, _EXTRA)

    async def parts(self, store: Store) -> Sequence[int]:
        """Return the number of the last checkpoint: later ones are not read."""
        last = (await read_manifest(store, self.options.region)).last
        return [last.number] if last is not None else []

    def read(self, store: BlockingStore, part: int, names: frozenset[str]) -> Iterator[pa.RecordBatch]:
        view = store.portal.call(read_manifest, store.store, self.options.region)
        retained, savepoints = view.retained, view.last.savepoints if view.last is not None else {}
        rows = [
            _row(checkpoint, checkpoint_row(checkpoint, retained, savepoints))
            for checkpoint in view.checkpoints
            if checkpoint.number <= part
        ]
        columns = pa.schema([field for field in (*_DEFAULT, *_EXTRA) if field.name in names] or [_DEFAULT[0]])
        yield from pa.Table.from_pylist(rows, columns).combine_chunks().to_batches()


def _row(checkpoint: Checkpoint, listed: dict[str, Any]) -> dict[str, Any]:
    row = checkpoint_full(checkpoint) | listed
    row["time"] = row["timeMs"] * 1000
    row["shards"] = row["layout"]["ranges"]
    row["workers"] = [_worker(one) for one in row["workers"]]
    for name in ("phaseSeconds", "operators"):
        row[name] = list(row[name].items())
    return row


def _worker(one: dict[str, Any]) -> dict[str, Any]:
    return {
        **one,
        "sources": [(source, list(splits.items())) for source, splits in one["sources"].items()],
        "sinks": [(sink, msgspec.json.encode(prepared).decode()) for sink, prepared in one["sinks"].items()],
        "phaseSeconds": list(one["phaseSeconds"].items()),
    }


logger = logging.getLogger("dos.spark_integration")


class _Column(NamedTuple):
    kind: pa.DataType
    value: Callable[[Located], Any]


_COLUMNS: Final[dict[str, _Column]] = {
    "segment": _Column(pa.string(), lambda one: one.segment),
    "offset": _Column(pa.int64(), lambda one: one.offset),
    "end": _Column(pa.int64(), lambda one: one.end),
    "version": _Column(pa.int32(), lambda one: one.version),
    "op": _Column(pa.int32(), lambda one: one.record.op.value),
    "name": _Column(pa.string(), lambda one: one.record.op.name),
    "tag": _Column(pa.int64(), lambda one: one.record.tag),
    "flags": _Column(pa.int32(), lambda one: one.record.flags),
    "ints": _Column(pa.list_(pa.int64()), lambda one: signed(one.record.ints)),
    "strings": _Column(pa.list_(pa.binary()), lambda one: list(map(bytes, one.record.strings))),
}
"""Names as in `dos journal dump --json`."""


class JournalPart(NamedTuple):
    """A segment of a chain, or the first `size` bytes of an object; records that begin in [begin, end)."""

    name: str
    size: int
    span: SegmentSpan | None
    begin: int
    end: int | None


class JournalTable(InsideTable[JournalOptions]):
    """The records of a chain, or of an object that holds a journal, as in `dos journal dump`.

    A chain shows what a reader may see: committed records, from its newest finished snapshot on. Each segment
    is one task, which reads it from its beginning, because otherwise its digest could not be checked.
    """

    @property
    def what(self) -> str:
        return f"journal {self.options.directory}/{self.options.name}"

    async def columns(self, store: Store) -> TableColumns:
        del store
        return TableColumns(
            pa.schema([(name, column.kind) for name, column in _COLUMNS.items()]), pa.schema([])
        )

    async def parts(self, store: Store) -> Sequence[JournalPart]:
        directory, name = self.options.directory, self.options.name
        view = await store.inspect(directory)
        sizes = [found[name].synced for found in view.answers.values() if name in found]
        if sizes:
            return [JournalPart(name, max(sizes), None, *self._numbers())]
        chain, begin, end = await self._chain(store)
        return [
            JournalPart(span.name, span.length, span, begin, end)
            for span in chain.segments
            if begin < span.base + span.length and (end is None or span.base < end)
        ]

    def read(
        self, store: BlockingStore, part: JournalPart, names: frozenset[str]
    ) -> Iterator[pa.RecordBatch]:
        columns = {name: column for name, column in _COLUMNS.items() if name in names}
        try:
            for located in self._located(store, part):
                wanted = [one for one in located if part.begin <= one.offset and not _is_past_end(part, one)]
                for first in range(0, len(wanted), BATCH_ROWS):
                    yield _batch(wanted[first : first + BATCH_ROWS], columns)
                if located and _is_past_end(part, located[-1]):
                    return
        except (CorruptDataError, LostBytesError) as fault:
            if self.options.fail_on_fault:
                raise
            logger.warning(
                "%s: continuing without the rest, because of failOnFault=false: %s", self.what, fault
            )

    def _located(self, store: BlockingStore, part: JournalPart) -> Iterator[list[Located]]:
        directory = self.options.directory
        if part.span is None:
            records = object_records(store.store, directory, part.name, part.size)
        else:
            records = span_records(store.store, directory, part.span)
        for _, located in store.iterate(records):
            yield located

    # --- between two positions ------------------------------------------------------------------------------

    def _numbers(self) -> tuple[int, int | None]:
        begin, end = self.options.begin, self.options.end
        for point in (begin, end):
            if point is not None and point.is_checkpoint:
                raise BadOptionError(f"{self.what} is an object, but {point} is a position in a chain")
        return begin.number if begin else 0, end.number if end else None

    async def _chain(self, store: Store) -> tuple[ChainState, int, int | None]:
        """Return the chain, and the offsets between which its records are requested. Raises DataLossError."""
        options = self.options
        begin, end = await self._position(store, options.begin), await self._position(store, options.end)
        if isinstance(end, Position):
            chain = await inspect_chain_at(store, options.directory, options.name, end)
        else:
            chain = await inspect_chain(store, options.directory, options.name)
            if chain.end is None:
                await self._refuse_absent(store, chain)
            if end is None or chain.size < end:
                report_unproved(options.directory, chain)
        if isinstance(begin, Position):
            try:
                chain.up_to(begin)
            except StopNotFoundError as error:
                raise DataLossError(
                    f"{self.what}: from={options.begin} is not on the line of history that is read: {error}",
                    remedy="the region was rolled back, or the chain was trimmed: use a later position",
                ) from error
        first = begin.size if isinstance(begin, Position) else begin
        first_offset = chain.segments[0].base if chain.segments else 0
        if first is not None and first < first_offset:
            raise DataLossError(
                f"{self.what}: the records between {first} and {first_offset} are gone, or were replaced by a"
                f" snapshot",
                remedy=f"omit the option 'from', or set it to {first_offset}",
            )
        return chain, first or 0, end.size if isinstance(end, Position) else end

    async def _position(self, store: Store, point: JournalPoint | None) -> Position | int | None:
        if point is None or not point.is_checkpoint:
            return None if point is None else point.number
        options = self.options
        region_and_worker = region_of_worker(options.directory)
        if region_and_worker is None:
            raise BadOptionError(
                f"{point}: {options.directory} is no worker's directory and has no checkpoints"
            )
        region, worker = region_and_worker
        checkpoint = (await read_manifest(store, region)).restorable(point.number)
        position = _position_in(checkpoint, worker, options.name)
        if position is None:
            raise BadOptionError(
                f"{point}: checkpoint {checkpoint.number} lacks chain {options.name} of worker {worker}"
            )
        return position

    async def _refuse_absent(self, store: Store, chain: ChainState) -> None:
        directory, name = self.options.directory, self.options.name
        if chain.seen:
            return  # the chain exists, and nothing of it is committed yet
        view = await store.inspect(directory)
        names = {one for objects in view.answers.values() for one in objects}
        if not names and not view.epoch_seen:
            near = nearest(directory, await store.list_directories())
            raise NothingThereError(f"there is no directory {directory!r} in the store{near}")
        chains = sorted({one.split(".")[0] for one in names})
        raise NothingThereError(
            f"directory {directory!r} has no object and no chain {name!r}{nearest(name, chains)};"
            f" it has {', '.join(chains)}",
            remedy="`dos ls` lists what is there",
        )


def _is_past_end(part: JournalPart, one: Located) -> bool:
    return part.end is not None and one.offset >= part.end


def _position_in(checkpoint: Checkpoint, worker: int, chain: str) -> Position | None:
    """Return the position of a worker's chain in a checkpoint."""
    part = checkpoint.workers.get(worker)
    if part is None:
        return None
    known = {STATE_CHAIN: part.state, STEPS_CHAIN: part.steps}
    if chain in known:
        return known[chain]
    for operator, at in part.directories.items():
        if directory_chain(operator) == chain:
            return at
    for sink, prepared in part.sinks.items():
        if output_chain(sink) == chain:
            return msgspec.convert(prepared, Position)
    return None


def _batch(located: Sequence[Located], columns: dict[str, _Column]) -> pa.RecordBatch:
    arrays = [pa.array([column.value(one) for one in located], column.kind) for column in columns.values()]
    if not arrays:  # no column was requested: the number of rows still counts
        columns = {"offset": _COLUMNS["offset"]}
        arrays = [pa.array([one.offset for one in located], pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


_HASHES: Final = 1 << 64
_WORKER: Final = "_worker"


class StatePart(NamedTuple):
    """What one task reads: hashes in [`begin`, `end`) of a worker's state chain. `at`, `since`: its positions
    in the checkpoint and in the earlier one.
    """

    region: str
    worker: int
    at: Position
    since: Position | None
    begin: int
    end: int
    table: str
    """As it is stored."""
    results: frozenset[str] = frozenset()
    """The uids of the results of an aggregation: blocks of a former graph have others."""

    def has_columns_of(self, block: pa.Schema) -> bool:
        """Whether the graph stores the columns of a block."""
        if not self.results:
            return True
        stored = stored_names(block).keys() - {*key_columns(block), HASH_COLUMN, DELETED_COLUMN}
        # A result has a column of its name, and further ones: NAME.rows.
        others = [one for one in stored - self.results if one.rpartition(".")[0] not in self.results]
        return self.results <= stored and not others


class OperatorStateTable(InsideTable[StateOptions]):
    """The state of an operator at a committed checkpoint, or what was written of it between two.

    Each worker's part is one task, or several that divide its range of the key hash. A task reads the
    worker's whole state chain from its newest snapshot on, because one chain holds the blocks of all
    operators in the order in which they were written. So several tasks bound what each of them holds, but the
    chain is read as many times. The memory for one key with a large value is not bounded.
    """

    @property
    def what(self) -> str:
        checkpoint = "" if self.options.checkpoint is None else f" at checkpoint {self.options.checkpoint}"
        return f"state of operator {self.options.operator} of region {self.options.region}{checkpoint}"

    async def columns(self, store: Store) -> TableColumns:
        """Return the columns of the newest block; if nothing was written since, those of the whole state."""
        parts, tables = await self._parts(store), set[str]()
        whole_state = [part._replace(since=None) for part in parts if part.since is not None]
        is_difference = self.options.since is not None
        for some in (parts, whole_state):
            found: pa.Schema | None = None
            for part in some:
                async with aclosing(_blocks(store, part)) as blocks:
                    async for block in blocks:
                        tables.add(block.operator)
                        if block.operator == part.table:
                            found = _schema_of(block)
                            if part.has_columns_of(found):
                                return _columns(found, difference=is_difference)
            if found is not None:
                return _columns(found, difference=is_difference)
        raise NoSchemaError(
            f"{self.what}: the columns are unknown, because it holds no rows; there is state of"
            f" {', '.join(sorted(tables)) or 'no operator'}"
        )

    async def parts(self, store: Store) -> Sequence[StatePart]:
        return await self._parts(store)

    async def _parts(self, store: Store) -> list[StatePart]:
        options = self.options
        view = await read_manifest(store, options.region)
        checkpoint = _checkpoint(view, options.checkpoint)
        self._check_operator(checkpoint)
        since = None if options.since is None else view.restorable(options.since)
        table, parts = checkpoint.stored_table(options.operator), []
        note, uids = checkpoint.operators.get(options.operator), checkpoint.uids
        named = result_uids(options.operator, uids)
        results = frozenset(named.get(one.name, one.name) for one in (note.results if note else ()))
        is_everywhere = _is_broadcast_table(checkpoint.operators.get(options.operator))
        for worker, part in sorted(checkpoint.workers.items()):
            if since is not None and since.layout != checkpoint.layout and not is_everywhere:
                reason = f"its keys were on other workers in checkpoint {since.number}"
                raise StateNotRecordedError(worker, reason)
            if since is not None and since.stored_table(options.operator) != table:
                reason = f"its operator is another one than in checkpoint {since.number}"
                raise StateNotRecordedError(worker, reason)
            if since is not None and since.in_origin != checkpoint.in_origin:
                reason = f"checkpoint {since.number} is in the journals of another region, as a fork begins"
                raise StateNotRecordedError(worker, reason)
            for begin, end in _hash_ranges(
                checkpoint.layout, worker, options.operator, options.tasks_per_worker
            ):
                before = None if since is None else since.workers[worker].state
                region = checkpoint.chains_of(options.region)
                parts.append(StatePart(region, worker, part.state, before, begin, end, table, results))
            if is_everywhere:
                break  # each worker has the whole table
        return parts

    def _check_operator(self, checkpoint: Checkpoint) -> None:
        operator = self.options.operator.partition("~")[0]  # an operator's tables are NAME, NAME~rows, ..
        if checkpoint.operators and operator not in checkpoint.operators:
            raise NothingThereError(
                f"region {self.options.region} has no operator {operator!r} in checkpoint {checkpoint.number}"
                f"{nearest(operator, checkpoint.operators)}; it has {', '.join(checkpoint.operators)}"
            )

    def read(self, store: BlockingStore, part: StatePart, names: frozenset[str]) -> Iterator[pa.RecordBatch]:
        del names
        fold = StateFold(keep_deleted=part.since is not None)
        schema: pa.Schema | None = None
        try:
            for block in store.iterate(_blocks(store.store, part)):
                if block.operator != part.table:
                    continue
                rows = block.decoded()
                if schema is not None:
                    self._check_same(schema, rows)
                schema = rows.schema
                fold.add(block.operator, hash_range(rows, part.begin, part.end))
        except LostBytesError as error:
            self._raise_missing(store, error)
        folded = fold.take(part.table)
        if folded is not None:
            yield from _pieces(folded, part.worker)

    def _check_same(self, before: pa.Schema, rows: pa.RecordBatch) -> None:
        now = rows.schema
        try:
            with_columns(pa.RecordBatch.from_pylist([], before), now)
            return
        except ValueError:
            pass
        one, other = (f"version {state_version_of(schema)} ({_listed(schema)})" for schema in (before, now))
        raise SchemaMismatchError(
            f"{self.what}: a migration left some of it in {one} and some in {other}",
            remedy="read a later checkpoint: the first snapshot after a migration has only the new version",
        )

    def _raise_missing(self, store: BlockingStore, error: LostBytesError) -> None:
        # A checkpoint that was released meanwhile is the user's matter; anything else is a loss.
        view = store.portal.call(read_manifest, store.store, self.options.region)
        for number in (self.options.checkpoint, self.options.since):
            if number is not None:
                view.restorable(number)
        raise DataLossError(
            f"{self.what} is partly gone: {error}",
            remedy="read a checkpoint that is retained; `dos checkpoint ls` lists them",
        ) from error


def _checkpoint(view: ManifestView, number: int | None) -> Checkpoint:
    if number is not None:
        return view.restorable(number)
    if view.last is None:
        raise NothingThereError(f"region {view.region} has not committed a checkpoint yet")
    return view.last


def _hash_ranges(layout: Layout, worker: int, operator: str, count: int) -> list[tuple[int, int]]:
    """Divide the hashes that the worker owns evenly into `count` ranges."""
    shards = layout.shards_of(worker, operator.partition("~")[0])
    shift = 64 - layout.shard_bits
    first = min((one.begin << shift for one in shards), default=0)
    last = max((one.end << shift for one in shards), default=_HASHES)
    bounds = [first + (last - first) * index // count for index in range(count + 1)]
    bounds[0], bounds[-1] = (
        0,
        _HASHES,
    )  # rows outside the worker's range should not exist; if they do, show them
    return list(pairwise(bounds))


def _blocks(store: Store, part: StatePart) -> AsyncGenerator[StoredStateBlock]:
    if part.since is None:
        return blocks_at(store, part.region, part.worker, part.at)
    return blocks_between(store, part.region, part.worker, part.since, part.at)


def _schema_of(block: StoredStateBlock) -> pa.Schema:
    with pa.ipc.open_stream(block.data) as reader:
        return reader.schema


def _listed(block: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in block if field.name != HASH_COLUMN)


def _columns(block: pa.Schema, *, difference: bool) -> TableColumns:
    """Return the declared columns, and as extra ones those that begin with `_`."""
    fields = [field.remove_metadata() for field in block if field.name not in (HASH_COLUMN, DELETED_COLUMN)]
    default = [field for field in fields if not field.name.startswith("_")] or fields
    deleted = [pa.field(DELETED_COLUMN, pa.bool_())] if difference else []
    extra = [field for field in fields if field not in default]
    metadata = [pa.field(_WORKER, pa.int32()), pa.field(HASH_COLUMN, pa.int64())]
    return TableColumns(pa.schema([*default, *deleted]), pa.schema([*extra, *metadata]))


def _pieces(block: pa.RecordBatch, worker: int) -> Iterator[pa.RecordBatch]:
    hashes = block.schema.get_field_index(HASH_COLUMN)
    block = block.set_column(hashes, HASH_COLUMN, block.column(HASH_COLUMN).view(pa.int64()))
    for piece in slices(block, BATCH_ROWS):
        yield piece.append_column(_WORKER, pa.repeat(pa.scalar(worker, pa.int32()), piece.num_rows))


def _is_broadcast_table(note: OperatorNote | None) -> bool:
    """Whether a checkpoint has this of a broadcast table."""
    from dataflow.graph.plan import OperatorKind  # here, because importing dataflow takes half a second

    return note is not None and note.kind == OperatorKind.CONTROL


class _Source(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """The common part."""

    _name: str
    parse: Callable[[Mapping[str, str]], ReadOptions]
    table: Callable[[Any], InsideTable[Any]]

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._read = self.table(with_token(type(self).parse(dict(options))))

    @classmethod
    def name(cls) -> str:
        return cls._name

    def schema(self) -> StructType:
        """Return the columns of the table, or those of the option `columns`."""
        return spark_schema(columns_of(self._read))

    def reader(self, schema: StructType) -> DataSourceReader:
        check_once(self._read.options.columns, schema.names)
        return InsideReader(self._read, arrow_schema(schema))


class JournalSource(_Source):
    """Records of a journal. Raises BadOptionError, BadUrlError."""

    _name, parse, table = JOURNAL, staticmethod(parse_journal), JournalTable


class CheckpointsSource(_Source):
    """The committed checkpoints of a region. Raises as `JournalSource`."""

    _name, parse, table = CHECKPOINTS, staticmethod(parse_checkpoints), CheckpointsTable


class StateSource(_Source):
    """The state of an operator at a checkpoint. Raises as `JournalSource`."""

    _name, parse, table = STATE, staticmethod(parse_state), OperatorStateTable


SOURCES = (JournalSource, CheckpointsSource, StateSource)
