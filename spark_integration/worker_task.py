"""The worker inside its Spark task. Imported on the executor after `on_executor` has found no problem."""

import dataclasses
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

from dataflow.worker.process import WorkerSpec, run_worker
from dataflow.worker.spec import ADVERTISE_HOST
from spark_integration.limits import REJECTED_TASK_S


def run(graph: bytes, fields: dict[str, Any]) -> str:
    """Run the worker to its end and return its summary as JSON. Raises what `run_worker` raises.

    `graph` is a result of `shipping.ship`. It arrives in Spark's own task closure, and is trusted like that.
    `fields` are those of `WorkerSpec`, with `scratch` in place of `scratch_dir`: a directory for all workers
    of a machine, or None.
    """
    spec_fields = dict(fields)
    scratch = spec_fields.pop("scratch")
    scratch_dir = (
        "" if scratch is None else str(Path(scratch, spec_fields["region"], f"w{spec_fields['worker']:04d}"))
    )
    spec_fields.setdefault("advertise_host", os.environ.get(ADVERTISE_HOST, ""))
    spec = WorkerSpec(graph=pickle.loads(graph), scratch_dir=scratch_dir, **spec_fields)  # noqa: S301  # see above
    summary = run_worker(spec)
    if not summary.incarnations:
        # It was rejected when it joined, perhaps because of this host. While this slot is occupied, Spark
        # places the next attempt in another one; then the launcher cancels this task (`core/attempts.py`).
        time.sleep(REJECTED_TASK_S)
    return json.dumps(dataclasses.asdict(summary))
