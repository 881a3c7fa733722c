"""Run a worker that is taken over in the process of another one, until it has a process of its own again.

It shares nothing with that worker but the modules and what user code keeps in them.
"""

import copy
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataflow import limits
from dataflow.worker.spec import WorkerSpec

logger = logging.getLogger("dos.dataflow")


class Hosting:
    """The workers that the process of another worker runs. `run`: runs one to its end, as `run_worker`."""

    def __init__(self, spec: WorkerSpec, run: Callable[[WorkerSpec], Any]) -> None:
        self._spec = spec
        self._run = run
        self._threads: list[threading.Thread] = []

    def host(self, worker: int, attempt: int) -> None:
        """Start an attempt of another worker. Never blocks.

        Raises what `copy.deepcopy` raises for a graph that cannot be copied.
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
