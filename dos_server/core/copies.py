"""New copies of objects, from their first bytes to their place: events and effects as in `vocabulary`, of
which they are a part.

Rules of this file: values only.
"""

from typing import NamedTuple

from dos_protocol.digests import Buffer
from dos_server.core.failures import DiskFailure
from dos_server.core.recovery_scan import RecoveredObject


class WriteRepair(NamedTuple):
    """Write the buffers at a position of the new copy's own file, seen by nobody; `create` makes it. `copy`:
    a number that no other new copy has in this life of the server."""

    session: int
    directory: str
    name: str
    copy: int
    position: int
    buffers: list[Buffer]
    create: bool


class InstallRepair(NamedTuple):
    """Put the new copy on stable storage, and in the place of the old one; then report. `keep`: the old one
    goes aside; else the new one begins with all of it.

    After a crash anywhere on the way there is the old copy, the new one, or one that is known to be lost.
    `durable`: what the old one had synced at least, `poisoned`, `damaged` as its mark is to say;
    `exists`: there is an old one.
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
    """Nobody wants the new copy: take its file away."""

    session: int
    directory: str
    name: str
    copy: int


class RepairWritten(NamedTuple):
    """Bytes of a new copy are in its file, or not."""

    session: int
    trouble: DiskFailure


class RepairInstalled(NamedTuple):
    """The new copy stands in the place of the old one; `found` is what is there now. None: it failed, and
    which of the two is there only a restart can say."""

    session: int
    directory: str
    name: str
    found: RecoveredObject | None


Event = RepairWritten | RepairInstalled
Effect = WriteRepair | InstallRepair | DropRepair
