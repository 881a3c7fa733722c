"""Checks Spark confs that do not suit workers. Pure: no I/O.

A worker is a task that runs as long as its region and sends nothing to Spark until its end. Some confs would
kill or duplicate such tasks: those are refused. Others are reported as warnings. Confs about lost executors
are not checked, because a lost worker is replaced.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from spark_integration.core.session_checks import SparkMaster

Get = Callable[[str], str | None]
"""Return the value of a conf; None if it is not set."""

IDLE_SECONDS: Final = (
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds",
    "spark.python.worker.idleTimeoutSeconds",
)
IDLE_KILL: Final = (
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout",
    "spark.python.worker.killOnIdleTimeout",
)
"""Of each pair, Spark uses the first one if it is set, otherwise the second."""
SPECULATION: Final = "spark.speculation"
SPECULATION_AFTER: Final = "spark.speculation.task.duration.threshold"
REAPER: Final = "spark.task.reaper.enabled"
REAPER_AFTER: Final = "spark.task.reaper.killTimeout"
EXCLUDE: Final = ("spark.excludeOnFailure.enabled", "spark.excludeOnFailure.application.enabled")
LOST_FORGIVEN_AFTER: Final = "spark.executor.failuresValidityInterval"
DYNAMIC: Final = "spark.dynamicAllocation.enabled"
DECOMMISSIONING: Final = "spark.decommission.enabled"


class ConfCheck(NamedTuple):
    """`refused`: the first reason not to start, with its remedy; `warnings`: possible surprises."""

    refused: str | None
    warnings: list[str]


def judge_confs(get: Get, master: SparkMaster) -> ConfCheck:
    """Judge whether workers can run with the session's confs."""
    return ConfCheck(_refused(get), _warnings(get, master))


def grows(get: Get, master: SparkMaster) -> bool:
    """Whether executors are added only when tasks wait for them."""
    return not master.has_one_executor and is_true(get(DYNAMIC))


def _refused(get: Get) -> str | None:
    seconds, kill = _first(get, IDLE_SECONDS), _first(get, IDLE_KILL)
    if is_true(kill[1]) and _positive(seconds[1]):
        return (
            f"{kill[0]}=true and {seconds[0]}={seconds[1]} would make Spark kill each worker after that many"
            f" seconds, because a worker sends nothing to Spark until its end: unset one of the two, or run"
            f" the region in a separate session"
        )
    if is_true(get(SPECULATION)) and get(SPECULATION_AFTER) is not None:
        return (
            f"{SPECULATION}=true and {SPECULATION_AFTER}={get(SPECULATION_AFTER)} would make Spark start each"
            f" worker a second time while the first one is healthy: unset one of the two"
        )
    return None


def _warnings(get: Get, master: SparkMaster) -> list[str]:
    warnings = []
    if is_true(get(REAPER)) and get(REAPER_AFTER) not in (None, "-1"):
        warnings.append(
            f"{REAPER}=true and {REAPER_AFTER}={get(REAPER_AFTER)}: if a canceled worker takes longer than"
            f" that to end, its executor is killed, with all other tasks in it"
        )
    for name in EXCLUDE:
        if is_true(get(name)):
            warnings.append(
                f"{name}=true: executors and machines on which workers were lost are excluded for a while; a"
                f" region on few machines may have to wait for a slot"
            )
            break
    if master.url.startswith(("yarn", "k8s")) and get(LOST_FORGIVEN_AFTER) is None:
        warnings.append(
            f"{LOST_FORGIVEN_AFTER} is not set: Spark counts lost executors for as long as the application"
            f" runs, and ends it at spark.executor.maxNumFailures; set it to 1h if the region runs for weeks"
        )
    return warnings


def _first(get: Get, names: tuple[str, str]) -> tuple[str, str | None]:
    for name in names:
        if (value := get(name)) is not None:
            return name, value
    return names[0], None


def is_true(value: str | None) -> bool:
    """Return whether a conf is set to true."""
    return value is not None and value.strip().lower() == "true"


def _positive(value: str | None) -> bool:
    digits = (value or "").strip().rstrip("s")
    return digits.isdigit() and int(digits) > 0
