"""Replicas that give the same rows are never said to differ; a row that one lacks is named."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.core import replica_compare
from dataflow.core.duplicate_filter import BEFORE_ALL, DIGEST
from dataflow.core.replica_compare import SECOND, Difference, ReplicaComparison
from tests.support.planted_source import planted

Row = tuple[int, int]
"""Its time in tenths of a second, and what it is."""
Make = Callable[[int], ReplicaComparison]


def rows_of(random: Random) -> list[Row]:
    return [(random.randrange(60), random.randrange(4)) for _ in range(random.randrange(20))]


def life(random: Random, make: Make, rows: list[Row], lacking: Row | None) -> Difference | None:
    """Three replicas, each in its own order, some of which join again; the second one may lack a row."""
    names = ["a", "b", "c"]
    comparison, left = make(1), dict[str, list[Row]]()
    at: dict[str, int] = {}

    def join(name: str, base: int) -> None:
        comparison.join(name, base)
        mine = list(rows)
        if name == "b" and lacking is not None:
            mine.remove(lacking)
        left[name] = [row for row in mine if row[0] * SECOND // 10 > base]
        at[name] = 0

    for name in names:
        join(name, BEFORE_ALL)
    for _ in range(30):
        name = random.choice(names)
        if random.random() < 0.03:
            join(name, random.choice([BEFORE_ALL, random.randrange(6) * SECOND - 1]))
            continue
        at[name] += random.randrange(10)
        given_now = [row for row in left[name] if row[0] <= at[name] or random.random() < 0.2]
        random.shuffle(given_now)
        for row in given_now:
            left[name].remove(row)
        digests = np.frombuffer(b"".join(what.to_bytes(16, "big") for _, what in given_now), DIGEST)
        times = np.array([tenths * SECOND // 10 for tenths, _ in given_now], np.int64)
        texts = [repr(row) for row in given_now]
        comparison.give(name, digests, times, lambda index, texts=texts: texts[index])  # type: ignore[misc]
        if found := comparison.set_mark(name, at[name] * SECOND // 10):
            return found
    return None


@given(st.randoms(use_true_random=False))
def test_replicas_that_give_the_same_rows_never_differ(random: Random) -> None:
    assert life(random, ReplicaComparison, rows_of(random), None) is None


@given(st.randoms(use_true_random=False))
def test_a_row_that_a_replica_lacks_is_named(random: Random) -> None:
    rows = [(5, 9), *rows_of(random)]
    found = life(random, ReplicaComparison, rows, (5, 9))
    if found is not None:
        assert (found.second, found.lacking, found.row) == (0, "b", "(5, 9)")


def test_a_difference_is_found_once_two_marks_have_passed_its_second() -> None:
    comparison = ReplicaComparison(1)
    for name in "ab":
        comparison.join(name, BEFORE_ALL)
    digest = np.frombuffer(b"x" * 16, DIGEST)
    comparison.give("a", digest, np.array([3 * SECOND]), lambda _: "the row")
    assert comparison.set_mark("a", 9 * SECOND) is None
    assert comparison.set_mark("b", 4 * SECOND - 2) is None
    assert comparison.set_mark("b", 4 * SECOND - 1) == Difference(3, "a", "b", "the row")


def test_without_memory_for_rows_a_difference_is_still_found() -> None:
    comparison = ReplicaComparison(1, rows_max=1)
    for name in "ab":
        comparison.join(name, BEFORE_ALL)
    digests = np.frombuffer(b"x" * 32, DIGEST)
    comparison.give("a", digests, np.array([1, 2]), lambda _: "the row")
    comparison.set_mark("a", SECOND)
    assert comparison.set_mark("b", SECOND) == Difference(0, "a", "b", "2 rows at a, 0 at b")


BUGS = {
    "a second that a stream joined within is compared": (
        "number * SECOND > one.base]",
        "number * SECOND > -1]",
    ),
    "what was dropped is compared": ("one.base = max(one.base, dropped)", "pass"),
    "a second is compared before its end": (
        "if _end(number) <= self._streams",
        "if _end(number - 1) <= self._streams",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug: str) -> None:
    broken: Make = planted(replica_compare, *BUGS[bug])["ReplicaComparison"]
    for seed in range(400):
        random = Random(seed)
        try:
            if life(random, broken, rows_of(random), None) is not None:
                return
        except AssertionError:
            return
    pytest.fail(f"not found: {bug}")
