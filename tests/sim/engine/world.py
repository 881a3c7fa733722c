"""Virtual time: a heap of events, coroutines that wait on it, processes that own both.

This file does not know what runs. Time passes only from one event to the next; events of the same time run in
the order in which they were requested. A paused process does nothing until it is resumed, and then handles
everything that arrived. A killed process never does anything again: its next incarnation is another process.

Coroutines are driven by hand, not by a library: they wait with `sleep`, `Signal.wait` and
`Process.timeout`, and nothing else. A wait is a function that is given what to call when it is over;
the first one wins.
"""

import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

from tests.sim.engine.trace import Trace

Wake = Callable[[], None]
_Register = Callable[[Wake], None]
LATER_S: Final = 1e-9
"""So that a time is not met too early by a rounding of a skewed clock: by how little may be less than what
time can go on by."""


@types.coroutine
def _suspend(register: _Register) -> Generator[_Register]:
    yield register


class StuckError(Exception):
    """More happened in a run than ever should: something goes round in circles."""


class StoppedError(BaseException):
    """Raised in a coroutine where it waits when it is stopped. (Not `close`: asynchronous generators take
    that badly.)"""


class World:
    """The heap. `now`: seconds since the beginning; `steps`: things done so far; `sometimes`: how often what
    should happen sometimes did, for those who count it.

    An entry says what to call with what, and which process does it: none, when it is the world's own."""

    def __init__(self, trace: Trace, *, steps_max: int = 2_000_000) -> None:
        self.now = 0.0
        self.steps = 0
        self.trace = trace
        self.sometimes: Counter[str] = Counter()
        self._steps_max = steps_max
        self._heap: list[tuple[float, int, Process | None, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Do it in so many seconds from now."""
        self._count += 1
        heappush(self._heap, (self.now + delay_s, self._count, None, call, args))

    def after_by(self, process: "Process", delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """That process does it in so many seconds from now, if it lives then."""
        self._count += 1
        heappush(self._heap, (self.now + delay_s, self._count, process, call, args))

    def run(self, until: Callable[[], bool] | None, deadline: float) -> bool:
        """Do what is due, one after the other, until `until()` or the time is up. Whether it came true."""
        heap, step = self._heap, self.trace.step
        while until is None or not until():
            if not heap or heap[0][0] > deadline:
                self.now = max(self.now, deadline)
                return until is not None and until()
            self.now, _, process, call, args = heappop(heap)
            self.steps += 1
            step(self.now)
            if self.steps > self._steps_max:
                raise StuckError(f"{self.steps} steps in {self.now:.3f} s of virtual time")
            if process is None:
                call(*args)
            else:
                process.do(call, *args)
        return True


class Signal:
    """Something that is waited for, once or again and again."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Wake] = []

    def set(self) -> None:
        """Wake everybody who waits now."""
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def register(self, wake: Wake) -> None:
        self._waiting.append(wake)


class Task:
    """A coroutine of a process. `done`: it returned, raised or was stopped."""

    def __init__(self, process: "Process", name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self.name = name
        self.done = False
        self._process = process
        self._coroutine = coroutine
        self._turn = 0

    def step(self, turn: int) -> None:
        """Go on to the next wait, unless something else has already woken it."""
        if self.done or turn != self._turn:
            return
        try:
            register = self._coroutine.send(None)
        except StopIteration:
            self.done = True
            return
        except BaseException:
            self.done = True
            raise
        self._turn += 1
        register(partial(self._wake, self._turn))

    def _wake(self, turn: int) -> None:
        """The wait is over; later calls have no effect."""
        if turn == self._turn and not self.done:
            self._process.soon(self.step, turn)

    def stop(self) -> None:
        """End it where it waits; what it has in `finally` runs."""
        self.done, was_done = True, self.done
        while not was_done:
            try:
                self._coroutine.throw(StoppedError())
            except (StoppedError, StopIteration):
                return


class Process:
    """Something with a life of its own: a server, a writer, a reader.

    `skew`: how much faster than the world's its clock runs, `offset` what it reads ahead."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused = False
        self.skew = 0.0
        self.offset = 0.0
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._tasks: list[Task] = []

    @property
    def now(self) -> float:
        """What its monotonic clock says."""
        return self.offset + self.world.now * (1.0 + self.skew)

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Do it in so many of its own seconds, if it lives then."""
        later_s = LATER_S if self.skew or self.offset else 0.0
        self.world.after_by(self, delay_s / (1.0 + self.skew) + later_s, call, *args)

    def soon(self, call: Callable[..., None], *args: Any) -> None:
        """Do it next."""
        self.world.after_by(self, 0.0, call, *args)

    def do(self, call: Callable[..., None], *args: Any) -> None:
        """Now; or when it is resumed; or never."""
        if not self.alive:
            return
        if self.paused:
            self._held.append((call, args))
        else:
            call(*args)

    def start(self, name: str, coroutine: Coroutine[Any, Any, None]) -> Task:
        """Run a coroutine as a task of this process."""
        task = Task(self, name, coroutine)
        self._tasks = [one for one in self._tasks if not one.done]
        self._tasks.append(task)
        self.soon(task.step, 0)
        return task

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self.paused = False
        held, self._held = self._held, []
        for call, args in held:
            self.do(call, *args)

    def kill(self) -> None:
        """SIGKILL: it does nothing more."""
        self.alive = False
        self._held.clear()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.stop()

    # What its coroutines wait for

    async def sleep(self, seconds: float) -> None:
        """Wait so many of its own seconds."""
        await _suspend(partial(self.after, seconds))

    async def wait(self, signal: Signal, timeout_s: float | None = None) -> None:
        """Wait for the signal, or so long at most. Which of them it was, the caller looks for itself."""

        def register(wake: Wake) -> None:
            signal.register(wake)
            if timeout_s is not None:
                self.after(timeout_s, wake)

        await _suspend(register)
