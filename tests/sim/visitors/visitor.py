"""What visitors of both versions have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from dos_protocol.errors import DosError
from tests.sim.engine.environment import Process
from tests.sim.engine.network import Network

if TYPE_CHECKING:
    from tests.sim.store.machine import Machine


class Visitor(Process, ABC):
    """One client process, which uses one server after the other, of those `known` to it."""

    def __init__(
        self, name: str, network: Network, known: "Callable[[], list[Machine]]", rng: Random
    ) -> None:
        super().__init__(network.env, name)
        self._network = network
        self._known = known
        self._rng = rng
        self.start("work", self._work())

    async def _work(self) -> None:
        while True:
            await self.sleep(self._rng.expovariate(1 / 0.3))
            try:
                await self._visit(self._rng.choice(self._known()).address)
            except DosError as error:
                self.env.sometimes[f"visitor: {type(error).__name__}"] += 1

    @abstractmethod
    async def _visit(self, address: str) -> None:
        """Use one server. Raises DosError."""
