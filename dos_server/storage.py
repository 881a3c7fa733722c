"""Objects, claims, marks and records on a disk: what the effects of the core mean in files.

    identity         the server's id
    store            the store record, when it is in one
    stamps           that its disk is the newest of itself: see `core.stamps`
    witnessed        the newest stamps of the other members
    lock             flock, as on the data directory itself: one server a data directory
    d/DIR/.claim     who may write DIR
    d/DIR/.marks     what is synced at least, by object
    d/DIR/OBJECT     extents
    d/DIR/.torn.*    torn tails, copied aside before they are cut
    d/DIR/.mend.*    new copies on their way in; gone at the next start
    d/DIR/.broken.*  copies that were replaced by a new one

Small files are replaced whole: temporary file, write, sync, rename, sync of the folder. Objects only grow.
Errors of the disk are caught here, and only here; `troubles` says what they mean: no space, or failed.

Rules of this file: it does what it is told, in the order it is told, and may be called from several threads,
for one object by one write and one sync at a time.
"""

import errno
import logging

from dos_protocol.errors import CorruptDataError
from dos_protocol.names import is_name
from dos_protocol.store_record import decode_store_record
from dos_server import removal, side_files, small_files
from dos_server.core import records
from dos_server.core import vocabulary as v
from dos_server.core.layout import OBJECTS, STAMPS, WITNESSED
from dos_server.core.records import ClaimRecord, ObjectMark
from dos_server.core.recovery_scan import RecoveredObject
from dos_server.core.stamps import History, StampFiles, decode_history, decode_witnesses, encode_history
from dos_server.disk import Disk, FreeSpace
from dos_server.loading import DirectoryLoader
from dos_server.marks import says_damaged
from dos_server.open_files import OpenFile
from dos_server.troubles import came_before_sync, noted, trouble_of

log = logging.getLogger("dos.server")


