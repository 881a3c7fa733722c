"""Make a machine in a simulation without other events, for tests of the records about one machine."""

from random import Random

from tests.sim.engine.environment import Environment
from tests.sim.engine.network import Network
from tests.sim.engine.trace import Trace
from tests.sim.store.machine import Machine


def machine() -> Machine:
    """Return a machine with an empty disk and no running server."""
    env, rng = Environment(Trace()), Random(1)
    return Machine(env, Network(env, rng, lambda here, there: 0.0), "s0", rng)
