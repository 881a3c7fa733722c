"""The manifest of a region on its store: taken over, read, appended to. Performs OpenManifest and
AppendCheckpoint.

One `ManifestLog` holds at most one claim. It reports by events of `core/coordinator_vocabulary.py`; the
coordinator core decides what follows from them. `manifest_host.py` provides the store, time and randomness,
so this file does not use trio.

The order of an opening:

1. Read the directory to find the highest epoch.
2. Claim it with a higher epoch.
3. Take the chain over and read it.
4. Open a segment. ManifestOpened is emitted only when the start of that segment is acknowledged (R8, R11).

Records are not pipelined, because each record proves the one before (R9).
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final

import msgspec

from checkpoint import limits
from checkpoint.chains.chain_store import TakenChain
from checkpoint.coordinator.manifest_host import ManifestClaimPort, ManifestHost
from checkpoint.core.coordinator_vocabulary import (
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
from checkpoint.core.manifest import Checkpoint, decode_checkpoint, encode_checkpoint
from checkpoint.core.manifest_checks import check_checkpoint
from checkpoint.core.region import coordinator_directory
from checkpoint.core.retention import Rolling, keep
from dos_client.errors import QuorumUnavailableError
from dos_protocol.errors import ClosedError, DosError, FencedError, StaleGenerationError
from dos_protocol.messages import ObjectInfo
from journal import (
    ChainWriter,
    NotEnoughAnswersError,
    Op,
    Position,
    Record,
    below,
    parse_segment_name,
)
from journal.ports import ClaimPort

logger: Final = logging.getLogger("dos.checkpoint")
CHAIN: Final = "manifest"


class ManifestLog:
    """One region's manifest. Create it with the host of an open store; call `open` and `append` one at a
    time.

    `emit` receives the events; it is called on the thread of the store and must not block. After a
    cancellation, release the claim with `aclose`; what was appended may be found by the next opening.
    `driver`: recorded in checkpoints as the driver that commits them.
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
            if newer is not None:  # the unreadable data was deleted by the newer holder (R14)
                self._superseded(newer)
                return
            logger.error("the manifest in %s cannot be taken over: %s", self._directory, error)
            self._emit(ManifestUnreadable(error))

    def _superseded(self, by: FencedError) -> None:
        took_s = self._host.now() - self._tried_at
        self._emit(ManifestSuperseded(by.epoch_held, self._host.rng(), took_s))

    async def _held_by_a_newer(self) -> FencedError | None:
        """Return a FencedError if our claim was superseded while we read, possibly on members that have not
        reported it yet.
        """
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
            if order.held and taken_by > order.held:
                self._emit(ManifestTaken(taken_by))
                return True
            if order.held and view.epoch_seen > max(order.held, self._waited_for):
                # a newer driver may be about to open its segment: wait for it once
                self._waited_for = view.epoch_seen
                await self._host.sleep(max(limits.claimant_wait_s, 2.0 * self._opening_s))
                return False
            above = max(view.epoch_seen, taken_by, order.above, order.held)
            epoch = (above // order.step + 1) * order.step
            self._claim = await self._host.claim(self._directory, epoch, limits.claim_patience_s)
            if self._claim is None:
                self.waiting("too few members of the store grant the claim of the manifest")
                return False
            last = await self._take_over(self._claim)
        except (QuorumUnavailableError, NotEnoughAnswersError, StaleGenerationError) as error:
            self.waiting(str(error))
            await self.aclose()
            return False
        self.waiting("")
        self._opening_s = min(self._host.now() - self._tried_at, limits.claim_patience_s)
        self._emit(ManifestOpened(epoch, last, self._kept))
        return True

    async def _take_over(self, claim: ClaimPort) -> Checkpoint | None:
        taken = await TakenChain.take(claim, CHAIN, generation=self._host.record.generation)
        self._kept = ()
        async with aclosing(checkpoints_in(taken.records())) as checkpoints:
            async for checkpoint in checkpoints:
                self._kept = keep(self._kept, checkpoint)
        long = (
            taken.state.bytes > self._rolling.manifest_replay_bytes_max
            or len(taken.state.segments) >= self._rolling.segments_max
        )
        snapshot = [checkpoint_record(checkpoint) for checkpoint in self._kept] if long else None
        self._writer = await taken.open(snapshot, pipelined=False)
        self._collect(claim, self._writer)
        return self._kept[-1] if self._kept else None

    @staticmethod
    def _collect(claim: ClaimPort, writer: ChainWriter) -> None:
        """Delete in the background what is below the chain's last snapshot: that snapshot is acknowledged, so
        older segments hold only released checkpoints (R14).
        """
        claim.collect(below({CHAIN: writer.floor}))

    async def wait_collected(self, timeout_s: float) -> bool:
        """Wait until no connected member holds anything below the chain's snapshot; False on timeout or if
        the manifest is not held.
        """
        return self._claim is not None and await self._claim.wait_collected(timeout_s)

    # --- Committing -----------------------------------------------------------------------------------

    async def append(self, order: AppendCheckpoint) -> None:
        """Append a checkpoint and wait until it is synced on the quorum. Emits CheckpointAppended or
        ManifestLost.
        """
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
        """Report when the claim loses or regains a quorum, and when it is lost while nothing is appended.
        Runs until cancelled.
        """
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
        """The incarnation in which a checkpoint could be appended now, as far as is known here; 0 for
        none.
        """
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
    """Yield the checkpoints among a manifest's records in order, each verified against its predecessor.
    Closes `records`. Raises ManifestError.
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
