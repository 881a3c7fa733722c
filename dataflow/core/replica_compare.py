"""Compare what the replicas of a stream give, second by second of event time. Pure.

For each second that lies wholly above the base of a stream, the number of its rows and the sum of their
digests are kept; once the marks of two streams have passed it, both must be equal. Only one of `every`
seconds is compared; its rows are kept, up to `rows_max`, to name the first that one replica lacks.

If streams differ, nothing shows which is right. With `by_majority`, more than half of at least three may
agree: the others are the minority, which the reader detaches. While a stream that has not read the whole
second could still make a majority, the second is undecided.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

SECOND: Final = 1_000_000
"""In units of time, microseconds."""
_MODULUS: Final = 1 << 128
_SECONDS_MAX: Final = 10_000
_ROWS_OF_SECONDS: Final = 64
"""Of so many seconds of a stream the rows are kept, so that a difference can be shown."""


class Difference(NamedTuple):
    """Two replicas differ in a second of event time. row: one that `lacking` does not have, as text.
    minority: the streams to be detached; empty: it is not known which ones are right.
    """

    second: int
    having: str
    lacking: str
    row: str
    minority: tuple[str, ...] = ()


def _end(second: int) -> int:
    return (second + 1) * SECOND - 1


@dataclass(slots=True)
class _Second:
    """What a stream gave in a second. rows: digest -> copies, and how to show one; None if too many."""

    rows: int = 0
    total: int = 0
    kept: "Counter[bytes] | None" = field(default_factory=Counter)
    shown: dict[bytes, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Compared:
    base: int
    mark: int
    seconds: dict[int, _Second] = field(default_factory=dict)


class ReplicaComparison:
    """Compares the streams of one input. every: 1 compares each second, n each n-th, 0 none."""

    def __init__(self, every: int, rows_max: int = 100_000, *, by_majority: bool = False) -> None:
        self._every = every
        self._by_majority = by_majority
        self._undecided: set[int] = set()
        self._rows_max = rows_max
        self._rows = 0
        self._streams: dict[str, _Compared] = {}
        self.compared = 0
        """How many times a second of two streams was found equal."""

    @property
    def is_on(self) -> bool:
        """Whether anything is compared: all rows must be given then, also those of the past."""
        return self._every > 0

    def join(self, stream: str, base: int) -> None:
        """Begin with a stream, or anew: its rows above `base` are given from now on."""
        self.leave(stream)
        self._streams[stream] = _Compared(base, base)

    def leave(self, stream: str) -> None:
        one = self._streams.pop(stream, None)
        if one is not None:
            for second in one.seconds.values():
                self._forget(second)

    def give(
        self,
        stream: str,
        digests: npt.NDArray[Any],
        times: npt.NDArray[np.int64],
        show: Callable[[int], str],
    ) -> None:
        """Note rows of a stream. show: returns the text of the row with an index."""
        if not self._every or not len(times):
            return
        one = self._streams[stream]
        seconds = times // SECOND
        chosen = (seconds % self._every == 0) & (seconds * SECOND > one.base)
        for number in np.unique(seconds[chosen]).tolist():
            (rows,) = np.nonzero(chosen & (seconds == number))
            self._add(one.seconds.setdefault(number, _Second()), digests, rows.tolist(), show)

    def _add(
        self, second: _Second, digests: npt.NDArray[Any], rows: Sequence[int], show: Callable[[int], str]
    ) -> None:
        second.rows += len(rows)
        for row in rows:
            digest = digests[row].tobytes()
            second.total = (second.total + int.from_bytes(digest, "big")) % _MODULUS
            if second.kept is None:
                continue
            if self._rows >= self._rows_max:
                self._forget(second)
                second.kept = None
                continue
            self._rows += 1
            second.kept[digest] += 1
            second.shown.setdefault(digest, show(row))

    def _forget(self, second: _Second) -> None:
        if second.kept is not None:
            self._rows -= second.kept.total()
        second.shown = {}

    def set_mark(self, stream: str, mark: int) -> Difference | None:
        """Take the mark of a stream, after the rows before it. Return the first difference from another
        stream, if any. After one with a minority, call `leave` for each stream of it.
        """
        one = self._streams[stream]
        if not self._every or mark <= one.mark:
            return None
        before, one.mark = one.mark, mark
        numbers = {number for two in self._streams.values() for number in two.seconds}
        open_now = {*self._undecided, *(number for number in numbers if before < _end(number) <= mark)}
        self._undecided = set(open_now)  # of those after a difference, the next call decides
        for number in sorted(open_now):
            if (found := self._judge(number)) is not None:
                return found
        self._drop()
        return None

    def _judge(self, number: int) -> Difference | None:
        voters = [name for name, one in sorted(self._streams.items()) if number * SECOND > one.base]
        passed = [name for name in voters if _end(number) <= self._streams[name].mark]
        groups: dict[tuple[int, int], list[str]] = {}
        for name in passed:
            second = self._streams[name].seconds.get(number, _Second())
            groups.setdefault((second.rows, second.total), []).append(name)
        if len(groups) < 2:
            self._undecided.discard(number)
            self.compared += max(0, len(passed) - 1)
            return None
        largest = max(groups.values(), key=len)
        others = tuple(name for name in passed if name not in largest)
        most = len(largest) + len(voters) - len(passed)
        votes = self._by_majority and len(voters) > 2
        if votes and 2 * len(largest) <= len(voters) < 2 * most:
            return None
        wins = votes and 2 * len(largest) > len(voters)
        found = self._difference(number, largest[0], others[0])
        return found._replace(minority=others) if wins else found

    def _difference(self, number: int, first: str, other: str) -> Difference:
        one = self._streams[first].seconds.get(number, _Second())
        two = self._streams[other].seconds.get(number, _Second())
        if one.kept is None or two.kept is None:
            if one.rows < two.rows:
                first, other, one, two = other, first, two, one
            return Difference(number, first, other, f"{one.rows} rows at {first}, {two.rows} at {other}")
        for having, lacking, rows, others in ((first, other, one, two.kept), (other, first, two, one.kept)):
            assert rows.kept is not None
            missing = min((rows.shown[digest] for digest in rows.kept - others), default=None)
            if missing is not None:
                return Difference(number, having, lacking, missing)
        raise AssertionError("sums differ, and no row does")

    def _drop(self) -> None:
        """Forget the seconds that all marks have passed, and the oldest rows of streams far ahead."""
        least = min(one.mark for one in self._streams.values())
        for one in self._streams.values():
            numbers = sorted(one.seconds)
            if len(numbers) > _SECONDS_MAX:
                least = max(least, _end(numbers[-_SECONDS_MAX]))
            for number in numbers:
                if _end(number) <= least:
                    self._forget(one.seconds.pop(number))
            dropped = (min(least, one.mark) + 1) // SECOND * SECOND - 1
            one.base = max(one.base, dropped)
            for number in sorted(one.seconds)[:-_ROWS_OF_SECONDS]:
                second = one.seconds[number]
                self._forget(second)
                second.kept = None
