"""The GETs that wait at the end of an object until there is more.

There may be many: each is found by its object, by its session and by its deadline, so that ending some costs
nothing for the others. Those that are *woken* are answered in parts, so that one append that many wait for
holds nobody up; and no session has more reads at the disk for that than it may ask for.

Rules of this file: finding them, and bounds. What they are answered, `reads` says.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from dos_protocol.messages import Get
from dos_server.core.object_state import ObjectState
from dos_server.limits import waiting_of_one_min, waiting_total_max

Key = TypeVar("Key")


class WaitingRead(NamedTuple):
    """A GET at the end of the object, until there is more or its time is up."""

    state: ObjectState
    session: int
    request_id: int
    get: Get
    deadline: float


class WaitingReads:
    """See the module. Its length: how many wait, or were woken and are not answered yet."""

    def __init__(self) -> None:
        self._waiters: dict[int, WaitingRead] = {}
        self._of_session: dict[int, set[int]] = {}
        self._of_object: dict[ObjectState, set[int]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._last = 0
        self.woken: deque[WaitingRead] = deque()

    def __len__(self) -> int:
        return len(self._waiters) + len(self.woken)

    def has_room(self, session: int) -> bool:
        """Whether another one of that session may wait: some of each always may."""
        return len(self) < waiting_total_max or len(self._of_session.get(session, ())) < waiting_of_one_min

    def add(self, waiter: WaitingRead) -> None:
        self._last += 1
        number = self._last
        self._waiters[number] = waiter
        self._of_session.setdefault(waiter.session, set()).add(number)
        self._of_object.setdefault(waiter.state, set()).add(number)
        waiter.state.waiters += 1
        heapq.heappush(self._deadlines, (waiter.deadline, number))

    def take_of_object(self, state: ObjectState) -> list[WaitingRead]:
        """Those of an object, in the order in which they came. They wait no more."""
        return self._take(self._of_object.get(state, ()))

    def take_of_session(self, session: int) -> list[WaitingRead]:
        """The same, of a session."""
        return self._take(self._of_session.get(session, ()))

    def take_due(self, now: float) -> list[WaitingRead]:
        """Those whose time is up."""
        numbers = []
        while self._deadlines and self._deadlines[0][0] <= now:
            numbers.append(heapq.heappop(self._deadlines)[1])
        return self._take(numbers)

    def _take(self, numbers: Iterable[int]) -> list[WaitingRead]:
        taken = []
        for number in sorted(numbers):
            waiter = self._waiters.pop(number, None)
            if waiter is not None:
                taken.append(waiter)
                waiter.state.waiters -= 1
                _drop(self._of_session, waiter.session, number)
                _drop(self._of_object, waiter.state, number)
        if len(self._deadlines) > 2 * len(self._waiters) + 64:  # of those that were taken before their time
            self._deadlines = [(one.deadline, number) for number, one in self._waiters.items()]
            heapq.heapify(self._deadlines)
        return taken


def _drop(numbers: dict[Key, set[int]], key: Key, number: int) -> None:
    numbers[key].discard(number)
    if not numbers[key]:
        del numbers[key]
