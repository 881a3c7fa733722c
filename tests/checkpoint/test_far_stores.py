"""Opening a manifest where every question takes a second: how long drivers wait for each other. No servers,
no clock."""

from collections.abc import Callable
from typing import Any

import pytest

from checkpoint import limits
from checkpoint.chains.manifest_log import ManifestLog
from checkpoint.core.coordination.vocabulary import Event, ManifestOpened, ManifestSuperseded, OpenManifest
from dos_protocol.errors import FencedError
from tests.journal.memory_store import MemoryClaim, MemoryStore, MemoryView

pytestmark = pytest.mark.trio
DIRECTORY = "region.coord"
QUESTION_S = 1.0


class Claim(MemoryClaim):
    """What a manifest wants of a claim besides."""

    waiting = False

    async def aclose(self) -> None: ...


class View(MemoryView):
    @property
    def epoch_seen(self) -> int:
        return max(epoch for epoch, _ in self.epochs.values())


class FarHost:
    """A store of which each answer takes a second. `on_claim`: what another does meanwhile."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.record = self.store.record
        self.time = 0.0
        self.slept: list[float] = []
        self.on_claim: Callable[[int], None] = lambda epoch: None

    async def inspect(self, directory: str) -> View:
        self.time += QUESTION_S
        found = await self.store.inspect(directory)
        return View(found.answers, found.filled, found.epochs)

    async def claim(self, directory: str, epoch: int, patience_s: float) -> Claim:
        self.time += QUESTION_S
        self.on_claim(epoch)
        claim = Claim(self.store, directory, epoch, bytes(15) + bytes([epoch]))
        for server in self.store.servers:
            claim.join(server)
        return claim

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def rng(self) -> float:
        return 0.5

    def now(self) -> float:
        return self.time

    def wall_time_ms(self) -> int:
        return 0


def keeper() -> tuple[Any, ManifestLog, list[Event]]:
    host, events = FarHost(), list[Event]()
    return host, ManifestLog(host, "region", events.append), events  # type: ignore[arg-type]


async def test_a_driver_that_is_superseded_tells_how_long_its_attempt_took() -> None:
    host, log, events = keeper()

    def another(epoch: int) -> None:
        raise FencedError("another claimed", actual=epoch + 1)

    host.on_claim = another
    host.time = 100.0
    await log.open(OpenManifest(above=0, held=0))
    assert events == [ManifestSuperseded(2, 0.5, attempt_s=2 * QUESTION_S)]


async def test_an_older_driver_gives_a_newer_claimant_twice_the_time_that_its_own_opening_took() -> None:
    """Two seconds are enough next door. Here the claimant would be taken over from before it can begin."""
    host, log, events = keeper()
    await log.open(OpenManifest(above=0, held=0))
    opened = events.pop()
    assert isinstance(opened, ManifestOpened)
    await host.claim(DIRECTORY, opened.incarnation + 1, 1.0)
    await log.open(OpenManifest(above=0, held=opened.incarnation))
    inspect_and_claim_s = 2 * QUESTION_S
    assert host.slept == [2 * inspect_and_claim_s, limits.store_poll_s]
    assert isinstance(events.pop(), ManifestOpened), "the claimant died over it"
