"""Run a region on this machine without Spark: workers as subprocesses, for tests and small jobs.

    control = run_local(graph, name="wordcount", workers=2, store="dos://127.0.0.1:9999")
    control.wait()

A worker's specification is pickled to its standard input, like the closure of a Spark task: the user's
functions must reach the process. Nothing else is pickled.
"""

import importlib
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from checkpoint import RegionSpec
from checkpoint.coordinator.control import Observer, RegionControl, RegionListener
from dataflow.application import Application
from dataflow.graph.builder import Graph
from dataflow.graph.parts import GraphPart, check_sinks, part_options, parts_of
from dataflow.limits import WorkerLimits
from dataflow.worker.process import WorkerSpec, run_worker
from dataflow.worker.standby import Standby

logger = logging.getLogger("dos.dataflow")

_error_chars_max: Final = 2_000
_key_bytes: Final = 32


def run_local(
    graph: Graph,
    *,
    name: str,
    store: str,
    workers: int = 2,
    token: bytes = b"",
    scratch: "str | os.PathLike[str] | None" = None,
    logs: "str | os.PathLike[str] | None" = None,
    worker_limits: WorkerLimits | None = None,
    standby: int = 1,
    observer: Observer | None = None,
    listeners: Sequence[RegionListener] = (),
    **options: Any,
) -> RegionControl | Application:
    """Run the graph as region `name` on subprocesses.

    Returns at once; use `wait`, `stop` and `status` of the result.

    store: URL of an initialized store.
    workers: number of workers. token: the store's token.
    scratch: directory for local caches of the workers and for state on disk; None: no caches, and state on
    disk in the directory for temporary files.
    logs: directory for the output of the workers, None for the terminal.
    standby: processes of each region that have imported everything and wait to replace a lost worker (about
    120 MB each).
    listeners: called with events, like the listeners of a streaming query.
    options: further fields of `RegionSpec`, such as checkpoint_interval_s=1.0.

    The same store and name resume from the last checkpoint. Raises GraphError before anything is started.
    """
    parts = parts_of(graph, name)
    made = [
        _prepared(
            part,
            application=name,
            store=store,
            workers=workers,
            token=token,
            scratch=scratch,
            logs=logs,
            worker_limits=worker_limits,
            standby=standby,
            observer=observer,
            listeners=listeners,
            options=options,
        )
        for part in parts
    ]
    for control, launcher in made:
        control.start(launcher)
    if len(made) == 1:
        return made[0][0]
    outside = frozenset(part.name for part in parts if part.settings is None)
    controls = {part.name: control for part, (control, _) in zip(parts, made, strict=True)}
    return Application(name, controls, without_cuts=outside)


def _prepared(
    part: GraphPart,
    *,
    application: str,
    store: str,
    workers: int,
    token: bytes,
    scratch: "str | os.PathLike[str] | None",
    logs: "str | os.PathLike[str] | None",
    worker_limits: WorkerLimits | None,
    standby: int,
    observer: Observer | None,
    listeners: Sequence[RegionListener],
    options: Mapping[str, Any],
) -> "tuple[RegionControl, ProcessLauncher]":
    """Return a part that listens, and the launcher of its workers."""
    plan = part.graph.plan()
    spec = RegionSpec(
        name=part.name,
        workers=workers,
        store_url=store,
        token=token,
        job_key=os.urandom(_key_bytes),
        **plan.stored(),
        **{**part_options(part), **options},
    )
    control = RegionControl(spec, observer=observer, check=partial(check_sinks, part))
    for listener in listeners:
        control.addListener(listener)
    address = control.listen()
    below = part.name if part.name != application else ""

    def spec_of(worker: int, attempt: int) -> WorkerSpec:
        return WorkerSpec(
            region=part.name,
            application=application,
            without_cuts=part.settings is None,
            worker=worker,
            workers=workers,
            attempt=attempt,
            coordinator=address,
            job_key=spec.job_key,
            graph=part.graph,
            store_url=store,
            token=token,
            scratch_dir="" if scratch is None else str(Path(scratch) / below / f"w{worker:04d}"),
            limits=worker_limits or WorkerLimits(),
            orphan_timeout_s=spec.orphan_timeout_s,
        )

    log_dir = None if logs is None else Path(logs) / below
    launcher = ProcessLauncher(spec_of, control.worker_ended, logs=log_dir, standby=standby)
    control.addListener(launcher.standby)
    return control, launcher


