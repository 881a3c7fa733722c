"""Directories and objects on their way into memory and out of it: events and effects as in `vocabulary`, of
which they are a part.

Rules of this file: values only.
"""

from typing import NamedTuple

from dos_server.core.records import ClaimRecord
from dos_server.core.recovery_scan import RecoveredObject


class LoadDirectory(NamedTuple):
    directory: str


class ForgetDirectory(NamedTuple):
    """Nothing of it is in use: close its files."""

    directory: str


class DirectoryLoaded(NamedTuple):
    """`objects` by name; `problem` non-empty: it cannot be used, and why; `passes`: not now, and nothing is
    known to be damaged."""

    directory: str
    exists: bool
    claim: ClaimRecord
    objects: dict[str, RecoveredObject]
    problem: str = ""
    passes: bool = False


class LoadObject(NamedTuple):
    """Judge an object of a loaded directory anew: its tail is to be copied and cut; then report."""

    directory: str
    name: str


class ObjectLoaded(NamedTuple):
    """What an object is now. None: it could not be judged, and is what it was."""

    directory: str
    name: str
    found: RecoveredObject | None


Event = DirectoryLoaded | ObjectLoaded
Effect = LoadDirectory | ForgetDirectory | LoadObject
