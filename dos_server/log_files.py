"""The files of the group log: `DATA/log/0` to `3`, its slots, and `DATA/log/seen`.

Slots are written full of zeros and synced before they are used, and never renamed or cut: then the sync of a
record writes no metadata of the file system. Methods raise OSError; an error of `append` ends the server,
because a sync of the log that failed is never retried.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from dos_protocol.digests import Buffer
from dos_protocol.errors import CorruptDataError
from dos_server import small_files
from dos_server.core.files.log_record import HEADER_BYTES
from dos_server.core.files.log_replay import FoundRecord, RecordPlace, scan_slot
from dos_server.disk import Disk
from dos_server.limits import log_align_bytes, log_slots

FOLDER: Final = "log"
_FILL_BYTES: Final = 1 << 20


class LogFiles:
    """The open files of the log of one data directory. One thread at a time.

    `slot_bytes`: the size of new slots. A log that is in use keeps its own until it is filed.
    """

    def __init__(self, disk: Disk, slot_bytes: int = 0) -> None:
        self._disk = disk
        self.slot_bytes = slot_bytes
        self._slots: list[int] = []
        self._seen: int | None = None

    def make(self) -> None:
        """Make the slots that are missing or have another size, full of zeros, and open all. Durable.

        After an OSError the slots that it has made take no space.
        """
        if self._disk.make_folder(FOLDER):
            self._disk.sync_folder("")
        made: list[int] = []
        try:
            for slot in range(log_slots):
                handle = self._disk.open(f"{FOLDER}/{slot}", create=True)
                self._slots.append(handle)
                if self._disk.size(handle) != self.slot_bytes:
                    made.append(handle)
                    self._fill(handle)
        except OSError:
            for handle in made:
                with contextlib.suppress(OSError):
                    self._disk.cut(handle, 0)
            raise
        self._seen = self._disk.open(f"{FOLDER}/seen", create=True)
        self._disk.sync_folder(FOLDER)

    def _fill(self, handle: int) -> None:
        self._disk.cut(handle, 0)
        for position in range(0, self.slot_bytes, _FILL_BYTES):
            zeros = bytes(min(_FILL_BYTES, self.slot_bytes - position))
            self._disk.write(handle, position, [zeros])
        self._disk.sync(handle)

    def missing_bytes(self) -> int:
        """Return how much space `make` takes. Slots may have another size, or be made only in part."""
        return sum(max(0, self.slot_bytes - self._size_of(slot)) for slot in range(log_slots))

    def _size_of(self, slot: int) -> int:
        """Return the size of a slot, 0 if it is missing."""
        try:
            handle = self._disk.open(f"{FOLDER}/{slot}", create=False)
        except FileNotFoundError:
            return 0
        try:
            return self._disk.size(handle)
        finally:
            self._disk.close(handle)

    def open(self) -> None:
        """Open the slots. Raises CorruptDataError if one is missing: it may have held acknowledged bytes."""
        for slot in range(log_slots):
            try:
                self._slots.append(self._disk.open(f"{FOLDER}/{slot}", create=False))
            except FileNotFoundError as error:
                raise CorruptDataError(
                    f"{FOLDER}/{slot}", 0, "a slot of the log", "no file", "replace the server"
                ) from error
        self.slot_bytes = min(map(self._disk.size, self._slots)) // log_align_bytes * log_align_bytes
        self._seen = self._disk.open(f"{FOLDER}/seen", create=True)

    def close(self) -> None:
        """Close the files."""
        for handle in (*self._slots, *([] if self._seen is None else [self._seen])):
            self._disk.close(handle)
        self._slots, self._seen = [], None

    def missing(self) -> str:
        """Return a file that is not where it was opened: nothing that is written to it would be found; ''."""
        files = [(str(slot), handle) for slot, handle in enumerate(self._slots)]
        lost = (name for name, handle in files if not self._disk.is_named(handle, f"{FOLDER}/{name}"))
        return next((f"{FOLDER}/{name}" for name in lost), "")

    def read(self, slot: int, position: int, count: int) -> bytes:
        """Return bytes of a slot."""
        return self._disk.read(self._slots[slot], position, count)

    def scan(self, slot: int, seed: int) -> Iterator[FoundRecord]:
        """Yield the records in a slot. Raises CorruptDataError for one of a newer version."""
        return scan_slot(partial(self.read, slot), slot, self._disk.size(self._slots[slot]), seed)

    def content(self, found: FoundRecord) -> bytes:
        """Return the contents of a record."""
        at = found.place.offset + HEADER_BYTES + found.header.table_bytes
        return self.read(found.place.slot, at, found.header.content_bytes)

    def append(self, place: RecordPlace, record: Buffer) -> None:
        """Put a record on stable storage."""
        self._disk.write(self._slots[place.slot], place.offset, [record])
        self._disk.sync(self._slots[place.slot])

    def append_again(self, found: FoundRecord) -> None:
        """Put a record that was found on stable storage: it may be in the cache only."""
        whole = self.read(found.place.slot, found.place.offset, found.header.size)
        self.append(found.place, whole)

    def see(self, head: Buffer) -> None:
        """Note the header and the table of a record that is synced, before anything that depends on it is
        answered. Not synced itself.
        """
        assert self._seen is not None
        self._disk.write(self._seen, 0, [head])

    def seen(self) -> bytes | None:
        """Return the content of the file `seen`; None if there is none."""
        return small_files.read(self._disk, f"{FOLDER}/seen")


def slots_used(found: Sequence[FoundRecord], first_sequence: int, start: int) -> frozenset[int]:
    """Return the slots with live records."""
    live = [one for one in found if one.header.start == start and one.header.sequence >= first_sequence]
    return frozenset(one.place.slot for one in live)