class ProcessLauncher:
    """Starts, kills and watches worker processes: `checkpoint`'s Launcher. No method blocks.

    Each attempt has a thread that waits for the previous attempt, starts the process or takes a standby one,
    and reports its end once.
    """

    def __init__(
        self,
        spec_of: Callable[[int, int], WorkerSpec],
        ended: Callable[[int, int, str | None], None],
        *,
        logs: Path | None = None,
        standby: int = 0,
    ) -> None:
        self._spec_of = spec_of
        self._ended = ended
        self._logs = logs
        self.standby = Standby(lambda: self._begin(None), standby)
        self._lock = threading.Lock()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._cancelled: set[int] = set()
        """Workers whose current attempt must end, perhaps before its process exists."""

    def start(self, worker: int, attempt: int) -> None:
        """Start an attempt after the previous one has ended."""
        with self._lock:
            self._cancelled.discard(worker)
            before = self._threads.get(worker)
            name = f"dos-w{worker}-{attempt}"
            arguments = (worker, attempt, before)
            thread = threading.Thread(target=self._attempt, args=arguments, name=name, daemon=True)
            self._threads[worker] = thread
        thread.start()

    def cancel(self, worker: int) -> None:
        """Kill the worker's current process."""
        with self._lock:
            self._cancelled.add(worker)
            process = self._processes.get(worker)
        if process is not None:
            process.kill()

    def _attempt(self, worker: int, attempt: int, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            error = self._run(worker, attempt)
        except Exception as problem:
            logger.exception("cannot start worker %d, attempt %d", worker, attempt)
            error = f"its process cannot be started: {problem}"
        self._ended(worker, attempt, error)

    def _run(self, worker: int, attempt: int) -> str | None:
        log = self._log_path(worker, attempt)
        first = json.dumps(str(log.absolute()) if log else "")
        first_input = first.encode() + b"\n" + dumps(self._spec_of(worker, attempt))
        process = self.standby.take() or self._begin(log)
        with self._lock:
            self._processes[worker] = process
            if worker in self._cancelled:
                process.kill()
        assert process.stdin is not None
        try:
            process.stdin.write(first_input)
            process.stdin.close()
        except BrokenPipeError:
            logger.warning("worker %d, attempt %d ended before it got its specification", worker, attempt)
        code = process.wait()
        with self._lock:
            del self._processes[worker]
        if code == 0:
            return None
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process {process.pid} ended with {how}{_tail(log)}"

    def _begin(self, log: Path | None) -> "subprocess.Popen[bytes]":
        """Start a process that waits for its first line and its specification."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with log.open("ab") if log else open(os.devnull, "ab") as output:  # noqa: PTH123 - a null device
            return subprocess.Popen(
                [sys.executable, "-m", "dataflow.local"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output if log else None,
                env=environment,
            )

    def _log_path(self, worker: int, attempt: int) -> Path | None:
        if self._logs is None:
            return None
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"w{worker:04d}.{attempt}.log"


def _tail(log: Path | None) -> str:
    if log is None:
        return ""
    text = log.read_bytes()[-_error_chars_max:].decode(errors="replace").strip()
    return f": {text}" if text else ""


def dumps(spec: WorkerSpec) -> bytes:
    """Pickle by value if a library for it is installed, so that functions of a script work; otherwise by
    reference.
    """
    for name in ("cloudpickle", "pyspark.cloudpickle"):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        by_value: bytes = library.dumps(spec)
        return by_value
    return pickle.dumps(spec)


def main() -> int:
    """Run a worker process. Standard input: the path of its log as a line of JSON, then its specification.

    Prints its summary as one line of JSON. Ends at once if standard input is closed: a standby that is not
    needed.
    """
    first = sys.stdin.buffer.readline()
    if not first:
        return 0
    _print_to(json.loads(first))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    spec = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from the parent process
    try:
        summary = run_worker(spec)
    except Exception:
        traceback.print_exc()
        return 1
    print(json.dumps(asdict(summary)), flush=True)
    return 0


def _print_to(log: str) -> None:
    """Redirect standard output and standard error to the end of this file."""
    if log:
        with Path(log).open("ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)


if __name__ == "__main__":
    sys.exit(main())
