"""Which seeds have a run with an operator."""

from tests.sim.engine.random_streams import RandomStreams
from tests.sim.regions.region import has_region

OPERATORS_SHARE = 0.03
"""Such a run costs four times another: its clients are whole shells."""


def has_operator(rng: RandomStreams) -> bool:
    """Whether that seed's run has one. Asked as often as one likes."""
    return not has_region(rng) and rng.stream("operator").random() < OPERATORS_SHARE
