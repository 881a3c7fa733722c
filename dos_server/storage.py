"""Stores objects, claims, marks and records on a disk: implements the core's disk effects.

    identity         the server's id, and the version of all formats
    directories      the register of directories: see `directory_register`
    store            the store record, if the server is in a store
    stamps           detect that the disk is an older copy of itself: see `core.stamps`
    witnessed        the newest stamps of the other members
    lock             flock, also on the data directory itself: one server per data directory
    d/DIR/.claim     the writer of DIR
    d/DIR/.marks     per object, the size that is synced at least
    d/DIR/OBJECT     extents
    d/DIR/.torn.*    torn tails, copied aside before they are cut
    d/DIR/.mend.*    new copies being received; deleted at the next start
    d/DIR/.broken.*  copies that were replaced by a repair

Small files are replaced whole: temporary file, write, sync, rename, sync of the folder. Objects only grow.
Except at the start, disk errors do not leave this class: `disk_errors` maps them to the core's values.

Methods act in the order of the calls and decide nothing. They may be called from several threads, but at most
one write and one sync of an object may run at a time.
"""

import errno
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from dos_protocol.errors import CorruptDataError
from dos_protocol.names import NO_ID, is_name
from dos_protocol.store_record import decode_store_record
from dos_server import removal, side_files, small_files
from dos_server.core import vocabulary as v
from dos_server.core.files import records
from dos_server.core.files.log_replay import RecordPlace
from dos_server.core.files.records import ClaimRecord, ObjectMark
from dos_server.core.group_log.tail import LogTail
from dos_server.core.layout import OBJECTS, STAMPS, WITNESSED
from dos_server.core.quotas import StoredUsage
from dos_server.core.recovery_scan import RecoveredObject
from dos_server.core.requests.stamps import (
    NO_STAMPS,
    StampFiles,
    decode_witnesses,
    encode_history,
    history_of,
)
from dos_server.directory_register import check_folder_of_objects, registered
from dos_server.disk import Disk, FreeSpace
from dos_server.disk_errors import failure_of, log_errors, preceded_sync
from dos_server.loading import DirectoryLoader
from dos_server.log_files import LogFiles
from dos_server.log_start import NoLogSpaceError, end_log, start_log
from dos_server.marks import has_damage_mark, stored_usage
from dos_server.open_files import OpenFile

logger = logging.getLogger("dos.server")


class _NotRegisteredError(OSError):
    """There was no space to register a directory whose folder and objects are durable."""


