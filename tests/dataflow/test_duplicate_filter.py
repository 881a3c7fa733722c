"""The filter of duplicates against a plain multiset: any order, marks, joins, resets, dead streams."""

import random
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.core import duplicate_filter
from dataflow.core.duplicate_filter import BEFORE_ALL, DIGEST, DuplicateFilter, FilterState, Missing
from tests.support.planted_source import planted

Row = tuple[int, int]
"""(time, what). A row is known by both."""
WIDTH = 4


class Part(NamedTuple):
    """A record of a log: rows, then the mark; `high`: the largest time of any row up to here."""

    rows: list[Row]
    mark: int
    high: int


class Replica:
    """The output of one replica: logs, each with the rows in an order of its own, marks as often as it likes.

    `checkpoint`: the number of records of each log that were trimmed.
    """

    def __init__(self, rng: random.Random, rows: list[Row], logs: int) -> None:
        self.logs = {f"w{number}": self._log(rng, rows[number::logs]) for number in range(logs)}
        self.checkpoint = dict.fromkeys(self.logs, 0)

    @staticmethod
    def _log(rng: random.Random, rows: list[Row]) -> list[Part]:
        """Rows are late by up to some time, so a mark is below the earliest row that is still to come."""
        spread = rng.choice([0, 2, 9])
        ordered = sorted(rows, key=lambda row: row[0] + rng.uniform(0, spread))
        parts, high = [], BEFORE_ALL
        while ordered:
            count = rng.randrange(1, 5)
            part, ordered = ordered[:count], ordered[count:]
            high = max([high, *(time for time, _ in part)])
            mark = min([time for time, _ in ordered], default=1_000) - 1
            parts.append(Part(part, mark if rng.random() < 0.7 else min(mark, part[0][0] - 1), high))
        marks: list[Part] = []
        for part in parts:  # marks do not fall
            mark = max(part.mark, marks[-1].mark) if marks else part.mark
            marks.append(part._replace(mark=mark))
        return [*marks, Part([], 1_000, high)]

    def trim(self, mark: int) -> None:
        """Delete the records that a reader with that mark does not need."""
        for log, parts in self.logs.items():
            self.checkpoint[log] = max(self.checkpoint[log], sum(part.high <= mark for part in parts[:-1]))

    def base_and_places(self, mark: int) -> tuple[int, dict[str, int]]:
        """Where a reader joins (F3): after the last record with high <= M, or at the start of each log."""
        bases, places = [], {}
        for log, parts in self.logs.items():
            after = sum(part.high <= mark for part in parts)
            places[log] = max(after, self.checkpoint[log])
            trimmed = self.checkpoint[log] > after
            bases.append(parts[self.checkpoint[log] - 1].high if trimmed else min(mark, parts[-1].high))
        return max(bases), places


class Reader:
    """A reader of all replicas, and what it has passed on."""

    def __init__(self, replicas: dict[str, Replica], seed: int) -> None:
        self.replicas = replicas
        self.rng = random.Random(seed)
        self.filter = DuplicateFilter(WIDTH)
        self.out: list[Row] = []
        self.saved: tuple[FilterState, int] = (self.filter.state(), 0)
        self.places: dict[str, dict[str, int]] = {}
        for name in replicas:
            self.join(name)

    def join(self, name: str) -> None:
        replica = self.replicas[name]
        base, places = replica.base_and_places(self.filter.mark)
        self.places[name] = places
        self.filter.join(name, replica.logs, base)
        for log, place in places.items():
            if place and replica.logs[log][place - 1].high <= self.filter.mark:
                self.filter.set_mark(name, log, replica.logs[log][place - 1].mark)

    def read(self, name: str, log: str) -> bool:
        """Read the next record of a log. Return whether there was one."""
        parts, at = self.replicas[name].logs[log], self.places[name][log]
        if at == len(parts):
            return False
        self.places[name][log] = at + 1
        rows = parts[at].rows
        digests = np.frombuffer(b"".join(digest_of(row) for row in rows), DIGEST)
        passes = self.filter.take(name, digests, np.array([time for time, _ in rows], np.int64))
        self.out += [row for row, passed in zip(rows, passes, strict=True) if passed]
        if self.filter.set_mark(name, log, parts[at].mark):
            ends = (self.filter.state().buckets + 1) * WIDTH - 1
            assert (ends > self.filter.mark).all(), "what lies below the mark is kept"
        return True

    def save(self) -> None:
        self.saved = (self.filter.state(), len(self.out))

    def reset(self) -> None:
        """Go back to the last checkpoint: what was passed on since is made again."""
        state, count = self.saved
        self.filter, self.out = DuplicateFilter(WIDTH, state), self.out[:count]
        for name in self.replicas:
            self.join(name)


def digest_of(row: Row) -> bytes:
    return row[0].to_bytes(8, "big", signed=True) + row[1].to_bytes(8, "big")


