"""Run a region on this machine without Spark: workers as subprocesses, for tests and small jobs.

    region = run_local(graph, workers=2, store="dos://127.0.0.1:9999")
    region.awaitTermination()

A worker's specification is pickled to its standard input, because the user's functions must reach the
process.
"""

import fcntl
import importlib
import json
import logging
import os
import pickle
import pickletools
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Unpack, cast

import cloudpickle

from checkpoint import GraphOptions, RegionSpec
from checkpoint.coordinator.control import RegionControl, RegionListener
from checkpoint.errors import OrphanedError
from dataflow.graph.builder import Graph, GraphPart, parts_of
from dataflow.handle import (
    Application,
    Monitoring,
    RegionEvents,
    RegionHandle,
    RegionOptions,
    check_options,
    monitoring_of,
    options_of_change,
    start_application,
)
from dataflow.limits import WorkerLimits, standby_after_reset_s
from dataflow.programs import parts_in_store
from dataflow.worker.companion import begin_companion
from dataflow.worker.process import run_worker
from dataflow.worker.spec import WorkerSpec, removed_specs
from dos_client.urls import parse_store_url
from dos_monitoring import LogChoice, begin_logs, log_choice_of_environment

logger = logging.getLogger("dos.dataflow")

_error_chars_max: Final = 2_000
START: Final = (
    "import gc; gc.disable(); import dataflow.local; gc.freeze(); gc.enable(); "
    "raise SystemExit(dataflow.local.main())"
)
"""What the interpreter of a worker runs. What is imported lives as long as the process: collections meanwhile
take a fifth of the processor time of the start, and each full one afterwards would stop the worker for 60 ms.
"""


def run_local(
    graph: Graph,
    *,
    store: str,
    logs: "str | os.PathLike[str] | None" = None,
    worker_limits: WorkerLimits | None = None,
    standby: int = 1,
    **options: Unpack[RegionOptions],
) -> RegionHandle | Application:
    """Run a graph as a region of local processes. The options and the result are those of
    `spark_integration.run`. The same store and name continue from the last committed checkpoint.

    - `store`: the URL of an initialized store.
    - `logs`: directory for the output of the workers, a file for each attempt; default: the terminal.
    - `worker_limits`: limits of each worker, such as the size of its steps.
    - `standby`: processes of each region that have imported everything and wait to replace a lost worker
      (about 120 MB each).
    - `options`: see `RegionOptions`.

    Raises GraphError, ValueError, TypeError, BadUrlError before anything is started.
    """
    application = options.get("name") or graph.name
    check_options(parts_of(graph, application), options)
    parse_store_url(store)
    parts = parts_in_store(
        graph, application, store, GraphOptions.of(options), token=options.get("token", b"")
    )
    shown, scratch = monitoring_of(options.get("metrics")), options.get("scratch")
    make_launcher = partial(
        _launch, application, shown, scratch=scratch, logs=logs, limits=worker_limits, standby=standby
    )

    def again(changed: Graph, given: dict[str, Any]) -> RegionHandle | Application:
        return run_local(
            changed,
            store=store,
            logs=logs,
            worker_limits=worker_limits,
            standby=standby,
            **cast("RegionOptions", options_of_change(options, given, application)),
        )

    return start_application(
        application, parts, make_launcher, options, store_url=store, metrics=shown.metrics, again=again
    )


def _launch(
    application: str,
    shown: Monitoring,
    part: GraphPart,
    spec: RegionSpec,
    control: RegionControl,
    _: RegionEvents,
    *,
    scratch: "str | os.PathLike[str] | None",
    logs: "str | os.PathLike[str] | None",
    limits: WorkerLimits | None,
    standby: int,
) -> "ProcessLauncher":
    below = part.name if part.name != application else ""
    removed = removed_specs(spec)

    def spec_of(worker: int, attempt: int) -> WorkerSpec:
        return WorkerSpec(
            region=part.name,
            application=application,
            without_checkpoints=part.settings is None,
            worker=worker,
            attempt=attempt,
            coordinator=control.address,
            job_key=spec.job_key,
            graph=part.graph,
            store_url=spec.store_url,
            token=spec.token,
            scratch_dir="" if scratch is None else str(Path(scratch) / below / f"w{worker:04d}"),
            metrics=shown.metrics,
            log=shown.log,
            limits=limits or WorkerLimits(),
            removed=removed,
            orphan_timeout_s=spec.orphan_timeout_s,
        )

    log_dir = None if logs is None else Path(logs) / below
    launcher = ProcessLauncher(spec_of, control.worker_ended, logs=log_dir, standby=standby)
    control.addListener(launcher.standby)
    return launcher


# --- processes that stand by --------------------------------------------------------------------------------

Process = subprocess.Popen[bytes]
_UNREAD: Final = struct.Struct("i")


