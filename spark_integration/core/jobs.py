"""The Spark jobs of workers and of stand-bys: what is submitted, held and canceled. Pure: the launcher
performs it.

Each worker of a region is a Spark job with a single task (`WorkerJobs`). The coordinator requests attempts
and may cancel one; Spark reports when a job has ended, for whatever cause. A stand-by is such a job, too,
which waits to become a worker (`StandbyJobs`). `JobTexts` has what Spark's pages show of both.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Final

from spark_integration.limits import ERROR_TEXT_CHARS_MAX

HOLD_TICKS: Final = 4
"""Two seconds: Spark places the task of a submitted job within some 0.3 s if another slot is free."""


class JobState(Enum):
    IDLE = auto()
    RUNNING = auto()
    CANCELLING = auto()


@dataclass(frozen=True, slots=True)
class StartRequested:
    attempt: int
    beside: bool = False
    standby: bool = False
    """Whether a stand-by waits that can become it."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    attempt: int | None = None
    """None: all attempts."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    attempt: int
    error: str | None


@dataclass(frozen=True, slots=True)
class LauncherTick:
    pass


Event = StartRequested | CancelRequested | JobEnded | LauncherTick


@dataclass(frozen=True, slots=True)
class SubmitJob:
    attempt: int


@dataclass(frozen=True, slots=True)
class CancelJob:
    attempt: int


@dataclass(frozen=True, slots=True)
class ReportEnd:
    attempt: int
    error: str | None


Effect = SubmitJob | CancelJob | ReportEnd


# | state      | StartRequested              | CancelRequested | JobEnded                       | Tick       |
# |------------|-----------------------------|-----------------|--------------------------------|------------|
# | IDLE       | submit -> RUNNING           | -               | (not ours: a bug)              | -          |
# | RUNNING    | hold the current, submit    | -> CANCELLING   | report -> IDLE                 | -          |
# | CANCELLING | keep as next; with a        | forget next     | report -> IDLE, or submit next |cancel again|
# |            | stand-by: submit -> RUNNING |                 |                                |            |
#
# A cancel of the current attempt, or of all, cancels the held jobs as well; that of a kept attempt only this
# one, which is then held. The end of every submitted attempt is reported exactly once.


class WorkerJobs:
    """The jobs of one worker. `attempt`, the current one, is None exactly in IDLE.

    `held`: attempt -> the ticks since it was held, at least `HOLD_TICKS` if it is being canceled. `kept`:
    attempts that run beside the current one, until they end or are canceled.
    """

    def __init__(self) -> None:
        self.state = JobState.IDLE
        self.attempt: int | None = None
        self.next_attempt: int | None = None
        self.held: dict[int, int] = {}
        self.kept: list[int] = []

    @property
    def is_idle(self) -> bool:
        """Whether no job of this worker runs."""
        return self.attempt is None and not self.held and not self.kept

    @property
    def rejected(self) -> list[int]:
        """The attempts whose slots are kept occupied, because the next one must not run on their hosts."""
        return [one for one, ticks in self.held.items() if ticks < HOLD_TICKS]

    def handle(self, event: Event) -> list[Effect]:
        """Take one event, return what is to be done, in order."""
        match event:
            case StartRequested(attempt, beside, standby):
                return self._start(attempt, beside=beside, standby=standby)
            case CancelRequested(attempt):
                return self._cancel_requested(attempt)
            case JobEnded(attempt, error):
                return self._ended(attempt, error)
            case LauncherTick():
                # Spark ignores a cancel until it knows the job: one that was sent between the start of our
                # thread and the registration of the job is lost, and its task would hold the slot for ever.
                self.held = {one: ticks + 1 for one, ticks in self.held.items()}
                over: list[Effect] = [
                    CancelJob(one) for one, ticks in self.held.items() if ticks >= HOLD_TICKS
                ]
                return over + (self._cancel() if self.state is JobState.CANCELLING else [])

    def _start(self, attempt: int, *, beside: bool = False, standby: bool = False) -> list[Effect]:
        # A canceled process may live a little longer than its job. That costs slots, not safety: the next
        # attempt has a later epoch, which fences it. A stand-by needs no slot, so it does not wait.
        if self.state is JobState.CANCELLING and not standby:
            self.next_attempt = attempt
            return self._cancel()
        if self.state is JobState.CANCELLING and self.attempt is not None:
            self.held[self.attempt], self.next_attempt = HOLD_TICKS, None
        elif self.attempt is not None and beside:
            self.kept.append(self.attempt)
        elif self.attempt is not None:
            # The coordinator has rejected the place of that job: a peer cannot reach its host. As long as it
            # occupies its slot, Spark cannot place the new attempt there again.
            self.held[self.attempt] = 0
        self.state, self.attempt = JobState.RUNNING, attempt
        return [SubmitJob(attempt)]

    def _cancel_requested(self, attempt: int | None) -> list[Effect]:
        over = [one for one in self.kept if attempt in (None, one)]
        self.kept = [one for one in self.kept if one not in over]
        if attempt in (None, self.attempt, self.next_attempt):
            self.next_attempt = None
            self.held |= dict.fromkeys((*self.held, *over), HOLD_TICKS)
            return [*(CancelJob(one) for one in self.held), *self._cancel()]
        over += [one for one in self.held if one == attempt]
        self.held |= dict.fromkeys(over, HOLD_TICKS)
        return [CancelJob(one) for one in over]

    def _cancel(self) -> list[Effect]:
        if self.attempt is None:
            return []
        self.state = JobState.CANCELLING
        return [CancelJob(self.attempt)]

    def _ended(self, attempt: int, error: str | None) -> list[Effect]:
        effects: list[Effect] = [ReportEnd(attempt, error)]
        if attempt in self.held:
            del self.held[attempt]
            return effects
        if attempt in self.kept:
            self.kept.remove(attempt)
            return effects
        assert attempt == self.attempt, f"attempt {attempt} ended while {self.attempt} was the one that ran"
        following, self.next_attempt = self.next_attempt, None
        self.state, self.attempt = JobState.IDLE, None
        if following is not None:
            return effects + self._start(following)
        if self.kept:  # the new one has ended first
            self.state, self.attempt = JobState.RUNNING, self.kept.pop()
        return effects


AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
"""The delay after a stand-by ended while it waited, or there was no slot for it."""
END_S: Final = 0.5


class StandbyJobs:
    """The stand-bys of one region, by number. `now` is in seconds of a monotonic clock.

    `live`: those that wait, or will wait: they are assigned, canceled, or end. `canceled`: those whose jobs
    have not ended yet.
    """

    def __init__(self, count: int) -> None:
        self.live: set[int] = set()
        self.canceled: set[int] = set()
        self._assigned: dict[int, tuple[int, int]] = {}
        """Number -> the worker and the attempt that it has become."""
        self._count = count
        self._last = 0
        self._not_before = -inf
        self._delay_s = AGAIN_S
        self._is_short = False
        self._over_at = inf

    @property
    def is_idle(self) -> bool:
        """Whether no stand-by runs. One that has become a worker is not counted here."""
        return not self.live and not self.canceled

    def number_of(self, worker: int, attempt: int) -> int | None:
        """Return the stand-by that has become this attempt, None if the attempt has a job of its own."""
        return next((one for one, became in self._assigned.items() if became == (worker, attempt)), None)

    def is_due(self, now: float) -> bool:
        """Return whether another stand-by is to be submitted, if the region runs and there is a slot."""
        return len(self.live) < self._count and self._not_before <= now < self._over_at

    def submit(self) -> int:
        """Note that another stand-by is submitted. Return its number."""
        self._last += 1
        self.live.add(self._last)
        self._is_short = False
        return self._last

    def no_slot(self, now: float) -> bool:
        """Note that there is no slot for another one. Return whether to report it: once in a row."""
        self._wait(now)
        reported, self._is_short = self._is_short, True
        return not reported

    def assigned(self, number: int, worker: int, attempt: int) -> None:
        """Note that a live stand-by has become an attempt of a worker."""
        self.live.remove(number)
        self._assigned[number] = (worker, attempt)
        self._delay_s = AGAIN_S

    def worker_submitted(self, waiting: Collection[int]) -> list[int]:
        """Return which stand-bys to cancel when a worker is submitted. waiting: those that have a slot."""
        # Their jobs may be ahead of the worker's in Spark's queue for slots.
        return self.cancel(self.live.difference(waiting))

    def cancel(self, numbers: Collection[int]) -> list[int]:
        """Note that stand-bys are canceled. Return the live ones among `numbers`: cancel their jobs."""
        chosen = sorted(self.live.intersection(numbers))
        self.live.difference_update(chosen)
        self.canceled.update(chosen)
        return chosen

    def ended(self, number: int, now: float) -> tuple[int, int] | None:
        """Note the end of a job. Return the attempt (worker, attempt) that has ended with it, if one has."""
        if number in self.live:  # no loss of a worker; the delay keeps one that cannot start from looping
            self.live.remove(number)
            self._wait(now)
        self.canceled.discard(number)
        return self._assigned.pop(number, None)

    def tick(self, now: float, *, over: bool) -> list[int]:
        """Return the stand-bys to cancel, again or because the region is over. Call it every half second."""
        if over:
            self._over_at = min(self._over_at, now)
        # With the region the links of waiting stand-bys end, and so do these; only the rest is canceled.
        if now >= self._over_at + END_S:
            self.cancel(self.live)
        return sorted(self.canceled)

    def _wait(self, now: float) -> None:
        self._not_before = now + self._delay_s
        self._delay_s = min(2 * self._delay_s, AGAIN_MAX_S)


GRAPH_CHARS_MAX: Final = 120
"""The length of a job's name: Spark's pages have it in a column, the details have the whole graph."""


@dataclass(frozen=True, slots=True)
class JobTexts:
    """What Spark's pages show of one job, and of its stage: a description, the name under it, and folded
    details.
    """

    description: str
    name: str
    details: str


def job_group(region: str) -> str:
    """Return the job group of all jobs of a region."""
    return f"dos:{region}"


def job_texts(
    region: str, worker: int | None, attempt: int, *, store_url: str, operators: Iterable[tuple[str, str]]
) -> JobTexts:
    """Return the texts of an attempt of a worker; of the stand-by `attempt` if the worker is None.
    operators: the name and the description of each, as `RegionSpec.operators`.
    """
    graph = list(operators)
    stop, status = (f"dos region {verb} {store_url} {region}" for verb in ("stop", "status"))
    title = f"DOS region {region}, "
    if worker is None:
        title += f"stand-by {attempt}"
        does, killed = "It waits to replace a worker.", "starts another stand-by"
    else:
        title += f"worker {worker}, attempt {attempt}"
        does, killed = "It runs as long as the region.", "starts the worker again, from its last checkpoint"
    name = f"graph: {', '.join(one for one, _ in graph)}"
    details = (
        f"{title}. {does}",
        f"State: {status}",
        f"To stop the region, with a last checkpoint: {stop}",
        f"If this job is killed, the region {killed}.",
        "",
        "Graph:",
        *(f"  {one}: {described}" for one, described in graph),
    )
    return JobTexts(
        f"{title}; to stop: {stop}",  # Spark's pages cut the description off after some 90 characters
        name if len(name) <= GRAPH_CHARS_MAX else f"{name[: GRAPH_CHARS_MAX - 3]}...",
        "\n".join(details),
    )


def cancel_reason(region: str, why: str) -> str:
    """Return the reason with which a region cancels its jobs, as Spark's pages and logs show it."""
    return f"{_canceled_by(region)}{why[:ERROR_TEXT_CHARS_MAX] or 'this job is not needed any more'}"


