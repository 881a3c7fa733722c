"""Entry points: who gives rows their time, what a mark promises, and when one may do neither. Pure.

`dataflow/entry/` serves producers, `chains/input_log.py` writes the chain of an origin, and
`dataflow/core/event_time.py` (`InputMarks`) combines the marks for a reader. All times are microseconds since
1970, unless their names end with `_s`; those are seconds of a clock that is never set.

Theory (design 6.5; replication-transparency IV-F):

1. An *origin* is a producer name. Its chain is in the entry store, and the entry point that serves it now
   holds the claim of the chain. So at most one process gives its rows their times, and what it gave is in the
   chain before any reader sees it. Nobody gives a recorded row another time.
2. A *mark* of an origin promises that all its later rows have larger times. Marks are records of the
   chain, so every reader finds the same rows between the same marks.
3. Origins are numbered in the order of their registration and are never removed, so the *version* of the
   origin list is the number of origins. Each mark carries the version that its writer knows.
4. A reader takes the newest version of any mark that it has read. Its input mark is the least mark of the
   origins up to that number, and does not advance while one of them has no mark. A new origin therefore
   begins only after every older one has a mark with the new version, and above all these marks: a reader that
   does not know it yet has only marks of older versions, which are lower.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from checkpoint import limits
from checkpoint.core.records.inputs import OriginMark, check_input_name
from checkpoint.errors import EntryRefusedError


class EntrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all entry points of a handle have in common. The first one records it.

    time: the column with the time of a row. lateness_us: None: the entry point fills this column, and
    producers do not send it; otherwise producers send it, and a row that is at or below the last mark is
    late. marks_every_us: marks are the multiples of this, minus 1, so that a window that ends at one of them
    closes.
    """

    time: str = "at"
    lateness_us: int | None = None
    marks_every_us: int = limits.entry_marks_every_us


