"""The worker's end of the control protocol: which orders are accepted, which reports are sent. Pure.

A worker never votes or reports for an incarnation that is over: an order counts only in the incarnation of
the newest Restore, which counts only above that incarnation and voids every order that was not taken yet. A
vote needs the state RUNNING and a requested checkpoint (R12); only if the layout changes, the first vote
follows in the state RESTORED. A broken link is not dialled again.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeAlias

import msgspec

from checkpoint import limits
from checkpoint.core.links.messages import (
    Committed,
    CopyAhead,
    Counters,
    Failed,
    Finished,
    Heartbeat,
    Host,
    Join,
    OpenBatch,
    Pause,
    Paused,
    Progress,
    Refusal,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Stop,
    Suspects,
    ToCoordinator,
    ToWorker,
    View,
    Vote,
    WantsCheckpoint,
)
from checkpoint.core.state_machines import Timers, follow
from checkpoint.errors import OrphanedError, StaleIncarnationError, StoppedError
from dos_protocol.errors import DosError, LocalProtocolError

Order: TypeAlias = (
    Restore | View | Host | CopyAhead | Start | RequestCheckpoint | Committed | Pause | OpenBatch
)


class ParticipantState(Enum):
    """The states of one worker's end."""

    CONNECTED = auto()
    JOINED = auto()
    RESTORING = auto()
    RESTORED = auto()
    RUNNING = auto()
    FAILED = auto()
    """A failure of this incarnation was reported; the worker waits for the next Restore or Stop."""
    FINISHED = auto()
    ENDED = auto()


class ParticipantEvent(Enum):
    """The events that change a ParticipantState."""

    JOIN = auto()
    RESTORE = auto()
    RESTORED = auto()
    START = auto()
    FAIL = auto()
    FINISH = auto()
    END = auto()


_ANY: Final = {
    ParticipantEvent.RESTORE: ParticipantState.RESTORING,
    ParticipantEvent.END: ParticipantState.ENDED,
}
_LIVE: Final = {ParticipantEvent.FAIL: ParticipantState.FAILED, **_ANY}
PARTICIPANT: Final[dict[ParticipantState, dict[ParticipantEvent, ParticipantState]]] = {
    ParticipantState.CONNECTED: {
        ParticipantEvent.JOIN: ParticipantState.JOINED,
        ParticipantEvent.END: ParticipantState.ENDED,
    },
    ParticipantState.JOINED: _LIVE,
    ParticipantState.RESTORING: {ParticipantEvent.RESTORED: ParticipantState.RESTORED, **_LIVE},
    ParticipantState.RESTORED: {ParticipantEvent.START: ParticipantState.RUNNING, **_LIVE},
    ParticipantState.RUNNING: {ParticipantEvent.FINISH: ParticipantState.FINISHED, **_LIVE},
    ParticipantState.FAILED: _ANY,
    ParticipantState.FINISHED: _LIVE,
    ParticipantState.ENDED: {},
}


@dataclass(frozen=True, slots=True)
class MessageIn:
    """A message of the coordinator."""

    message: ToWorker


@dataclass(frozen=True, slots=True)
class ReportWanted:
    """A message that the runtime wants to send. Job, worker, incarnation and epoch are filled in."""

    message: ToCoordinator
    of: int | None = None
    """The incarnation of the report as the runtime knows it, None for the current one."""


@dataclass(frozen=True, slots=True)
class LinkGone:
    """The control link ended or broke."""

    reason: str


@dataclass(frozen=True, slots=True)
class ParticipantTick:
    """The timer that was due at `due` fires now; `counters` are fresh."""

    due: float
    counters: Counters


ParticipantInput: TypeAlias = MessageIn | ReportWanted | LinkGone | ParticipantTick


@dataclass(frozen=True, slots=True)
class SendReport:
    """Send a message to the coordinator."""

    message: ToCoordinator


