"""Runs workers on Spark: each attempt of each worker is a Spark job with one task, run by a driver thread.

A single job of N tasks would fail for good, with its healthy workers, as soon as one task had failed
`spark.task.maxFailures` times, and on plain `local[N]` that is once. A job of one task fails alone, and
submitting it again takes less than a second (docs/decisions/0030). `core/attempts.py` decides what to do.

Threads: the coordinator calls `start` and `cancel`, which only add an event to a queue. One launcher thread
reads the queue, passes each event to the core, and performs its effects; it makes the py4j calls, which may
block. Each job has its own thread, which waits for Spark and adds the end of the job to the same queue.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from spark_integration.core import attempts
from spark_integration.core.error_text import task_error
from spark_integration.executors import Executors
from spark_integration.limits import CANCEL_AGAIN_S, LEAVING_AGAIN_S, LEAVING_LOOK_S

logger = logging.getLogger("dos.spark_integration")

TaskFunction = Callable[[Iterable[Any]], Iterable[Any]]
SUMMARY_SCHEMA = "summary string"
"""The result of a worker's task: one row of JSON. Output rows go to the region's sinks."""


_ALL_WORKERS = -1


def worker_tag(region: str, worker: int) -> str:
    """Return the Spark job tag of a worker, the same for all its attempts; people cancel by it."""
    return f"dos:{region}:w{worker}"


class SparkLauncher:
    """Starts, cancels and watches the jobs of one region's workers.

    `make_task(worker, attempt)` returns the function for `mapInArrow`; it is called in the job's thread.
    `on_ended(worker, attempt, error)` is called in the launcher's thread when a job has ended; None: without
    error. `on_leaving(workers)` is called there when the executors of workers are being decommissioned, and
    again after `LEAVING_AGAIN_S` as long as they are. After `close()` nothing is started any more: a start is
    answered by the report of its end.
    """

    def __init__(
        self,
        spark: SparkSession,
        region: str,
        make_task: Callable[[int, int], TaskFunction],
        on_ended: Callable[[int, int, str | None], None],
        on_leaving: Callable[[list[int]], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self.region = region
        self._make_task = make_task
        self._on_ended = on_ended
        self._on_leaving = on_leaving
        self._executors = Executors(spark)
        self._looked_at = self._told_at = -math.inf
        self._jobs: dict[int, attempts.WorkerJobs] = {}
        self._events: queue.SimpleQueue[tuple[int, attempts.Event] | None] = queue.SimpleQueue()
        self._closing = False
        self._order = threading.Lock()  # orders start and close: no job may start after the cancel of close
        self._idle = threading.Event()
        self._idle.set()
        InheritableThread(target=self._run, name=f"dos-{region}-launcher", daemon=True).start()

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        """Request an attempt of a worker. Never blocks. An attempt that still runs and was not canceled keeps
        its slot for two seconds, so that Spark places the new one elsewhere; with `beside` it continues.
        """
        with self._order:
            if not self._closing:
                self._idle.clear()
                self._events.put((worker, attempts.StartRequested(attempt, beside)))
                return
        self._on_ended(worker, attempt, "not started: the region's launcher is closed")

    def cancel(self, worker: int, attempt: int) -> None:
        """Request the end of an attempt's job. Never blocks; the end is reported like any other."""
        self._events.put((worker, attempts.CancelRequested(attempt)))

    @property
    def standbys(self) -> int:
        """How many processes wait to become a worker."""
        return 0

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
            for number in list(self._jobs) if worker == _ALL_WORKERS else [worker]:
                self._handle(number, event)
            if time.monotonic() - ticked >= CANCEL_AGAIN_S:  # tick even if events arrive without a pause
                ticked = time.monotonic()
                self._events.put((_ALL_WORKERS, attempts.LauncherTick()))
                self._look_for_leaving(ticked)
            if self._events.empty() and all(jobs.is_idle for jobs in self._jobs.values()):
                self._idle.set()

    def _handle(self, worker: int, event: attempts.Event) -> None:
        for effect in self._jobs.setdefault(worker, attempts.WorkerJobs()).handle(event):
            match effect:
                case attempts.SubmitJob(attempt):
                    self._submit(worker, attempt)
                case attempts.CancelJob(attempt):
                    self._cancel_job(worker, attempt)
                case attempts.ReportEnd(attempt, error):
                    logger.info("%s: worker %d attempt %d ended: %s", self.region, worker, attempt, error)
                    self._on_ended(worker, attempt, error)

    def _look_for_leaving(self, now: float) -> None:
        """Report the workers whose executors leave, once in a while."""
        if now < self._looked_at + LEAVING_LOOK_S or now < self._told_at + LEAVING_AGAIN_S:
            return
        self._looked_at = now
        tags = {
            worker: self._attempt_tag(worker, jobs.attempt)
            for worker, jobs in self._jobs.items()
            if jobs.attempt is not None
        }
        if workers := self._executors.leaving(tags):
            self._told_at = now
            logger.info("%s: the executors of workers %s are being decommissioned", self.region, workers)
            self._on_leaving(workers)

    def _submit(self, worker: int, attempt: int) -> None:
        logger.info("%s: submitting worker %d attempt %d", self.region, worker, attempt)
        try:
            InheritableThread(
                target=self._job, args=(worker, attempt), name=f"dos-{self.region}-w{worker}", daemon=True
            ).start()
        except Exception as failure:  # the thread uses the SparkContext, which may be stopped
            self._events.put((worker, attempts.JobEnded(attempt, f"cannot submit a job: {failure!r}")))

    def _cancel_job(self, worker: int, attempt: int) -> None:
        try:
            self._spark.sparkContext.cancelJobsWithTag(self._attempt_tag(worker, attempt))
        except Exception:  # the SparkContext is stopped: its jobs end on their own and are reported
            logger.debug("%s: canceling worker %d attempt %d", self.region, worker, attempt, exc_info=True)

    def _attempt_tag(self, worker: int, attempt: int) -> str:
        return f"{worker_tag(self.region, worker)}:a{attempt}"

    def _job(self, worker: int, attempt: int) -> None:
        error: str | None = None
        try:
            context = self._spark.sparkContext
            context.setInterruptOnCancel(True)
            context.addJobTag(worker_tag(self.region, worker))
            context.addJobTag(self._attempt_tag(worker, attempt))
            context.setJobDescription(f"DOS region {self.region}, worker {worker}, attempt {attempt}")
            task = self._make_task(worker, attempt)
            self._spark.range(0, 1, 1, 1).mapInArrow(task, SUMMARY_SCHEMA).collect()
        except BaseException as failure:  # whatever the cause, the end of the attempt must be reported
            error = task_error(str(failure)) or repr(failure)
        self._events.put((worker, attempts.JobEnded(attempt, error)))
