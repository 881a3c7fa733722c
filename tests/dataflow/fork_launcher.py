"""Workers forked from one warm process that has imported everything: a tenth of a second each instead of two.

They are processes like any other: they have an id, and die of SIGKILL. One test runs them by
`ProcessLauncher` as it is.
"""

import multiprocessing
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import cloudpickle

from dataflow.local import ProcessLauncher
from dataflow.worker.companion import begin_companion
from dataflow.worker.process import run_worker
from dataflow.worker.spec import WorkerSpec

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.dataflow.fork_launcher", "pandas"])


class ForkLauncher(ProcessLauncher):
    """ProcessLauncher with another way to make a process."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "standby": 0})  # forks need none

    def _run(self, worker: int, attempt: int) -> str | None:
        log = self._log_path(worker, attempt)
        process = FORKS.Process(
            target=work,
            args=(cloudpickle.dumps(self._spec_of(worker, attempt)), log, dict(os.environ)),
            daemon=True,
        )
        process.start()
        with self._lock:
            self._processes[worker, attempt] = process  # type: ignore[assignment]  # used of it: kill()
            if (worker, attempt) in self._cancelled:
                process.kill()
        process.join()
        with self._lock:
            del self._processes[worker, attempt]
        if not process.exitcode:
            return None
        return f"exit code {process.exitcode}: {'' if log is None else log.read_text()[-2000:]}"


def work(pickled: bytes, log: Path | None, environment: dict[str, str]) -> None:
    """The process. Forks have the environment of the warm process, which may be older than the test's."""
    os.environ.clear()  # what the warm process has and the test does not: TLS of an earlier test
    os.environ.update(environment)
    spec: WorkerSpec = pickle.loads(pickled)
    if log is not None:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    try:
        run_worker(spec, begin_companion(spec))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