@dataclass(frozen=True, slots=True)
class OrderRefused:
    """An order was refused. For the log."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class ParticipantEnded:
    """This worker ends; `next_order` raises `error` from now on."""

    error: DosError


ParticipantEffect: TypeAlias = SendReport | OrderRefused | ParticipantEnded


class ParticipantCore:
    """The state machine of one worker's end.

    `handle` every input and perform the effects, take orders from `orders`, call it with Tick at `deadline`.
    `orders` belong to `incarnation`, which only rises; after ENDED nothing is sent.
    """

    def __init__(
        self, job: str, worker: int, *, now: float, orphan_timeout_s: float, heartbeat_s: float
    ) -> None:
        self.job = job
        self.worker = worker
        self.state = ParticipantState.CONNECTED
        self.incarnation = 0
        self.term = 0
        """The epoch of this worker's claim: the incarnation, or above it if it was taken over."""
        self.checkpoint_seen = 0
        """The highest checkpoint requested, restored or committed."""
        self.voted = 0
        """The last checkpoint voted for in this incarnation, or restored."""
        self._moves = False
        """The layout changes: this worker votes for the next checkpoint before it starts."""
        self.orders: deque[Order] = deque()
        self._received_at = now
        self._orphan_timeout_s = orphan_timeout_s
        self._heartbeat_s = heartbeat_s
        self._timers = Timers()
        self._timers.set("beat", now + heartbeat_s)
        self._out: list[ParticipantEffect] = []

    def handle(self, event: ParticipantInput, now: float) -> list[ParticipantEffect]:
        """Return what to do about an input. Raises LocalProtocolError, StaleIncarnationError: nothing is
        sent.
        """
        if self.state is not ParticipantState.ENDED:
            if isinstance(event, MessageIn):
                self._message(event.message, now)
            elif isinstance(event, ReportWanted):
                self._report(event)
            elif isinstance(event, LinkGone):
                self._end(OrphanedError(f"the link to the coordinator is gone: {event.reason}"))
            else:
                self._tick(event, now)
        elif isinstance(event, ReportWanted):
            raise StaleIncarnationError(f"{type(event.message).__name__} of a worker that has ended")
        effects, self._out = self._out, []
        return effects

    def deadline(self) -> float | None:
        """Return when the next Tick is due, None after the end."""
        return self._timers.next()

    def _move(self, event: ParticipantEvent) -> None:
        self.state = follow(PARTICIPANT, self.state, event)

    def _end(self, error: DosError) -> None:
        self._move(ParticipantEvent.END)
        self._timers.clear()
        self.orders.clear()
        self._out.append(ParticipantEnded(error))

    # --- orders ---------------------------------------------------------------------------------------

    def _message(self, message: ToWorker, now: float) -> None:
        if message.job != self.job:
            self._refuse(
                "WRONG_JOB",
                f"received {type(message).__name__} of region {message.job!r}, this is {self.job!r}",
            )
            return
        self._received_at = now
        if isinstance(message, Stop):
            # What is committed is still published, but not if another driver, which may go back, took over.
            of_region = message.kind in ("finished", "stopped", "failed")
            kept = [order for order in self.orders if isinstance(order, Committed)] if of_region else []
            self._end(StoppedError(f"{message.kind}: {message.reason}"))
            self.orders.extend(kept)
        elif isinstance(message, Restore):
            self._restore(message)
        elif isinstance(message, CopyAhead):
            self._copy_ahead(message)
        elif not isinstance(message, Heartbeat):
            self._order(message)

    def _restore(self, order: Restore) -> None:
        if order.incarnation <= self.incarnation or order.worker != self.worker:
            self._refuse(
                "STALE_INCARNATION",
                f"Restore of worker {order.worker} in incarnation {order.incarnation}; "
                f"this is worker {self.worker} in {self.incarnation}",
            )
            return
        if ParticipantEvent.RESTORE not in PARTICIPANT[self.state]:
            self._refuse("UNEXPECTED", "received Restore before this worker joined")
            return
        self._move(ParticipantEvent.RESTORE)
        self.incarnation, self.term = order.incarnation, order.epoch
        self.checkpoint_seen, self.voted = order.checkpoint, order.checkpoint
        self._moves = order.moves
        self.orders.clear()
        self.orders.append(order)

    def _copy_ahead(self, order: CopyAhead) -> None:
        """Take the order in any incarnation that is not over: a worker that only joined has none."""
        if order.incarnation < self.incarnation or order.worker != self.worker:
            self._refuse("STALE_INCARNATION", f"CopyAhead of incarnation {order.incarnation}")
        elif self.state is ParticipantState.CONNECTED:
            self._refuse("UNEXPECTED", "received CopyAhead before this worker joined")
        else:
            self.orders.append(order)

    def _order(self, order: View | Host | Start | RequestCheckpoint | Committed | Pause | OpenBatch) -> None:
        kind = type(order).__name__
        if order.incarnation != self.incarnation:
            name = "STALE_INCARNATION" if order.incarnation < self.incarnation else "FUTURE_INCARNATION"
            self._refuse(
                name, f"{kind} of incarnation {order.incarnation}; this worker is in {self.incarnation}"
            )
        elif isinstance(order, Start):
            if self.state is ParticipantState.RESTORED:
                self._move(ParticipantEvent.START)
                self.orders.append(order)
            else:
                self._refuse("UNEXPECTED", f"received Start in state {self.state.name}")
        elif self.state is not ParticipantState.RUNNING and not (
            isinstance(order, Committed) and self._votes_restored
        ):
            self._refuse(
                "UNEXPECTED", f"received {kind} of checkpoint {order.checkpoint} in state {self.state.name}"
            )
        elif isinstance(order, Pause | View | Host | OpenBatch):
            self.orders.append(order)
        elif order.checkpoint < self.checkpoint_seen or (
            isinstance(order, Committed) and order.checkpoint != self.voted
        ):
            self._refuse(
                "STALE_CHECKPOINT",
                f"{kind} of checkpoint {order.checkpoint}; {self.checkpoint_seen} is known, voted"
                f" {self.voted}",
            )
        else:
            self.checkpoint_seen = order.checkpoint
            if (
                isinstance(order, Committed) or order.checkpoint > self.voted
            ):  # otherwise already done: a peer's STEP_END requested it
                self.orders.append(order)

    @property
    def _votes_restored(self) -> bool:
        return self._moves and self.state is ParticipantState.RESTORED

    def _refuse(self, name: Any, text: str) -> None:
        self._out.append(OrderRefused(Refusal(name, text)))

    # --- reports --------------------------------------------------------------------------------------

    def _report(self, report: ReportWanted) -> None:
        message = report.message
        if report.of is not None and report.of != self.incarnation:
            raise StaleIncarnationError(
                f"{type(message).__name__} of incarnation {report.of}; this worker is in {self.incarnation}"
            )
        if self.state is ParticipantState.FAILED:
            return  # the first failure of an incarnation counts; reports still under way are dropped
        if isinstance(message, Join):
            self._may(ParticipantEvent.JOIN, message)
        elif isinstance(message, Restored):
            self._may(ParticipantEvent.RESTORED, message)
        elif isinstance(message, Vote):
            self._check_vote(message)
            self.voted = self.checkpoint_seen = message.checkpoint
        elif isinstance(message, Suspects):
            if self.state not in (ParticipantState.RESTORED, ParticipantState.RUNNING):
                return  # its links are about to be replaced
        elif isinstance(message, WantsCheckpoint | Paused):
            if self.state is not ParticipantState.RUNNING:
                raise LocalProtocolError(f"cannot report {type(message).__name__} in state {self.state.name}")
        elif isinstance(message, Failed):
            self._may(ParticipantEvent.FAIL, message)
        elif isinstance(message, Finished):
            self._may(ParticipantEvent.FINISH, message)
        self._out.append(SendReport(self._addressed(message)))

    def _may(self, event: ParticipantEvent, message: ToCoordinator) -> None:
        if event not in PARTICIPANT[self.state]:
            raise LocalProtocolError(f"cannot report {type(message).__name__} in state {self.state.name}")
        self._move(event)

    def _check_vote(self, vote: Vote) -> None:
        epochs = vote.positions.epochs()
        if epochs != {self.term}:
            raise StaleIncarnationError(f"vote with positions of epochs {epochs} in term {self.term}")
        if self.state is not ParticipantState.RUNNING and not self._votes_restored:
            raise LocalProtocolError(f"vote for checkpoint {vote.checkpoint} in state {self.state.name}")
        if vote.checkpoint <= self.voted or vote.checkpoint < self.checkpoint_seen:
            raise LocalProtocolError(
                f"vote for checkpoint {vote.checkpoint}; {self.checkpoint_seen} is known, voted {self.voted}"
            )

    def _addressed(self, message: ToCoordinator) -> ToCoordinator:
        """Fill in the address. The epoch is that of the worker's claim."""
        return msgspec.structs.replace(
            message, job=self.job, worker=self.worker, incarnation=self.incarnation, epoch=self.term
        )

    # --- time -----------------------------------------------------------------------------------------

    def _tick(self, tick: ParticipantTick, now: float) -> None:
        late = now - tick.due
        # A laptop that slept, or a loop that was busy, is no silence of the coordinator.
        if late > limits.tick_late_s:
            self._received_at += late
        if now - self._received_at > self._orphan_timeout_s:
            self._end(
                OrphanedError(
                    f"nothing was received from the coordinator for {now - self._received_at:.1f} s"
                )
            )
            return
        if "beat" in self._timers.expired(now):
            self._timers.set("beat", now + self._heartbeat_s)
            if self.state is not ParticipantState.CONNECTED:
                self._out.append(SendReport(self._addressed(self._progress(tick.counters))))

    def _progress(self, counters: Counters) -> Progress:
        if self.state is not ParticipantState.RUNNING:
            counters = msgspec.structs.replace(counters, exhausted=False)
        return Progress(job=self.job, worker=self.worker, counters=counters)
