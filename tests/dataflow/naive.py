"""What operators give, computed row by row from docs/operators.md: the oracle of `test_operators_exactly.py`.

Times are whole microseconds. A watermark `w` promises that all later rows have times above `w`; with lateness
L and newest time t it is t - L - 1. Watermarks move at the end of a step. `None`: not known yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Steps = Sequence[Sequence[Row]]
END = 10**9


def watermarks(steps: Steps, lateness: int) -> list[int | None]:
    """The watermark after each step. The last step ends all sources."""
    found: list[int | None] = []
    newest = None
    for index, rows in enumerate(steps):
        newest = max([row["t"] for row in rows] + ([] if newest is None else [newest]), default=None)
        known = None if newest is None else newest - lateness - 1
        found.append(END if index == len(steps) - 1 else known)
    return found


def before(marks: Sequence[int | None]) -> list[int | None]:
    """The watermark that the rows of each step meet."""
    return [None, *marks[:-1]]


def is_late(time: int, mark: int | None) -> bool:
    return mark is not None and time <= mark


def by_key(key: str | None) -> tuple[bool, str]:
    """The order of keys: null is a key, behind all others."""
    return key is None, key or ""


def windows(steps: Steps, lateness: int, size: int, slide: int) -> tuple[list[list[Row]], list[Row]]:
    """Rows of each step, and late rows: [start, end) is over when the watermark is at end - 1."""
    marks = watermarks(steps, lateness)
    open_: dict[tuple[int, str | None], list[Row]] = {}
    given: list[list[Row]] = []
    late: list[Row] = []
    for rows, met, mark in zip(steps, before(marks), marks, strict=True):
        for row in rows:
            starts = [
                start for start in range(-50, 100) if start % slide == 0 and start <= row["t"] < start + size
            ]
            still = [start for start in starts if not is_late(start + size - 1, met)]
            for start in still:
                open_.setdefault((start, row["k"]), []).append(row)
            if not still:
                late.append(row)
        over = [one for one in open_ if is_late(one[0] + size - 1, mark)]
        given.append([_window(*one, size, open_.pop(one)) for one in over])
    return given, late


def _window(start: int, key: str | None, size: int, rows: Sequence[Row]) -> Row:
    return {
        "k": key,
        "start": start,
        "end": start + size,
        "n": len(rows),
        "sum": sum(row["x"] for row in rows),
    }


def joined(
    lefts: Steps, rights: Steps, lateness: tuple[int, int], within: int
) -> tuple[list[list[tuple[Row, Row]]], list[Row], list[Row]]:
    """Pairs of each step, late rows of the left and of the right. Pairs of rows that are not late: each in
    the step in which the later one came. Null is equal to no key.
    """
    sides = (lefts, rights)
    kept: list[list[tuple[int, Row]]] = [[], []]
    late: list[list[Row]] = [[], []]
    for side, steps in enumerate(sides):
        met = before(watermarks(steps, lateness[side]))
        for index, rows in enumerate(steps):
            for row in rows:
                if is_late(row["t"], met[index]):
                    late[side].append(row)
                else:
                    kept[side].append((index, row))
    given: list[list[tuple[Row, Row]]] = [[] for _ in lefts]
    for left_step, left in kept[0]:
        for right_step, right in kept[1]:
            if left["k"] is not None and left["k"] == right["k"] and abs(left["t"] - right["t"]) < within:
                given[max(left_step, right_step)].append((left, right))
    return given, *late


def in_order(rows: Iterable[Row]) -> list[Row]:
    """By time, those of one time by all columns from left to right."""
    return sorted(rows, key=lambda row: (row["t"], by_key(row["k"]), row["x"], row["tag"]))


def released(steps: Steps, lateness: int) -> tuple[list[list[Row]], list[Row]]:
    """What `sort` gives in each step, and late rows."""
    marks = watermarks(steps, lateness)
    waiting: list[Row] = []
    given: list[list[Row]] = []
    late: list[Row] = []
    for rows, met, mark in zip(steps, before(marks), marks, strict=True):
        for row in rows:
            (late if is_late(row["t"], met) else waiting).append(row)
        ready = [row for row in waiting if is_late(row["t"], mark)]
        waiting = [row for row in waiting if not is_late(row["t"], mark)]
        given.append(in_order(ready))
    return given, late


def top_k(steps: Steps, lateness: int, size: int, k: int) -> tuple[list[list[Row]], list[Row]]:
    """By window, by key, the largest x first, equal ones in the order of all columns (time first)."""
    marks = watermarks(steps, lateness)
    open_: dict[tuple[int, str | None], list[Row]] = {}
    given: list[list[Row]] = []
    late: list[Row] = []
    for rows, met, mark in zip(steps, before(marks), marks, strict=True):
        for row in rows:
            start = row["t"] // size * size
            if is_late(start + size - 1, met):
                late.append(row)
            else:
                open_.setdefault((start, row["k"]), []).append(row)
        made: list[Row] = []
        over = [one for one in open_ if is_late(one[0] + size - 1, mark)]
        for one in sorted(over, key=lambda one: (one[0], by_key(one[1]))):
            made += sorted(open_.pop(one), key=_place)[:k]
        given.append(made)
    return given, late


def _place(row: Row) -> tuple[Any, ...]:
    return -row["x"], row["t"], by_key(row["k"]), row["tag"]


def window_dedup(steps: Steps, lateness: int, size: int) -> tuple[list[list[Row]], list[Row]]:
    """The first row of each key in each window at once; late where its window is over."""
    met = before(watermarks(steps, lateness))
    seen: set[tuple[int, str | None]] = set()
    given: list[list[Row]] = []
    late: list[Row] = []
    for rows, mark in zip(steps, met, strict=True):
        made = []
        for row in rows:
            start = row["t"] // size * size
            if is_late(start + size - 1, mark):
                late.append(row)
            elif (start, row["k"]) not in seen:
                seen.add((start, row["k"]))
                made.append(row)
        given.append(made)
    return given, late


def count_windows(steps: Steps, lateness: int, size: int, slide: int) -> list[list[Row]]:
    """Full windows of each step: rows of a key in the order of `sort`, from row n * slide on."""
    rows_of: dict[str | None, list[Row]] = {}
    given: list[list[Row]] = []
    for rows in released(steps, lateness)[0]:
        made = []
        for row in rows:
            of_key = rows_of.setdefault(row["k"], [])
            of_key.append(row)
            start = len(of_key) - size
            if start >= 0 and start % slide == 0:
                made.append(
                    {
                        "k": row["k"],
                        "window_number": start // slide,
                        "sum": sum(r["x"] for r in of_key[start:]),
                    }
                )
        given.append(made)
    return given


def timers(steps: Steps, lateness: int, wait: int) -> list[list[tuple[str | None, int, int, int]]]:
    """A function that counts the rows of a key, sets its timer at the time of a row + wait where x > 0, and
    takes it away where x < 0: (key, time, rows so far, 0 for a row and 1 for the timer). A timer for t comes
    after all rows up to t and once; those of one time in the order of their keys.
    """
    rows_of: dict[str | None, int] = {}
    set_: dict[str | None, int] = {}
    marks = watermarks(steps, lateness)
    given: list[list[tuple[str | None, int, int, int]]] = []
    for rows, mark in zip(released(steps, lateness)[0], marks, strict=True):
        made: list[tuple[str | None, int, int, int]] = []
        for row in rows:
            made += _fire(set_, rows_of, row["t"] - 1)
            key = row["k"]
            rows_of[key] = rows_of.get(key, 0) + 1
            made.append((key, row["t"], rows_of[key], 0))
            if row["x"] > 0:
                set_[key] = row["t"] + wait
            elif row["x"] < 0:
                set_.pop(key, None)
        if mark is not None:
            made += _fire(set_, rows_of, mark)
        given.append(made)
    return given


def _fire(
    set_: dict[str | None, int], rows_of: Mapping[str | None, int], mark: int
) -> list[tuple[str | None, int, int, int]]:
    due = [(time, key) for key, time in set_.items() if time <= mark]
    due.sort(key=lambda one: (one[0], by_key(one[1])))
    for _, key in due:
        del set_[key]
    return [(key, time, rows_of[key], 1) for time, key in due]
