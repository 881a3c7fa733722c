"""Deletes a region that is not needed any more: its journals, output logs, requests, and its place among the
consumers of what it reads. It can be stopped at any point and repeated. Every member must answer. And drops
the log of a removed sink.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from checkpoint import limits
from checkpoint.chains.consumer_register import change_register, settled_register
from checkpoint.chains.manifest_log import StoreHost, read_manifest, retained_checkpoints
from checkpoint.core.records.consumers import (
    OUTPUT_REGISTERS,
    names_of,
    output_register,
    still_read,
    without_consumer,
)
from checkpoint.core.records.lines import made_for_forks, recorded_again
from checkpoint.core.records.manifest import Checkpoint, EndedLog, check_checkpoint
from checkpoint.core.region import (
    answers_directory,
    coordinator_directory,
    region_of_worker,
    requests_directory,
)
from checkpoint.errors import DeletionRefusedError, NoRegionError
from checkpoint.maintenance.forking import drop_savepoint, fork_needs
from checkpoint.maintenance.garbage import UnneededObject, objects_that
from checkpoint.maintenance.retention import all_rows, read_by
from checkpoint.maintenance.stopped_region import append_record, hold_manifest
from checkpoint.requests.client import requester, running_text
from dos_client import Store, randomness


class Dependent(NamedTuple):
    """A region or query that breaks if a region is deleted. name: of a region, or `query:NAME`. what: what it
    would lose.
    """

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class Deletion:
    """The data that a deletion deletes, and the dependents that it breaks. savepoint: (region, name) of the
    original's savepoint for it, or None.
    """

    region: str
    objects: tuple[UnneededObject, ...]
    dependents: tuple[Dependent, ...]
    savepoint: tuple[str, str] | None


async def plan_deletion(store: Store, region: str) -> Deletion:
    """Return what `delete_region` would delete. Claims nothing but an interrupted register. Raises
    NoRegionError, ManifestError, and what reading a chain raises.
    """
    view = await read_manifest(store, region)
    kept = view.kept
    objects = [
        one
        for directory in await _directories(store, region)
        for one in objects_that(directory, await store.inspect(directory), lambda _: True)
    ]
    dependents = (*await _forks(store, region, kept), *await _readers(store, region))
    return Deletion(region, tuple(objects), dependents, _held_in_original(kept))


async def delete_region(
    store: Store,
    region: str,
    *,
    broken: Collection[str] = (),
    stopped: bool = False,
    patience_s: float = limits.request_patience_s,
    wait_s: float = limits.trim_wait_s,
) -> bool:
    """Delete a region that does not run. Return False if a member has not deleted all in `wait_s` seconds:
    repeat it.

    broken: dependents that may break. stopped: no driver runs the region of which it is a fork; otherwise
    that driver is asked to drop the savepoint. Raises DeletionRefusedError, with nothing deleted;
    NoRegionError; and what taking a manifest over raises. If it is cancelled or fails later, a part is
    deleted, and the region cannot be run until the deletion was repeated.
    """
    await read_manifest(store, region)  # raises NoRegionError before anything is asked
    if running := await running_text(store, region, patience_s):
        raise DeletionRefusedError(running, remedy=f"stop it first: dos region stop URL {region}")
    await _refuse_unavailable(store, region)
    # While the manifest is held, no driver commits anything more, and no fork can be made of the region.
    async with hold_manifest(StoreHost(store), region) as held:
        kept = held.opened.kept
        for one in (*await _forks(store, region, kept), *await _readers(store, region)):
            if one.name not in broken:
                raise DeletionRefusedError(
                    f"{one.name!r} needs region {region!r}: {one.what}",
                    remedy=f"delete it first, or pass --break {one.name} to let it break",
                )
        if (savepoint := _held_in_original(kept)) is not None:
            await _let_go(store, *savepoint, stopped=stopped, patience_s=patience_s)
        # After the refusals: an input that forgets the region trims what the region still needs.
        for rows, _ in await read_by(store, region):
            await change_register(StoreHost(store), rows.place, lambda found: without_consumer(found, region))
    clean = True
    # The manifest comes last: an incomplete deletion is then refused by name when it is run, and never
    # looks like a region that begins.
    for directory in await _directories(store, region):
        epoch = (await store.inspect(directory)).epoch_seen + 1
        async with await store.claim(directory, epoch, randomness.fresh_id()) as claim:
            claim.collect(lambda _: True)
            clean &= await claim.wait_collected(wait_s)
    return clean


@dataclass(frozen=True, slots=True)
class DroppedLog:
    """The log of a removed sink that is dropped, or would be. readers: its registered consumers."""

    uid: str
    log: EndedLog
    readers: tuple[str, ...]

    @property
    def retained_bytes(self) -> int:
        return sum(end.size - self.log.floors[worker][1] for worker, end in self.log.ends.items())


async def plan_drop(store: Store, region: str, sink: str) -> DroppedLog:
    """Return what `drop_log` would drop. Claims nothing but an interrupted register. Raises
    DeletionRefusedError, NoRegionError, ManifestError, and what reading a chain raises.
    """
    last = (await read_manifest(store, region)).last
    ended = {} if last is None else {uid: log for uid, log in last.ended.items() if log.floors}
    found = [uid for uid, log in ended.items() if sink in (uid, log.sink)]
    uid = sink if sink in found else found[0] if len(found) == 1 else ""
    if not uid:
        known = ", ".join(f"{log.sink!r} (uid {uid})" for uid, log in sorted(ended.items())) or "none"
        which = "several removed sinks" if found else "no removed sink"
        raise DeletionRefusedError(
            f"region {region!r} has {which} {sink!r} whose log can be read; removed: {known}",
            remedy="name the uid of a removed sink: the log of a sink that the graph has is not dropped",
        )
    readers = names_of(await settled_register(store, output_register(region, uid)))
    return DroppedLog(uid, ended[uid], tuple(readers))


async def drop_log(
    store: Store,
    region: str,
    sink: str,
    *,
    broken: Collection[str] = (),
    patience_s: float = limits.request_patience_s,
) -> DroppedLog:
    """Drop the log of a removed sink of a region that does not run. It is deleted when no retained checkpoint
    has it. broken: registered readers that may break.

    Raises DeletionRefusedError, with nothing changed; RegionFencedError: it may be dropped or not, as when
    this is cancelled; as `plan_drop`; and as `hold_manifest`.
    """
    found = await plan_drop(store, region, sink)
    if needs := sorted(set(found.readers) - set(broken)):
        raise DeletionRefusedError(
            f"registered readers of the log of {found.log.sink!r}: {', '.join(needs)}",
            remedy="remove the sources that read it, or pass --break NAME for each that may break",
        )
    if running := await running_text(store, region, patience_s):
        raise DeletionRefusedError(running, remedy=f"stop it first: dos region stop URL {region}")
    async with hold_manifest(StoreHost(store), region) as held:
        kept = held.opened.kept
        if not kept or kept[-1].ended.get(found.uid) != found.log:
            raise DeletionRefusedError(f"region {region!r} was changed meanwhile", remedy="repeat it")
        dropped = {found.uid: requester()}
        record = recorded_again(kept, held.opened.incarnation, kept[-1].savepoints, dropped=dropped)
        check_checkpoint(record, before=kept[-1])
        await append_record(held, region, record)
    return found


async def _directories(store: Store, region: str) -> list[str]:
    """Return the directories of a region, that of its manifest last."""
    own = {requests_directory(region), answers_directory(region), f"{region}{OUTPUT_REGISTERS}"}
    names = await store.list_directories(f"{region}.")
    of_region = [
        name
        for name in names
        if name in own or ((worker := region_of_worker(name)) is not None and worker[0] == region)
    ]
    return [*sorted(of_region), coordinator_directory(region)]


async def _refuse_unavailable(store: Store, region: str) -> None:
    # A member that keeps its copy of a deleted manifest would bring the region back.
    answered = (await store.inspect(coordinator_directory(region))).answers
    if missing := [one.address for one in store.record.voters if one.server_id not in answered]:
        raise DeletionRefusedError(
            f"members {', '.join(missing)} of the store do not answer: each would keep its copy of the"
            " manifest, and bring the region back",
            remedy="start them, or replace them with `dos store replace`, and repeat it",
        )


async def _forks(store: Store, region: str, kept: Sequence[Checkpoint]) -> list[Dependent]:
    """Return the forks that need a checkpoint of the region, or may be about to be made."""
    found = []
    for last in kept[-1:]:
        for name, note in made_for_forks(last).items():
            needs = await fork_needs(store, region, name, note)
            if needs is not False:
                held = f"checkpoint {last.savepoints[name]}, savepoint {name}"
                exists = "" if needs else ", or was never made: then drop that"
                found.append(Dependent(note.fork, f"it is a fork whose state is still in {held}{exists}"))
    return found


async def _readers(store: Store, region: str) -> list[Dependent]:
    """Return the registered consumers of the region's output logs."""
    found: list[Dependent] = []
    for rows in await all_rows(store):
        if rows.place.directory == f"{region}{OUTPUT_REGISTERS}":
            what = f"it is registered as a reader of its output ({rows.chain})"
            register = await settled_register(store, rows.place)
            over = [
                name
                for name, one in register.consumers.items()
                if not still_read(await retained_checkpoints(store, name), one.sources, name)
            ]
            found += [Dependent(name, what) for name in names_of(register) if name not in over]
    return found


def _held_in_original(kept: Sequence[Checkpoint]) -> tuple[str, str] | None:
    return next(
        (
            (checkpoint.origin.region, checkpoint.origin.savepoint)
            for checkpoint in kept
            if checkpoint.in_origin and checkpoint.origin
        ),
        None,
    )


async def _let_go(store: Store, original: str, savepoint: str, *, stopped: bool, patience_s: float) -> None:
    try:
        last = (await read_manifest(store, original)).last
    except NoRegionError:
        return  # it was deleted before
    if last is not None and savepoint in last.savepoints:
        await drop_savepoint(store, original, savepoint, stopped=stopped, patience_s=patience_s)
