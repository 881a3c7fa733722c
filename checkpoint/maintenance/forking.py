"""Forks a region: a new region that begins with a checkpoint of it, copies nothing, and runs independently.

`core/forking.py` has the records and their order. This file reads, asks the driver of the original for the
savepoint, and writes the first record of the new region.

If it is stopped between the two records, the savepoint stays and names a region that does not exist.
`dos region savepoints` shows it, and a person drops it. So nothing that a fork needs can be deleted because
the fork was slow.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpoint import limits
from checkpoint.chains.consumer_register import settled_register
from checkpoint.chains.manifest_reading import read_manifest, retained_checkpoints
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.forking import forked, needs_original
from checkpoint.core.lines import find_target
from checkpoint.core.manifest import Cut, ForkOrigin, SavepointNote
from checkpoint.core.manifest_checks import check_cut
from checkpoint.core.region import coordinator_directory, region_of_worker, worker_directory
from checkpoint.errors import (
    ForkRefusedError,
    NoAnswerError,
    RestoreRefusedError,
    SavepointRefusedError,
)
from checkpoint.maintenance.retained_rows import InputRows, all_rows
from checkpoint.maintenance.stopped_region import append_record, hold_manifest, savepoint_stopped
from checkpoint.requests.client import RequestClient, requester
from checkpoint.runtime import checkpoint_named, wall_time_ms
from dos_client import Store
from dos_protocol.names import check_name
from journal.ports import StorePort


@dataclass(frozen=True, slots=True, kw_only=True)
class Forking:
    """What a fork is to be.

    region: the original. new: the name of the fork. at: its checkpoint, as `run(restore=...)` takes it; "":
    the last one. dropped, added: operators that only the original, or only the graph of the fork has.
    same_place: sinks that may write where the original writes. stopped: no driver runs the original, so this
    process acts as one; otherwise its driver is asked. patience_s: for its answer.
    """

    region: str
    new: str
    at: str = ""
    dropped: Sequence[str] = ()
    added: Sequence[str] = ()
    same_place: Sequence[str] = ()
    why: str = ""
    stopped: bool = False
    patience_s: float = field(default_factory=lambda: limits.request_patience_s)


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork that was made, or that would be. savepoint: "" if it was not made."""

    region: str
    origin: ForkOrigin
    workers: int
    state_bytes: int
    """Of the state chains that its first start reads, and nothing copies before."""

    @property
    def savepoint(self) -> str:
        return self.origin.savepoint


async def plan_fork(store: Store, wanted: Forking) -> Forked:
    """Return what `fork_region` would make. Changes nothing, and raises as it does."""
    target = await _target(store, wanted)
    return _forked(wanted, target, await _origin(store, wanted, target, savepoint=""))


async def fork_region(store: Store, wanted: Forking) -> Forked:
    """Fork a region, running or stopped. The first `run` with the name of the fork begins with it.

    Raises NoRegionError, ForkRefusedError, with nothing changed; RegionFencedError if another process claimed
    one of the two manifests meanwhile: then, as when this is cancelled, the savepoint or the fork may exist,
    see `dos region savepoints`. Waits while too few members of the store answer.
    """
    target = await _target(store, wanted)
    origin = await _origin(store, wanted, target, savepoint=f"fork-{secrets.token_hex(4)}")
    forked(target, origin, incarnation=1)  # refused before anything is written
    await _hold(store, wanted, origin)
    try:
        async with hold_manifest(StoreHost(store), wanted.new) as held:
            if held.opened.last_checkpoint is not None:
                raise ForkRefusedError(f"region {wanted.new!r} was created by another process meanwhile")
            record = forked(target, origin, held.opened.incarnation)
            check_cut(record)
            await append_record(held, wanted.new, record)
    except ForkRefusedError:
        await drop_savepoint(
            store, wanted.region, origin.savepoint, stopped=wanted.stopped, patience_s=wanted.patience_s
        )
        raise
    last = (await read_manifest(store, wanted.region)).last
    if last is None or last.savepoints.get(origin.savepoint) != origin.checkpoint:
        raise ForkRefusedError(
            f"savepoint {origin.savepoint} of region {wanted.region!r} was dropped before {wanted.new!r}"
            " began: its state may be deleted",
            remedy=f"dos region delete URL {wanted.new} --apply, and fork again",
        )
    return _forked(wanted, target, origin)


def _forked(wanted: Forking, target: Cut, origin: ForkOrigin) -> Forked:
    size = sum(part.state.size - part.floors.get("state", (1, 0))[1] for part in target.workers.values())
    return Forked(wanted.new, origin, len(target.workers), size)


