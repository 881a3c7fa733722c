"""The input of a region is trimmed while everything fails: no retained checkpoint misses a row."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from checkpoint.core.consumers import need_of
from journal.core import read_walk
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


def not_committed() -> Any:
    """Counts a record of the manifest that any member has: the release is not durable."""
    return mock.patch.object(read_walk, "held_by_quorum", lambda quorums, seen, claims, filled: seen.longest)


def votes() -> Any:
    """Counts a checkpoint for which all workers have voted as committed."""
    original = trimmer.Trimmer.__init__

    def init(self: Any, region: Any) -> None:
        def need(kept: Any, sources: Any, split: str) -> int:
            whole = [parts for parts in region.record.votes.values() if len(parts) == region.spec.workers]
            voted = [
                at.position
                for parts in whole[-1:]
                for part in parts.values()
                for source in sources
                if (at := part.sources.get(source, {}).get(split)) is not None
            ]
            return voted[0] if voted else need_of(kept, sources, split)

        original(self, region)
        self.patch = mock.patch.object(trimmer, "need_of", need)
        self.patch.start()

    return mock.patch.object(trimmer.Trimmer, "__init__", init)


@pytest.mark.parametrize("bug", [latest_only, not_committed, votes])
def test_a_planted_bug_of_trimming_is_found(bug: Any) -> None:
    try:
        with bug():
            assert any(run_seed(seed).violation for seed in SEEDS[:RUNS]), "not found"
    finally:
        mock.patch.stopall()
