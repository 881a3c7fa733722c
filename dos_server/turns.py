"""Fair scheduling of connections when there is more work than one round should take (docs/decisions/0208).

- When the time of the round is over, or as many bytes were taken as one round should write, further ready
  connections wait for their turn. So does a connection whose slice was too short for the requests that it had
  sent.
- At the end of a round, turns alternate between connections with new input and connections that needed more
  than a slice. Within each group, the least *use* comes first: the processor time that a connection has cost
  recently. Use alone would not separate the groups: if each of a thousand connections sends one large
  request, all of them have used less than a client that sends small ones all the time.
- Use decays, by half every `turn_memory_seconds`. No connection saves up time.
"""

from collections.abc import Callable
from itertools import zip_longest
from typing import Protocol

from dos_server.limits import many_waiting, round_bytes_max, round_seconds, turn_memory_seconds, turn_seconds
from dos_tls.readiness import Call, Rounds


class OncePerRound:
    """A call that is made at the end of a round, once, however often it was requested."""

    def __init__(self, rounds: Rounds, call: Call) -> None:
        self._rounds = rounds
        self._call = call
        self._requested = False

    def submit(self) -> None:
        if not self._requested:
            self._requested = True
            self._rounds.soon(self._make)

    def _make(self) -> None:
        self._requested = False
        self._call()


class ConnectionCost:
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
    use: ConnectionCost
    has_more: bool
    """Its last slice was not enough, or its answers pile up."""

    def take_turn(self) -> None:
        """Continue where it stopped."""


class Turns:
    def __init__(self, clock: Callable[[], float], rounds: Rounds) -> None:
        self.clock = clock
        self._ends: float | None = None
        self._bytes = 0
        self._waiting: dict[Turner, None] = {}
        self._call_turns = OncePerRound(rounds, self._run_turns)

    def may_begin(self, one: Turner) -> bool:
        """Whether a connection may continue now. False: it waits for `take_turn`."""
        now = self.clock()
        if self._ends is None:
            self._ends = now + round_seconds
        elif now >= self._ends or self._bytes >= round_bytes_max:
            self.wait(one)
        return one not in self._waiting

    def took(self, count: int) -> None:
        """Note bytes of input that were taken in this round: to write them at its end takes time, too."""
        self._bytes += count

    def wait(self, one: Turner) -> None:
        if one not in self._waiting:
            self._waiting[one] = None
            self._call_turns.submit()

    @property
    def slice_seconds(self) -> float:
        """The time slice of a connection; shorter when many wait, to serve small requests sooner."""
        return turn_seconds if len(self._waiting) <= many_waiting else turn_seconds / 4

    def leave(self, one: Turner) -> None:
        self._waiting.pop(one, None)

    def round_ended(self) -> None:
        self._ends, self._bytes = None, 0
        if self._waiting:
            self._call_turns.submit()

    def _run_turns(self) -> None:
        """Give turns in what is left of the time of the round. One of each group has its turn in any case."""
        now = self.clock()
        ends = now + round_seconds if self._ends is None else self._ends
        order = sorted(self._waiting, key=lambda one: one.use.lately(now))
        new = [one for one in order if not one.has_more]
        more = [one for one in order if one.has_more]
        for pair in zip_longest(new, more):
            for one in pair:
                if one is not None and one in self._waiting:
                    del self._waiting[one]
                    one.take_turn()
            if self.clock() >= ends or self._bytes >= round_bytes_max:
                return
