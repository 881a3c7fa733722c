"""A driver that traces: it runs a region of processes, loses a worker, and stops after checkpoints.

Arguments: the URL of the store, a directory.
"""

import os
import signal
import sys
from pathlib import Path

from dataflow.handle import RegionHandle
from dataflow.limits import WorkerLimits
from dataflow.local import run_local
from tests.dataflow.support import word_count
from tests.support.polling import until

WAIT_S = 90.0


def main(store: str, folder: Path) -> None:
    (folder / "in.txt").write_text("".join(f"word{number} and\n" for number in range(100)))
    region = run_local(
        word_count([folder / "in.txt"], folder / "out", repeat=10_000_000),
        name="traced",
        workers=2,
        store=store,
        logs=folder / "logs",
        checkpoint_interval=0.2,
        worker_limits=WorkerLimits(step_bytes_max=4096, batch_bytes_max=2048),
    )
    assert isinstance(region, RegionHandle)
    until(lambda: region.status.checkpoints_committed > 2, "checkpoints", WAIT_S)
    os.kill(region.status.workers[1].pid, signal.SIGKILL)
    until(lambda: len(region.status.resets) > 0, "a reset", WAIT_S)
    region.stop()
    region.wait(WAIT_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
