"""The Spark jobs of one worker, one attempt after another. Pure: events in, effects out.

Each worker of a region is a Spark job with a single task. The coordinator requests attempts
(`StartRequested`) and may cancel one (`CancelRequested`); Spark reports when a job has ended, for whatever
cause. Rules:

- One attempt is *current*. If another one is requested while its job runs, without a cancel before, the
  coordinator has rejected the place of that job, which is on a host that a peer cannot reach. The job is
  *held*: it occupies its slot for `HOLD_TICKS`, so that Spark places the new one elsewhere. Then it is
  canceled.
- An attempt that is requested *beside* the current one becomes current. The other one is *kept*: it runs
  until it ends or is canceled. If the new one ends first, the kept one is current again.
- An attempt that is requested while the current job is being canceled waits for its end. (Spark reports the
  end of a canceled job at once; its Python process may live a little longer. Its epoch is fenced by the next
  one, so this affects only slots, not safety.) It does not wait if a stand-by can become the attempt, which
  needs no slot: the job that is being canceled is then held as long as it runs.
- Spark ignores a cancel until it knows the job. A cancel sent between the start of our thread and the
  registration of the job is lost, so it is repeated at each `LauncherTick` until the job has ended.
- Every submitted attempt is reported as ended exactly once; an attempt that was never submitted is not
  reported.

| state      | StartRequested               | CancelRequested | JobEnded                      | Tick         |
|------------|------------------------------|-----------------|-------------------------------|--------------|
| IDLE       | submit -> RUNNING            | -               | (not ours: a bug)             | -            |
| RUNNING    | hold the current one, submit | -> CANCELLING   | report -> IDLE                | -            |
| CANCELLING | keep as next; with a         | forget next     | report -> IDLE, or submit next| cancel again |
|            | stand-by: submit -> RUNNING  |                 |                               |              |

A CancelRequested of the current attempt, or of all, cancels the held jobs as well; that of a kept attempt
only this one, which is then held. The end of a held or kept job is reported, and a tick cancels those that
were held long enough.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

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


class WorkerJobs:
    """The jobs of one worker. Invariant: `attempt` is None exactly in IDLE; `next_attempt` only in
    CANCELLING. `held`: attempt -> the ticks since it was held, at least `HOLD_TICKS` if it is being canceled.
    `kept`: attempts that run beside the current.
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
                self.held = {one: ticks + 1 for one, ticks in self.held.items()}
                over: list[Effect] = [
                    CancelJob(one) for one, ticks in self.held.items() if ticks >= HOLD_TICKS
                ]
                return over + (self._cancel() if self.state is JobState.CANCELLING else [])

    def _start(self, attempt: int, *, beside: bool = False, standby: bool = False) -> list[Effect]:
        if self.state is JobState.CANCELLING and not standby:
            self.next_attempt = attempt
            return self._cancel()
        if self.state is JobState.CANCELLING and self.attempt is not None:
            self.held[self.attempt], self.next_attempt = HOLD_TICKS, None
        elif self.attempt is not None and beside:
            self.kept.append(self.attempt)
        elif self.attempt is not None:
            self.held[self.attempt] = 0
        self.state, self.attempt = JobState.RUNNING, attempt
        return [SubmitJob(attempt)]

    def _cancel_requested(self, attempt: int | None) -> list[Effect]:
        """Cancel one attempt, or all."""
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
        if self.kept:
            self.state, self.attempt = JobState.RUNNING, self.kept.pop()
        return effects