class Storage(DirectoryLoader):
    """See the module."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._told_no_space = False

    # Start and stop

    def start(self, fresh_id: bytes) -> tuple[bytes, bytes, set[str]]:
        """Server id, store record (or nothing), names of directories. A fresh data directory gets the given
        id.

        Raises CorruptDataError when the data directory is not one whole server's: it must not answer for it.
        """
        self._disk.make_folder(OBJECTS)
        self._disk.sync_folder("")  # a killed server may have left an identity, or a record, not durable yet
        found = self._disk.names(OBJECTS) or []
        names = {name for name in found if is_name(name)}
        identity = small_files.read(self._disk, "identity")
        if identity is None:
            if names:
                raise CorruptDataError(
                    "data directory", 0, "an identity beside objects", "none", "restore it, or start empty"
                )
            small_files.replace(self._disk, "", "identity", records.encode_identity(fresh_id))
            identity = records.encode_identity(fresh_id)
        record = small_files.read(self._disk, "store")
        if record is not None:
            decode_store_record(record, "store")  # an empty file is a damaged one, not a server in no store
        return records.decode_identity(identity, "identity"), record or b"", names

    def give_stamp(self, stamp_id: bytes) -> StampFiles:
        """Give the disk another stamp, for this start; the files `stamps` and `witnessed` as they are then.

        Where that is not possible, on a full disk say, the server starts with those that it has: none that
        was told is lost. Raises CorruptDataError, OSError when one cannot be read.
        """
        stamps = small_files.read(self._disk, STAMPS)
        witnessed = small_files.read(self._disk, WITNESSED)
        history = decode_history(stamps) if stamps is not None else History()
        if witnessed is not None:
            decode_witnesses(witnessed)
        grown = encode_history(history.grown(stamp_id))
        try:
            small_files.replace(self._disk, "", STAMPS, grown)
        except OSError as error:
            log.warning("no stamp for this start: %s", error)
            grown = stamps or b""
        return StampFiles(grown, witnessed or b"")

    def store_stamps(self, effect: v.WriteStamps) -> v.StampsStored:
        """Put `stamps` or `witnessed` on stable storage."""
        trouble = v.DiskFailure.NONE
        try:
            small_files.replace(self._disk, "", effect.name, effect.data)
        except OSError as error:
            log.error("%s: %s", effect.name, error)
            trouble = trouble_of(error)
        return v.StampsStored(*effect, trouble)

    def damaged_among(self, directories: set[str]) -> set[str]:
        """Those of the directories in which a mark says that an object is damaged."""
        return {name for name in directories if says_damaged(self._disk, f"{OBJECTS}/{name}")}

    def stop(self) -> None:
        """Close everything, marks on stable storage first. Errors are only noted: nothing depends on it."""
        for path, file in self._files.unsynced():
            with noted(f"last sync of {path}"):
                self._files.sync(file)
        for directory in list(self._folders):
            with noted(f"marks of {directory}"):
                self._folders[directory].marks.sync()
            self.forget(directory)

    def store_claim(self, directory: str, claim: ClaimRecord) -> v.DiskFailure:
        """Put a claim on stable storage, with the folder and its entry."""
        try:
            self._make_folder(directory)
            small_files.replace(self._disk, f"{OBJECTS}/{directory}", ".claim", records.encode_claim(claim))
            self._folder_durable(directory)
        except OSError as error:
            log.error("claim of %s: %s", directory, error)
            return trouble_of(error)
        return v.DiskFailure.NONE

    def store_record(self, record: bytes) -> v.DiskFailure:
        """Put the store record on stable storage."""
        try:
            small_files.replace(self._disk, "", "store", record)
        except OSError as error:
            log.error("store record: %s", error)
            return trouble_of(error)
        return v.DiskFailure.NONE

    def why_gone(self) -> str:
        """Why the data directory is not where it was opened; '' while it is."""
        return self._disk.why_gone()

    def free_space(self) -> FreeSpace:
        """What is free on the disk; nothing known, where it does not say, which the log hears once."""
        try:
            return self._disk.free_space()
        except OSError as error:
            level, self._told_no_space = (logging.DEBUG if self._told_no_space else logging.WARNING), True
            log.log(level, "no reserve is kept: the file system does not say what is free: %s", error)
            return FreeSpace(0, 0)

    # Objects

    def write(self, effect: v.Write) -> v.DiskFailure:
        """Write extents, whole or not at all: the part that a full disk let in is taken back."""
        directory, name, position, buffers, create = effect
        path = f"{OBJECTS}/{directory}/{name}"
        try:
            if create:
                self._make_folder(directory)
            with self._files.use(path, create=create) as file:
                try:
                    self._disk.write(file.handle, position, buffers)
                except OSError as error:
                    if trouble_of(error) is v.DiskFailure.FAILED or not self._taken_back(file, effect):
                        file.writes += 1
                        raise OSError(errno.EIO, f"a part of it may be in the file: {error}") from error
                    raise
                file.writes += 1
        except OSError as error:
            log.error("write of %s/%s: %s", directory, name, error)
            if create and trouble_of(error) is not v.DiskFailure.FAILED:
                self._files.forget(path)
            return trouble_of(error)
        return v.DiskFailure.NONE

    def _taken_back(self, file: OpenFile, effect: v.Write) -> bool:
        """Whether nothing of a refused write is on the disk any more, nor comes back after a power cut.

        The cut is synced before anything else is written there: or the disk may hold a mixture of two
        writes, which no crash is known to make (row D). A new file's name goes, durably.
        """
        try:
            if effect.create:
                self._disk.remove(f"{OBJECTS}/{effect.directory}/{effect.name}")
                self._disk.sync_folder(f"{OBJECTS}/{effect.directory}")
            else:
                self._disk.cut(file.handle, effect.position)
                self._files.sync(file)
        except OSError as error:
            log.error("write of %s/%s cannot be taken back: %s", effect.directory, effect.name, error)
            return False
        return True

    def sync(self, effect: v.Sync) -> v.DiskFailure:
        """Put an object on stable storage.

        With `entry` its directory entry and each ancestor not yet durable. PASSES: it was not even tried, and
        may be asked for again; a sync that failed never.
        """
        file: OpenFile | None = None
        path = f"{OBJECTS}/{effect.directory}/{effect.name}"
        try:
            with self._files.use(path) as file:
                self._files.sync(file)
                if effect.entry:
                    self._disk.sync_folder(f"{OBJECTS}/{effect.directory}")
                    self._folder_durable(effect.directory)
                if not self._disk.is_named(file.handle, path):
                    raise FileNotFoundError(errno.ENOENT, "its file was removed or replaced", path)
        except OSError as error:
            log.error("sync of %s/%s: %s", effect.directory, effect.name, error)
            failed = file is not None and file.failed
            return v.DiskFailure.PASSES if came_before_sync(error) and not failed else v.DiskFailure.FAILED
        return v.DiskFailure.NONE

    def make_directory(self, directory: str) -> v.DiskFailure:
        """Make a directory, if it is not there, and put its entry on stable storage."""
        try:
            self._disk.make_folder(f"{OBJECTS}/{directory}")
            self._disk.sync_folder(OBJECTS)
        except OSError as error:
            log.error("directory %s: %s", directory, error)
            return trouble_of(error)
        return v.DiskFailure.NONE

    def remove(self, effect: v.RemoveObject) -> v.Removed:
        """Take a settled object away, durably; a crash leaves the whole object or nothing."""
        session, request_id, directory, name, durable, damaged = effect
        folder = f"{OBJECTS}/{directory}"
        self._files.forget(f"{folder}/{name}")
        mark = ObjectMark(name, durable, damaged=damaged)
        ending = removal.remove(self._disk, self._folders[directory].marks, folder, mark)
        return v.Removed(session, request_id, directory, name, ending)

    # New copies of objects: see `side_files`

    def write_repair(self, effect: v.WriteRepair) -> v.DiskFailure:
        """Write a part of a new copy into its own file."""
        try:
            if effect.create:
                self._make_folder(effect.directory)
            side_files.write(self._disk, self._files, effect)
        except OSError as error:
            log.error("new copy of %s/%s: %s", effect.directory, effect.name, error)
            return trouble_of(error)
        return v.DiskFailure.NONE

    def install_repair(self, effect: v.InstallRepair) -> RecoveredObject | None:
        """The new copy on stable storage, the old one aside, the new one in its place. None: it failed."""
        directory, name = effect.directory, effect.name
        new = ObjectMark(name, effect.goal_size)
        try:
            side_files.sync(self._files, effect)
            if effect.exists:
                # should a crash leave neither copy, this one is known to be lost, not never to have been
                old = ObjectMark(name, effect.durable, effect.poisoned, effect.damaged)
                self._folders[directory].marks.write(old, durable=True)
                self._disk.sync_folder(f"{OBJECTS}/{directory}")
                self._files.forget(f"{OBJECTS}/{directory}/{name}")
            side_files.change_places(self._disk, effect)
            self._folder_durable(directory)
            self._folders[directory].marks.write(new, durable=True)
            found = self._load_object(directory, name, new)
        except OSError as error:
            log.error("new copy of %s/%s cannot be put in its place: %s", directory, name, error)
            return None
        if found.corrupt or found.size != effect.goal_size:
            log.error("the new copy of %s/%s is not whole: %d bytes", directory, name, found.size)
            return None
        log.warning("object %s/%s has a new copy, %d bytes", directory, name, found.size)
        return found

    def drop_repair(self, effect: v.DropRepair) -> None:
        """Take a new copy's file away; a failure leaves it to the next start."""
        with noted(f"new copy of {effect.directory}/{effect.name}"):
            side_files.drop(self._disk, self._files, effect)

    # What they share

    def _make_folder(self, directory: str) -> None:
        folder = self._folders[directory]
        if not folder.durable:
            self._disk.make_folder(f"{OBJECTS}/{directory}")

    def _folder_durable(self, directory: str) -> None:
        """The directory's own entry is on stable storage after this."""
        folder = self._folders[directory]
        if not folder.durable:
            self._disk.sync_folder(OBJECTS)
            folder.durable = True
