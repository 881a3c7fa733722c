"""The register of directories: `DATA/directories`, which says which folders there must be in `DATA/d`.

A directory is registered, durably, after its folder is durable and before anything in it is acknowledged. A
registered directory without a folder was lost. It is never taken for one that nobody has claimed yet.

The file has the format of `.marks` (`core.records`), with one mark for each directory:

    name      the directory
    synced    an epoch that its `.claim` has reached; a lower bound, which is not synced
    damaged   its folder was missing: the directory stays refused, also if a folder of that name returns

A directory is never removed, so its mark is never erased. Methods raise OSError. Thread-safe.
"""

import logging
import threading
from collections.abc import Iterable

from dos_protocol.errors import CorruptDataError
from dos_server import small_files
from dos_server.core.failures import DiskFailure
from dos_server.core.files import records
from dos_server.core.files.records import ObjectMark
from dos_server.core.layout import DIRECTORIES, OBJECTS
from dos_server.disk import Disk
from dos_server.disk_errors import failure_of
from dos_server.marks import ObjectMarks

logger = logging.getLogger("dos.server")
REMEDY = "replace the server: what its directories held is unknown"


def registered(disk: Disk) -> dict[str, ObjectMark] | None:
    """Return the marks of all registered directories, without a change on the disk; None without the file."""
    data = small_files.read(disk, DIRECTORIES)
    if data is None:
        return None
    return {mark.name: mark for mark in records.decode_marks(data) if mark is not None}


class DirectoryRegister:
    """The register of one data directory. It is read when it is first used."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._guard = threading.RLock()
        self._file = ObjectMarks(disk, "", DIRECTORIES)
        self._held: dict[str, ObjectMark] | None = None

    def create(self) -> None:
        """Make the file, empty and durable, in a new data directory."""
        with self._guard:
            self._marks()
            self._file.make_durable()

    def _marks(self) -> dict[str, ObjectMark]:
        if self._held is None:
            self._held = self._file.load()
        return self._held

    @property
    def names(self) -> frozenset[str]:
        """All registered directories."""
        with self._guard:
            return frozenset(self._marks())

    def epoch_of(self, directory: str) -> int:
        """Return an epoch that the claim of the directory has reached; 0 if none is known."""
        with self._guard:
            mark = self._marks().get(directory)
            return 0 if mark is None else mark.synced

    def is_lost(self, directory: str) -> bool:
        """Return whether the folder of the directory was missing once."""
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
                raise CorruptDataError(DIRECTORIES, 0, "a folder for each damaged mark", found, REMEDY)
            self.lose(self._marks().keys() - folders)
            if unnamed:
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
        """Register a directory whose folder is durable. `epoch`: of the claim in the folder."""
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
        """Close the file; the next use reads it again."""
        with self._guard:
            self._file.close()
            self._file, self._held = ObjectMarks(self._disk, "", DIRECTORIES), None


def check_folder_of_objects(disk: Disk) -> None:
    """Raise CorruptDataError if the folder of all objects is missing, in a data directory that has begun."""
    if disk.names(OBJECTS) is None:
        raise CorruptDataError(OBJECTS, 0, "the folder of all objects", "no folder", REMEDY)


def check_register(disk: Disk) -> None:
    """Raise CorruptDataError if there is no register, in a data directory that has begun."""
    if registered(disk) is None:
        raise CorruptDataError(DIRECTORIES, 0, "the register of directories", "no file", REMEDY)
