"""A reader: reads a chain now and then, without a claim, and reports what it received to the history
(R10)."""

from random import Random

from dos_protocol.errors import DosError
from journal import inspect_chain
from tests.sim.engine.environment import Process, Signal
from tests.sim.history import History
from tests.sim.store.sim_store import SimStore
from tests.sim.store.writer import CHAIN, Stores, numbers_of


def pause_s(rng: Random) -> float:
    """Return the pause between two reads."""
    return 0.2 + rng.expovariate(1 / 1.8)


class Reader(Process):
    """One reader process of one directory. `read_now`: set to end its pause."""

    def __init__(self, name: str, stores: Stores, directory: str, history: History, rng: Random) -> None:
        super().__init__(stores.network.env, name)
        self.directory = directory
        self.history = history
        self.rng = rng
        self.store = SimStore(self, stores.network, stores.record)
        self.read_now = Signal()
        self.start("work", self._work())

    async def _work(self) -> None:
        while True:
            try:
                await self.inspect()
            except DosError as error:
                self.history.sometimes[f"reader: {type(error).__name__}"] += 1
            await self.wait(self.read_now, pause_s(self.rng))

    async def inspect(self) -> list[int]:
        """Read the chain once; return the numbers of the committed records."""
        owed = self.history.acknowledged_now(self.directory)
        state = await inspect_chain(self.store, self.directory, CHAIN)
        found = await numbers_of(self.store, state, self.directory)
        self.store.close()
        self.env.trace.note(self.env.now, self.name, f"reads {len(found)} records of {self.directory}")
        self.history.returned(self.directory, found, owed=0 if state.unproved else owed)
        self.history.sometimes["reader: read"] += 1
        return found
