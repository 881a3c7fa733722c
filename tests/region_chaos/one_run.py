"""One run: a region runs to its end under faults, and its output is compared."""

import itertools
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoint.core.region import Recovery
from tests.region_chaos.cast import Cast
from tests.region_chaos.driver import Order
from tests.region_chaos.output import WrongOutputError, digest
from tests.region_chaos.plan import Fault, Kind
from tests.support.sockets import break_between

STUCK_S = 240.0
"""No checkpoint for so long: this is no longer a slow machine."""
POLL_S = 0.05


@dataclass
class Result:
    """The result of a run. `wrong`: '' if its output is that of the run without faults."""

    seed: int
    faults: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    seconds: float = 0.0
    checkpoints: int = 0
    resets: int = 0
    taken_over: int = 0
    """How many of the resets were take-overs of one worker."""
    reset_s: list[float] = field(default_factory=list)
    longest_pause_s: float = 0.0
    digest: str = ""
    wrong: str = ""


class EventLog:
    """What the drivers of a run say. Called from their reader threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.begin("")

    def begin(self, region: str) -> None:
        """Forget the run before."""
        with self.changed:
            self.region = region
            self.pids: dict[int, int] = {}
            self.checkpoints: list[tuple[float, int]] = []
            self.resets: list[dict[str, Any]] = []
            self.state, self.reason = "", ""
            self.end: dict[str, Any] | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        with self.changed:
            if event["region"] == self.region:
                self._take(event)
            self.changed.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "checkpoint":
                self.checkpoints.append((time.monotonic(), event["checkpoint"]))
            case "joined":
                self.pids[event["worker"]] = event["pid"]
            case "reset":
                self.resets.append(event)
            case "state":
                self.state, self.reason = event["state"], event["reason"]
            case "end":
                self.end = event


class Run:
    """See the top of this file. `go` gives the result and raises nothing that a fault can bring."""

    def __init__(
        self,
        cast: Cast,
        log: EventLog,
        paths: list[Path],
        folder: Path,
        *,
        recovery: Recovery = "global",
        standby: int = 0,
    ) -> None:
        self._cast, self._log = cast, log
        self._folder = folder
        names = [str(path) for path in paths]
        self._order = Order(folder.name, cast.url, str(folder), names, recovery, standby)

    def go(self, seed: int, faults: list[Fault], expected: str = "") -> Result:
        """Run with these faults; `expected` is the digest of the run without any ('' for that one)."""
        self._folder.mkdir(parents=True)
        result = Result(seed)
        self._log.begin(self._order.name)
        begun = time.monotonic()
        try:
            self._cast.driver().order(self._order)
            for fault in faults:
                self._wait_for(fault)
                if self._log.end is not None:
                    break
                if self._inject(fault):
                    result.faults.append(str(fault))
                    result.kinds.append(fault.kind.value)
            (self._folder / "hurry").touch()
            self._wait_until_over()
            result.digest = digest(self._folder)
            if expected and result.digest != expected:
                result.wrong = f"output {result.digest[:12]} is not {expected[:12]}, that without faults"
        except (StuckError, WrongOutputError) as error:
            result.wrong = str(error)
        finally:
            self._cast.tick(all_of_them=True)
        log = self._log
        result.seconds = time.monotonic() - begun
        result.checkpoints, result.resets = len(log.checkpoints), len(log.resets)
        result.taken_over = sum(reset["term"] > 0 for reset in log.resets)
        result.reset_s = [round(reset["seconds"], 2) for reset in log.resets]
        times = [when for when, _ in log.checkpoints]
        result.longest_pause_s = max((b - a for a, b in itertools.pairwise(times)), default=0.0)
        return result

    # --- waiting ------------------------------------------------------------------------------------------

    def _wait_for(self, fault: Fault) -> None:
        """Wait until the fault is due: some checkpoints from now, and a moment. Servers are restarted
        meanwhile."""
        log = self._log
        wanted = len(log.checkpoints) + fault.checkpoints
        self._wait(lambda: log.end is not None or (len(log.checkpoints) >= max(wanted, 1)))
        until = time.monotonic() + fault.delay_s
        self._wait(lambda: log.end is not None or time.monotonic() >= until)

    def _wait_until_over(self) -> None:
        log = self._log
        self._wait(lambda: log.end is not None)
        assert log.end is not None
        if log.end["state"] != "FINISHED":
            raise StuckError(f"it ended as {log.end['state']}: {log.end['reason']}")

    def _wait(self, done: Any) -> None:
        log = self._log
        quiet_since, seen = time.monotonic(), -1
        with log.changed:
            while not done():
                log.changed.wait(POLL_S)
                log.changed.release()
                try:
                    self._cast.tick()
                finally:
                    log.changed.acquire()
                if len(log.checkpoints) != seen:
                    quiet_since, seen = time.monotonic(), len(log.checkpoints)
                if time.monotonic() - quiet_since > STUCK_S:
                    self._cast.lose_driver()
                    raise StuckError(f"no checkpoint for {STUCK_S:.0f} s; it is {log.state}: {log.reason}")

    # --- breaking -----------------------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> bool:
        """Whether there was anything to break."""
        if fault.kind is Kind.server:
            return self._cast.lose_server(fault.victim, fault.down_s)
        if fault.kind is Kind.driver:
            self._cast.lose_driver()
            self._cast.driver().order(self._order)
            return True
        pids = dict(self._log.pids)
        if any(not is_spark_worker(pid) for pid in pids.values()):
            return False
        try:
            if fault.kind is Kind.link:
                return break_between(*pids.values()) > 0
            number = signal.SIGSTOP if fault.kind is Kind.hang else signal.SIGKILL
            os.kill(pids[fault.victim], number)
        except (ProcessLookupError, FileNotFoundError):
            return False
        return True


class StuckError(Exception):
    """The region did not finish."""


def is_spark_worker(pid: int) -> bool:
    """Whether that process is a Python worker of Spark: what is killed is what was meant."""
    try:
        return b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
