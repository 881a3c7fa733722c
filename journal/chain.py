"""Take over a chain as its writer, or find its committed part as a reader.

The shell around `core/walk.py` and `core/read_walk.py`: it performs each effect in the order in which the
walk returns it, and decides nothing.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import trio

from dos_client.errors import MissingDataError, QuorumUnavailableError
from dos_protocol.errors import BusyError, CorruptError, NotFoundError, PoisonedError
from journal.core.chain import NO_FLOOR, ChainState, Floor, Position
from journal.core.errors import LostBytesError, NotEnoughAnswersError
from journal.core.read_walk import ReadWalk, ReadWalkAt
from journal.core.walk import (
    ChainWalk,
    Event,
    FindSnapshot,
    ReadStart,
    Settle,
    Settled,
    SnapshotFound,
    Surveyed,
    TakeOver,
    WalkDone,
)
from journal.limits import answers_wait_s, late_answer_tries, listing_tries_max, removal_pause_s
from journal.ports import ClaimPort, DirectoryViewPort, StorePort
from journal.reading import ChainSource, find_snapshot, read_start, survey
from journal.scratch import Scratch

logger: Final = logging.getLogger("dos.journal")


async def take_over(
    claim: ClaimPort,
    chain: str,
    *,
    at: Position | None = None,
    proved: Position | None = None,
    generation: int,
    wait_s: float = answers_wait_s,
    scratch: Scratch | None = None,
    released: Floor = NO_FLOOR,
) -> ChainState:
    """Return the chain to continue, after every byte of it is synced on the quorum (rules R5-R7). Do not act
    on what is read from it before `ChainWriter.open` returns (R8).

    at: end the chain at this position, even if longer or newer segments exist (R13); ORIGIN for an empty
    chain. proved, released: as of `TakeOver`. generation: that of the store record in use; a newer segment is
    rejected. wait_s: for members whose answer is needed and missing. scratch: a local cache to fill members
    from.

    The `end` is None if the journal never existed, which requires the answer of every member (R16). Raises
    the errors of `TakeOver`, CorruptRecordError, UnknownRecordError, FencedError, QuorumUnavailableError. May
    be called again after a failure or a cancellation.
    """

    async def once() -> ChainState:
        walk = TakeOver(
            chain,
            claim.store.record,
            claim.answers,
            generation=generation,
            at=at,
            proved=proved,
            released=released,
        )
        try:
            return await _walk(walk, ChainSource(claim), lambda effect: _settle(claim, effect, scratch))
        # The member listed bytes that it cannot serve: only a new claim brings answers that count without it.
        except (CorruptError, PoisonedError) as error:
            raise QuorumUnavailableError(
                "a member's copy, sound when it took the claim, is damaged; take over again, with a new"
                " claim",
                [str(error.args[0])],
            ) from error

    try:
        return await once()
    except (NotEnoughAnswersError, QuorumUnavailableError):
        if wait_s <= 0:
            raise
    # An answer that arrives late may be the one that was missing: the second try uses all of them.
    await claim.wait_all(wait_s)
    return await once()


async def inspect_claimed(
    claim: ClaimPort, chain: str, *, at: Position | None = None, generation: int
) -> ChainState:
    """Return the chain as `take_over` finds it, with its errors, but sync nothing: take over at the position
    that was chosen before anything that was read is acted on.
    """
    walk = TakeOver(chain, claim.store.record, claim.answers, generation=generation, at=at)

    async def leave(_: Settle) -> None:
        """Settle nothing."""

    return await _walk(walk, ChainSource(claim), leave)


async def inspect_chain(
    store: StorePort,
    directory: str,
    chain: str,
    *,
    measured: bool = True,
    proved: Position | None = None,
    floor: int | None = None,
) -> ChainState:
    """Return the committed part of a chain, and nothing else (R10). Takes no claim.

    measured, floor: as of `ReadWalk`; a floor of None is the lowest offset that is not released. proved: a
    position that a committed checkpoint names; the result reaches at least to it.

    If `unproved` of the result is 0, everything is returned that was acknowledged before the call; otherwise
    more may have been: see `inspect_whole`. `end` is None if nothing is committed or the chain never existed;
    `seen` distinguishes the two. Raises LostBytesError, ChainError, CorruptRecordError, UnknownRecordError,
    StaleGenerationError, BusyError, and the errors of the store.
    """
    state, view = await _inspect_once(store, directory, chain, measured=measured, floor=floor)
    reach = state.size + state.unproved
    for _ in range(late_answer_tries):
        if not state.unproved or (proved is not None and state.claimed):
            break
        if state.claimed and len(view.answers) == len(store.record.voters):
            break
        state, view = await _inspect_once(store, directory, chain, measured=measured, floor=floor)
        # What is beyond the first reach was appended after the call: nothing acknowledged before it is left
        # out.
        if state.size >= reach:
            state = msgspec.structs.replace(state, unproved=0, claimed=0)
    if proved is None or state.holds(proved):
        return state
    # A position that a checkpoint names is committed regardless of the claims, even while an incomplete
    # take-over prevents the members from proving it (decision 0204).
    walk = ReadWalkAt(chain, store.record, view.answers, proved, floor or 0)
    found = await _inspect(walk, store, directory)
    left_out = max(state.size + state.unproved - found.size, 0) if state.unproved else 0
    return msgspec.structs.replace(found, unproved=left_out, claimed=state.claimed if left_out else 0)


async def inspect_whole(
    store: StorePort, directory: str, chain: str, *, floor: int | None = None
) -> ChainState:
    """Return the chain with everything that was acknowledged before the call. Raises QuorumUnavailableError
    if that cannot be proved now, and the errors of `inspect_chain`.
    """
    state = await inspect_chain(store, directory, chain, floor=floor)
    if state.unproved:
        raise QuorumUnavailableError(f"{directory}: {state.unproved_text}")
    return state


def report_unproved(directory: str, state: ChainState) -> None:
    """Raise QuorumUnavailableError if members that are unavailable know of more than `state` has; log a
    warning after a take-over that did not complete.
    """
    if state.unproved and not state.claimed:
        raise QuorumUnavailableError(f"{directory}: {state.unproved_text}")
    if state.unproved:
        logger.warning("%s: %s", directory, state.unproved_text)


async def _inspect_once(
    store: StorePort, directory: str, chain: str, *, measured: bool, floor: int | None
) -> tuple[ChainState, DirectoryViewPort]:
    tries = listing_tries_max
    while True:
        view = await store.inspect(directory)
        claims = {member: epoch for member, (epoch, _) in view.epochs.items()}
        walk = ReadWalk(
            chain, store.record, view.answers, claims, view.filled, measured=measured, floor=floor
        )
        try:
            return await _inspect(walk, store, directory), view
        except (NotFoundError, BusyError) as error:
            # A segment that was listed is gone, or is being removed: its writer trimmed the chain meanwhile.
            # A new list shows it.
            tries -= 1
            if not tries:
                raise
            if isinstance(error, BusyError):
                await trio.sleep(removal_pause_s)


async def inspect_committed(store: StorePort, directory: str, chain: str) -> ChainState:
    """Return the committed part of a chain; log a warning if some of it is unproved. Raises NotFoundError if
    nothing is committed, and the errors of `inspect_chain`.
    """
    state = await inspect_chain(store, directory, chain)
    if state.end is None:
        more = f"; {state.unproved_text}" if state.unproved else ""
        raise NotFoundError(f"{directory} has no committed record of a chain {chain}{more}")
    if state.unproved:
        logger.warning("%s: %s", directory, state.unproved_text)
    return state


async def inspect_chain_at(
    store: StorePort, directory: str, chain: str, at: Position, *, floor: int = 0
) -> ChainState:
    """Return the chain from `floor` up to `at`, a position that a committed checkpoint names. Raises as
    `inspect_chain`.
    """
    view = await store.inspect(directory)
    return await _inspect(ReadWalkAt(chain, store.record, view.answers, at, floor), store, directory)


async def _inspect(walk: ChainWalk, store: StorePort, directory: str) -> ChainState:
    return await _walk(walk, ChainSource(store, directory, waits=False))  # a new list of segments is quicker


async def _walk(
    walk: ChainWalk, source: ChainSource, settle: Callable[[Settle], Awaitable[None]] | None = None
) -> ChainState:
    waiting = deque(walk.begin())
    while True:
        effect = waiting.popleft()
        event: Event
        if isinstance(effect, WalkDone):
            return effect.state
        name, length = effect.segment, effect.length
        if isinstance(effect, Settle):
            assert settle is not None, "a reader settles nothing"
            await settle(effect)
            event = Settled(name)
        elif isinstance(effect, ReadStart):
            event = await read_start(source, name, length, effect.members)
        elif isinstance(effect, FindSnapshot):
            event = SnapshotFound(name, await find_snapshot(source, name, length, effect.members))
        else:
            found = await survey(source, name, length, effect.members, effect.within, effect.lengths)
            event = Surveyed(name, found)
        waiting.extend(walk.handle(event))


async def _settle(claim: ClaimPort, effect: Settle, scratch: Scratch | None) -> None:
    local = None if scratch is None else scratch.copy(effect.segment)
    try:
        await claim.settle(effect.segment, effect.length, effect.digest, local)
    except MissingDataError as error:
        raise LostBytesError(f"the chain names bytes that are not there: {error}") from error
