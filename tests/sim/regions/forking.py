"""A person who forks a region once, with the code that the command uses, while servers and drivers fail.

Now and then the person gives up between the two records of a fork, and tries again later: then the first
savepoint stays. The driver of the original drops the savepoint of the fork when it needs it no more.
"""

from typing import TYPE_CHECKING, Final

from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.records.lines import forked, made_for_forks
from checkpoint.core.records.manifest import Checkpoint, ForkOrigin, SavepointNote
from checkpoint.core.region import SavepointSettled
from checkpoint.maintenance.forking import fork_needs
from checkpoint.maintenance.stopped_region import append_record, hold_manifest
from dos_protocol.errors import DosError
from tests.sim.engine.environment import Process
from tests.sim.regions.claiming import Host
from tests.sim.store.sim_store import SimStore

if TYPE_CHECKING:
    from tests.sim.regions.driver import Driver
    from tests.sim.regions.region import Region

FORK: Final = "fork"
PATIENCE_S: Final = 20.0


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
        deadline = self.now + PATIENCE_S
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
