"""The processes of a soak: three servers, a region of two workers, a producer; and what is done to them.

The driver and the producer live in this process, the producer on a thread of its own. Disturbances in turns:
worker 1 is killed; the status is requested through the store; a savepoint is made; server 0 is killed and
started; a checkpoint is requested; the savepoint is dropped. In between, the region works undisturbed. The
other processes live as long as the run.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import trio

from checkpoint import RegionEvent
from checkpoint.core.region import CheckpointCommitted
from checkpoint.errors import NoAnswerError
from checkpoint.requests.client import RequestClient
from dataflow import blocking
from dataflow.handle import RegionHandle
from dataflow.limits import WorkerLimits
from dataflow.local import run_local
from dos_client import init_store, open_store
from dos_client.blocking import open_store as open_blocking
from dos_protocol.errors import DosError
from tests.soak.figures import disk, processes
from tests.soak.graph import CENSUS_FOLDER, HANDLE, PRODUCER, SCHEMA, SNAPSHOT_BYTES, graph_of
from tests.support.census import census_of_process
from tests.support.servers import ServerProcess, url_of

REGION: Final = "soak"
CHECKPOINT_S: Final = 0.3
SEND_S: Final = 0.1
ROWS: Final = 20
WORDS: Final = 50
CACHES: Final = ("SegmentName instances", "Latencies._samples", "Latencies._sorted", "ProgressMeter.recent")
"""Entries with a limit of their own that a run of some minutes does not reach: a cache of 1,024 names, the
latest latencies of a member, the latest 100 reports of progress.
"""
RECOVERY_S: Final = 60.0
"""A region that commits nothing for so long after a disturbance has failed."""


class Commits:
    """The commits of the region. Called on a thread of its handle."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def __call__(self, event: RegionEvent) -> None:
        if isinstance(event, CheckpointCommitted):
            with self._changed:
                self.count += 1
                self._changed.notify_all()

    def wait(self, count: int, timeout_s: float) -> bool:
        """Wait until there are so many. Return whether there are."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count >= count, timeout_s)


class Cast:
    """Everything that runs. A context manager that ends it. `sent`: rows that are recorded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._census = folder / "census"
        self._stack = ExitStack()
        self.commits = Commits()
        self.sent = 0
        self.restarts: dict[str, list[float]] = {}
        self.requests: dict[str, int] = {}
        self._turn = 0
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.servers = [
                stack.enter_context(ServerProcess(self._folder / f"server-{number}")) for number in range(3)
            ]
            self.url = url_of(self.servers)
            trio.run(lambda: init_store(self.url))
            self._producer = threading.Thread(target=self._produce, name="producer")
            self._producer.start()
            stack.callback(self._end_producer)
            self._census.mkdir()
            os.environ[CENSUS_FOLDER] = str(self._census)  # processes started from now on inherit it
            stack.callback(os.environ.pop, CENSUS_FOLDER)
            handle = run_local(
                graph_of(REGION),
                workers=2,
                store=self.url,
                checkpoint_interval=CHECKPOINT_S,
                retain=3,
                on_event=self.commits,
                logs=self._folder / "logs",
                scratch=self._folder / "scratch",
                worker_limits=WorkerLimits(snapshot_bytes_min=SNAPSHOT_BYTES),
            )
            assert isinstance(handle, RegionHandle)
            self.region = handle
            stack.callback(self._end_region)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end_region(self) -> None:
        self.region.stop()
        if not self.region.wait(RECOVERY_S):
            for worker in self.region.status.workers:
                os.kill(worker.pid, signal.SIGKILL)

    # The producer

    def _produce(self) -> None:
        try:
            with (
                open_blocking(self.url) as store,
                blocking.open_producer(store, REGION, HANDLE, PRODUCER, SCHEMA) as producer,
            ):
                while not self._stopping.wait(SEND_S):
                    numbers = range(self.sent, self.sent + ROWS)
                    rows = [{"word": f"w{number % WORDS}", "number": number} for number in numbers]
                    producer.wait_recorded(producer.send(rows))
                    self.sent += ROWS
        except BaseException as error:
            self._failure = error

    def _end_producer(self) -> None:
        self._stopping.set()
        self._producer.join()

    def check(self) -> None:
        """Raise the error of the producer or of the region, if there is one."""
        if self._failure is not None:
            raise self._failure
        if not self.region.isActive:
            raise AssertionError(f"the region ended: {self.region.status.state} {self.region.exception()}")

    # What is done

    def disturb(self) -> None:
        """Do the next thing."""
        turns: tuple[tuple[str, Callable[[], None]], ...] = (
            ("worker", lambda: self._restart("worker", self._kill_worker)),
            ("status", lambda: self._ask("status")),
            ("savepoint", lambda: self._ask("savepoint", name="held")),
            ("server", lambda: self._restart("server", self._kill_server)),
            ("checkpoint", lambda: self._ask("checkpoint")),
            ("drop_savepoint", lambda: self._ask("drop_savepoint", name="held")),
        )
        turns[self._turn % len(turns)][1]()
        self._turn += 1

    def _restart(self, kind: str, call: Callable[[], None]) -> None:
        """Make the call, and record how long it takes until the second commit from then on: the first one may
        have been under way."""
        before, began = self.commits.count, time.monotonic()
        call()
        if not self.commits.wait(before + 2, RECOVERY_S):
            raise AssertionError(f"no checkpoint within {RECOVERY_S:g} s after {kind} was killed")
        self.restarts.setdefault(kind, []).append(time.monotonic() - began)

    def _kill_worker(self) -> None:
        os.kill(self.region.status.workers[1].pid, signal.SIGKILL)

    def _kill_server(self) -> None:
        self.servers[0].kill()
        self.servers[0].restart()

    def _ask(self, what: str, *, name: str = "") -> None:
        async def ask() -> str:
            async with open_store(self.url) as store:
                try:
                    reply = await RequestClient(store, REGION).send(what, wait_s=10.0, name=name)
                except (NoAnswerError, DosError) as error:
                    return type(error).__name__
                return reply.answer.verdict

        heard = f"{what} {trio.run(ask)}"
        self.requests[heard] = self.requests.get(heard, 0) + 1

    # What is sampled

    def _census_of(self, pid: int) -> dict[str, int]:
        """Return the entries of a worker's containers as of its last answer, and request another one. A
        worker that has joined has loaded the graph, and with it the handler of the signal.
        """
        path = self._census / f"{pid}.json"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}  # type: ignore[no-any-return]

    def sample(self) -> dict[str, float]:
        """Return the figures now."""
        servers = {f"server {number}": server.pid for number, server in enumerate(self.servers)}
        workers = {f"worker {one.index}": one.pid for one in self.region.status.workers if one.pid}
        figures = disk(server.data for server in self.servers)
        figures |= processes({**servers, **workers, "driver": os.getpid()})
        censuses = {name: self._census_of(pid) for name, pid in workers.items()}
        for name, census in {**censuses, "driver": census_of_process()}.items():
            entries = {what: count for what, count in census.items() if not what.startswith(CACHES)}
            figures |= {f"entries of {name}: {what}": count for what, count in entries.items()}
        for kind, times in self.restarts.items():
            figures[f"restart s: {kind}"] = times[-1]
        return figures
