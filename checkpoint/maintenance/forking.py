"""Forks a region: a new region that begins with a checkpoint of it, copies nothing, and runs independently.
`core/records/lines.py` has the records and their order.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from checkpoint import limits
from checkpoint.chains.manifest_log import StoreHost, read_manifest, retained_checkpoints
from checkpoint.core.records.lines import find_target, forked, needs_original
from checkpoint.core.records.manifest import Checkpoint, ForkOrigin, SavepointNote, check_checkpoint
from checkpoint.core.region import coordinator_directory, region_of_worker, worker_directory
from checkpoint.errors import (
    ForkRefusedError,
    NoAnswerError,
    RestoreRefusedError,
    SavepointRefusedError,
)
from checkpoint.maintenance.retention import InputRows, read_by
from checkpoint.maintenance.stopped_region import SavepointMaker, append_record, hold_manifest
from checkpoint.runtime import checkpoint_named, wall_time_ms
from dos_client import Store
from dos_client.tasks import run_both
from dos_protocol.names import check_name
from journal.ports import StorePort


@dataclass(frozen=True, slots=True, kw_only=True)
class Forking:
    """A fork that is to be made.

    region, new: the original and the fork. at: its checkpoint, as `run(restore=...)` takes it; "": the last
    one. same_place: sinks that may write where the original writes. stopped: no driver runs the original;
    otherwise it is asked, for `patience_s` seconds.
    """

    region: str
    new: str
    at: str = ""
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
    return (await _planned(store, wanted, savepoint=""))[1]


async def fork_region(store: Store, wanted: Forking) -> Forked:
    """Fork a region, running or stopped. Raises NoRegionError, ForkRefusedError, with nothing changed;
    RegionFencedError: then, as when this is cancelled, the savepoint or the fork may exist. Waits while too
    few members answer.
    """
    target, plan = await _planned(store, wanted, savepoint=f"fork-{secrets.token_hex(4)}")
    origin = plan.origin
    savepoints = SavepointMaker(store, wanted.region, stopped=wanted.stopped, patience_s=wanted.patience_s)
    why = wanted.why or f"region {wanted.new} began as a fork here"
    # First the savepoint: nothing that the fork needs is deleted from here on, however slow this is. If it is
    # stopped before the fork's record, the savepoint stays; `dos region savepoints` shows it as "missing".
    make = partial(savepoints.make, origin.savepoint, why=why, fork=wanted.new)
    with _as_refusal():
        try:
            held_checkpoint = await make(checkpoint=origin.checkpoint)
        except SavepointRefusedError:
            if wanted.at:
                raise
            held_checkpoint = await make()  # the one that was read may be released meanwhile
    try:
        if held_checkpoint != origin.checkpoint:
            here = replace(wanted, at=f"checkpoint:{held_checkpoint}")
            target, plan = await _planned(store, here, savepoint=origin.savepoint)
            origin = plan.origin
        async with hold_manifest(StoreHost(store), wanted.new) as held:
            if held.opened.last_checkpoint is not None:
                raise ForkRefusedError(f"region {wanted.new!r} was created by another process meanwhile")
            # Under the claim: of two programs that fork to one name, only one finds no checkpoint here.
            record = forked(target, origin, held.opened.incarnation)
            check_checkpoint(record)
            await append_record(held, wanted.new, record)
    except ForkRefusedError:
        await savepoints.drop(origin.savepoint)
        raise
    # A person may have dropped the savepoint before the record of the fork was there to need it.
    kept = await retained_checkpoints(store, wanted.region)
    if not kept or kept[-1].savepoints.get(origin.savepoint) != origin.checkpoint:
        raise ForkRefusedError(
            f"savepoint {origin.savepoint} of region {wanted.region!r} was dropped before {wanted.new!r}"
            " began: its state may be deleted",
            remedy=f"dos region delete URL {wanted.new} --apply, and fork again",
        )
    return plan


async def _planned(store: Store, wanted: Forking, *, savepoint: str) -> tuple[Checkpoint, Forked]:
    """Return the checkpoint to fork, and the fork. Raises ForkRefusedError if it is not possible."""
    target = await _target(store, wanted)
    origin = await _origin(store, wanted, target, savepoint=savepoint)
    forked(target, origin, incarnation=1)  # refused before anything is written
    state_bytes = sum(part.restore_bytes for part in target.workers.values())
    return target, Forked(wanted.new, origin, len(target.workers), state_bytes)


async def _target(store: Store, wanted: Forking) -> Checkpoint:
    """Return the checkpoint to fork. Raises ForkRefusedError if that, or the new name, is not possible."""
    check_name(worker_directory(wanted.new, limits.workers_max))
    kept, _ = await run_both(
        partial(retained_checkpoints, store, wanted.region), partial(_refuse_existing, store, wanted.new)
    )
    if not kept:
        await read_manifest(store, wanted.region)  # raises NoRegionError
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


async def _origin(store: Store, wanted: Forking, target: Checkpoint, *, savepoint: str) -> ForkOrigin:
    """Return the origin of the fork, with what the registers say that the original reads."""
    application = ""
    logs: dict[str, str] = {}
    for rows, consumer in await read_by(store, wanted.region):
        if isinstance(rows, InputRows):
            application = rows.application
        else:
            logs |= dict.fromkeys(consumer.sources, rows.region)
    return ForkOrigin(
        region=wanted.region,
        checkpoint=target.number,
        step=target.step,
        savepoint=savepoint,
        application=application or (target.origin.application if target.origin else ""),
        logs=logs,
        same_place=tuple(wanted.same_place),
        wall_time_ms=wall_time_ms(),
    )


@contextmanager
def _as_refusal() -> Iterator[None]:
    """Raise ForkRefusedError if a savepoint is refused, or nobody answers."""
    try:
        yield
    except (SavepointRefusedError, NoAnswerError) as error:
        raise ForkRefusedError(str(error.args[0]), remedy=error.remedy) from error


async def drop_savepoint(
    store: Store, region: str, savepoint: str, *, stopped: bool, patience_s: float
) -> None:
    """Drop a savepoint that no fork needs, as the driver of a stopped region, or by asking it. Raises
    ForkRefusedError, RegionFencedError.
    """
    with _as_refusal():
        await SavepointMaker(store, region, stopped=stopped, patience_s=patience_s).drop(savepoint)


async def fork_needs(store: StorePort, region: str, savepoint: str, note: SavepointNote) -> bool | None:
    """Return whether its fork still needs a savepoint; None: there is no such fork. Raises ManifestError, and
    what reading raises.
    """
    return needs_original(await retained_checkpoints(store, note.fork), region, savepoint)
