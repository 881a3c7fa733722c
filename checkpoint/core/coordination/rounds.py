"""Local recovery: another process takes a lost worker over while the others continue. A part of the
coordinator. Pure.

The protocol and why each of its rules is needed: docs/decisions/0233. Here the coordinator

1. raises the term of the lost worker, so that nothing of its old process counts: no vote, no claim, no frame,
2. launches another process, and waits until it has joined and an append to the manifest is settled,
3. orders it to the last checkpoint, and shows it to the others (`View`),
4. starts it as soon as it has restored. It makes the steps of its chain again; the others have run as far as
   they could without it.

If no stand-by waits, the process of its predecessor in the ring runs the worker for a while.
Meanwhile a process of its own is launched. Once that has joined, it takes the worker back in the same way,
just after a checkpoint is committed: the worker is *reinstated* (DADSTORM, section 4).

What cannot be recovered in this way resets the region; the reason is part of the reset's.
"""

from dataclasses import dataclass
from typing import Any

from checkpoint import limits
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import WorkerHosted
from checkpoint.core.coordination.workers import Worker
from checkpoint.core.ending import Ending
from checkpoint.core.links.messages import Pause, RequestCheckpoint, Restored, Start, View
from checkpoint.core.recovery import Recovery
from checkpoint.core.region import ResetReport
from checkpoint.core.region_states import CoordinatorPhase, WorkerEvent, WorkerState


@dataclass(slots=True)
class WorkerTakeOver:
    """The take-over of one worker that is under way. Times are monotonic seconds."""

    worker: Worker
    reason: str
    began: float
    ordered_at: float = 0.0
    """When its new process was ordered to restore, 0 before."""


