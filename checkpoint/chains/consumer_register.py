"""The register of the consumers of an input or an output, in the store beside the data: read by anybody,
changed under a claim. `core/consumers.py` has the meaning, `journal/whole_state.py` the chain.

A region registers here before it reads, so a change is acknowledged by the quorum when it returns, and
everyone who reads the register afterwards sees it.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from checkpoint.chains.manifest_reading import retained_checkpoints
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.consumers import (
    QUERY_PREFIX,
    OutputOf,
    Register,
    RegisterPlace,
    decode_register,
    encode_register,
    names_of,
    need_of,
    output_of,
    query_need,
    trimmed_because,
    with_consumer,
)
from checkpoint.errors import RegisterUnsettledError
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from journal import Op, Record, StatePlace, StateRecord, UnsettledStateError, change_state, read_state
from journal.ports import StorePort
from journal.whole_state import StateHost

logger = logging.getLogger("dos.checkpoint")


class RegisterHost(StateHost, Protocol):
    """A host that knows the time."""

    def wall_time_ms(self) -> int: ...


async def read_register(store: StorePort, place: RegisterPlace) -> Register:
    """Return the committed register; an empty one if there is none. Claims nothing.

    While another process changes it, waits about two seconds for the change, then raises
    RegisterUnsettledError: an older register may lack a consumer whose registration was acknowledged.

    Raises CorruptDataError, QuorumUnavailableError, and what reading a chain raises.
    """
    try:
        return _decoded(await read_state(store, _state(place)), place)
    except UnsettledStateError as error:
        raise RegisterUnsettledError(place.directory, error.reason) from error


def _state(place: RegisterPlace) -> StatePlace:
    return StatePlace(place.directory, place.chain, Op.CONSUMERS)


def _decoded(found: StateRecord | None, place: RegisterPlace) -> Register:
    if found is None:
        return Register()
    return decode_register(found.record.strings, where=place.directory, at=found.end)


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


async def change_register(
    host: RegisterHost, place: RegisterPlace, change: Callable[[Register], Register]
) -> Register:
    """Replace the register by `change` of it, once, and return it when the quorum holds it. `change` may be
    called several times.

    Waits while too few members answer. Raises what `change` raises, with nothing changed, and what taking a
    chain over raises. If it is cancelled, the change may be made or not, and the register cannot be read
    until it is changed again.
    """

    def changed(before: StateRecord | None) -> Record:
        register = change(_decoded(before, place))
        return Record(Op.CONSUMERS, ints=(host.wall_time_ms(),), strings=(encode_register(register),))

    made = await change_state(host, _state(place), changed)
    assert made is not None, "`changed` always makes one"
    return decode_register(made.strings, where=place.directory, at=0)


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


async def needs_of(store: StorePort, register: Register, place: RegisterPlace, split: str) -> dict[str, int]:
    """Return consumer -> the position from which on it needs a split: of a region by its committed manifest,
    of a query by what it published.

    Raises ManifestError and what reading a manifest raises: then nothing may be deleted.
    """
    if not names_of(register):
        return {}
    output = await read_output_of(store, place)
    queries = {
        QUERY_PREFIX + name: query_need(query, split, output) for name, query in register.queries.items()
    }
    regions = {
        region: need_of(await retained_checkpoints(store, region), consumer.sources, split, output)
        for region, consumer in register.consumers.items()
    }
    return {**queries, **regions}


async def read_output_of(store: StorePort, place: RegisterPlace) -> OutputOf | None:
    """Return whose output log the consumers of a register read, None for an input. Raises as `needs_of`."""
    if (of := output_of(place)) is None:
        return None
    return OutputOf(of[1], next(reversed(await retained_checkpoints(store, of[0])), None))
