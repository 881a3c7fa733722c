"""Orders of completions: a story is run again and again, each time with another order of what completes.

Everything that takes time is *parked* when it could complete: the work and the report of each disk operation,
each piece of data on each connection, each connection, each call of a thread between two of its points. When
no task can run, one of the parked completions is released, chosen by the *order* of this run:

    usual      the one that was parked first
    moved      as usual, but one completion comes later, by 1, 2, 3 others or after all others, or at once
    shuffled   each completion has a random priority, so any two that are parked together come in either order
    slowed     each kind of completion has a random priority for a while: a thread or link that is slow
    replayed   by the names that a failed run printed

Time passes only while nothing is parked, unless a story lets it pass (`time_passes`). The shells are the
real ones, on the interfaces that `dos_server.memory` implements; only names and moments are added.

    def test_...() -> None:
        async def story(orders: Orders) -> None:
            async with ordered_store(orders) as servers, open_store(servers.url) as store:
                ...
                orders.begin()  # until here, the usual order
                ...

        explore(story)
"""

import math
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol, TypeVar

import trio
import trio.testing

from dos_protocol.errors import ClosedError
from tests.shells.trio_run import run_deterministic

T = TypeVar("T")
Story = Callable[["Orders"], Awaitable[None]]
STORY_S: Final = 300.0
"""Virtual seconds after which a story is stuck."""
RELEASED_MAX: Final = 5_000
_CHANGES: Final = 0.05
"""How often a kind of completion that was just released gets another priority."""


class Order(Protocol):
    """Which completion is next."""

    def choose(self, names: Sequence[str]) -> int:
        """Return the index of one of these names, which are in the order in which they were parked."""
        ...


@dataclass
class Usual:
    """First come, first served."""

    def choose(self, names: Sequence[str]) -> int:
        return 0


@dataclass
class Moved:
    """The usual order, but for one completion: it comes after `behind` others that were ready with it."""

    name: str
    behind: float
    _passed: int = field(default=0, repr=False)

    def choose(self, names: Sequence[str]) -> int:
        if self.name not in names:
            return 0
        if self._passed >= self.behind or len(names) == 1:
            return names.index(self.name)
        self._passed += 1
        return int(names[0] == self.name)


@dataclass
class Shuffled:
    """Random priorities."""

    seed: int

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self._priorities: dict[str, float] = {}

    def choose(self, names: Sequence[str]) -> int:
        for name in names:
            if name not in self._priorities:
                self._priorities[name] = self._rng.random()
        return max(range(len(names)), key=lambda index: self._priorities[names[index]])

    def now_and_then_forget(self, name: str) -> None:
        """Give the name another priority the next time, by chance."""
        if self._rng.random() < _CHANGES:
            del self._priorities[name]


@dataclass
class Slowed:
    """Random priorities of the kinds of completions, each for a while: some come much later than others."""

    seed: int

    def __post_init__(self) -> None:
        self._kinds = Shuffled(self.seed)

    def choose(self, names: Sequence[str]) -> int:
        kinds = [name.rpartition(" #")[0] for name in names]
        chosen = self._kinds.choose(kinds)
        self._kinds.now_and_then_forget(kinds[chosen])
        return chosen


