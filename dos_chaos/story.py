"""One run: writers and readers at work, faults, recovery, comparison, verdict.

The meter spreads the writers' bytes over the time and keeps them in the budget. It measures the space twice a
second. A member that is down takes its bytes later, so the budget counts what all members will have in the
end, not only what the disks have now.
"""

import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio

from dos_chaos import NotConvergedError, ServerStartError
from dos_chaos.core.report import ChaosResult, FaultWindow, Measures
from dos_chaos.workload import (
    NOT_NOW,
    AckLog,
    CommittedReader,
    Workload,
    harvest,
    judge_directory,
    keep_taking_over,
    read_log,
)
from dos_client import StoreNotReadyError, open_store
from dos_protocol.errors import DosError, errors_in
from dos_protocol.limits import KIB, MIB


class FaultLog:
    """One fault at a time. `clock`: seconds since the start of the run. `say`: receives a line for each."""

    def __init__(self, measures: Measures, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self.windows: list[FaultWindow] = []
        self.clock = clock
        self._measures = measures
        self._say = say
        self._open: tuple[str, tuple[str, ...], float] | None = None

    def begin(self, kind: str, servers: Sequence[str]) -> None:
        self._open = kind, tuple(servers), self.clock()
        self._measures.fault_begins(self.clock())
        self._say(f"{kind} {' '.join(servers)}")

    def end(self, *, quorum_left: bool, note: str = "") -> None:
        """End the fault that is in progress; without one, do nothing."""
        if self._open is None:
            return
        kind, servers, start_s = self._open
        self._open = None
        self._measures.fault_ends(self.clock())
        self.windows.append(FaultWindow(kind, servers, start_s, self.clock(), quorum_left, note))
        self._say(f"end of {kind} {' '.join(servers)}{f': {note}' if note else ''}")


MEASURE_EVERY_S: Final = 0.5
OVERHEAD_MIN: Final = 1.15
"""Bytes on one disk for each byte of payload: record headers, extent headers, half-filled blocks."""
BURST_BYTES: Final = 64 * KIB
HELD_BACK_BYTES: Final = 4 * MIB
"""Kept for the records after the last fault, and for the take-overs of the checks."""


class BudgetMeter:
    """Implements `workload.Meter` for all writers of a run.

    Disks hold at most `limit_bytes`. `used`: measures what they hold now. It returns 0 if that cannot be
    seen; then the sum of what was appended decides. Nothing may be appended before `begin`.
    `stopped_by_budget`: the budget was used up before the end.
    """

    def __init__(
        self,
        measures: Measures,
        *,
        limit_bytes: int,
        copies: int,
        seconds: float,
        used: Callable[[], Awaitable[int]],
    ) -> None:
        self.used_bytes = 0
        self.used_bytes_max = 0
        self.payload_bytes = 0
        self.stopped_by_budget = False
        self.begun = trio.current_time()
        self._measures = measures
        self._limit = limit_bytes
        self._copies = copies
        self._seconds = seconds
        self._used = used
        self._held_back = HELD_BACK_BYTES
        self._rate = 0.0
        self._tokens = 0.0
        self._filled = self.begun
        self._overhead = OVERHEAD_MIN

    @property
    def now(self) -> float:
        return trio.current_time() - self.begun

    def begin(self) -> None:
        self.begun = self._filled = trio.current_time()
        self._tokens = float(BURST_BYTES)

    async def run(self) -> None:
        while True:
            await self.measure()
            await trio.sleep(MEASURE_EVERY_S)

    async def measure(self) -> None:
        seen = await self._used()
        expected = int(self.payload_bytes * self._copies * self._overhead)
        self.used_bytes = seen or expected
        self.used_bytes_max = max(self.used_bytes_max, self.used_bytes)
        if self.payload_bytes > MIB:
            self._overhead = max(self._overhead, seen / (self.payload_bytes * self._copies))
        left = self._limit - self._held_back - max(seen, expected)
        self.stopped_by_budget |= left <= 0 and self.now < self._seconds
        left_s = max(2.0, self._seconds - self.now)
        self._rate = max(0.0, left / (self._copies * self._overhead * left_s))
        self._fill()

    def release_rest(self) -> None:
        self._held_back //= 2
        self._rate, self._tokens = float(BURST_BYTES), float(BURST_BYTES)
        self._filled = trio.current_time()

    def ready(self) -> bool:
        self._fill()
        return self._tokens > 0

    async def wait_ready(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.ready():  # noqa: ASYNC110 - time makes it ready
            await trio.sleep(min(MEASURE_EVERY_S, max(0.002, -self._tokens / max(self._rate, 1.0))))

    def appended(self, payload_bytes: int) -> None:
        self.payload_bytes += payload_bytes
        self._tokens -= payload_bytes

    def acknowledged(self, directory: str, sent_s: list[float]) -> None:
        self._measures.add(directory, self.now, [sent - self.begun for sent in sent_s])

    def _fill(self) -> None:
        now = trio.current_time()
        self._tokens = min(BURST_BYTES, self._tokens + self._rate * (now - self._filled))
        self._filled = now


CREATED_S: Final = 60.0
RECOVERED_S: Final = 120.0
GRACE_S: Final = 300.0
"""A run ends at the latest so long after its faults: for recovery, take-overs and comparisons."""
LINE_EVERY_S: Final = 5.0
WINDOW: Final = 100
RETRY_S: Final = 0.2


class Ground(Protocol):
    """The store of a run: own servers, or the user's. `evidence`: where acknowledgements are logged."""

    token: bytes

    @property
    def url(self) -> str: ...

    @property
    def evidence(self) -> Path: ...

    @property
    def copies(self) -> int:
        """How many disks hold each byte."""
        ...

    def directories(self) -> list[str]: ...

    async def used_bytes(self) -> int:
        """Return the space taken on disks, 0 if that cannot be seen."""
        ...

    def describe(self) -> str:
        """Return the state of the servers, for a progress line."""
        ...

    async def faults(self, log: FaultLog, seconds: float) -> None:
        """Inject faults, or observe the user's, for that long."""
        ...

    async def heal(self) -> None: ...

    async def reopen(self) -> None:
        """Let what is read next come from the disks, where that is possible."""
        ...


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    """The options of a run. `seconds`: of faults; `space_bytes`: on all disks together; `again`: the command
    line that repeats it; `quiet`: no progress.
    """

    seed: int
    seconds: float
    space_bytes: int
    discard: bool
    servers: int
    kinds: tuple[str, ...]
    again: str
    quiet: bool

    def say(self, line: str) -> None:
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)


class ChaosRun:
    """One run on a ground that is started. `result` is filled in, whatever happens."""

    def __init__(self, ground: Ground, request: ChaosRequest, result: ChaosResult) -> None:
        self._ground = ground
        self._request = request
        self._result = result
        self._meter = BudgetMeter(
            result.measures,
            limit_bytes=request.space_bytes,
            copies=ground.copies,
            seconds=request.seconds,
            used=ground.used_bytes,
        )
        self._log = FaultLog(result.measures, lambda: self._meter.now, self._say)
        self._reader = CommittedReader(ground.url, ground.directories(), ground.token)
        self._opened = {directory: trio.Event() for directory in ground.directories()}

    async def run(self) -> None:
        """Run to the verdict. What the store did wrong is in the result; bugs of this program raise."""
        result = self._result
        result.faults = self._log.windows
        result.budget_bytes = self._request.space_bytes
        try:
            with trio.fail_after(self._request.seconds + GRACE_S):
                await self._work()
                await self._compare()
        except* trio.TooSlowError:
            result.problems.append("recovery or comparison took too long, and was given up")
        except* (NotConvergedError, ServerStartError, *NOT_NOW) as group:
            result.problems += [str(error) for error in errors_in(group)]
        except* DosError as group:
            result.violations += [f"{type(error).__name__}: {error}" for error in errors_in(group)]
        result.used_bytes_max = self._meter.used_bytes_max
        if self._meter.stopped_by_budget:
            result.notes.append(
                "the space was used up before the end, and the writers waited: pass more --space-mib."
            )

    def _say(self, text: str) -> None:
        line = f"{self._meter.now:7.1f} s  {text}"
        with (self._ground.evidence / "events").open("a") as file:
            file.write(f"{line}\n")
        self._request.say(line)

    async def _work(self) -> None:
        ground, measures = self._ground, self._result.measures
        async with trio.open_nursery() as nursery:
            for directory in ground.directories():
                nursery.start_soon(self._write, directory)
            with trio.fail_after(CREATED_S):
                for opened in self._opened.values():
                    await opened.wait()
            self._meter.begin()
            for directory in ground.directories():
                measures.begin(directory, 0.0)
            for task in (self._meter.run, self._reader.run, self._progress):
                nursery.start_soon(task)
            await ground.faults(self._log, self._request.seconds)
            self._result.seconds = self._meter.now
            self._say("no more faults: every server must be back, and every chain continue")
            await ground.heal()
            self._meter.release_rest()
            self._result.healed_s = await self._goes_on()
            await self._meter.measure()
            measures.finish(self._meter.now)
            nursery.cancel_scope.cancel()

    async def _write(self, directory: str) -> None:
        ground, name = self._ground, f"dos chaos {directory}"
        with AckLog(self._acknowledgements(directory)) as log:
            while True:
                try:
                    async with open_store(ground.url, token=ground.token, client=name) as store:
                        claim, writer, sequence = await keep_taking_over(store, directory)
                        self._opened[directory].set()
                        workload = Workload(writer, log, directory, claim.epoch, sequence, self._meter)
                        rng = random.Random(f"{self._request.seed}/{directory}/{claim.epoch}")  # noqa: S311 - content
                        await workload.run(rng, WINDOW)
                except StoreNotReadyError:
                    await trio.sleep(RETRY_S)

    def _acknowledgements(self, directory: str) -> Path:
        return self._ground.evidence / f"{directory}.acknowledged"

    async def _progress(self) -> None:
        measures, before = self._result.measures, 0
        while True:
            await trio.sleep(LINE_EVERY_S)
            rate = (measures.acknowledged - before) / LINE_EVERY_S
            before = measures.acknowledged
            silent = measures.silent_s(self._meter.now)
            self._say(
                f"{measures.acknowledged:,} acknowledged, {rate:,.0f}/s, nothing for {silent:.1f} s,"
                f" {self._meter.used_bytes // MIB} of {self._request.space_bytes // MIB} MiB,"
                f" {self._ground.describe()}"
            )

    async def _goes_on(self) -> float:
        """Wait until every chain has something new acknowledged; return the seconds that took."""
        measures, begun = self._result.measures, trio.current_time()
        before = dict(measures.by_directory)
        with trio.move_on_after(RECOVERED_S):
            while any(  # noqa: ASYNC110 - records are acknowledged in other tasks, many in each millisecond
                measures.by_directory.get(one, 0) <= before.get(one, 0) for one in self._opened
            ):
                await trio.sleep(0.02)
            return trio.current_time() - begun
        raise NotConvergedError(
            f"after the faults, not every chain had a record acknowledged within {RECOVERED_S:.0f} s;"
            f" {self._ground.describe()}"
        )

    async def _compare(self) -> None:
        ground, verdict = self._ground, self._result.verdict
        await ground.reopen()
        for directory in ground.directories():
            self._say(f"comparing {directory}")
            found = await harvest(ground.url, directory, token=ground.token, copies=True)
            acknowledged = read_log(self._acknowledgements(directory))
            judge_directory(verdict, directory, found, acknowledged, self._reader.returned[directory])
        await self._meter.measure()
