"""Drivers as processes, each on a machine of its own that begins empty: `checkpoint_program`, and its end."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil

from tests.spark_integration.checkpoint_program import Order
from tests.support.polling import POLL_S
from tests.support.spark_driver import SparkDriver

MOMENT_S_MAX = 200.0


class DriverProcess(SparkDriver):
    """A driver with its JVM and, with `dos.checkpoints`, its gateway. `folder`: the world outside. log: the
    standard error of the driver, and of its gateway.
    """

    def __init__(self, folder: Path) -> None:
        own = Path(mkdtemp(prefix="machine", dir=folder))
        empty = {name: str(own / name) for name in ("HOME", "TMPDIR", "SPARK_LOCAL_DIRS")}
        for path in empty.values():
            Path(path).mkdir()
        module = "tests.spark_integration.checkpoint_program"
        settings = "--conf spark.sql.streaming.pollingDelay=100ms"
        log = own / "driver.log"
        super().__init__(module, [folder, own], folder=folder, log=log, settings=settings, **empty)

    def order(self, order: Order) -> None:
        self.write(f"{json.dumps(order._asdict())}\n")

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

    @property
    def gateway(self) -> psutil.Process:
        living = [one for one in self.family if one.status() != psutil.STATUS_ZOMBIE]
        (found,) = [one for one in living if "gateway" in one.cmdline()]
        return found

    def stop(self) -> None:
        """SIGSTOP the driver and its JVM."""
        for one in self.main_processes():
            one.suspend()

    def wake(self) -> None:
        for one in self.main_processes():
            one.resume()