def is_own_cancel(region: str, message: str) -> bool:
    """Return whether a job ended because its region canceled it: then the end has no cause of its own."""
    return _canceled_by(region) in message


def _canceled_by(region: str) -> str:
    return f"by DOS region {region}: "


_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n.*?(?=\n\s*\n|\n\tat |\Z)", re.S)
_JAVA_STACK = re.compile(r"\n(?:\tat |\t\.\.\. |Caused by: |Driver stacktrace:).*", re.S)
_CANCELED = re.compile(r"\[SPARK_JOB_CANCELLED\] (Job \d+ cancelled.*?)(?: SQLSTATE: \w+)?$", re.S)
_LOST_TASK = re.compile(r"Lost task [^:]*: (?:[\w.$]+(?:Exception|Error): )?(.*)", re.S)


def task_error(message: str) -> str:
    """Return the part of a failed job's message that describes the task's failure, bounded in length."""
    # Spark repeats the cause several times, each followed by a Java stack trace. The Python traceback of the
    # task names the user's line; without one, the innermost failure message is taken.
    if traceback := _TRACEBACK.search(message):
        return traceback[0].strip()[-ERROR_TEXT_CHARS_MAX:]
    text = _JAVA_STACK.sub("", message).strip()
    if canceled := _CANCELED.search(text):
        text = canceled[1].strip()
    elif lost := _LOST_TASK.search(text):
        text = lost[1].strip()
    return text[:ERROR_TEXT_CHARS_MAX]
