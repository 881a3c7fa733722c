"""Taking a chain over and looking at it: the shell around `core/walk.py` and `core/read_walk.py`.

Rules of this file: it performs what a walk asks for, in the order in which the walk asks, and reports back.
"""

import logging
from collections import deque
from typing import Final

from dos_client.errors import MissingDataError, QuorumUnavailableError
from dos_protocol.errors import CorruptError, NotFoundError, PoisonedError
from journal.core.chain import ChainState
from journal.core.errors import LostBytesError, NotEnoughAnswersError
from journal.core.position import Position
from journal.core.read_walk import ReadWalk, ReadWalkAt
from journal.core.walk import TakeOver
from journal.core.walk_vocabulary import (
    Effect,
    Event,
    FindSnapshot,
    ReadStart,
    Settle,
    Settled,
    SnapshotFound,
    StartRead,
    Surveyed,
    SurveySegment,
    WalkDone,
)
from journal.limits import answers_wait_s
from journal.ports import ClaimPort, StorePort
from journal.reading import ChainSource, find_snapshot, read_start, survey
from journal.scratch import Scratch

logger: Final = logging.getLogger("dos.journal")


async def take_over(
    claim: ClaimPort,
    chain: str,
    *,
    at: Position | None = None,
    generation: int,
    wait_s: float = answers_wait_s,
    scratch: Scratch | None = None,
) -> ChainState:
    """The chain to go on from, whole and synced on the quorum (rules R5-R7).

    at: the position ordered (R13): the chain ends there whatever lies about; ORIGIN for nothing at all.
    None: the chain's head decides. generation: of the store record in use; a segment opened under a newer
    one is refused. wait_s: how long members that have not answered the claim are waited for, if their
    answer is needed. scratch: where members that lack some of the chain are filled from, as far as it
    proves right. A member whose answer was counted and that went away since is waited for likewise.

    Nothing that was read may be acted on before the new segment's start is acknowledged: `ChainWriter.open`
    (R8). Returns a state whose `end` is None if the journal never existed, which takes the answer of every
    member (R16). Raises NotEnoughAnswersError, LostBytesError, ChainError, CorruptRecordError,
    UnknownRecordError, StaleGenerationError, FencedError, EpochUsedTwiceError. QuorumUnavailableError: what
    a member said when it took the claim it cannot give any more; a new claim, with answers of its own,
    decides. Cancelled or failed, it can be called again.
    """
    try:
        return await _take_over_once(claim, chain, at, generation, scratch)
    except (NotEnoughAnswersError, QuorumUnavailableError):
        if wait_s <= 0:
            raise
    await claim.wait_all(wait_s)
    return await _take_over_once(claim, chain, at, generation, scratch)


async def look_chain(
    store: StorePort,
    directory: str,
    chain: str,
    *,
    measured: bool = True,
    proved: Position | None = None,
) -> ChainState:
    """The chain as a reader may see it: what is committed, and nothing else (R10). Claims nothing.

    `end` is None if nothing of it is committed, or it never existed; `seen` tells the two apart.
    measured: the newest segment is read to find where its last whole record ends. False is quick whatever
    its size, for readers who find that themselves: the last span may end within a record, and its digest
    and that of `end` are 0.
    proved: a position that a committed checkpoint names. It is committed whatever claims there are, so the
    chain reaches to it at least, also while a take-over that did not complete keeps the members from proving
    it (decision 0204). Without it, `unproved` tells how much is there that is not shown for that reason.
    Raises LostBytesError, ChainError, CorruptRecordError, UnknownRecordError, StaleGenerationError, and
    what the store raises if too few members answer.
    """
    view = await store.look(directory)
    claims = {member: epoch for member, (epoch, _) in view.epochs.items()}
    walk = ReadWalk(chain, store.record, view.answers, claims, view.filled, measured=measured)
    state = await _walk(walk, store, directory)
    if proved is None or state.holds(proved):
        return state
    return await _walk(ReadWalkAt(chain, store.record, view.answers, proved, 0), store, directory)


async def look_committed(store: StorePort, directory: str, chain: str) -> ChainState:
    """As `look_chain`, of a chain that must be there. Logs a warning if not all of it can be shown. Raises
    NotFoundError if nothing of it is committed.
    """
    state = await look_chain(store, directory, chain)
    if state.end is None:
        more = f"; {state.unproved_text}" if state.unproved else ""
        raise NotFoundError(f"{directory} has no chain {chain} of which anything is committed{more}")
    if state.unproved:
        logger.warning("%s: %s", directory, state.unproved_text)
    return state


async def look_chain_at(
    store: StorePort, directory: str, chain: str, at: Position, *, floor: int = 0
) -> ChainState:
    """The chain up to a position in it that a committed cut names, down to the segment in which `floor` lies.

    Raises as `look_chain`.
    """
    view = await store.look(directory)
    return await _walk(ReadWalkAt(chain, store.record, view.answers, at, floor), store, directory)


async def _walk(walk: ReadWalk | ReadWalkAt, store: StorePort, directory: str) -> ChainState:
    source = ChainSource(store, directory)
    waiting = deque(walk.begin())
    while True:
        effect = waiting.popleft()
        if isinstance(effect, WalkDone):
            return effect.state
        assert not isinstance(effect, Settle), "a reader settles nothing"
        waiting.extend(walk.handle(await _read(source, effect)))


async def _take_over_once(
    claim: ClaimPort, chain: str, at: Position | None, generation: int, scratch: Scratch | None
) -> ChainState:
    try:
        return await _walk_down(claim, chain, at, generation, scratch)
    except (CorruptError, PoisonedError) as error:
        raise QuorumUnavailableError(
            "a member's copy, sound when it took the claim, is damaged; take over again, with a new claim",
            [str(error.args[0])],
        ) from error


async def _walk_down(
    claim: ClaimPort, chain: str, at: Position | None, generation: int, scratch: Scratch | None
) -> ChainState:
    walk = TakeOver(chain, claim.store.record, claim.answers, generation=generation, at=at)
    source = ChainSource(claim)
    waiting: deque[Effect] = deque(walk.begin())
    while True:
        effect = waiting.popleft()
        event: Event
        if isinstance(effect, WalkDone):
            return effect.state
        if isinstance(effect, Settle):
            await _settle(claim, effect, scratch)
            event = Settled(effect.segment)
        else:
            event = await _read(source, effect)
        waiting.extend(walk.handle(event))


async def _settle(claim: ClaimPort, effect: Settle, scratch: Scratch | None) -> None:
    local = None if scratch is None else scratch.copy(effect.segment)
    try:
        await claim.settle(effect.segment, effect.length, effect.digest, local)
    except MissingDataError as error:
        raise LostBytesError(f"the chain names bytes that are not there: {error}") from error


async def _read(
    source: ChainSource, effect: ReadStart | SurveySegment | FindSnapshot
) -> StartRead | Surveyed | SnapshotFound:
    name, length, members = effect.segment, effect.length, effect.members
    if isinstance(effect, ReadStart):
        return await read_start(source, name, length, members)
    if isinstance(effect, FindSnapshot):
        return SnapshotFound(name, await find_snapshot(source, name, length, members))
    found = await survey(source, name, length, members, effect.within, effect.lengths)
    return Surveyed(name, found)
