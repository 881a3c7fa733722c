"""A machine alone, in a simulation without other events: for tests of what is recorded about one."""

from random import Random

from tests.sim.engine.network import Network
from tests.sim.engine.trace import Trace
from tests.sim.engine.world import World
from tests.sim.store.server import Machine


def machine() -> Machine:
    """With an empty disk; nothing runs there."""
    world, rng = World(Trace()), Random(1)
    return Machine(world, Network(world, rng, lambda here, there: 0.0), "s0", rng)
