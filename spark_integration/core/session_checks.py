"""Whether a session can run a region: its slots, its confs, and the address of its driver. Pure: the caller
queries Spark.

A region holds one slot per worker as long as it runs. On a master of fixed size, a region that takes the last
slot blocks every other job of the session for good and without any message, even `df.count()`. So the last
`spare` slots are refused to it in advance. On a growing cluster (standalone, YARN, Kubernetes) executors may
still arrive. There the region waits: it warns after a while, and fails at the time limit. It also waits while
slots of a master of fixed size are busy: they are not distinguished from those of jobs that end soon.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from dos_protocol.arguments import bare_host, is_loopback, is_wildcard
from dos_protocol.errors import DosError

_LOCAL = re.compile(r"local(?:\[(?P<threads>\*|[0-9]+)(?:,[0-9*]+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*([0-9]+)\s*\]")


@dataclass(frozen=True, slots=True)
class SparkMaster:
    """What a Spark master URL determines about where tasks run."""

    url: str
    one_machine: bool
    """Whether all executors are on the driver's machine, where they can use loopback and its files."""
    slots_fixed: int | None
    """The largest number of slots, if that never changes; None where executors may come and go."""

    @property
    def has_one_executor(self) -> bool:
        """Whether all tasks run in the driver's process: no executor can come or go."""
        return _LOCAL.fullmatch(self.url) is not None


def read_master(url: str, *, cores: int) -> SparkMaster:
    """Parse a master URL. `cores` is the meaning of `local[*]` on this machine."""
    if cluster := _LOCAL_CLUSTER.fullmatch(url):
        return SparkMaster(url, one_machine=True, slots_fixed=int(cluster[1]) * int(cluster[2]))
    if local := _LOCAL.fullmatch(url):
        threads = local["threads"] or "1"
        return SparkMaster(url, one_machine=True, slots_fixed=cores if threads == "*" else int(threads))
    return SparkMaster(url, one_machine=False, slots_fixed=None)


class SlotsShortage(NamedTuple):
    """Why a region cannot start now: executors may still arrive, or jobs end. `for_good`: waiting cannot
    help, which is so only on a master of fixed size; the text has the remedy.
    """

    text: str
    for_good: bool = False


def judge_slots(
    master: SparkMaster, *, registered: int, busy: int, workers: int, spare: int
) -> SlotsShortage | None:
    """Return why a region may not start, with `registered` slots of which `busy` are in use, `spare` of them
    left to other jobs; None if it may.
    """
    if master.slots_fixed is not None and master.slots_fixed < workers + spare:
        return SlotsShortage(
            f"{workers} workers hold {workers} slots for as long as the region runs, and {spare} must be"
            f" left for other jobs, but {master.url} has {master.slots_fixed} in total: use"
            f" {larger_master(master, workers)}, or fewer workers",
            for_good=True,
        )
    free, left = registered - busy, spare if master.slots_fixed is not None else 0
    if free >= workers + left:
        return None
    missing = f"{workers} free slots are needed, {max(free, 0)} are free ({registered}, {busy} busy)"
    if left:
        larger = larger_master(master, busy + workers + left - 2)
        missing += f" and {left} must be left for other jobs: end other regions and queries, or use {larger}"
    return SlotsShortage(missing)


def standby_shortage(master: SparkMaster, *, registered: int, busy: int, spare: int) -> str | None:
    """Return why there is no slot for another stand-by, with the remedy; None if there is one."""
    left = spare if master.slots_fixed is not None else 0
    if registered - busy > left:
        return None
    needed = f", and {left} must be left for other jobs" if left else ""
    remedy = "add executors" if master.slots_fixed is None else f"use {larger_master(master, busy + left)}"
    return f"{busy} of {registered} slots are in use{needed}: {remedy}, or pass standby=0"


def larger_master(master: SparkMaster, workers: int) -> str:
    """Return a master of the same kind on which `workers` fit with two slots left over."""
    if cluster := _LOCAL_CLUSTER.fullmatch(master.url):
        executors, _, memory_mb = (int(cluster[n]) for n in (1, 2, 3))
        return f"local-cluster[{executors},{-(-(workers + 2) // executors)},{memory_mb}]"
    return f"local[{workers + 2}]"


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
    # A worker is a task that sends nothing to Spark until its end, as an idle or a slow one does: these confs
    # would kill it, or start it twice. Lost executors need no check, because a lost worker is replaced.
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
    return value is not None and value.strip().lower() == "true"


def _positive(value: str | None) -> bool:
    digits = (value or "").strip().rstrip("s")
    return digits.isdigit() and int(digits) > 0


LOOPBACK = "127.0.0.1"
_ADDRESS_REMEDY = (
    "pass coordinator_address, or set spark.driver.host, to the host name or IP address at which executors"
    " reach this driver"
)


def choose_addresses(
    master: SparkMaster, requested: str | None, driver_host: str | None, *, insecure: bool
) -> tuple[str, str]:
    """Return (the host to which workers connect, the host to listen on), both without brackets.

    Raises DosError for clear text that was not confirmed, and for an address that executors
    elsewhere cannot reach.
    """
    if master.one_machine:
        host = bare_host(requested or LOOPBACK)
        return host, host
    if not insecure:
        raise DosError(
            f"{master.url} may place workers on several machines, and their links are not encrypted (both"
            " ends prove that they have the job's key, but the data can be read): set DOS_TLS, or pass"
            " insecure=True on a network that you trust"
        )
    host = bare_host(requested or driver_host or LOOPBACK)
    if is_wildcard(host):
        raise DosError(
            f"{host} means every address of the driver's own machine, so no worker can connect to it",
            remedy=_ADDRESS_REMEDY,
        )
    if is_loopback(host) and not is_loopback(urlsplit(master.url).hostname or ""):
        raise DosError(
            f"{host} is the driver's own machine on every machine, so workers that {master.url} places"
            " elsewhere cannot connect to it",
            remedy=_ADDRESS_REMEDY,
        )
    return host, "0.0.0.0"  # noqa: S104  # confirmed, or TLS
