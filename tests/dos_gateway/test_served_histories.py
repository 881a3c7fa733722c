"""Two drivers want one name, through gateways that lose their claims: random orders of deliveries,
take-overs, lost answers and time, on a store in memory with every delivery in the test's hands.

What must hold: of two renames to one name one succeeds; what a client knows stays; a refusal is right; no
reader sees it taken back.
"""

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dos_gateway import serving
from dos_gateway.core.hadoop import HadoopError
from dos_gateway.serving import ServedTree
from dos_protocol.errors import DosError
from tests.journal.memory_store import MemoryClaim, MemoryStore
from tests.shells.trio_run import run_deterministic

DIRECTORY: Final = "t.fs"
FINAL: Final = ("d", "final")
STEPS: Final = 60


@dataclass
class Driver:
    """A driver: puts a file of its own, then renames it to the contested name. number: length of its file."""

    number: int
    has_file: bool = False
    told: str = ""
    """done, exists or missing."""
    busy: bool = False

    @property
    def source(self) -> tuple[str, ...]:
        return "d", f"t{self.number}"


@dataclass
class History:
    """One run. known: the owner of the contested name that a client knows, 0 for none."""

    seed: int
    store: MemoryStore = field(default_factory=MemoryStore)
    claims: list[MemoryClaim] = field(default_factory=list)
    served: list[ServedTree] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=lambda: [Driver(1), Driver(2)])
    known: int = 0
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await self.take_over(nursery, [1, 2, 3])
            for _ in range(STEPS):
                await self.step(nursery)
                await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await self.judge()

    async def step(self, nursery: trio.Nursery) -> None:
        what = self.random.choice(["ask"] * 5 + ["read"] * 2 + ["deliver"] * 8 + ["time"] * 2 + ["take over"])
        if what == "ask":
            driver = self.random.choice(self.drivers)
            if not driver.busy and not driver.told:
                nursery.start_soon(self.ask, driver, self.random.choice(self.served[-2:]))
        elif what == "read":
            nursery.start_soon(self.read, self.random.choice(self.served[-2:]))
        elif what == "deliver":
            self.random.choice(self.claims[-2:]).deliver(self.random.choice([1, 2, 3]))
        elif what == "time":
            await trio.sleep(self.random.choice([0.05, 0.3, 0.9]))
        elif len(self.claims) < 4:
            await self.take_over(nursery, self.random.choice([[1, 2], [1, 3], [2, 3], [1, 2, 3]]))

    async def take_over(self, nursery: trio.Nursery, members: list[int]) -> None:
        claim = self.store.claim(len(self.claims) + 1, members, DIRECTORY)
        self.claims.append(claim)
        served = await ServedTree.open(claim, 1, served_at="", name="t", max_bytes=None)  # type: ignore[arg-type]
        claim.held = True
        self.served.append(served)
        nursery.start_soon(self.serve, served)

    async def serve(self, served: ServedTree) -> None:
        try:
            await served.run()
        except* (DosError, HadoopError):
            pass  # fenced

    async def ask(self, driver: Driver, served: ServedTree) -> None:
        """The next request of a driver; its answer may be lost."""
        driver.busy, known = True, self.known
        try:
            with trio.move_on_after(3.0):
                if not driver.has_file:
                    await served.create(driver.source, body(driver.number), overwrite=True, still_there=there)
                    lost = self.random.random() < 0.2
                    driver.has_file = driver.has_file or not lost
                elif await served.move(driver.source, FINAL, "NONE", there):
                    if self.random.random() < 0.3:
                        return  # the answer is lost: it asks again
                    driver.told = "done"
                    self.tell(driver.number, known, f"driver {driver.number} knows that it renamed")
        except HadoopError as error:
            kind = error.java.rpartition(".")[2]
            if kind != "StandbyException" and driver.has_file:
                driver.told = {"FileAlreadyExistsException": "exists"}.get(kind, "missing")
        finally:
            driver.busy = False

    async def read(self, served: ServedTree) -> None:
        known = self.known
        with trio.move_on_after(3.0):
            try:
                owner = (await served.status(FINAL)).length
            except HadoopError as error:
                if error.java.endswith("StandbyException"):
                    return
                owner = 0
            self.tell(owner, known, f"a reader got {owner}")

    def tell(self, owner: int, known: int, what: str) -> None:
        """known: what had been told before the request was sent."""
        if known and owner != known:
            self.problems.append(f"{what}, after {known} was known")
        self.known = self.known or owner

    async def judge(self) -> None:
        """Everything arrives, or is lost; a last gateway serves what is left."""
        claim = self.store.claim(len(self.claims) + 1, [1, 2, 3], DIRECTORY)
        tree = (await ServedTree.open(claim, 1, served_at="", name="t", max_bytes=None)).tree  # type: ignore[arg-type]
        node = tree.find(FINAL).node
        owner = 0 if node is None else node.length
        if self.known and owner != self.known:
            self.problems.append(f"{self.known} was known, and {owner} is there")
        for driver in self.drivers:
            if driver.told == "exists" and owner in (0, driver.number):
                self.problems.append(f"driver {driver.number} knows that the name exists, and it has {owner}")
            if driver.told == "missing":
                self.problems.append(f"driver {driver.number} knows that its file is missing")


def there() -> None:
    """The client waits for its answer."""


async def body(size: int) -> AsyncIterator[bytes]:
    yield b"x" * size


def run_history(seed: int, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setattr(serving, "clock", trio.current_time)
    history = History(seed)
    run_deterministic(lambda _: history.run(), seed)
    return history


@pytest.mark.parametrize("first", [0, 100])
def test_what_was_told_stays_whatever_is_lost_and_whoever_serves(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: set[str] = set()
    for seed in range(first, first + 100):
        history = run_history(seed, monkeypatch)
        assert not history.problems, (seed, history.problems)
        told |= {driver.told for driver in history.drivers}
    assert told >= {"done", "exists"}


def test_a_listing_waits_for_what_it_shows_of_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of a directory shows how many children it has, and when the last one came."""
    monkeypatch.setattr(serving, "clock", trio.current_time)
    store, told = MemoryStore(), []

    async def run() -> None:
        claim = store.claim(1, [1, 2, 3], DIRECTORY)
        served = await ServedTree.open(claim, 1, served_at="", name="t", max_bytes=None)  # type: ignore[arg-type]
        await served.make_folder(("d", "e"), there)
        claim.held, served._lease.until = True, float("inf")

        async def look() -> None:
            told.extend(await served.listing(("d",)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(served.create, overwrite=True, still_there=there), ("d", "e", "f"), body(1)
            )
            await wait_all_tasks_blocked()
            nursery.start_soon(look)
            await wait_all_tasks_blocked()
            assert told == []
            for member in (1, 2):
                claim.deliver(member)
        assert [one.children for one in told] == [1]

    trio.run(run, clock=MockClock(autojump_threshold=0))
