"""The circuit thread's loop: it handles messages, runs the current incarnation and reports why it stopped.

User code runs on this thread and only on this thread. Nothing here waits for a store: inputs and outputs are
files, buckets and databases, everything else is a message. `worker/circuit_thread.py` executes the
steps.

States:

    state      meaning
    IDLE       there is no incarnation, or it failed; its messages are dropped until a `RestoreCircuit`
    LOADING    sources and sinks are positioned at the checkpoint; state blocks arrive
    LOADED     the state is loaded; frames that peers send early are kept
    RUNNING    steps run
"""

import logging
import traceback
from collections.abc import Callable
from enum import Enum, auto

from checkpoint import FailureKind
from dataflow.errors import InputChangedError, InputListChangedError, OperatorError, SinkOwnedError
from dataflow.graph.plan import GraphPlan
from dataflow.limits import WorkerLimits
from dataflow.worker.circuit_thread import CircuitIncarnation
from dataflow.worker.failures import CONVERSIONS, LOSSES, operator_error
from dataflow.worker.identity import Clock, Identity
from dataflow.worker.messages import (
    Arrived,
    BlockLoaded,
    CheckpointRequested,
    CircuitFailed,
    DivisionsDurable,
    Inbox,
    LinksEnded,
    LoadStateBlock,
    PauseRequested,
    PeerHeld,
    PeerRestarts,
    PublishCheckpoint,
    Published,
    RestoreCircuit,
    Shared,
    Started,
    StateComplete,
    StateLoaded,
    ToCircuit,
    ToLinks,
)
from dataflow.worker.pulse import CircuitPulse
from dos_protocol.errors import ClosedError, CorruptDataError, RemoteProtocolError, text_of

logger = logging.getLogger("dos.dataflow")

_FOR_A_PERSON = (InputChangedError, InputListChangedError, SinkOwnedError, CorruptDataError)
"""The checkpoint does not match what the worker finds. A retry would find the same, so the region stops."""

_WITH_RULES = (*_FOR_A_PERSON, *LOSSES, ClosedError, RemoteProtocolError)


class LoopState(Enum):
    """The state of a `CircuitLoop`; the module docstring has the table."""

    IDLE = auto()
    LOADING = auto()
    LOADED = auto()
    RUNNING = auto()


