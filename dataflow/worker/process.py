"""A worker: one process that runs one copy of the circuit.

    thread         class                          runs
    main thread    `circuit_loop.CircuitLoop`     operators and user code, nothing else
    link thread    `link_thread.LinkThread`       trio: control link, heartbeats, exchange, store

A worker that is taken over may run in the process of another one for a while, with two threads of its own
(`hosting.py`).

The two threads exchange messages (`worker/messages.py`). So a slow user function delays no heartbeat, and a
reset waits for that function on this worker only, not on its peers.
"""

import logging

import pyarrow as pa

from dataflow.worker.circuit_loop import CircuitLoop
from dataflow.worker.hosting import Hosting
from dataflow.worker.identity import Identity
from dataflow.worker.messages import Inbox, Shared
from dataflow.worker.monitoring import Served
from dataflow.worker.own_thread import LinkThread
from dataflow.worker.pulse import CircuitPulse, RunningOperator
from dataflow.worker.spec import WorkerSpec, WorkerSummary
from dos_monitoring import LogChoice, begin_logs, log_fields, parse_log_choice

logger = logging.getLogger("dos.dataflow")


def run_worker(spec: WorkerSpec, running: RunningOperator | None = None) -> WorkerSummary:
    """Join the region and run until its coordinator sends STOP. Blocks; call it on the process's main thread.

    running: where the operator that runs is noted. Returns a summary after an orderly end. Raises GraphError
    before it connects to anything, OrphanedError if the coordinator is unreachable for `orphan_timeout_s`,
    and any other error that ended the worker; then the launcher starts another attempt. No local data needs
    to survive: the next attempt restores from the store.
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


__all__ = ["WorkerSpec", "WorkerSummary", "run_worker"]
