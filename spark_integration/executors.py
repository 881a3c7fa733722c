"""Which workers run on executors that are about to leave the cluster.

Spark announces the end of an executor by decommissioning it: a spot instance is reclaimed, a node is drained,
dynamic allocation gives it back. The executor then gets no further task, and ends when its tasks have ended.
A worker's task ends only with its region, so the worker must be moved.

PySpark has no public API for this, so the calls go to Spark's own objects.
"""

import logging
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_integration.core.confs import DECOMMISSIONING, is_true

logger = logging.getLogger("dos.spark_integration")

_TASKS_MAX: Final = 100


class Executors:
    """The executors of one session. Call it from one thread; each call may block."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._decommissions = is_true(self._context.getConf().get(DECOMMISSIONING))
        self._executors: dict[str, str] = {}
        """Tag of an attempt -> the executor that runs its task."""

    def leaving(self, tags: dict[int, str]) -> list[int]:
        """Return the workers whose executor is being decommissioned, none if the session is over.

        tags: worker -> the job tag of its attempt.
        """
        if not self._decommissions:
            return []
        self._executors = {tag: one for tag, one in self._executors.items() if tag in tags.values()}
        try:
            scheduler = self._context._jsc.sc().taskScheduler()  # noqa: SLF001  # see above
            return [
                worker
                for worker, tag in tags.items()
                if (executor := self._executor_of(tag)) is not None
                and scheduler.getExecutorDecommissionState(executor).isDefined()
            ]
        except Exception:  # the SparkContext is stopped: its workers end on their own
            logger.debug("cannot determine which executors leave", exc_info=True)
            return []

    def _executor_of(self, tag: str) -> str | None:
        """Return the executor that runs the task of the job with this tag, None if it does not run."""
        if tag not in self._executors:
            for task in self._tasks(tag):
                if task.status() == "RUNNING":
                    self._executors[tag] = task.executorId()
        return self._executors.get(tag)

    def _tasks(self, tag: str) -> Iterator[Any]:
        """Yield the tasks of the jobs with this tag."""
        spark: Any = self._context._jsc.sc()  # noqa: SLF001  # see above
        for job in spark.statusTracker().getJobIdsForTag(tag):
            for stage in spark.statusTracker().getJobInfo(job).get().stageIds():
                tasks = spark.statusStore().taskList(stage, 0, _TASKS_MAX)
                yield from (tasks.apply(number) for number in range(tasks.size()))
