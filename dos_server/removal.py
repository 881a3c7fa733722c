"""Removes an object in steps that survive a crash in between.

    1  mark it as *removed*, durably         from here on a crash does not stop the removal
    2  remove its file
    3  sync the folder: the entry is gone durably
    4  erase its mark, durably               from here on the name is free

- The mark outlives the file. A mark without a file means a lost object (G in `core.recovery`) unless it says
  removed; a file without a mark may have lost its end unnoticed.
- No new object takes the name as long as a power cut could bring the mark back: the next start would remove
  the new object.

`core.removals` decides what a failure means for the object.
"""

import contextlib
import logging

from dos_server.core.files.records import ObjectMark
from dos_server.core.vocabulary import DiskFailure, Removal
from dos_server.disk import Disk
from dos_server.disk_errors import failure_of, preceded_sync
from dos_server.marks import ObjectMarks

logger = logging.getLogger("dos.server")


def remove(disk: Disk, marks: ObjectMarks, folder: str, mark: ObjectMark) -> Removal:
    """Remove the object that has this mark. Readers may still have its file open."""
    begun = written = False
    held: ObjectMark | None = None
    try:
        held = marks.of(mark.name)
        begun = held is not None and held.removed  # a postponed removal: its file may be gone
        marks.write(mark._replace(removed=True), durable=False)
        written = True
        marks.make_durable()
        with contextlib.suppress(FileNotFoundError):
            disk.remove(f"{folder}/{mark.name}")
    except OSError as error:
        if begun:
            return _unknown(folder, mark, error)
        logger.error("object %s/%s cannot be removed: %s", folder, mark.name, error)
        as_it_was = Removal.INTACT if failure_of(error) is DiskFailure.FAILED else Removal.NOT_NOW
        return _restore_mark(marks, folder, mark, as_it_was, held, written=written)
    try:
        disk.sync_folder(folder)
        marks.erase(mark.name)
    except OSError as error:
        return _unknown(folder, mark, error)
    return Removal.GONE


def _unknown(folder: str, mark: ObjectMark, error: OSError) -> Removal:
    """Report a removal whose mark says removed: it can be continued, unless a sync has failed."""
    if preceded_sync(error):
        logger.warning("removal of %s/%s is not finished and will be retried: %s", folder, mark.name, error)
        return Removal.LATER
    logger.error(
        "removal of %s/%s failed, and only a restart can show its state: %s", folder, mark.name, error
    )
    return Removal.UNKNOWN


def _restore_mark(
    marks: ObjectMarks,
    folder: str,
    mark: ObjectMark,
    as_it_was: Removal,
    held: ObjectMark | None,
    *,
    written: bool,
) -> Removal:
    """Restore the mark durably. Otherwise a crash would remove the file, which still exists.

    held: the mark before the removal. If the new one was not written and the old one is still there, no crash
    can remove the file, and a full disk would refuse this write too. (After a failed sync the disk may have
    what the page cache does not show, so that does not count.)
    """
    try:
        if written or marks.of(mark.name) != held:
            marks.write(mark, durable=True)
    except OSError as error:
        return _unknown(folder, mark, error)
    return as_it_was


def finish(disk: Disk, marks: ObjectMarks, folder: str, name: str) -> None:
    """Complete a removal that a crash interrupted. Raises OSError if it is still not finished."""
    logger.warning("object %s/%s: completing its removal", folder, name)
    with contextlib.suppress(FileNotFoundError):
        disk.remove(f"{folder}/{name}")
    disk.sync_folder(folder)
    marks.erase(name)
