"""Nothing grows in a region that runs for a long virtual time; and what would grow is found."""

from collections.abc import Sequence
from typing import Final

import pytest

from tests.sim.soak.bugs import IN_MEMORY, STORED, Growth, all_planted
from tests.sim.soak.run import Soak, soaking
from tests.support.growth import Compared

LIMIT_RESTARTS: Final = (1.25, 10.0)
LIMIT_CALM: Final = (1.1, 4.0)
"""In a short run a quarter has one turn of all disturbances, so maxima of two quarters differ more."""
RESTARTS_COMPARED_FROM: Final = 1_000
"""In shorter runs each kind of restart happens four times, which is too rare to compare what it costs."""


def grown(checkpoints: int, *, calm: bool, workers: int = 1, seed: int = 1) -> list[Compared]:
    """Return what grows in a short soak with many disturbances."""
    with soaking():
        soak = Soak(
            seed,
            calm=calm,
            workers=workers,
            disturbed_every=4,
            sampled_every=max(checkpoints // 20, 1),
            limit=LIMIT_CALM if calm else LIMIT_RESTARTS,
        )
        soak.run(checkpoints)
        found = soak.samples.grown()
    if checkpoints < RESTARTS_COMPARED_FROM:
        return [one for one in found if not one.name.startswith("restart")]
    return found


# EVIDENCE-OF: P-6
@pytest.mark.parametrize("calm", [False, True], ids=["restarts", "calm"])
def test_nothing_grows(calm: bool) -> None:
    assert not grown(160, calm=calm)


@pytest.mark.long(ci=False)  # two minutes; the shorter ones show the same
@pytest.mark.parametrize("calm", [False, True], ids=["restarts", "calm"])
def test_nothing_grows_in_2000_checkpoints(calm: bool) -> None:
    assert not grown(2_000, calm=calm)


@pytest.mark.long  # links between two workers: 1 minute
@pytest.mark.parametrize("calm", [False, True], ids=["restarts", "calm"])
def test_nothing_grows_in_a_region_of_two_workers(calm: bool) -> None:
    assert not grown(1_000, calm=calm, workers=2)


def check_found(bugs: Sequence[Growth], found: list[Compared]) -> None:
    names = [one.name for one in found]
    missed = [bug.what for bug in bugs if not any(name.startswith(bug.figure) for name in names)]
    assert not missed, names


@pytest.mark.long
def test_planted_growth_in_memory_is_found() -> None:
    with all_planted(IN_MEMORY):
        check_found(IN_MEMORY, grown(100, calm=True))


@pytest.mark.long
def test_planted_growth_on_disk_is_found() -> None:
    with all_planted(STORED):
        check_found(STORED, grown(160, calm=False))


@pytest.mark.long  # one run for each bug: 1 minute
@pytest.mark.parametrize("bug", [*STORED, *IN_MEMORY], ids=lambda bug: bug.what)
def test_each_planted_growth_is_found_alone(bug: Growth) -> None:
    with bug.plant():
        calm = bug in IN_MEMORY
        check_found([bug], grown(100 if calm else 160, calm=calm))
