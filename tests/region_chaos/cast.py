"""Who takes part: three servers that make a store, and the driver process, which may be another one later."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import trio

from dos_client import init_store
from tests.region_chaos.driver import Order
from tests.support.servers import ServerProcess, url_of

ROOT = Path(__file__).parent.parent.parent
START_S_MAX = 300.0
END_S_MAX = 60.0
RESTARTS_MAX = 5


class Driver:
    """A driver process. Each of its events is passed to `on_event`."""

    def __init__(self, folder: Path, on_event: Callable[[dict[str, Any]], None]) -> None:
        folder.mkdir(parents=True)
        self._on_event = on_event
        self._ready = threading.Event()
        with (folder / "stderr.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.region_chaos.driver", str(folder / "spark")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                start_new_session=True,  # Ctrl-C in the terminal reaches the campaign alone
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )
        self._log = folder / "stderr.log"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                if not line.startswith("{"):
                    continue  # Spark's own words
                event = json.loads(line)
                if event["event"] == "ready":
                    self._ready.set()
                else:
                    self._on_event(event)

    def order(self, order: Order) -> None:
        """Start a region. Raises RuntimeError if the driver does not start."""
        if not self._ready.wait(START_S_MAX):
            self.kill()
            raise RuntimeError(f"the driver did not start: {self._log.read_text()[-3000:]}")
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL of the driver; Spark's JVM ends when it notices, and Spark's workers after it."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """No more orders: it stops its session, and ends."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def over(self) -> None:
        """Wait until no process has its output open: the JVM has ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self._reader.join(END_S_MAX)


class Cast:
    """The servers, and the present driver. Use as a context manager: everything is ended by its id."""

    def __init__(self, folder: Path, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.folder = folder
        self._on_event = on_event
        self._stack = ExitStack()
        self._drivers: list[Driver] = []
        self._driver: Driver | None = None
        self._down: list[tuple[float, ServerProcess]] = []
        self.servers: list[ServerProcess] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.servers = [
                stack.enter_context(ServerProcess(self.folder / f"server-{index}")) for index in range(3)
            ]
            trio.run(init_store, url_of(self.servers))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self._driver is not None:
                self._driver.stop()
            for driver in self._drivers:
                driver.over()

    @property
    def url(self) -> str:
        return url_of(self.servers)

    def driver(self) -> Driver:
        """The present one; another if there is none."""
        if self._driver is None:
            self._driver = Driver(self.folder / f"driver-{len(self._drivers)}", self._on_event)
            self._drivers.append(self._driver)
        return self._driver

    def lose_driver(self) -> None:
        if self._driver is not None:
            driver, self._driver = self._driver, None
            driver.kill()

    def lose_server(self, index: int, down_s: float) -> bool:
        """SIGKILL; `tick` starts it again after that time. False if it is down already."""
        server = self.servers[index]
        if not server.running:
            return False
        server.kill()
        self._down.append((time.monotonic() + down_s, server))
        return True

    def tick(self, *, all_of_them: bool = False) -> None:
        """Restart the servers that are due."""
        due = [pair for pair in self._down if all_of_them or pair[0] <= time.monotonic()]
        for pair in due:
            self._down.remove(pair)
            self._restart(pair[1])

    @staticmethod
    def _restart(server: ServerProcess) -> None:
        """A machine that is very busy may not start one in time; it is tried again. Raises RuntimeError."""
        for left in reversed(range(RESTARTS_MAX)):
            try:
                server.restart()
            except RuntimeError:
                if not left:
                    raise
            else:
                return
