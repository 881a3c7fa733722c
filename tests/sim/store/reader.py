"""A reader: looks at a chain now and then, without a claim, and tells the history what it was shown (R10)."""

from random import Random

from dos_protocol.errors import DosError
from journal import inspect_chain
from tests.sim.engine.world import Process, Signal
from tests.sim.history import History
from tests.sim.store.looking import SimStore
from tests.sim.store.writer import CHAIN, Stores, numbers_of


def pause_s(rng: Random) -> float:
    """Between two looks."""
    return 0.2 + rng.expovariate(1 / 1.8)


class Reader(Process):
    """One reader process of one directory. `look_now`: set when it should not wait."""

    def __init__(self, name: str, stores: Stores, directory: str, history: History, rng: Random) -> None:
        super().__init__(stores.network.world, name)
        self.directory = directory
        self.history = history
        self.rng = rng
        self.store = SimStore(self, stores.network, stores.record)
        self.look_now = Signal()
        self.start("life", self._live())

    async def _live(self) -> None:
        while True:
            try:
                await self.inspect()
            except DosError as error:
                self.history.sometimes[f"reader: {type(error).__name__}"] += 1
            await self.wait(self.look_now, pause_s(self.rng))

    async def inspect(self) -> list[int]:
        """One look; what is committed, by number."""
        state = await inspect_chain(self.store, self.directory, CHAIN)
        found = await numbers_of(self.store, state, self.directory)
        self.store.close()
        self.world.trace.note(self.world.now, self.name, f"is shown {len(found)} records of {self.directory}")
        self.history.showed(self.directory, found)
        self.history.sometimes["reader: looked"] += 1
        return found
