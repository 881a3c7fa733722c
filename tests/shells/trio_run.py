"""A trio run that is the same each time: in any process, with any hash seed.

What makes it so: tasks that can run at once take turns by a seeded generator (an option of trio that its
plug-in for hypothesis uses, and no other code may); the clock moves only when nobody has anything to do; no
threads; and no garbage is collected midway, or finalizers would run when it suits the collector.

Only this file uses trio's internals.
"""

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio
from trio.testing import MockClock

T = TypeVar("T")


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    inside = trio._core._run
    before, state = inside._ALLOW_DETERMINISTIC_SCHEDULING, inside._r.getstate()
    inside._ALLOW_DETERMINISTIC_SCHEDULING = True
    inside._r.seed(seed)
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        inside._ALLOW_DETERMINISTIC_SCHEDULING = before
        inside._r.setstate(state)


class TaskCount(trio.abc.Instrument):
    """Which tasks there are, and how often they were run. `at`: something to do before a certain run."""

    def __init__(self) -> None:
        self.tasks: dict[trio.lowlevel.Task, None] = {}
        """Those that there are."""
        self.steps = 0
        self.at: dict[int, list[Callable[[], None]]] = {}

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks[task] = None

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self.tasks.pop(task, None)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        for call in self.at.pop(self.steps, ()):
            call()


def run_deterministic(main: Callable[[TaskCount], Awaitable[T]], seed: int) -> tuple[T, int]:
    """Run it: what it returns, and how many steps of tasks that took. The same each time."""
    count = TaskCount()
    with _deterministic(seed):
        result = trio.run(main, count, clock=MockClock(autojump_threshold=0), instruments=[count])
    return result, count.steps
