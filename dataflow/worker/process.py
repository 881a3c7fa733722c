"""A worker: one process that runs one copy of the circuit. `run_worker` is the whole of it, for Spark and
others.

    main thread    `worker_circuit.CircuitLoop`: operators and user code, nothing else
    second thread  `worker_thread.LinkThread`: trio; control, heartbeats, exchange, store; never user code

The two speak by messages (`worker/messages.py`). Heartbeats go on while a user function takes its time; a
reset waits for it only here, not at the peers.
"""

import logging

import pyarrow as pa

from dataflow.worker.circuit_loop import CircuitLoop
from dataflow.worker.identity import Identity
from dataflow.worker.link_thread import LinkThread
from dataflow.worker.messages import Inbox, Shared
from dataflow.worker.spec import WorkerSpec, WorkerSummary

logger = logging.getLogger("dos.dataflow")


def run_worker(spec: WorkerSpec) -> WorkerSummary:
    """Join the region and work until its coordinator says STOP. Blocks; call it on the process's main thread.

    Returns how it ended in an orderly way. Raises GraphError (before anything is dialled), OrphanedError
    when the coordinator is gone for `orphan_timeout_s`, and whatever else ended it: then the launcher starts
    another attempt. Nothing of what it held need survive: the next attempt restores from the store.
    """
    plan = spec.graph.plan()
    inbox, shared = Inbox(), Shared()
    links = LinkThread(spec, inbox=inbox, shared=shared)
    loop = CircuitLoop(
        plan,
        Identity(spec.region, spec.worker, spec.workers, spec.scratch_dir),
        worker_limits=spec.limits,
        inbox=inbox,
        shared=shared,
        post=links.post,
    )
    threads_before = pa.cpu_count()
    pa.set_cpu_count(1)  # one worker is one core; the process may be used again for something else
    links.start()
    try:
        ended = loop.run()
    finally:
        shared.over.set()
        pa.set_cpu_count(threads_before)
    links.join()
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
        cuts=shared.cuts,
    )


__all__ = ["WorkerSpec", "WorkerSummary", "run_worker"]
