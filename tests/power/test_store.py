"""Power cuts of a store of three real servers, each on a disk of its own that loses what was not synced.

Of one server while writers go on, of all at once, and what NATS lost data by: of one while the others stand
still, then of those. The writers append records to journals through the SDK, pipelined, and log which were
acknowledged; a take-over finds every one of them after the cut, once and in order (`tests/chaos/checker.py`).
"""

import random
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from dos_chaos.core.checker import CHAIN, Verdict, judge_chain
from dos_chaos.servers import ServerStartError
from dos_chaos.workload import AckLog, Workload, count_acknowledged, entries_of, keep_taking_over, read_log
from dos_client import init_store, open_store
from journal import inspect_chain, read_records
from tests.dos_client.support import url_of
from tests.power.mount import LossyDisk
from tests.support.servers import ServerProcess

pytestmark = [pytest.mark.trio, pytest.mark.process, pytest.mark.timeout(180)]
DIRECTORIES = ("app.w0000", "app.w0001")
WINDOW = 100
PATIENCE_S = 60.0


class Three:
    """Three servers on disks of their own, a store once `init_store` was called."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._threads = stack.enter_context(ThreadPoolExecutor(3))
        self._folder = folder
        self.disks = self._each(lambda number: stack.enter_context(LossyDisk(folder / f"disk-{number}")))
        self.servers: list[ServerProcess] = self._each(lambda number: self.disks[number].start_server())
        self.url = url_of(self.servers)

    def _each(self, do: Callable[[int], Any], numbers: tuple[int, ...] = (0, 1, 2)) -> list[Any]:
        return list(self._threads.map(do, numbers))

    async def cut(self, *numbers: int, seed: int | None) -> None:
        """The power of these goes, of all of them before any of them is on again."""
        seeds = {number: None if seed is None else seed + number for number in numbers}

        def cut() -> None:
            self._each(lambda number: self.disks[number].freeze(), numbers)
            self._each(lambda number: self.disks[number].go_dark(seeds[number]), numbers)

        await trio.to_thread.run_sync(cut)

    async def restart(self, *numbers: int) -> None:
        await trio.to_thread.run_sync(self._each, lambda number: self.servers[number].restart(), numbers)

    def log(self, directory: str) -> Path:
        return self._folder / f"{directory}.log"

    def acknowledged(self) -> int:
        """Records, in both journals."""
        return sum(count_acknowledged(self.log(directory)) for directory in DIRECTORIES)

    async def more(self, count: int) -> None:
        """Wait until so many more records are acknowledged."""
        goal = self.acknowledged() + count
        with trio.move_on_after(PATIENCE_S):
            while self.acknowledged() < goal:  # noqa: ASYNC110 - the log is a file
                await trio.sleep(0.01)
            return
        raise AssertionError(f"{self.acknowledged()} records are acknowledged, {goal} never were")

    @asynccontextmanager
    async def writing(self, seed: int) -> AsyncIterator[None]:
        """A writer of each journal at work; both are dead when the block ends."""
        async with trio.open_nursery() as nursery:
            for directory in DIRECTORIES:
                self.log(directory).touch()
                nursery.start_soon(self._write, directory, seed)
            yield
            nursery.cancel_scope.cancel()

    async def _write(self, directory: str, seed: int) -> None:
        with AckLog(self.log(directory)) as log:
            async with open_store(self.url) as store:
                claim, writer, sequence = await keep_taking_over(store, directory)
                async with claim:
                    workload = Workload(writer, log, directory, claim.epoch, sequence)
                    await workload.run(random.Random(f"{seed}/{directory}"), WINDOW)

    async def judged(self) -> Verdict:
        """Take both journals over and compare them with what was acknowledged."""
        verdict = Verdict()
        async with open_store(self.url) as store:
            for directory in DIRECTORIES:
                claim, _, _ = await keep_taking_over(store, directory)
                async with claim:
                    state = await inspect_chain(store, directory, CHAIN)
                    assert not state.unproved, state.unproved_text
                    chain = [step async for step in read_records(store, state, directory=directory)]
                entries = list(entries_of(directory, chain))
                judge_chain(verdict, directory, read_log(self.log(directory)), entries)
        return verdict


@pytest.fixture
def without_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers sync each object in its own file. With a log, one whose disk lies refuses to start."""
    monkeypatch.setenv("DOS_GROUP_LOG", "0")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    with ExitStack() as stack:
        yield Three(tmp_path, stack)


async def assert_nothing_lost(three: Three, records_min: int) -> None:
    """All servers are restarted; the store has all that it acknowledged, and that is at least this much."""
    await three.restart(0, 1, 2)
    verdict = await three.judged()
    assert verdict.good, verdict.examples
    assert verdict.acknowledged >= records_min


async def test_all_servers_lose_their_power_at_once_and_no_acknowledged_record(three: Three) -> None:
    # EVIDENCE-OF: P-1, P-5
    await init_store(three.url)
    for seed in (10, 20, None):
        async with three.writing(seed or 0):
            await three.more(1_000)
            await three.cut(0, 1, 2, seed=seed)
        await assert_nothing_lost(three, records_min=1_000)


async def test_servers_lose_their_power_one_after_the_other_and_the_writers_continue(three: Three) -> None:
    """At the end as Jepsen did to NATS: one is cut while the two others stand still, then these at once."""
    # EVIDENCE-OF: P-1, P-5, P-10
    await init_store(three.url)
    async with three.writing(0):
        await three.more(500)
        for number in range(3):
            await three.cut(number, seed=number)
            await three.more(500)
            await three.restart(number)
        await three.more(500)
        for number in (1, 2):
            three.servers[number].pause()
        await three.cut(0, seed=5)
        for number in (1, 2):
            three.servers[number].resume()
        await three.more(500)
        await three.cut(1, 2, seed=6)
    await assert_nothing_lost(three, records_min=3_000)


async def test_when_no_disk_syncs_a_cut_of_all_servers_loses_records_and_it_is_seen(
    without_log: None, three: Three
) -> None:
    """The mutant: with servers that acknowledge what is not on disk, the tests above would fail."""
    await init_store(three.url)
    async with three.writing(0):
        await three.more(500)
        for disk in three.disks:
            await trio.to_thread.run_sync(lambda disk=disk: disk.lie(files=True, folders=False))
        await three.more(500)
        await three.cut(0, 1, 2, seed=None)
    try:
        await three.restart(0, 1, 2)
    except ServerStartError as error:
        if "is not the complete data of one server" not in str(error):
            raise
        return  # its own record was among what is lost, and it refuses to start
    verdict = await three.judged()
    assert verdict.lost > 0
