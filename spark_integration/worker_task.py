"""The worker inside its Spark task. Imported on the executor after `on_executor` has found no problem."""

import dataclasses
import json
import os
import pickle
import time
from functools import partial
from pathlib import Path
from typing import Any

import trio
from pyspark import TaskContext

from checkpoint.limits import orphan_timeout_s
from checkpoint.link import wait_for_assignment
from dataflow.worker.companion import begin_companion
from dataflow.worker.process import run_worker
from dataflow.worker.spec import ADVERTISE_HOST, WorkerSpec
from spark_integration.limits import REJECTED_TASK_S


def run(graph: bytes, fields: dict[str, Any]) -> str:
    """Run the worker to its end and return its summary as JSON. Raises what `run_worker` raises.

    `graph` is a result of `shipping.ship`, as is the field `removed`. Both arrive in Spark's own task
    closure, and are trusted like that.
    `fields` are those of `WorkerSpec`, with `scratch` in place of `scratch_dir`: a directory for all workers
    of a machine, or None. With `standby` in place of `worker` and `attempt`, it is the number of a stand-by:
    it first waits until it is to become a worker, and returns an empty summary if it is not needed.
    """
    spec_fields = {"graph": pickle.loads(graph), **fields}  # noqa: S301  # see above
    if "removed" in fields:
        spec_fields["removed"] = pickle.loads(fields["removed"])  # noqa: S301
    if "standby" in fields:
        assigned = _stand_by(spec_fields.pop("standby"), fields)
        if assigned is None:
            return "{}"
        spec_fields |= assigned
    scratch = spec_fields.pop("scratch")
    scratch_dir = (
        "" if scratch is None else str(Path(scratch, spec_fields["region"], f"w{spec_fields['worker']:04d}"))
    )
    spec_fields.setdefault("advertise_host", os.environ.get(ADVERTISE_HOST, ""))
    spec = WorkerSpec(scratch_dir=scratch_dir, **spec_fields)
    running = begin_companion(spec)
    try:
        summary = run_worker(spec, running)
    finally:
        running.close()  # Spark runs other tasks in this process
    if not summary.incarnations:
        # It was rejected when it joined, perhaps because of this host. While this slot is occupied, Spark
        # places the next attempt in another one; then the launcher cancels this task (`core/jobs.py`).
        time.sleep(REJECTED_TASK_S)
    return json.dumps(dataclasses.asdict(summary))


def _stand_by(number: int, fields: dict[str, Any]) -> dict[str, int] | None:
    """Wait until this stand-by is to become a worker. Return the fields `worker` and `attempt`, if it is."""
    task = TaskContext.get()
    if task is not None and task.attemptNumber():
        return None  # Spark repeats a task that was lost; the launcher has replaced it
    assigned = trio.run(
        partial(
            wait_for_assignment,
            fields["coordinator"],
            job=fields["region"],
            key=fields["job_key"],
            number=number,
            orphan_timeout_s=orphan_timeout_s,
        )
    )
    return None if assigned is None else {"worker": assigned.worker, "attempt": assigned.attempt}
