"""Virtual time: a heap of events, coroutines that wait on it, processes that own both.

This file does not depend on what runs. Time passes only from one event to the next; events of the same time
run in the order in which they were scheduled. A paused process does nothing until it is resumed, and then
handles everything that arrived. A killed process never runs again: its next incarnation is another process.

Coroutines are driven by hand, not by a library: they wait with `Process.sleep` and `Process.wait`, or with
`trio.sleep` within `sleeping_virtually`, and with nothing else.

A wait is a function that receives the callback of its end; the first call wakes the coroutine.
"""

import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from typing import Any, ClassVar, Final
from unittest import mock

import trio

from tests.sim.engine.trace import Trace

Wake = Callable[[], None]
_Register = Callable[[Wake], None]
LATER_S: Final = 1e-9
"""Added to waits by a skewed clock, so that rounding never ends a wait before its time."""


@types.coroutine
def _suspend(register: _Register) -> Generator[_Register]:
    yield register


class StuckError(Exception):
    """A run has more steps than the limit, so it probably loops without end."""


class StoppedError(BaseException):
    """Raised in a coroutine where it waits, when it is stopped. (`close` does not work with asynchronous
    generators.)"""


class Environment:
    """The heap of events. `now`: virtual seconds since the beginning; `steps`: events so far; `sometimes`:
    how often each event of `tests.sim.sometimes` happened.

    An entry is a call with its arguments, and the process that makes it; None: the environment itself."""

    def __init__(self, trace: Trace, *, steps_max: int = 2_000_000) -> None:
        self.now = 0.0
        self.steps = 0
        self.trace = trace
        self.with_log = False
        """Whether servers may have a group log."""
        self.sometimes: Counter[str] = Counter()
        self._steps_max = steps_max
        self._heap: list[tuple[float, int, Process | None, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Make the call in `delay_s` seconds."""
        self._count += 1
        heappush(self._heap, (self.now + delay_s, self._count, None, call, args))

    def after_by(self, process: "Process", delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Let that process make the call in `delay_s` seconds, if it is alive then."""
        self._count += 1
        heappush(self._heap, (self.now + delay_s, self._count, process, call, args))

    def run(self, until: Callable[[], bool] | None, deadline: float) -> bool:
        """Run events until `until()` is true or the deadline passes. Return whether it became true."""
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
    """An event that coroutines wait for. It can be set repeatedly."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Wake] = []

    def set(self) -> None:
        """Wake all current waiters."""
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def register(self, wake: Wake) -> None:
        self._waiting.append(wake)


class Task:
    """A coroutine of a process. `done`: it returned, raised or was stopped. `stepping`: the process whose
    coroutine runs now."""

    stepping: "ClassVar[Process | None]" = None

    def __init__(self, process: "Process", name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self.name = name
        self.done = False
        self._process = process
        self._coroutine = coroutine
        self._turn = 0

    def step(self, turn: int) -> None:
        """Run to the next wait, unless another call has already woken it."""
        if self.done or turn != self._turn:
            return
        Task.stepping, outer = self._process, Task.stepping
        try:
            register = self._coroutine.send(None)
        except StopIteration:
            self.done = True
            return
        except BaseException:
            self.done = True
            raise
        finally:
            Task.stepping = outer
        self._turn += 1
        register(partial(self._wake, self._turn))

    def _wake(self, turn: int) -> None:
        """The wait is over; later calls have no effect."""
        if turn == self._turn and not self.done:
            self._process.soon(self.step, turn)

    def stop(self) -> None:
        """End the coroutine where it waits; its `finally` blocks run."""
        self.done, was_done = True, self.done
        while not was_done:
            try:
                self._coroutine.throw(StoppedError())
            except (StoppedError, StopIteration):
                return


@contextmanager
def sleeping_virtually() -> Iterator[None]:
    """Let `trio.sleep` sleep on the clock of the process whose coroutine runs. Trio's tasks sleep as ever."""
    by_trio = trio.sleep

    async def sleep(seconds: float) -> None:
        await (by_trio if Task.stepping is None else Task.stepping.sleep)(seconds)

    with mock.patch.object(trio, "sleep", sleep):
        yield


class Process:
    """A process of the simulation: a server, a writer, a reader.

    `skew`: how much faster its clock runs than virtual time; `offset`: by how many seconds it is ahead."""

    def __init__(self, env: Environment, name: str) -> None:
        self.env = env
        self.name = name
        self.alive = True
        self.paused = False
        self.skew = 0.0
        self.offset = 0.0
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._tasks: list[Task] = []

    @property
    def now(self) -> float:
        """Return the time of its monotonic clock."""
        return self.offset + self.env.now * (1.0 + self.skew)

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Make the call in `delay_s` seconds of its own clock, if it is alive then."""
        later_s = LATER_S if self.skew or self.offset else 0.0
        self.env.after_by(self, delay_s / (1.0 + self.skew) + later_s, call, *args)

    def soon(self, call: Callable[..., None], *args: Any) -> None:
        """Make the call as the next event."""
        self.env.after_by(self, 0.0, call, *args)

    def do(self, call: Callable[..., None], *args: Any) -> None:
        """Make the call now; when resumed, if paused; never, if killed."""
        if not self.alive:
            return
        if self.paused:
            self._held.append((call, args))
        else:
            call(*args)

    def start(self, name: str, coroutine: Coroutine[Any, Any, None]) -> Task:
        """Run a coroutine as a task of this process, if it is alive: a `finally` of a killed one may ask."""
        task = Task(self, name, coroutine)
        if not self.alive:
            coroutine.close()
            task.done = True
            return task
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
        """SIGKILL: end its tasks and ignore all later calls."""
        self.alive = False
        self._held.clear()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.stop()

    # Waits of its coroutines

    async def sleep(self, seconds: float) -> None:
        """Wait for that many seconds of its own clock."""
        await _suspend(partial(self.after, seconds))

    async def wait(self, signal: Signal, timeout_s: float | None = None) -> None:
        """Wait for the signal, at most `timeout_s`. The caller checks which of them ended the wait."""

        def register(wake: Wake) -> None:
            signal.register(wake)
            if timeout_s is not None:
                self.after(timeout_s, wake)

        await _suspend(register)
