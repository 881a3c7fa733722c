"""The driver's log of a region: one line for each event that matters. Pure; the shell writes the lines.

A line can be read alone: it has the region's name, what happened, and what a person has to do, if anything.
A warning says what does not go as it should; that a region continues is a warning, too, if its interruption
was one, so that both are in a log that begins at this level. An event without a line has one in DEBUG.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from checkpoint import limits
from checkpoint.core.progress import as_json, under_way_text
from checkpoint.core.records.layout import workers_text
from checkpoint.core.region import (
    CheckpointCommitted,
    FellBack,
    HandOverSettled,
    RegionEvent,
    RegionSpec,
    RegionState,
    RegionStatus,
    ReplaceSettled,
    ResetReport,
    RestoreSettled,
    SavepointSettled,
    ScaleDecided,
    ScaleSettled,
    StateChanged,
    WorkerLost,
)
from dos_protocol.errors import DosError

_MANIFEST_WAITS: Final = "the manifest waits for the store: "
_HOSTS_MAX: Final = 4
"""The number of hosts that a line lists."""


class Line(NamedTuple):
    """A line of the log, without the region's name."""

    level: Literal["DEBUG", "INFO", "WARNING"]
    text: str


class LogLines:
    """What the log of one region has said, and what it says next. `now` is in seconds of a monotonic clock.

    The failure of a region is not among them: see `failure_text`.
    """

    def __init__(self, spec: RegionSpec) -> None:
        self._spec = spec
        self._began_at: float | None = None
        self._state = RegionState.STARTING
        self._has_started = self._has_run = False
        self._waits_since = 0.0
        self._slow = 0
        """The checkpoint that the log has called slow last, 0 for none."""
        self._slow_at = -limits.slow_checkpoint_again_s

    def of_event(self, event: RegionEvent, status: RegionStatus, now: float) -> Line:
        """Return the line of an event. status: as it is after the event."""
        if self._began_at is None:
            self._began_at = now
        if isinstance(event, StateChanged):
            return self._state_changed(event, status, now) or Line("DEBUG", str(event))
        if isinstance(event, CheckpointCommitted) and event.checkpoint == self._slow:
            text = f"checkpoint {event.checkpoint} was committed after {event.seconds:.1f} s"
            return Line("WARNING", f"{text} ({_phases_text(event.phases_s)})")
        if isinstance(event, WorkerLost):
            ends = status.state is RegionState.STOPPING or status.state.is_end
            follows = "" if ends else "; it is started again"
            return Line("WARNING", f"worker {event.worker} was lost: {_last_line(event.reason)}{follows}")
        if isinstance(event, ResetReport):
            return Line("WARNING", reset_text(event))
        if (described := _SETTLED.get(type(event))) is not None:
            return described(event, status)
        return Line("DEBUG", str(event))

    def of_status(self, status: RegionStatus, now: float) -> Line | None:
        """Return the line of a checkpoint that is slow. Call it with each status, at least once a second."""
        slow = status.under_way
        if slow is None or slow.seconds < limits.slow_checkpoint_s or slow.checkpoint == self._slow:
            return None
        if now < self._slow_at + limits.slow_checkpoint_again_s:
            return None
        self._slow, self._slow_at = slow.checkpoint, now
        replaced = ""
        if slow.waits_for:
            limit = f"drain_timeout {self._spec.drain_timeout_s:g} s"
            replaced = f"; after {limit} it would be taken for lost. If it is just slow, give it more workers"
        return Line("WARNING", f"{under_way_text(as_json(slow))}{replaced}")

    def _state_changed(self, event: StateChanged, status: RegionStatus, now: float) -> Line | None:
        before, self._state = self._state, event.state
        if event.state is before:
            return None
        if event.state is RegionState.WAITING_FOR_WORKERS and not self._has_started:
            self._has_started = True
            return Line("INFO", self._starts(status))
        if event.state is RegionState.RUNNING and not self._has_run:
            self._has_run = True
            return Line("INFO", f"runs: {_places(status)}, after {self._seconds(now):.1f} s")
        if event.state is RegionState.WAITING_FOR_STORE:
            self._waits_since = now
            remedy = f"it continues automatically; see `dos store status {self._spec.store_url}`"
            why = (status.store_waiting or event.reason).removeprefix(_MANIFEST_WAITS)
            return Line("WARNING", f"waits for the store: {why}; {remedy}")
        if event.state is RegionState.STOPPING or event.state.is_end:
            return self._end(event, status, now)
        if before is RegionState.WAITING_FOR_STORE:
            return Line("WARNING", f"the store answers again, after {now - self._waits_since:.1f} s")
        if event.state is RegionState.PAUSED:
            resume = f"dos region resume {self._spec.store_url} {self._spec.name}"
            return Line("INFO", f"is paused at checkpoint {status.last_checkpoint}; to continue it: {resume}")
        if before is RegionState.PAUSED and event.state is RegionState.RUNNING:
            return Line("INFO", "continues after the pause")
        return None

    def _starts(self, status: RegionStatus) -> str:
        spec, where = self._spec, "at the beginning"
        if status.last_checkpoint:
            where = f"at checkpoint {status.last_checkpoint}"
        state = f"its state: dos region status {spec.store_url} {spec.name}"
        return f"starts {workers_text(len(status.workers))} {where}; {state}"

    def _end(self, event: StateChanged, status: RegionStatus, now: float) -> Line | None:
        kept = "" if self._spec.without_checkpoints else f"; its last checkpoint is {status.last_checkpoint}"
        text = f"{event.reason or 'stopped'} after {self._seconds(now):.1f} s{kept}"
        if event.state is RegionState.FINISHED:
            return Line("INFO", f"has finished: {text}")
        if event.state is RegionState.STOPPED:
            return Line("INFO", f"{text}, where the next run of that name continues" if kept else text)
        if event.state is RegionState.FENCED:
            return Line("WARNING", f"is run by another driver from now on, and ends here: {event.reason}")
        return None

    def _seconds(self, now: float) -> float:
        return 0.0 if self._began_at is None else now - self._began_at


