"""What operators give, computed row by row from docs/operators.md: the oracle of `test_operators_exactly.py`.

Times are whole microseconds. A watermark `w` promises that all later rows have times above `w`; with lateness
L and newest time t it is t - L - 1. Watermarks move at the end of a step. `UNKNOWN` promises nothing yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]
UNKNOWN = -(10**9)
END = 10**9


class Batch(NamedTuple):
    """Rows of one split, read by one worker."""

    split: str
    worker: int
    rows: list[Row]


class Division(NamedTuple):
    """Which rows come in which step, how they are read, and when checkpoints and crashes are."""

    workers: int
    steps: list[dict[str, list[Batch]]]
    """Source -> batches, in the order in which they are read."""
    done: dict[str, dict[str | None, int]] | None
    """Source -> split -> the step with which it is read to its end. None: no splits are named, and a worker
    to which no row came holds nobody up.
    """
    checkpoints: frozenset[int] = frozenset()
    """After these steps."""
    crashes: tuple[int, ...] = ()
    """After these steps all workers die; one after the other, and each once."""
    snapshot: bool = False
    """Whether a checkpoint holds all of the state, and not what has changed."""

    def worker_of(self, source: str, split: str) -> int:
        """The splits of a source are dealt in turn."""
        assert self.done is not None
        return list(self.done[source]).index(split) % self.workers


class Stream(NamedTuple):
    """The input of an operator: the rows of each step in the order of arrival, the watermark after it."""

    steps: list[list[Row]]
    watermarks: list[int]

    def met(self) -> list[int]:
        """The watermark that the rows of each step meet."""
        return [UNKNOWN, *self.watermarks[:-1]]


class Made(NamedTuple):
    """What an operator gives in each step, and which rows it puts aside as late."""

    rows: list[list[Any]]
    late: list[list[Row]]
    late_right: list[list[Row]] = []  # noqa: RUF012 - of a join


def stream(division: Division, timed: Mapping[tuple[str, ...], int], worker: int | None = None) -> Stream:
    """The rows of these sources, and how far all of them are together, on one worker or behind an exchange.
    timed: the sources above each `event_time`, and its lateness. A worker's rows of one source come before
    those of the next, as in a union.
    """
    workers = range(division.workers) if worker is None else [worker]
    sources = [source for group in timed for source in group]
    steps = [
        [
            row
            for worker in workers
            for source in sources
            for batch in step.get(source, [])
            if batch.worker == worker
            for row in batch.rows
        ]
        for step in division.steps
    ]
    each = [_watermarks(division, group, late, worker) for group, late in timed.items() for worker in workers]
    watermarks: list[int] = []
    for now in zip(*each, strict=True):
        watermark = _together(now)
        before = watermarks[-1] if watermarks else UNKNOWN
        watermarks.append(before if watermark is None else max(watermark, before))
    return Stream(steps, watermarks)


def _together(watermarks: Iterable[int | None]) -> int | None:
    """The least of all that count; None: none counts."""
    return min((watermark for watermark in watermarks if watermark is not None), default=None)


def _watermarks(division: Division, sources: Sequence[str], lateness: int, worker: int) -> list[int | None]:
    """What an `event_time` above these sources promises on one worker."""
    newest: dict[tuple[str, str], int] = {}
    found: list[int | None] = []
    held = UNKNOWN
    for index, step in enumerate(division.steps):
        for source in sources:
            for batch in step.get(source, []):
                if batch.worker == worker and batch.rows:
                    time = max(row["t"] for row in batch.rows)
                    newest[source, batch.split] = max(time, newest.get((source, batch.split), UNKNOWN))
        if index == len(division.steps) - 1:
            found.append(END)
            continue
        of_sources: list[int | None] = []
        for source in sources:
            if division.done is None:
                given = [time for (name, _), time in newest.items() if name == source]
                of_sources.append(max(given) - lateness - 1 if given else None)
                continue
            left = [
                split
                for split, last in division.done[source].items()
                if last > index and division.worker_of(source, split) == worker
            ]
            promised = [newest.get((source, split), UNKNOWN) - lateness - 1 for split in left]
            of_sources.append(max(min(promised), UNKNOWN) if promised else END)
        watermark = _together(of_sources)
        if watermark is not None and watermark != END:
            held = max(held, watermark)
            watermark = held
        found.append(watermark)
    return found


def by_key(key: str | None) -> tuple[bool, str]:
    """The order of keys: null is a key, behind all others."""
    return key is None, key or ""


def by_window(one: tuple[int, str | None]) -> tuple[int, tuple[bool, str]]:
    """Windows in the order of time, then of keys."""
    return one[0], by_key(one[1])


def order_of(row: Row, *columns: str) -> tuple[Any, ...]:
    """By columns from left to right, nulls last."""
    return tuple((row[name] is None, row[name]) for name in columns)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """By time, those of one time by all columns from left to right."""
    return sorted(rows, key=lambda row: order_of(row, "t", "k", "x", "tag"))


def total(rows: Iterable[Row]) -> int | None:
    """Of the values of x that are no nulls; null if all are."""
    values = [row["x"] for row in rows if row["x"] is not None]
    return sum(values) if values else None


# --- without event time -------------------------------------------------------------------------------------


def running(told: Stream) -> Made:
    """Once a step, for each key that came in it, what is computed of all its rows."""
    rows_of: dict[str | None, list[Row]] = {}
    given: list[list[Any]] = []
    for rows in told.steps:
        for row in rows:
            rows_of.setdefault(row["k"], []).append(row)
        made = []
        for key in {row["k"]: None for row in rows}:
            values = [row["x"] for row in rows_of[key] if row["x"] is not None]
            made.append(
                {
                    "k": key,
                    "n": len(rows_of[key]),
                    "known": len(values),
                    "sum": total(rows_of[key]),
                    "least": min(values, default=None),
                    "largest": max(values, default=None),
                }
            )
        given.append(made)
    return Made(given, [[] for _ in given])


def first_of_key(told: Stream) -> Made:
    seen: set[str | None] = set()
    given = []
    for rows in told.steps:
        made = []
        for row in rows:
            if row["k"] not in seen:
                seen.add(row["k"])
                made.append(row)
        given.append(made)
    return Made(given, [[] for _ in given])


def own(told: Stream, workers: int) -> Made:
    """An operator of the user: each row with its number in its key, as it came; the watermark whenever it has
    moved, on each worker.
    """
    counts: dict[str | None, int] = {}
    given: list[list[Any]] = []
    for rows, met, watermark in zip(told.steps, told.met(), told.watermarks, strict=True):
        made: list[Any] = []
        for row in rows:
            counts[row["k"]] = counts.get(row["k"], 0) + 1
            made.append((row["k"], row["t"], counts[row["k"]]))
        if watermark != met and watermark != END:
            made += [("", watermark, 0)] * workers
        given.append(made)
    return Made(given, [[] for _ in given])


# --- windows ------------------------------------------------------------------------------------------------


def windows(told: Stream, size: int, slide: int, offset: int) -> Made:
    """[start, end) is over when the watermark is at end - 1. A row is late where all its windows are."""
    open_: dict[tuple[int, str | None], list[Row]] = {}
    made = Made([], [])
    for rows, met, watermark in zip(told.steps, told.met(), told.watermarks, strict=True):
        late = []
        for row in rows:
            starts = [
                start
                for start in range(-50, 100)
                if (start - offset) % slide == 0 and start <= row["t"] < start + size
            ]
            still = [start for start in starts if start + size - 1 > met]
            for start in still:
                open_.setdefault((start, row["k"]), []).append(row)
            if not still:
                late.append(row)
        over = sorted((one for one in open_ if one[0] + size - 1 <= watermark), key=by_window)
        made.rows.append([_window(*one, size, open_.pop(one)) for one in over])
        made.late.append(late)
    return made


def _window(start: int, key: str | None, size: int, rows: Sequence[Row]) -> Row:
    found = {"window_start": start, "window_end": start + size, "n": len(rows), "sum": total(rows)}
    return {"k": key, **found}


def top_k(told: Stream, size: int, offset: int, k: int) -> Made:
    """By window, by key, the largest x first, nulls last, equal ones in the order of all columns."""
    open_: dict[tuple[int, str | None], list[Row]] = {}

    def largest(row: Row) -> Any:
        return row["x"] is None, -(row["x"] or 0), order_of(row, "t", "k", "x", "tag")

    made = Made([], [])
    for rows, met, watermark in zip(told.steps, told.met(), told.watermarks, strict=True):
        late, given = [], []
        for row in rows:
            start = (row["t"] - offset) // size * size + offset
            if start + size - 1 <= met:
                late.append(row)
            else:
                open_.setdefault((start, row["k"]), []).append(row)
        over = [one for one in open_ if one[0] + size - 1 <= watermark]
        for one in sorted(over, key=by_window):
            given += sorted(open_.pop(one), key=largest)[:k]
        made.rows.append(given)
        made.late.append(late)
    return made


def first_of_window(told: Stream, size: int, offset: int) -> Made:
    """The first row of each key in each window at once; late where its window is over."""
    seen: set[tuple[int, str | None]] = set()
    made = Made([], [])
    for rows, met in zip(told.steps, told.met(), strict=True):
        given, late = [], []
        for row in rows:
            start = (row["t"] - offset) // size * size + offset
            if start + size - 1 <= met:
                late.append(row)
            elif (start, row["k"]) not in seen:
                seen.add((start, row["k"]))
                given.append(row)
        made.rows.append(given)
        made.late.append(late)
    return made


# --- in the order of event time -----------------------------------------------------------------------------


def released(told: Stream) -> Made:
    """What `sort` gives."""
    waiting: list[Row] = []
    made = Made([], [])
    for rows, met, watermark in zip(told.steps, told.met(), told.watermarks, strict=True):
        made.late.append([row for row in rows if row["t"] <= met])
        waiting += [row for row in rows if row["t"] > met]
        made.rows.append(in_order(row for row in waiting if row["t"] <= watermark))
        waiting = [row for row in waiting if row["t"] > watermark]
    return made


def count_windows(told: Stream, size: int, slide: int) -> Made:
    """Full windows: rows of a key in the order of `sort`, from row n * slide on."""
    rows_of: dict[str | None, list[Row]] = {}
    given: list[list[Row]] = []
    ordered = released(told)
    for rows in ordered.rows:
        made = []
        for row in rows:
            of_key = rows_of.setdefault(row["k"], [])
            of_key.append(row)
            start = len(of_key) - size
            if start >= 0 and start % slide == 0:
                window = of_key[start:]
                made.append({"k": row["k"], "window_number": start // slide, "sum": total(window)})
        given.append(made)
    return Made(given, ordered.late)


class Kept(NamedTuple):
    """What a function keeps of a key: how many rows came, and when it was called."""

    rows: int
    called: int


def keyed_function(told: Stream, wait: int, ttl: int | None) -> Made:
    """A function that counts the rows of a key, sets its timer at the time of a row + wait where x > 0, and
    takes it away where x < 0: (key, time, rows so far, 0 for a row and 1 for the timer). A timer for t comes
    after all rows up to t and once; those of one time in the order of their keys. What the call for time t
    left is there for calls before t + ttl.
    """
    kept: dict[str | None, Kept] = {}
    timers: dict[str | None, int] = {}

    def rows_of(key: str | None, time: int) -> int:
        found = kept.get(key)
        if found is None or (ttl is not None and time >= found.called + ttl):
            return 0
        return found.rows

    def fire(watermark: int) -> list[tuple[str | None, int, int, int]]:
        made = []
        due = [(time, key) for key, time in timers.items() if time <= watermark]
        for time, key in sorted(due, key=by_window):
            del timers[key]
            rows = rows_of(key, time)
            made.append((key, time, rows, 1))
            kept.pop(key, None)
            if rows:
                kept[key] = Kept(rows, time)
        return made

    given: list[list[Any]] = []
    ordered = released(told)
    for rows, watermark in zip(ordered.rows, told.watermarks, strict=True):
        made: list[Any] = []
        for row in rows:
            made += fire(row["t"] - 1)
            key, time = row["k"], row["t"]
            kept[key] = Kept(rows_of(key, time) + 1, time)
            made.append((key, time, kept[key].rows, 0))
            if (row["x"] or 0) > 0:
                timers[key] = time + wait
            elif (row["x"] or 0) < 0:
                timers.pop(key, None)
        made += fire(watermark)
        given.append(made)
    return Made(given, ordered.late)


class KeyValue(NamedTuple):
    """What a function written for Spark keeps of a key."""

    rows: int
    timers: tuple[int, ...]
    called: int


class SparkCalls:
    """The functions and processors of `operator_programs`: (key, time, rows so far, rows of the call,
    watermark), with 0 rows for a timer.
    """

    def __init__(self, wait: int, ttl: int | None, *, grouped: bool, shape: str) -> None:
        """grouped: a call gets the rows of its key that the step releases, up to the timer that was set
        before it, and while what a row leaves is there for the next one. The shape "each row" reads them one
        after the other, up to one that a timer precedes which it has set, and so gives the same as without.
        """
        self.wait, self.ttl, self.shape = wait, ttl, shape
        self.grouped = grouped and shape != "each row"
        self.kept: dict[str | None, KeyValue] = {}
        self.due: dict[str | None, int] = {}
        self.made: list[tuple[str | None, int, int, int, int]] = []

    def of(self, told: Stream) -> Made:
        given: list[list[Any]] = []
        ordered = released(told)
        for rows, watermark in zip(ordered.rows, told.watermarks, strict=True):
            left, self.made = list(rows), []
            while left:
                self.fire(left[0]["t"] - 1)
                called = self.next_call(left)
                left = [row for row in left if not any(row is one for one in called)]
                self.call(called)
            self.fire(watermark, at_end=watermark == END)
            given.append(self.made)
        return Made(given, ordered.late)

    def next_call(self, left: Sequence[Row]) -> list[Row]:
        key, rows = left[0]["k"], [left[0]]
        for row in left[1:] if self.grouped else ():
            if row["k"] == key:
                over = self.ttl is not None and row["t"] - rows[-1]["t"] >= self.ttl
                if over or row["t"] > self.due.get(key, END):
                    break
                rows.append(row)
        return rows

    def call(self, rows: Sequence[Row]) -> None:
        key, first, last = rows[0]["k"], rows[0]["t"], rows[-1]["t"]
        before, x = self.value_of(key, first), rows[-1]["x"] or 0
        timers = set() if self.shape == "function" or x in (-1, 2) else set(before.timers)
        if x > 0:
            timers.add(last + self.wait)
        mark = (last if self.shape == "rows" else first) - 1
        self.made.append((key, first, before.rows + len(rows), len(rows), mark))
        self.keep(key, before.rows + len(rows), timers, last)

    def fire(self, end: int, *, at_end: bool = False) -> None:
        """At the end of all sources every timer comes once, those of a key together."""
        while found := sorted(((time, key) for key, time in self.due.items() if time <= end), key=by_window):
            for time, key in found if at_end else found[:1]:
                before = self.value_of(key, time)
                over = before.timers if at_end else before.timers[:1]
                self.made += [(key, one, before.rows, 0, one) for one in over]
                if self.shape == "function" and not before.rows:
                    self.made.append((key, time, 0, 0, time))  # a timeout is not part of the value
                self.keep(key, before.rows, set(before.timers) - set(over), time)

    def value_of(self, key: str | None, time: int) -> KeyValue:
        found = self.kept.get(key)
        if found is None or (self.ttl is not None and time >= found.called + self.ttl):
            return KeyValue(0, (), time)
        return found

    def keep(self, key: str | None, rows: int, timers: Iterable[int], called: int) -> None:
        self.kept[key] = KeyValue(rows, tuple(sorted(timers)), called)
        self.due.pop(key, None)
        if timers := self.kept[key].timers:
            self.due[key] = timers[0]
        if not rows:
            del self.kept[key]


# --- two streams --------------------------------------------------------------------------------------------


def joined(lefts: Stream, rights: Stream, within: int) -> Made:
    """Pairs of rows that are not late: each in the step in which the later one came. Null
    is equal to no key.
    """

    def parts(told: Stream) -> tuple[list[tuple[int, Row]], list[list[Row]]]:
        kept, late = [], []
        for index, (rows, met) in enumerate(zip(told.steps, told.met(), strict=True)):
            late.append([row for row in rows if row["t"] <= met])
            kept += [(index, row) for row in rows if row["t"] > met]
        return kept, late

    (kept, late), (kept_right, late_right) = parts(lefts), parts(rights)
    given: list[list[Any]] = [[] for _ in lefts.steps]
    for left_step, left in kept:
        for right_step, right in kept_right:
            same_key = left["k"] is not None and left["k"] == right["k"]
            if same_key and abs(left["t"] - right["t"]) < within:
                of_right = {f"{name}_r": value for name, value in right.items() if name != "k"}
                given[max(left_step, right_step)].append(left | of_right)
    return Made(given, late, late_right)