def play(seed: int) -> Reader:
    """A history. In the end each row was passed as often as it occurs."""
    rng = random.Random(seed)
    rows = [(rng.randrange(20), rng.randrange(3)) for _ in range(rng.randrange(30))]
    names = [f"s{number}" for number in range(rng.randrange(1, 4))]
    replicas = {}
    for name in names:
        rng.shuffle(rows)
        replicas[name] = Replica(rng, rows, rng.choice([1, 1, 2]))
    reader, dead = Reader(replicas, seed), set(rng.sample(names, rng.randrange(len(names))))
    expected, keeper = Counter(rows), min(set(names) - dead)
    for _ in range(60):
        name, drawn = rng.choice(names), rng.random()
        if drawn < 0.75:
            if name not in dead or rng.random() < 0.5:
                reader.read(name, rng.choice([*replicas[name].logs]))
        elif drawn < 0.82:
            reader.join(name)  # a reset of the replica, another line of history, or a broken connection
        elif drawn < 0.9:
            reader.save()
        elif drawn < 0.95:
            reader.reset()
        elif name == keeper or drawn < 0.97:
            replicas[name].trim(reader.saved[0].mark)
        else:
            replicas[name].trim(rng.randrange(20))  # too much: the reader was forgotten there
        check(reader, expected)
    for name in set(names) - dead:
        while sum(reader.read(name, log) for log in replicas[name].logs):
            check(reader, expected)
    assert Counter(reader.out) == expected
    assert reader.filter.mark == 1_000
    assert not reader.filter.state().digests.size, "nothing is kept of what lies below the mark"
    return reader


def check(reader: Reader, expected: Counter[Row]) -> None:
    passed = Counter(reader.out)
    assert passed <= expected, "a copy too many"
    below = Counter({row: count for row, count in expected.items() if row[0] <= reader.filter.mark})
    assert below <= passed, "the mark is above a row that was not passed"


@given(st.integers(0, 1 << 40))
@settings(max_examples=400)
def test_each_row_is_passed_as_often_as_it_occurs(seed: int) -> None:
    play(seed)


BUGS = {
    "a bag is a set": ("= np.maximum(given, before)", "= 1 << 40"),
    "copies in one batch are one": ("+ 1 + places - np.maximum.accumulate(begins)", "+ 1"),
    "copies pass twice": ("passes[order] = given > before", "passes[order] = given >= before"),
    "a row passes in another one's place": ("passes[order] = given", "passes[:] = given"),
    "counts above the mark are freed": (
        "(one + 1) * self._width - 1 <= mark",
        "(one - 1) * self._width <= mark",
    ),
    "a bucket that ends at the mark is kept": ("* self._width - 1 <= mark", "* self._width - 1 < mark"),
    "a joiner counts at once": ("if one.base <= self.mark]", "]"),
    "one log speaks for its stream": (
        "return min((mark for mark in found if mark != IDLE), default=None)",
        "return max((mark for mark in found if mark != IDLE), default=None)",
    ),
    "a state has only its mark": (
        "sorted(self._buckets.items())",
        "[]",
    ),
    "a joiner keeps its counts": (
        "bucket.counts.pop(stream, None)",
        "pass",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        globals(), "DuplicateFilter", planted(duplicate_filter, *BUGS[bug])["DuplicateFilter"]
    )
    with pytest.raises(AssertionError):
        play_many()


def play_many() -> None:
    for seed in range(2_000):
        play(seed)


def test_without_a_whole_stream_the_missing_range_is_named_and_can_be_given_up() -> None:
    filtering = DuplicateFilter(WIDTH)
    filtering.join("a", ["w0"], base=10)
    filtering.join("b", ["w0"], base=7)
    assert filtering.missing() == Missing(BEFORE_ALL, 7)
    assert not filtering.set_mark("a", "w0", 30), "it may lack rows up to its base"
    assert filtering.accept_loss() == Missing(BEFORE_ALL, 7)
    assert (filtering.mark, filtering.missing()) == (7, None)
    assert filtering.set_mark("b", "w0", 11)
    assert filtering.mark == 30, "b makes a whole, whose mark counts at once"


def test_ranks_say_which_stream_was_first_second_and_third() -> None:
    one = DuplicateFilter(10)
    rows = np.frombuffer(b"a" * 16 + b"b" * 16 + b"a" * 16, DIGEST)
    times = np.array([3, 4, 3])
    for name in "xyz":
        one.join(name, ["log"])
    one.take("x", rows[:2], times[:2])
    one.take("y", rows, times)
    assert one.take_ranks() == {"x": (2, 0, 0), "y": (1, 2, 0), "z": ()}
    one.set_mark("x", "log", 4)
    one.take("z", rows[:1], times[:1])
    assert one.take_ranks() == {"x": (), "y": (), "z": (0, 1, 0)}, "up to M, who has passed the row counts"
