"""The handles of running regions and applications: counterparts of Spark's `StreamingQuery`, with its names.

`start_part` assembles a region: the coordinator of `checkpoint` runs it, and a launcher starts its workers
(Spark jobs, or local processes). At its end the handle ends the workers that still run, then the page and the
port for figures.
"""

import html
import logging
import math
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypedDict

from prometheus_client import CollectorRegistry

from checkpoint import (
    AutoScale,
    Begin,
    Checkpoint,
    GraphOptions,
    Launcher,
    OnDamaged,
    Recovery,
    RegionEvent,
    RegionSpec,
    RegionState,
    RegionStatus,
    ReplaceSettled,
    ScaleSettled,
    StateChanged,
    begins_latest,
    check_names,
    driver_report,
    span_of,
)
from checkpoint.coordinator.control import RegionControl, RegionListener
from checkpoint.coordinator.figures import RegionFigures
from checkpoint.errors import NotReplacedError, RegionFailedError
from checkpoint.runtime import runtime
from dataflow.editing import add_first_rows, begin_at_latest
from dataflow.graph.builder import Graph, GraphPart, check_places, part_options
from dataflow.graph.pictures import svg
from dataflow.graph.plan import GraphPlan
from dataflow.limits import handle_poll_s, stop_timeout_s, workers_end_timeout_s
from dataflow.sinks.base import SinkSpec
from dataflow.sources.batches import LOCAL_RECOVERY_OF_BATCHES
from dataflow.worker.spec import removed_specs
from dos_client import Store, metrics, parse_url
from dos_monitoring import (
    LOG_VARIABLE,
    METRICS_VARIABLE,
    HealthServer,
    MetricsListen,
    begin_logs,
    log_choice_of_environment,
    parse_metrics_listen,
    serve_health,
    tracer_of_environment,
)
from dos_protocol.arguments import is_loopback, parse_listen
from dos_tls import TlsSettingsError

if TYPE_CHECKING:
    from dos_ui.serving import PageServer


logger = logging.getLogger("dos.dataflow")

_key_bytes = 32
_POLL_S = 0.2


def serve_page(
    spec: RegionSpec, reports: Mapping[str, Callable[[], dict[str, Any]]], listen: str
) -> "PageServer":
    """Serve the page of the store of `spec` with these regions, as `RegionHandle.serve_page`."""
    from dos_ui.serving import PageServer  # needs the extra [ui]

    host, port = parse_listen(listen, "listen")
    if not is_loopback(host):
        raise ValueError(
            f"{host} can be reached from other machines, and this page has no TLS: serve it on 127.0.0.1, or"
            " run `dos ui --tls`"
        )
    return PageServer(parse_url(spec.store_url).servers, host, port, spec.token, dict(reports))


class Monitoring(NamedTuple):
    """What the driver and the workers of an application show, in the words of its user."""

    metrics: str = ""
    """Where figures are served: `parse_metrics_listen`."""
    log: str = ""
    """How the log is written: `parse_log_choice`."""


def monitoring_of(metrics: str | None) -> Monitoring:
    """Return what was asked for; `metrics` None: as DOS_METRICS. Begins the driver's log if DOS_LOG asks for
    one. Raises ValueError, MissingExtraError; OSError for a file of spans.
    """
    given = os.environ.get(METRICS_VARIABLE, "") if metrics is None else metrics
    parse_metrics_listen(given)
    tracer_of_environment()
    choice = log_choice_of_environment()
    if choice is not None:
        begin_logs(choice)
    return Monitoring(given, os.environ.get(LOG_VARIABLE, ""))


