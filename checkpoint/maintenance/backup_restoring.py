"""Restore a backup into a store that has nothing of the region, from the target alone; or copy a region
(`copy_region`).

Read the record and make sure that every directory is empty, or has the beginning of the same backup; claim
each in the epoch of its newest segment, and write the segments; register the region with its inputs; claim
the manifest and append the checkpoint. **Its acknowledgement is the commit**: before it there is no region.
The claims have a writer id that follows from the backup, so a run that continues an interrupted one takes
them again, and any other directory is refused by name.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from checkpoint import limits
from checkpoint.chains.chain_store import TakenChain
from checkpoint.chains.consumer_register import change_register
from checkpoint.chains.manifest_log import CHAIN, StoreHost
from checkpoint.core.records.backups import (
    BackupRecord,
    SavedChain,
    SavedRegister,
    SavedSegment,
    first_incarnation,
    foreign_directories,
    outside_sinks,
    restored_from,
)
from checkpoint.core.records.consumers import Register, RegisterPlace
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import coordinator_directory
from checkpoint.errors import BackupDamagedError, BackupRefusedError, DeletionRefusedError, NoRegionError
from checkpoint.maintenance.backup import back_up, backups_of
from checkpoint.maintenance.backup_target import BackupPlace, open_target
from checkpoint.maintenance.deleting import delete_region, plan_deletion
from checkpoint.maintenance.stopped_region import SavepointMaker, append_first
from checkpoint.runtime import wall_time_ms
from dos_client import Claim, DirectoryView, Store, open_store, randomness
from dos_client.writing.claim import resume
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import FencedError
from dos_protocol.limits import payload_bytes_max
from dos_protocol.names import NO_ID
from journal import parse_segment_name

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class RestoredBackup:
    """The result of a restore. checkpoint: the number under which the region continues."""

    region: str
    backup: int
    checkpoint: int
    step: int
    checkpoint_ms: int
    """When the checkpoint was committed in the original region: what followed is lost."""
    bytes: int
    directories: int
    begins_anew: tuple[str, ...]
    """Sinks outside of the store whose output begins anew."""
    comes_again: tuple[str, ...]
    """Sinks that may have shown rows after the backup which come again."""
    left_out: tuple[str, ...]
    """The consumers that were registered in the original, each with what it reads, and are not here."""


async def restore_backup(
    place: BackupPlace,
    record: BackupRecord,
    store: Store,
    *,
    old_is_gone: bool = False,
    allow_republish: bool = False,
    emptied: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> RestoredBackup:
    """Restore a region from a backup into a store. The next `run` of its name continues it.

    old_is_gone: it takes the place of the original as the owner of output outside of the store; otherwise
    such output begins anew. allow_republish: also if rows come again that a sink cannot take back. emptied:
    the caller has deleted what the store had of the region. Raises BackupRefusedError, BackupDamagedError,
    and the errors of both ends. If it fails or is cancelled, there is no region, except perhaps if the last
    record was not acknowledged in time; the same call continues.
    """
    checkpoint = record.checkpoint
    irrevocable = checkpoint.irrevocable if old_is_gone else {}
    if irrevocable and not allow_republish:
        listed = "; ".join(f"{sink!r}: {why}" for sink, why in sorted(irrevocable.items()))
        raise BackupRefusedError(
            f"rows that these sinks may have shown after backup {record.number} come again: {listed}",
            remedy="confirm that this is wanted: --allow-republish; or restore without --old-is-gone",
        )
    if foreign := foreign_directories(record):
        raise BackupRefusedError(
            f"the record of backup {record.number} has {foreign[0]}, which does not belong to region"
            f" {record.region!r}: another program has written it",
            remedy="find out who can write to the target, and restore an earlier backup",
        )
    writer = randomness.fresh_id() if emptied else _writer_of(record)
    directories = sorted({chain.directory for chain in record.chains})
    for directory in directories:
        refuse_other(directory, await store.inspect(directory), record, writer, emptied=emptied)
    done = 0
    for directory in directories:
        chains = [chain for chain in record.chains if chain.directory == directory]

        def report(grown: int) -> None:
            nonlocal done
            done += grown
            progress(done, record.bytes)

        await _Directory(store, place, directory, chains, writer, report).restore()
    for register in record.registers:
        await _restore_register(store, register)
    first = await _commit(store, record, old_is_gone=old_is_gone)
    outside = outside_sinks(checkpoint)
    return RestoredBackup(
        region=record.region,
        backup=record.number,
        checkpoint=first.number,
        step=first.step,
        checkpoint_ms=checkpoint.wall_time_ms,
        bytes=record.bytes,
        directories=len(directories),
        begins_anew=() if old_is_gone else tuple(outside),
        comes_again=tuple(sorted(irrevocable)),
        left_out=record.left_out,
    )


def _writer_of(record: BackupRecord) -> bytes:
    """Return the writer id of a restore: the same for the same backup."""
    text = f"{record.region} {record.store} {record.number} {record.wall_time_ms}"
    return hashlib.sha256(text.encode()).digest()[: len(NO_ID)]


def refuse_other(
    directory: str, view: DirectoryView, record: BackupRecord, writer: bytes, *, emptied: bool = False
) -> None:
    """Raise BackupRefusedError if a directory holds anything but the beginning of this restore."""
    epochs = {(epoch, holder) for epoch, holder in view.epochs.values() if epoch}
    names = {name for objects in view.answers.values() for name in objects}
    if (not names and (emptied or not epochs)) or {holder for _, holder in epochs} == {writer}:
        return
    what = f"it holds {min(names)}" if names else "another process has claimed it"
    raise BackupRefusedError(
        f"directory {directory} of the store is not empty: {what}",
        remedy=f"restore region {record.region!r} into another store, or delete what this one has of it:"
        " `dos ls` lists it",
    )


class _Directory:
    """Restores the chains of one directory. report: called with the number of bytes after each piece."""

    def __init__(
        self,
        store: Store,
        place: BackupPlace,
        directory: str,
        chains: list[SavedChain],
        writer: bytes,
        report: Callable[[int], None],
    ) -> None:
        self._store = store
        self._place = place
        self._directory = directory
        self._chains = chains
        self._writer = writer
        self._report = report

    async def restore(self) -> None:
        """Write all segments, those of an interrupted run included, and release what lies below them."""
        epoch = max(_epoch(segment) for chain in self._chains for segment in chain.segments)
        view = await self._store.inspect(self._directory)
        seen = view.epoch_seen
        if self._writer not in {holder for _, holder in view.epochs.values()}:
            epoch = max(epoch, seen + 1)  # of its owners before, there is nothing left
        try:
            if seen <= epoch:  # otherwise an interrupted run has written everything, and begun the next step
                async with await self._store.claim(self._directory, epoch, self._writer) as claim:
                    for chain in self._chains:
                        for segment in chain.segments:
                            await self._segment(claim, segment)
            for chain in self._chains:
                if chain.released is not None:
                    await self._release(chain, max(seen, epoch) + 1)
        except FencedError as error:
            raise BackupRefusedError(
                f"directory {self._directory} of the store has another writer: {error.args[0]}",
                remedy="restore into a store in which nothing has the names of the region",
            ) from error

    async def _segment(self, claim: Claim, segment: SavedSegment) -> None:
        """Write a segment from where an interrupted run has stopped."""
        if any(segment.name in objects for objects in claim.answers.values()):
            writer = await resume(self._store, claim, segment.name)
        else:
            writer = claim.open_object(segment.name)
        digest, there = PrefixDigest(), writer.size
        if there > segment.length:
            raise self._other(segment, f"{there} bytes")
        async with aclosing(self._verified(segment)) as pieces:
            async for data in pieces:
                old = data[: max(there - digest.size, 0)]
                digest.update(old)
                if old and digest.size == there and digest.value != writer.digest:
                    raise self._other(segment, f"bytes with digest {writer.digest:016x}")
                for begin in range(len(old), len(data), payload_bytes_max):
                    part = data[begin : begin + payload_bytes_max]
                    digest.update(part)
                    writer.append(part)
                    await writer.wait_room()
                self._report(len(data))
        if (digest.size, digest.value) != (segment.length, segment.digest):
            raise BackupDamagedError(
                f"{self._directory}/{segment.name} in the backup",
                f"its pieces have digest {digest.value:016x}, the chain names {segment.digest:016x}",
            )
        await writer.wait_synced(segment.length)
        writer.seal()

    def _other(self, segment: SavedSegment, what: str) -> BackupRefusedError:
        return BackupRefusedError(
            f"{self._directory}/{segment.name} of the store has {what}, which are not of this backup",
            remedy="delete the directory, or restore into another store",
        )

    async def _verified(self, segment: SavedSegment) -> AsyncGenerator[bytes]:
        """Yield the bytes of the pieces, in order. Raises BackupDamagedError, which names the object."""
        names = [piece.name for piece in segment.pieces]
        at = 0
        async with aclosing(self._place.contents(names)) as contents:
            for piece in segment.pieces:
                data = await anext(contents)
                found = hashlib.sha256(data).hexdigest()
                if (len(data), found, at) != (piece.length, piece.sha256, piece.begin):
                    raise BackupDamagedError(
                        self._place.where(piece.name),
                        f"{self._directory}/{segment.name} needs {piece.length} bytes with SHA-256"
                        f" {piece.sha256} from {piece.begin} on, found {len(data)} with {found} at {at}",
                    )
                at += len(data)
                yield data

    async def _release(self, chain: SavedChain, epoch: int) -> None:
        """Begin a segment that releases what the backup does not have of an input."""
        generation = self._store.record.generation
        async with await self._store.claim(self._directory, epoch, self._writer) as claim:
            taken = await TakenChain.take(
                claim, chain.chain, generation=generation, released=chain.released or (0, 0)
            )
            state = msgspec.structs.replace(taken.state, released=chain.released)
            async with await taken._replace(state=state).open():
                pass


def _epoch(segment: SavedSegment) -> int:
    parsed = parse_segment_name(segment.name)
    if parsed is None:
        raise BackupDamagedError("the record of the backup", f"{segment.name!r} is not the name of a segment")
    return parsed.epoch


async def _restore_register(store: Store, saved: SavedRegister) -> None:
    """Write the part of a register that the backup has. A register of other regions keeps what it has."""

    def merged(there: Register) -> Register:
        return msgspec.structs.replace(
            there,
            consumers={**there.consumers, **saved.register.consumers},
            rule=there.rule if there.rule is not None else saved.register.rule,
        )

    await change_register(StoreHost(store), RegisterPlace(saved.directory, saved.chain), merged)


async def _commit(store: Store, record: BackupRecord, *, old_is_gone: bool) -> Checkpoint:
    """Append the checkpoint to the manifest, if it is not there already. Return it."""
    above = first_incarnation(record.checkpoint, wall_time_ms())

    def make(incarnation: int) -> Checkpoint:
        return restored_from(record, incarnation, old_is_gone=old_is_gone)

    first = await append_first(StoreHost(store), record.region, make, above=above)
    if first is None:
        raise BackupRefusedError(
            f"{coordinator_directory(record.region)}/{CHAIN} of the store has checkpoints: the region exists",
            remedy="restore into another store",
        )
    return first


async def copy_region(
    source_url: str,
    target_url: str,
    region: str,
    directory: str,
    *,
    token: bytes = b"",
    patience_s: float = limits.request_patience_s,
) -> None:
    """Copy the last checkpoint of a running region to another store, where the next `run` continues from it.

    What that store has of the region, which must not run there, is deleted once the backup is complete.
    directory: of the backup in the target, until the end. patience_s: for a first answer of the driver.
    Raises NoRegionError, NoAnswerError, DeletionRefusedError, and as `back_up` and `restore_backup`. If it
    fails or is cancelled, the target has the region as it was, or none; the same call continues.
    """
    async with (
        open_store(target_url, token=token, client="copy of a region") as target,
        open_target(f"{target_url}/{directory}", token=token) as backups,
        backups.place(region) as place,
    ):
        known = await backups_of(place)  # of a call that was interrupted
        if not known:
            async with open_store(source_url, token=token, client="copy of a region") as source:
                maker = SavepointMaker(source, region, stopped=False, patience_s=patience_s)
                await back_up(source, region, place, maker, keep=1)
            known = await backups_of(place)
        record = known[-1]
        await _empty(target, region, {chain.directory for chain in record.chains}, patience_s)
        await restore_backup(place, record, target, emptied=True)
        await place.delete([*await place.sizes("")])  # the next copy is of a later checkpoint


async def _empty(store: Store, region: str, directories: Iterable[str], patience_s: float) -> None:
    """Delete what a store has of a region, and of the inputs that it records itself."""
    try:
        broken = [one.name for one in (await plan_deletion(store, region)).dependents]
        await delete_region(store, region, broken=broken, stopped=True, patience_s=patience_s)
    except NoRegionError:
        pass
    answered = (await store.inspect(coordinator_directory(region))).answers
    if missing := [one.address for one in store.record.voters if one.server_id not in answered]:
        raise DeletionRefusedError(
            f"members {', '.join(missing)} of the store do not answer, and may have a part of {region!r}",
            remedy="start them, or replace them with `dos store replace`",
        )
    for directory in sorted(directories):
        view = await store.inspect(directory)
        if any(view.answers.values()):
            async with await store.claim(directory, view.epoch_seen + 1, randomness.fresh_id()) as claim:
                claim.collect(lambda _: True)
                await claim.wait_collected(limits.trim_wait_s)
