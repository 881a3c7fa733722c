"""Events and effects of new copies (MEND). Values only; part of `vocabulary`."""

from typing import NamedTuple

from dos_protocol.digests import Buffer
from dos_server.core.failures import DiskFailure
from dos_server.core.recovery_scan import RecoveredObject


class WriteRepair(NamedTuple):
    """Write the buffers at a position of the new copy's own file, which is not visible to readers.

    `create` makes the file. `copy`: a number that is unique among the new copies of this incarnation of the
    server.
    """

    session: int
    directory: str
    name: str
    copy: int
    position: int
    buffers: list[Buffer]
    create: bool


class InstallRepair(NamedTuple):
    """Put the new copy on stable storage, then replace the old one by it, and report.

    `keep`: retain the old copy aside; False if the new one begins with all of it. `durable`: the old copy's
    known synced size. `poisoned`, `damaged`: the flags for its mark. `exists`: there is an old copy.

    After a crash at any point there is the old copy, the new one, or one that is known to be lost.
    """

    session: int
    directory: str
    name: str
    copy: int
    exists: bool
    durable: int
    poisoned: bool
    damaged: bool
    keep: bool
    goal_size: int


class DropRepair(NamedTuple):
    """Delete the file of a new copy that is no longer wanted."""

    session: int
    directory: str
    name: str
    copy: int


class RepairWritten(NamedTuple):
    """`WriteRepair` finished."""

    session: int
    failure: DiskFailure


class RepairInstalled(NamedTuple):
    """`InstallRepair` finished.

    `found`: the object now; None if it failed and only a restart can determine which copy is there.
    """

    session: int
    directory: str
    name: str
    found: RecoveredObject | None


Event = RepairWritten | RepairInstalled
Effect = WriteRepair | InstallRepair | DropRepair
