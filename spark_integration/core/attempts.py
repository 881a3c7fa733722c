"""The Spark jobs of one worker, one attempt after another. Pure: events in, effects out.

Each worker of a region is a Spark job with a single task. The coordinator requests attempts
(`StartRequested`) and may cancel one (`CancelRequested`); Spark reports when a job has ended, for whatever
cause. Rules:

- A worker has at most one job at a time. An attempt that is requested while a job runs waits for the end of
  that job, which is canceled to hasten it. (Spark reports the end of a canceled job at once; its Python
  process may live a little longer. Its epoch is fenced by the next one, so this affects only slots, not
  safety.)
- Spark ignores a cancel until it knows the job. A cancel sent between the start of our thread and the
  registration of the job is lost, so it is repeated at each `LauncherTick` until the job has ended.
- Every submitted attempt is reported as ended exactly once; an attempt that was never submitted is not
  reported.

| state      | StartRequested        | CancelRequested | JobEnded                      | Tick         |
|------------|-----------------------|-----------------|-------------------------------|--------------|
| IDLE       | submit -> RUNNING     | -               | (not ours: a bug)             | -            |
| RUNNING    | cancel -> CANCELLING  | -> CANCELLING   | report -> IDLE                | -            |
| CANCELLING | keep as next          | forget next     | report -> IDLE, or submit next| cancel again |
"""

from dataclasses import dataclass
from enum import Enum, auto


class JobState(Enum):
    IDLE = auto()
    RUNNING = auto()
    CANCELLING = auto()


@dataclass(frozen=True, slots=True)
class StartRequested:
    attempt: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    pass


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
    CANCELLING.
    """

    def __init__(self) -> None:
        self.state = JobState.IDLE
        self.attempt: int | None = None
        self.next_attempt: int | None = None

    def handle(self, event: Event) -> list[Effect]:
        """Take one event, return what is to be done, in order."""
        match event:
            case StartRequested(attempt):
                return self._start(attempt)
            case CancelRequested():
                self.next_attempt = None
                return self._cancel()
            case JobEnded(attempt, error):
                return self._ended(attempt, error)
            case LauncherTick():
                return self._cancel() if self.state is JobState.CANCELLING else []

    def _start(self, attempt: int) -> list[Effect]:
        if self.attempt is None:
            self.state, self.attempt = JobState.RUNNING, attempt
            return [SubmitJob(attempt)]
        self.next_attempt = attempt
        return self._cancel()

    def _cancel(self) -> list[Effect]:
        if self.attempt is None:
            return []
        self.state = JobState.CANCELLING
        return [CancelJob(self.attempt)]

    def _ended(self, attempt: int, error: str | None) -> list[Effect]:
        assert attempt == self.attempt, f"attempt {attempt} ended while {self.attempt} was the one that ran"
        following, self.next_attempt = self.next_attempt, None
        self.state, self.attempt = JobState.IDLE, None
        effects: list[Effect] = [ReportEnd(attempt, error)]
        return effects if following is None else effects + self._start(following)
