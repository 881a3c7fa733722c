"""The worker inside its Spark task. Imported on the executor when `on_executor` has found nothing wrong."""

import dataclasses
import json
import os
import pickle
from pathlib import Path
from typing import Any

from dataflow.worker.process import WorkerSpec, run_worker
from dataflow.worker.spec import ADVERTISE_HOST


def run(graph: bytes, fields: dict[str, Any]) -> str:
    """Run the worker to its end; returns its summary as JSON. Raises what `run_worker` raises.

    `graph` is what `shipping.ship` made on the driver; it came in Spark's own task closure, which is trusted
    as that is. `fields` are those of `WorkerSpec`, with `scratch` in place of `scratch_dir`: a directory for
    all workers of a machine, or None.
    """
    given = dict(fields)
    scratch = given.pop("scratch")
    scratch_dir = "" if scratch is None else str(Path(scratch, given["region"], f"w{given['worker']:04d}"))
    given.setdefault("advertise_host", os.environ.get(ADVERTISE_HOST, ""))
    spec = WorkerSpec(graph=pickle.loads(graph), scratch_dir=scratch_dir, **given)  # noqa: S301  # see above
    return json.dumps(dataclasses.asdict(run_worker(spec)))
