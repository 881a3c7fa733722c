"""Finds and deletes rows that writers staged in the store and never recorded. Used by processes that are not
writers.

`core/staged.py` decides what is garbage, and where it may be deleted. This file reads, claims and deletes.

Without an age, only rows that are recorded, or can never be, are garbage, and active writers are not
affected. With an age:

1. Become the producer, as a later commit would: its previous owner can record nothing more without opening it
   again, so what is recorded now is final.
2. Read each directory again, and decide again.
3. Claim it, above the epoch of that read: this fences a task that is writing there. A task that claimed after
   the read wins, and the directory is left to it.
4. Delete the garbage.

A fenced writer that continues gets a named error: a task gets FencedError, a commit finds that its rows no
longer exist. If a sweep is stopped between any two steps, nothing is lost; the next sweep starts over.
"""

from contextlib import suppress
from dataclasses import dataclass

from checkpoint.chains.input_log import InputLog, last_recorded
from checkpoint.chains.input_reading import InputHandle
from checkpoint.core.inputs import producer_directory
from checkpoint.core.staged import (
    GARBAGE,
    ProducerFacts,
    StagedState,
    handle_prefix,
    may_sweep,
    parse_staged,
    producers_with_staged,
    staged_state_of,
)
from checkpoint.errors import InputClosedError, NoInputError
from checkpoint.runtime import wall_time_ms
from dos_client import Store, randomness
from dos_protocol.errors import FencedError


@dataclass(frozen=True, slots=True)
class StagedObject:
    """One staged object, as F members report it. bytes: of its longest copy; copies: how many members hold
    one; since_ms: when it was started, by its writer's clock, None if its name does not contain it; swept:
    whether it would be deleted now.
    """

    producer: str
    directory: str
    name: str
    bytes: int
    copies: int
    since_ms: int | None
    staged_state: StagedState
    swept: bool


class Sweep:
    """Sweeps the staged rows of one handle. abandon_s: the age in seconds above which unrecorded rows are
    abandoned; None: never.
    """

    def __init__(self, store: Store, application: str, handle: str, abandon_s: float | None = None) -> None:
        self._store = store
        self._application, self._handle = application, handle
        self._abandon_ms = None if abandon_s is None else int(1000 * abandon_s)

    async def inspect(self) -> list[StagedObject]:
        """Return the staged objects. Claims nothing. Raises NoInputError, BadNameError,
        QuorumUnavailableError and what reading a chain raises.
        """
        directories = await self._directories()
        if not directories:
            await self._refuse_unknown()
            return []
        closed = await InputHandle(self._store, self._application, self._handle).ends() is not None
        return [
            one
            for producer, of_producer in directories.items()
            for facts in [await self._recorded(producer, closed)]
            for directory in of_producer
            for one in await self._inspect_directory(producer, directory, facts)
        ]

    async def apply(self, found: list[StagedObject], wait_s: float) -> None:
        """Delete the objects in `found` that are still garbage. Leaves directories that were claimed in the
        meantime to the claimant, and waits at most `wait_s` seconds for a member. Call `inspect` again to see
        what is left.

        Raises as `inspect`, and as `InputLog.open` does, except InputClosedError.
        """
        for producer in dict.fromkeys(one.producer for one in found if one.swept):
            own = [one for one in found if one.producer == producer and one.swept]
            closed = any(one.staged_state is StagedState.CLOSED for one in own)
            if any(one.staged_state is StagedState.ABANDONED for one in own):
                # Fence the owner first: it may be recording one of these rows.
                facts = await self._fence_owner(producer)
            else:
                facts = await self._recorded(producer, closed)
            for directory in dict.fromkeys(one.directory for one in own):
                await self._delete_staged(directory, facts, wait_s)

    async def _directories(self) -> dict[str, list[str]]:
        names = await self._store.list_directories(handle_prefix(self._application, self._handle))
        return producers_with_staged(names, self._application, self._handle)

    async def _refuse_unknown(self) -> None:
        prefix = f"{self._application}.in."
        names = await self._store.list_directories(prefix)
        handles = sorted({name.removeprefix(prefix).partition(".")[0] for name in names})
        if self._handle not in handles:
            raise NoInputError(self._application, self._handle, handles)

    async def _recorded(self, producer: str, closed: bool) -> ProducerFacts:
        line = await last_recorded(self._store, self._application, self._handle, producer, whole=True)
        return ProducerFacts(line.batch, line.mark, closed)

    async def _fence_owner(self, producer: str) -> ProducerFacts:
        """Fence the producer's owner. A producer that was never opened is not created: there is nothing to
        fence.
        """
        directory = producer_directory(self._application, self._handle, producer)
        if directory not in await self._store.list_directories(directory):
            return ProducerFacts(0, b"", closed=False)
        try:
            async with await InputLog.open(self._store, self._application, self._handle, producer) as log:
                return ProducerFacts(log.last, log.last_mark, closed=False)
        # the handle was closed: the owner is fenced, and the producer cannot be opened again
        except InputClosedError:
            return ProducerFacts(0, b"", closed=True)

    async def _inspect_directory(
        self, producer: str, directory: str, facts: ProducerFacts
    ) -> list[StagedObject]:
        sizes: dict[str, list[int]] = {}
        for objects in (await self._store.inspect(directory)).answers.values():
            for info in objects.values():
                sizes.setdefault(info.name, []).append(info.synced)
        now = wall_time_ms()
        staged_states = {name: staged_state_of(name, facts, now, self._abandon_ms) for name in sizes}
        swept = may_sweep(staged_states.values())
        return [
            StagedObject(
                producer,
                directory,
                name,
                max(copies),
                len(copies),
                None if (parsed := parse_staged(name)) is None else parsed.since_ms,
                staged_states[name],
                swept=swept and staged_states[name] in GARBAGE,
            )
            for name, copies in sorted(sizes.items())
        ]

    async def _delete_staged(self, directory: str, facts: ProducerFacts, wait_s: float) -> None:
        view, now = await self._store.inspect(directory), wall_time_ms()

        def staged_state(name: str) -> StagedState:
            return staged_state_of(name, facts, now, self._abandon_ms)

        if not may_sweep(staged_state(name) for objects in view.answers.values() for name in objects):
            return
        with suppress(FencedError):  # a task claimed it since the read: that task's commit sweeps
            async with await self._store.claim(
                directory, view.epoch_seen + 1, randomness.fresh_id()
            ) as claim:
                claim.collect(lambda name: staged_state(name) in GARBAGE)
                await claim.wait_collected(wait_s)
