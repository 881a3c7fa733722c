"""The GETs that wait at the end of an object for more bytes.

There may be many. Each is found by object, by session and by deadline, so ending some costs nothing for the
others. Woken GETs are answered in parts, so that one append that many wait for does not delay other requests,
and no session gets more disk reads from it than it may have in progress.

Only lookup and limits belong here; `reads` decides the answers.
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
    """A GET that waits at the end of the object until more bytes are synced or its deadline passes."""

    state: ObjectState
    session: int
    request_id: int
    get: Get
    deadline: float


class WaitingReads:
    """All waiting GETs. Its length counts those that wait, and those woken but not answered yet."""

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
        """Return whether another GET of the session may wait. Each session may always have a few."""
        return len(self) < waiting_total_max or len(self._of_session.get(session, ())) < waiting_of_one_min

    def add(self, waiter: WaitingRead) -> None:
        """Add a waiting GET."""
        self._last += 1
        number = self._last
        self._waiters[number] = waiter
        self._of_session.setdefault(waiter.session, set()).add(number)
        self._of_object.setdefault(waiter.state, set()).add(number)
        waiter.state.waiters += 1
        heapq.heappush(self._deadlines, (waiter.deadline, number))

    def take_of_object(self, state: ObjectState) -> list[WaitingRead]:
        """Remove and return the GETs that wait on the object, in order of arrival."""
        return self._take(self._of_object.get(state, ()))

    def take_of_session(self, session: int) -> list[WaitingRead]:
        """Remove and return the waiting GETs of the session, in order of arrival."""
        return self._take(self._of_session.get(session, ()))

    def take_due(self, now: float) -> list[WaitingRead]:
        """Remove and return the GETs whose deadline has passed."""
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
        if len(self._deadlines) > 2 * len(self._waiters) + 64:  # most are of GETs already taken
            self._deadlines = [(one.deadline, number) for number, one in self._waiters.items()]
            heapq.heapify(self._deadlines)
        return taken


def _drop(numbers: dict[Key, set[int]], key: Key, number: int) -> None:
    numbers[key].discard(number)
    if not numbers[key]:
        del numbers[key]
