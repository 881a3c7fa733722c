"""A worker: one process that runs one copy of the circuit.

    thread         class                          runs
    main thread    `circuit_thread.CircuitLoop`   operators and user code, nothing else
    link thread    `link_thread.LinkThread`       trio: control link, heartbeats, exchange, store

A worker that is taken over may run in the process of another one for a while, with two threads of its own
(`Hosting`). A port for figures that cannot be used is no reason to lose a worker: it runs without one.
"""

import copy
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from checkpoint import BUSY, Counters
from dataflow import limits
from dataflow.worker.circuit_thread import CircuitLoop, Inbox
from dataflow.worker.companion import CircuitPulse, RunningOperator
from dataflow.worker.link_thread import LinkThread
from dataflow.worker.messages import Shared
from dataflow.worker.spec import Identity, WorkerSpec, WorkerSummary
from dos_client import metrics
from dos_monitoring import (
    HealthServer,
    LogChoice,
    SilentLoopError,
    begin_logs,
    log_fields,
    parse_log_choice,
    parse_metrics_listen,
    serve_health,
)
from dos_tls import TlsSettingsError


class Hosting:
    """The workers that the process of another worker runs. `run`: runs one to its end, as `run_worker`."""

    def __init__(self, spec: WorkerSpec, run: Callable[[WorkerSpec], Any]) -> None:
        self._spec = spec
        self._run = run
        self._threads: list[threading.Thread] = []

    def host(self, worker: int, attempt: int) -> None:
        """Start an attempt of another worker. Never blocks. Raises as `copy.deepcopy` of a graph that has no
        copies.
        """
        spec = self._spec
        scratch = str(Path(spec.scratch_dir).with_name(f"w{worker:04d}")) if spec.scratch_dir else ""
        hosted = replace(
            spec, worker=worker, attempt=attempt, graph=copy.deepcopy(spec.graph), scratch_dir=scratch
        )
        name = f"dos-hosted-w{worker}-{attempt}"
        thread = threading.Thread(target=self._run_one, args=(hosted,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Wait until they have ended: the coordinator has ended them like this process's own worker."""
        for thread in self._threads:
            thread.join(limits.hosted_end_s)

    def _run_one(self, spec: WorkerSpec) -> None:
        try:
            self._run(spec)
        except Exception:  # its control link ends with it, so the coordinator knows
            logger.exception(
                "worker %d, attempt %d, ended in the process of another", spec.worker, spec.attempt
            )


# --- figures and health -------------------------------------------------------------------------------------

_LABELS: Final = ("region", "worker")


class WorkerHealth:
    """The health of one worker. Its methods are called in threads of the HTTP port."""

    def __init__(self, shared: Shared, pulse: CircuitPulse, silent_s: float) -> None:
        """silent_s: how long one batch may take."""
        self._silent_s = silent_s
        self.sample: Callable[[], Counters] | None = None
        """Asks the link thread for the counters (`LinkThread.sample`)."""
        self._shared = shared
        self._pulse = pulse

    @property
    def running(self) -> bool:
        return self._pulse.running

    def busy_for_s(self) -> float:
        """Return how long the circuit thread has worked on its current batch, 0 while it waits."""
        return self._pulse.busy_for_s()

    def hangs(self) -> str:
        """Return why the worker does not move; "" if it does."""
        busy_s = self.busy_for_s()
        if busy_s > self._silent_s:
            return f"its circuit thread has worked on one batch for {busy_s:.0f} s: does a function hang?"
        return _counters(self.sample)[1]

    def not_ready(self) -> str:
        """Return why the worker processes no rows; "" if it does."""
        counters, silence = _counters(self.sample)
        if counters is None:
            return silence or "it has not joined its region yet"
        if counters.waiting_for_store:
            return f"WAITING_FOR_STORE: {counters.waiting_reason or 'no quorum'}"
        if not self._pulse.running:
            number = self._shared.incarnation
            return f"incarnation {number} is being restored" if number else "it waits for the other workers"
        return ""


def _counters(sample: Callable[[], Counters] | None) -> tuple[Counters | None, str]:
    if sample is None:
        return None, ""
    try:
        return sample(), ""
    except SilentLoopError as silence:
        return None, str(silence)


class WorkerFigures(Collector):
    """The figures of one worker. They are read where they are kept anyway: nobody counts for them."""

    def __init__(self, region: str, worker: int, health: WorkerHealth, shared: Shared) -> None:
        self._of = (region, str(worker))
        self._health = health
        self._shared = shared

    def collect(self) -> Iterable[Metric]:
        shared, of = self._shared, self._of
        for name, text, value in (
            ("rows_in", "Rows read by sources since the process began", shared.rows_in),
            ("rows_out", "Rows written by sinks", shared.rows_out),
            ("read_bytes", "Bytes read by sources", shared.bytes_in),
            ("busy_seconds", "Time in which the circuit worked rather than waited", shared.busy_s),
            ("checkpoints", "Checkpoints that this worker took part in", shared.checkpoints),
        ):
            yield _filled(CounterMetricFamily(f"dos_worker_{name}", text, labels=_LABELS), of, value)
        yield from _operators(of, shared.operators)
        for name, text, gauge in (
            (
                "batch_seconds",
                "How long the circuit has worked on its batch; 0 while it waits",
                self._health.busy_for_s(),
            ),
            ("incarnation", "The incarnation that runs or is being restored", shared.incarnation),
            ("step", "The last step that ended, numbered since the region began", shared.step),
            ("running", "1 while the incarnation runs", int(self._health.running)),
            ("store_has_room", "0 while sources wait because the store is slower", int(shared.room)),
            ("exhausted", "1 after all sources have reached their end", int(shared.exhausted)),
        ):
            yield _filled(GaugeMetricFamily(f"dos_worker_{name}", text, labels=_LABELS), of, gauge)
        if shared.backlog_bytes >= 0:
            text = "Input that sources know and have not read, in bytes; absent if one does not know it"
            family = GaugeMetricFamily("dos_worker_backlog_bytes", text, labels=_LABELS)
            yield _filled(family, of, shared.backlog_bytes)
        counters, _ = _counters(self._health.sample)
        if counters is not None:
            text = "Bytes appended to the journals of this worker and not durable"
            family = GaugeMetricFamily("dos_worker_lag_bytes", text, labels=_LABELS)
            yield _filled(family, of, counters.lag_bytes)


def _filled(family: Any, of: tuple[str, str], value: float) -> Metric:
    family.add_metric(of, value)
    assert isinstance(family, Metric)
    return family


def _operators(of: tuple[str, str], operators: Mapping[str, Mapping[str, int]]) -> Iterable[Metric]:
    labels = (*_LABELS, "operator")
    rows = {
        name: CounterMetricFamily(f"dos_worker_operator_{name}", text, labels=labels)
        for name, text in (
            ("rows_in", "Rows that an operator got since the incarnation began"),
            ("rows_out", "Rows that it passed on"),
        )
    }
    text = "Time of an operator's code on the circuit thread, without the operators that it passes rows to"
    busy = CounterMetricFamily("dos_worker_operator_busy_seconds", text, labels=labels)
    text = "What else an operator has counted since the incarnation began, such as keys"
    others = GaugeMetricFamily("dos_worker_operator", text, labels=(*_LABELS, "operator", "counter"))
    for operator, counters in list(operators.items()):
        for counter, value in counters.items():
            if counter in rows:
                rows[counter].add_metric((*of, operator), value)
            elif counter == BUSY:
                busy.add_metric((*of, operator), value / 1e6)
            else:
                others.add_metric((*of, operator, counter), value)
    yield from (*rows.values(), busy, others)


class Served:
    """The HTTP port of one worker, if its region is to have one."""

    def __init__(self, spec: WorkerSpec, shared: Shared, pulse: CircuitPulse) -> None:
        self.health = WorkerHealth(shared, pulse, spec.limits.circuit_silent_s)
        self._spec = spec
        self._listen = parse_metrics_listen(spec.metrics)
        self._server: HealthServer | None = None
        self._shares: metrics.SharedFigures | None = None
        self._figures = WorkerFigures(spec.region, spec.worker, self.health, shared)

    def begin(self) -> None:
        """Open the port. Logs a warning if it cannot be used."""
        if self._listen is None:
            return
        registry, shares = CollectorRegistry(), metrics.SharedFigures()
        registry.register(self._figures)
        registry.register(shares)
        try:
            self._server = serve_health(
                self._listen, registry, hangs=self.health.hangs, not_ready=self.health.not_ready
            )
        except (OSError, TlsSettingsError) as error:
            shares.close()
            logger.warning(
                "worker %d serves no figures at %s: %s", self._spec.worker, self._spec.metrics, error
            )
        else:
            self._shares = shares

    def address(self, own_host: str) -> str:
        """Return where others reach the port; "" without one. own_host: where they reach this process."""
        if self._server is None or self._listen is None:
            return ""
        return self._listen.reached_at(self._server.port, own_host)

    def close(self) -> None:
        if self._server is not None and self._shares is not None:
            self._server.close()
            self._shares.close()


# --- the process --------------------------------------------------------------------------------------------

logger = logging.getLogger("dos.dataflow")


def run_worker(spec: WorkerSpec, running: RunningOperator | None = None) -> WorkerSummary:
    """Join the region and run until its coordinator sends STOP. Blocks; call it on the process's main thread.

    running: where the operator that runs is noted. Returns a summary after an orderly end. Raises GraphError
    before it connects, OrphanedError if the coordinator is unreachable for `orphan_timeout_s`, and any other
    error that ended the worker; the launcher starts another attempt, which needs no local data.
    """
    hosting = Hosting(spec, run_worker)
    plan = spec.graph.plan()
    inbox, shared, pulse = Inbox(), Shared(running=running or RunningOperator()), CircuitPulse()
    served = Served(spec, shared, pulse)
    links = LinkThread(spec, inbox=inbox, shared=shared, host=hosting.host, metrics=served.address)
    loop = CircuitLoop(
        plan,
        Identity(spec.region, spec.worker, spec.scratch_dir),
        worker_limits=spec.limits,
        inbox=inbox,
        shared=shared,
        post=links.post,
        pulse=pulse,
    )
    if spec.log:
        begin_logs(parse_log_choice(spec.log) or LogChoice())
    threads_before = pa.cpu_count()
    pa.set_cpu_count(1)  # one worker uses one core; restored below, because Spark reuses the process
    served.begin()
    links.start()
    served.health.sample = links.sample
    try:
        with log_fields(links.log_fields):
            ended = loop.run()
    finally:
        shared.over.set()
        pa.set_cpu_count(threads_before)
        served.close()
    links.join()
    hosting.join()
    if ended.error is not None:
        raise ended.error
    return WorkerSummary(
        worker=spec.worker,
        attempt=spec.attempt,
        reason=ended.reason,
        incarnations=loop.incarnations,
        steps=shared.step,
        rows_in=shared.rows_in,
        rows_out=shared.rows_out,
        bytes_in=shared.bytes_in,
        checkpoints=shared.checkpoints,
    )