class Standby(RegionListener):
    """At most `count` stand-bys: processes that have imported everything and wait for a worker's
    specification on standard input. Every method may be called from any thread. A process ends when its
    standard input ends without data, so none outlives this process.
    """

    # They are started when the region runs, some time after a reset, or when it commits a checkpoint: they
    # take no processor time from workers that are starting, or make steps again.
    def __init__(
        self, begin: Callable[[], Process], count: int, after_reset_s: float = standby_after_reset_s
    ) -> None:
        self._begin = begin
        self._count = count
        self._after_reset_s = after_reset_s
        self._later: threading.Timer | None = None
        self._lock = threading.Lock()
        self._waiting: list[Process] = []
        self._over = False

    def take(self) -> Process | None:
        """Return a live stand-by, which then belongs to the caller; None if there is none. One that is ready
        is taken before one that still imports.
        """
        with self._lock:
            self._waiting.sort(key=_is_ready, reverse=True)
            while self._waiting:
                process = self._waiting.pop(0)
                if process.poll() is None:
                    return process
                _close_input(process)
                logger.warning("a stand-by ended with exit code %s", process.returncode)
        return None

    @property
    def waiting(self) -> int:
        """How many have imported everything and wait. Never blocks."""
        return sum(process.poll() is None and _is_ready(process) for process in [*self._waiting])

    def fill(self) -> None:
        """Start the missing processes."""
        with self._lock:
            while not self._over and len(self._waiting) < self._count:
                try:
                    self._waiting.append(self._begin())
                except OSError as error:  # only makes the next reset slower
                    logger.warning("cannot start a stand-by: %s", error)
                    return

    def end(self) -> None:
        """End all processes, and start no more."""
        with self._lock:
            self._over = True
            if self._later is not None:
                self._later.cancel()
            processes, self._waiting = self._waiting, []
        for process in processes:
            process.kill()  # closing its input is not enough while it imports
            process.wait()
            _close_input(process)

    def onStart(self, start: dict[str, Any]) -> None:  # noqa: N802
        del start
        self.fill()

    def onReset(self, reset: dict[str, Any]) -> None:  # noqa: N802
        del reset
        with self._lock:
            if not self._over and (self._later is None or not self._later.is_alive()):
                self._later = threading.Timer(self._after_reset_s, self.fill)
                self._later.daemon = True
                self._later.start()

    def onProgress(self, progress: dict[str, Any]) -> None:  # noqa: N802
        del progress  # a checkpoint is committed: workers that were added have started
        self.fill()

    def onTerminated(self, end: dict[str, Any]) -> None:  # noqa: N802
        del end
        self.end()


def _is_ready(process: Process) -> bool:
    """Return whether a process has read the line that `_begin` writes, which it does after its imports."""
    assert process.stdin is not None
    try:
        unread = fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(_UNREAD.size))
    except (OSError, ValueError):  # another thread has just closed it: it is taken, or ended
        return False
    return _UNREAD.unpack(unread) == (0,)


