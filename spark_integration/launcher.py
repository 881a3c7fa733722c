"""Runs workers on Spark: each attempt of each worker is a Spark job with one task, run by a driver thread.

A single job of N tasks would fail for good, with its healthy workers, as soon as one task had failed
`spark.task.maxFailures` times, and on plain `local[N]` that is once. A job of one task fails alone, and
submitting it again takes less than a second (docs/decisions/0030). `core/jobs.py` decides what to do.

Threads: the coordinator calls `start` and `cancel`, which only add an event to a queue. One launcher thread
reads it and makes the py4j calls, which may block. Each job has its own thread, which waits for Spark and
adds the end of the job to the same queue. An attempt runs in the job of a stand-by if one waits: `None` as
the worker and a number as the attempt denote that job. PySpark has no public API for executors, so calls
about them go to Spark's own objects.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from checkpoint import RegionState
from checkpoint.coordinator.control import RegionControl
from spark_integration.core import jobs as attempts
from spark_integration.core.jobs import (
    StandbyJobs,
    cancel_reason,
    is_own_cancel,
    job_group,
    job_texts,
    task_error,
)
from spark_integration.core.session_checks import DECOMMISSIONING, is_true
from spark_integration.limits import CANCEL_AGAIN_S, LEAVING_AGAIN_S, LEAVING_LOOK_S
from spark_integration.sessions import is_stopped

logger = logging.getLogger("dos.spark_integration")

_TASKS_MAX: Final = 100


class TaskPlace(NamedTuple):
    """Where a task runs: the id of its executor, and the executor's host, as Spark names them."""

    executor: str
    host: str