class CircuitLoop:
    """The message loop of one worker process. It runs until the link thread ends."""

    def __init__(
        self,
        graph: GraphPlan,
        identity: Identity,
        *,
        worker_limits: WorkerLimits,
        inbox: Inbox,
        shared: Shared,
        post: Callable[[ToLinks], None],
        clock: Clock | None = None,
        pulse: CircuitPulse | None = None,
    ) -> None:
        self._clock = clock
        self._pulse = pulse or CircuitPulse()
        self._graph = graph
        self._identity = identity
        self._limits = worker_limits
        self._inbox = inbox
        self._shared = shared
        self._post = post
        self._state = LoopState.IDLE
        self._run: CircuitIncarnation | None = None
        self._waiting = False
        """The incarnation has nothing to do until a message arrives or `_wakes_in` seconds are over."""
        self._wakes_in: float | None = None
        self.incarnations = 0

    def run(self) -> LinksEnded:
        """Handle messages until the link thread ends; return its last message, which has the reason."""
        try:
            while True:
                message = self._next_message()
                if isinstance(message, LinksEnded):
                    return message
                self._pulse.begin()
                self.turn(message)
                self._pulse.end()
        finally:
            self.drop()

    @property
    def busy(self) -> bool:
        """Whether there may be work to do without a message."""
        return self._state is LoopState.RUNNING and not self._waiting

    def _next_message(self) -> ToCircuit | None:
        """Return a message, None if there is work to do instead; otherwise wait for a message."""
        if self.busy:
            return self._inbox.take_nowait()
        return self._inbox.take(self._wakes_in if self._state is LoopState.RUNNING else None)

    def _advance(self) -> None:
        assert self._run is not None
        waiting = not self._run.advance()
        self._wakes_in = self._run.wakes_in() if waiting else None  # may list a directory, and fail
        self._waiting = waiting

    def turn(self, message: ToCircuit | None) -> None:
        """Handle a message or, for None, do one piece of work.

        Report an error, which ends the incarnation.
        """
        self._waiting = False
        number = self._shared.incarnation if self._run is None else self._run.number
        if isinstance(message, RestoreCircuit):
            number = message.incarnation
        try:
            if message is None:
                self._advance()
            else:
                self._handle(message)
        except BaseException as error:
            run = self._run
            operator = "" if run is None else run.blame(error)
            if not isinstance(error, Exception) and not operator:
                raise  # no operator raised it: this process is interrupted
            reported = run is not None and run.is_over  # the links have reported the cause
            ran_last = "" if run is None else run.operator
            self.drop()
            if not reported:
                self._post(_failure(number, error, operator, ran_last))
        finally:
            self._shared.running.begin("")  # while the loop waits, no operator runs

    def drop(self) -> None:
        """End the incarnation, if there is one, and close its files."""
        self._state = LoopState.IDLE
        self._pulse.running = False
        self._waiting = False
        if self._run is not None:
            self._run.close()
            self._run = None

    def _handle(self, message: ToCircuit) -> None:
        if isinstance(message, RestoreCircuit):
            self._restoring(message)
        elif self._run is not None and getattr(message, "incarnation", 0) == self._run.number:
            self._in_incarnation(self._run, message)

    def _restoring(self, order: RestoreCircuit) -> None:
        self.drop()
        self._run = CircuitIncarnation(
            self._graph,
            self._identity,
            order,
            worker_limits=self._limits,
            shared=self._shared,
            post=self._post,
            clock=self._clock,
        )
        self._state = LoopState.LOADING
        self.incarnations += 1

    def _in_incarnation(self, run: CircuitIncarnation, message: ToCircuit) -> None:
        if isinstance(message, Arrived):
            run.arrived(message.frame)
        elif isinstance(message, LoadStateBlock):
            run.load(message)
            self._post(BlockLoaded(run.number))
        elif isinstance(message, StateComplete):
            run.loaded(message.directories)
            self._state = LoopState.LOADED
            self._post(StateLoaded(run.number))
            run.take_first_checkpoint()
        elif isinstance(message, Started):
            run.start(message)
            self._state = LoopState.RUNNING
            self._pulse.running = True
        elif isinstance(message, PeerRestarts):
            self._post(PeerHeld(run.number, message.peer, message.link, run.peer_restarts(message.peer)))
        elif isinstance(message, DivisionsDurable):
            run.divisions_durable(message)
        elif isinstance(message, CheckpointRequested):
            run.request_checkpoint(message)
        elif isinstance(message, PauseRequested):
            run.pause(message)
        elif isinstance(message, PublishCheckpoint):
            run.committed(message)
            self._post(Published(run.number, message.checkpoint, message.final))


def _failure(incarnation: int, error: BaseException, operator: str, ran_last: str) -> CircuitFailed:
    """Return the report for an error. operator: whose code raised it, "" if none did."""
    by_rows = operator or isinstance(error, CONVERSIONS)
    if by_rows and not isinstance(error, (OperatorError, *_WITH_RULES)):
        error = operator_error(operator or ran_last, "", error)
    if isinstance(error, OperatorError):
        reported: FailureKind = "reset" if error.wants_reset else "operator"
        trace = error.traceback_text
        return CircuitFailed(incarnation, reported, error.cause_text, error.operator, error.position, trace)
    kind: FailureKind = "manifest" if isinstance(error, _FOR_A_PERSON) else "internal"
    logger.error("the circuit stopped (%s): %s", kind, error, exc_info=error)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    if operator and not notes:
        notes = f" (operator {operator!r})"
    text = "".join(traceback.format_exception(error))
    return CircuitFailed(incarnation, kind, f"{text_of(error)}{notes}", traceback=text)
