"""The history of a chain of files, backwards: from the newest stretch to the one in which a moment lies.

A *stretch* is what a replay reads in one go: from a finished snapshot (or the chain's beginning) to the
snapshot after it, or to the chain's end. Rules of this file: which stretches there are and which one a stop
lies in. Nothing is claimed; what is read is what a reader may see (R10).
"""

from contextlib import aclosing

from dos_protocol.errors import NotFoundError
from journal.chain import look_chain_at, look_committed
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
    """The stretch in which the stop lies; the first one if it lies before everything.

    Raises NotFoundError if nothing of the chain is committed, HistoryTrimmedError if that stretch is not
    there any more, and what `look_chain` raises.
    """
    state = head = await look_committed(store, directory, chain)
    while state.segments and stop.begins_before(
        state.segments[0].base, await _first_that_tells(store, directory, state, stop)
    ):
        below = await stretch_below(store, directory, chain, state, head.released)
        if below is None:
            break
        state = below
    return state


async def has_cut(store: StorePort, directory: str, stretch: ChainState, stop: ReplayStop) -> bool:
    """Whether the cut that a stop names is in the stretch in which it would lie. Raises as reading does."""
    async with aclosing(read_plain_batches(store, stretch, directory=directory)) as batches:
        async for batch in batches:
            if any(stop.ends_with(record) for _, record in batch):
                return True
    return False


async def stretch_below(
    store: StorePort, directory: str, chain: str, state: ChainState, released: Floor = NO_FLOOR
) -> ChainState | None:
    """The stretch on which this one stands; None if it is the first. released: as the chain's head says.
    Raises as `stretch_at`; HistoryMissingError if nothing in the chain explains that it is not there.
    """
    below = await _stands_on(store, directory, state)
    if below == ORIGIN:
        return None
    first = parse_segment_name(state.segments[0].name)
    assert first is not None, "spans are of segments"
    try:
        return await look_chain_at(store, directory, chain, below)
    except (LostBytesError, NotFoundError) as error:
        where = f"chain {chain} in {directory}"
        if first.order <= released:
            raise HistoryTrimmedError(f"{where} was trimmed: it begins at {first.base} now") from error
        raise HistoryMissingError(
            f"{where} begins at {first.base}: what lies below is gone, and no start of a segment says that it"
            f" was trimmed (a region's manifest may have released it): {error}"
        ) from error


async def _first_that_tells(
    store: StorePort, directory: str, state: ChainState, stop: ReplayStop
) -> Record | None:
    """The first record of a stretch that says when it begins, or at which cut; None if none does."""
    tells = stop.tells
    if tells is None:
        return None
    async with aclosing(read_plain_batches(store, state, directory=directory)) as batches:
        async for batch in batches:
            for _, record in batch:
                if record.op is tells:
                    return record
    return None


async def _stands_on(store: StorePort, directory: str, state: ChainState) -> Position:
    """The end of the history below a stretch."""
    first = state.segments[0]
    read = await read_start(ChainSource(store, directory), first.name, first.length, ())
    assert read.start is not None, "a walk has read it"
    return read.start.stands_on
