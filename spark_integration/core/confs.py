"""Confs of a session that do not go with workers, which are tasks that run for as long as a region lives, and
say nothing to Spark until their end. Pure.

Rules of this file: what is refused, what is warned of, and why. What executors do by themselves when they are
lost is no matter of confs: a worker that is lost comes back.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from spark_integration.core.slots import SparkMaster

Get = Callable[[str], str | None]
"""The value of a conf, None where nobody set it."""

IDLE_SECONDS: Final = (
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds",
    "spark.python.worker.idleTimeoutSeconds",
)
IDLE_KILL: Final = (
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout",
    "spark.python.worker.killOnIdleTimeout",
)
"""The first of each counts where it is set, else the second: so Spark reads them."""
SPECULATION: Final = "spark.speculation"
SPECULATION_AFTER: Final = "spark.speculation.task.duration.threshold"
REAPER: Final = "spark.task.reaper.enabled"
REAPER_AFTER: Final = "spark.task.reaper.killTimeout"
EXCLUDE: Final = ("spark.excludeOnFailure.enabled", "spark.excludeOnFailure.application.enabled")
LOST_FORGIVEN_AFTER: Final = "spark.executor.failuresValidityInterval"
DYNAMIC: Final = "spark.dynamicAllocation.enabled"


class ConfCheck(NamedTuple):
    """refused: the first reason not to start, with its remedy; warnings: what may surprise."""

    refused: str | None
    warnings: list[str]


def judge_confs(get: Get, master: SparkMaster) -> ConfCheck:
    """Whether workers can live with the session's confs."""
    return ConfCheck(_refused(get), _warnings(get, master))


def grows(get: Get, master: SparkMaster) -> bool:
    """Whether executors come only when tasks wait for them."""
    return master.slots_fixed is None and _true(get(DYNAMIC))


def _refused(get: Get) -> str | None:
    seconds, kill = _first(get, IDLE_SECONDS), _first(get, IDLE_KILL)
    if _true(kill[1]) and _positive(seconds[1]):
        return (
            f"{kill[0]}=true and {seconds[0]}={seconds[1]} would have Spark kill each worker after so many"
            f" seconds, because a worker says nothing to Spark until its end: unset one of the two, or give"
            f" the region a session of its own"
        )
    if _true(get(SPECULATION)) and get(SPECULATION_AFTER) is not None:
        return (
            f"{SPECULATION}=true and {SPECULATION_AFTER}={get(SPECULATION_AFTER)} would have Spark start each"
            f" worker a second time while the first is well: unset one of the two"
        )
    return None


def _warnings(get: Get, master: SparkMaster) -> list[str]:
    found = []
    if _true(get(REAPER)) and get(REAPER_AFTER) not in (None, "-1"):
        found.append(
            f"{REAPER}=true and {REAPER_AFTER}={get(REAPER_AFTER)}: an executor in which a cancelled worker"
            f" takes longer than that to end is killed, with all else that runs in it"
        )
    for name in EXCLUDE:
        if _true(get(name)):
            found.append(
                f"{name}=true: executors and machines on which workers were lost are left out for a while; a"
                f" region on few machines may wait for a slot"
            )
            break
    if master.url.startswith(("yarn", "k8s")) and get(LOST_FORGIVEN_AFTER) is None:
        found.append(
            f"{LOST_FORGIVEN_AFTER} is not set: Spark counts lost executors for as long as the application"
            f" lives, and ends it at spark.executor.maxNumFailures; for a region that runs for weeks say 1h"
        )
    return found


def _first(get: Get, names: tuple[str, str]) -> tuple[str, str | None]:
    for name in names:
        if (value := get(name)) is not None:
            return name, value
    return names[0], None


def _true(value: str | None) -> bool:
    return value is not None and value.strip().lower() == "true"


def _positive(value: str | None) -> bool:
    digits = (value or "").strip().rstrip("s")
    return digits.isdigit() and int(digits) > 0
