"""Decide which seeds have a run with an operator."""

from tests.sim.engine.random_streams import RandomStreams
from tests.sim.regions.region import has_region

OPERATORS_SHARE = 0.03
"""Few, because such a run costs four times as much: its clients are complete shells."""


def has_operator(rng: RandomStreams) -> bool:
    """Return whether that seed's run has an operator. The result is the same for each call."""
    return not has_region(rng) and rng.stream("operator").random() < OPERATORS_SHARE
