"""What nobody needs, found and deleted by processes that are not its writers: the garbage of a region that no
driver runs, and rows that writers staged for an input and never recorded.

While a region runs, its workers and driver delete garbage, with their claims. The manifest alone decides what
is garbage (`core/records/manifest.py`, R14). Of staged rows (`Sweep`, `core/records/staged.py`) only those
are garbage, without an age, that are recorded or can never be. Stopped at any point, nothing is lost, and the
next run starts over.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from checkpoint import limits
from checkpoint.chains.input_log import InputHandle, InputLog, last_recorded
from checkpoint.chains.manifest_log import CHAIN, ManifestHost, ManifestView
from checkpoint.core.records.inputs import producer_directory
from checkpoint.core.records.manifest import unneeded_of
from checkpoint.core.records.staged import (
    GARBAGE,
    ProducerFacts,
    StagedState,
    handle_prefix,
    may_sweep,
    parse_staged,
    producers_with_staged,
    staged_state_of,
)
from checkpoint.core.region import coordinator_directory, worker_directory
from checkpoint.errors import InputClosedError, NoInputError
from checkpoint.maintenance.stopped_region import hold_manifest
from checkpoint.runtime import wall_time_ms
from dos_client import Store, randomness
from dos_protocol.errors import FencedError
from journal import Floors, below, inspect_chain
from journal.ports import DirectoryViewPort, StorePort


@dataclass(frozen=True, slots=True)
class UnneededObject:
    """One object that is not needed. `bytes`: of its longest copy; `copies`: how many members hold one."""

    directory: str
    name: str
    bytes: int
    copies: int


async def garbage_of(store: StorePort, view: ManifestView) -> list[UnneededObject]:
    """Return the objects below the floors and in the gaps in all directories of the region. Raises as
    `inspect`.
    """
    coordinator = coordinator_directory(view.region)
    found = await objects_below(store, coordinator, await _manifest_floor(store, coordinator))
    kept = view.kept
    for worker in sorted({worker for checkpoint in kept for worker in checkpoint.outputs()}):
        directory = worker_directory(view.region, worker)
        found += objects_that(directory, await store.inspect(directory), unneeded_of(kept, worker))
    return found


async def _manifest_floor(store: StorePort, directory: str) -> Floors:
    """Return the floor of the manifest: its newest snapshot, which contains everything retained."""
    for span in (await inspect_chain(store, directory, CHAIN)).segments[:1]:
        return {CHAIN: span.segment.order}
    return {}


async def held_by_savepoints(store: StorePort, view: ManifestView) -> dict[str, list[UnneededObject]]:
    """Return savepoint -> the objects that only its checkpoint needs. Raises as `inspect`."""
    kept = view.kept
    savepoints = kept[-1].savepoints if kept else {}
    held: dict[str, list[UnneededObject]] = {name: [] for name in savepoints}
    rest = {
        name: tuple(checkpoint for checkpoint in kept if checkpoint.number != number)
        for name, number in savepoints.items()
        if list(savepoints.values()).count(number) == 1
    }
    for worker in sorted({worker for checkpoint in kept for worker in checkpoint.outputs()}):
        directory = worker_directory(view.region, worker)
        found, is_garbage = await store.inspect(directory), unneeded_of(kept, worker)
        for name, others in rest.items():
            if any(worker in checkpoint.outputs() for checkpoint in others):
                unneeded = unneeded_of(others, worker)
                held[name] += [
                    one for one in objects_that(directory, found, unneeded) if not is_garbage(one.name)
                ]
    return held


async def objects_below(store: StorePort, directory: str, floors: Floors) -> list[UnneededObject]:
    """Return the segments below the floors in one directory, as F members report them."""
    return objects_that(directory, await store.inspect(directory), below(floors))


def objects_that(
    directory: str, view: DirectoryViewPort, unneeded: Callable[[str], bool]
) -> list[UnneededObject]:
    """Return the objects in one directory whose names are `unneeded`, as F members report them."""
    copies: dict[str, list[int]] = {}
    for objects in view.answers.values():
        for info in objects.values():
            if unneeded(info.name):
                copies.setdefault(info.name, []).append(info.synced)
    return [UnneededObject(directory, name, max(sizes), len(sizes)) for name, sizes in sorted(copies.items())]


async def collect_stopped(host: ManifestHost, region: str, *, wait_s: float = limits.trim_wait_s) -> bool:
    """Delete what no retained checkpoint of a stopped region needs. Return False if a member has not in
    `wait_s` seconds.

    Fences a driver or worker that is running after all. Raises RegionFencedError, ManifestError, what taking
    a manifest over raises, FencedError if a worker's directory is claimed with a higher epoch.
    """
    # First the manifest: holding it proves the last checkpoint, whose floors decide what is deleted (R14).
    async with hold_manifest(host, region) as (log, opened, _):
        clean = await log.wait_collected(wait_s)
        for worker in sorted({worker for checkpoint in opened.kept for worker in checkpoint.outputs()}):
            directory = worker_directory(region, worker)
            claim = await host.claim(directory, opened.incarnation, limits.claim_patience_s)
            if claim is None:
                clean = False
                continue
            try:
                claim.collect(unneeded_of(opened.kept, worker))
                clean &= await claim.wait_collected(wait_s)
            finally:
                await claim.aclose()
        return clean


@dataclass(frozen=True, slots=True)
class StagedObject:
    """One staged object. bytes: of its longest copy; copies: of how many members; since_ms: when it was
    started, by its writer's clock, or None; swept: whether it would be deleted now.
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
    """Sweeps the staged rows of one handle. abandon_s: above which age unrecorded rows are abandoned."""

    def __init__(self, store: Store, application: str, handle: str, abandon_s: float | None = None) -> None:
        self._store = store
        self._application, self._handle = application, handle
        self._abandon_ms = None if abandon_s is None else int(1000 * abandon_s)

    async def inspect(self) -> list[StagedObject]:
        """Return the staged objects. Raises NoInputError, BadNameError, and what reading raises."""
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
        """Delete the objects in `found` that are still garbage, waiting at most `wait_s` seconds for a
        member; `inspect` shows what is left. Raises as `inspect`, and as `InputLog.open` except
        InputClosedError.
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

    # First, so that what is recorded is final: a writer that was only slow could record rows that are
    # deleted.
    async def _fence_owner(self, producer: str) -> ProducerFacts:
        """Fence the producer's owner, if it was ever opened."""
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
