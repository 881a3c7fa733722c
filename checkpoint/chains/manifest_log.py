"""The manifest of a region on its store: taken over and appended to by its driver, read by anybody.

One `ManifestLog` holds at most one claim. It performs OpenManifest and AppendCheckpoint, and reports by
events; the coordinator core decides what follows. A `ManifestHost` provides the store, time and randomness.
Readers (`read_manifest`) claim nothing, and return only verified, committed records (R10).
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import trio

from checkpoint import limits
from checkpoint.chains.chain_store import TakenChain
from checkpoint.core.applications import belongs_to
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    Event,
    ManifestLost,
    ManifestOpened,
    ManifestSuperseded,
    ManifestTaken,
    ManifestUnreadable,
    OpenManifest,
    StoreWaiting,
)
from checkpoint.core.records.manifest import (
    Checkpoint,
    Rolling,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    keep,
)
from checkpoint.core.region import coordinator_directory
from checkpoint.errors import CheckpointReleasedError, ManifestError, NoRegionError
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from dos_client.errors import QuorumUnavailableError
from dos_protocol.errors import ClosedError, DosError, FencedError, NotFoundError, StaleGenerationError
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import StoreRecord
from journal import (
    ChainState,
    ChainWriter,
    LostBytesError,
    NotEnoughAnswersError,
    Op,
    Position,
    Record,
    StoreStateHost,
    below,
    inspect_chain,
    parse_segment_name,
    read_records,
)
from journal.ports import ClaimPort, DirectoryViewPort, StorePort

logger: Final = logging.getLogger("dos.checkpoint")
CHAIN: Final = "manifest"


class ManifestClaimPort(ClaimPort, Protocol):
    """A claim as the manifest uses it; see `dos_client.Claim`."""

    @property
    def lost(self) -> FencedError | None: ...

    @property
    def waiting(self) -> bool: ...

    def status(self) -> Any:
        """Return its status; its `waiting` is a description."""
        ...

    async def wait_collected(self, timeout_s: float) -> bool:
        """Wait until no connected member holds any collected object; False on timeout. Raises FencedError."""
        ...

    async def aclose(self) -> None: ...


class ManifestHead(DirectoryViewPort, Protocol):
    """A read view of a directory. `epoch_seen`: the highest claim that any member reports."""

    @property
    def epoch_seen(self) -> int: ...


class ManifestHost(Protocol):
    """The store, clock and random numbers of a manifest."""

    @property
    def record(self) -> StoreRecord: ...

    @property
    def store(self) -> StorePort:
        """The store, to be read without a claim."""
        ...

    async def inspect(self, directory: str) -> ManifestHead: ...

    async def claim(self, directory: str, epoch: int, patience_s: float) -> ManifestClaimPort | None:
        """Claim the directory; None if it is not granted within `patience_s` seconds. Raises FencedError."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def rng(self) -> float:
        """Return a random number from 0 to 1."""
        ...

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        ...

    def wall_time_ms(self) -> int: ...


class StoreHost(StoreStateHost):
    """A host on a real store, under trio."""

    @property
    def store(self) -> Store:
        return self._store

    def now(self) -> float:
        return trio.current_time()

    def wall_time_ms(self) -> int:
        return wall_time_ms()


