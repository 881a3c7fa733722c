"""Two workers of a region that can never reach each other again, while everything else works: one is moved.

In the second tier each process has a host of its own, so a worker that is launched again is on another host.
"""

from itertools import pairwise
from random import Random

import pytest

from checkpoint.core.coordination.workers import Placement
from tests.shells.region.nemesis import KINDS
from tests.shells.region.phases import SAFETY_S
from tests.shells.run import Cluster, run_seed
from tests.sim.nemesis.fault import Fault
from tests.sim.result import Result

QUIET = 20
PARTED_AT_S = 2.0
ONE_WAY, BOTH_WAYS = "part_one_way", "part_both_ways"


def part(cluster: Cluster, both_ways: bool) -> None:
    """Lose all packets between two workers, for ever."""
    assert cluster.region is not None
    living = [one.name for one in cluster.region.workers if one.alive]
    for path in pairwise([*living[:2], living[0]] if both_ways else living[:2]):
        cluster.network.block(*path)
        cluster.later(SAFETY_S - PARTED_AT_S + 0.01, cluster.network.block, *path)  # after the end of faults


def part_one_way(cluster: Cluster, fault: Fault, rng: Random) -> None:
    part(cluster, both_ways=False)


def part_both_ways(cluster: Cluster, fault: Fault, rng: Random) -> None:
    part(cluster, both_ways=True)


def run_parted(kind: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    for fault in (part_one_way, part_both_ways):
        monkeypatch.setitem(KINDS, fault.__name__, fault)  # not in the plans of seeds, which it would change
    return run_seed(QUIET, faults=[Fault(0, PARTED_AT_S, kind, 0.0, "parted")])


@pytest.mark.parametrize("kind", [ONE_WAY, BOTH_WAYS])
def test_a_worker_that_a_peer_cannot_reach_is_moved_and_the_region_finishes(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_parted(kind, monkeypatch)
    assert not result.violation
    assert result.history.sometimes["end: FINISHED"] == 2
    assert result.seconds < 60


def test_without_another_placement_it_does_not_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "worker_to_move", lambda *_: None)
    assert run_parted(BOTH_WAYS, monkeypatch).violation
