"""`dos-journal`: the records of a chain, or of an object that holds a journal, as in `dos journal dump`.

A chain shows what a reader may see: committed records, from its newest finished snapshot on. Each segment is
one task, which reads it from its beginning, because otherwise its digest could not be checked. An object is
one task. `journal.inspecting` reads.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from checkpoint import Checkpoint, output_chain, region_of_worker
from checkpoint.chains.directory_store import directory_chain
from checkpoint.chains.manifest_log import read_manifest
from checkpoint.chains.state_store import STATE_CHAIN
from checkpoint.chains.steps_log import STEPS_CHAIN
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
from spark_integration.core.inside_options import JournalOptions, JournalPoint
from spark_integration.core.wording import nearest
from spark_integration.errors import BadOptionError, DataLossError, NothingThereError
from spark_integration.inside.table import TableColumns
from spark_integration.limits import BATCH_ROWS
from spark_integration.reading.decoding import signed

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


class JournalTable:
    """The format `dos-journal`; the methods are those of `InsideTable`."""

    def __init__(self, options: JournalOptions) -> None:
        self.options = options

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


__all__ = ["JournalPart", "JournalTable"]
