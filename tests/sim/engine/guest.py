"""Real trio code as a process of the simulation: the shells of `dos_client`, unchanged, on virtual time.

Trio runs in guest mode, as a guest of the environment: its loop runs only when data has arrived or a deadline
is due, and its clock is the process's own. So a guest is paused, killed and skewed like any other process,
and one seed schedules its tasks in one order.

This file runs trio's loop and the simulator's event heap in turns; `sockets` has the sockets of the code
inside. It uses two private parts of trio: where a thread keeps its current run (many guests share one
thread), and the switch with which trio's own tests schedule tasks in a seeded order.
"""

import math
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import outcome
import trio
from trio._core import _run as trio_run

from tests.sim.engine.environment import LATER_S, Environment, Process

_TURNS_AT_DEATH_MAX = 10_000


@contextmanager
def scheduled_by(rng: Random) -> Iterator[None]:
    """Let the stream decide the order of trio tasks that can run at the same time."""
    with (
        mock.patch.object(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True),
        mock.patch.object(trio_run, "_r", rng),
    ):
        yield


class _Clock(trio.abc.Clock):
    """The guest's clock. `idle_until`: no task can run before; None: a task can run now."""

    def __init__(self, guest: "Guest") -> None:
        self.guest = guest
        self.idle_until: float | None = None

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.guest.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by trio when no task can run. It never waits, because the environment does."""
        self.idle_until = deadline
        return 0.0


class Guest(Process):
    """A process that runs a trio coroutine. `failure`: the error that ended it, if any."""

    def __init__(self, env: Environment, name: str) -> None:
        super().__init__(env, name)
        self.failure: BaseException | None = None
        self._clock = _Clock(self)
        self._run: dict[str, Any] = {}
        self._hooks: Any = sys.get_asyncgen_hooks()
        self._tick: Callable[[], object] | None = None
        self._leaving = False  # trio's own steps at the end of a run, which are not deadlines
        self._ended = False
        self._scope = trio.CancelScope()
        self._timer = 0
        self._now: float | None = None

    @property
    def now(self) -> float:
        return super().now if self._now is None else self._now

    def begin(self, main: Callable[[], Awaitable[None]]) -> None:
        """Start the coroutine."""
        with self._inside():
            trio.lowlevel.start_guest_run(
                self._main,
                main,
                run_sync_soon_threadsafe=self._no_threads,
                run_sync_soon_not_threadsafe=self._keep_tick,
                done_callback=self._done,
                host_uses_signal_set_wakeup_fd=True,
                clock=self._clock,
            )
        self.soon(self._go)

    async def _main(self, main: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._scope:
                await main()
        finally:
            self._leaving = True

    def call(self, what: Callable[[], object]) -> None:
        """Call a function in the guest's run, for example to set an event, then run its tasks."""
        if self._ended:
            return
        with self._inside():
            what()
        self._go()

    def kill(self) -> None:
        """Kill the process. Its tasks are canceled and run to their end, without visible effects and with
        only its own clock advancing, so that no task is left."""
        if not self.alive:
            return
        super().kill()
        if self._ended:
            return
        self._now = super().now
        with self._inside():
            self._scope.cancel()
        turns = 0
        while not self._has_ended():
            self._ticks()
            turns += 1
            assert turns < _TURNS_AT_DEATH_MAX, f"{self.name} was killed and continues to run"
            if self._clock.idle_until is not None and math.isfinite(self._clock.idle_until):
                self._now = max(self._now, self._clock.idle_until)

    def _has_ended(self) -> bool:
        return self._ended

    def _go(self) -> None:
        """Run all tasks that can run now, and schedule the next deadline. Raises the error that ended the
        guest, if any."""
        self._ticks()
        if self.failure is not None:
            raise self.failure
        self._timer += 1
        due = self._clock.idle_until
        if not self._ended and due is not None and math.isfinite(due):
            self.after(max(due - self.now, 0.0) + LATER_S, partial(self._due, self._timer))

    def _due(self, timer: int) -> None:
        if timer == self._timer and not self._ended:
            self._go()

    def _ticks(self) -> None:
        with self._inside():
            self._clock.idle_until = None
            while not self._ended:
                tick, self._tick = self._tick, None
                assert tick is not None
                tick()
                idle_until = self._clock.idle_until
                if idle_until is not None and idle_until > self.now and not self._leaving:
                    return
                self._clock.idle_until = None

    def _keep_tick(self, tick: Callable[[], object]) -> None:
        self._tick = tick

    def _no_threads(self, tick: Callable[[], object]) -> None:
        raise AssertionError(f"{self.name} requests a thread")

    def _done(self, result: "outcome.Outcome[None]") -> None:
        self._ended, self.alive = True, False
        if isinstance(result, outcome.Error):
            self.failure = result.error

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Make this guest's trio run the current one."""
        run = trio_run.GLOBAL_RUN_CONTEXT.__dict__
        outside, hooks = dict(run), sys.get_asyncgen_hooks()
        run.clear()
        run.update(self._run)
        sys.set_asyncgen_hooks(*self._hooks)
        try:
            yield
        finally:
            self._run, self._hooks = dict(run), sys.get_asyncgen_hooks()
            run.clear()
            run.update(outside)
            sys.set_asyncgen_hooks(*hooks)