def failure_text(error: DosError, last_checkpoint: int) -> str:
    """Return the line of a region that has failed, without its name."""
    kept = f"its last checkpoint is {last_checkpoint}" if last_checkpoint else "it has no checkpoint"
    where = "there" if last_checkpoint else "at the beginning"
    remedy = (
        "" if error.remedy else f"; correct the cause, and run it again under its name: it begins {where}"
    )
    return f"failed: {error}; {kept}{remedy}"


def reset_text(reset: ResetReport) -> str:
    """Return one line about a reset. Of a reason with several lines it has the last."""
    lost = f"worker {reset.worker} was lost: "
    reason = _last_line(reset.reason.strip().removeprefix(lost)) or "unknown reason"
    where = f"checkpoint {reset.checkpoint}" if reset.checkpoint else "the beginning"
    runs = f"runs again after {reset.seconds:.1f} s"
    if reset.worker < 0:  # a person or a program requested it
        return f"{runs}, all workers from {where} on: {reason}"
    if reset.term and not reset.reason.startswith(lost):
        return f"{runs}, from {where} on: {reason}"
    went = f"worker {reset.worker} alone" if reset.term else "all workers"
    return f"{runs}, {went} from {where} on: {lost}{reason}"


def _last_line(reason: str) -> str:
    lines = reason.strip().splitlines()
    return lines[-1] if lines else ""


def _phases_text(phases_s: Mapping[str, float]) -> str:
    return ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in phases_s.items())


def _places(status: RegionStatus) -> str:
    hosts = sorted({worker.host for worker in status.workers if worker.host})
    more = f" and {len(hosts) - _HOSTS_MAX} more" if len(hosts) > _HOSTS_MAX else ""
    return f"{workers_text(len(status.workers))} on {', '.join(hosts[:_HOSTS_MAX])}{more}"


def _savepoint(event: SavepointSettled, status: RegionStatus) -> Line:
    if event.error:
        return Line("WARNING", f"savepoint {event.name!r} was not changed: {event.error}")
    made = f"holds checkpoint {event.checkpoint}" if event.name in status.savepoints else "was dropped"
    return Line("INFO", f"savepoint {event.name!r} {made}")


def _restored(event: RestoreSettled, _: RegionStatus) -> Line:
    if event.error:
        return Line("WARNING", f"was not restored to {event.to}: {event.error}")
    return Line("WARNING", f"was restored to checkpoint {event.checkpoint} ({event.to}), as requested")


def _scaled(event: ScaleSettled, _: RegionStatus) -> Line:
    if event.error:
        return Line("WARNING", f"keeps {workers_text(event.workers)}: {event.error}")
    took = f"after {event.seconds:.1f} s; for {event.pause_s:.1f} s of them it read no input"
    return Line("INFO", f"has {workers_text(event.workers)} now, {took}")


def _replaced(event: ReplaceSettled, _: RegionStatus) -> Line:
    return Line("WARNING" if event.error else "INFO", f"other processes for workers: {event}")


def _handed_over(event: HandOverSettled, _: RegionStatus) -> Line:
    if event.error:
        return Line("WARNING", f"is not handed over: {event.error}")
    return Line("INFO", f"is paused after checkpoint {event.checkpoint}, for another driver to take it over")


_SETTLED: Final[dict[type, Callable[[Any, RegionStatus], Line]]] = {
    FellBack: lambda event, _: Line("WARNING", str(event)),
    ScaleDecided: lambda event, _: Line("INFO", str(event)),
    SavepointSettled: _savepoint,
    RestoreSettled: _restored,
    ScaleSettled: _scaled,
    ReplaceSettled: _replaced,
    HandOverSettled: _handed_over,
}
