"""The files beside the objects: what was taken out of use.

    d/DIR/.broken.OBJECT.N       an old copy that was replaced, kept for inspection; N counts from 0
    d/DIR/.torn.OBJECT.POSITION  a torn tail, copied aside before it is cut; an earlier one has a suffix .N

Functions raise OSError. `storage` decides when a step is due and what a failure means.
"""

import itertools
import logging
from collections.abc import Iterable
from typing import Final

from dos_server.core.files.records import OBJECTS, REPAIR, torn_name
from dos_server.core.files.recovery import RecoveredObject, RecoveryDecision
from dos_server.disk import Disk
from dos_server.limits import in_flight_bytes_max

logger = logging.getLogger("dos.server")

_COPY_BYTES: Final = 1 << 20


def free_name(base: str, names: set[str]) -> str:
    """Return the base with the first unused number as its suffix."""
    numbered = (f"{base}.{number}" for number in itertools.count())
    return next(one for one in numbered if one not in names)


def put_aside(disk: Disk, folder: str, name: str, aside: str) -> None:
    """Move a file to a name that keeps it for inspection."""
    names = set(disk.names(folder) or ())
    disk.rename(folder, name, free_name(aside, names) if aside in names else aside)


def remove_leftovers(disk: Disk, path: str, names: Iterable[str]) -> None:
    """Delete new copies of an earlier incarnation. A failure is only logged."""
    for name in names:
        if name.startswith(REPAIR):
            try:
                disk.remove(f"{path}/{name}")
            except OSError as error:
                logger.warning("leftover %s/%a: %s", path, name, error.strerror)


def cut_tail(disk: Disk, directory: str, name: str, handle: int, found: RecoveredObject, size: int) -> None:
    """Cut what does not belong to the object; copy it aside first if required. Not on stable storage yet."""
    if found.decision is RecoveryDecision.COPY_CUT:
        # On stable storage before the cut: if the tail was no torn one after all, the copy has the bytes.
        _copy_torn(disk, directory, name, handle, found.file_bytes, size)
    if not found.corrupt and found.file_bytes < size:
        disk.cut(handle, found.file_bytes)


def make_durable(disk: Disk, handle: int, found: RecoveredObject, synced: int) -> None:
    """Put an object, of which `synced` bytes are known to be durable, on stable storage."""
    # What is beyond is rewritten first: in the last incarnation a sync of it may have failed without a mark
    # that records it. The kernel then shows the bytes, considers them written, and the next sync succeeds.
    # That can only concern what a server has in flight; bytes below are on disk.
    start = max(synced, found.size - 2 * in_flight_bytes_max)
    if start < found.size:
        for position in range(found.index.find(start).position, found.file_bytes, _COPY_BYTES):
            chunk = disk.read(handle, position, min(_COPY_BYTES, found.file_bytes - position))
            disk.write(handle, position, [chunk])
    disk.sync(handle)


def _copy_torn(disk: Disk, directory: str, name: str, handle: int, start: int, end: int) -> None:
    """Copy a tail aside that is about to be cut. After an OSError there is no copy, not even a partial
    one.
    """
    folder, copy = f"{OBJECTS}/{directory}", torn_name(name, start)
    names = set(disk.names(folder) or ())
    if copy in names:
        disk.rename(folder, copy, free_name(copy, names))
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
