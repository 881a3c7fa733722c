"""Workers forked from one warm process that has imported everything: a tenth of a second each instead of two.

They are processes like any other: they have an id, and die of SIGKILL. One test runs them by
`ProcessLauncher` as it is.
"""

import multiprocessing
import os
import sys
import traceback
from typing import Any

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
        assert log is not None
        process = FORKS.Process(
            target=work, args=(self._spec_of(worker, attempt), str(log), dict(os.environ)), daemon=True
        )
        process.start()
        with self._lock:
            self._processes[worker, attempt] = process  # type: ignore[assignment]  # used of it: kill()
            if (worker, attempt) in self._cancelled:
                process.kill()
        process.join()
        with self._lock:
            del self._processes[worker, attempt]
        return f"exit code {process.exitcode}: {log.read_text()[-2000:]}" if process.exitcode else None


def work(spec: WorkerSpec, log: str, environment: dict[str, str]) -> None:
    """The process. Forks have the environment of the warm process, which may be older than the test's."""
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        run_worker(spec, begin_companion(spec))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
