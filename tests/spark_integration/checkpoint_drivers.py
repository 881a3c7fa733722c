"""Drivers as processes, each on a machine of its own that begins empty: `checkpoint_program`, and its end."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any, Self

import psutil

from tests.spark_integration.checkpoint_program import Order
from tests.support.polling import POLL_S

ROOT = Path(__file__).parents[2]
MOMENT_S_MAX = 200.0
END_S_MAX = 60.0


class DriverProcess:
    """A driver with its JVM and, with `dos.checkpoints`, its gateway. `folder`: the world outside.

    A context manager: at the end nothing of it is left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._own = folder, Path(mkdtemp(prefix="machine", dir=folder))
        empty = {name: str(self._own / name) for name in ("HOME", "TMPDIR", "SPARK_LOCAL_DIRS")}
        for path in empty.values():
            Path(path).mkdir()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark_integration.checkpoint_program", folder, self._own],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={
                    **os.environ,
                    **empty,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.streaming.pollingDelay=100ms pyspark-shell",
                },
            )
        self.said: list[dict[str, Any]] = []
        self._family: list[psutil.Process] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def log(self) -> Path:
        """The standard error of the driver, and of its gateway."""
        return self._own / "driver.log"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith("{"):  # else Spark's own words
                self.said.append(json.loads(text))

    def order(self, order: Order) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(order._asdict())}\n")
        self.process.stdin.flush()

    def heard(self, event: str) -> list[dict[str, Any]]:
        """What it said of that kind, in order."""
        return [one for one in list(self.said) if one["event"] == event]

    def until(self, condition: Callable[[], bool], *, may_fail: bool = False) -> None:
        """Wait for a moment. Raises AssertionError if it does not come, or the query fails and may not."""
        deadline = time.monotonic() + MOMENT_S_MAX
        failures = len(self.heard("failed"))
        while not condition():
            assert self.process.poll() is None, self.words()
            assert time.monotonic() < deadline, self.words()
            assert may_fail or len(self.heard("failed")) == failures, self.words()
            time.sleep(POLL_S)

    def finished(self, order: Order) -> dict[str, int]:
        """Give an order, wait for its end, and return the state."""
        before = len(self.heard("state"))
        self.order(order)
        self.until(lambda: len(self.heard("state")) > before)
        state: dict[str, int] = self.heard("state")[-1]["state"]
        return state

    def error(self) -> str:
        """Wait until the query fails, and return its error."""
        self.until(lambda: bool(self.heard("failed")), may_fail=True)
        return str(self.heard("failed")[-1]["error"])

    def words(self) -> str:
        said = "".join(f"{one}\n" for one in self.said)
        waited = sorted(one.name for one in (self._folder / "reached").iterdir())
        return f"{said}waited at {waited}\n{self.log.read_text()[-3000:]}"

    @property
    def family(self) -> list[psutil.Process]:
        """The processes that it has started, and what they have started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    @property
    def gateway(self) -> psutil.Process:
        living = [one for one in self.family if one.status() != psutil.STATUS_ZOMBIE]
        (found,) = [one for one in living if "gateway" in one.cmdline()]
        return found

    def main_processes(self) -> list[psutil.Process]:
        """The driver's Python and its JVM: what stops or dies together, as one program."""
        (java,) = [one for one in self.family if one.name() == "java"]
        return [psutil.Process(self.process.pid), java]

    def kill(self) -> None:
        """SIGKILL the driver and its JVM; nothing else is ended from outside."""
        self._family = self.family
        for one in self.main_processes():
            one.kill()
        self.process.wait()

    def wait_nothing_left(self) -> None:
        """Raises AssertionError if a process of a driver that was killed outlives it."""
        _, alive = psutil.wait_procs(self._family, END_S_MAX)
        assert not alive, f"these outlived their driver by {END_S_MAX:.0f} s: {alive}"

    def stop(self) -> None:
        """SIGSTOP the driver and its JVM."""
        for one in self.main_processes():
            one.suspend()

    def wake(self) -> None:
        for one in self.main_processes():
            one.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        _, alive = psutil.wait_procs(self._family, END_S_MAX)
        for one in alive:
            one.kill()
        self._reader.join(END_S_MAX)
        self.process.stdout.close()
        assert not alive, f"these outlived their driver by {END_S_MAX:.0f} s: {alive}"
