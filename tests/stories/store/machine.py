"""The simulator's machine, and what its server writes in its log.

Rules of this file: it listens. What the server does is its own matter.
"""

import logging
from collections.abc import Callable
from random import Random
from typing import Any

from dos_server.core import looks
from dos_server.core import vocabulary as v
from dos_server.core.scrub import ScrubPlan
from tests.sim.engine.network import Network
from tests.sim.engine.world import World
from tests.sim.store.server import Machine, Server


class Log(logging.Handler):
    """Warnings and errors of the servers, with the name of the one that runs: `speaker`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.speaker = "a server"
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(f"{self.speaker} logs: {record.getMessage()}")


class StoryServer(Server):
    """A life of the server, which says who it is while it runs."""

    machine: "StoryMachine"

    def do(self, call: Callable[..., None], *args: Any) -> None:
        self.machine.log.speaker = self.name
        super().do(call, *args)

    def _perform(self, effect: v.Effect) -> v.Event | None:
        if isinstance(effect, looks.Tell):
            self.machine.tell(f"{self.name} logs: {effect.text}")
        return super()._perform(effect)


class StoryMachine(Machine):
    """See the module. Its server does not scrub, unless the story says so."""

    life = StoryServer

    def __init__(
        self,
        world: World,
        network: Network,
        name: str,
        chance: Random,
        log: Log,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(world, network, name, chance)
        self.scrub = ScrubPlan()
        self.log = log
        self.tell = tell

    def start(self) -> None:
        self.log.speaker = self.name
        super().start()

    def _note(self, what: str) -> None:
        super()._note(what)
        if what.startswith("cannot start"):
            self.tell(f"{self.name} {what}")
