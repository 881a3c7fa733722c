"""Events and effects of loading directories and objects. Values only; part of `vocabulary`."""

from typing import NamedTuple

from dos_server.core.files.records import ClaimRecord
from dos_server.core.recovery_scan import RecoveredObject


class LoadDirectory(NamedTuple):
    """Load the directory's claim and objects from the disk, then report."""

    directory: str


class ForgetDirectory(NamedTuple):
    """The directory was dropped from memory: close its files."""

    directory: str


class DirectoryLoaded(NamedTuple):
    """`LoadDirectory` finished.

    `objects`: by name. `problem`: why the directory cannot be used, or ''. `temporary`: it proves no
    damage, and the next attempt may succeed.
    """

    directory: str
    exists: bool
    claim: ClaimRecord
    objects: dict[str, RecoveredObject]
    problem: str = ""
    temporary: bool = False


class DirectoriesLost(NamedTuple):
    """The folders of these directories were removed under the running server. The disk has noted it."""

    directories: tuple[str, ...]


class LoadObject(NamedTuple):
    """Judge a loaded object again, because its torn tail can now be copied aside and cut; then report."""

    directory: str
    name: str


class ObjectLoaded(NamedTuple):
    """`LoadObject` finished. `found`: the object now; None if it could not be judged and is unchanged."""

    directory: str
    name: str
    found: RecoveredObject | None


Event = DirectoryLoaded | DirectoriesLost | ObjectLoaded
Effect = LoadDirectory | ForgetDirectory | LoadObject
