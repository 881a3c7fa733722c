"""The marks of one directory: `d/DIR/.marks`, one slot of 256 bytes per object, encoded by `core.records`.

A slot is overwritten in place. An erased slot is all zeros, which is no valid mark. It is reused for another
object only after its zeros are on stable storage, so that no power cut brings back an erased mark.

Methods raise OSError; `storage` decides when a mark is due and what a failure means. Thread-safe.
"""

import logging
import threading

from dos_server import small_files
from dos_server.core.files import records
from dos_server.core.files.records import ObjectMark
from dos_server.core.quotas import StoredUsage
from dos_server.disk import Disk
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
        """Return the marks in the file, by name; empty if there is no file. They are durable afterwards.

        The sync is needed because a killed server may have left marks that are not durable. If a power cut
        brought back an erased one, it would delete a new object of the same name.
        """
        data = small_files.read(self._disk, self._path) or b""
        if data:
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
        """Return the current mark of an object; None if it has no valid one."""
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
        """Erase the mark of an object durably. After an error it keeps its slot: write the mark again."""
        with self._guard:
            slot = self._slots.get(name)
            if slot is None:
                return
            self._disk.write(self._open(), slot * mark_bytes, [bytes(mark_bytes)])
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
        """Put all marks on stable storage, if the file is open."""
        if self._handle is not None:
            self._disk.sync(self._handle)

    def close(self) -> None:
        """Close the file."""
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
        data = small_files.read(disk, f"{folder}/.marks") or b""
    except OSError:
        return []
    return [mark for mark in records.decode_marks(data) if mark is not None]
