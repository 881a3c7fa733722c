"""Decides how many slots a region may take. Pure: no I/O; the caller queries Spark.

A region holds one slot per worker as long as it runs. On a master of fixed size, a region that takes the last
slot blocks every other job of the session for good and without any message, even `df.count()`. So the last
`spare` slots are refused to it in advance. On a growing cluster (standalone, YARN, Kubernetes) executors may
still arrive. There the region waits: it warns after a while, and fails at the time limit. It also waits while
slots of a master of fixed size are busy: they are not distinguished from those of jobs that end soon.
"""

import re
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class EnoughSlots:
    """The region may start."""


@dataclass(frozen=True, slots=True)
class WaitForExecutors:
    """Executors may still arrive, or jobs end. `missing` describes what is needed."""

    missing: str


@dataclass(frozen=True, slots=True)
class RefuseToStart:
    """The region can never start here. `reason` contains the remedy."""

    reason: str


def judge_slots(
    master: SparkMaster, *, registered: int, busy: int, workers: int, spare: int
) -> EnoughSlots | WaitForExecutors | RefuseToStart:
    """Whether a region of `workers` may start now, with `registered` slots of which `busy` are in use.

    `spare` slots are left to other jobs. Returns `RefuseToStart` only when waiting cannot help, which is the
    case only on a master of fixed size.
    """
    if master.slots_fixed is not None and master.slots_fixed < workers + spare:
        return RefuseToStart(
            f"{workers} workers hold {workers} slots for as long as the region runs, and {spare} must be"
            f" left for other jobs, but {master.url} has {master.slots_fixed} in total: use"
            f" {larger_master(master, workers)}, or fewer workers"
        )
    free, left = registered - busy, spare if master.slots_fixed is not None else 0
    if free >= workers + left:
        return EnoughSlots()
    missing = f"{workers} free slots are needed, {max(free, 0)} are free ({registered}, {busy} busy)"
    if left:
        larger = larger_master(master, busy + workers + left - 2)
        missing += f" and {left} must be left for other jobs: end other regions and queries, or use {larger}"
    return WaitForExecutors(missing)


def standby_shortage(master: SparkMaster, *, registered: int, busy: int, spare: int) -> str | None:
    """Return why there is no slot for another stand-by, with the remedy; None if there is one.

    Of `registered` slots `busy` are in use, by the workers too. On a master of fixed size, `spare` slots are
    left to other jobs.
    """
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
