"""Layouts for other workers: even, nearest to the one before, and not in too many ranges."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.records.layout import (
    SHARD_BITS,
    Layout,
    ShardRange,
    check_layout,
    even_layout,
    least_moved,
    moved_units,
    rebalanced,
    state_parts,
)

UNITS = 1 << SHARD_BITS
TOLERANCES = st.sampled_from([0.0, 0.05, 0.1, 0.5])


def shares(layout: Layout) -> Counter[int]:
    """Units of each worker."""
    found: Counter[int] = Counter()
    for one in layout.ranges:
        found[one.worker] += one.end - one.begin
    return found


def moved_one_by_one(before: Layout, after: Layout) -> int:
    """The same as `moved_units`, unit by unit."""

    def owners(layout: Layout) -> list[int]:
        return [one.worker for one in layout.of_operator() for _ in range(one.begin, one.end)]

    return sum(old != new for old, new in zip(owners(before), owners(after), strict=True))


def check(before: Layout, after: Layout, workers: set[int], tolerance: float) -> None:
    check_layout(after, max(workers) + 1)  # every unit once
    owned = shares(after)
    assert owned.keys() == workers
    if tolerance:
        finest = len(workers) / UNITS  # one unit more than the average
        assert max(owned.values()) * len(workers) <= UNITS * (1 + max(tolerance, finest))
    else:
        assert max(owned.values()) - min(owned.values()) <= 1
    ranges = Counter(one.worker for one in after.ranges)
    assert max(ranges.values()) <= limits.layout_ranges_max
    assert moved_units(before, after) >= least_moved(before, workers, tolerance=tolerance)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4096), st.integers(1, 4096), TOLERANCES)
def test_any_number_of_workers_becomes_any_other(old: int, new: int, tolerance: float) -> None:
    before = rebalanced(even_layout(1), range(old), tolerance=tolerance)
    after = rebalanced(before, range(new), tolerance=tolerance)
    check(before, after, set(range(new)), tolerance)
    assert moved_units(before, after) == least_moved(before, range(new), tolerance=tolerance)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30), st.integers(1, 20), TOLERANCES)
def test_workers_come_and_go(changes: list[tuple[int, int]], start: int, tolerance: float) -> None:
    """Ids are never used again, several come and go at once, and any of them may leave."""
    rng = random.Random(start)
    workers, next_id = set(range(start)), start
    layout = rebalanced(even_layout(1), workers, tolerance=tolerance)
    for coming, leaving in changes:
        gone = rng.sample(sorted(workers), min(leaving, len(workers) - (coming == 0)))
        workers = workers - set(gone) | set(range(next_id, next_id + coming))
        next_id += coming
        after = rebalanced(layout, workers, tolerance=tolerance)
        check(layout, after, workers, tolerance)
        assert moved_units(layout, after) == moved_one_by_one(layout, after)
        assert moved_units(layout, after) == least_moved(layout, workers, tolerance=tolerance)
        layout = after


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_after_many_changes_a_worker_has_a_bounded_number_of_ranges(
    tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit that is reached soon. The price is that more than the least is moved, now and then."""
    monkeypatch.setattr(limits, "layout_ranges_max", 8)
    rng = random.Random(1)
    workers, next_id = set(range(30)), 30
    layout = rebalanced(even_layout(1), workers, tolerance=tolerance)
    extra = []
    for _ in range(60):
        gone = rng.sample(sorted(workers), rng.randint(1, 4))
        coming = rng.randint(1, 4)
        workers = workers - set(gone) | set(range(next_id, next_id + coming))
        next_id += coming
        after = rebalanced(layout, workers, tolerance=tolerance)
        check(layout, after, workers, tolerance)
        extra.append(moved_units(layout, after) - least_moved(layout, workers, tolerance=tolerance))
        layout = after
    assert 0 < sum(1 for units in extra if units) < len(extra) / 2


@pytest.mark.parametrize(
    ("old", "new", "fixed", "dynamic"),
    [
        (2, 3, 0.3333, 0.3125),
        (4, 5, 0.2, 0.1875),
        (16, 17, 0.0588, 0.0586),
        (3, 2, 0.3333, 0.3125),
        (8, 16, 0.5, 0.5),
        (3, 5, 0.4, 0.3906),
    ],
)
def test_the_shares_that_move(old: int, new: int, fixed: float, dynamic: float) -> None:
    """`hash % workers` moves 0.6667, 0.8, 0.9412, 0.6667, 0.5 and 0.8 of the state."""
    for tolerance, share in ((0.0, fixed), (0.1, dynamic)):
        before = rebalanced(even_layout(1), range(old), tolerance=tolerance)
        after = rebalanced(before, range(new), tolerance=tolerance)
        assert round(moved_units(before, after) / UNITS, 4) == share


def test_shards_double_with_the_workers_and_are_not_halved() -> None:
    """With halved shards, 13 to 12 workers would move 0.1016 of the state instead of 0.0769."""
    large = rebalanced(even_layout(1), range(13), tolerance=0.1)
    small = rebalanced(large, range(12), tolerance=0.1)
    assert moved_units(large, small) / UNITS == pytest.approx(1 / 13, abs=0.005)


def test_the_dynamic_rule_in_any_size_keeps_its_tolerance() -> None:
    worst = 0.0
    for workers in (*range(1, 40), 51, 63, 64, 65, 204, 819, 1638, 4095, 4096):
        owned = shares(rebalanced(even_layout(1), range(workers), tolerance=0.1))
        worst = max(worst, max(owned.values()) * workers / UNITS - 1)
    assert 0.095 < worst <= 0.1


def test_a_layout_of_the_same_workers_is_the_same() -> None:
    for workers in (1, 2, 3, 7, 64):
        layout = even_layout(workers)
        assert rebalanced(layout, range(workers)) == layout


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.sets(st.integers(0, 20), min_size=1, max_size=12), st.booleans())
def test_every_part_of_the_state_has_one_heir(old: int, workers: set[int], of_all: bool) -> None:
    before = even_layout(old)
    after = rebalanced(before, workers)
    parts = state_parts(before, after, of_all=of_all)
    assert parts.keys() == workers
    taken = [
        (a, b, part.worker, worker) for worker in parts for part in parts[worker] for a, b in part.ranges
    ]
    for begin, end, giver, taker in taken:
        middle = (begin + end) // 2 << (64 - SHARD_BITS)
        assert (before.worker_of(middle), after.worker_of(middle)) == (giver, taker)
    assert sum(end - begin for begin, end, _, _ in taken) == UNITS
    heirs = [(part.worker, worker) for worker in parts for part in parts[worker] if part.stays]
    assert sorted(giver for giver, _ in heirs) == list(range(old)), (
        "what belongs to no key is taken over once"
    )
    assert all(giver == taker for giver, taker in heirs if giver in workers)
    for ours in parts.values():
        assert [part.worker for part in ours] == sorted(part.worker for part in ours)
        assert not of_all or len(ours) == old


def test_splits_of_leaving_workers_are_assigned_to_nobody() -> None:
    layout = Layout((ShardRange(0, UNITS, 4),), splits={"orders": {"a": 4, "b": 7}})
    assert rebalanced(layout, [4, 9]).splits == {"orders": {"a": 4}}


def test_what_is_no_layout_is_refused() -> None:
    layout = even_layout(1)
    for workers in (range(0), range(limits.workers_max + 1)):
        with pytest.raises(ValueError, match="1 to 4096 workers"):
            rebalanced(layout, workers)
    for tolerance in (-0.1, 1.0):
        with pytest.raises(ValueError, match="tolerance"):
            rebalanced(layout, [0], tolerance=tolerance)
