"""Workers join, are ordered to the last checkpoint, and start. A part of the coordinator. Pure.

Invariants kept here:

- No order is sent before the manifest is held in its incarnation.
- Every worker receives at most one Restore in an incarnation.
"""

from checkpoint import limits
from checkpoint.core.coordination.checkpoints import Checkpointing
from checkpoint.core.coordination.rounds import TakeOvers
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import CloseLink, LaunchWorker
from checkpoint.core.coordination.workers import Worker
from checkpoint.core.ending import Ending
from checkpoint.core.links.messages import (
    Join,
    Refusal,
    Restored,
    Start,
    StopKind,
)
from checkpoint.core.pausing import Pausing
from checkpoint.core.placement import host_of, worker_on_loopback
from checkpoint.core.recovery import Recovery
from checkpoint.core.region import RegionState
from checkpoint.core.region_events import WorkerJoined
from checkpoint.core.region_states import CoordinatorPhase, PhaseEvent, WorkerEvent, WorkerState
from checkpoint.core.versions import LOCAL_RECOVERY, overlap, versions_text
from checkpoint.core.voting import PendingCheckpoint
from checkpoint.errors import RegionFailedError


class Gathering:
    """The workers of one region, from their launch to the start of a round."""

    def __init__(
        self,
        state: CoordinatorState,
        ending: Ending,
        checkpointing: Checkpointing,
        pausing: Pausing,
        recovery: Recovery,
        take_overs: TakeOvers,
    ) -> None:
        self._state = state
        self._ending = ending
        self._checkpointing = checkpointing
        self._pausing = pausing
        self._recovery = recovery
        self._take_overs = take_overs

    def launch_due(self, now: float) -> None:
        """Launch every worker whose launch time is reached.

        This needs no incarnation, because a launched worker only joins.
        """
        state = self._state
        for worker in state.roster.ever():
            if worker.launch_at is not None and worker.launch_at <= now:
                attempt = state.roster.launch(worker, state.round.number, now)
                beside, host = state.roster.is_successor(worker), self._take_overs.host_of(worker)
                state.emit(
                    LaunchWorker(worker.index, attempt, beside)
                    if host is None or host.link is None
                    else LaunchWorker(worker.index, attempt, beside, host.index, host.link)
                )

    def on_join(self, link: int, join: Join, now: float) -> Refusal | None:
        """Take the first message of a link. Only the current attempt of a worker is accepted."""
        state = self._state
        if state.over:
            return self._refuse_join(link, "stopped", state.reason)
        worker = state.roster.find(join.worker, join.attempt)
        if worker is None or not state.roster.has(worker) or worker.state is not WorkerState.LAUNCHED:
            newest = [one for one in (*state.roster, *state.roster.coming) if one.index == join.worker]
            if not newest:
                return self._refuse_join(link, "refused", f"there is no worker {join.worker}")
            current = ", ".join(f"attempt {one.attempt} is {one.state.name}" for one in newest)
            text = f"attempt {join.attempt} of worker {join.worker}; {current}"
            return self._refuse_join(link, "superseded", text)
        others = (one for one in state.roster if one.index != worker.index and one.link is not None)
        blocked = state.placement.rejects(join.host, others, now)
        if blocked is not None:
            text = f"a worker on {join.host} cannot reach worker {blocked.index} on {host_of(blocked)}"
            state.roster.lose(worker, text, ended=False)
            # Not canceled: the launcher may keep its place occupied until the next attempt has another one.
            worker.launch_at = now + limits.launch_backoff_s
            return self._refuse_join(link, "superseded", text)
        if text := self._unfit_version(join):
            state.roster.lose(worker, text, ended=False)
            return self._refuse_join(link, "refused", text)
        state.roster.joined(worker, link, join, now)
        state.history.note_launch(now - worker.launched_at)
        state.report(WorkerJoined(worker.index, worker.attempt, join.host, join.pid))
        if state.spec.hand_over and not state.incarnation and state.roster.all_in(WorkerState.JOINED):
            self._recovery.open_manifest()
        self.order_if_gathered(now)
        return None

    def _unfit_version(self, join: Join) -> str:
        """Return why a worker cannot exchange rows with one that has joined, empty if it can with all."""
        if self._state.spec.recovery == "local" and join.speaks[1] < LOCAL_RECOVERY:
            return (
                f"worker {join.worker} on {join.host} speaks {versions_text(join.speaks)} of the messages"
                f" between workers, and local recovery needs version {LOCAL_RECOVERY}: install a newer"
                ' version there, or run the region with recovery="global"'
            )
        for one in self._state.roster:
            other = one.join
            if one.link is None or other is None or one.index == join.worker:
                continue
            if not overlap(join.speaks, other.speaks):
                return (
                    f"worker {join.worker} on {join.host} speaks {versions_text(join.speaks)} of the messages"
                    f" between workers, and worker {one.index} on {other.host} {versions_text(other.speaks)}:"
                    " install a version on one of these hosts that fits the other"
                )
        return ""

    def _refuse_join(self, link: int, kind: StopKind, text: str) -> Refusal:
        self._state.send(link, self._ending.stop_message(kind, text))
        self._state.emit(CloseLink(link))
        return Refusal("STALE_ATTEMPT" if kind == "superseded" else "UNKNOWN_WORKER", text)

    def order_if_gathered(self, now: float) -> None:
        """Order every worker to the last checkpoint, if the manifest is held and all workers have joined."""
        state = self._state
        if state.phase is not CoordinatorPhase.GATHERING or not state.roster.all_in(WorkerState.JOINED):
            return
        if state.examining or state.restoring is not None:
            return
        if (alone := worker_on_loopback(state.roster)) is not None:
            self._fail_for_address(alone, now)
            return
        state.move(PhaseEvent.GATHERED)
        state.round.ordered_at = now
        state.timers.clear("gather")
        state.timers.set("restore", now + state.spec.reset_timeout_s)
        if state.layout_changes:
            # Nothing of the new layout counts before this checkpoint of it is committed.
            state.pending = PendingCheckpoint(
                state.last_number + 1, state.incarnation, len(state.roster), final=False, requested_at=now
            )
        for worker, link in state.roster.linked():
            worker.move(WorkerEvent.ORDER)
            state.send_restore(worker, link)

    def _fail_for_address(self, worker: Worker, now: float) -> None:
        assert worker.join is not None
        text = (
            f"worker {worker.index} on {worker.join.host} gave {worker.join.exchange_host} as its address,"
            " which workers on other machines cannot reach"
        )
        remedy = (
            "pass coordinator_address, or set spark.driver.host, to an address of the driver that is not"
            f" loopback; or set DOS_ADVERTISE_HOST on {worker.join.host} to its address"
        )
        error = RegionFailedError(text, remedy=remedy)
        self._ending.decide(RegionState.FAILED, text, now, kind="failed", error=error)

    def on_restored(self, worker: Worker, message: Restored, now: float) -> Refusal | None:
        """Note that a worker has restored the checkpoint. With the last one, start all workers, unless their
        layout is not committed yet.
        """
        if worker.state is not WorkerState.ORDERED:
            return Refusal("UNEXPECTED", f"worker {worker.index} reported Restored without an order")
        worker.move(WorkerEvent.RESTORED)
        worker.last_step = message.last_step
        worker.replayed_bytes, worker.restore_seconds = message.replayed_bytes, message.seconds
        worker.restore_phases_s = message.phases_s
        if self._take_overs.is_of(worker):
            self._take_overs.restored(worker, message, now)
        elif self._state.roster.all_in(WorkerState.RESTORED) and not self._state.layout_changes:
            self.start_all(now)
        return None

    def start_all(self, now: float) -> None:
        """Start all workers.

        Steps that all workers have on record are replayed exactly. The first step that one of them lacks gets
        new input ranges.
        """
        state = self._state
        state.move(PhaseEvent.RESTORED)
        state.running_since = now
        step = state.last_step
        replay_until = max(step, min(worker.last_step for worker in state.roster))
        for worker in state.roster:
            worker.move(WorkerEvent.START)
            worker.step, worker.wants_checkpoint = step, 0
        state.timers.clear("restore")
        self._checkpointing.set_checkpoint_time(now)
        state.send_all(
            Start(
                job=state.spec.name,
                incarnation=state.incarnation,
                epoch=state.incarnation,
                replay_until_step=replay_until,
            )
        )
        if state.pause:
            self._pausing.order_pause()
        self._recovery.end_round(now)

    def timed_out(self, now: float) -> None:
        """Fail the region if workers are missing; wait on if only the manifest is."""
        state = self._state
        missing = state.roster.indices_not_in(WorkerState.JOINED)
        waits = state.phase is CoordinatorPhase.OPENING or state.examining or state.restoring is not None
        if waits and not missing:
            state.timers.set("gather", now + state.spec.start_timeout_s)
            return
        if state.scaling is not None:
            self._recovery.reset("a worker of the new layout did not join", now)
            return
        errors = "; ".join(f"worker {i}: {state.roster[i].error}" for i in missing if state.roster[i].error)
        listed = ", ".join(map(str, missing))
        text = f"worker {listed} did not join within {state.spec.start_timeout_s:g} s"
        error = RegionFailedError(
            f"{text} ({errors})" if errors else text,
            remedy="provide one task slot for each worker; a worker occupies its slot as long as it runs",
        )
        self._ending.decide(RegionState.FAILED, text, now, kind="failed", error=error)