class TakeOvers:
    """The take-overs of one region: one at a time."""

    def __init__(self, state: CoordinatorState, ending: Ending, recovery: Recovery) -> None:
        self._state = state
        self._ending = ending
        self._recovery = recovery
        self._under_way: WorkerTakeOver | None = None

    def problem(self, worker: Worker) -> str:
        """Return why the loss of a worker resets the region, empty if it can be taken over."""
        state, under_way = self._state, self._of_now()
        if state.spec.recovery == "global" or state.spec.resets_because:
            return state.spec.resets_because or "the region has global recovery"
        if state.phase is not CoordinatorPhase.RUNNING:
            return "the region does not run"
        if state.final_committed:
            return "the region has processed all of its input"
        if state.scaling is not None:
            return "the workers of the region are being changed"
        if under_way is not None and under_way.worker is not worker:
            return f"worker {under_way.worker.index} was being taken over"
        if worker.failures > 1:
            return "it was lost before, and no checkpoint was committed since"
        if self._next_term() >= state.incarnation + limits.terms_per_incarnation:
            return "workers were taken over too often since the last reset"
        return "" if len(state.roster) > 1 else "it is the only worker"

    def begin(self, worker: Worker, reason: str, now: float) -> None:
        """Begin to take a lost worker over. Its old process is cancelled at once: nothing of it counts."""
        state = self._state
        self._under_way = WorkerTakeOver(worker, reason, now)
        state.terms[worker.index] = term = self._next_term()
        if state.pending is not None and not state.pending.appended:
            state.pending.taken_over(worker.index, term)
        state.is_paused, worker.paused, worker.wants_checkpoint = False, 0, 0
        state.reason = reason
        state.timers.clear("drain")  # it stands still until the worker is back
        state.timers.set("take over", now + state.spec.reset_timeout_s)
        if worker.state is WorkerState.LOST:
            self._recovery.relaunch(worker, now)

    def host_of(self, worker: Worker) -> Worker | None:
        """Return the worker whose process may run this one, which is to be launched: its predecessor in the
        ring. None: it needs a process of its own.
        """
        if not self.is_of(worker):
            return None
        host = self._state.roster[(worker.index - 1) % len(self._state.roster)]
        return host if host.state is WorkerState.RUNNING and host.host is None else None

    def on_hosted(self, event: WorkerHosted, now: float) -> None:
        """Note that a worker runs in the process of another one. The launcher knows nothing of it."""
        worker = self._state.roster.find(event.worker, event.attempt)
        if worker is not None:
            worker.host, worker.ended = event.host, True
            if not self.is_of(worker):  # a reset came first
                self._recovery.launch_unhosted(now)

    def _expect_return(self, now: float) -> None:
        """Launch a process of its own for a worker that another one hosts."""
        state = self._state
        hosted = [one for one in state.roster if one.host is not None and one.state is WorkerState.RUNNING]
        if state.phase is not CoordinatorPhase.RUNNING or not hosted or state.scaling is not None:
            return
        if not state.roster.coming:
            state.roster.expect_successor(hosted[0].index)
            self._recovery.relaunch(state.roster.coming[0], now)
        elif state.roster.coming[0].state is WorkerState.LOST and state.roster.coming[0].launch_at is None:
            state.roster.schedule(state.roster.coming[0], now)

    def reinstate(self, now: float) -> None:
        """Let a process that has joined take its worker back from the host. Call it after a commit, when the
        new process has the least to make again.
        """
        state = self._state
        back = [one for one in state.roster.coming if one.state is WorkerState.JOINED]
        if self._of_now() is not None or not back or state.scaling is not None or state.final_committed:
            return
        if not state.roster.all_in(WorkerState.RUNNING):
            return
        text = f"worker {back[0].index} continues in its own process"
        self._ending.retire(state.roster.succeed(), text, now)
        self.begin(back[0], text, now)

    def _next_term(self) -> int:
        return max([self._state.incarnation, *self._state.terms.values()]) + 1

    def _of_now(self) -> WorkerTakeOver | None:
        """Return the take-over under way. A reset has ended it, if there was one."""
        under_way = self._under_way
        if under_way is not None and under_way.worker.index not in self._state.terms:
            self._under_way = None
        return self._under_way

    def advance(self, now: float) -> None:
        """Order the new process, once it has joined and no append is under way. Call after each event."""
        state, under_way = self._state, self._of_now()
        if under_way is None and not state.over:
            self._expect_return(now)
        if under_way is None or under_way.ordered_at or state.over:
            return
        worker = under_way.worker
        if worker.state is not WorkerState.JOINED or not self._is_settled():
            return
        if state.final_committed:
            text = "meanwhile the region has processed all of its input"
            self._recovery.reset(
                f"{under_way.reason}; all workers are reset: {text}", now, worker=worker.index
            )
            return
        assert worker.link is not None
        assert worker.join is not None
        under_way.ordered_at = now
        worker.move(WorkerEvent.ORDER)
        state.send_restore(worker, worker.link, takes_over=True)
        view = View(
            job=state.spec.name,
            incarnation=state.incarnation,
            epoch=state.incarnation,
            peer=worker.index,
            term=state.terms[worker.index],
            address=state.roster.peers()[worker.index],
            step=state.last_step,
        )
        for other, link in state.roster.linked():
            if other is not worker:
                state.send(link, view)

    def _is_settled(self) -> bool:
        """Return whether the last committed checkpoint is known: no append to the manifest is under way."""
        return self._state.appending is None

    def is_of(self, worker: Worker) -> bool:
        """Return whether this worker is being taken over."""
        under_way = self._of_now()
        return under_way is not None and under_way.worker is worker

    def restored(self, worker: Worker, message: Restored, now: float) -> None:
        """Start the worker: it replays its own chain, and then runs with the others."""
        state, under_way = self._state, self._under_way
        assert under_way is not None
        worker.move(WorkerEvent.START)
        worker.step = state.last_step
        number = state.incarnation
        address: dict[str, Any] = {"job": state.spec.name, "incarnation": number, "epoch": number}
        assert worker.link is not None
        state.send(worker.link, Start(replay_until_step=message.last_step, **address))
        if state.pause:
            state.send(worker.link, Pause(pause=state.pause, **address))
        if state.pending is not None:
            checkpoint, final = state.pending.number, state.pending.final
            state.send(worker.link, RequestCheckpoint(checkpoint=checkpoint, final=final, **address))
            state.timers.set("drain", now + state.spec.drain_timeout_s)
        self._end(under_way, now)

    def _end(self, under_way: WorkerTakeOver, now: float) -> None:
        state, worker = self._state, under_way.worker
        self._under_way, state.reason = None, ""
        state.timers.clear("take over")
        phases = {"gather": under_way.ordered_at - under_way.began, **worker.restore_phases_s}
        report = ResetReport(
            time=under_way.began,
            worker=worker.index,
            reason=under_way.reason,
            seconds=now - under_way.began,
            bytes=worker.replayed_bytes,
            incarnation=state.incarnation,
            checkpoint=state.last_number,
            phases_s={**phases, "start": now - under_way.began - sum(phases.values())},
            term=state.terms[worker.index],
        )
        state.resets.append(report)
        state.report(report)

    def timed_out(self, now: float) -> None:
        """Reset the region: the worker could not be taken over in time. A region that is being stopped ends
        by its own timer instead.
        """
        under_way = self._of_now()
        if under_way is not None and self._state.phase is CoordinatorPhase.RUNNING:
            text = f"it was not taken over within reset_timeout {self._state.spec.reset_timeout_s:g} s"
            self._recovery.reset(f"{under_way.reason}; {text}", now, worker=under_way.worker.index)
