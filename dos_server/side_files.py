"""The files beside the objects: new copies on their way in, and what was taken out of use.

    d/DIR/.mend.OBJECT.N         a new copy, seen by nobody; a crash's leftover goes at the next start
    d/DIR/.broken.OBJECT.N       an old copy that was replaced, kept for people to look at; N from 0
    d/DIR/.torn.OBJECT.POSITION  a torn tail, copied aside before it is cut; .N behind it: an earlier one

Rules of this file: names and bytes of these files. It raises OSError; when which step is due, and what a
failure means, `storage` says.
"""

import contextlib
import itertools
import logging
from collections.abc import Iterable
from typing import Final

from dos_server.core import vocabulary as v
from dos_server.core.layout import BROKEN, MEND, OBJECTS, torn_name
from dos_server.core.recovery import RecoveryDecision
from dos_server.core.recovery_scan import RecoveredObject
from dos_server.disk import Disk
from dos_server.limits import in_flight_bytes_max
from dos_server.open_files import OpenFiles

log = logging.getLogger("dos.server")

_COPY_BYTES: Final = 1 << 20

Effect = v.WriteRepair | v.InstallRepair | v.DropRepair


def _file_name(effect: Effect) -> str:
    return f"{MEND}{effect.name}.{effect.copy}"


def _path(effect: Effect) -> str:
    return f"{OBJECTS}/{effect.directory}/{_file_name(effect)}"


def write(disk: Disk, files: OpenFiles, effect: v.WriteRepair) -> None:
    """Write a part of a new copy. Its file stays open until it is synced or dropped."""
    with files.use(_path(effect), create=effect.create) as file:
        file.writes += 1
        disk.write(file.handle, effect.position, effect.buffers)


def sync(files: OpenFiles, effect: v.InstallRepair) -> None:
    """Put a new copy on stable storage, by the handle that wrote it, and let that go."""
    with files.use(_path(effect)) as file:
        files.sync(file)
    files.forget(_path(effect))


def change_places(disk: Disk, effect: v.InstallRepair) -> None:
    """The old copy aside, if it is to be kept, and the new one in its place, both names durable."""
    folder = f"{OBJECTS}/{effect.directory}"
    names = set(disk.names(folder) or ())
    if effect.keep and effect.name in names:
        disk.rename(folder, effect.name, _free_name(f"{BROKEN}{effect.name}", names))
    disk.rename(folder, _file_name(effect), effect.name)
    disk.sync_folder(folder)


def _free_name(base: str, names: set[str]) -> str:
    """The base with the first number behind it that nobody has."""
    numbered = (f"{base}.{number}" for number in itertools.count())
    return next(one for one in numbered if one not in names)


def drop(disk: Disk, files: OpenFiles, effect: v.DropRepair) -> None:
    """Take a new copy away."""
    files.forget(_path(effect))
    with contextlib.suppress(FileNotFoundError):
        disk.remove(_path(effect))


def remove_leftovers(disk: Disk, path: str, names: Iterable[str]) -> None:
    """Take away what an earlier life left unfinished. A failure is only noted."""
    for name in names:
        if name.startswith(MEND):
            try:
                disk.remove(f"{path}/{name}")
            except OSError as error:
                log.warning("leftover %s/%a: %s", path, name, error.strerror)


def cut_tail(disk: Disk, directory: str, name: str, handle: int, found: RecoveredObject, size: int) -> None:
    """Cut what the table of `core.recovery` says is no part of the object, a copy aside where it says so.

    What is left is not on stable storage yet.
    """
    if found.decision is RecoveryDecision.COPY_CUT:
        _copy_torn(disk, directory, name, handle, found.file_bytes, size)
    if not found.corrupt and found.file_bytes < size:
        disk.cut(handle, found.file_bytes)


def make_durable(disk: Disk, handle: int, found: RecoveredObject, synced: int) -> None:
    """Put an object, of which so much is known to have been synced, on stable storage.

    What is past that is written again, because a sync of it may have failed in the server's last life, and
    no mark may tell: the kernel shows such bytes, takes them for written, and the next sync succeeds. Only
    what a server can have in flight can be of that kind; below that a power cut has lost the mark, and what
    is there is on the disk.
    """
    start = max(synced, found.size - 2 * in_flight_bytes_max)
    if start < found.size:
        for position in range(found.index.find(start).position, found.file_bytes, _COPY_BYTES):
            chunk = disk.read(handle, position, min(_COPY_BYTES, found.file_bytes - position))
            disk.write(handle, position, [chunk])
    disk.sync(handle)


def _copy_torn(disk: Disk, directory: str, name: str, handle: int, start: int, end: int) -> None:
    """Keep a copy of a tail that is about to be cut. After an OSError there is none, not a part of one.

    One that was cut there before keeps its copy too, with a number behind the name.
    """
    folder, copy = f"{OBJECTS}/{directory}", torn_name(name, start)
    names = set(disk.names(folder) or ())
    if copy in names:
        disk.rename(folder, copy, _free_name(copy, names))
    path = f"{folder}/{copy}"
    aside = disk.open(path, create=True)
    try:
        for position in range(start, end, _COPY_BYTES):
            chunk = disk.read(handle, position, min(_COPY_BYTES, end - position))
            disk.write(aside, position - start, [chunk])
        disk.sync(aside)
    except OSError:
        disk.remove(path)
        raise
    finally:
        disk.close(aside)
    disk.sync_folder(folder)
