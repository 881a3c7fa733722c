"""The simulator's machine for stories: nothing is random."""

from random import Random

from dos_server.core.requests.scrub import ScrubPlan
from tests.sim.engine.environment import Environment
from tests.sim.engine.network import Network
from tests.sim.store.machine import Machine
from tests.sim.store.server_log import ServerLog
from tests.stories.store.old_client import StoryServer


class StoryMachine(Machine):
    """A machine whose server does not scrub. Its log lines are printed."""

    def __init__(self, env: Environment, network: Network, name: str, rng: Random, log: ServerLog) -> None:
        super().__init__(env, network, name, rng)
        self.scrub = ScrubPlan()
        self._log = log
        self.server_class = lambda machine: StoryServer(machine, log)

    def _note(self, what: str) -> None:
        super()._note(what)
        if what.startswith("cannot start"):
            self._log.report(self.name, what)
