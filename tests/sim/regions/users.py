"""What persons and their processes do with a region: forks and trims."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from checkpoint.chains.manifest_log import retained_checkpoints
from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.lines import forked, made_for_forks
from checkpoint.core.records.manifest import Checkpoint, ForkOrigin, SavepointNote
from checkpoint.core.region import SavepointSettled
from checkpoint.maintenance.forking import fork_needs
from checkpoint.maintenance.stopped_region import append_record, hold_manifest
from dos_protocol.errors import DosError
from tests.sim.engine.environment import Process
from tests.sim.regions.base import FORK, SOURCES
from tests.sim.regions.claiming import Host
from tests.sim.store.sim_store import SimStore

if TYPE_CHECKING:
    from tests.sim.regions.driver import Driver
    from tests.sim.regions.region import Region


# --- trimmer ----------------------------------------------------------------------------------------------


class Trimmer(Process):
    """The trimmer of one region's input."""

    def __init__(self, region: "Region") -> None:
        super().__init__(region.env, "trimmer")
        self._region = region
        self._rng = region.rng.stream("trimmer")
        self.start("trim", self._trim())

    async def _trim(self) -> None:
        region = self._region
        store = SimStore(self, region.network, region.store)
        while True:
            await self.sleep(0.1 + self._rng.expovariate(2.0))
            try:
                kept = await retained_checkpoints(store, region.spec.name)
                # The fork registers as a consumer before it reads. Until then the original holds its input.
                forked = region.fork is not None and await retained_checkpoints(store, FORK)
            except DosError as error:  # what is needed is unknown: nothing is trimmed
                region.saw(f"trimmer: {type(error).__name__}")
                continue
            finally:
                store.close()
            for split in region.given.splits:
                needs = [self.needs(of_one, split) for of_one in (kept, forked) if of_one]
                region.given.trim(split, min(needs, default=0))
            region.saw("trimmed")

    def needs(self, kept: Sequence[Checkpoint], split: str) -> int:
        """Return the position from which on the retained checkpoints need a split."""
        return need_of(kept, SOURCES, split)


# --- forking ----------------------------------------------------------------------------------------------


FORK_PATIENCE_S: Final = 20.0


class Forker(Process):
    """The person. `first`: the first record of the fork, once it is committed."""

    def __init__(self, region: "Region") -> None:
        super().__init__(region.env, "forker")
        self.first: Checkpoint | None = None
        self.busy = False
        self._region = region
        self._rng = region.rng.stream("forker")
        self._host = Host(self, region.network, region.store, region.history, self._rng)
        self._settled: dict[str, SavepointSettled] = {}
        self._tries = 0
        self.start("fork", self._fork())

    def settled(self, event: SavepointSettled) -> None:
        """Note the answer to a request."""
        self._settled[event.name] = event

    async def _fork(self) -> None:
        while self.first is None and not self._region.finishing:
            await self.sleep(0.3 + self._rng.expovariate(1.0))
            self.busy = True
            try:
                await self._try()
            except DosError as error:  # another attempt follows, and finds what this one has done
                self._region.saw(f"forker: {type(error).__name__}")
            self.busy = False

    async def _try(self) -> None:
        region, driver = self._region, self._region.running
        if driver is None or not region.record.committed:
            return
        self._tries += 1
        name = f"fork-{self._tries:08x}"
        number = self._rng.choice(region.record.committed[-1].retained)
        driver.post(SavepointWanted(name, number, note=SavepointNote(fork=FORK)))
        deadline = self.now + FORK_PATIENCE_S
        while name not in self._settled and self.now < deadline:
            await self.sleep(0.1)
        if name not in self._settled or self._settled[name].error or self._rng.random() < 0.2:
            return
        region.saw("a fork has its savepoint")
        await self.sleep(self._rng.expovariate(2.0))
        source = region.record.reported[number]
        origin = ForkOrigin(region=region.spec.name, checkpoint=number, step=source.step, savepoint=name)
        async with hold_manifest(self._host, FORK) as held:
            if held.opened.last_checkpoint is None:
                await append_record(held, FORK, forked(source, origin, held.opened.incarnation))
                region.saw("a region is forked")
            kept = held.opened.last_checkpoint
        self.first = kept or forked(source, origin, held.opened.incarnation)


async def watch_forks(driver: "Driver") -> None:
    """Drop the savepoints whose fork needs them no more, as `checkpoint.coordinator.shell` does."""
    region = driver.region
    store = SimStore(driver, region.network, region.store)
    while True:
        await driver.sleep(0.1 + 0.4 * driver.rng.random())
        for name, note in made_for_forks(driver.core.run.last_checkpoint).items():
            try:
                needs = await fork_needs(store, region.spec.name, name, note)
            except DosError as error:  # what it needs is unknown now
                region.saw(f"watcher of forks: {type(error).__name__}")
                continue
            finally:
                store.close()
            if needs is False:
                region.saw("the savepoint of a fork is dropped")
                driver.post(SavepointWanted(name, on=False))
