"""`dos chaos`: faults on real servers and their disks, and a check that nothing acknowledged is lost.

    core/checker   the records of the workload, and what a violation is
    core/plan      which fault when; core/report: the figures and the report
    workload       writers, readers, and what is compared at the end
    servers        `dos serve` as processes in the user's directories, and the faults
    visited        a store of the user: refused unless empty; its own directories are deleted at the end
    story          one run, from the first record to the verdict; `cli` the command

The tests of `tests/chaos` use the workload and the checker with harder faults, among them those of networks.
"""

from dos_protocol.errors import DosError


class RunRefusedError(DosError):
    """The run was not started, and nothing was changed: the directories, store or options do not fit."""


class NotConvergedError(Exception):
    """Something did not recover within its time limit. It may be slow, or stuck: a longer run decides."""


class ServerStartError(RuntimeError):
    """`dos serve` ended, or printed something else, before it listened. The message has its log."""
