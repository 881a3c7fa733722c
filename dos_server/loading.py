"""Loads a directory: reads its claim and its marks, and brings each object to a state on stable storage.

`core.recovery` decides what a file is; this module carries the decision out before anything of it is
reported. An error that proves no damage marks nothing as damaged: the directory is not opened, and the next
request reads it again.
"""

import logging
from dataclasses import dataclass

from dos_protocol.errors import CorruptDataError
from dos_protocol.names import is_name
from dos_server import removal, side_files, small_files
from dos_server.core import vocabulary as v
from dos_server.core.files import findings, records
from dos_server.core.files.extent import object_seed
from dos_server.core.files.records import NO_CLAIM, ObjectMark
from dos_server.core.files.recovery import NO_SPACE_LETTER, RecoveryDecision
from dos_server.core.layout import OBJECTS
from dos_server.core.recovery_scan import RecoveredObject, judge, lost
from dos_server.directory_register import REMEDY, DirectoryRegister
from dos_server.disk import Disk
from dos_server.disk_errors import failure_of, is_temporary, proves_damage
from dos_server.marks import ObjectMarks
from dos_server.stored_reads import StoredReads

logger = logging.getLogger("dos.server")


class UnexpectedOpenError(OSError):
    """A file could not be opened, for a reason that says nothing about it: the next request tries again."""


@dataclass
class LoadedDirectory:
    """A loaded directory: its marks, and whether its own entry is durable."""

    marks: ObjectMarks
    durable: bool


