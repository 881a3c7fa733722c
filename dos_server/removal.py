"""Taking an object away, in steps that a crash may come between.

    1  its mark says *removed*, durably      from here on the object goes, after a crash too
    2  its file goes, and 3 the entry, durably
    4  its mark is erased, durably           from here on the name is free

A file that is gone while its mark is there is an object that was lost (G in `core.recovery`), and a file
without its mark may have lost its end unnoticed: so the mark is there as long as the file may be, and says
what is going on. And as long as that mark may come back after a power cut, no new object takes the name: the
next start would take it away.

Rules of this file: steps and their order. What a failure means to the object is decided in `core.removals`.
"""

import contextlib
import logging

from dos_server.core.records import ObjectMark
from dos_server.core.vocabulary import DiskFailure, Removal
from dos_server.disk import Disk
from dos_server.marks import ObjectMarks
from dos_server.troubles import came_before_sync, trouble_of

log = logging.getLogger("dos.server")


def remove(disk: Disk, marks: ObjectMarks, folder: str, mark: ObjectMark) -> Removal:
    """Take away the object that has that mark; nobody uses its file."""
    begun = False
    try:
        held = marks.of(mark.name)
        begun = held is not None and held.removed  # and put off: its file may be gone
        marks.write(mark._replace(removed=True), durable=True)
        with contextlib.suppress(FileNotFoundError):
            disk.remove(f"{folder}/{mark.name}")
    except OSError as error:
        if begun:
            return _unknown(folder, mark, error)
        log.error("object %s/%s cannot be removed: %s", folder, mark.name, error)
        as_it_was = Removal.INTACT if trouble_of(error) is DiskFailure.FAILED else Removal.NOT_NOW
        return _take_back(marks, folder, mark, as_it_was)
    try:
        disk.sync_folder(folder)
        marks.erase(mark.name)
    except OSError as error:
        return _unknown(folder, mark, error)
    return Removal.GONE


def _unknown(folder: str, mark: ObjectMark, error: OSError) -> Removal:
    """Its mark says removed: the removal can be gone on with, unless a sync has failed."""
    if came_before_sync(error):
        log.warning("the removal of %s/%s is not finished, and goes on later: %s", folder, mark.name, error)
        return Removal.LATER
    log.error("whether %s/%s is removed, a restart must say: %s", folder, mark.name, error)
    return Removal.UNKNOWN


def _take_back(marks: ObjectMarks, folder: str, mark: ObjectMark, as_it_was: Removal) -> Removal:
    """The file is there still: have the mark say so, durably, or a crash removes it after all."""
    try:
        marks.write(mark, durable=True)
    except OSError as error:
        return _unknown(folder, mark, error)
    return as_it_was


def finish(disk: Disk, marks: ObjectMarks, folder: str, name: str) -> None:
    """Go on, after a crash, with a removal that has begun. Raises OSError: it is not finished."""
    log.warning("object %s/%s was being removed: removed now", folder, name)
    with contextlib.suppress(FileNotFoundError):
        disk.remove(f"{folder}/{name}")
    disk.sync_folder(folder)
    marks.erase(name)