class Executors:
    """The executors of one session. Call it from one thread; each call may block."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._decommissions = is_true(self._context.getConf().get(DECOMMISSIONING))
        self._noted: set[str] = set()
        """What could not be determined, and was logged."""
        self._places: dict[str, TaskPlace] = {}
        """Tag of a job -> where its task runs."""

    def leaving(self, tags: Collection[str]) -> set[str]:
        """Return the tags of those jobs whose executor is being decommissioned."""
        # Such an executor gets no further task, and ends when its tasks have ended. A worker's task ends only
        # with its region, so the worker must be moved.
        if not self._decommissions:
            return set()
        try:
            scheduler = self._context._jsc.sc().taskScheduler()  # noqa: SLF001  # see above
            return {
                tag
                for tag in tags
                if (place := self._place_of(tag)) is not None
                and scheduler.getExecutorDecommissionState(place.executor).isDefined()
            }
        except Exception:
            self._note_failure("which executors leave: workers are not moved off one before it ends")
            return set()

    def hosts(self, tags: Collection[str]) -> set[str]:
        """Return the hosts on which the tasks of these jobs run, as far as they are known."""
        try:
            return {place.host for tag in tags if (place := self._place_of(tag)) is not None}
        except Exception:
            self._note_failure("the hosts of tasks: workers may be placed again on a host that was lost")
            return set()

    def _note_failure(self, what: str) -> None:
        # Spark's own objects may differ in another version: it is said once, unless the context is stopped.
        stopped = self._context._jsc is None  # noqa: SLF001  # see above
        level = logging.DEBUG if stopped or what in self._noted else logging.WARNING
        self._noted.add(what)
        logger.log(level, "cannot determine %s", what, exc_info=True)

    def forget(self, tag: str) -> None:
        """Forget where the task of a job ran, because the job has ended."""
        self._places.pop(tag, None)

    def _place_of(self, tag: str) -> TaskPlace | None:
        """Return where the task of the job with this tag runs, None if it does not run."""
        if tag not in self._places:
            for task in self._tasks(tag):
                if task.status() == "RUNNING":
                    self._places[tag] = TaskPlace(task.executorId(), task.host())
        return self._places.get(tag)

    def _tasks(self, tag: str) -> Iterator[Any]:
        """Yield the tasks of the jobs with this tag."""
        spark: Any = self._context._jsc.sc()  # noqa: SLF001  # see above
        for job in spark.statusTracker().getJobIdsForTag(tag):
            for stage in spark.statusTracker().getJobInfo(job).get().stageIds():
                tasks = spark.statusStore().taskList(stage, 0, _TASKS_MAX)
                yield from (tasks.apply(number) for number in range(tasks.size()))


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """How many stand-bys a region has, and what it must know for them."""

    count: int
    control: RegionControl
    shortage: Callable[[], str | None]
    """Returns why there is no slot for another stand-by, None if there is one. May block."""


def standby_tag(region: str, number: int) -> str:
    """Return the Spark job tag of a stand-by. It keeps this tag, and has no other, when it is a worker."""
    return f"dos:{region}:standby{number}"


class Standbys:
    """The stand-bys of one region; `settings` None: it has none. For the launcher's thread."""

    def __init__(
        self,
        region: str,
        settings: StandbySettings | None,
        executors: Executors,
        *,
        submit: Callable[[int], None],
        cancel: Callable[[str], None],
    ) -> None:
        self._region = region
        self._settings = settings
        self._executors = executors
        self._submit = submit
        self._cancel = cancel
        self._jobs = StandbyJobs(0 if settings is None else settings.count)

    @property
    def is_idle(self) -> bool:
        """Whether no stand-by runs. One that has become a worker is not counted here."""
        return self._jobs.is_idle

    @property
    def count(self) -> int:
        """How many stand-bys wait. May be called from any thread."""
        return len(self._waiting())

    def tag_of(self, worker: int, attempt: int) -> str | None:
        """Return the tag of the job in which this attempt runs, if that was a stand-by's; otherwise None."""
        number = self._jobs.number_of(worker, attempt)
        return None if number is None else standby_tag(self._region, number)

    def assign(self, worker: int, attempt: int, rejected: Collection[str]) -> bool:
        """Let a stand-by become an attempt of a worker. Return whether one does.
        rejected: tags of jobs whose hosts are not to be used.
        """
        waiting = self._waiting()
        avoided = self._executors.hosts(rejected) if waiting else set()
        for number in waiting:
            tag = standby_tag(self._region, number)
            if avoided and avoided & self._executors.hosts([tag]):
                continue
            if not self._executors.leaving([tag]) and self._assign(number, worker, attempt):
                return True
            self._cancel_all(self._jobs.cancel([number]))
        return False

    def worker_submitted(self) -> None:
        self._cancel_all(self._jobs.worker_submitted(self._waiting()))

    def ended(self, number: int, error: str | None) -> tuple[int, int] | None:
        """Note the end of a job. Return the attempt (worker, attempt) that it has become, None if none."""
        if number in self._jobs.live:
            logger.log(
                logging.WARNING if error else logging.DEBUG,
                "region %s: stand-by %d ended: %s",
                self._region,
                number,
                error or "it is not needed",
            )
        self._executors.forget(standby_tag(self._region, number))
        return self._jobs.ended(number, time.monotonic())

    def look_for_leaving(self) -> None:
        """Cancel the stand-bys whose executors are being decommissioned. Others follow."""
        tags = {standby_tag(self._region, number): number for number in self._jobs.live}
        self._cancel_all(self._jobs.cancel([tags[tag] for tag in self._executors.leaving(tags)]))

    def tick(self) -> None:
        """Submit and cancel what is due. Call it every half second."""
        if self._settings is None:
            return
        now = time.monotonic()
        status = self._settings.control.status()
        self._cancel_all(self._jobs.tick(now, over=status.state.is_end))
        # While workers start, a stand-by would take slots and processor time from them.
        region_runs = status.state is RegionState.RUNNING and status.scaling is None
        if not region_runs or not self._jobs.is_due(now):
            return
        try:
            shortage = self._settings.shortage()
        except Exception:  # the SparkContext is stopped
            logger.debug("%s: cannot determine the free slots", self._region, exc_info=True)
            self._jobs.no_slot(now)
            return
        if shortage is None:
            self._submit(self._jobs.submit())
        elif self._jobs.no_slot(now):
            logger.warning("region %s: runs without a further stand-by: %s", self._region, shortage)

    def close(self) -> None:
        """Cancel all stand-bys."""
        self._cancel_all(self._jobs.cancel(self._jobs.live))

    def _waiting(self) -> list[int]:
        if self._settings is None:
            return []
        return [number for number in self._settings.control.standbys.numbers() if number in self._jobs.live]

    def _assign(self, number: int, worker: int, attempt: int) -> bool:
        assert self._settings is not None
        if not self._settings.control.standbys.assign(number, worker, attempt):
            return False
        logger.info(
            "region %s: stand-by %d becomes worker %d, attempt %d", self._region, number, worker, attempt
        )
        self._jobs.assigned(number, worker, attempt)
        return True

    def _cancel_all(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._cancel(standby_tag(self._region, number))


TaskFunction = Callable[[Iterable[Any]], Iterable[Any]]
SUMMARY_SCHEMA = "summary string"
"""The result of a worker's task: one row of JSON. Output rows go to the region's sinks."""


SESSION_STOPPED = "its Spark session was stopped"
"""Why an attempt of a worker ended, if nothing can be submitted any more."""

_ALL_WORKERS = -1


def worker_tag(region: str, worker: int) -> str:
    """Return the Spark job tag of a worker; people cancel by it. An attempt that was a stand-by has the tag
    of that instead (`standby_tag`): Spark fixes tags at submission.
    """
    return f"dos:{region}:w{worker}"


@dataclass(frozen=True, slots=True)
class JobsShown:
    """What Spark's pages show of a region's jobs, beside its name."""

    store_url: str = "URL"
    operators: Mapping[str, str] = field(default_factory=dict)
    """`RegionSpec.operators`, as text."""
    reason: Callable[[], str] = str
    """Returns why the region is in its state, for the jobs that are canceled."""


class SparkLauncher:
    """Starts, cancels and watches the jobs of one region's workers.

    `make_task(worker, attempt)` returns the function for `mapInArrow`, in the job's thread. `on_ended(worker,
    attempt, error)` is called in the launcher's thread, and so is `on_leaving(workers)` while executors of
    workers are being decommissioned, every `LEAVING_AGAIN_S`. After `close()` a start is answered by its end.
    """

    def __init__(
        self,
        spark: SparkSession,
        region: str,
        make_task: Callable[[int | None, int], TaskFunction],
        on_ended: Callable[[int, int, str | None], None],
        on_leaving: Callable[[list[int]], None] = lambda _: None,
        standby: StandbySettings | None = None,
        shown: JobsShown | None = None,
    ) -> None:
        self._spark = spark
        self.region = region
        self._shown = JobsShown() if shown is None else shown
        self._make_task = make_task
        self._on_ended = on_ended
        self._on_leaving = on_leaving
        self._executors = Executors(spark)
        self._standbys = Standbys(
            region, standby, self._executors, submit=self._submit_standby, cancel=self._cancel_by_tag
        )
        self._looked_at = self._told_at = -math.inf
        self._jobs: dict[int, attempts.WorkerJobs] = {}
        self._events: queue.SimpleQueue[tuple[int | None, attempts.Event] | None] = queue.SimpleQueue()
        self._closing = False
        # Orders start and close: a job that starts after the cancel of close would hold its slot for ever.
        self._order = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        InheritableThread(target=self._run, name=f"dos-{region}-launcher", daemon=True).start()

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        """Request an attempt of a worker; with `beside` the present one continues. Never blocks."""
        with self._order:
            if not self._closing:
                self._idle.clear()
                requested = attempts.StartRequested(attempt, beside, self._standbys.count > 0)
                self._events.put((worker, requested))
                return
        self._on_ended(worker, attempt, "not started: the region's launcher is closed")

    def cancel(self, worker: int, attempt: int) -> None:
        """Request the end of an attempt's job. Never blocks; the end is reported like any other."""
        self._events.put((worker, attempts.CancelRequested(attempt)))

    @property
    def standbys(self) -> int:
        """How many processes wait to become a worker."""
        return self._standbys.count

    def close(self, timeout_s: float) -> bool:
        """Cancel every job and wait for their ends. Return whether all ended in time."""
        with self._order:
            self._closing = True
            self._events.put((_ALL_WORKERS, attempts.CancelRequested()))
        ended = self._idle.wait(timeout_s)
        self._events.put(None)
        return ended

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no job runs. Return whether that is the case."""
        return self._idle.wait(timeout_s)

    def _run(self) -> None:
        ticked = time.monotonic()
        while True:
            try:
                item = self._events.get(timeout=CANCEL_AGAIN_S)
            except queue.Empty:
                item = (_ALL_WORKERS, attempts.LauncherTick())
            if item is None:
                return
            worker, event = item
            if worker is None:
                self._standby_ended(event)
            else:
                for number in list(self._jobs) if worker == _ALL_WORKERS else [worker]:
                    self._handle(number, event)
            if event == attempts.CancelRequested():
                self._standbys.close()
            if time.monotonic() - ticked >= CANCEL_AGAIN_S:  # tick even if events arrive without a pause
                ticked = time.monotonic()
                self._events.put((_ALL_WORKERS, attempts.LauncherTick()))
                self._look_for_leaving(ticked)
                self._standbys.tick()
            if self._events.empty() and self._nothing_runs():
                self._idle.set()

    def _nothing_runs(self) -> bool:
        return self._standbys.is_idle and all(jobs.is_idle for jobs in self._jobs.values())

    def _handle(self, worker: int, event: attempts.Event) -> None:
        jobs = self._jobs.setdefault(worker, attempts.WorkerJobs())
        for effect in jobs.handle(event):
            match effect:
                case attempts.SubmitJob(attempt):
                    rejected = [self._tag_of(worker, one) for one in jobs.rejected]
                    if not self._standbys.assign(worker, attempt, rejected):
                        self._standbys.worker_submitted()
                        self._submit(worker, attempt)
                case attempts.CancelJob(attempt):
                    self._cancel_by_tag(self._tag_of(worker, attempt))
                case attempts.ReportEnd(attempt, error):
                    ending = (self.region, worker, attempt, error or "as its region ordered")
                    logger.debug("region %s: worker %d, attempt %d ended: %s", *ending)
                    self._executors.forget(self._tag_of(worker, attempt))
                    self._on_ended(worker, attempt, error)

    def _standby_ended(self, event: attempts.Event) -> None:
        assert isinstance(event, attempts.JobEnded)
        became = self._standbys.ended(event.attempt, event.error)
        if became is not None:
            worker, attempt = became
            self._handle(worker, attempts.JobEnded(attempt, event.error))

    def _look_for_leaving(self, now: float) -> None:
        if now < self._looked_at + LEAVING_LOOK_S:
            return
        self._looked_at = now
        self._standbys.look_for_leaving()
        if now < self._told_at + LEAVING_AGAIN_S:
            return
        tags = {
            self._tag_of(worker, jobs.attempt): worker
            for worker, jobs in self._jobs.items()
            if jobs.attempt is not None
        }
        if workers := sorted(tags[tag] for tag in self._executors.leaving(tags)):
            self._told_at = now
            logger.info(
                "region %s: the executors of workers %s are being decommissioned", self.region, workers
            )
            self._on_leaving(workers)

    def _submit_standby(self, number: int) -> None:
        with self._order:
            closing = self._closing
            if not closing:
                self._idle.clear()  # so `close` waits; its cancel is handled after this submission
        if closing:
            self._standbys.ended(number, None)
        else:
            self._submit(None, number)

    def _submit(self, worker: int | None, attempt: int) -> None:
        name = f"stand-by {attempt}" if worker is None else f"worker {worker}, attempt {attempt}"
        logger.debug("region %s: submitting %s", self.region, name)
        try:
            InheritableThread(
                target=self._job,
                args=(worker, attempt),
                name=f"dos-{self.region}-job",
                daemon=True,
            ).start()
        except Exception as failure:  # the thread uses the SparkContext, which may be stopped
            error = SESSION_STOPPED if is_stopped(self._spark) else f"cannot submit a job: {failure!r}"
            self._events.put((worker, attempts.JobEnded(attempt, error)))

    def _cancel_by_tag(self, tag: str) -> None:
        try:
            context = self._spark.sparkContext._jsc  # noqa: SLF001  # PySpark's own method takes no reason
            context.cancelJobsWithTag(tag, cancel_reason(self.region, self._shown.reason()))
        except Exception:  # the SparkContext is stopped: its jobs end on their own and are reported
            logger.debug("canceling %s", tag, exc_info=True)

    def _tag_of(self, worker: int, attempt: int) -> str:
        return self._standbys.tag_of(worker, attempt) or self._tags(worker, attempt)[-1]

    def _tags(self, worker: int | None, attempt: int) -> list[str]:
        # The last one belongs to this job alone: a cancel by it hits no other attempt.
        if worker is None:
            return [standby_tag(self.region, attempt)]
        tag = worker_tag(self.region, worker)
        return [tag, f"{tag}:a{attempt}"]

    def _job(self, worker: int | None, attempt: int) -> None:
        error: str | None = None
        try:
            self._describe_job(worker, attempt)
            task = self._make_task(worker, attempt)
            frame = self._spark.range(0, 1, 1, 1).mapInArrow(task, SUMMARY_SCHEMA)
            # Not `frame.collect()`, which names the job after the line of Python that calls it.
            frame._jdf.collect()  # noqa: SLF001
        except BaseException as failure:  # whatever the cause, the end of the attempt must be reported
            text = str(failure)
            error = None if is_own_cancel(self.region, text) else task_error(text) or repr(failure)
            if is_stopped(self._spark):
                error = SESSION_STOPPED
        self._events.put((worker, attempts.JobEnded(attempt, error)))

    def _describe_job(self, worker: int | None, attempt: int) -> None:
        """Set what Spark knows of the jobs that this thread submits."""
        context, shown = self._spark.sparkContext, self._shown
        texts = job_texts(
            self.region, worker, attempt, store_url=shown.store_url, operators=shown.operators.items()
        )
        # A group of its own: a user's group, which this thread has inherited, may be canceled with a cell of
        # a notebook or with a query.
        context.setJobGroup(job_group(self.region), texts.description, interruptOnCancel=True)
        for tag in self._tags(worker, attempt):
            context.addJobTag(tag)
        context.setLocalProperty("callSite.short", texts.name)
        context.setLocalProperty("callSite.long", texts.details)
