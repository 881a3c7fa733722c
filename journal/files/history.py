"""Find the part of a chain's history that holds a moment, from the newest part backwards.

A *stretch* is the part that one replay reads: from a finished snapshot, or the chain's beginning, to the next
snapshot or the chain's end. This module takes no claim and reads committed records only (R10).
"""

from contextlib import aclosing

from dos_protocol.errors import NotFoundError
from journal.chain import inspect_chain_at, inspect_committed
from journal.core.chain import ChainState
from journal.core.errors import HistoryMissingError, HistoryTrimmedError, LostBytesError
from journal.core.file_ops import ReplayStop
from journal.core.position import NO_FLOOR, ORIGIN, Position
from journal.core.record import Record
from journal.core.segment import parse_segment_name
from journal.core.trimming import Floor
from journal.ports import StorePort
from journal.reading import ChainSource, read_plain_batches, read_start


async def stretch_at(store: StorePort, directory: str, chain: str, stop: ReplayStop) -> ChainState:
    """Return the stretch that holds the stop; the first stretch if the stop lies before all records.

    Raises NotFoundError if nothing of the chain is committed, HistoryTrimmedError if the stretch no longer
    exists, and the errors of `inspect_chain`.
    """
    state = head = await inspect_committed(store, directory, chain)
    while state.segments and stop.begins_before(
        state.segments[0].base, await _first_locating_record(store, directory, state, stop)
    ):
        below = await stretch_below(store, directory, chain, state, head.released)
        if below is None:
            break
        state = below
    return state


async def has_cut(store: StorePort, directory: str, stretch: ChainState, stop: ReplayStop) -> bool:
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
    below = await _end_below(store, directory, state)
    if below == ORIGIN:
        return None
    first = parse_segment_name(state.segments[0].name)
    assert first is not None, "spans are of segments"
    try:
        return await inspect_chain_at(store, directory, chain, below)
    except (LostBytesError, NotFoundError) as error:
        chain_text = f"chain {chain} in {directory}"
        if first.order <= released:
            raise HistoryTrimmedError(f"{chain_text} was trimmed: it begins at {first.base} now") from error
        raise HistoryMissingError(
            f"{chain_text} begins at {first.base}: the history below is missing, and no segment start says"
            f" that it was trimmed (a region's manifest may have released it, or an archive was trimmed):"
            f" {error}"
        ) from error


async def _first_locating_record(
    store: StorePort, directory: str, state: ChainState, stop: ReplayStop
) -> Record | None:
    """Return the first record of a stretch that has its time or checkpoint; None if there is none."""
    locating_op = stop.locating_op
    if locating_op is None:
        return None
    async with aclosing(read_plain_batches(store, state, directory=directory)) as batches:
        async for batch in batches:
            for _, record in batch:
                if record.op is locating_op:
                    return record
    return None


async def _end_below(store: StorePort, directory: str, state: ChainState) -> Position:
    """Return the end of the history below a stretch."""
    first = state.segments[0]
    read = await read_start(ChainSource(store, directory), first.name, first.length, ())
    assert read.start is not None, "a walk has read it"
    return read.start.end_below