class Replayed:
    """The order of these names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = iter(names)

    def choose(self, names: Sequence[str]) -> int:
        wanted = next(self._names, names[0])
        assert wanted in names, f"{wanted!r} is not parked, but {names}: another version of the code?"
        return names.index(wanted)


class OrderError(AssertionError):
    """A story failed in the order `names`."""

    def __init__(self, order: Order, names: list[str], error: Exception) -> None:
        shown = ",\n    ".join(map(repr, names))
        super().__init__(f"{error!r} in the order {order}:\n[\n    {shown}\n]")
        self.names = names


@dataclass
class _Parked:
    name: str
    release: Callable[[], None]
    lane: object
    """Of one lane, only the oldest can be released."""
    may: Callable[[], bool]
    late: bool
    behind: int = 0
    """How many others were released while this one was ready."""


def _always() -> bool:
    return True


def _nothing() -> None:
    return


class Orders:
    """The parked completions of one run, and the task `run` that releases them."""

    def __init__(self, order: Order) -> None:
        self.released: list[str] = []
        """The names since `begin`."""
        self.behind: dict[str, int] = {}
        """Name -> after how many others that were ready with it."""
        self.late: set[str] = set()
        self._order: Order = Usual()
        self._after_begin = order
        self._begun = False
        self._counts = Counter[str]()
        self._parked: list[_Parked] = []
        self._moved = trio.Event()
        self._threads = 0
        """Threads that run, that is, are not at a point."""
        self._turns: list[threading.Event] = []
        self._over = False
        """Threads that are at a point end."""

    def begin(self) -> None:
        """From here on, use the order of this run."""
        self._order, self._begun = self._after_begin, True

    def park(
        self,
        name: str,
        release: Callable[[], None],
        *,
        lane: object = None,
        may: Callable[[], bool] = _always,
        late: bool = False,
    ) -> _Parked:
        """Call `release` when it is the turn of this completion, and not before `may()`. late: in the usual
        order it comes when no other can.
        """
        self._counts[name] += 1
        parked = _Parked(f"{name} #{self._counts[name]}", release, lane, may, late)
        self._parked.append(parked)
        self._moved.set()
        return parked

    async def point(self, name: str, *, late: bool = False) -> None:
        """Wait in this task for the turn of this point."""
        reached = trio.Event()
        parked = self.park(name, reached.set, late=late)
        try:
            await reached.wait()
        finally:
            if parked in self._parked:  # it was cancelled
                self._parked.remove(parked)

    async def time_passes(self, seconds: float, times: int) -> None:
        """Let time pass although something is parked, now and then."""
        for _ in range(times):
            await self.point("time passes", late=True)
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.jump(seconds)

    def _ready(self) -> list[_Parked]:
        ready, lanes = [], set[object]()
        for one in self._parked:
            if one.lane not in lanes and one.may():
                ready.append(one)
            if one.lane is not None:
                lanes.add(one.lane)
        return sorted(ready, key=lambda one: one.late)

    async def run(self) -> None:
        """Release one completion after the other, whenever no task can run."""
        try:
            await self._release_all()
        finally:
            self._over = True
            for turn in self._turns:
                turn.set()

    async def _release_all(self) -> None:
        while True:
            await trio.testing.wait_all_tasks_blocked()
            while self._threads:
                await trio.testing.wait_all_tasks_blocked(0.000_2)
            ready = self._ready()
            if not ready:
                self._moved = trio.Event()
                await self._moved.wait()
                continue
            names = [one.name for one in ready]
            one = ready[self._order.choose(names)]
            for other in ready:
                other.behind += other is not one
            if self._begun:
                self.released.append(one.name)
                self.behind[one.name] = one.behind
                if one.late:
                    self.late.add(one.name)
                assert len(self.released) < RELEASED_MAX, f"no end: {self.released[-20:]}"
            self._parked.remove(one)
            one.release()

    # Threads: each runs alone, from one of its points to the next

    async def thread(self, name: str, call: Callable[[], T]) -> T:
        """Run a call in a thread, which begins with a point."""
        await self.point(f"{name} begins")
        self._threads += 1
        try:
            return await trio.to_thread.run_sync(call)
        finally:
            self._threads -= 1

    def block(
        self, name: str, *, may: Callable[[], bool] = _always, then: Callable[[], None] = _nothing
    ) -> None:
        """Wait in a thread for the turn of this point. `then` is called when it is."""
        turn = threading.Event()
        self._turns.append(turn)

        def release() -> None:
            then()
            self._threads += 1
            turn.set()

        def park() -> None:
            self.park(name, release, may=may)
            self._threads -= 1

        trio.from_thread.run_sync(park)
        turn.wait()
        if self._over:
            raise ClosedError("the run is over")

    def lock(self, name: str) -> "OrderedLock":
        """Return a lock for threads whose every acquisition is a point."""
        return OrderedLock(self, name)


class OrderedLock:
    """A `threading.Lock` for `with`."""

    def __init__(self, orders: Orders, name: str) -> None:
        self._orders, self._name, self._held = orders, name, False

    def _take(self) -> None:
        self._held = True

    def __enter__(self) -> None:
        self._orders.block(f"takes {self._name}", may=lambda: not self._held, then=self._take)

    def __exit__(self, *_: object) -> None:
        self._held = False


# Runs


def play(story: Story, order: Order) -> Orders:
    """Run a story in an order. Returns its completions. Raises OrderError."""
    made: list[Orders] = []

    async def main(_: object) -> None:
        orders = Orders(deepcopy(order))
        made.append(orders)
        with trio.fail_after(STORY_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(orders.run)
                await story(orders)
                nursery.cancel_scope.cancel()

    try:
        run_deterministic(main, 1)
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise OrderError(order, made[0].released, error) from error
    return made[0]


def _distances(behind: int, *, late: bool) -> list[float]:
    """Return after how many others a completion may come that usually comes after `behind`."""
    return [*range(behind)] if late else [0, *(behind + more for more in (1, 2, 3)), math.inf]


def explore(story: Story, runs: int = 100, seed: int = 0) -> None:
    """Run a story in the usual order, then in others, of which a third are moved, shuffled, slowed. Raises
    OrderError.
    """
    usual = play(story, Usual())
    moved = [
        Moved(name, distance)
        for name, behind in usual.behind.items()
        for distance in _distances(behind, late=name in usual.late)
    ]
    Random(seed).shuffle(moved)
    for number in range(runs):
        kind, index = number % 3, seed + number // 3
        if kind == 0 and number // 3 < len(moved):
            play(story, moved[number // 3])
        else:
            play(story, Slowed(index) if kind == 1 else Shuffled(index))
