"""What the tests of a region in many simulated runs have in common: the seeds, sound runs, planted bugs."""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from tests.sim.engine.random_streams import RandomStreams
from tests.sim.regions.region import has_region
from tests.sim.result import Result

SEEDS: Final = [seed for seed in range(1, 1_200) if has_region(RandomStreams(seed))]
"""Seeds whose runs have a region."""
Planted: TypeAlias = contextlib.AbstractContextManager[Any]
Bug: TypeAlias = Callable[[], Planted]
Run: TypeAlias = Callable[[int], Result]


def seen_in(run: Run, seeds: Sequence[int]) -> Counter[str]:
    """Run these seeds, none of which may violate a promise. Return how often each event was seen."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        result = run(seed)
        assert not result.violation, f"seed {seed}: {result.violation}"
        seen += result.history.sometimes
    return seen


def assert_found(run: Run, bug: Bug, seeds: Sequence[int]) -> None:
    """One of these seeds must find the bug."""
    with bug():
        found = next((result for seed in seeds if (result := run(seed)).violation), None)
    assert found is not None
    print(found.seed, found.violation)