def _close_input(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


# --- the launcher -------------------------------------------------------------------------------------------


class ProcessLauncher:
    """Starts, kills and watches worker processes: `checkpoint`'s Launcher. No method blocks. Each attempt has
    a thread that waits for the previous one, unless it runs beside that; starts the process or takes a
    standby; and reports its end once.
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
        self.standby = Standby(self._begin_standby, standby)
        self._lock = threading.Lock()
        self._processes: dict[tuple[int, int], subprocess.Popen[bytes]] = {}
        """(worker, attempt) -> its process."""
        self._threads: dict[tuple[int, int], threading.Thread] = {}
        """Of all attempts that have not ended, in the order of their starts."""
        self._closing = False
        self._cancelled: set[tuple[int, int]] = set()
        """Attempts that must end, perhaps before their processes exist."""

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        """Start an attempt, after the previous ones have ended unless it runs beside them."""
        with self._lock:
            if self._closing:
                self._cancelled.add((worker, attempt))  # it ends as soon as it has a process
            before = [] if beside else [one for (index, _), one in self._threads.items() if index == worker]
            name = f"dos-w{worker}-{attempt}"
            arguments = (worker, attempt, before)
            thread = threading.Thread(target=self._attempt, args=arguments, name=name, daemon=True)
            self._threads[worker, attempt] = thread
        thread.start()

    def cancel(self, worker: int, attempt: int) -> None:
        """Kill the process of an attempt."""
        with self._lock:
            self._cancelled.add((worker, attempt))
            process = self._processes.get((worker, attempt))
        if process is not None:
            process.kill()

    @property
    def standbys(self) -> int:
        """How many processes wait to become a worker."""
        return self.standby.waiting

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no worker runs. Return whether that is the case."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in threads)

    def close(self, timeout_s: float) -> bool:
        """Start nothing any more, kill every worker and wait. Return whether all ended in time."""
        with self._lock:
            self._closing = True
            attempts = list(self._threads)
        self.standby.end()
        for worker, attempt in attempts:
            self.cancel(worker, attempt)
        return self.wait_idle(timeout_s)

    def _attempt(self, worker: int, attempt: int, before: list[threading.Thread]) -> None:
        for one in before:
            one.join()
        try:
            error = self._run(worker, attempt)
        except Exception as problem:
            logger.exception("cannot start worker %d, attempt %d", worker, attempt)
            error = f"its process cannot be started: {problem}"
        self._ended(worker, attempt, error)
        with self._lock:
            del self._threads[worker, attempt]
            self._cancelled.discard((worker, attempt))

    def _run(self, worker: int, attempt: int) -> str | None:
        log = self._log_path(worker, attempt)
        first = json.dumps(str(log.absolute()) if log else "")
        first_input = first.encode() + b"\n" + dumps(self._spec_of(worker, attempt))
        process = self.standby.take() or self._begin(log)
        with self._lock:
            self._processes[worker, attempt] = process
            if (worker, attempt) in self._cancelled:
                process.kill()
        assert process.stdin is not None
        try:
            process.stdin.write(first_input)
            process.stdin.close()
        except BrokenPipeError:
            logger.warning("worker %d, attempt %d ended before it got its specification", worker, attempt)
        code = process.wait()
        with self._lock:
            del self._processes[worker, attempt]
        if code == 0:
            return None
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process {process.pid} ended with {how}{_tail(log, code)}"

    def _begin_standby(self) -> Process:
        return self._begin(None, *modules_in(dumps(self._spec_of(0, 0))))

    def _begin(self, log: Path | None, *modules: str) -> Process:
        """Start a process that imports modules, reads a line, and waits for its log and its specification."""
        # With one seed, all workers iterate a set of strings in one order, also one that takes over.
        environment = {
            "PYTHONHASHSEED": "0",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with log.open("ab") if log else open(os.devnull, "ab") as output:  # noqa: PTH123 - a null device
            process = subprocess.Popen(  # noqa: S603 - names of modules
                [sys.executable, "-c", START, *modules],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output if log else None,
                env=environment,
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its exit code is reported
            os.write(process.stdin.fileno(), b"\n")
        return process

    def _log_path(self, worker: int, attempt: int) -> Path | None:
        # Other runs use the directory too, and their workers may still write: a taken name gets the number of
        # the run.
        if self._logs is None:
            return None
        self._logs.mkdir(parents=True, exist_ok=True)
        for run in count(1):
            path = self._logs / f"w{worker:04d}.{attempt}{f'.run{run}' if run > 1 else ''}.log"
            with suppress(FileExistsError):
                path.touch(exist_ok=False)
                break
        return path


def _tail(log: Path | None, code: int) -> str:
    """Return the end of a log, which explains an exit code; "" if the process was killed from outside."""
    if log is None or code == -signal.SIGKILL:
        return ""
    text = log.read_bytes()[-_error_chars_max:].decode(errors="replace").strip()
    return f": {text}" if text else ""


def dumps(spec: WorkerSpec) -> bytes:
    """Pickle by value, so that functions of a script work."""
    by_value: bytes = cloudpickle.dumps(spec)
    return by_value


def modules_in(pickled: bytes) -> list[str]:
    """Return the modules that a pickle names and this process has imported, in their order in the pickle."""
    strings = (text for _, text, _ in pickletools.genops(pickled) if isinstance(text, str))
    return [name for name in dict.fromkeys(strings) if name in sys.modules and name != "__main__"]


def main() -> int:
    """Run a worker process. Standard input: an empty line, the path of its log as a line of JSON, then its
    specification. Arguments: modules to import before. Prints its summary as one line of JSON. Ends if
    standard input is closed: a standby that is not needed.
    """
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except Exception as error:  # only a head start: what is needed fails again, and is reported then
            logger.warning("a stand-by cannot import %s: %s", name, error)
    sys.stdin.buffer.readline()  # from now on the launcher sees that it is ready
    first = sys.stdin.buffer.readline()
    if not first:
        return 0
    _print_to(json.loads(first))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the driver gets it too, and decides
    choice = log_choice_of_environment() or LogChoice()
    begin_logs(choice, "%(asctime)s %(name)s %(levelname)s %(message)s")
    spec = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from the parent process
    try:
        summary = run_worker(spec, begin_companion(spec))
    except OrphanedError as error:  # its driver is gone: a traceback explains nothing
        logger.error("this worker ends: %s", error)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    print(json.dumps(asdict(summary)), flush=True)
    return 0


def _print_to(log: str) -> None:
    if log:
        with Path(log).open("ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
