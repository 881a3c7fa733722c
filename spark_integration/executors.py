"""On which executors and hosts jobs of one task run, and which of these executors are about to leave.

Spark announces the end of an executor by decommissioning it: a spot instance is reclaimed, a node is drained,
dynamic allocation gives it back. The executor then gets no further task, and ends when its tasks have ended.
A worker's task ends only with its region, so the worker must be moved.

PySpark has no public API for this, so the calls go to Spark's own objects.
"""

import logging
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from spark_integration.core.confs import DECOMMISSIONING, is_true

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
        """Return the tags of those jobs whose executor is being decommissioned, none if the session is
        over.
        """
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
        """Log the exception that is being handled: once as a warning, because Spark's own objects may differ
        in another version, unless the SparkContext is stopped.
        """
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
