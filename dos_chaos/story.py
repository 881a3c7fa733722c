"""One run: writers and readers at work, faults, recovery, comparison, verdict."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio

from dos_chaos.ack_log import AckLog, read_log
from dos_chaos.core.report import ChaosResult
from dos_chaos.errors import NotConvergedError, ServerStartError
from dos_chaos.fault_log import FaultLog
from dos_chaos.harvest import CommittedReader, harvest, judge_directory
from dos_chaos.metering import BudgetMeter
from dos_chaos.workload import NOT_NOW, Workload, keep_taking_over
from dos_client import StoreNotReadyError, open_store
from dos_protocol.errors import DosError, errors_in
from dos_protocol.limits import MIB

CREATED_S: Final = 60.0
RECOVERED_S: Final = 120.0
GRACE_S: Final = 300.0
"""A run ends at the latest so long after its faults: for recovery, take-overs and comparisons."""
LINE_EVERY_S: Final = 5.0
WINDOW: Final = 100
RETRY_S: Final = 0.2

Say = Callable[[str], None]


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
class RunLimits:
    """The bounds of a run: seconds of faults, and bytes on all disks together."""

    seconds: float
    budget_bytes: int


class ChaosRun:
    """One run on a ground that is started. `result` is filled in, whatever happens."""

    def __init__(self, ground: Ground, limits: RunLimits, seed: int, result: ChaosResult, say: Say) -> None:
        self._ground = ground
        self._limits = limits
        self._seed = seed
        self._result = result
        self._say_line = say
        self._meter = BudgetMeter(
            result.measures,
            limit_bytes=limits.budget_bytes,
            copies=ground.copies,
            seconds=limits.seconds,
            used=ground.used_bytes,
        )
        self._log = FaultLog(result.measures, lambda: self._meter.now, self._say)
        self._reader = CommittedReader(ground.url, ground.directories(), ground.token)
        self._opened = {directory: trio.Event() for directory in ground.directories()}

    async def run(self) -> None:
        """Run to the verdict. What the store did wrong is in the result; bugs of this program raise."""
        result = self._result
        result.faults = self._log.windows
        result.budget_bytes = self._limits.budget_bytes
        try:
            with trio.fail_after(self._limits.seconds + GRACE_S):
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
        self._say_line(line)

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
            await ground.faults(self._log, self._limits.seconds)
            self._result.seconds = self._meter.now
            self._say("no more faults: every server must be back, and every chain continue")
            await ground.heal()
            self._meter.release_rest()
            self._result.healed_s = await self._goes_on()
            await self._meter.measure()
            measures.finish(self._meter.now)
            nursery.cancel_scope.cancel()

    async def _write(self, directory: str) -> None:
        """Write one chain until cancelled."""
        ground, name = self._ground, f"dos chaos {directory}"
        with AckLog(self._acknowledgements(directory)) as log:
            while True:
                try:
                    async with open_store(ground.url, token=ground.token, client=name) as store:
                        claim, writer, sequence = await keep_taking_over(store, directory)
                        self._opened[directory].set()
                        workload = Workload(writer, log, directory, claim.epoch, sequence, self._meter)
                        rng = random.Random(f"{self._seed}/{directory}/{claim.epoch}")  # noqa: S311 - content
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
                f" {self._meter.used_bytes // MIB} of {self._limits.budget_bytes // MIB} MiB,"
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
        """Read everything back, one chain after the other, and judge it."""
        ground, verdict = self._ground, self._result.verdict
        await ground.reopen()
        for directory in ground.directories():
            self._say(f"comparing {directory}")
            found = await harvest(ground.url, directory, token=ground.token, copies=True)
            acknowledged = read_log(self._acknowledgements(directory))
            judge_directory(verdict, directory, found, acknowledged, self._reader.returned[directory])
        await self._meter.measure()
