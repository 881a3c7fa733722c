"""Find the part of a chain's history that holds a moment, from the newest part backwards.

A *stretch* is the part that one replay reads: from a finished snapshot, or the chain's beginning, to the next
snapshot or the chain's end. A reader has no claim and reads committed records only (R10). A writer reads
under its claim: while that is above the chain, no reader can prove that the newest records are committed.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from dos_protocol.errors import NotFoundError
from journal.chain import inspect_chain_at, inspect_committed, take_over
from journal.core.chain import ChainState
from journal.core.errors import HistoryMissingError, HistoryTrimmedError, LostBytesError
from journal.core.file_ops import ReplayStop
from journal.core.position import NO_FLOOR, ORIGIN, Position
from journal.core.record import Record
from journal.core.segment import parse_segment_name
from journal.core.trimming import Floor
from journal.files.replaying import FileSizes, FilesReplay
from journal.ports import ClaimPort, StorePort
from journal.reading import ANY, ChainSource, read_batches, read_plain_batches, read_start
from journal.scratch import Scratch

logger: Final = logging.getLogger("dos.journal")


@dataclass(frozen=True, slots=True)
class _Line:
    """The line of history of a chain: how to read it, and the chain as it was up to a position of it."""

    name: str
    reader: ClaimPort | StorePort
    directory: str | None
    up_to: Callable[[Position], Awaitable[ChainState]]

    @classmethod
    def of_reader(cls, store: StorePort, directory: str, chain: str) -> "_Line":
        up_to = partial(inspect_chain_at, store, directory, chain)
        return cls(f"chain {chain} in {directory}", store, directory, up_to)


async def stretch_at(store: StorePort, directory: str, chain: str, stop: ReplayStop) -> ChainState:
    """Return the stretch that holds the stop; the first stretch if the stop lies before all records.

    Raises NotFoundError if nothing of the chain is committed, HistoryTrimmedError if the stretch no longer
    exists, and the errors of `inspect_chain`.
    """
    head = await inspect_committed(store, directory, chain)
    return await _find(_Line.of_reader(store, directory, chain), head, stop)


async def take_over_at(
    claim: ClaimPort, chain: str, stop: ReplayStop, *, generation: int, scratch: Scratch | None = None
) -> ChainState:
    """Take the chain over as `journal.take_over` does, up to the stop on its present line of history.

    The returned chain ends just past the last record that a replay to `stop` applies; at ORIGIN if there is
    none. The log names the former end, because a writer that continues from an earlier one leaves it. The
    whole chain is settled, because a claim settles a segment once, at one length.

    Raises NotFoundError if the chain does not exist, HistoryTrimmedError if it no longer holds the stop,
    StopNotFoundError for an unknown checkpoint, and the errors of `take_over` and of reading a chain.
    """
    head = await take_over(claim, chain, generation=generation, scratch=scratch)
    if head.end is None:
        raise NotFoundError(f"there is no chain {chain}, so it has no {stop}", remedy="open it without `at`")
    up_to = partial(_taken_up_to, claim, chain, generation, scratch)
    stretch = await _find(_Line(f"chain {chain}", claim, None, up_to), head, stop)
    replay, position = FilesReplay(FileSizes(), stop=stop), ORIGIN
    async with aclosing(read_batches(claim, stretch, scratch=scratch)) as batches:
        async for batch in batches:  # to the end, because the digests of the spans are checked there
            before = replay.records
            replay.take((at.size, record) for at, record in batch)
            if replay.records > before:
                position = batch[replay.records - before - 1][0]
    replay.finish()
    if position != head.end:
        logger.warning("chain %s: %s is %s; the chain ended at %r", chain, stop, position, head.end)
    return msgspec.structs.replace(stretch.up_to(position), released=stretch.released)


async def _taken_up_to(
    claim: ClaimPort, chain: str, generation: int, scratch: Scratch | None, at: Position
) -> ChainState:
    return await take_over(claim, chain, at=at, generation=generation, scratch=scratch)


async def _find(line: _Line, head: ChainState, stop: ReplayStop) -> ChainState:
    state = head
    while state.segments and stop.begins_before(
        state.segments[0].base, await _first_locating_record(line.reader, line.directory, state, stop)
    ):
        below = await _below(line, state, head.released)
        if below is None:
            break
        state = below
    return state


async def has_checkpoint(store: StorePort, directory: str, stretch: ChainState, stop: ReplayStop) -> bool:
    """Return whether `stretch` holds the checkpoint that `stop` names. Raises the errors of reading
    a chain.
    """
    async with aclosing(read_plain_batches(store, stretch, directory=directory)) as batches:
        async for batch in batches:
            if any(stop.ends_with(record) for _, record in batch):
                return True
    return False


async def has_locating_record(
    store: StorePort, directory: str, stretch: ChainState, stop: ReplayStop
) -> bool:
    """Return whether `stretch` holds a record by which the stop is found, or the stop is an offset. Raises
    the errors of reading a chain.
    """
    if stop.locating_op is None:
        return True
    return await _first_locating_record(store, directory, stretch, stop) is not None


async def stretch_below(
    store: StorePort, directory: str, chain: str, state: ChainState, released: Floor = NO_FLOOR
) -> ChainState | None:
    """Return the stretch before this one; None if this is the first.

    released: the floor that the head of the chain names. Raises the errors of `stretch_at`, and
    HistoryMissingError if the stretch is missing and no segment start released it.
    """
    return await _below(_Line.of_reader(store, directory, chain), state, released)


async def _below(line: _Line, state: ChainState, released: Floor) -> ChainState | None:
    span = state.segments[0]
    read = await read_start(ChainSource(line.reader, line.directory), span.name, span.length, ANY)
    assert read.start is not None, "a walk has read it"
    if read.start.end_below == ORIGIN:
        return None
    first = parse_segment_name(span.name)
    assert first is not None, "spans are of segments"
    try:
        return await line.up_to(read.start.end_below)
    except (LostBytesError, NotFoundError) as error:
        if first.order <= released:
            raise HistoryTrimmedError(f"{line.name} was trimmed: it begins at {first.base} now") from error
        raise HistoryMissingError(
            f"{line.name} begins at {first.base}: the history below is missing, and no segment start says"
            f" that it was trimmed (a region's manifest may have released it, or an archive was trimmed):"
            f" {error}"
        ) from error


async def _first_locating_record(
    reader: ClaimPort | StorePort, directory: str | None, state: ChainState, stop: ReplayStop
) -> Record | None:
    """Return the first record of a stretch that has its time or checkpoint; None if there is none."""
    locating_op = stop.locating_op
    if locating_op is None:
        return None
    async with aclosing(read_plain_batches(reader, state, directory=directory)) as batches:
        async for batch in batches:
            for _, record in batch:
                if record.op is locating_op:
                    return record
    return None