class DirectoryLoader(StoredReads):
    """The loader. Called from threads; a directory, and an object, is loaded by one thread at a time."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.register = DirectoryRegister(disk)
        self._folders: dict[str, LoadedDirectory] = {}

    def forget(self, directory: str) -> None:
        """Close the files of a directory that is not in use."""
        folder = self._folders.pop(directory, None)
        self._files.forget_folder(f"{OBJECTS}/{directory}")
        if folder is not None:
            folder.marks.close()

    def load(self, directory: str) -> v.DirectoryLoaded:
        """Read a directory and bring each object to a state on stable storage. Idempotent."""
        path = f"{OBJECTS}/{directory}"
        try:
            is_registered = directory in self.register.names  # first: folders are made before
            names = self._disk.names(path)
            self._check_not_lost(directory, is_missing=is_registered and names is None)
            folder = self._folders[directory] = LoadedDirectory(
                ObjectMarks(self._disk, path), names is not None
            )
            if names is None:
                return v.DirectoryLoaded(directory, exists=False, claim=NO_CLAIM, objects={})
            # A killed server leaves names that can be read but are not durable. A mark must not become
            # durable before the name that it describes.
            self._disk.sync_folder(OBJECTS)
            self._disk.sync_folder(path)
            data = small_files.read(self._disk, f"{path}/.claim")
            claim = NO_CLAIM if data is None else records.decode_claim(data, f"{directory}/.claim")
            self.register.add(directory)
            marks = folder.marks.load()
            for name in [name for name, mark in marks.items() if mark.removed]:
                removal.finish(self._disk, folder.marks, path, name)
                del marks[name]
                names = [one for one in names if one != name]
            side_files.remove_leftovers(self._disk, path, names)
            objects = {
                name: self._load_object(directory, name, marks.get(name)) for name in names if is_name(name)
            }
            for name in marks.keys() - objects.keys():
                logger.error(
                    "object %s/%s is gone, %d bytes of it were synced", directory, name, marks[name].synced
                )
                objects[name] = lost(marks[name].synced)
            known = self.register.epoch_of(directory)
            epoch_max = max((found.epoch_max for found in objects.values()), default=known)
            records.check_claim(claim, f"{directory}/.claim", max(epoch_max, known))
            self.register.add(directory, claim.epoch)
        except (OSError, CorruptDataError) as error:
            logger.error("directory %s cannot be used: %s", directory, error)
            self.forget(directory)
            temporary = isinstance(error, OSError) and (
                isinstance(error, UnexpectedOpenError) or failure_of(error) is not v.DiskFailure.FAILED
            )
            problem = f"{directory}: {error}"
            return v.DirectoryLoaded(directory, True, NO_CLAIM, {}, problem, temporary)  # noqa: FBT003
        return v.DirectoryLoaded(directory, exists=True, claim=claim, objects=objects)

    def _check_not_lost(self, directory: str, *, is_missing: bool) -> None:
        """Raise CorruptDataError if the folder of a registered directory is missing, or was."""
        if is_missing:
            self.register.lose([directory])
        if self.register.is_lost(directory):
            raise CorruptDataError(
                f"{OBJECTS}/{directory}", 0, "the folder of a directory", "none, now or at some time", REMEDY
            )

    def load_object(self, directory: str, name: str) -> v.ObjectLoaded:
        """Judge an object of a loaded directory again, by its current mark."""
        try:
            mark = self._folders[directory].marks.of(name)
            return v.ObjectLoaded(directory, name, self._load_object(directory, name, mark))
        except OSError as error:
            logger.error("object %s/%s cannot be examined: %s", directory, name, error)
            return v.ObjectLoaded(directory, name, None)

    def _load_object(self, directory: str, name: str, mark: ObjectMark | None) -> RecoveredObject:
        durable = mark.synced if mark is not None else 0
        path = f"{OBJECTS}/{directory}/{name}"
        try:
            self._files.leave(self._files.take(path, create=False))
        except OSError as error:
            if failure_of(error) is v.DiskFailure.FAILED and not proves_damage(error):
                text = f"{error.strerror}, which proves no damage"
                raise UnexpectedOpenError(error.errno, text, path) from error
            return self._unusable(directory, name, durable, error)
        try:
            with self._files.use(path) as file:
                found, size = self._judge(directory, name, file.handle, mark)
                durable = max(durable, found.size)  # all of this may have been acknowledged
                if not found.corrupt:
                    found = self._carry_out_decision(directory, name, file.handle, found, size, mark)
        except OSError as error:
            return self._unusable(directory, name, durable, error)
        if found.letter == NO_SPACE_LETTER:
            return found
        if found.corrupt:
            poisoned = mark is not None and mark.poisoned
            durable = max(found.durable, found.size)
            self.set_mark(directory, ObjectMark(name, durable, poisoned, damaged=True, root=found.root))
            return found
        if mark is not None and mark.poisoned:
            return self._clear_poisoned(directory, name, found)
        current = ObjectMark(name, found.size, root=found.root)
        if mark != current:
            self.set_mark(directory, current)
        return found

    def _unusable(self, directory: str, name: str, durable: int, error: OSError) -> RecoveredObject:
        """Return the state of an object that could not be opened or made durable. Raises temporary errors."""
        if is_temporary(error):
            raise error
        logger.error("object %s/%s cannot be used: %s", directory, name, error)
        return _lost_or_uncut(durable, error)

    def _clear_poisoned(self, directory: str, name: str, found: RecoveredObject) -> RecoveredObject:
        """Remove the flag "poisoned" from a mark, durably, before any new append is acknowledged.

        Otherwise a power cut would bring the flag back, and the next start would cut what was acknowledged
        since.
        """
        try:
            self._folders[directory].marks.write(ObjectMark(name, found.size, root=found.root), durable=True)
        except OSError as error:
            if is_temporary(error):
                raise
            logger.error("mark of %s/%s: %s", directory, name, error)
            return _lost_or_uncut(found.size, error)
        return found

    def _judge(
        self, directory: str, name: str, handle: int, mark: ObjectMark | None
    ) -> tuple[RecoveredObject, int]:
        """Return the finding of `core.recovery`, and the size of the file."""
        seed = object_seed(directory, name)
        size = self._disk.size(handle)
        found = judge(self.reader(handle), size, seed, mark)
        if found.decision is not RecoveryDecision.KEEP:
            logger.warning("%s", findings.logged(f"{directory}/{name}", found, size))
        return found, size

    def _carry_out_decision(
        self,
        directory: str,
        name: str,
        handle: int,
        found: RecoveredObject,
        size: int,
        mark: ObjectMark | None,
    ) -> RecoveredObject:
        """Carry out the decision of `core.recovery`. What is kept is on stable storage afterwards."""
        disk = self._disk
        try:
            side_files.cut_tail(disk, directory, name, handle, found, size)
        except OSError as error:
            if failure_of(error) is not v.DiskFailure.NO_SPACE:
                raise
            logger.error(
                "tail of %s/%s cannot be copied aside: no space; free some, and it is retried",
                directory,
                name,
            )
            found = found.uncut(size)
        if found.decision is not RecoveryDecision.KEEP or mark is None or mark.synced < found.size:
            side_files.make_durable(disk, handle, found, mark.synced if mark is not None else 0)
        return found

    def set_mark(self, directory: str, mark: ObjectMark) -> None:
        """Store a lower bound of what is synced.

        A failure is only logged: without the mark, the bound is merely lower. A mark that says poisoned or
        damaged is synced at once.
        """
        try:  # not `log_errors`, for speed: this runs with every sync
            self._folders[directory].marks.write(mark, durable=mark.poisoned or mark.damaged)
        except OSError as error:
            logger.warning("mark of %s/%s: %s", directory, mark.name, error)


def _lost_or_uncut(durable: int, error: OSError) -> RecoveredObject:
    """Return the state of an object that could not be made durable: lost.

    For want of space it is only unavailable until there is some: some file systems need new space even for
    bytes that are overwritten in place.
    """
    found = lost(durable)
    return found.uncut(1) if failure_of(error) is v.DiskFailure.NO_SPACE else found
