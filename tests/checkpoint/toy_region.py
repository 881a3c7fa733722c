"""Toy workers as processes under a RegionControl, and the same as a driver process of its own. `python -m
tests.checkpoint.toy_region JSON` runs a region to its end and prints one JSON line for each event.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import CheckpointCommitted, RegionSpec, ResetReport, StateChanged
from tests.checkpoint.toy_worker import ToySpec, run_toy

KEY = "ab" * 32
FORKS = multiprocessing.get_context("forkserver")
"""Workers are forked from one small process that has imported everything: a tenth of a second instead of
two.
"""
FORKS.set_forkserver_preload(["tests.checkpoint.toy_worker"])
ENDLESS = 5_000_000
"""Numbers for a region that does not finish on its own."""


class ToyRegion:
    """A region of toy workers. `control` is its RegionControl; workers are killed by `pid_of`."""

    def __init__(
        self,
        store,
        folder: Path,
        *,
        name="toy",
        workers=2,
        numbers=20_000,
        pace_s=0.005,
        observer=None,
        fail_at=0,
        key=KEY,
        **fields,
    ):
        self.folder, self.store, self.key = folder, store, key
        self.numbers, self.pace_s, self.fail_at = numbers, pace_s, fail_at
        self.events = []
        self.changed = threading.Condition()
        self.processes: dict[int, BaseProcess] = {}
        self._observer = observer
        spec = RegionSpec(
            name=name,
            workers=workers,
            store_url=store,
            job_key=bytes.fromhex(key),
            operators={"counts": "toy"},
            checkpoint_interval_s=fields.pop("checkpoint_interval_s", 0.3),
            **fields,
        )
        self.control = RegionControl(spec, observer=self._note)
        self.out = folder / "out"
        self.out.mkdir(exist_ok=True, parents=True)
        self._lock = threading.Lock()

    def __enter__(self):
        self.address = self.control.listen()
        self.control.start(self)
        return self

    def __exit__(self, *_):
        self.control.stop()
        with self._lock:
            for process in self.processes.values():
                process.kill()
                process.join()
        self.control.wait(20)

    # --- the launcher -----------------------------------------------------------------------------------

    standbys = 0

    def start(self, worker, attempt, *, beside=False):
        spec = ToySpec(
            region=self.control.spec.name,
            worker=worker,
            workers=self.control.spec.workers,
            attempt=attempt,
            coordinator=self.address,
            key=self.key,
            store=self.store,
            numbers=self.numbers,
            pace_s=self.pace_s,
            fail_at=self.fail_at,
            out=str(self.out),
            scratch=str(self.folder / f"scratch-{worker}"),
        )
        log = str(self.folder / f"worker-{worker}.log")
        process = FORKS.Process(target=run_toy, args=(spec, log), daemon=True)
        process.start()
        with self._lock:
            self.processes[worker] = process
        threading.Thread(target=self._watch, args=(worker, attempt, process), daemon=True).start()

    def cancel(self, worker, attempt):
        process = self.processes.get(worker)
        if process is not None:
            process.kill()

    def _watch(self, worker, attempt, process):
        process.join()
        code = process.exitcode
        self.control.worker_ended(worker, attempt, f"exit code {code}" if code else None)

    # --- for tests --------------------------------------------------------------------------------------

    def _note(self, event):
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()
        if self._observer is not None:
            self._observer(event)

    def wait_for(self, predicate, within=40.0):
        """Wait until the events satisfy the predicate."""
        with self.changed:
            done = self.changed.wait_for(lambda: predicate(self.events), within)
        assert done, (self.control.status(), self.events[-5:], self.logs())

    def wait_checkpoints(self, count, within=40.0):
        """Wait for so many checkpoints more."""
        before = self.checkpoints
        self.wait_for(lambda _: self.checkpoints >= before + count, within)

    @property
    def checkpoints(self):
        return sum(isinstance(event, CheckpointCommitted) for event in self.events)

    @property
    def resets(self):
        return [event for event in self.events if isinstance(event, ResetReport)]

    def kill(self, worker, number=signal.SIGKILL):
        os.kill(self.processes[worker].pid, number)

    def logs(self):
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("worker-*.log")))


class DriverSpec(msgspec.Struct):
    """The arguments of a driver process, as JSON."""

    store: str
    folder: str
    workers: int
    numbers: int
    pace_s: float


def describe(event):
    if isinstance(event, CheckpointCommitted):
        return {"checkpoint": event.checkpoint, "step": event.step, "final": event.final}
    if isinstance(event, StateChanged):
        return {"state": event.state.value, "reason": event.reason}
    return {"event": type(event).__name__, "text": str(event)}


def main(spec: DriverSpec) -> None:
    def show(event):
        print(json.dumps(describe(event)), flush=True)

    region = ToyRegion(
        spec.store,
        Path(spec.folder),
        workers=spec.workers,
        numbers=spec.numbers,
        pace_s=spec.pace_s,
        observer=show,
        key=os.urandom(32).hex(),
    )
    with region:
        region.control.wait()
        print(json.dumps({"end": region.control.status().state.value}), flush=True)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=DriverSpec))
