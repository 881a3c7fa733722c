"""The marks of objects and directories on the disk, and removals, which are a sequence of marks.

`d/DIR/.marks` has one slot of 256 bytes per object, encoded by `core.files.records`. A slot is overwritten in
place. An erased slot is all zeros, which is no valid mark. It is reused for another object only after its
zeros are on stable storage, so that no power cut brings back an erased mark.

`DATA/directories`, the register of directories, has the same format, with one mark for each directory. It
says which folders there must be in `DATA/d`. A directory is registered, durably, after its folder is durable
and before anything in it is acknowledged. A registered directory without a folder was lost. It is never taken
for one that nobody has claimed yet.

    name      the directory
    synced    an epoch that its `.claim` has reached; a lower bound, which is not synced
    damaged   its folder was missing: the directory stays refused, also if a folder of that name returns

A directory is never removed, so its mark is never erased. An object is removed in steps:

    1  mark it as *removed*, durably         from here on a crash does not stop the removal
    2  remove its file
    3  sync the folder: the entry is gone durably
    4  erase its mark, durably               from here on the name is free

- The mark outlives the file. A mark without a file means a lost object (G in `core.files.recovery`) unless it
  says removed; a file without a mark may have lost its end unnoticed.
- No new object takes the name as long as a power cut could bring the mark back: the next start would remove
  the new object.

Methods raise OSError, except `remove_object`; `storage` and `core.requests.removals` decide what a failure
means. Thread-safe.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable

from dos_protocol.errors import CorruptDataError
from dos_server.core.files import records
from dos_server.core.files.records import DIRECTORIES, OBJECTS, ObjectMark
from dos_server.core.quotas import StoredUsage
from dos_server.core.vocabulary import DiskFailure, Removal
from dos_server.disk import Disk, failure_of, preceded_sync, read_file
from dos_server.limits import mark_bytes

logger = logging.getLogger("dos.server")


class ObjectMarks:
    """The marks file of one directory. It is created with the first mark and stays open until `close`."""

    def __init__(self, disk: Disk, folder: str, name: str = ".marks") -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{name}" if folder else name
        self._entry_durable = False
        self.slots_damaged = 0
        """Of those that `load` found: neither a mark nor zeros."""
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._slot_count = 0
        self._handle: int | None = None
        self._guard = threading.Lock()

    def load(self) -> dict[str, ObjectMark]:
        data = read_file(self._disk, self._path) or b""
        if data:
            # A killed server may have left marks in the cache only. They are acted on: a mark that says
            # removed must not come back after the name was used again.
            self._disk.sync(self._open())
        marks = records.decode_marks(data)
        self._slot_count = -(-len(data) // mark_bytes)
        damaged = [position // mark_bytes for position in records.marks_damaged(data)]
        for slot in damaged:
            logger.warning("mark %d of %s is damaged and is ignored", slot, self._path)
        self.slots_damaged = len(damaged)
        self._slots = {mark.name: slot for slot, mark in enumerate(marks) if mark is not None}
        empty = [slot for slot, mark in enumerate(marks) if mark is None and slot not in damaged]
        self._free = [*empty, *damaged]  # those that are damaged are written again first
        return {mark.name: mark for mark in marks if mark is not None}

    def of(self, name: str) -> ObjectMark | None:
        with self._guard:
            slot = self._slots.get(name)
            if slot is None:
                return None
            (mark,) = records.decode_marks(self._disk.read(self._open(), slot * mark_bytes, mark_bytes)) or [
                None
            ]
        return mark

    def write(self, mark: ObjectMark, *, durable: bool) -> None:
        """Overwrite the mark of an object, or assign a slot to it. `durable`: sync it before returning."""
        with self._guard:  # repairs and removals write marks from threads
            slot = self._slots.get(mark.name)
            if slot is None:
                slot = self._slots[mark.name] = self._free.pop() if self._free else self._slot_count
                self._slot_count = max(self._slot_count, slot + 1)
            self._disk.write(self._open(), slot * mark_bytes, [records.encode_mark(mark)])
        if durable:
            self.make_durable()

    def erase(self, name: str) -> None:
        with self._guard:
            slot = self._slots.get(name)
            if slot is None:
                return
            self._disk.write(self._open(), slot * mark_bytes, [bytes(mark_bytes)])
        # Before the slot and the name are free: if a power cut brought back a mark that says removed, the
        # next start would remove a new object of this name.
        self.make_durable()
        with self._guard:
            del self._slots[name]
            self._free.append(slot)

    def make_durable(self) -> None:
        """Sync what was written and, because the file may be new, its entry."""
        self._disk.sync(self._open())
        if not self._entry_durable:
            self._disk.sync_folder(self._folder)
            self._entry_durable = True

    def sync(self) -> None:
        if self._handle is not None:
            self._disk.sync(self._handle)

    def close(self) -> None:
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None

    def _open(self) -> int:
        if self._handle is None:
            self._handle = self._disk.open(self._path, create=True)
        return self._handle


def has_damage_mark(disk: Disk, folder: str) -> bool:
    """Whether a mark of a folder says damaged. False if the marks are unreadable, which `load` reports."""
    return any(mark.damaged for mark in _marks_in(disk, folder))


def stored_usage(disk: Disk, folder: str) -> StoredUsage:
    """Return what the marks of a folder say that it holds; nothing if they are unreadable."""
    sizes = [mark.synced for mark in _marks_in(disk, folder) if not mark.removed]
    return StoredUsage(sum(sizes), len(sizes))


def _marks_in(disk: Disk, folder: str) -> list[ObjectMark]:
    try:
        data = read_file(disk, f"{folder}/.marks") or b""
    except OSError:
        return []
    return [mark for mark in records.decode_marks(data) if mark is not None]


# --- The register of directories ---------------------------------------------------------------------------


REGISTER_REMEDY = "replace the server: what its directories held is unknown"


def registered(disk: Disk) -> dict[str, ObjectMark] | None:
    """Return the marks of all registered directories, without a change on the disk; None without the file."""
    data = read_file(disk, DIRECTORIES)
    if data is None:
        return None
    return {mark.name: mark for mark in records.decode_marks(data) if mark is not None}


class DirectoryRegister:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._guard = threading.RLock()
        self._file = ObjectMarks(disk, "", DIRECTORIES)
        self._held: dict[str, ObjectMark] | None = None

    def make_durable(self) -> None:
        with self._guard:
            self._marks()
            self._file.make_durable()

    def _marks(self) -> dict[str, ObjectMark]:
        if self._held is None:
            self._held = self._file.load()
        return self._held

    @property
    def names(self) -> frozenset[str]:
        with self._guard:
            return frozenset(self._marks())

    def epoch_of(self, directory: str) -> int:
        with self._guard:
            mark = self._marks().get(directory)
            return 0 if mark is None else mark.synced

    def is_lost(self, directory: str) -> bool:
        with self._guard:
            mark = self._marks().get(directory)
            return mark is not None and mark.damaged

    def check(self, folders: Iterable[str]) -> None:
        """Compare the register with the folders at a start: note which are missing, and register others.

        A server that was killed after it had made a folder has not registered it. Raises CorruptDataError if
        there is no register, or if a damaged mark of it belongs to a directory that is missing, too.
        """
        folders = set(folders)
        with self._guard:
            check_register(self._disk)
            unnamed = folders - self._marks().keys()
            if self._file.slots_damaged > len(unnamed):
                found = f"{self._file.slots_damaged} damaged marks, and {len(unnamed)} folders without one"
                raise CorruptDataError(
                    DIRECTORIES, 0, "a folder for each damaged mark", found, REGISTER_REMEDY
                )
            self.lose(self._marks().keys() - folders)
            if unnamed:  # first: a registered directory without a folder counts as lost
                self._disk.sync_folder(OBJECTS)
            for directory in sorted(unnamed):
                try:
                    self.add(directory)
                except OSError as error:
                    if failure_of(error) is not DiskFailure.NO_SPACE:
                        raise
                    logger.warning("directory %s is registered when there is space: %s", directory, error)

    def lose(self, directories: Iterable[str]) -> list[str]:
        """Mark registered directories as lost, durably. Return those that were not marked before."""
        with self._guard:
            marks = [self._marks()[name] for name in sorted(directories)]
            lost = [mark for mark in marks if not mark.damaged]
            for mark in lost:
                self._write(mark._replace(damaged=True), durable=mark is lost[-1])
        return [mark.name for mark in lost]

    def add(self, directory: str, epoch: int = 0) -> None:
        with self._guard:
            mark = self._marks().get(directory)
            if mark is None:
                self._write(ObjectMark(directory, epoch), durable=True)
            elif epoch > mark.synced:
                self._write(mark._replace(synced=epoch), durable=False)

    def begin_again(self, directory: str, epoch: int) -> None:
        """Use a lost directory again, because a person has accepted the loss. It has a new claim."""
        with self._guard:
            self._write(ObjectMark(directory, epoch), durable=True)

    def _write(self, mark: ObjectMark, *, durable: bool) -> None:
        """Write a mark. After an error it is not held, so the next try writes and syncs it again."""
        held = self._marks()
        self._file.write(mark, durable=durable)
        held[mark.name] = mark

    def close(self) -> None:
        with self._guard:
            self._file.close()
            self._file, self._held = ObjectMarks(self._disk, "", DIRECTORIES), None


def check_folder_of_objects(disk: Disk) -> None:
    """Raise CorruptDataError if the folder of all objects is missing, in a data directory that has begun."""
    if disk.names(OBJECTS) is None:
        raise CorruptDataError(OBJECTS, 0, "the folder of all objects", "no folder", REGISTER_REMEDY)


def check_register(disk: Disk) -> None:
    """Raise CorruptDataError if there is no register, in a data directory that has begun."""
    if registered(disk) is None:
        raise CorruptDataError(DIRECTORIES, 0, "the register of directories", "no file", REGISTER_REMEDY)


# --- Removals ----------------------------------------------------------------------------------------------


def remove_object(disk: Disk, marks: ObjectMarks, folder: str, mark: ObjectMark) -> Removal:
    """Remove the object that has this mark. Readers may still have its file open."""
    begun = written = False
    held: ObjectMark | None = None
    try:
        held = marks.of(mark.name)
        begun = held is not None and held.removed  # a postponed removal: its file may be gone
        marks.write(mark._replace(removed=True), durable=False)
        written = True
        # Before the file goes: a file that vanished without this mark would be a lost object.
        marks.make_durable()
        with contextlib.suppress(FileNotFoundError):
            disk.remove(f"{folder}/{mark.name}")
    except OSError as error:
        if begun:
            return _unknown_removal(folder, mark, error)
        logger.error("object %s/%s cannot be removed: %s", folder, mark.name, error)
        as_it_was = Removal.INTACT if failure_of(error) is DiskFailure.FAILED else Removal.NOT_NOW
        return _restore_mark(marks, folder, mark, as_it_was, held, written=written)
    try:
        # The entry before the mark: a file that comes back without its mark may have lost its end unnoticed.
        disk.sync_folder(folder)
        marks.erase(mark.name)
    except OSError as error:
        return _unknown_removal(folder, mark, error)
    return Removal.GONE


def _unknown_removal(folder: str, mark: ObjectMark, error: OSError) -> Removal:
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
        return _unknown_removal(folder, mark, error)
    return as_it_was


def finish_removal(disk: Disk, marks: ObjectMarks, folder: str, name: str) -> None:
    """Complete a removal that a crash interrupted. Raises OSError if it is still not finished."""
    logger.warning("object %s/%s: completing its removal", folder, name)
    with contextlib.suppress(FileNotFoundError):
        disk.remove(f"{folder}/{name}")
    disk.sync_folder(folder)  # the entry before the mark, as in `remove_object`
    marks.erase(name)
