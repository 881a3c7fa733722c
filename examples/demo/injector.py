"""Injects the faults that the seed determines, at their moments, and checks that each took effect."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from checkpoint.core.region import RegionState, RegionStatus
from examples.demo.cluster import Cluster, Server
from examples.demo.faults import Fault

CHECKPOINTS_BETWEEN = 2
"""Checkpoints to commit before the first fault and between two; otherwise one moment would be tried twice."""
REPLACED_S = 120.0


class Injector:
    """Injects the faults of a run, each once. Ends only processes that this demo started."""

    def __init__(self, faults: list[Fault], cluster: Cluster, report: Callable[[str], None]) -> None:
        self.waiting = list(faults)
        self.injected: list[Fault] = []
        self._cluster = cluster
        self._report = report
        self._checkpoints = 0
        self._replacing: threading.Thread | None = None
        self.failure: BaseException | None = None
        self.filling = ""
        self.replaced_s = 0.0

    def inspect(self, status: RegionStatus, progress: float) -> None:
        """Inject the next fault if its moment has come and the region runs."""
        if not self.waiting or status.state is not RegionState.RUNNING:
            return
        fault = self.waiting[0]
        if progress < fault.moment or status.checkpoints_committed < self._checkpoints + CHECKPOINTS_BETWEEN:
            return
        if fault.kind == "worker":
            if not self._lose_worker(fault.victim, status):
                return
        else:
            self._lose_server(self._cluster.members[fault.victim])
        self._checkpoints = status.checkpoints_committed
        self.injected.append(self.waiting.pop(0))

    def finish(self) -> None:
        """Wait for a replacement in progress. Raises its error."""
        if self._replacing is not None:
            self._replacing.join(REPLACED_S)
            if self._replacing.is_alive():
                raise RuntimeError(f"the new server was not filled within {REPLACED_S:.0f} s")
        if self.failure is not None:
            raise self.failure

    def _lose_worker(self, index: int, status: RegionStatus) -> bool:
        worker = status.workers[index]
        if not worker.pid or not is_spark_worker(worker.pid):
            return False
        os.kill(worker.pid, signal.SIGKILL)
        wiped = 0
        if worker.scratch:
            wiped = sum(path.stat().st_size for path in Path(worker.scratch).rglob("*") if path.is_file())
            shutil.rmtree(worker.scratch, ignore_errors=True)
        self._report(
            f"killed worker {index} (pid {worker.pid}) in step {worker.step},"
            f" wiped {wiped / 1e6:.1f} MB of its scratch"
        )
        return True

    def _lose_server(self, server: Server) -> None:
        size = sum(path.stat().st_size for path in server.data.rglob("*") if path.is_file())
        server.lose()
        self._report(
            f"killed server {server.number} at {server.address} (pid {server.process.pid}),"
            f" deleted its {size / 1e6:.1f} MB"
        )
        self._replacing = threading.Thread(target=self._replace, args=(server,), daemon=True)
        self._replacing.start()

    def _replace(self, lost: Server) -> None:
        started = time.monotonic()
        try:
            new = self._cluster.replace(lost, self._on_line)
        except BaseException as error:  # raised by `finish`, in the demo's own thread
            self.failure = error
            return
        self.filling = ""
        self.replaced_s = time.monotonic() - started
        self._report(
            f"server {new.number} at {new.address} is filled and counts, after {self.replaced_s:.1f} s"
        )

    def _on_line(self, line: str) -> None:
        self.filling = line
        self._report(f"dos store replace: {line}")


def is_spark_worker(pid: int) -> bool:
    """Whether that process is a Python worker of Spark, so that no other process is killed."""
    try:
        return b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
