"""Runs a region: `RegionControl`, a thread-safe facade, runs the coordinator (`shell.py`) on its own thread.

`RegionListener` is user code, on a separate thread, one call at a time and in order. A slow listener delays
only the other listeners of the same region.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

import trio

from checkpoint.coordinator.shell import Observer, PlacesCheck, Prepare, RegionShell, listening, run_region
from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.vocabulary import (
    BatchesWaitInVain,
    CheckpointWanted,
    Event,
    PauseWanted,
    ReplaceWanted,
    ResetWanted,
    RestoreWanted,
    SavepointWanted,
    ScaleWanted,
    StopWanted,
    UserRequest,
    WorkerEnded,
)
from checkpoint.core.log_lines import failure_text
from checkpoint.core.progress import IdleMeter, as_json
from checkpoint.core.records.manifest import SavepointNote, savepoint_name_problem
from checkpoint.core.region import (
    CheckpointCommitted,
    Key,
    Launcher,
    RegionEvent,
    RegionSpec,
    RegionState,
    RegionStatus,
    ReplaceSettled,
    ResetReport,
    RestoreSettled,
    SavepointSettled,
    ScaleSettled,
    Settled,
    StateChanged,
)
from checkpoint.core.verbs import NO_CHECKPOINTS, VERBS
from checkpoint.errors import RegionFailedError
from checkpoint.limits import listeners_end_s
from checkpoint.link import StandbyLinks
from checkpoint.runtime import checkpoint_named, this_driver, timestamp, wall_time_ms
from dos_client import MemberStatus, Store, randomness
from dos_monitoring import log_fields, silence_of
from dos_protocol.errors import DosError, LocalProtocolError, errors_in

S = TypeVar("S", bound=Settled)

REPORTS_QUEUED_MAX: Final = 1_000
"""The maximum number of progress reports queued for slow listeners. Further ones are dropped and logged."""


class RegionListener:
    """Base class of listeners: override the methods you need. Arguments are JSON values
    (docs/operating-regions.md).

    `onStart` is called first, also for a listener that is added later, and not if the region never ran;
    `onTerminated` is called last.
    """

    def onStart(self, start: dict[str, Any]) -> None:  # noqa: N802  # as Spark spells such names
        """Called when the region runs for the first time under this driver."""

    def onProgress(self, progress: dict[str, Any]) -> None:  # noqa: N802
        """Called after a commit of a checkpoint; the report equals `lastProgress`."""

    def onIdle(self, idle: dict[str, Any]) -> None:  # noqa: N802
        """Called while there is no input, at most every 10 seconds: no checkpoint is needed."""

    def onReset(self, reset: dict[str, Any]) -> None:  # noqa: N802
        """Called after a reset: the region runs again, from its last checkpoint."""

    def onTerminated(self, end: dict[str, Any]) -> None:  # noqa: N802
        """Called when the region has ended: FINISHED, STOPPED, FAILED or FENCED."""


class Listeners:
    """The listeners of one region. `notify` may be called from any thread and never blocks."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._listeners: list[RegionListener] = []
        self._start: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None
        self._queue: queue.SimpleQueue[tuple[list[RegionListener], str, dict[str, Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._idle = IdleMeter()

    def add(self, listener: RegionListener) -> None:
        """Add a listener. It receives all later events, and the start and end that have already happened."""
        with self._lock:
            if self._end is not None:
                self._notify_late(listener, self._end)
                return
            self._listeners.append(listener)
            if self._thread is None:
                self._thread = self._begin(self._run)
            if self._start is not None:
                self._queue.put(([listener], "onStart", self._start))

    def _notify_late(self, listener: RegionListener, end: dict[str, Any]) -> None:
        """Notify a listener that was added after the region's end, on a thread for this listener alone."""
        start = self._start

        def report() -> None:
            if start is not None:
                self._call(listener, "onStart", start)
            self._call(listener, "onTerminated", end)

        self._begin(report)

    def _begin(self, run: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"dos-{self._region}-listeners", daemon=True)
        thread.start()
        return thread

    def remove(self, listener: RegionListener) -> None:
        """Stop notifying a listener of new events. No effect if it was not added."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def observe(self, event: RegionEvent, status: RegionStatus, progress: dict[str, Any] | None) -> None:
        """Queue the report of an event, if it has one. progress: the report of the last checkpoint."""
        if isinstance(event, StateChanged) and event.state is RegionState.RUNNING:
            last_checkpoint = {"checkpoint": status.last_checkpoint, "step": status.last_checkpoint_step}
            self.started({**self.stamp(status), **last_checkpoint, "driver": this_driver()})
        elif isinstance(event, CheckpointCommitted) and progress is not None:
            self.notify("onProgress", progress)
        elif isinstance(event, ResetReport):
            self.notify("onReset", {**self.stamp(status), **as_json(event)})

    def observe_status(self, status: RegionStatus, now: float) -> None:
        """Queue a report if the region has nothing to do. now: monotonic seconds."""
        if self._idle.is_due(status, now):
            self.notify("onIdle", {**self.stamp(status), "checkpoint": status.last_checkpoint})

    def stamp(self, status: RegionStatus) -> dict[str, Any]:
        """Return what all reports have in common."""
        return {"name": self._region, "timestamp": timestamp(), "incarnation": status.incarnation}

    def started(self, start: dict[str, Any]) -> None:
        """Queue the start of the region. Only the first call has an effect."""
        with self._lock:
            if self._start is None:
                self._start = start
                self._put("onStart", start)

    def notify(self, method: str, what: dict[str, Any]) -> None:
        """Queue a report of progress, of idleness or of a reset."""
        with self._lock:
            if method != "onReset" and self._queue.qsize() >= REPORTS_QUEUED_MAX:
                self._dropped += 1
                return
            if self._dropped:
                logger.warning(
                    "region %s: its listeners are slow, %d progress reports were dropped",
                    self._region,
                    self._dropped,
                )
                self._dropped = 0
            self._put(method, what)

    def region_ended(self, status: RegionStatus, failure: Exception | None) -> None:
        """Queue the report of the end, as `ended`."""
        self.ended(
            {
                **self.stamp(status),
                "state": status.state.value,
                "reason": status.reason,
                "lastCheckpoint": status.last_checkpoint,
                "exception": None if failure is None else str(failure),
            }
        )

    def ended(self, end: dict[str, Any]) -> None:
        """Queue the end of the region. Only the first call has an effect; nothing follows."""
        with self._lock:
            if self._end is None:
                self._end = end
                self._put("onTerminated", end)
                self._queue.put(None)

    def wait_ended(self, timeout_s: float) -> None:
        """Wait after `ended` until all listeners were notified. No effect on their own thread."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _put(self, method: str, what: dict[str, Any]) -> None:
        if self._listeners:
            self._queue.put((list(self._listeners), method, what))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            listeners, method, what = item
            for listener in listeners:
                self._call(listener, method, what)

    def _call(self, listener: RegionListener, method: str, what: dict[str, Any]) -> None:
        try:
            getattr(listener, method)(what)
        except Exception:  # an exception in user code must not end the notifications
            logger.exception("region %s: %s of a listener failed", self._region, method)


logger: Final = logging.getLogger("dos.checkpoint")

__all__ = ["Observer", "RegionControl", "RegionListener"]


class RegionControl:
    """A region whose coordinator runs in its own thread. Every method may be called from any thread.

    control = RegionControl(spec, observer=show)
    address = control.listen()          # bound before any worker is launched
    control.start(launcher)             # takes the manifest over, calls launcher.start(0..N-1, attempt)
    control.wait(timeout)
    """

    def __init__(
        self,
        spec: RegionSpec,
        *,
        observer: Observer | None = None,
        check: PlacesCheck | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """`check(store_id, Checkpoint.identity)` runs in a thread before workers; if it raises, it FAILS, and
        also if `prepare` does, before the coordinator begins.
        """
        self.spec = spec
        self._check, self._prepare = check, prepare
        self._observer = observer
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._shell: RegionShell | None = None
        self._store: Store | None = None
        self._launcher: Launcher | None = None
        self._go: trio.Event | None = None
        self._address: tuple[str, int] | None = None
        self._checkpoint = 0
        self._outcomes: dict[Key, tuple[Settled, str]] = {}
        """The outcomes for the threads that wait: the event, and why it failed. With the lock."""
        self._over = False
        self._error: Exception | None = None
        self._abandon = trio.CancelScope()
        self._listeners = Listeners(spec.name)
        self._status = Coordinator(spec).status()

    # --- Start ----------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """The address that workers connect to. Raises LocalProtocolError before `listen`."""
        if self._address is None:
            raise LocalProtocolError("the region is not listening yet", remedy="call listen() first")
        return self._address

    @property
    def standbys(self) -> StandbyLinks:
        """The stand-bys that wait, for the launcher. Raises LocalProtocolError before `listen`."""
        if self._shell is None:
            raise LocalProtocolError("the region is not listening yet", remedy="call listen() first")
        return self._shell.standbys

    def listen(self) -> tuple[str, int]:
        """Start the thread and bind the listener. Raises BrokenConnectionError if no port is free."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"dos-region-{self.spec.name}", daemon=True
                )
                self._thread.start()
            self._lock.wait_for(lambda: self._address is not None or self._over)
            if self._address is None:
                assert self._error is not None
                raise self._error
            return self._address

    def start(self, launcher: Launcher) -> None:
        """Open the manifest and launch the workers. Returns immediately. Raises what `listen` raises."""
        self.listen()
        self._launcher = launcher
        self._on_loop(lambda: self._go.set() if self._go is not None else None)

    # --- Status and requests --------------------------------------------------------------------------

    def status(self) -> RegionStatus:
        """Return the current status, at most one event old."""
        with self._lock:
            return self._status

    def _end_text(self) -> str:
        """Return the final state and its reason, empty while it runs. Hold the lock."""
        return f"it is {self._status.state.value}; {self._status.reason}" if self._over else ""

    def hangs(self) -> str:
        """Return why the coordinator's event loop does not move; "" if it does. Not on that loop."""
        return "" if self._token is None or self._over else silence_of(self._token)

    def members(self) -> list[MemberStatus]:
        """Return the store's members as the coordinator sees them; empty before it is connected."""
        store = self._store
        return store.members() if store is not None else []

    def request_checkpoint(self) -> int:
        """Request a checkpoint. Return the lowest number that it can have, perhaps that of one under way."""
        with self._lock:
            number = self._last_checkpoint() + 1
        self._post(CheckpointWanted())
        return number

    def wait_checkpoint(self, checkpoint: int, timeout: float | None = None) -> bool:
        """Wait until a checkpoint of at least that number is committed. False on timeout or at the end."""
        with self._lock:
            self._lock.wait_for(lambda: self._checkpoint >= checkpoint or self._over, timeout)
            return self._checkpoint >= checkpoint

    def reset(self) -> None:
        """Reset the region to the last committed checkpoint now. Does not count as a failed attempt."""
        self._post(ResetWanted())

    def pause(self, timeout: float | None = None) -> int:
        """Stop all workers after the same step, commit a checkpoint of it, and stay PAUSED until `resume`.

        Returns the checkpoint's number, 0 if no input was ever read. Raises RegionFailedError if that took
        longer than `timeout` seconds or the region ended; the request remains in effect.
        """
        self._need_checkpoints()
        self._post(PauseWanted(on=True))
        with self._lock:
            self._lock.wait_for(lambda: self._status.state is RegionState.PAUSED or self._over, timeout)
            status, last = self._status, self._last_checkpoint()
        if status.state is not RegionState.PAUSED:
            raise RegionFailedError(
                f"region {self.spec.name} is not paused: it is {status.state.value} ({status.reason})"
            )
        return last

    def _last_checkpoint(self) -> int:
        """Return the newest committed checkpoint. Hold the lock: a commit is reported before its status."""
        return max(self._checkpoint, self._status.last_checkpoint)

    def resume(self) -> None:
        """Continue after `pause`. Returns immediately."""
        self._post(PauseWanted(on=False))

    def stop(self) -> None:
        """Take a last checkpoint if the region runs, then stop all workers. Does not wait."""
        if self._launcher is None and self._thread is not None:
            self._on_loop(lambda: self._abandon.cancel())
        else:
            self._post(StopWanted())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end (FINISHED, STOPPED, FAILED, FENCED). Return False on timeout. Never raises."""
        with self._lock:
            return self._lock.wait_for(lambda: self._over, timeout)

    def exception(self) -> Exception | None:
        """Return why the region is FAILED or FENCED, or None. Final once `wait` has returned."""
        with self._lock:
            return self._error

    def worker_ended(self, worker: int, attempt: int, error: str | None) -> None:
        """Report that this attempt's process or task has ended. Called by the launcher."""
        self._post(WorkerEnded(worker, attempt, error))

    def batches_wait_in_vain(self, text: str, remedy: str) -> None:
        """Report that workers cannot start before tasks of batches end, so that these are refused."""
        self._post(BatchesWaitInVain(text, remedy))

    def _post(self, event: Event) -> None:
        shell = self._shell
        if shell is not None:
            self._on_loop(lambda: shell.post(event))

    def _on_loop(self, do: Callable[[], None]) -> None:
        token = self._token
        if token is None:
            return
        with suppress(trio.RunFinishedError):  # the region has ended: there is nothing to notify
            token.run_sync_soon(do)

    # --- What the handle of a region offers, with the names of Spark's streaming query ----------------

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """The report of the last committed checkpoint, None before the first."""
        return None if self._shell is None else self._shell.meter.last

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802  # Spark's name
        """The reports of the latest checkpoints, oldest first."""
        return [] if self._shell is None else list(self._shell.meter.recent)

    def wait_listeners(self) -> None:
        """Wait, for a limited time, until all listeners have returned from `onTerminated`."""
        self._listeners.wait_ended(listeners_end_s)

    def checkpoint(self, timeout: float | None = None) -> int:
        """Commit a checkpoint of all that was read before the call; return its number. Raises
        RegionFailedError.
        """
        self._need_checkpoints()
        begun = time.monotonic()
        number = self._next_number(timeout)
        self._post(CheckpointWanted())
        left = None if timeout is None else begun + timeout - time.monotonic()
        if not self.wait_checkpoint(number, left):
            raise RegionFailedError(
                f"region {self.spec.name} committed no checkpoint in {time.monotonic() - begun:.1f} s"
                f" (it is {self.status()})"
            )
        with self._lock:
            return self._checkpoint

    def _next_number(self, timeout: float | None) -> int:
        """Return the lowest number of a checkpoint that is requested from now on."""
        found: list[int] = []

        def note() -> None:
            assert self._shell is not None
            with self._lock:
                found.append(self._shell.core.next_number)
                self._lock.notify_all()

        self._on_loop(note)
        with self._lock:
            if self._shell is not None:
                self._lock.wait_for(lambda: found or self._over, timeout)
            return found[0] if found else self._checkpoint + 1

    def restore(self, to: str, timeout: float | None = None, *, republish: bool = False) -> RestoreSettled:
        """Go back to an older checkpoint. Raises RestoreRefusedError, RegionFailedError."""
        return self._settle(
            "restore", RestoreWanted(checkpoint_named(to), republish), RestoreSettled, timeout
        )

    def savepoint(self, name: str, checkpoint: int = 0, timeout: float | None = None, why: str = "") -> int:
        """Create a savepoint of a checkpoint (0: the last), and return its number. Raises LocalProtocolError
        if it cannot be created, RegionFailedError.
        """
        if problem := savepoint_name_problem(name):
            raise LocalProtocolError(f"region {self.spec.name}: {problem}")
        self._check_numbers("a checkpoint", checkpoint)
        note = SavepointNote(by=this_driver(), wall_time_ms=wall_time_ms(), why=why)
        return self._settle(
            "savepoint", SavepointWanted(name, checkpoint, note=note), SavepointSettled, timeout
        ).checkpoint

    def drop_savepoint(self, name: str, timeout: float | None = None) -> int:
        """Drop a savepoint and what only it needed. Return its checkpoint's number. Raises as `savepoint`."""
        return self._settle(
            "drop_savepoint", SavepointWanted(name, on=False), SavepointSettled, timeout
        ).checkpoint

    def scale(self, workers: int | None, timeout: float | None = None) -> ScaleSettled:
        """Change the number of workers; None gives a change up. Raises NotScaledError, RegionFailedError."""
        if workers is None:
            return self._settle("unscale", ScaleWanted(None), ScaleSettled, timeout)
        self._check_numbers("a number of workers", workers)
        return self._settle("scale", ScaleWanted(workers), ScaleSettled, timeout)

    def replace(self, workers: Iterable[int] = (), timeout: float | None = None) -> ReplaceSettled:
        """Replace workers, all without any, one after the other. Raises NotReplacedError if one keeps its
        process: so do those that follow; RegionFailedError after `timeout` seconds, and the replacement
        continues.
        """
        self._check_numbers("a worker", *(chosen := tuple(workers)))
        return self._settle(
            "replace", ReplaceWanted(chosen, randomness.fresh_id().hex()), ReplaceSettled, timeout
        )

    def move(self, workers: Iterable[int]) -> None:
        """Request what `replace` does, and do not wait: for a launcher whose places are about to end."""
        self._post(ReplaceWanted(tuple(workers)))

    def addListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Notify this listener, on a separate thread, of all later events."""
        self._listeners.add(listener)

    def removeListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Stop notifying this listener."""
        self._listeners.remove(listener)

    def _settle(self, verb: str, wanted: UserRequest, kind: type[S], timeout: float | None) -> S:
        """Request it, return its outcome. Raises `Verb.refusal`, or RegionFailedError if none is known."""
        row, key = VERBS[verb], wanted.key
        assert key is not None, "only a request with a key has an outcome"
        self._need_checkpoints()
        with self._lock:
            self._outcomes.pop(key, None)  # of an earlier request, which would be taken for this one's
        self._post(wanted)
        with self._lock:
            self._lock.wait_for(lambda: key in self._outcomes or self._over, timeout)
            event, error = self._outcomes.pop(key, (None, ""))
            if event is None:
                why = self._end_text() or "it may still be carried out"
                what = row.unsettled.format(wanted=wanted)
                raise RegionFailedError(f"region {self.spec.name} {what}: {why}")
        if error:
            raise row.refusal(f"region {self.spec.name}: {error}")
        assert isinstance(event, kind)
        return event

    def _check_numbers(self, what: str, *values: object) -> None:
        # Here, and not in the driver's own thread: an error there would end the region.
        if wrong := [value for value in values if type(value) is not int]:
            raise LocalProtocolError(f"region {self.spec.name}: {what} is an int, got {wrong[0]!r}")

    def _need_checkpoints(self) -> None:
        if self.spec.without_checkpoints:
            raise LocalProtocolError(NO_CHECKPOINTS.format(self.spec.name))

    # --- The thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        error: Exception | None = None
        try:
            with log_fields(lambda: {"region": self.spec.name}):
                trio.run(self._main)
        except Exception as group:
            error = errors_in(group)[0]
            # The error of a user, or of the store, says all; any other one is a bug.
            trace = None if isinstance(error, DosError) else group
            logger.error("region %s: failed: %s", self.spec.name, error, exc_info=trace)
        with self._lock:
            if error is not None:
                self._error = error
                self._status = replace(self._status, state=RegionState.FAILED, reason=str(error))
            status, failure = self._status, self._error
        self._listeners.region_ended(status, failure)
        with self._lock:
            self._over = True
            self._lock.notify_all()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._shell = shell = RegionShell(self.spec, self._observe)
        shell.handled = self._handled
        self._go = trio.Event()
        async with listening(self.spec, shell) as address:
            with self._abandon:
                with self._lock:
                    self._address = address
                    self._lock.notify_all()
                await self._go.wait()
                assert self._launcher is not None
                end = await run_region(
                    self.spec, shell, self._launcher, self._keep_store, self._check, self._prepare
                )
                if end.error is not None and end.state is RegionState.FAILED:
                    notes = "".join(f"\n{note}" for note in getattr(end.error, "__notes__", ()))
                    text = failure_text(end.error, self._shell.status().last_checkpoint)
                    logger.error("region %s: %s%s", self.spec.name, text, notes)
                with self._lock:
                    self._error = end.error
                return
        with self._lock:
            self._status = replace(
                self._status, state=RegionState.STOPPED, reason="stopped before it started"
            )

    def _keep_store(self, store: Store) -> None:
        self._store = store

    def _handled(self, status: RegionStatus) -> None:
        self._keep_status(status)
        self._listeners.observe_status(status, trio.current_time())

    def _keep_status(self, status: RegionStatus) -> None:
        with self._lock:
            self._status = status
            self._lock.notify_all()

    def _observe(self, event: RegionEvent) -> None:
        with self._lock:
            if isinstance(event, CheckpointCommitted):
                self._checkpoint = max(self._checkpoint, event.checkpoint)
                self._lock.notify_all()
            elif isinstance(event, Settled):
                for key, error in event.outcomes().items():
                    self._outcomes[key] = (event, error)
                self._lock.notify_all()
        if self._shell is not None:
            self._keep_status(self._shell.status())  # observers of the event read a status that includes it
            self._listeners.observe(event, self._status, self._shell.meter.last)
        if self._observer is not None:
            self._observer(event)
