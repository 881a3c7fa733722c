"""Regions: what is durable before it counts, the incarnation of a message, the position of a restore."""

from functools import partial
from typing import Any

import msgspec

from checkpoint.chains import chain_store, manifest_log
from checkpoint.chains.manifest_log import ManifestLog, checkpoint_record
from checkpoint.chains.state_store import STATE_CHAIN, StateStore, _records
from checkpoint.chains.steps_log import StepsLog
from checkpoint.core import region as region_values
from checkpoint.core.coordination import checkpoints
from checkpoint.core.coordination import run as region_run
from checkpoint.core.coordination.checkpoints import Checkpoints, PendingCheckpoint
from checkpoint.core.coordination.coordinator import ManifestClaim
from checkpoint.core.coordination.rounds import Recovery
from checkpoint.core.coordination.vocabulary import CheckpointAppended, ManifestLost, ManifestOpened
from checkpoint.core.links import barrier
from checkpoint.core.links.barrier import Alignment
from checkpoint.core.links.messages import Vote
from checkpoint.core.records.manifest import floors_of, keep
from dataflow.core.peer_links import Admission, PeerLinks
from dataflow.core.schedule import Schedule
from dataflow.sinks.files import FileWriter
from dataflow.worker.circuit_thread import CircuitIncarnation
from dataflow.worker.journals import Journals
from dos_protocol.errors import ClosedError, DosError, FencedError
from journal import ORIGIN, LostBytesError, take_over
from journal.core.chain import below
from journal.core.walk import TakeOver
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.regions.region import has_region
from tests.sim.regions.worker import WorkerIncarnation
from tests.sim.store.claim import SimWriter

of_regions = partial(bug, where=has_region)

_all_votes = PendingCheckpoint.missing


def _one_may_be_missing(self: PendingCheckpoint) -> list[int]:
    missing = _all_votes(self)
    return [] if len(missing) == 1 and self.number > 1 else missing


@of_regions("row 33: a checkpoint with a vote missing")
def a_vote_may_be_missing() -> list[Patch]:
    """A worker that has not voted counts as being at the last checkpoint."""
    original = PendingCheckpoint.build

    def build(self: PendingCheckpoint, parent: Any, *args: Any, **fields: Any) -> Any:
        vote = next(iter(self.votes.values()))
        for worker in _all_votes(self) if parent is not None else ():
            self.votes[worker] = Vote(
                job=vote.job, worker=worker, step=vote.step, positions=parent.workers[worker]
            )
        return original(self, parent, *args, **fields)

    return [(PendingCheckpoint, "missing", _one_may_be_missing), (PendingCheckpoint, "build", build)]


@of_regions("row 33: an incomplete checkpoint is appended to the manifest")
def partial_manifest() -> list[Patch]:
    original = PendingCheckpoint.build

    def build(self: PendingCheckpoint, *args: Any, **fields: Any) -> Any:
        whole, self.workers = self.workers, 0
        checkpoint = original(self, *args, **fields)
        self.workers = whole
        positions = {worker: vote.positions for worker, vote in self.votes.items()}
        return type(checkpoint)(
            **{name: getattr(checkpoint, name) for name in checkpoint.__struct_fields__ if name != "workers"},
            workers=positions,
        )

    def check(checkpoint: Any, **others: Any) -> None:
        """Accept any checkpoint."""

    return [
        (PendingCheckpoint, "missing", _one_may_be_missing),
        (PendingCheckpoint, "build", build),
        (checkpoints, "check_checkpoint", check),
        (region_values, "check_checkpoint", check),
        (manifest_log, "check_checkpoint", check),
    ]


@of_regions("a vote before its state is durable")
def state_is_not_waited_for() -> list[Patch]:
    async def commit(self: StateStore, checkpoint: int, blocks: Any) -> Any:
        for record in _records(checkpoint, blocks):
            self._writer.append(record)
        self.version = checkpoint
        return self._writer.end

    return [(StateStore, "commit", commit)]


@of_regions("a vote before its divisions are durable")
def divisions_are_not_waited_for() -> list[Patch]:
    async def synced(self: StepsLog, step: int) -> Any:
        return self._ends.get(step, self._writer.end)

    return [(StepsLog, "synced", synced)]


@of_regions("row 36: a vote before its outputs are durable")
def outputs_are_not_synced() -> list[Patch]:
    return [(FileWriter, "sync", lambda self: None)]


@of_regions("row 36: outputs are not truncated")
def outputs_are_not_cut_back() -> list[Patch]:
    original = FileWriter.__init__

    def init(self: FileWriter, context: Any, part: Any, *, truncate: bool = True) -> None:
        original(self, context, part, truncate=False)

    return [(FileWriter, "__init__", init)]


