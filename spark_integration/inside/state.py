"""`dos-state`: the state of an operator at a committed checkpoint, or what was written of it between two.

Each worker's part is one task, or several that divide its range of the key hash (`tasksPerWorker`). A task
reads the worker's whole state chain from its newest snapshot on, with the blocks of all operators, because
one chain holds them in the order in which they were written. It keeps the rows of its operator and hash
range, and folds them whenever they have doubled. So several tasks bound what each of them holds, but the
chain is read as many times; docs/spark.md has figures. The memory for one key with a large value is not
bounded.

`checkpoint.chains.state_blocks` defines the blocks, `checkpoint.chains.state_store` which of them make up a
checkpoint.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from checkpoint import Checkpoint, Layout
from checkpoint.chains.manifest_log import ManifestView, read_manifest
from checkpoint.chains.state_blocks import DELETED_COLUMN, StateFold, hash_range, slices, state_version_of
from checkpoint.chains.state_store import StoredStateBlock, blocks_at, blocks_between
from checkpoint.errors import StateNotRecordedError
from checkpoint.key_hash import HASH_COLUMN
from dos_client import Store
from dos_client.blocking import BlockingStore
from journal import LostBytesError, Position
from spark_integration.core.inside_options import StateOptions
from spark_integration.core.wording import nearest
from spark_integration.errors import DataLossError, NoSchemaError, NothingThereError, SchemaMismatchError
from spark_integration.inside.table import TableColumns
from spark_integration.limits import BATCH_ROWS

_HASHES: Final = 1 << 64
_WORKER: Final = "_worker"


class StatePart(NamedTuple):
    """What one task reads: hashes in [`begin`, `end`) of a worker's state chain.

    `region`: whose chain. `at`, `since`: its positions in the checkpoint and in the earlier one.
    """

    region: str
    worker: int
    at: Position
    since: Position | None
    begin: int
    end: int


class OperatorStateTable:
    """The format `dos-state`; the methods are those of `InsideTable`."""

    def __init__(self, options: StateOptions) -> None:
        self.options = options

    @property
    def what(self) -> str:
        checkpoint = "" if self.options.checkpoint is None else f" at checkpoint {self.options.checkpoint}"
        return f"state of operator {self.options.operator} of region {self.options.region}{checkpoint}"

    async def columns(self, store: Store) -> TableColumns:
        """Return the columns of the first block; if nothing was written since, those of the whole state."""
        parts, tables = await self._parts(store), set[str]()
        whole_state = [part._replace(since=None) for part in parts if part.since is not None]
        for part in (*parts, *whole_state):
            async with aclosing(_blocks(store, part)) as blocks:
                async for block in blocks:
                    if block.operator == self.options.operator:
                        return _columns(_schema_of(block), difference=self.options.since is not None)
                    tables.add(block.operator)
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
        parts = []
        is_everywhere = _is_broadcast_table(checkpoint.operators.get(options.operator, ""))
        for worker, part in sorted(checkpoint.workers.items()):
            if since is not None and since.layout != checkpoint.layout and not is_everywhere:
                reason = f"its keys were on other workers in checkpoint {since.number}"
                raise StateNotRecordedError(worker, reason)
            if since is not None and since.in_origin != checkpoint.in_origin:
                reason = f"checkpoint {since.number} is in the journals of another region, as a fork begins"
                raise StateNotRecordedError(worker, reason)
            for begin, end in _hash_ranges(
                checkpoint.layout, worker, options.operator, options.tasks_per_worker
            ):
                before = None if since is None else since.workers[worker].state
                region = checkpoint.chains_of(options.region)
                parts.append(StatePart(region, worker, part.state, before, begin, end))
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
                if block.operator != self.options.operator:
                    continue
                rows = block.decoded()
                self._check_same(schema or rows.schema, rows.schema)
                schema = rows.schema
                fold.add(block.operator, hash_range(rows, part.begin, part.end))
        except LostBytesError as error:
            self._raise_missing(store, error)
        folded = fold.take(self.options.operator)
        if folded is not None:
            yield from _pieces(folded, part.worker)

    def _check_same(self, before: pa.Schema, now: pa.Schema) -> None:
        if before.equals(now, check_metadata=True):
            return
        one, other = (f"version {state_version_of(schema)} ({_listed(schema)})" for schema in (before, now))
        raise SchemaMismatchError(
            f"{self.what}: a migration left some of it in {one} and some in {other}",
            remedy="read a later checkpoint: the first snapshot after a migration has only the new version",
        )

    def _raise_missing(self, store: BlockingStore, error: LostBytesError) -> None:
        """Raise CheckpointReleasedError if that is the reason, otherwise DataLossError."""
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
    """Divide the hashes that the worker owns evenly into `count` ranges.

    The first and last are extended, so that rows outside the worker's range, which should not exist, are
    read.
    """
    shards = layout.shards_of(worker, operator.partition("~")[0])
    shift = 64 - layout.shard_bits
    first = min((one.begin << shift for one in shards), default=0)
    last = max((one.end << shift for one in shards), default=_HASHES)
    bounds = [first + (last - first) * index // count for index in range(count + 1)]
    bounds[0], bounds[-1] = 0, _HASHES
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
    """Return the declared columns, and as extra ones those that begin with `_`.

    A difference also has a column with whether a key was deleted.
    """
    fields = [field.remove_metadata() for field in block if field.name not in (HASH_COLUMN, DELETED_COLUMN)]
    default = [field for field in fields if not field.name.startswith("_")] or fields
    deleted = [pa.field(DELETED_COLUMN, pa.bool_())] if difference else []
    extra = [field for field in fields if field not in default]
    metadata = [pa.field(_WORKER, pa.int32()), pa.field(HASH_COLUMN, pa.int64())]
    return TableColumns(pa.schema([*default, *deleted]), pa.schema([*extra, *metadata]))


def _pieces(block: pa.RecordBatch, worker: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces of the size that Spark handles well."""
    hashes = block.schema.get_field_index(HASH_COLUMN)
    block = block.set_column(hashes, HASH_COLUMN, block.column(HASH_COLUMN).view(pa.int64()))
    for piece in slices(block, BATCH_ROWS):
        yield piece.append_column(_WORKER, pa.repeat(pa.scalar(worker, pa.int32()), piece.num_rows))


def _is_broadcast_table(description: str) -> bool:
    """Whether a checkpoint's description of an operator is that of a broadcast table."""
    from dataflow.graph.plan import OperatorKind  # here, because importing dataflow takes half a second

    return description.partition(" ")[0] == OperatorKind.CONTROL


__all__ = ["OperatorStateTable", "StatePart"]
