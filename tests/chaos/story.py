"""One run: start, faults and work at the same time, healing, verdict."""

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import trio

from dos_chaos import NotConvergedError
from dos_chaos.core.checker import Verdict
from dos_chaos.workload import CommittedReader, Found, harvest
from dos_protocol.errors import DosError
from tests.chaos.cluster import Cluster, running
from tests.chaos.evidence import Evidence, judge
from tests.chaos.faults import LANES
from tests.chaos.nemesis import Nemesis, Pauses, keep_writers

CREATED_S = 60.0
MANIFEST_DIRECTORY = "app.coord"
GOING_ON_S = 60.0
"""After healing every directory has something acknowledged again within this (P-10)."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. It lasts `seconds`, and until `acknowledged` records are acknowledged."""

    seed: int
    seconds: float = 20.0
    acknowledged: int = 0
    directories: int = 4
    window: int = 100
    lanes: tuple[str, ...] = tuple(LANES)
    pace: float = 1.0
    seconds_max: float = 1_800.0


@dataclass(slots=True)
class Report:
    """The result of a run."""

    options: Options
    verdict: Verdict = field(default_factory=Verdict)
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    take_overs: int = 0
    fenced: int = 0
    superseded: int = 0
    writers: int = 0
    longest_pause_s: float = 0.0
    longest_fault_s: float = 0.0
    healed_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """What had not recovered within its time limit. Nothing is checked after that."""
    evidence: Evidence | None = None

    @property
    def good(self) -> bool:
        return (
            self.verdict.good
            and not self.errors
            and not self.late
            and self.verdict.acknowledged >= self.options.acknowledged
        )

    @property
    def only_late(self) -> bool:
        """Either the machine is too slow, or something does not recover: run it again to decide."""
        return bool(self.late) and not self.errors and self.verdict.good

    def as_json(self) -> dict[str, Any]:
        """For programs; without the evidence, which is large."""
        return {**asdict(replace(self, evidence=None)), "good": self.good}


class Watcher:
    """The observer of a run: receives each event, and the state now and then."""

    def happened(self, text: str) -> None:
        """A fault, or a part of the run, began."""

    def show(self, cluster: Cluster, nemesis: Nemesis, elapsed_s: float) -> None:
        """Several times a second."""


async def run(options: Options, folder: Path, watcher: Watcher | None = None) -> Report:
    """One run in an empty folder. What went wrong is in the report; only bugs of the harness raise."""
    watcher = watcher or Watcher()
    report = Report(options)
    directories = [f"app.w{index:04}" for index in range(options.directories - 1)] + [MANIFEST_DIRECTORY]
    begun = time.monotonic()
    async with running(folder, options.seed, options.window, directories) as cluster:
        events = folder / "logs" / "events"

        def say(text: str) -> None:
            with events.open("a") as file:
                file.write(f"{time.monotonic() - begun:7.1f}  {text}\n")
            watcher.happened(text)

        nemesis = Nemesis(cluster, options.seed, say, options.lanes, options.pace)
        reader = CommittedReader(cluster.url, directories)
        pauses = Pauses(cluster)
        try:
            async with trio.open_nursery() as nursery:
                for task in (pauses.watch, reader.run):
                    nursery.start_soon(task)
                await created(cluster)
                await work(options, cluster, nemesis, watcher)
                watcher.happened("healing")
                await cluster.heal()
                report.healed_s = await goes_on(cluster)
                nursery.cancel_scope.cancel()
            pauses.inspect(trio.current_time())
            found = await read_all(cluster, directories, watcher)
            await cluster.end_servers()
            disks = [member.server.data for member in cluster.members]
            logged = {directory: cluster.logged(directory) for directory in directories}
            report.evidence = Evidence(logged, found, reader.returned, disks)
            report.verdict = judge(report.evidence)
        except* (NotConvergedError, trio.TooSlowError) as group:
            report.late += [f"after healing: {error!r}" for error in group.exceptions]
        except* DosError as group:
            report.errors += [f"after healing: {error!r}" for error in group.exceptions]
        report.errors += cluster.errors
        report.faults = dict(sorted(nemesis.counts.items()))
        report.take_overs, report.fenced = cluster.take_overs, cluster.fenced
        report.superseded = cluster.superseded
        report.writers = sum(map(len, cluster.writers.values()))
        report.longest_pause_s, report.longest_fault_s = pauses.longest_s, nemesis.longest_s
    report.seconds = time.monotonic() - begun
    return report


async def created(cluster: Cluster) -> None:
    """Create the journals before the first fault, because that needs all members (R16)."""
    for directory in cluster.writers:
        writer = await cluster.add_writer(directory)
        with trio.fail_after(CREATED_S):
            await writer.opened.wait()


async def work(options: Options, cluster: Cluster, nemesis: Nemesis, watcher: Watcher) -> None:
    """Faults and writers side by side, until it has been long and much enough; the last faults end."""
    begun = trio.current_time()

    async def picture() -> None:
        while True:
            watcher.show(cluster, nemesis, trio.current_time() - begun)
            await trio.sleep(0.25)

    async with trio.open_nursery() as around:
        around.start_soon(keep_writers, cluster)
        around.start_soon(picture)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nemesis.run)
            with trio.move_on_after(options.seconds_max):
                await trio.sleep(options.seconds)
                while cluster.acknowledged < options.acknowledged:  # noqa: ASYNC110 - other processes write the logs
                    await trio.sleep(0.1)
            nemesis.stop()
        around.cancel_scope.cancel()


async def goes_on(cluster: Cluster) -> float:
    """Until every directory has something new acknowledged; the seconds that took."""
    begun = trio.current_time()
    before = {directory: cluster.acknowledged_in(directory) for directory in cluster.writers}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_writers, cluster)
        with trio.move_on_after(GOING_ON_S) as scope:
            while any(cluster.acknowledged_in(one) <= count for one, count in before.items()):  # noqa: ASYNC110
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    if scope.cancelled_caught:
        raise NotConvergedError(
            f"no record acknowledged in every directory within {GOING_ON_S:g} s of healing"
        )
    return trio.current_time() - begun


async def read_all(cluster: Cluster, directories: list[str], watcher: Watcher) -> dict[str, Found]:
    await cluster.end_writers()
    found = {}
    for directory in directories:
        watcher.happened(f"reading {directory}")
        found[directory] = await harvest(cluster.url, directory)
    return found