@of_regions("R9: a commit that is not acknowledged")
def commits_are_not_waited_for() -> list[Patch]:
    async def append(self: ManifestLog, order: Any) -> None:
        if self._writer is None:
            return
        try:
            end = self._writer.append(checkpoint_record(order.checkpoint))
            self._kept = keep(self._kept, order.checkpoint)
            self._emit(CheckpointAppended(order.checkpoint))
            await self._writer.wait_synced(end)
        except FencedError as error:
            self._lost(error)
        except ClosedError:
            return

    return [(ManifestLog, "append", append)]


@of_regions("R8, R11: orders before the manifest's start is acknowledged")
def manifest_start_is_not_waited_for() -> list[Patch]:
    original = SimWriter.wait_synced

    async def wait_synced(self: SimWriter, size: int) -> None:
        if self._target.name.startswith("manifest") and not hasattr(self, "_began"):
            self._began = True  # type: ignore[attr-defined]
            return
        await original(self, size)

    return [(SimWriter, "wait_synced", wait_synced)]


@of_regions("R13: the longest position, not the one ordered")
def longest_state_is_restored() -> list[Patch]:
    async def longest(claim: Any, chain: str, *, at: Any = None, **others: Any) -> Any:
        return await take_over(claim, chain, at=None if chain == STATE_CHAIN else at, **others)

    return [(chain_store, "take_over", longest)]


@of_regions("R12, V11: votes of an earlier incarnation count")
def votes_of_any_incarnation() -> list[Patch]:
    """A checkpoint is requested again with the number that the reset left free, and the earlier votes
    count."""
    votes: dict[tuple[int, int], dict[int, Vote]] = {}
    original, reset = Checkpoints.request_checkpoint, Recovery.reset

    def remember(self: Recovery, *args: Any, **others: Any) -> None:
        pending = self._checkpoints.pending
        if pending is not None:
            votes[id(self._checkpoints), pending.number] = dict(pending.votes)
        reset(self, *args, **others)

    def request(self: Checkpoints, now: float, *, final: bool = False) -> None:
        before = self.pending
        original(self, now, final=final)
        pending = self.pending
        if pending is not None and pending is not before:
            pending.votes.update(votes.get((id(self), pending.number), {}))

    return [(Recovery, "reset", remember), (Checkpoints, "request_checkpoint", request)]


@of_regions("row 35: a marker of an earlier checkpoint starts a checkpoint again")
def old_markers_count() -> list[Patch]:
    return [
        (barrier, "checkpoint_of_step", lambda requested, last_checkpoint: max(requested, default=0)),
        (Schedule, "step_aligned", _always_aligned),
    ]


def _always_aligned(self: Schedule, step: int, watermark: Any) -> None:
    if watermark.checkpoint:
        self.checkpoints[step] = watermark
        self.ended = self.ended or watermark.final


@of_regions("row 35: frames of any incarnation are accepted")
def frames_of_any_incarnation() -> list[Patch]:
    """Also, a link outlives the incarnation for which it was dialed. Each alone does no harm: a link that
    ends with its incarnation delivers nothing to the next, and frames contain their incarnation."""
    admits, take = PeerLinks.admits, PeerLinks.take

    def admits_any(self: PeerLinks, hello: Any) -> Admission:
        return admits(self, msgspec.structs.replace(hello, incarnation=self.term, to_term=self.term))

    async def serve_peer(self: WorkerIncarnation, channel: Any, hello: Any) -> None:
        if self.over or self._links._peers.admits(hello) is not Admission.NOW:
            channel.close()
            return
        worker = self._worker
        try:
            while True:
                frame = await channel.receive()
                incarnation = worker.incarnation
                assert incarnation is not None
                arrived = incarnation._links._peers.take(hello.worker, frame)
                worker.shared.peers_at = max(worker.shared.peers_at, incarnation._links._peers.peers_at)
                if arrived is not None:
                    worker.inbox.call(incarnation.number, CircuitIncarnation.arrived, arrived)
        except DosError:
            channel.close()

    return [
        (WorkerIncarnation, "serve_peer", serve_peer),
        (PeerLinks, "admits", admits_any),
        (
            PeerLinks,
            "take",
            lambda self, peer, frame: take(self, peer, frame._replace(sender_epoch=self.terms[peer])),
        ),
    ]


@of_regions("what is in the channels at a checkpoint is dropped")
def channel_state_is_dropped() -> list[Patch]:
    original = Alignment.take

    def take(self: Alignment[Any]) -> Any:
        done = original(self)
        return done._replace(items=done.items[:1]) if done is not None and done.checkpoint else done

    return [(Alignment, "take", take)]


