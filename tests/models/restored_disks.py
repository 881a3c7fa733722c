"""The model of a disk that is restored from an older copy: three members, two acknowledge.

What is modelled. Member A keeps the history of its starts: one random number for each, durable before it
serves. B and C each remember the newest start of A that a client told them of. A client that has sessions
with a quorum works: it finds what the quorum holds, and has one more record acknowledged by it. A may be
copied once, may start again, and may be replaced once by the copy; it starts then, as after a crash. A client
that is not in a quorum is away, for as long as the search likes. `docs/decisions/0205` says what follows from
it.

What is demanded: a quorum that may work holds all that was ever acknowledged.

What is abstracted: claims, epochs and records in doubt are those of `take_over.py`; here a quorum works in
one step. Only A's disk goes back: with Qa = 2, one disk may be bad.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from tests.models.explore import Step

A, B, C = range(3)
NAMES = "ABC"
UNKNOWN = -1


class RestoredRules(NamedTuple):
    """What is required of a member before it counts. Each rule can be switched off."""

    starts_are_compared: bool = True
    """A does not count beside a member that knows a start which is not in A's history."""
    starts_are_random: bool = True
    """A start is known by its random number; without it, by how many there were before."""
    all_others_record_it: bool = True
    """A counts under a start only when both others have recorded it; without it, those it works with."""


class RestoredSetup(NamedTuple):
    """The size of the model, and the possible events."""

    copy_of_a_running_member: bool = False
    """The copy is taken while A runs; otherwise A is stopped, and starts again after it."""
    starts: int = 2
    records: int = 3


class Disk(NamedTuple):
    """A's disk: how many records, and its starts."""

    size: int
    starts: tuple[int, ...]


class RestoredState(NamedTuple):
    """The whole state. `known_starts`: for B and C, the newest start of A that each knows."""

    disk: Disk
    others: tuple[int, int]
    known_starts: tuple[int, int]
    numbers: int
    copy: Disk | None = None
    stopped: bool = False
    restored: bool = False
    acknowledged: int = 0
    lost: str = ""


class RestoredDisk:
    """The model of one setup under some rules: an `explore.Model`."""

    def __init__(self, setup: RestoredSetup, rules: RestoredRules) -> None:
        self.setup, self.rules = setup, rules

    def start(self) -> RestoredState:
        return RestoredState(Disk(0, (0,)), (0, 0), (UNKNOWN, UNKNOWN), 1)

    def canonical(self, state: RestoredState) -> RestoredState:
        return state

    def loss(self, state: RestoredState) -> str:
        return state.lost

    def describe(self, step: Step) -> str:
        return str(step[0])

    def steps(self, state: RestoredState) -> Iterator[tuple[Step, RestoredState]]:
        if not state.stopped:
            for other in (B, C):
                if self._fits(state, other):
                    yield (f"a client tells {NAMES[other]} of A's start",), self._record(state, other)
            yield from self._work(state)
        elif state.acknowledged < self.setup.records:
            yield self._worked(state, (B, C))
        yield from self._disk(state)

    def _disk(self, state: RestoredState) -> Iterator[tuple[Step, RestoredState]]:
        started = len(state.disk.starts) <= self.setup.starts or state.stopped
        if started and not (state.copy is not None and state.restored):
            yield ("A starts again",), self._started(state, state.disk)
        if state.copy is None:
            stopped = not self.setup.copy_of_a_running_member
            yield ("A's disk is copied",), state._replace(copy=state.disk, stopped=stopped)
        elif not state.restored:
            yield (
                ("A's disk is replaced by the copy, and A starts",),
                self._started(state._replace(restored=True), state.copy),
            )

    def _started(self, state: RestoredState, disk: Disk) -> RestoredState:
        number = state.numbers if self.rules.starts_are_random else len(disk.starts)
        after = Disk(disk.size, (*disk.starts, number))
        return state._replace(disk=after, numbers=state.numbers + 1, stopped=False)

    def _work(self, state: RestoredState) -> Iterator[tuple[Step, RestoredState]]:
        if state.acknowledged >= self.setup.records:
            return
        for count in (2, 3):
            for chosen in combinations((A, B, C), count):
                if A not in chosen:
                    yield self._worked(state, chosen)
                elif all(self._fits(state, other) for other in chosen if other != A):
                    after = state
                    for other in chosen:
                        if other != A:
                            after = self._record(after, other)
                    newest = state.disk.starts[-1]
                    if not self.rules.all_others_record_it or after.known_starts == (newest, newest):
                        yield self._worked(after, chosen)

    def _fits(self, state: RestoredState, other: int) -> bool:
        known = state.known_starts[other - 1]
        return not self.rules.starts_are_compared or known == UNKNOWN or known in state.disk.starts

    def _record(self, state: RestoredState, other: int) -> RestoredState:
        known = list(state.known_starts)
        known[other - 1] = state.disk.starts[-1]
        return state._replace(known_starts=(known[0], known[1]))

    def _worked(self, state: RestoredState, chosen: tuple[int, ...]) -> tuple[Step, RestoredState]:
        """The quorum continues from the longest history that it holds."""
        who = " and ".join(NAMES[one] for one in chosen)
        sizes = [state.disk.size, *state.others]
        longest = max(sizes[one] for one in chosen)
        if longest < state.acknowledged:
            lost = f"{who} hold {longest} of {state.acknowledged} acknowledged records, and go on"
            return (f"a writer takes over on {who}",), state._replace(lost=lost)
        for one in chosen:
            sizes[one] = longest + 1
        after = state._replace(
            disk=state.disk._replace(size=sizes[A]), others=(sizes[B], sizes[C]), acknowledged=longest + 1
        )
        return (f"{who} acknowledge record {longest + 1}",), after
