"""One run: a region is run to its end while its faults come, and its output is compared."""

import itertools
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.region_chaos.cast import Cast
from tests.region_chaos.driver import Order
from tests.region_chaos.output import WrongOutputError, digest
from tests.region_chaos.plan import Fault, Kind
from tests.support.sockets import break_between

STUCK_S = 240.0
"""No cut for so long: this is no longer a slow machine."""
LOOK_S = 0.05


@dataclass
class Result:
    """What came of a run. `wrong` is '' when its output was that of the run without faults."""

    seed: int
    faults: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    seconds: float = 0.0
    cuts: int = 0
    resets: int = 0
    reset_s: list[float] = field(default_factory=list)
    longest_pause_s: float = 0.0
    digest: str = ""
    wrong: str = ""


class Heard:
    """What the drivers of a run say. Called from their reader threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.begin("")

    def begin(self, region: str) -> None:
        """Forget the run before."""
        with self.changed:
            self.region = region
            self.pids: dict[int, int] = {}
            self.cuts: list[tuple[float, int]] = []
            self.resets: list[dict[str, Any]] = []
            self.state, self.reason = "", ""
            self.end: dict[str, Any] | None = None

    def __call__(self, said: dict[str, Any]) -> None:
        with self.changed:
            if said["region"] == self.region:
                self._take(said)
            self.changed.notify_all()

    def _take(self, said: dict[str, Any]) -> None:
        match said["event"]:
            case "cut":
                self.cuts.append((time.monotonic(), said["cut"]))
            case "joined":
                self.pids[said["worker"]] = said["pid"]
            case "reset":
                self.resets.append(said)
            case "state":
                self.state, self.reason = said["state"], said["reason"]
            case "end":
                self.end = said


class Run:
    """See the top of this file. `go` gives the result and raises nothing that a fault can bring."""

    def __init__(self, cast: Cast, heard: Heard, paths: list[Path], folder: Path) -> None:
        self._cast, self._heard = cast, heard
        self._folder = folder
        self._order = Order(folder.name, cast.url, str(folder), [str(path) for path in paths])

    def go(self, seed: int, faults: list[Fault], expected: str = "") -> Result:
        """Run with these faults; `expected` is the digest of the run without any ('' for that one)."""
        self._folder.mkdir(parents=True)
        result = Result(seed)
        self._heard.begin(self._order.name)
        begun = time.monotonic()
        try:
            self._cast.driver().order(self._order)
            for fault in faults:
                self._wait_for(fault)
                if self._heard.end is not None:
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
        heard = self._heard
        result.seconds = time.monotonic() - begun
        result.cuts, result.resets = len(heard.cuts), len(heard.resets)
        result.reset_s = [round(reset["seconds"], 2) for reset in heard.resets]
        times = [when for when, _ in heard.cuts]
        result.longest_pause_s = max((b - a for a, b in itertools.pairwise(times)), default=0.0)
        return result

    # --- waiting ------------------------------------------------------------------------------------------

    def _wait_for(self, fault: Fault) -> None:
        """Until the fault is due: so many cuts from now, and a moment. Servers come up again meanwhile."""
        heard = self._heard
        wanted = len(heard.cuts) + fault.cuts
        self._look(lambda: heard.end is not None or (len(heard.cuts) >= max(wanted, 1)))
        until = time.monotonic() + fault.delay_s
        self._look(lambda: heard.end is not None or time.monotonic() >= until)

    def _wait_until_over(self) -> None:
        heard = self._heard
        self._look(lambda: heard.end is not None)
        assert heard.end is not None
        if heard.end["state"] != "FINISHED":
            raise StuckError(f"it ended as {heard.end['state']}: {heard.end['reason']}")

    def _look(self, done: Any) -> None:
        heard = self._heard
        quiet_since, seen = time.monotonic(), -1
        with heard.changed:
            while not done():
                heard.changed.wait(LOOK_S)
                heard.changed.release()
                try:
                    self._cast.tick()
                finally:
                    heard.changed.acquire()
                if len(heard.cuts) != seen:
                    quiet_since, seen = time.monotonic(), len(heard.cuts)
                if time.monotonic() - quiet_since > STUCK_S:
                    self._cast.lose_driver()
                    raise StuckError(f"no cut for {STUCK_S:.0f} s; it is {heard.state}: {heard.reason}")

    # --- breaking -----------------------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> bool:
        """Whether there was anything to break."""
        if fault.kind is Kind.server:
            return self._cast.lose_server(fault.victim, fault.down_s)
        if fault.kind is Kind.driver:
            self._cast.lose_driver()
            self._cast.driver().order(self._order)
            return True
        pids = dict(self._heard.pids)
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
    """The region did not come to its end."""


def is_spark_worker(pid: int) -> bool:
    """Whether that process is a Python worker of Spark: what is killed is what was meant."""
    try:
        return b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