class Storage(DirectoryLoader):
    """The disk effects of the core, on one data directory."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._reported_no_space = False
        self._server_id, self._is_new = NO_ID, False
        self._log: LogFiles | None = None
        self.halted = False
        self.timing: Callable[[], AbstractContextManager[None]] = nullcontext
        """Surrounds each sync of an object or of the log, in the thread that makes it."""
        """A write or sync failed whose bytes the group log has: nothing is synced at the end."""

    # Start and stop

    def start(self, fresh_id: bytes) -> tuple[bytes, bytes, set[str]]:
        """Return the server id, the store record (or b"") and the names of the directories.

        A new data directory gets `fresh_id`. Raises CorruptDataError if the data directory is not the
        complete data of one server: the server must not answer for it. Raises LocalProtocolError if a newer
        program wrote it.
        """
        try:
            return self._start(fresh_id)
        except BaseException:
            self.register.close()
            raise

    def _start(self, fresh_id: bytes) -> tuple[bytes, bytes, set[str]]:
        identity = small_files.read(self._disk, "identity")
        records.check_format(identity)
        if identity is None:
            identity = self._begin(fresh_id)
        self._server_id = records.decode_identity(identity, "identity")
        check_folder_of_objects(self._disk)
        # A killed server may have left an identity or a record that is not durable.
        self._disk.sync_folder("")
        self.register.check(self._folder_names())
        record = small_files.read(self._disk, "store")
        if record is not None:
            decode_store_record(record, "store")  # an empty file is damage; it does not mean "in no store"
        return self._server_id, record or b"", self.directory_names()

    def _begin(self, fresh_id: bytes) -> bytes:
        """Make a new data directory, and return its identity, which is the last that becomes durable."""
        self._disk.make_folder(OBJECTS)
        if self._folder_names() or registered(self._disk):
            raise CorruptDataError(
                "data directory", 0, "an identity beside objects", "none", "restore it, or start empty"
            )
        self._disk.sync_folder("")
        self.register.create()
        self._is_new = True
        identity = records.encode_identity(fresh_id)
        small_files.replace(self._disk, "", "identity", identity)
        return identity

    def add_stamp(self, fresh: bytes) -> StampFiles:
        """Give the disk a new stamp for this start; return the files `stamps` and `witnessed`. After `start`.

        fresh: 16 random bytes, from which the stamp and, on a disk without one, the key are made. If the
        stamp cannot be stored, on a full disk for example, the server starts with the existing ones: every
        stamp that another member knows is still there. Raises CorruptDataError, and OSError if a file is
        unreadable.
        """
        stamps = small_files.read(self._disk, STAMPS)
        witnessed = small_files.read(self._disk, WITNESSED)
        history = history_of(stamps, witnessed)
        if stamps is None and small_files.read(self._disk, "store") is not None:
            logger.info("%s and %s are missing: %s", STAMPS, WITNESSED, NO_STAMPS)
        history = history.keyed(fresh, is_new=self._is_new)
        if witnessed is not None:
            decode_witnesses(witnessed)
        grown = encode_history(history.made(self._server_id, fresh))
        try:
            small_files.replace(self._disk, "", STAMPS, grown)
        except OSError as error:
            logger.warning("cannot store a stamp for this start: %s", error)
            grown = encode_history(history)
        return StampFiles(grown, witnessed or b"")

    def store_stamps(self, effect: v.WriteStamps) -> v.StampsStored:
        """Put `stamps` or `witnessed` on stable storage."""
        failure = v.DiskFailure.NONE
        try:
            small_files.replace(self._disk, "", effect.name, effect.data)
        except OSError as error:
            logger.error("%s: %s", effect.name, error)
            failure = failure_of(error)
        return v.StampsStored(*effect, failure)

    def directory_names(self) -> set[str]:
        """Return the names of the directories, also of those that were lost."""
        return self._folder_names() | self.register.names

    def _folder_names(self) -> set[str]:
        return {name for name in self._disk.names(OBJECTS) or [] if is_name(name)}

    def damaged_among(self, directories: set[str]) -> set[str]:
        """Return those of the directories that were lost, or have an object marked as damaged."""
        return {
            name
            for name in directories
            if self.register.is_lost(name) or has_damage_mark(self._disk, f"{OBJECTS}/{name}")
        }

    def missing_directories(self) -> list[str]:
        """Return the directories whose folders were removed since the last call. A failure is logged."""
        try:
            before = self.register.names  # first: each of them had a folder before it was registered
            return self.register.lose(before - self._folder_names())
        except OSError as error:
            logger.warning("the register of directories: %s", error)
            return []

    def usage_among(self, directories: set[str]) -> dict[str, StoredUsage]:
        """Return what the directories hold by their marks. Loading a directory finds what they lack."""
        return {name: stored_usage(self._disk, f"{OBJECTS}/{name}") for name in directories}

    def stop(self) -> None:
        """Sync and close everything, marks last. Errors are only logged: no guarantee depends on it.

        After a halt everything is closed without a sync.
        """
        if self.halted:
            self.abandon()
            return
        for path, file in self._files.unsynced():
            with log_errors(f"last sync of {path}"):
                self._files.sync(file)
        for directory in list(self._folders):
            with log_errors(f"marks of {directory}"):
                self._folders[directory].marks.sync()
            self.forget(directory)
        self.register.close()
        if self._log is not None:
            self._log.close()
            with log_errors("the end of the group log"):
                self.replay_log()

    def abandon(self) -> None:
        """Close everything without a sync."""
        for directory in list(self._folders):
            self.forget(directory)
        self.register.close()
        if self._log is not None:
            self._log.close()

    # The group log

    def start_log(self, fresh_key: bytes, slot_bytes: int) -> LogTail | None:
        """Replay the group log and begin a new part of it. Before anything else is read. None, with a
        warning, if there is no space for a log: every object is synced in its own file then.

        Raises CorruptDataError if it misses acknowledged bytes of objects that nobody could name, and
        OSError. `abandon` closes what is open then.
        """
        self._log = LogFiles(self._disk, slot_bytes)
        try:
            return start_log(self._disk, fresh_key, self._log, self.free_space())
        except NoLogSpaceError as error:
            logger.warning("no space for the group log: %s", error)
            self._log.close()
            self._log = None
            return None
        finally:
            self.register.close()  # the replay has registered what it made

    def replay_log(self) -> None:
        """Replay the group log if it is in use, and use it no more. Raises as `start_log`."""
        try:
            end_log(self._disk)
        finally:
            self.register.close()  # the replay has registered what it made

    def append_log(self, effect: v.WriteLog) -> v.LogSynced:
        """Put a record on stable storage, then note it in `seen`. After an OSError the server must end."""
        assert self._log is not None
        slot, offset, record, seen_bytes, objects = effect
        with self.timing():
            self._log.append(RecordPlace(slot, offset), record)
        self._log.see(memoryview(record)[:seen_bytes])
        return v.LogSynced(frozenset(one for one in objects if not self._is_named(*one)))

    def _is_named(self, directory: str, name: str) -> bool:
        """Whether an object that was written still has its file: decision 0201."""
        path = f"{OBJECTS}/{directory}/{name}"
        try:
            with self._files.use(path) as file:
                return self._disk.is_named(file.handle, path)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def store_claim(self, directory: str, claim: ClaimRecord) -> v.DiskFailure:
        """Put a claim on stable storage, including the directory and its entry."""
        try:
            self._make_folder(directory)
            small_files.replace(self._disk, f"{OBJECTS}/{directory}", ".claim", records.encode_claim(claim))
            self._folder_durable(directory)
            self.register.add(directory, claim.epoch)
        except OSError as error:
            logger.error("claim of %s: %s", directory, error)
            return failure_of(error)
        return v.DiskFailure.NONE

    def store_record(self, record: bytes) -> v.DiskFailure:
        """Put the store record on stable storage."""
        try:
            small_files.replace(self._disk, "", "store", record)
        except OSError as error:
            logger.error("store record: %s", error)
            return failure_of(error)
        return v.DiskFailure.NONE

    def why_gone(self) -> str:
        """Why what the server needs is not where it was opened: the data directory, the folder of its
        objects, or its group log; '' while all are. A failure proves nothing, and is logged.
        """
        why = self._disk.why_gone()
        with log_errors("the data directory"):
            if not why and self._disk.names(OBJECTS) is None:
                why = f"the folder {OBJECTS!r} with all objects was removed while it was served"
            if not why and self._log is not None and (missing := self._log.missing()):
                why = f"{missing!r} of the group log was removed while it was in use"
        return why

    def free_space(self) -> FreeSpace:
        """Return the free space; zeros, with one warning, if the file system does not report it."""
        try:
            return self._disk.free_space()
        except OSError as error:
            level, self._reported_no_space = (
                (logging.DEBUG if self._reported_no_space else logging.WARNING),
                True,
            )
            logger.log(
                level, "no reserve is kept, because the file system does not report its free space: %s", error
            )
            return FreeSpace(0, 0)

    # Objects

    def write(self, effect: v.Write) -> v.DiskFailure:
        """Write extents, whole or not at all: if the disk is full, a partial write is removed again."""
        directory, name, position, buffers, create = effect
        path = f"{OBJECTS}/{directory}/{name}"
        try:
            if create:
                self._make_folder(directory)
            file = self._files.take(path, create=create)  # without `use`: every append comes here
            try:
                self._disk.write(file.handle, position, buffers)
            except OSError as error:
                if failure_of(error) is v.DiskFailure.FAILED or not self._undone(file, effect):
                    file.writes += 1
                    raise OSError(errno.EIO, f"a part of the write may be in the file: {error}") from error
                raise
            else:
                file.writes += 1
            finally:
                self._files.leave(file)
        except OSError as error:
            logger.error("write of %s/%s: %s", directory, name, error)
            if create and failure_of(error) is not v.DiskFailure.FAILED:
                self._files.forget(path)
            return failure_of(error)
        return v.DiskFailure.NONE

    def _undone(self, file: OpenFile, effect: v.Write) -> bool:
        """Remove what is on disk of a refused write. Whether that worked, also across a power cut.

        The truncation is synced before anything else is written there. Otherwise the disk could hold a
        mixture of two writes, which recovery does not expect from a crash (row D). For a new file its name is
        removed durably.
        """
        try:
            if effect.create:
                self._disk.remove(f"{OBJECTS}/{effect.directory}/{effect.name}")
                self._disk.sync_folder(f"{OBJECTS}/{effect.directory}")
            else:
                self._disk.cut(file.handle, effect.position)
                self._files.sync(file)
        except OSError as error:
            logger.error("write of %s/%s cannot be undone: %s", effect.directory, effect.name, error)
            return False
        return True

    def sync(self, effect: v.Sync) -> v.DiskFailure:
        """Put an object on stable storage; with `entry` also its directory entry and each ancestor not yet
        durable.

        Returns TEMPORARY if the sync may be retried: it was not attempted, or it succeeded and only the
        directory could not be registered. A sync that failed is never retried: the kernel may have dropped
        the pages that it could not write.
        """
        file: OpenFile | None = None
        path = f"{OBJECTS}/{effect.directory}/{effect.name}"
        try:
            with self._files.use(path) as file:
                with self.timing():
                    self._files.sync(file)
                if effect.entry:
                    self._disk.sync_folder(f"{OBJECTS}/{effect.directory}")
                    self._folder_durable(effect.directory)
                # a removed file still syncs, but its bytes must not be acknowledged: decision 0201
                if not self._disk.is_named(file.handle, path):
                    raise FileNotFoundError(errno.ENOENT, "the file was removed or replaced", path)
        except OSError as error:
            logger.error("sync of %s/%s: %s", effect.directory, effect.name, error)
            failed = file is not None and file.failed
            if not failed and isinstance(error, FileNotFoundError):
                return v.DiskFailure.GONE
            again = preceded_sync(error) or isinstance(error, _NotRegisteredError)
            return v.DiskFailure.TEMPORARY if again and not failed else v.DiskFailure.FAILED
        return v.DiskFailure.NONE

    def make_directory(self, directory: str) -> v.DiskFailure:
        """Make a directory if it is missing, and put its entry on stable storage."""
        try:
            if self.register.is_lost(directory):
                raise OSError(errno.EIO, "the directory was lost")
            self._disk.make_folder(f"{OBJECTS}/{directory}")
            self._disk.sync_folder(OBJECTS)
            self.register.add(directory)
        except OSError as error:
            logger.error("directory %s: %s", directory, error)
            return failure_of(error)
        return v.DiskFailure.NONE

    def remove(self, effect: v.RemoveObject) -> v.Removed:
        """Delete a settled object durably. After a crash either the whole object is there or none of it."""
        session, request_id, directory, name, durable, damaged = effect
        folder = f"{OBJECTS}/{directory}"
        mark = ObjectMark(name, durable, damaged=damaged)
        ending = removal.remove(self._disk, self._folders[directory].marks, folder, mark)
        # Afterwards: a reader may open the file as long as it has its name, and a new object must not get it.
        self._files.forget(f"{folder}/{name}")
        return v.Removed(session, request_id, directory, name, ending)

    # New copies of objects: see `side_files`

    def write_repair(self, effect: v.WriteRepair) -> v.DiskFailure:
        """Write a part of a new copy into its own file."""
        try:
            if effect.create:
                self._make_folder(effect.directory)
            side_files.write(self._disk, self._files, effect)
        except OSError as error:
            logger.error("new copy of %s/%s: %s", effect.directory, effect.name, error)
            return failure_of(error)
        return v.DiskFailure.NONE

    def install_repair(self, effect: v.InstallRepair) -> RecoveredObject | None:
        """Sync the new copy, move the old one aside, and put the new one in its place. None: it failed."""
        directory, name = effect.directory, effect.name
        new = ObjectMark(name, effect.goal_size)
        try:
            side_files.sync(self._files, effect)
            if effect.exists:
                # If a crash leaves neither copy, the mark shows that the object existed and is lost.
                old = ObjectMark(name, effect.durable, effect.poisoned, effect.damaged)
                self._folders[directory].marks.write(old, durable=True)
                self._disk.sync_folder(f"{OBJECTS}/{directory}")
            try:
                side_files.exchange(self._disk, effect)
            finally:  # as in `remove`
                self._files.forget(f"{OBJECTS}/{directory}/{name}")
            self._folder_durable(directory)
            self._folders[directory].marks.write(new, durable=True)
            found = self._load_object(directory, name, new)
        except OSError as error:
            logger.error("cannot install the new copy of %s/%s: %s", directory, name, error)
            return None
        if found.corrupt or found.size != effect.goal_size:
            logger.error("the new copy of %s/%s is incomplete: %d bytes", directory, name, found.size)
            return None
        logger.warning("object %s/%s has a new copy, %d bytes", directory, name, found.size)
        return found

    def drop_repair(self, effect: v.DropRepair) -> None:
        """Delete the file of a new copy. If that fails, the next start deletes it."""
        with log_errors(f"new copy of {effect.directory}/{effect.name}"):
            side_files.drop(self._disk, self._files, effect)

    # Shared helpers

    def _make_folder(self, directory: str) -> None:
        folder = self._folders[directory]
        if not folder.durable:
            self._disk.make_folder(f"{OBJECTS}/{directory}")

    def _folder_durable(self, directory: str) -> None:
        """Make the directory's own entry durable."""
        folder = self._folders[directory]
        if not folder.durable:
            self._disk.sync_folder(OBJECTS)
            try:
                self.register.add(directory)
            except OSError as error:
                if failure_of(error) is not v.DiskFailure.NO_SPACE:
                    raise
                raise _NotRegisteredError(*error.args) from error
            folder.durable = True
