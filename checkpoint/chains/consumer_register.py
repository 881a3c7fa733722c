"""The register of the consumers of an input or an output, in the store beside the data: read by anybody,
changed under a claim. `core/consumers.py` has the meaning.

A register is a chain of whole states: each change takes the chain over and opens a segment that begins with a
snapshot, the new state. Changes exclude each other by the claim: of two at one time, the later claimant sees
the result of the other. A region registers here before it reads, so a change is acknowledged by the quorum
when it returns, and everyone who reads the register afterwards sees it.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import trio

from checkpoint import limits
from checkpoint.chains.chain_store import TakenChain
from checkpoint.chains.manifest_reading import retained_checkpoints
from checkpoint.coordinator.manifest_host import ManifestClaimPort, ManifestHost, StoreHost
from checkpoint.core.consumers import (
    QUERY_PREFIX,
    Register,
    RegisterPlace,
    decode_register,
    encode_register,
    need_of,
    trimmed_because,
    with_consumer,
)
from checkpoint.errors import RegisterUnsettledError
from checkpoint.runtime import wall_time_ms
from dos_client import QuorumUnavailableError, Store, backoff_s
from dos_protocol.errors import FencedError, NotFoundError, StaleGenerationError
from journal import (
    ORIGIN,
    LostBytesError,
    NotEnoughAnswersError,
    Op,
    Position,
    Record,
    below,
    inspect_chain,
    read_records,
    segments_seen,
)
from journal.ports import ClaimPort, StorePort

logger = logging.getLogger("dos.checkpoint")


async def read_register(store: StorePort, place: RegisterPlace) -> Register:
    """Return the committed register; an empty one if there is none. Claims nothing.

    While another process changes it, the newest state cannot be proved, and an older segment may still be on
    some member. That one may lack a consumer whose registration was acknowledged, so it is not returned:
    waits about two seconds for the change, then raises RegisterUnsettledError.

    Raises CorruptDataError, QuorumUnavailableError, and what reading a chain raises.
    """
    for _ in range(limits.register_reads_max):
        try:
            chain = await inspect_chain(store, place.directory, place.chain)
            if not chain.unproved:
                return await _last_state(read_records(store, chain, directory=place.directory), place)
            reason = chain.unproved_text
        except (LostBytesError, NotFoundError) as error:  # a change has deleted what was found a moment ago
            reason = str(error)
        await trio.sleep(limits.register_poll_s)
    raise RegisterUnsettledError(place.directory, reason)


async def why_trimmed(store: StorePort, place: RegisterPlace) -> str:
    """Return why rows were trimmed, for the error of a reader. Raises what reading a chain raises."""
    try:
        return trimmed_because(await read_register(store, place))
    except RegisterUnsettledError as error:
        return f"{error}"


async def settled_register(store: Store, place: RegisterPlace) -> Register:
    """Return the register as `read_register` does. If a process died while it changed the register, settle
    it first, which claims it.
    """
    try:
        return await read_register(store, place)
    except RegisterUnsettledError as error:
        logger.warning("%s", error)
        return await change_register(StoreHost(store), place, lambda register: register)


async def _last_state(steps: AsyncGenerator[tuple[Position, Record]], place: RegisterPlace) -> Register:
    found = Register()
    async with aclosing(steps) as records:
        async for end, record in records:
            if record.op is Op.CONSUMERS:
                found = decode_register(record.strings, where=place.directory, at=end.size)
    return found


async def change_register(
    host: ManifestHost, place: RegisterPlace, change: Callable[[Register], Register]
) -> Register:
    """Replace the register by `change` of it, and return it once the quorum holds it. `change` may be called
    several times.

    Waits while too few members answer. Raises what `change` raises, with nothing changed, and what taking a
    chain over raises. If it is cancelled, the change may be made or not, and the register cannot be read
    until it is changed again.
    """
    attempt, directory = 0, place.directory
    while True:
        try:
            view = await host.inspect(directory)
            claim = await host.claim(directory, view.epoch_seen + 1, limits.claim_patience_s)
            if claim is not None:
                try:
                    return await _change(claim, host, place, change)
                finally:
                    await claim.aclose()
        except FencedError as error:  # another process changes it too, and is done soon
            logger.debug("%s: %s", directory, error)
        except (QuorumUnavailableError, NotEnoughAnswersError, StaleGenerationError) as error:
            logger.info("%s cannot be changed yet: %s", directory, error)
        attempt += 1
        await host.sleep(backoff_s(attempt, host.rng()))


async def _change(
    claim: ManifestClaimPort, host: ManifestHost, place: RegisterPlace, change: Callable[[Register], Register]
) -> Register:
    taken = await _take(claim, place.chain, host.record.generation)
    before = await _last_state(taken.records(), place)
    refused: Exception | None = None
    try:
        register = change(before)
    except Exception as error:  # the take-over is completed all the same, for readers
        register, refused = before, error
    state = Record(Op.CONSUMERS, ints=(host.wall_time_ms(),), strings=(encode_register(register),))
    writer = await taken.open([state])
    try:
        await writer.wait_synced()
        claim.collect(below({place.chain: writer.floor}))  # the new state is acknowledged (R14)
        await claim.wait_collected(limits.register_tidy_s)
    finally:
        await writer.aclose()
    if refused is not None:
        raise refused
    return register


async def _take(claim: ClaimPort, chain: str, generation: int) -> TakenChain:
    """Take the chain over; begin it if no trusted member that answered has a segment of it.

    R16 asks every member before a chain is begun, because a chain that is begun twice would have two lines of
    history. Here the newest segment has the whole state. A register that was ever acknowledged is on one of
    the members that answered, so a region can start while a member is unavailable.
    """
    begun = any(seen.longest for seen in segments_seen(chain, claim.answers))
    return await TakenChain.take(claim, chain, at=None if begun else ORIGIN, generation=generation)


async def register_consumer(store: Store, place: RegisterPlace, region: str, source: str) -> None:
    """Register a source of a region, if it is not: acknowledged by the quorum when this returns. From then
    on, nothing that the region needs is trimmed.

    Raises CorruptDataError, QuorumUnavailableError; waits while too few members answer for a change.
    """
    known = (await settled_register(store, place)).consumers.get(region)
    if known is None or source not in known.sources:
        now_ms = wall_time_ms()
        await change_register(
            StoreHost(store), place, lambda register: with_consumer(register, region, source, now_ms)
        )


async def needs_of(store: StorePort, register: Register, split: str) -> dict[str, int]:
    """Return consumer -> the position from which on it needs a split: of a region by its committed manifest,
    of a query by what it published.

    Raises ManifestError and what reading a manifest raises: then nothing may be deleted.
    """
    queries = {QUERY_PREFIX + name: query.need(split) for name, query in register.queries.items()}
    regions = {
        region: need_of(await retained_checkpoints(store, region), consumer.sources, split)
        for region, consumer in register.consumers.items()
    }
    return {**queries, **regions}
