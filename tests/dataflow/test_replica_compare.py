"""Replicas that give the same rows are never said to differ; a row that one lacks is named."""

from collections.abc import Callable
from random import Random
from unittest import mock

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


@given(st.permutations(range(8)), st.integers(0, 7))
def test_of_a_stream_that_is_far_ahead_the_newest_seconds_are_compared_in_whatever_order_they_came(
    order: list[int], lacking: int
) -> None:
    comparison = ReplicaComparison(1)
    for name in "ab":
        comparison.join(name, BEFORE_ALL)
    digest = np.frombuffer(b"x" * 16, DIGEST)
    with mock.patch.object(replica_compare, "_SECONDS_MAX", 5):
        for second in order:
            comparison.give("a", digest, np.array([second * SECOND + 1]), lambda _: "the row")
        assert comparison.set_mark("a", 8 * SECOND) is None
    for second in range(8):
        if second != lacking:
            comparison.give("b", digest, np.array([second * SECOND + 1]), lambda _: "the row")
    expected = Difference(lacking, "a", "b", "the row") if lacking > 8 - 5 else None
    assert comparison.set_mark("b", 8 * SECOND) == expected
    assert comparison.compared == (4 if expected is None else lacking - 4)


def judged(random: Random, make: Make, versions: dict[str, int]) -> list[Difference]:
    """Replicas of the same version give the same row in each second. Those that are named leave. Return the
    differences, up to one that names nobody.
    """
    comparison, found = make(1), list[Difference]()
    for name in versions:
        comparison.join(name, BEFORE_ALL)
    at = dict.fromkeys(versions, 0)
    while running := [name for name in at if at[name] < 5]:
        name = random.choice(running)
        begin, at[name] = at[name], at[name] + random.randrange(1, 3)
        texts = [f"{second} {versions[name]}" for second in range(begin, at[name])]
        digests = np.frombuffer(b"".join(text.ljust(16).encode() for text in texts), DIGEST)
        times = np.array([second * SECOND + 1 for second in range(begin, at[name])])
        comparison.give(name, digests, times, texts.__getitem__)
        difference = comparison.set_mark(name, at[name] * SECOND)
        if difference is not None:
            found.append(difference)
            if not difference.minority:
                break
            for one in difference.minority:
                comparison.leave(one)
                del at[one]
    return found


def by_majority(every: int) -> ReplicaComparison:
    return ReplicaComparison(every, by_majority=True)


def check_minority(random: Random, make: Make) -> None:
    """Three to five replicas, of which less than half give rows of their own."""
    names = "abcde"[: random.choice([3, 4, 5])]
    wrong = sorted(random.sample(names, random.randrange((len(names) - 1) // 2 + 1)))
    found = judged(random, make, {name: name in wrong and names.index(name) + 1 for name in names})
    assert sorted(name for difference in found for name in difference.minority) == wrong, found
    assert all(difference.minority for difference in found), found


def check_no_majority(random: Random, make: Make) -> None:
    """No version has more than half of the replicas."""
    versions = random.choice([[0, 1, 2], [0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 1, 1, 2], [0, 1]])
    random.shuffle(versions)
    (found,) = judged(random, make, dict(zip("abcde", versions, strict=False)))
    assert (found.second, found.minority) == (0, ())


def check_left(make: Make) -> None:
    """Two of three streams differ, and the third leaves before it decides."""
    comparison = make(1)
    for name in "abc":
        comparison.join(name, BEFORE_ALL)
    comparison.give("a", np.frombuffer(b"x" * 16, DIGEST), np.array([1]), lambda _: "the row")
    assert comparison.set_mark("a", SECOND) is None
    assert comparison.set_mark("b", SECOND) is None
    comparison.leave("c")
    assert comparison.set_mark("b", 2 * SECOND) == Difference(0, "a", "b", "the row")


@given(st.randoms(use_true_random=False))
def test_the_minority_is_named_and_nobody_else(random: Random) -> None:
    check_minority(random, by_majority)


@given(st.randoms(use_true_random=False))
def test_without_a_majority_nobody_is_named(random: Random) -> None:
    check_no_majority(random, by_majority)


def test_an_undecided_second_is_decided_when_the_third_stream_leaves() -> None:
    check_left(by_majority)


MAJORITY_BUGS = {
    "half is a majority": (
        "wins = votes and 2 * len(largest) > len(voters)",
        "wins = votes and 2 * len(largest) >= len(voters)",
    ),
    "those that are to come do not count": ("<= len(voters) < 2 * most", "<= len(voters) < 0"),
    "an undecided second is forgotten": ("{*self._undecided, *(", "{*("),
    "the largest group is named": (
        "largest = max(groups.values(), key=len)",
        "largest = min(groups.values(), key=len)",
    ),
}


@pytest.mark.parametrize("bug", MAJORITY_BUGS)
def test_planted_bugs_of_the_majority_are_found(bug: str) -> None:
    broken = planted(replica_compare, *MAJORITY_BUGS[bug])["ReplicaComparison"]

    def make(every: int) -> ReplicaComparison:
        made: ReplicaComparison = broken(every, by_majority=True)
        return made

    for seed in range(100):
        try:
            check_minority(Random(seed), make)
            check_no_majority(Random(seed), make)
            check_left(make)
        except (AssertionError, ValueError):
            return
    pytest.fail(f"not found: {bug}")


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