class RegionMonitor:
    """The HTTP port of one region in its driver, and its figures. Without an address there is no port.

    If another driver of the region has the only port, in this process, it follows: as soon as that one has
    closed the port, it is opened here (`RegionHandle.replace`).
    """

    _opening: ClassVar = threading.Lock()
    _with_port: ClassVar[dict[tuple[str, str], "RegionMonitor"]] = {}
    """Region and its `listen` -> the monitor that has a port."""

    def __init__(self, region: str, listen: str) -> None:
        """listen: `Monitoring.metrics`. Raises as `tracer_of_environment`."""
        self.address = ""
        self._tracer = tracer_of_environment()
        self._region, self._listen = region, listen
        self._figures = RegionFigures(region)
        self._control: RegionControl | None = None
        self._server: HealthServer | None = None
        self._shares: metrics.SharedFigures | None = None
        self._heir: RegionMonitor | None = None
        if (place := parse_metrics_listen(listen)) is None:
            return
        with self._opening:
            before = self._with_port.get((region, listen))
            if before is not None and place.ports[0] and len(place.ports) == 1:
                before._heir = self  # noqa: SLF001 - of this class
                self.address = before.address
            else:
                self._open(place)

    def _open(self, place: MetricsListen) -> None:
        registry, shares = CollectorRegistry(), metrics.SharedFigures()
        registry.register(self._figures)
        registry.register(shares)
        try:
            self._server = serve_health(place, registry, hangs=self._hangs, not_ready=self._not_ready)
        except (OSError, TlsSettingsError) as error:
            shares.close()
            # No reason to refuse a region: it runs without a port.
            logger.warning(
                "region %s: its driver serves no figures at %s: %s", self._region, self._listen, error
            )
        else:
            self._shares = shares
            self._with_port[self._region, self._listen] = self
            self.address = place.reached_at(self._server.port, runtime().host_name())

    def observe(self, event: RegionEvent) -> None:
        """Count an event, and emit its trace. On the coordinator's thread."""
        self._figures.observe(event, time.time())
        if self._tracer is not None and (span := span_of(self._region, event)) is not None:
            self._tracer.emit(span)

    def watch(self, control: RegionControl) -> None:
        """Show this region from now on."""
        self._control, self._figures.status = control, control.status

    def close(self) -> None:
        """Close the port. Without effect the second time."""
        with self._opening:
            server, shares, self._server, self._shares = self._server, self._shares, None, None
            before = self._with_port.get((self._region, self._listen))
            if before is not None and before._heir is self:  # noqa: SLF001 - of this class
                before._heir = None  # noqa: SLF001
            if server is None or shares is None:
                return
            server.close()
            shares.close()
            if before is self:
                del self._with_port[self._region, self._listen]
            heir, place = self._heir, parse_metrics_listen(self._listen)
            if heir is not None and place is not None:
                heir._open(place)  # noqa: SLF001

    def _hangs(self) -> str:
        return "" if self._control is None else self._control.hangs()

    def _not_ready(self) -> str:
        if self._control is None:
            return "STARTING"
        status = self._control.status()
        if status.state is RegionState.RUNNING:
            return status.access_problem
        return f"{status.state.value}: {status.reason}" if status.reason else status.state.value


class WorkerLauncher(Launcher, Protocol):
    """Starts the workers of one region and knows when all have ended."""

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no worker runs. Return whether that is the case."""

    def close(self, timeout_s: float) -> bool:
        """Start nothing any more, end every worker and wait. Return whether all ended in time."""


class RegionEvents:
    """A queue from the coordinator's thread, which must not block, to the handle's thread."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[RegionEvent] = queue.SimpleQueue()
        self.failure: Exception | None = None
        """Why this driver gave up the region, if the region itself does not know."""

    def __call__(self, event: RegionEvent) -> None:
        self.queue.put(event)


@dataclass(slots=True, eq=False)
class DriverRun:
    """One driver of a region in this process, with its workers."""

    control: RegionControl
    launcher: WorkerLauncher
    events: RegionEvents
    monitor: RegionMonitor
    plan: GraphPlan
    at_end: Callable[[], None]
    """Ends what was started for the region. Called once, after the last driver."""
    cleaned: threading.Event = field(default_factory=threading.Event)
    owner: "RegionHandle | None" = None
    """The handle that has it, or had it before another graph took the region over."""

    def watch(self) -> None:
        """Pass events on until the region ends here, and end what belongs to this driver."""
        ended = False
        while not ended:
            try:
                event = self.events.queue.get(timeout=handle_poll_s)
            except queue.Empty:  # an end caused by a bug of the coordinator has no event
                ended = self.control.wait(0)
                continue
            ended = isinstance(event, StateChanged) and event.state.is_end
            assert self.owner is not None
            self.owner.take(self, event, is_end=ended)
        self.control.wait(workers_end_timeout_s)  # the event of the end precedes its exception
        self.control.wait_listeners()
        name = self.control.spec.name
        if not self.launcher.wait_idle(workers_end_timeout_s):
            logger.warning("region %s: ended, but some of its workers still run; ending them", name)
        self.launcher.close(workers_end_timeout_s)
        self.monitor.close()
        assert self.owner is not None
        self.owner.is_end(self)  # a graph that takes the region over takes over what was started for it
        self.at_end()
        self.cleaned.set()


class FollowingListener(RegionListener):
    """A listener of a handle, at one driver. The end of a driver that was replaced is not reported."""

    def __init__(self, listener: RegionListener, is_end: Callable[[], bool]) -> None:
        self._listener = listener
        self._is_end = is_end

    def onStart(self, start: dict[str, Any]) -> None:  # noqa: N802  # Spark's name
        self._listener.onStart(start)

    def onProgress(self, progress: dict[str, Any]) -> None:  # noqa: N802
        self._listener.onProgress(progress)

    def onIdle(self, idle: dict[str, Any]) -> None:  # noqa: N802
        self._listener.onIdle(idle)

    def onReset(self, reset: dict[str, Any]) -> None:  # noqa: N802
        self._listener.onReset(reset)

    def onTerminated(self, end: dict[str, Any]) -> None:  # noqa: N802
        if self._is_end():
            self._listener.onTerminated(end)


Again: TypeAlias = Callable[[Graph, dict[str, Any]], "RegionHandle | Application"]
"""Starts another graph as the region was started, with these options changed."""


