"""The input of a region is trimmed while everything fails: no retained checkpoint misses a row."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from checkpoint.core.records.consumers import need_of
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
    """Trims to the positions for which all workers have voted last, whether the checkpoint is committed or
    not.
    """

    class Voted(trimmer.Trimmer):
        def needs(self, kept: Any, split: str) -> int:
            workers = self._region.spec.workers
            whole = [parts for parts in self._region.record.votes.values() if len(parts) == workers]
            voted = [part.sources["lines"] for parts in whole[-1:] for part in parts.values()]
            found = [splits[split].position for splits in voted if split in splits]
            return found[0] if found else super().needs(kept, split)

    return mock.patch.object(region_module, "Trimmer", Voted)


@pytest.mark.long
@pytest.mark.parametrize("bug", [latest_only, votes])
def test_a_planted_bug_of_trimming_is_found(bug: Any) -> None:
    with bug():
        assert any(run_seed(seed).violation for seed in SEEDS[:RUNS]), "not found"