@of_regions("a checkpoint has the sources further than its step")
def sources_are_ahead_of_the_checkpoint() -> list[Patch]:
    original = CircuitIncarnation._step_over

    def step_over(self: CircuitIncarnation, step: int) -> None:
        self._positions[step] = {name: reader.positions() for name, reader in self._circuit.sources.items()}
        original(self, step)

    return [(CircuitIncarnation, "_step_over", step_over)]


@of_regions("the final checkpoint is taken before the last rows")
def exhausted_too_early() -> list[Patch]:
    """Reported as soon as the last row is read. (At the end of the step it would be early enough: steps run
    ahead by at most two, so a peer that has not ended the step before the last would delay this one.)"""
    produce = CircuitIncarnation._produce

    def note(self: CircuitIncarnation) -> None:
        if all(reader.exhausted for reader in self._circuit.sources.values()):
            self._shared.exhausted = True

    def produced(self: CircuitIncarnation, action: Any) -> None:
        produce(self, action)
        note(self)

    return [(CircuitIncarnation, "_note_exhausted", note), (CircuitIncarnation, "_produce", produced)]


@of_regions("P-4: a driver that is fenced commits")
def fenced_drivers_commit() -> list[Patch]:
    original = ManifestLog.append

    async def append(self: ManifestLog, order: Any) -> None:
        emit, emitted = self._emit, list[Any]()
        self._emit = emitted.append
        try:
            await original(self, order)
        finally:
            self._emit = emit
        for event in emitted:
            emit(CheckpointAppended(order.checkpoint) if isinstance(event, ManifestLost) else event)

    return [(ManifestLog, "append", append)]


@of_regions("R11, V10: a driver trusts its memory, not the manifest")
def own_memory_beats_the_manifest() -> list[Patch]:
    original = ManifestClaim.on_manifest_opened

    def opened(self: ManifestClaim, event: ManifestOpened, now: float) -> None:
        known = event.last_checkpoint if self._run.last_checkpoint is None else self._run.last_checkpoint
        original(self, ManifestOpened(event.incarnation, known, event.kept), now)

    return [(ManifestClaim, "on_manifest_opened", opened)]


@of_regions("row 36: outputs are not fenced")
def outputs_are_not_fenced() -> list[Patch]:
    return [(FileWriter, "_fence", lambda self: None)]


@of_regions("a barrier overtakes data: a marker that is late is not waited for")
def barrier_overtakes_data() -> list[Patch]:
    """A step runs with what has arrived of it; what arrives later is added to the next one."""
    data, step_end, missing = Alignment.data, Alignment.step_end, Alignment.missing

    def late_data(self: Alignment[Any], sender: int, step: int, seq: int, item: Any) -> None:
        if step < self.step:
            if self.step not in self._steps:
                self._steps[self.step] = [barrier._SenderStep() for _ in range(self._senders)]
            self._steps[self.step][sender].items.append(item)
        else:
            data(self, sender, step, seq, item)

    def late_end(self: Alignment[Any], sender: int, step: int, seq: int, **requested: Any) -> None:
        if step >= self.step:
            step_end(self, sender, step, seq, **requested)

    def only_some(self: Alignment[Any]) -> list[int]:
        late = missing(self)
        return [] if 0 < len(late) < self._senders else late

    def entry(self: Alignment[Any], sender: int, step: int) -> Any:
        for one in range(self.step, step + 1):
            self._steps.setdefault(one, [barrier._SenderStep() for _ in range(self._senders)])
        return self._steps[step][sender]

    return [
        (Alignment, "data", late_data),
        (Alignment, "step_end", late_end),
        (Alignment, "missing", only_some),
        (Alignment, "_entry", entry),
    ]


@of_regions("R14: DELETE before the release is acknowledged")
def deletes_when_it_votes() -> list[Patch]:
    """A worker treats a checkpoint as committed when it votes, and deletes what that checkpoint does not
    need."""
    original = Journals.prepare

    async def prepare(self: Journals, taken: Any) -> Any:
        part = await original(self, taken)
        self._claim.collect(below(part.floors))
        return part

    return [(Journals, "prepare", prepare)]


@of_regions("R14: released past the oldest retained checkpoint")
def only_the_last_checkpoint_has_floors() -> list[Patch]:
    def floors(kept: Any, worker: int) -> Any:
        return floors_of(kept[-1:], worker)

    return [(checkpoints, "floors_of", floors), (region_run, "floors_of", floors)]


@of_regions("R14: what is not there is empty")
def a_missing_segment_is_empty() -> list[Patch]:
    """Too much was deleted, and a take-over that finds nothing at its position treats the chain as empty."""
    at_position = TakeOver._at_position

    def empty(self: TakeOver, at: Any) -> Any:
        try:
            return at_position(self, at)
        except LostBytesError:
            return self._found(ORIGIN)

    return [*only_the_last_checkpoint_has_floors(), (TakeOver, "_at_position", empty)]