class ManifestLog:
    """One region's manifest; call `open` and `append` one at a time.

    emit: receives the events, on the thread of the store, and must not block. driver: recorded in
    checkpoints. After a cancellation, release the claim with `aclose`; the next opening may find what was
    appended.
    """

    def __init__(
        self,
        host: ManifestHost,
        region: str,
        emit: Callable[[Event], None],
        *,
        driver: str = "",
        rolling: Rolling | None = None,
    ) -> None:
        self._host = host
        self._region = region
        self._rolling = Rolling() if rolling is None else rolling
        self._driver = driver
        self._directory = coordinator_directory(region)
        self._emit = emit
        self._claim: ManifestClaimPort | None = None
        self._writer: ChainWriter | None = None
        self._kept: tuple[Checkpoint, ...] = ()
        self._waiting = ""
        self._waited_for = 0
        self._tried_at = 0.0
        self._opening_s = 0.0
        self._heir = 0
        """The segment of the driver to which the region was lent, once its time to commit is over."""

    # --- Opening --------------------------------------------------------------------------------------

    async def open(self, order: OpenManifest) -> None:
        """Take the manifest over with a new epoch. Emits one of the events that OpenManifest names."""
        await self.aclose()
        try:
            while not await self._try_open(order):
                await self._host.sleep(limits.store_poll_s)
        except FencedError as error:
            self._superseded(error)
        except DosError as error:
            newer = await self._held_by_a_newer()
            # Also by a member that has not reported it yet.
            if newer is not None:  # the unreadable data was deleted by the newer holder (R14)
                self._superseded(newer)
                return
            logger.error("the manifest in %s cannot be taken over: %s", self._directory, error)
            self._emit(ManifestUnreadable(error))

    def _superseded(self, by: FencedError) -> None:
        took_s = self._host.now() - self._tried_at
        self._emit(ManifestSuperseded(by.epoch_held, self._host.rng(), took_s))

    async def _held_by_a_newer(self) -> FencedError | None:
        """Return a FencedError if our claim was superseded while we read."""
        claim = self._claim
        if claim is None or claim.lost is not None:
            return None if claim is None else claim.lost
        try:
            seen = (await self._host.inspect(self._directory)).epoch_seen
        except DosError as error:
            logger.info("the holder of %s cannot be determined: %s", self._directory, error)
            return None
        if seen <= claim.epoch:
            return None
        return FencedError(f"{self._directory} was claimed with epoch {seen} in the meantime", actual=seen)

    async def _try_open(self, order: OpenManifest) -> bool:
        """Return False if too few members answer now and waiting may help."""
        self._tried_at = self._host.now()
        try:
            view = await self._host.inspect(self._directory)
            taken_by = _newest_segment(view.answers)
            # A newer driver opened a segment and may have committed in it. To claim above it would fence that
            # driver, which does the same: two drivers would take the region from each other for ever.
            if order.held and taken_by > order.held and not await self._heir_is_dead(order, taken_by):
                return True
            if order.held and view.epoch_seen > max(order.held, self._waited_for):
                # a newer driver may be about to open its segment: wait for it once
                self._waited_for = view.epoch_seen
                await self._host.sleep(max(limits.claimant_wait_s, 2.0 * self._opening_s))
                return False
            above = max(view.epoch_seen, taken_by, order.above, order.held)
            epoch = (above // order.step + 1) * order.step
            # Above every epoch seen, also those of claims that never wrote: at the same epoch, a record of
            # the other claimer could be taken for ours.
            self._claim = await self._host.claim(self._directory, epoch, limits.claim_patience_s)
            if self._claim is None:
                self.waiting("too few members of the store grant the claim of the manifest")
                return False
            last = await self._take_over(self._claim, order)
        except (QuorumUnavailableError, NotEnoughAnswersError, StaleGenerationError) as error:
            self.waiting(str(error))
            await self.aclose()
            return False
        self.waiting("")
        self._opening_s = min(self._host.now() - self._tried_at, limits.claim_patience_s)
        self._heir = 0
        self._emit(ManifestOpened(epoch, last, self._kept))
        return True

    async def _heir_is_dead(self, order: OpenManifest, taken_by: int) -> bool:
        """Return whether the driver to which the region was lent has committed nothing in its time, and has
        opened no further segment. Otherwise ManifestTaken is emitted.
        """
        until = self._host.now() + order.heir_s
        while order.heir_s and self._heir in (0, taken_by):
            last = next(reversed(await retained_checkpoints(self._host.store, self._region)), None)
            if last is not None and last.incarnation > order.held:
                break
            if self._heir or self._host.now() >= until:
                self._heir = taken_by
                return True
            await self._host.sleep(limits.store_poll_s)
            taken_by = _newest_segment((await self._host.inspect(self._directory)).answers)
        self._emit(ManifestTaken(taken_by))
        return False

    async def _take_over(self, claim: ClaimPort, order: OpenManifest) -> Checkpoint | None:
        taken = await TakenChain.take(claim, CHAIN, generation=self._host.record.generation)
        self._kept = ()
        async with aclosing(checkpoints_in(taken.records())) as checkpoints:
            async for checkpoint in checkpoints:
                self._kept = keep(self._kept, checkpoint)
        last = self._kept[-1] if self._kept else None
        # Before the segment is opened: otherwise the driver that runs the region would end FENCED by one that
        # is refused, and nobody would run it. Without a segment it claims again (R18).
        order.decide(last)
        long = (
            taken.state.bytes > self._rolling.manifest_replay_bytes_max
            or len(taken.state.segments) >= self._rolling.segments_max
        )
        snapshot = [checkpoint_record(checkpoint) for checkpoint in self._kept] if long else None
        self._writer = await taken.open(snapshot, pipelined=False)
        self._collect(claim, self._writer)
        return last

    @staticmethod
    def _collect(claim: ClaimPort, writer: ChainWriter) -> None:
        """Delete in the background what is below the chain's last snapshot (R14)."""
        # The snapshot is acknowledged, so older segments hold only released checkpoints. Deleted earlier, a
        # crash would leave neither them nor the snapshot.
        claim.collect(below({CHAIN: writer.floor}))

    async def wait_collected(self, timeout_s: float) -> bool:
        """Wait until no connected member holds anything below the snapshot; False on timeout."""
        return self._claim is not None and await self._claim.wait_collected(timeout_s)

    # --- Committing -----------------------------------------------------------------------------------

    async def append(self, order: AppendCheckpoint) -> None:
        """Append a checkpoint and wait for the quorum. Emits CheckpointAppended or ManifestLost."""
        writer = self._writer
        if writer is None:
            return  # released in the meantime: the next opening finds out what was committed
        now_ms = self._host.wall_time_ms()
        checkpoint = msgspec.structs.replace(order.checkpoint, wall_time_ms=now_ms, driver=self._driver)
        try:
            # This is the commit. No CheckpointAppended before the quorum has synced the record.
            await writer.wait_synced(writer.append(checkpoint_record(checkpoint)))
            self._kept = keep(self._kept, checkpoint)
            self._emit(CheckpointAppended(checkpoint))
            if writer.bytes_since_snapshot > self._rolling.manifest_segment_bytes_max:
                await writer.roll([checkpoint_record(checkpoint) for checkpoint in self._kept])
                if self._writer is writer and self._claim is not None:
                    self._collect(self._claim, writer)
        except FencedError as error:
            self._lost(error)
        except ClosedError:
            if self._writer is writer:
                raise
            logger.debug("the manifest in %s was released in the meantime", self._directory)

    # --- Waiting --------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Report when the claim loses or regains a quorum, or is lost. Runs until cancelled."""
        while True:
            await self._host.sleep(limits.store_poll_s)
            claim = self._claim
            if claim is None:
                continue
            if claim.lost is None:
                waits = f"the manifest waits for the store: {claim.status().waiting}"
                self.waiting(waits if claim.waiting else "")
            elif self._writer is not None:
                self._lost(claim.lost)

    def _lost(self, error: FencedError) -> None:
        """Report the loss once; the next opening determines who holds the manifest."""
        # First: whatever is appended after the loss is acknowledged by nobody.
        self._writer = None
        if self._claim is not None:
            self._emit(ManifestLost(self._claim.epoch, error.epoch_held))

    def waiting(self, text: str) -> None:
        """Report a change of what the manifest waits for; '' for nothing."""
        if text != self._waiting:
            self._waiting = text
            self._emit(StoreWaiting(text))

    @property
    def held(self) -> int:
        """The incarnation in which a checkpoint could be appended now, as far as known; 0 for none."""
        claim = self._claim
        return claim.epoch if self._writer is not None and claim is not None and claim.lost is None else 0

    async def aclose(self) -> None:
        """Release the claim. A checkpoint that is not acknowledged yet may or may not be committed."""
        writer, self._writer = self._writer, None
        claim, self._claim = self._claim, None
        if writer is not None:
            await writer.aclose()
        if claim is not None:
            await claim.aclose()


def checkpoint_record(checkpoint: Checkpoint) -> Record:
    """Return the journal record of a checkpoint."""
    encoded = encode_checkpoint(checkpoint)
    return Record(Op.CHECKPOINT, ints=encoded.ints, strings=(encoded.text,), flags=encoded.flags)


async def checkpoints_in(records: AsyncGenerator[tuple[Position, Record]]) -> AsyncGenerator[Checkpoint]:
    """Yield the checkpoints among a manifest's records, each verified against its predecessor. Closes
    `records`. Raises ManifestError.
    """
    before: Checkpoint | None = None
    in_snapshot = False
    async with aclosing(records) as found:
        async for _, record in found:
            if record.op in (Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END):
                in_snapshot = record.op is Op.SNAPSHOT_BEGIN
            if record.op is not Op.CHECKPOINT:
                continue
            checkpoint = decode_checkpoint(record.flags, record.ints, record.strings[0])
            check_checkpoint(checkpoint, before=before, gap=in_snapshot)
            before = checkpoint
            yield checkpoint


def _newest_segment(answers: Mapping[bytes, Mapping[str, ObjectInfo]]) -> int:
    """Return the highest epoch of a manifest segment that any member reports, 0 if there is none."""
    names = (parse_segment_name(name) for objects in answers.values() for name in objects)
    return max((name.epoch for name in names if name is not None and name.chain == CHAIN), default=0)


_SUFFIX = coordinator_directory("")


@dataclass(frozen=True, slots=True)
class ManifestView:
    """The content of a manifest."""

    region: str
    epoch: int
    """The highest epoch with which it was claimed, as reported by F or more members: no older incarnation can
    commit.
    """
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Committed checkpoints, oldest first. Those before the newest snapshot of the chain are no longer
    included.
    """
    unproved: str = ""
    """Why there may be a checkpoint later than the last one here; "" if there is none (decision 0216)."""

    @property
    def last(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def retained(self) -> tuple[int, ...]:
        """Numbers of the checkpoints that can be restored, rising. All others are released (R14)."""
        return tuple(checkpoint.number for checkpoint in self.kept)

    @property
    def kept(self) -> tuple[Checkpoint, ...]:
        """The retained checkpoints, including those of savepoints, oldest first."""
        return _kept(self.checkpoints)

    def restorable(self, number: int) -> Checkpoint:
        """Return that checkpoint. Raises CheckpointReleasedError, or ManifestError if it never existed."""
        for checkpoint in self.checkpoints:
            if checkpoint.number == number and number in self.retained:
                return checkpoint
        last = self.last.number if self.last is not None else 0
        if 0 < number < last:
            raise CheckpointReleasedError(self.region, number, self.retained)
        raise ManifestError(f"the last one of region {self.region} is {last}", checkpoint=number)


async def regions_of(store: Store) -> list[str]:
    """Return the regions that have a manifest, or a claim of one. Raises QuorumUnavailableError."""
    return [name.removesuffix(_SUFFIX) for name in await store.list_directories() if name.endswith(_SUFFIX)]


async def manifest_epoch(store: Store, region: str) -> int:
    """Return `ManifestView.epoch`; 0 if the manifest was never claimed. Raises QuorumUnavailableError."""
    return (await store.inspect(coordinator_directory(region))).epoch_seen


async def read_manifest(store: Store, region: str) -> ManifestView:
    """Read the whole manifest. Raises NoRegionError, ManifestError, and what reading raises."""
    directory = coordinator_directory(region)
    view = await store.inspect(directory)
    names = {name for objects in view.answers.values() for name in objects}
    if not view.epoch_seen and not any(_is_manifest(name) for name in names):
        raise NoRegionError(region, await regions_of(store))
    return await _read(store, region, view.epoch_seen)


async def last_checkpoints_of(store: Store, application: str) -> dict[str, Checkpoint]:
    """Return the last checkpoint of each region of the store that `belongs_to` the application and has one.
    Raises as `read_manifest`.
    """
    found: dict[str, Checkpoint] = {}
    for name in await regions_of(store):
        if belongs_to(application, name):
            try:
                last = (await read_manifest(store, name)).last
            except NoRegionError:  # it was deleted meanwhile
                continue
            found |= {} if last is None else {name: last}
    return found


async def retained_checkpoints(store: StorePort, region: str) -> tuple[Checkpoint, ...]:
    """Return the retained checkpoints of a region, rising, none if it has committed none. When this returns,
    others may be retained, but no older ones. Raises ManifestError, and what reading a chain raises.
    """
    return _kept((await _read(store, region, 0)).checkpoints)


def _kept(checkpoints: list[Checkpoint]) -> tuple[Checkpoint, ...]:
    kept: tuple[Checkpoint, ...] = ()
    for checkpoint in checkpoints:
        kept = keep(kept, checkpoint)
    return kept


async def _read(store: StorePort, region: str, epoch: int) -> ManifestView:
    """Read the chain, again if its writer restarts it meanwhile."""
    for _ in range(limits.manifest_reads_max - 1):
        try:
            return await _read_once(store, region, epoch)
        except (LostBytesError, NotFoundError) as error:
            logger.info(
                "manifest of %s: %s; reading again, its writer may have restarted the chain", region, error
            )
    return await _read_once(store, region, epoch)


async def _read_once(store: StorePort, region: str, epoch: int) -> ManifestView:
    """Read the chain once. Its first segments may be deleted meanwhile, if its writer restarts it with a
    snapshot.
    """
    directory = coordinator_directory(region)
    state = await inspect_chain(store, directory, CHAIN)
    async with aclosing(checkpoints_in(read_records(store, state, directory=directory))) as checkpoints:
        return ManifestView(
            region, epoch, [checkpoint async for checkpoint in checkpoints], _unproved_text(state)
        )


# No checkpoint proves the newest record, because that record is the newest checkpoint.
def _unproved_text(state: ChainState) -> str:
    """Describe the unproved end of a manifest."""
    if not state.unproved:
        return ""
    return (
        f"a later checkpoint may be committed: the manifest has {state.unproved} more bytes that cannot be"
        f" proved committed at present, because {state.unproved_because}"
    )


def _is_manifest(name: str) -> bool:
    parsed = parse_segment_name(name)
    return parsed is not None and parsed.chain == CHAIN