class RegionHandle:
    """A region that `run` or `run_local` started. Every method may be called from any thread."""

    def __init__(
        self,
        name: str,
        run: DriverRun,
        *,
        on_event: Callable[[RegionEvent], None] | None,
        again: Again | None = None,
    ) -> None:
        """again: None if its graph cannot be replaced here."""
        self.name = name
        self._run = run
        self._on_event = on_event
        self._again = again
        self._replacing = threading.Lock()
        self._settled = threading.Event()
        """No other graph is about to take the region over."""
        self._settled.set()
        self._listeners: list[tuple[RegionListener, FollowingListener]] = []
        run.owner = self
        threading.Thread(target=run.watch, name=f"dos-{name}-watch", daemon=True).start()

    @property
    def _control(self) -> RegionControl:
        return self._run.control

    def __repr__(self) -> str:
        return f"<RegionHandle {self.name}: {self.status}>"

    def _repr_html_(self) -> str:
        """Show a snapshot in a notebook: state, workers, rates of the last checkpoint, and the graph with
        the rows of each operator since the region started or was reset.
        """
        status, last = self.status, self.lastProgress
        notes = {one["name"]: _rows_text(one) for one in self.report()["operators"]}
        rates = ""
        if last is not None and (rows_in := last["inputRowsPerSecond"]) is not None:
            rates = (
                f"<div>at checkpoint {last['checkpoint']}: {rows_in:,.0f} rows/s in,"
                f" {last['outputRowsPerSecond']:,.0f} rows/s out, {last['checkpointSeconds']:.3f} s</div>"
            )
        picture = f'<div style="overflow-x: auto">{svg(self._run.plan, notes)}</div>'
        return f"<b>{html.escape(self.name)}</b> {status._repr_html_()}{rates}{picture}"

    @property
    def coordinator_port(self) -> int:
        """The port on which the coordinator listens in this process."""
        return self._control.address[1]

    def batches_wait_in_vain(self, text: str, remedy: str) -> None:
        """End the tasks of batches that hold the slots which workers need to start."""
        self._control.batches_wait_in_vain(text, remedy)

    @property
    def status(self) -> RegionStatus:
        """A snapshot: state and its reason, incarnation, last checkpoint, workers, resets."""
        return self._control.status()

    def report(self) -> dict[str, Any]:
        """The status as JSON: what `dos region status --json` shows of a driver."""
        return driver_report(self._control.spec, self.status, self.lastProgress)

    def serve_page(
        self, listen: str = "127.0.0.1:0", *, beside: "Mapping[str, RegionHandle] | None" = None
    ) -> "PageServer":
        """Serve a web page of this region and its store at HOST:PORT until `close` of the result, whose `url`
        is to be opened. beside: other regions of this process in the same store. It is also shown while the
        store is unavailable.

            page = region.serve_page("127.0.0.1:4050")
            print(page.url)

        Raises MissingExtraError without the extra `ui`, ValueError for an address that is invalid or that
        other machines can reach, OSError if the port cannot be used.
        """
        reports = {name: one.report for name, one in {**(beside or {}), self.name: self}.items()}
        return serve_page(self._control.spec, reports, listen)

    @property
    def isActive(self) -> bool:  # noqa: N802  # Spark's name
        """Whether the region has not ended yet."""
        return not self.status.state.is_end

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """The report of the last committed checkpoint; None before the first."""
        return self._control.lastProgress

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802  # Spark's name
        """The reports of the last checkpoints, oldest first."""
        return self._control.recentProgress

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802  # Spark's name
        """Wait at most `timeout` seconds for the end of the region; return whether it has ended. Raises
        `exception()` if it ended as FAILED or FENCED.
        """
        if not self.wait(timeout):
            return False
        failure = self.exception()
        if failure is not None:
            raise failure
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait like `awaitTermination`, but raise nothing."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            run = self._run
            for one in (run.cleaned, self._settled):  # a driver that was replaced is not the end
                if not one.wait(None if timeout is None else max(deadline - time.monotonic(), 0.0)):
                    return False
            if run is self._run:
                return True

    def exception(self) -> Exception | None:
        """Return why the region is FAILED or FENCED; None while it runs and after a normal end."""
        run = self._run
        return run.events.failure or run.control.exception()

    def stop(self) -> None:
        """Take a last checkpoint, end the workers, and wait for them. A later `run` continues from there.

        The rows of that checkpoint are visible then in all sinks; if a destination fails, or takes longer
        than 10 seconds, when the region runs again. After a minute the workers are killed, and the region
        continues from the last committed checkpoint.
        """
        run = self._run
        run.control.stop()
        if not run.control.wait(stop_timeout_s):
            logger.warning(
                "region %s: not stopped after %.0f s; ending its workers", self.name, stop_timeout_s
            )
            run.launcher.close(workers_end_timeout_s)
        run.cleaned.wait(stop_timeout_s)

    def checkpoint(self, timeout: float | None = None) -> int:
        """Commit a checkpoint now and return its number. Raises RegionFailedError after `timeout` seconds
        without.
        """
        return self._control.checkpoint(timeout)

    def scale(self, workers: int | None, timeout: float | None = None) -> ScaleSettled:
        """Change the number of workers while the region runs. Their state moves with the keys that they own.

        Returns when the region runs with them, with the seconds that it took and that no input was taken.
        None gives up a change that is under way. Raises NotScaledError if the region keeps its workers;
        RegionFailedError after `timeout` seconds, and the change goes on.
        """
        return self._control.scale(workers, timeout)

    def replace(
        self,
        *workers: int,
        graph: Graph | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> ReplaceSettled:
        """Replace workers by other processes, one after the other, while the region runs; without any: all.
        Each new process joins first, in a task slot of its own; then the region pauses and continues with it.

            region.replace(graph=changed, renamed={"visits": "sessions"})

        With `graph`, all workers are replaced at once by those of another graph, as with `hand_over` (a hot
        upgrade): they join, in slots of their own, open their operators and load the state while the region
        runs. This handle then has the new graph; listeners are called with `onStart` again. options: the
        others are those of `run`, except the graph's (`drop_state`, `renamed`, ...), which are of one change.

        Returns once the region runs with them. Raises NotReplacedError if a worker keeps its process, and so
        do those after it; RegionFailedError after `timeout` seconds: the replacement of workers continues,
        that of the graph is given up. If another graph does not fit (GraphChangeRefusedError), cannot be
        started (what `run` raises) or does not run, this region continues with its graph.
        """
        if graph is None:
            if options:
                raise TypeError(f"replace takes {min(options)!r} with graph= only")
            return self._control.replace(workers, timeout)
        if workers:
            raise ValueError("with graph= all workers are replaced; name none")
        return self._replace_graph(graph, dict(options), timeout)

    def _replace_graph(self, graph: Graph, options: dict[str, Any], timeout: float | None) -> ReplaceSettled:
        if taken := options.keys() & _OF_ONE_START:
            raise TypeError(f"replace takes no {min(taken)!r}: the region keeps it, or is not started anew")
        if self._again is None:
            raise NotReplacedError(
                f"the graph of region {self.name!r} cannot be replaced here",
                remedy="of a query: stop the query, and start the changed one with its checkpointLocation; of"
                " several regions: start the changed program with hand_over=True",
            )
        if not self._replacing.acquire(blocking=False):
            raise NotReplacedError(f"the graph of region {self.name!r} is being replaced already")
        begin = time.monotonic()
        old = self._run
        self._settled.clear()  # the present driver will end, and the region will not
        try:
            heir = self._again(graph, options)
            if not isinstance(heir, RegionHandle) or heir.name != self.name:
                heir.stop()
                raise NotReplacedError(
                    f"region {self.name!r} cannot become several regions, or one of another name"
                )
            pause_s = self._wait_for_heir(heir, begin, timeout)
        finally:
            self._settled.set()
            self._replacing.release()
        old.cleaned.wait(stop_timeout_s)
        all_of_it = tuple(range(len(self.status.workers)))
        return ReplaceSettled(all_of_it, all_of_it, "", time.monotonic() - begin, pause_s)

    def _wait_for_heir(self, heir: "RegionHandle", begin: float, timeout: float | None) -> float:
        """Continue with the driver of `heir` once it runs the region; return for how long that paused, at
        most. If it does not, raise why: this driver continues.
        """
        deadline = math.inf if timeout is None else begin + timeout
        asked = 0.0
        while (state := heir.status.state) is not RegionState.RUNNING and not state.is_end:
            if not asked and self.status.scaling is not None:
                asked = time.monotonic()
            if time.monotonic() > deadline:
                heir.stop()
                break
            time.sleep(_POLL_S / 4)
        # By its first checkpoint, the present driver knows that it is over. Without one it continues.
        if heir.status.checkpoints_committed:
            self._continue_with(heir._run)  # noqa: SLF001 - of this class
            self._again = heir._again  # noqa: SLF001
        if heir.status.state is RegionState.RUNNING:
            return time.monotonic() - asked if asked else 0.0
        if (error := heir.exception()) is not None:
            raise error
        raise RegionFailedError(
            f"region {self.name!r} was not handed over within {timeout:g} s: it is {self.status.state.value}",
            remedy="call replace again, with a longer timeout",
        )

    def _continue_with(self, run: DriverRun) -> None:
        """Be the handle of another driver of the region, and let listeners and the observer follow it."""
        old = self._run
        run.at_end, old.at_end = old.at_end, run.at_end
        run.owner, self._run = self, run
        listeners, self._listeners = [listener for listener, _ in self._listeners], []
        for listener in listeners:
            self.addListener(listener)

    def reset(self) -> None:
        """Go back to the last committed checkpoint, as after a lost worker. Not counted as an attempt."""
        self._control.reset()

    def pause(self, timeout: float | None = None) -> int:
        """Stop reading input until `resume`; return a checkpoint that covers all input read. Workers keep
        their slots and processes. Raises RegionFailedError after `timeout` seconds.
        """
        return self._control.pause(timeout)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._control.resume()

    def restore(self, to: str, timeout: float | None = None, *, allow_republish: bool = False) -> int:
        """Go back to an older checkpoint: `savepoint:NAME`, `checkpoint:N`, or a time in ISO 8601, for the
        newest retained checkpoint that is not later. Returns its number once the restore is committed.

        Output after it is taken back, and input is read again from there. Rows of sinks that cannot take back
        what they have shown come again: `allow_republish` confirms that. Raises RestoreRefusedError if
        nothing was changed; RegionFailedError if that took longer than `timeout` seconds or the region ended:
        then it may be restored or not.
        """
        return self._control.restore(to, timeout, republish=allow_republish).checkpoint

    def savepoint(
        self, name: str, checkpoint: int = 0, timeout: float | None = None, *, why: str = ""
    ) -> int:
        """Create a savepoint: keep a checkpoint (0: the last) restorable under a name until `drop_savepoint`,
        also for later drivers. Returns its number once a committed checkpoint records the savepoint. why: a
        note for people, at most 500 characters, which `dos region savepoints` shows.

        Raises LocalProtocolError if the checkpoint is released, or the name is taken or reserved;
        RegionFailedError if that took longer than `timeout` seconds or the region ended.
        """
        return self._control.savepoint(name, checkpoint, timeout, why)

    def drop_savepoint(self, name: str, timeout: float | None = None) -> int:
        """Drop a savepoint, and what only its checkpoint needed; return its number. Raises as `savepoint`."""
        return self._control.drop_savepoint(name, timeout)

    def addListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Report events from now on to a listener, on a thread of its own."""
        run = self._run
        following = FollowingListener(listener, partial(self.is_end, run))
        self._listeners.append((listener, following))
        run.control.addListener(following)

    def removeListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Stop reporting to a listener."""
        for one in [one for one in self._listeners if one[0] is listener]:
            self._listeners.remove(one)
            self._control.removeListener(one[1])

    def is_end(self, run: DriverRun) -> bool:
        """Return whether the end of this driver is that of the region; waits while a graph is replaced."""
        self._settled.wait()
        return run is self._run

    def take(self, run: DriverRun, event: RegionEvent, *, is_end: bool) -> None:
        """Take an event of a driver. is_end: it is its last one."""
        if self.is_end(run) if is_end else run is self._run:
            self._report(event)

    def _report(self, event: RegionEvent) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # an error of the user's observer must not end the watch
            logger.exception("region %s: the observer raised on %s", self.name, event)


class RegionOptions(TypedDict, total=False):
    """The options that `run` and `run_local` have in common. None is the default of each that takes None.

    - `name`: of the region, and of its directories in the store; default: the graph's.
    - `workers`: copies of the circuit. On Spark, each is a job of one task that holds a slot while the region
      runs. Default: as many as the region's last checkpoint has, 2 for a new region. With another number than
      that, the state moves to the new workers first.
    - `autoscale`: how the number of workers follows the load of each region; default: it changes only on
      request. Workers that are added need free slots, or a cluster that adds executors.
    - `token`: of the store, if it has access rights.
    - `checkpoint_interval`: seconds between checkpoints; default: the `period` of the graph's
      `consistent(...)`, or 1 second.
    - `retain`: how many checkpoints stay restorable, at least 2; default 5. Data that only older ones need is
      deleted from the store automatically.
    - `recovery`: what follows the loss of a worker. "global", the default: all workers go back to the last
      checkpoint. "local": only the lost one does, in another process, while the others keep their state and
      their place in the input. A `consistent(recovery=...)` of the graph counts first.
    - `warm_standby`: whether each worker has a second process that loads its state after each commit. When
      the worker is lost, that process takes its place, so a recovery takes as long with much state as with
      little; with global recovery, those of all workers do. Costs as much memory and disk as the workers,
      and on Spark as many task slots. Default: False.
    - `restore`: an older checkpoint to go back to first: `savepoint:NAME`, `checkpoint:N`, or a time in ISO
      8601. A program that is started again with the same value does not go back again: use `dos region
      restore` for that. `allow_republish` confirms that rows of sinks come again that cannot be taken back.
    - `drop_state`: operators whose state may be dropped if the graph is not that of the last checkpoint:
      those that it does not have any more, or whose stored state does not fit. They begin anew. State that
      fits is kept, so the option may stay in the program. `OPERATOR:RESULT` names one result of an
      aggregation that keeps its others.
    - `new_aggregates`: `OPERATOR:RESULT` of results that an aggregation with a state gains: they are of the
      rows after the change only.
    - `renamed`: old name -> new name, of operators with a state, results of aggregations
      (`OPERATOR:RESULT`), sources and sinks, if the graph is not that of the last checkpoint.
    - `rewired`: operators that keep their state although no source above them is one whose rows made it.
    - `removed`: sources and sinks of the last checkpoint that the graph does not have any more, or at another
      place, by name. The value is None; of a sink outside of the store the specification that the former
      program has, because rows of the last checkpoint may have to be made visible.
    - `removed_regions`: regions of the application that no part of the graph continues any more. A part
      continues the region that has its operators, whatever the name of its first operator is. Without the
      option, a region that would be left is refused.
    - `keep_before`: seconds for which the checkpoint before a change of the graph stays restorable; default:
      a day. It goes before that if the disk of a member of the store is full.
    - `graph_back`: confirms that a graph is used again that another one has replaced in this region.
    - `begins`: source -> "latest", if it begins at its end unless the last checkpoint has it already; of a
      `LogSource`, at the last checkpoint of its region. Default, also as "first": at its first row.
    - `bootstrap`: a checkpoint, and operator -> the rows with which its state begins if it is new, or begins
      anew, as for `edit_state`, or a function that returns them: `("savepoint:b", {"top": rows})`. The rows
      are made of that checkpoint, which must be the last one. Not with `hand_over`.
    - `on_damaged`: what follows if the last checkpoint is damaged on more members than the store tolerates.
      "fail", the default: the region fails, and names what is damaged and what is whole. "previous": it goes
      back to the newest older checkpoint that is whole; status, log and event (`FellBack`) name what is lost.
    - `scratch`: a directory on the machines of the workers where they keep caches; default: none. Recovery is
      faster with it but never requires it. State with `state_on="disk"` is stored there, or otherwise in the
      directory for temporary files.
    - `port_range`: the first and last port on which this driver, and each worker, may listen.
      An executor that other machines reach under another name sets DOS_ADVERTISE_HOST.
    - `start_timeout`: seconds to wait for executors, and for all workers to join; default: 300.
    - `hand_over`: first launches all workers and checks that this graph, which may be another one, can
      continue from the last checkpoint. Then the driver that runs the region pauses and lends it, so that it
      stands still for as short as possible. If that fails, the other driver continues. Needs task slots
      beside the other driver's.
    - `on_event`: called with each event of the region, in an internal thread.
    - `listeners`: called on start, progress, resets and the end (`RegionListener`), in another thread.
    - `metrics`: where the driver and each worker serve figures and health over HTTP (docs/metrics.md), as
      HOST:PORT or HOST:FIRST-LAST: each takes the first port that is free; port 0 is any. The status has the
      addresses. Default: DOS_METRICS, otherwise none.
    """

    name: str | None
    workers: int | None
    autoscale: AutoScale | None
    token: bytes
    checkpoint_interval: float | None
    retain: int | None
    recovery: Recovery | None
    warm_standby: bool
    restore: str | None
    allow_republish: bool
    drop_state: Sequence[str]
    new_aggregates: Sequence[str]
    renamed: Mapping[str, str]
    rewired: Sequence[str]
    removed: Mapping[str, SinkSpec | None]
    removed_regions: Sequence[str]
    keep_before: float
    graph_back: bool
    begins: Mapping[str, Begin]
    bootstrap: tuple[str, Mapping[str, Any]]
    on_damaged: OnDamaged
    scratch: "str | os.PathLike[str] | None"
    port_range: tuple[int, int] | None
    start_timeout: float
    hand_over: bool
    on_event: Callable[[RegionEvent], None] | None
    listeners: Sequence[RegionListener]
    metrics: str | None


GRAPH_OPTIONS: Final = frozenset(GraphOptions.__dataclass_fields__)
_OF_ONE_START: Final = frozenset(
    {"name", "token", "restore", "allow_republish", "hand_over", "on_event", "listeners"}
)
"""Options that `RegionHandle.replace` does not take."""


def options_of_change(
    options: Mapping[str, Any], changed: Mapping[str, Any], application: str
) -> dict[str, Any]:
    """Return the options with which another graph takes over a region that was started with `options`."""
    of_one = {"restore", "allow_republish", "on_event", "listeners", *GRAPH_OPTIONS}
    kept = {name: value for name, value in options.items() if name not in of_one}
    return {**kept, **changed, "name": application, "hand_over": True}


_OF_SPEC: Final = {
    **{name: name for name in ("workers", "autoscale", "token", "retain", "recovery", "restore")},
    **{name: name for name in ("allow_republish", "on_damaged", "port_range", "hand_over", "warm_standby")},
    "checkpoint_interval": "checkpoint_interval_s",
    "start_timeout": "start_timeout_s",
    "keep_before": "keep_before_s",
}
"""Option -> the field of `RegionSpec`."""


def _fields_of_spec(part: GraphPart, options: RegionOptions) -> dict[str, Any]:
    given = {
        _OF_SPEC[name]: value for name, value in options.items() if name in _OF_SPEC and value is not None
    }
    of_graph = part_options(part)
    fields = {"workers": None, **of_graph, **given}
    if "recovery" in of_graph:
        fields["recovery"] = of_graph["recovery"]
    return fields


def spec_of_part(
    part: GraphPart, options: RegionOptions, *, job_key: bytes = b"", **fields: Any
) -> RegionSpec:
    """Return the specification of one part of an application. job_key: of the links, empty: a new one.
    fields: further fields of it. Raises ValueError for a field out of range.
    """
    return RegionSpec(
        name=part.name,
        job_key=job_key or secrets.token_bytes(_key_bytes),
        **part.graph.plan().stored(),
        **_fields_of_spec(part, options),
        graph_options=GraphOptions.of(options),
        **fields,
    )


async def _prepare(
    part: GraphPart, spec: RegionSpec, store: Store, last: Checkpoint | None
) -> Checkpoint | None:
    if last is not None:
        return await add_first_rows(store, part, spec, last)
    return await begin_at_latest(store, part, spec) if begins_latest(spec) else None


def start_part(
    part: GraphPart,
    spec: RegionSpec,
    make_launcher: Callable[[RegionSpec, RegionControl, RegionEvents], WorkerLauncher],
    undo: ExitStack,
    options: RegionOptions,
    *,
    at_end: Callable[[], None] = lambda: None,
    metrics: str = "",
    again: Again | None = None,
) -> RegionHandle:
    """Start one part of an application as a region. `undo` ends it if a later step of the caller fails.

    make_launcher: called when the coordinator listens, and before any worker is started. metrics: where to
    serve figures, empty: nowhere. Raises BrokenConnectionError if no port is free.
    """
    plan = part.graph.plan()
    monitor = RegionMonitor(part.name, metrics)
    undo.callback(monitor.close)
    spec = replace(spec, metrics=monitor.address)
    events = RegionEvents()

    def observe(event: RegionEvent) -> None:
        monitor.observe(event)
        events(event)

    check, prepare = partial(check_places, part, specs=removed_specs(spec)), partial(_prepare, part, spec)
    control = RegionControl(spec, observer=observe, check=check, prepare=prepare)
    control.listen()
    monitor.watch(control)
    undo.callback(control.stop)
    launcher = make_launcher(spec, control, events)
    undo.callback(launcher.close, 0.0)
    running = DriverRun(control, launcher, events, monitor, plan, at_end)
    handle = RegionHandle(part.name, running, on_event=options.get("on_event"), again=again)
    for listener in options.get("listeners", ()):
        handle.addListener(listener)
    control.start(launcher)
    return handle


def _rows_text(operator: Mapping[str, Any]) -> str:
    """Return the rows of one operator, as the page shows its rates: a source has none in, a sink none out."""
    counts = {"in": operator.get("rowsIn", 0), "out": operator.get("rowsOut", 0)}
    return ", ".join(f"{count:,} {way}" for way, count in counts.items() if count)


class Application:
    """Several parts that run concurrently. Every method may be called from any thread. A part that fails ends
    alone: the others continue until they have read everything that it had published.

    `parts`: handle of each part by name. A listener gets the events of all parts; each report names its part.
    """

    def __init__(
        self,
        name: str,
        parts: Mapping[str, RegionHandle],
        *,
        without_checkpoints: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.parts = dict(parts)
        self._without_checkpoints = without_checkpoints

    def __repr__(self) -> str:
        states = ", ".join(f"{name}: {status.state.value}" for name, status in self.status.items())
        return f"<Application {self.name}: {states}>"

    def _repr_html_(self) -> str:
        return "<hr>".join(part._repr_html_() for part in self.parts.values())

    @property
    def status(self) -> dict[str, RegionStatus]:
        """A snapshot of the status of each part."""
        return {name: part.status for name, part in self.parts.items()}

    def serve_page(self, listen: str = "127.0.0.1:0") -> "PageServer":
        """Serve a web page of all parts and their store, as `RegionHandle.serve_page`."""
        first = next(iter(self.parts.values()))
        return first.serve_page(listen, beside=self.parts)

    @property
    def isActive(self) -> bool:  # noqa: N802  # Spark's name
        """Whether any part has not ended."""
        return any(not status.state.is_end for status in self.status.values())

    @property
    def lastProgress(self) -> dict[str, dict[str, Any] | None]:  # noqa: N802  # Spark's name
        """The report of each part's last committed checkpoint."""
        return {name: part.lastProgress for name, part in self.parts.items()}

    @property
    def recentProgress(self) -> dict[str, list[dict[str, Any]]]:  # noqa: N802  # Spark's name
        """The reports of each part's last checkpoints, oldest first."""
        return {name: part.recentProgress for name, part in self.parts.items()}

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802  # Spark's name
        """Wait until every part has ended, at most `timeout` seconds. Return whether all have. Raises the
        error of `exception()` as soon as a part is FAILED or FENCED; the other parts continue.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            failure = self.exception()
            if failure is not None:
                raise failure
            running = self._running()
            if not running:
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            running[0].wait(_POLL_S if left is None else min(left, _POLL_S))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every part has ended, successfully or not. Return False on timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for part in self.parts.values():
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not part.wait(left):
                return False
        return True

    def exception(self) -> Exception | None:
        """Return why the first FAILED or FENCED part ended so; None if there is none."""
        return next((error for part in self.parts.values() if (error := part.exception())), None)

    def stop(self) -> None:
        """Stop every part, upstream parts first. A later `run` continues from their final checkpoints."""
        for part in self.parts.values():
            part.stop()

    def checkpoint(self, timeout: float | None = None) -> dict[str, int]:
        """Commit a checkpoint in every consistent region that has not ended; return their numbers. Raises
        RegionFailedError for a region without a new checkpoint within `timeout` seconds.
        """
        return {
            name: part.checkpoint(timeout)
            for name, part in self.parts.items()
            if name not in self._without_checkpoints and not part.status.state.is_end
        }

    def addListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Send the events of every part to this listener from now on."""
        for part in self.parts.values():
            part.addListener(listener)

    def removeListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Send no more events to this listener."""
        for part in self.parts.values():
            part.removeListener(listener)

    def _running(self) -> list[RegionHandle]:
        return [part for part in self.parts.values() if not part.status.state.is_end]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)


_NUMBERS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "workers": ((int,), "a whole number"),
    "retain": ((int,), "a whole number of checkpoints"),
    "checkpoint_interval": ((int, float), "a number of seconds"),
    "start_timeout": ((int, float), "a number of seconds"),
    "keep_before": ((int, float), "a number of seconds"),
}


def check_option_values(options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that does not exist, or is no number although it must be one."""
    if unknown := options.keys() - RegionOptions.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}: see RegionOptions")
    for name, (kinds, what) in _NUMBERS.items():
        value = options.get(name)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise TypeError(f"{name} must be {what}, got {value!r:.60}")
    for name, sink in GraphOptions.of(options).removed.items():
        if not (sink is None or isinstance(sink, SinkSpec)):
            raise TypeError(f"removed has {name!r}: {sink!r:.60}, which is no sink; a source has None")


def check_options(parts: Sequence[GraphPart], options: RegionOptions) -> None:
    """Raise as `check_option_values`; ValueError if a part cannot be scaled, has too many workers, or is
    driven by a query and has an option that excludes it; GraphError if one needs a query. Nothing is started
    then.
    """
    check_option_values(options)
    for part in parts:
        plan = part.graph.plan()
        plan.check_has_query()
        if plan.fed_by_batches:
            _check_options_of_driven(part.name, options)
    autoscale, workers = options.get("autoscale"), options.get("workers")
    if autoscale is None:
        return
    for part in parts:
        keeps = part.graph.plan().stored()["keeps_workers"]
        try:
            autoscale.check(workers, keeps, without_checkpoints=part.settings is None)
        except ValueError as error:
            raise ValueError(f"{part.name}: {error}") from None


def _check_options_of_driven(name: str, options: RegionOptions) -> None:
    if options.get("bootstrap"):
        raise ValueError(
            f"{name}: bootstrap adds rows to the last checkpoint, and the query of this region commits"
            " others; leave it out"
        )
    if options.get("recovery") == "local":
        raise ValueError(f"{name}: {LOCAL_RECOVERY_OF_BATCHES}")
    if options.get("hand_over"):
        raise ValueError(
            f"{name}: hand_over=True takes a region from a running driver, and the query that drives this one"
            " runs there; stop the query, and start it again here with the same checkpointLocation"
        )


def start_application(
    name: str,
    parts: Sequence[GraphPart],
    make_launcher: Callable[[GraphPart, RegionSpec, RegionControl, RegionEvents], WorkerLauncher],
    options: RegionOptions,
    *,
    at_end: Callable[[], None] = lambda: None,
    metrics: str = "",
    again: Again | None = None,
    **fields: Any,
) -> RegionHandle | Application:
    """Start each part of an application as a region; if one cannot be started, end those that were. Returns
    the handle of the region, or an `Application` for several parts. `fields`: those of `spec_of_part`. Raises
    what that and `start_part` raise; ValueError for `restore` of several parts, which have no checkpoint in
    common.
    """
    if options.get("restore") and len(parts) > 1:
        names = ", ".join(part.name for part in parts)
        raise ValueError(
            f"{name!r} has {len(parts)} regions, and each has its own checkpoints: stop it, and restore"
            f" them with `dos region restore --stopped` ({names})"
        )
    specs = {part.name: spec_of_part(part, options, application=name, **fields) for part in parts}
    check_names([*specs.values()])
    with ExitStack() as undo:
        handles = {
            part.name: start_part(
                part,
                replace(specs[part.name], beside=tuple(one for of, one in specs.items() if of != part.name)),
                partial(make_launcher, part),
                undo,
                options,
                at_end=at_end,
                metrics=metrics,
                again=again if len(parts) == 1 else None,
            )
            for part in parts
        }
        undo.pop_all()
    if len(parts) == 1:
        return handles[parts[0].name]
    outside = frozenset(part.name for part in parts if part.settings is None)
    return Application(name, handles, without_checkpoints=outside)
