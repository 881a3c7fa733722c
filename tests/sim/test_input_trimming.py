"""The input of a region is trimmed while everything fails: no retained checkpoint misses a row."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from checkpoint.core.consumers import need_of
from tests.sim.regions import region as region_module
from tests.sim.regions import trimmer
from tests.sim.regions.region import Region
from tests.sim.run import run_seed
from tests.sim.test_regions import SEEDS

RUNS = 8


@pytest.fixture(autouse=True)
def _trims() -> Iterator[None]:
    with mock.patch.object(Region, "trims", new=True):
        yield


# EVIDENCE-OF: P-6
def test_no_retained_checkpoint_needs_what_was_trimmed() -> None:
    trimmed = 0
    for seed in SEEDS[:RUNS]:
        result = run_seed(seed)
        assert not result.violation, f"seed {seed}: {result.violation}"
        trimmed += result.history.sometimes["trimmed"]
    assert trimmed > 10 * RUNS


def latest_only() -> Any:
    """Trims to the latest retained checkpoint."""
    return mock.patch.object(trimmer, "need_of", lambda kept, *args: need_of(kept[-1:], *args))


def votes() -> Any:
    """Counts a checkpoint as committed, and the oldest one as released, once all workers have voted."""

    class Voted(trimmer.Trimmer):
        def needs(self, kept: Any, split: str) -> int:
            region = self._region
            record = region.record
            whole = [(key, cut) for key, cut in record.votes.items() if len(cut) == region.spec.workers]
            if whole and kept and max(key for key, _ in whole)[1] > kept[-1].cut:
                parts = max(whole)[1]
                later = [
                    one.sources["lines"][split] for one in parts.values() if split in one.sources["lines"]
                ]
                left = kept[1:] if len(kept) >= region.spec.retain else kept
                return min([need_of(left, trimmer.SOURCES, split), *(at.position for at in later)])
            return super().needs(kept, split)

    return mock.patch.object(region_module, "Trimmer", Voted)


@pytest.mark.parametrize(("bug", "runs"), [(latest_only, RUNS), (votes, RUNS)])
def test_a_planted_bug_of_trimming_is_found(bug: Any, runs: int) -> None:
    with bug():
        assert any(run_seed(seed).violation for seed in SEEDS[:runs]), "not found"
