"""A chain whose last record is a whole state: read by anybody, replaced under a claim.

Each change takes the chain over and opens a segment that begins with a snapshot, the new state; so changes
exclude each other. The record ends with the claim epochs of the last changes: a change that was fenced after
its write finds its own epoch there, and is not made again.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

import msgspec
import trio

from dos_client import Claim, DirectoryView, QuorumUnavailableError, Store, backoff_s
from dos_client import randomness as rng
from dos_protocol.errors import FencedError, NotFoundError, StaleGenerationError
from dos_protocol.store_record import StoreRecord
from journal import limits
from journal.chain import inspect_chain, take_over
from journal.core.chain import ORIGIN, ChainState, Position, below, segments_seen
from journal.core.errors import LostBytesError, NotEnoughAnswersError, UnsettledStateError
from journal.core.record import Op, Record
from journal.ports import ClaimPort, DirectoryViewPort, StorePort
from journal.reading import read_records
from journal.writer import ChainWriter

logger = logging.getLogger("dos.journal")


EPOCHS_MAX: Final = 32
"""So many changes may be made between two attempts of one, which still finds out that it was made."""


class StatePlace(NamedTuple):
    directory: str
    chain: str
    op: Op


class StateRecord(NamedTuple):
    record: Record
    end: int

    @property
    def epochs(self) -> tuple[int, ...]:
        """The claim epochs of the last changes, oldest first."""
        return self.record.ints[1:]


class StateClaimPort(ClaimPort, Protocol):
    """A claim as a change uses it; see `dos_client.Claim`."""

    async def wait_collected(self, timeout_s: float) -> bool: ...

    async def aclose(self) -> None: ...


class StateView(DirectoryViewPort, Protocol):
    """A read view of a directory. `epoch_seen`: the highest claim that any member reports."""

    @property
    def epoch_seen(self) -> int: ...


class StateHost(Protocol):
    """The store, clock and random numbers of a change."""

    @property
    def record(self) -> StoreRecord: ...

    async def inspect(self, directory: str) -> StateView: ...

    async def claim(self, directory: str, epoch: int, patience_s: float) -> StateClaimPort | None:
        """None if it is not granted within `patience_s` seconds. Raises FencedError."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def rng(self) -> float: ...


class StoreStateHost:
    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def record(self) -> StoreRecord:
        return self._store.record

    async def inspect(self, directory: str) -> DirectoryView:
        return await self._store.inspect(directory)

    async def claim(self, directory: str, epoch: int, patience_s: float) -> Claim | None:
        with trio.move_on_after(patience_s):
            return await self._store.claim(directory, epoch, rng.fresh_id())
        return None

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def rng(self) -> float:
        return rng.jitter()


async def read_state(store: StorePort, place: StatePlace) -> StateRecord | None:
    """Return the committed state; None if there is none. Claims nothing. While another process changes it,
    waits about two seconds, then raises UnsettledStateError. Raises CorruptDataError, QuorumUnavailableError,
    and what reading a chain raises.
    """
    # While another process changes it, the newest state cannot be proved, and an older segment may still be
    # on some member. That one may lack a change that was acknowledged.
    for _ in range(limits.state_reads_max):
        try:
            chain = await inspect_chain(store, place.directory, place.chain)
            # An unproved state may be newer than the one that is proved, and acknowledged: never return the
            # older.
            if not chain.unproved:
                return await _last(read_records(store, chain, directory=place.directory), place.op)
            reason = chain.unproved_text
        except (LostBytesError, NotFoundError) as error:  # a change has deleted what was found a moment ago
            reason = str(error)
        await trio.sleep(limits.state_poll_s)
    raise UnsettledStateError(place.directory, reason)


async def _last(steps: AsyncGenerator[tuple[Position, Record]], op: Op) -> StateRecord | None:
    found: StateRecord | None = None
    async with aclosing(steps) as records:
        async for end, record in records:
            if record.op is op:
                found = StateRecord(record, end.size)
    return found


async def change_state(
    host: StateHost, place: StatePlace, change: Callable[[StateRecord | None], Record | None]
) -> Record | None:
    """Replace the state by `change` of it, once, and return what `change` returned when the quorum holds it.
    `change` may be called several times. Its record has one int, the wall clock; None leaves the state as it
    is, which must exist.

    Waits while too few members answer. Raises what `change` raises, with nothing changed, and what taking a
    chain over raises. After a cancellation the change may be made or not, and the state cannot be read until
    it is changed again.
    """
    attempt, directory = 0, place.directory
    tried = dict[int, Record]()
    while True:
        try:
            view = await host.inspect(directory)
            claim = await host.claim(directory, view.epoch_seen + 1, limits.state_claim_patience_s)
            if claim is not None:
                try:
                    return await _change(claim, host, place, change, tried)
                finally:
                    await claim.aclose()
        except FencedError as error:  # another process changes it too, and is done soon
            logger.debug("%s: %s", directory, error)
        except (QuorumUnavailableError, NotEnoughAnswersError, StaleGenerationError) as error:
            logger.info("%s cannot be changed yet: %s", directory, error)
        attempt += 1
        await host.sleep(backoff_s(attempt, host.rng()))


async def _change(
    claim: StateClaimPort,
    host: StateHost,
    place: StatePlace,
    change: Callable[[StateRecord | None], Record | None],
    tried: dict[int, Record],
) -> Record | None:
    """Make the change, unless an earlier attempt has. tried: epoch -> what its attempt has written."""
    chain = await _take(claim, place.chain, host.record.generation)
    before = await _last(read_records(claim, chain), place.op)
    epochs = before.epochs if before else ()
    refused: Exception | None = None
    # An attempt that was fenced after its write may have been kept: made again, it would be made twice.
    changed = next((tried[one] for one in epochs if one in tried), None)
    state = before and before.record
    if changed is None:
        try:
            changed = change(before)
        except Exception as error:  # the take-over is completed all the same, for readers
            refused = error
        if changed is not None:
            kept = (*epochs, claim.epoch)[-EPOCHS_MAX:]
            state = msgspec.structs.replace(changed, ints=(*changed.ints, *kept))
            tried[claim.epoch] = changed
    snapshot = None if state is None else [state]
    writer = await ChainWriter.open(claim, chain.chain, chain, host.record.generation, None, snapshot)
    try:
        await writer.wait_synced()
        if snapshot is not None:
            claim.collect(below({place.chain: writer.floor}))  # the new state is acknowledged (R14)
            await claim.wait_collected(limits.state_tidy_s)
    finally:
        await writer.aclose()
    if refused is not None:
        raise refused
    return changed


async def _take(claim: ClaimPort, chain: str, generation: int) -> ChainState:
    # R16 asks every member before a chain is begun, because a chain that is begun twice would have two lines
    # of history. Here the newest segment has the whole state, and a state that was ever acknowledged is on
    # one of the members that answered: so a change can be made while a member is unavailable.
    begun = any(seen.longest for seen in segments_seen(chain, claim.answers))
    return await take_over(claim, chain, at=None if begun else ORIGIN, generation=generation)