class EntryOrigins(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a handle that entry points serve, and its origins in the order of their numbers."""

    settings: EntrySettings
    origins: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        return len(self.origins)

    def number(self, origin: str) -> int:
        """Return the number of an origin, from 1; 0 if it is not registered."""
        return self.origins.index(origin) + 1 if origin in self.origins else 0

    def with_origin(self, origin: str) -> "EntryOrigins":
        """Return the list with this origin. Raises BadNameError, EntryRefusedError if there are too many."""
        if origin in self.origins:
            return self
        if len(self.origins) >= limits.entry_origins_max:
            raise EntryRefusedError(
                f"a handle has at most {limits.entry_origins_max} producer names, and {origin!r} would be one"
                " more",
                remedy="use a name again: a name that was used once is marked for ever",
            )
        return msgspec.structs.replace(self, origins=(*self.origins, check_input_name("a producer", origin)))


def checked_settings(known: EntryOrigins | None, settings: EntrySettings | None) -> EntryOrigins:
    """Return what is recorded, or what is to be recorded first. settings: None accepts what is recorded.

    Raises EntryRefusedError if they differ: two entry points would give times by different rules.
    """
    if known is None:
        return EntryOrigins(settings=settings or EntrySettings())
    if settings is not None and settings != known.settings:
        raise EntryRefusedError(
            f"this handle is served with {known.settings}, not {settings}",
            remedy="leave the options out to use the recorded ones, or use another handle",
        )
    return known


def floor_of_new_origin(number: int, others: Mapping[int, OriginMark]) -> int | None:
    """Return the time above which a new origin begins; None if it has to wait.

    others: number -> the newest mark of each other origin, as far as known. Every origin with a lower number
    must have a mark whose version includes the new one (rule 4).
    """
    floor = 0
    for older in range(1, number):
        newest = others.get(older)
        if newest is None or newest.version < number:
            return None
        floor = max(floor, newest.mark)
    return floor


class OriginTime:
    """The time of one origin, at the entry point that has claimed its chain. It outlives no claim.

    recorded: the newest mark in its chain, None for a new origin, which calls `begin` first. last_time: the
    largest time of its recorded rows.
    """

    def __init__(
        self, settings: EntrySettings, number: int, recorded: OriginMark | None, last_time: int = 0
    ) -> None:
        self._settings = settings
        self.number = number
        self.version = number if recorded is None else recorded.version
        """The newest version of the origin list that is known here."""
        self.begun = recorded is not None
        self.mark = 0 if recorded is None else recorded.mark
        """All later rows have times above it."""
        self.last_time = last_time

    def begin(self, floor: int) -> None:
        """Let a new origin begin above `floor`, from `floor_of_new_origin`."""
        self.mark, self.begun = max(self.mark, floor), True

    def stamp(self, now: int) -> int:
        """Return the time of the rows of a batch, above all times and marks before it."""
        self.last_time = max(now, self.last_time + 1, self.mark + 1)
        return self.last_time

    def is_late(self, times: Any) -> Any:
        """Return whether a time, or each of an array of times, is late: promised not to come."""
        return times <= self.mark

    def next_mark(self, now: int, *, version: int, restated: bool = False) -> OriginMark | None:
        """Return the mark that is due, None if none is. `InputLog` adds what follows from the batches.

        restated: also one that is not higher: after a claim, or for a newer version.
        """
        every = self._settings.marks_every_us
        due = (now - (self._settings.lateness_us or 0)) // every * every - 1
        self.version = max(self.version, version)
        if due <= self.mark and not restated:
            return None
        self.mark = max(self.mark, due)
        return OriginMark(self.mark, self.version, self.number, self.last_time)


class _Measured(NamedTuple):
    """The clock of a peer, relative to the clock that is never set here: at `at_s`, within `error_us`."""

    offset_us: float
    error_us: float
    at_s: float


class ClockError(NamedTuple):
    """How far this clock is from a peer's: at most `bound_us`."""

    offset_us: int
    bound_us: int


class ClockCheck:
    """Compares this machine's clock with the clocks of peers, by round trips.

    This clock is *good* if it is within the limit of a majority of all clocks, itself included: a single
    clock that is wrong then stops itself, and no other. Without peers it is always good, and unverified. A
    measurement is compared with a clock that is never set, so a step of this machine's clock is seen at once.
    It loses precision by `entry_clock_drift`, until it counts no more.
    """

    def __init__(self, peers: Iterable[str], error_max_us: int) -> None:
        self._peers = frozenset(peers)
        self._error_max_us = error_max_us
        self._measured: dict[str, _Measured] = {}

    def measured(self, peer: str, *, sent_s: float, received_s: float, peer_us: int) -> None:
        """Note an answer of a peer: its clock when it answered, and when it was asked and heard here."""
        middle_s, error_us = (sent_s + received_s) / 2, (received_s - sent_s) / 2 * 1e6
        found = _Measured(peer_us - middle_s * 1e6, error_us, received_s)
        known = self._measured.get(peer)
        if known is not None and found.error_us > (uncertain := self._uncertain_us(known, received_s)):
            apart = abs(found.offset_us - known.offset_us)
            if apart <= found.error_us + uncertain:  # otherwise one of the two clocks was set
                return
        self._measured[peer] = found

    def _uncertain_us(self, one: _Measured, now_s: float) -> float:
        return one.error_us + (now_s - one.at_s) * limits.entry_clock_drift * 1e6

    def errors(self, now_us: int, now_s: float) -> dict[str, ClockError]:
        """Return peer -> the error of this clock against it, for each that was measured."""
        found = {}
        for peer, one in self._measured.items():
            offset = now_us - (one.offset_us + now_s * 1e6)
            bound = math.ceil(abs(offset) + self._uncertain_us(one, now_s))
            found[peer] = ClockError(round(offset), bound)
        return found

    def is_good(self, now_us: int, now_s: float) -> bool:
        """Return whether this clock may give times."""
        errors = self.errors(now_us, now_s).values()
        near = 1 + sum(one.bound_us <= self._error_max_us for one in errors)
        return 2 * near > 1 + len(self._peers)


def may_stamp(now_us: int, marks: Mapping[str, int], origins: Iterable[str]) -> bool:
    """Return whether this clock is at most the horizon ahead of the least mark, which bounds what readers
    hold in memory. marks: origin -> its newest mark; an origin without one is not counted, because a reader
    keeps nothing for it yet.
    """
    known = [marks[origin] for origin in origins if origin in marks]
    return not known or now_us <= min(known) + limits.entry_horizon_us


class AttendedOrigins:
    """Finds origins that nobody marks: their chains do not grow."""

    def __init__(self) -> None:
        self._grew: dict[str, tuple[int, float]] = {}
        """Origin -> the size of its chain, and since when."""

    def saw(self, origin: str, size: int, now_s: float) -> None:
        """Note the size of a chain, committed or not."""
        if self._grew.get(origin, (-1, 0.0))[0] != size:
            self._grew[origin] = size, now_s

    def forget(self, origin: str) -> None:
        """Begin anew for an origin: another entry point serves it."""
        self._grew.pop(origin, None)

    def unattended(self, now_s: float) -> list[str]:
        """Return the origins whose chains did not grow for `entry_unattended_s`, sorted."""
        limit_s = limits.entry_unattended_s
        return sorted(origin for origin, (_, at_s) in self._grew.items() if now_s - at_s >= limit_s)
