"""Whose requests are carried out next, when there is more to do than one round should take.

A round serves every connection that has something for it, and everybody else waits until it ends. So a round
has a time, and a connection in it a slice of that. Once the time is over, connections that come are not
read but wait for their turn; so does one whose slice was not enough for what it had sent. At the end of the
round, and of each one after it, turns go in alternation to those that come with something new and to those
that had more than a slice, and among either to those first that have *used* least: the processor time that
each has cost. Who asks for little is served before who asks for much, whoever came first, and those that ask
for much share what is left. What was used is not enough to tell them apart: of a thousand that each ask for
much once, every one has used less than a client that asks for little all the time.

What was used is forgotten by and by, half of it in `turn_memory_seconds`: nobody saves time up, and who has
been connected for long is not behind who has just come.

Rules of this file: order and time. What a turn does is the connection's.
"""

from collections.abc import Callable
from itertools import zip_longest
from typing import Protocol

from dos_server.limits import many_waiting, round_seconds, turn_memory_seconds, turn_seconds
from dos_server.ports import Rounds
from dos_server.readiness import Call


class OncePerRound:
    """A call that is made at the end of a round, once, however often it was asked for."""

    def __init__(self, rounds: Rounds, call: Call) -> None:
        self._rounds = rounds
        self._call = call
        self._asked = False

    def ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._rounds.soon(self._make)

    def _make(self) -> None:
        self._asked = False
        self._call()


class ConnectionCost:
    """What a connection has cost lately, in seconds."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = self._at = 0.0

    def add(self, began: float, ended: float) -> None:
        self._seconds = self.lately(began) + ended - began
        self._at = began

    def lately(self, now: float) -> float:
        lately: float = self._seconds * 0.5 ** ((now - self._at) / turn_memory_seconds)
        return lately


class Turner(Protocol):
    """A connection."""

    use: ConnectionCost
    has_more: bool
    """Its last slice was not enough, or its answers pile up."""

    def take_turn(self) -> None:
        """Go on where it stopped."""


class Turns:
    """See the module. `clock`: seconds, real ones."""

    def __init__(self, clock: Callable[[], float], rounds: Rounds) -> None:
        self.clock = clock
        self._ends: float | None = None
        self._waiting: dict[Turner, None] = {}
        self._giving = OncePerRound(rounds, self._go_on)

    def may_begin(self, one: Turner) -> bool:
        """Whether it may go on now. False: it waits, and `take_turn` is called."""
        now = self.clock()
        if self._ends is None:
            self._ends = now + round_seconds
        elif now >= self._ends:
            self.wait(one)
        return one not in self._waiting

    def wait(self, one: Turner) -> None:
        """It has more to do than its slice took, or the round has lasted too long."""
        if one not in self._waiting:
            self._waiting[one] = None
            self._giving.ask()

    @property
    def slice_seconds(self) -> float:
        """How long a connection may go on: less when many wait, so that who wants little has it sooner."""
        return turn_seconds if len(self._waiting) <= many_waiting else turn_seconds / 4

    def leave(self, one: Turner) -> None:
        """Its connection is not read any more."""
        self._waiting.pop(one, None)

    def round_ended(self) -> None:
        """The next one has its time."""
        self._ends = None
        if self._waiting:
            self._giving.ask()

    def _go_on(self) -> None:
        """Give turns for the time of a round: in turn to one of those that come with something new, and of
        those that had more than their slice; among either to those first that have used least."""
        now = self.clock()
        ends = now + round_seconds
        order = sorted(self._waiting, key=lambda one: one.use.lately(now))
        new = [one for one in order if not one.has_more]
        more = [one for one in order if one.has_more]
        for one in (one for pair in zip_longest(new, more) for one in pair if one is not None):
            if one in self._waiting:
                del self._waiting[one]
                one.take_turn()
            if self.clock() >= ends:
                return