async def _target(store: Store, wanted: Forking) -> Cut:
    """Return the checkpoint to fork. Raises ForkRefusedError if that, or the new name, is not possible."""
    check_name(worker_directory(wanted.new, limits.workers_max))
    view = await read_manifest(store, wanted.region)
    await _refuse_existing(store, wanted.new)
    kept = [cut for cut in view.cuts if cut.cut in view.retained]
    if not kept:
        raise ForkRefusedError(f"region {wanted.region!r} has committed no checkpoint")
    if not wanted.at:
        return kept[-1]
    try:
        # The state of a checkpoint whose output was taken back is still there, and a fork has its own output.
        return find_target(kept, checkpoint_named(wanted.at), region=wanted.region, even_taken_back=True)
    except RestoreRefusedError as error:
        raise ForkRefusedError(f"{error}") from error


async def _refuse_existing(store: Store, name: str) -> None:
    for directory in await store.list_directories(f"{name}."):
        of_worker = region_of_worker(directory)
        if directory != coordinator_directory(name) and (of_worker is None or of_worker[0] != name):
            continue
        view = await store.inspect(directory)
        if any(objects for objects in view.answers.values()):
            raise ForkRefusedError(
                f"region {name!r} exists: directory {directory!r} has its journals",
                remedy=f"choose another name, or delete it first: dos region delete URL {name}",
            )


async def _origin(store: Store, wanted: Forking, target: Cut, *, savepoint: str) -> ForkOrigin:
    """Return the origin of the fork, with what the registers say that the original reads."""
    application = ""
    logs: dict[str, str] = {}
    for rows in await all_rows(store):
        consumer = (await settled_register(store, rows.place)).consumers.get(wanted.region)
        if consumer is not None and isinstance(rows, InputRows):
            application = rows.owner
        elif consumer is not None:
            logs |= dict.fromkeys(consumer.sources, rows.owner)
    return ForkOrigin(
        region=wanted.region,
        checkpoint=target.cut,
        step=target.step,
        savepoint=savepoint,
        application=application or (target.origin.application if target.origin else ""),
        logs=logs,
        dropped=tuple(wanted.dropped),
        added=tuple(wanted.added),
        same_place=tuple(wanted.same_place),
        wall_time_ms=wall_time_ms(),
    )


async def _hold(store: Store, wanted: Forking, origin: ForkOrigin) -> None:
    """Make the savepoint that holds the checkpoint. Raises ForkRefusedError."""
    why = wanted.why or f"region {wanted.new} began as a fork here"
    if wanted.stopped:
        note = SavepointNote(by=requester(), wall_time_ms=wall_time_ms(), why=why, fork=wanted.new)
        name, cut = origin.savepoint, origin.checkpoint
        try:
            await savepoint_stopped(StoreHost(store), wanted.region, name, cut, on=True, note=note)
        except SavepointRefusedError as error:
            raise ForkRefusedError(f"{error}") from error
        return
    more = {"why": why, "fork": wanted.new, "cut": origin.checkpoint}
    await _ask(store, wanted.region, "pin", origin.savepoint, wanted.patience_s, **more)


async def drop_savepoint(
    store: Store, region: str, savepoint: str, *, stopped: bool, patience_s: float
) -> None:
    """Drop a savepoint that no fork needs. stopped: act as the driver of the region, which no driver runs;
    otherwise its driver is asked. Raises ForkRefusedError, SavepointRefusedError, RegionFencedError.
    """
    if stopped:
        await savepoint_stopped(StoreHost(store), region, savepoint, 0, on=False)
    else:
        await _ask(store, region, "unpin", savepoint, patience_s)


async def _ask(store: Store, region: str, what: str, savepoint: str, patience_s: float, **more: Any) -> None:
    client, wait_s = RequestClient(store, region), limits.drain_timeout_s
    try:
        reply = await client.send(what, patience_s=patience_s, wait_s=wait_s, name=savepoint, **more)
    except NoAnswerError as silence:
        raise ForkRefusedError(
            f"{silence}", remedy="if the region does not run, pass --stopped (stopped=True)"
        ) from silence
    if reply.answer.verdict != "done":
        raise ForkRefusedError(f"{reply.answer.verdict} by {reply.answer.driver}: {reply.answer.reason}")


async def fork_needs(store: StorePort, region: str, savepoint: str, note: SavepointNote) -> bool | None:
    """Return whether the fork that a savepoint of a region was made for still needs it; None: there is no
    such fork. Claims nothing. Raises ManifestError, and what reading a chain raises.
    """
    return needs_original(await retained_checkpoints(store, note.fork), region, savepoint)


__all__ = ["Forked", "Forking", "fork_needs", "fork_region", "plan_fork"]
