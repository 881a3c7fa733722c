"""The interfaces of `dos_server.ports` in memory: rounds over memory sockets, and disk work without threads.

Work takes virtual time: it begins, later it touches the disk, later its end is reported. So a write during a
sync is covered or not, as on a real disk, and no thread is needed, which trio could not run reproducibly.
"""

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from dos_server.disk_threads import WorkerPool
from dos_server.memory.network import MemoryListener
from dos_server.memory.pipes import MemorySocket
from dos_server.memory.timers import MemoryTimers
from dos_server.ports import Rounds, Workers
from dos_server.readiness import Call, ReadyCall

T = TypeVar("T")
Job = TypeVar("Job")
Result = TypeVar("Result")


class MemoryRounds:
    """Rounds as of `readiness.Readiness`. `rng` shuffles the sockets that are ready at the same time."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng
        self._watched: dict[MemorySocket, tuple[ReadyCall, bool, bool]] = {}
        self._soon: deque[Call] = deque()
        self._done: deque[Call] = deque()
        self._ready: dict[MemorySocket, None] = {}
        self._lot = trio.lowlevel.ParkingLot()

    def watch(self, sock: MemorySocket, call: ReadyCall, *, reading: bool, writing: bool) -> None:
        if reading or writing:
            known = self._watched.get(sock)
            self._watched[sock] = (known[0] if known is not None else call, reading, writing)
            sock.moved = partial(self._moved, sock)
            self._moved(sock)
        elif self._watched.pop(sock, None) is not None:
            sock.moved = None

    async def wait_readable(self, sock: MemorySocket | MemoryListener) -> None:
        await trio.lowlevel.checkpoint()
        while not sock.readable:
            await sock.wait()

    def soon(self, call: Call) -> None:
        self._soon.append(call)
        self._ring()

    def done(self, call: Call) -> None:
        self._done.append(call)
        self._ring()

    def yield_to_loop(self) -> None:
        """Do nothing: there are no threads."""

    def _ring(self) -> None:
        self._lot.unpark_all()

    def _moved(self, sock: MemorySocket) -> None:
        if sock not in self._ready and self._is_ready(sock):
            self._ready[sock] = None
            self._ring()

    def _is_ready(self, sock: MemorySocket) -> bool:
        """Whether to call for a socket. A broken one is always ready."""
        if sock not in self._watched:
            return False
        _, reading, writing = self._watched[sock]
        return sock.broken or (reading and sock.readable) or (writing and sock.writable)

    def _take_ready(self) -> list[MemorySocket]:
        """Return the ready sockets. They stay ready, and are checked again in the next round."""
        ready, self._ready = [one for one in self._ready if self._is_ready(one)], {}
        self._ready.update(dict.fromkeys(ready))
        return ready

    async def run(self, round_ended: Call) -> None:
        while True:
            if self._done or self._soon or self._take_ready():
                await trio.lowlevel.checkpoint()
            else:
                await self._lot.park()
            ready = self._take_ready()
            if self._rng is not None:
                self._rng.shuffle(ready)
            for sock in ready:
                watched = self._watched.get(sock)
                if watched is not None:
                    call, reading, _ = watched
                    call(readable=sock.broken or (reading and sock.readable))
            while self._done:
                self._done.popleft()()
            for _ in range(len(self._soon)):
                self._soon.popleft()()
            round_ended()

    def close(self) -> None:
        for sock in self._watched:
            sock.moved = None
        self._watched.clear()


class MemoryWorkers(WorkerPool[Job, Result]):
    """A pool as of `disk_threads.DiskThreads`, without threads.

    `durations_s` returns, anew for each job, the seconds from its begin until it touches the disk, and from
    then until its end is reported.
    """

    def __init__(
        self,
        work: Callable[[Job], Result],
        on_result: Callable[[Result], None],
        rounds: Rounds,
        threads_max: int,
        timers: MemoryTimers,
        durations_s: Callable[[], tuple[float, float]],
    ) -> None:
        super().__init__(work, on_result, threads_max)
        self._rounds = rounds
        self._timers = timers
        self._durations_s = durations_s
        self._begun: dict[int, Job] = {}
        self._last = 0
        self._closed = False

    def begin(self, job: Job) -> None:
        self._running += 1
        self._last += 1
        self._begun[self._last] = job
        before_s, after_s = self._durations_s()
        self._later(before_s, partial(self._touch, self._last, after_s))

    def _later(self, seconds: float, call: Call) -> None:
        if seconds > 0:
            self._timers.after(seconds, lambda: self._rounds.done(call))
        else:
            self._rounds.done(call)

    def _touch(self, number: int, after_s: float) -> None:
        """Do the work. An exception, which work must not raise, is raised in the round."""
        job = self._begun.pop(number, None)
        if job is not None and not self._closed:
            self._later(after_s, partial(self._ended, self._work(job)))

    def _ended(self, result: Result) -> None:
        if not self._closed:
            super()._ended(result)

    def close(self) -> None:
        """Finish the jobs that have begun, at once, and report none of them."""
        self._closed = True
        while self._begun:
            self._work(self._begun.pop(next(iter(self._begun))))


class MemoryPorts:
    """The outside of one server in memory. `rng` makes every choice; without it, work takes no time."""

    def __init__(
        self,
        timers: MemoryTimers,
        rng: random.Random | None = None,
        durations_s: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        make_rounds: Callable[[random.Random | None], Rounds] = MemoryRounds,
        ids: random.Random | None = None,
    ) -> None:
        self._timers = timers
        self._rng = rng
        self._make_rounds = make_rounds
        self._ids = ids or rng or random.SystemRandom()
        self._durations_s = durations_s
        self.hurried = False
        """The machine is gone: remaining waits take no time."""

    def rounds(self) -> Rounds:
        return self._make_rounds(self._rng)

    def workers(
        self,
        work: Callable[[Job], Result],
        on_result: Callable[[Result], None],
        rounds: Rounds,
        threads_max: int,
    ) -> Workers[Job]:
        return MemoryWorkers(work, on_result, rounds, threads_max, self._timers, self._durations_s)

    async def in_thread(self, call: Callable[[], T], limiter: trio.CapacityLimiter | None = None) -> T:
        del limiter  # there are no threads to limit
        before_s, after_s = (0.0, 0.0) if self.hurried else self._durations_s()
        await trio.sleep(before_s)
        result = call()
        await trio.sleep(after_s)
        return result

    def monotonic(self) -> float:
        return trio.current_time()

    def fresh_id(self) -> bytes:
        return self._ids.randbytes(16)
