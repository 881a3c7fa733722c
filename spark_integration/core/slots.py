"""How many slots a region may take. Pure: the shell asks Spark, this file decides.

A region holds one slot for each worker as long as it lives. On a master of fixed size a region that takes the
last slot stops every other job of that session for good, the user's own `df.count()` included, without any
message: so the last `spare` slots are refused to it beforehand. On a growing cluster (standalone, YARN,
Kubernetes) executors may still come, so there it waits: a warning after a while, an error at the time limit.
"""

import re
from dataclasses import dataclass

_LOCAL = re.compile(r"local(?:\[(?P<threads>\*|[0-9]+)(?:,[0-9*]+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*([0-9]+)\s*\]")


@dataclass(frozen=True, slots=True)
class SparkMaster:
    """What a Spark master URL says of where tasks run."""

    url: str
    one_machine: bool
    """All executors are on the driver's machine, so loopback reaches them and they see its files."""
    slots_fixed: int | None
    """The slots that there will ever be; None where executors may come and go."""


def read_master(url: str, *, cores: int) -> SparkMaster:
    """Read a master URL. `cores` is what `local[*]` stands for on this machine."""
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
    """Executors may still come. `missing` says what is not there yet."""

    missing: str


@dataclass(frozen=True, slots=True)
class RefuseToStart:
    """It can never start here. `reason` says why and what would do."""

    reason: str


def judge_slots(
    master: SparkMaster, *, registered: int, busy: int, workers: int, spare: int
) -> EnoughSlots | WaitForExecutors | RefuseToStart:
    """Whether a region of `workers` may start with `registered` slots now there, `busy` of them at work.

    `spare` slots are left to other jobs. Invariant: `RefuseToStart` only when waiting cannot help, which is on a
    master of fixed size alone.
    """
    if master.slots_fixed is not None and master.slots_fixed < workers + spare:
        return RefuseToStart(
            f"{workers} workers hold {workers} slots for as long as the region lives, and {spare} must be"
            f" left for other jobs, but {master.url} has {master.slots_fixed} in all: use"
            f" {larger_master(master, workers)}, or fewer workers"
        )
    free = registered - busy
    if free < workers:
        missing = f"{workers} free slots are needed, {max(free, 0)} are there ({registered}, {busy} busy)"
        return WaitForExecutors(missing)
    return EnoughSlots()


def larger_master(master: SparkMaster, workers: int) -> str:
    """A master of the same kind on which `workers` run with two slots left over."""
    if cluster := _LOCAL_CLUSTER.fullmatch(master.url):
        executors, _, memory_mb = (int(cluster[n]) for n in (1, 2, 3))
        return f"local-cluster[{executors},{-(-(workers + 2) // executors)},{memory_mb}]"
    return f"local[{workers + 2}]"
