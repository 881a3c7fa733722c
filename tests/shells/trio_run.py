"""A deterministic trio run: the same in any process, with any hash seed.

A seeded generator selects among the tasks that can run (an internal option of trio for its hypothesis
plug-in); the clock moves only when no task can run; there are no threads; and no garbage is collected during
the run, because finalizers would run at a time that the collector chooses.

Only this file uses trio's internals.
"""

import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

import trio
from trio.testing import MockClock

T = TypeVar("T")


class _RandomOfThread:
    """The generator of this thread's run. Other threads, which earlier tests may have left with runs of trio,
    do not draw from it."""

    def __init__(self, seed: int, others: Random) -> None:
        self._ours, self._others, self._thread = Random(seed), others, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours if threading.get_ident() == self._thread else self._others, name)


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    inside: Any = trio._core._run
    before, rng = inside._ALLOW_DETERMINISTIC_SCHEDULING, inside._r
    inside._ALLOW_DETERMINISTIC_SCHEDULING = True
    inside._r = _RandomOfThread(seed, rng)
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        inside._ALLOW_DETERMINISTIC_SCHEDULING = before
        inside._r = rng


STEPS_AT_ONE_TIME_MAX = 200_000
"""No run has so many steps of tasks without waiting for time to pass; tasks that wake each other do."""


class TaskCount(trio.abc.Instrument):
    """Counts the steps of tasks. `tasks`: all running tasks; `at`: calls before a certain step; `on_spin`: is
    called if time does not pass any more."""

    def __init__(self) -> None:
        self.tasks: dict[trio.lowlevel.Task, None] = {}
        self.steps = 0
        self.at: dict[int, list[Callable[[], None]]] = {}
        self.on_spin: Callable[[], None] = lambda: None
        self._seen_at = 0.0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks[task] = None

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self.tasks.pop(task, None)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        for call in self.at.pop(self.steps, ()):
            call()
        if self.steps % STEPS_AT_ONE_TIME_MAX == 0:
            before, self._seen_at = self._seen_at, trio.current_time()
            if before == self._seen_at:
                self.on_spin()


def run_deterministic(main: Callable[[TaskCount], Awaitable[T]], seed: int) -> tuple[T, int]:
    """Run a coroutine function. Return its result and the number of steps of tasks, which are the same each
    time."""
    count = TaskCount()
    with _deterministic(seed):
        result = trio.run(main, count, clock=MockClock(autojump_threshold=0), instruments=[count])
    return result, count.steps
