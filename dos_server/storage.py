"""Stores objects, claims, marks and records on a disk: implements the core's disk effects.

Except at the start, disk errors are mapped to the core's values. Methods act in the order of the calls and
decide nothing: what a file is, `core.files.recovery` decides. They may be called from several threads, but at
most one write and one sync of an object may run at a time.

An object keeps the same open handle from its first write to its last sync, because the kernel reports a
failed write-back only to handles that were open at the time.
"""

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final

from dos_protocol.errors import CorruptDataError
from dos_protocol.names import NO_ID, is_name
from dos_protocol.store_record import decode_store_record
from dos_server import side_files
from dos_server.core import vocabulary as v
from dos_server.core.files import findings, records
from dos_server.core.files.extent import object_seed
from dos_server.core.files.log_replay import RecordPlace
from dos_server.core.files.records import (
    BROKEN,
    NO_CLAIM,
    OBJECTS,
    REPAIR,
    STAMPS,
    WITNESSED,
    ObjectMark,
)
from dos_server.core.files.recovery import NO_SPACE_LETTER, RecoveredObject, RecoveryDecision, judge, lost
from dos_server.core.files.scan import DamagedExtentError, ReadAt, prefix_fold, read_part, verify_part
from dos_server.core.group_log import LogTail
from dos_server.core.quotas import StoredUsage
from dos_server.core.requests.stamps import (
    NO_STAMPS,
    StampFiles,
    decode_witnesses,
    encode_history,
    history_of,
)
from dos_server.core.vocabulary import ScrubRead, ScrubReadDone
from dos_server.disk import (
    Disk,
    FreeSpace,
    failure_of,
    is_temporary,
    log_errors,
    preceded_sync,
    proves_damage,
    read_file,
    replace_file,
)
from dos_server.limits import open_files_max, read_extents_max, scrub_part_bytes, scrub_part_extents_max
from dos_server.log_files import LogFiles, NoLogSpaceError, end_log, start_log
from dos_server.marks import (
    REGISTER_REMEDY,
    DirectoryRegister,
    ObjectMarks,
    check_folder_of_objects,
    finish_removal,
    has_damage_mark,
    registered,
    remove_object,
    stored_usage,
)

# --- The open files of objects -----------------------------------------------------------------------------


@dataclass
class OpenFile:
    """An open object. `writes` that have ended; `synced`: how many of them a sync covers; `failed`: a sync
    failed.
    """

    handle: int
    users: int = 0
    writes: int = 0
    synced: int = 0
    failed: bool = False
    forgotten: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)


class OpenFiles:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[str, OpenFile] = {}
        self._guard = threading.Lock()

    def use(self, path: str, *, create: bool = False) -> "FileUse":
        """Return a context manager for the file at a path, opened if needed. Raises as `Disk.open`."""
        return FileUse(self, path, create=create)

    def take(self, path: str, *, create: bool) -> OpenFile:
        with self._guard:
            file = self._files.pop(path, None)
            if file is None:
                file = OpenFile(self._disk.open(path, create=create))
            self._files[path] = file
            file.users += 1
        return file

    def leave(self, file: OpenFile) -> None:
        with self._guard:
            file.users -= 1
            if file.forgotten and not file.users:
                self._disk.close(file.handle)
            if len(self._files) > open_files_max:
                self._close_surplus()

    def sync(self, file: OpenFile) -> None:
        """Put every write that has ended on stable storage. Raises OSError."""
        # One at a time: undoing a refused write also syncs, and the kernel reports an error to only one of
        # them.
        with file.guard:
            if file.failed:
                # Never retried: the kernel drops what it failed to write, and the next sync would succeed.
                raise OSError(errno.EIO, "an earlier sync of the file failed")
            writes = file.writes
            try:
                self._disk.sync(file.handle)
            except OSError:
                file.failed = True
                raise
            file.synced = writes

    def forget_folder(self, folder: str) -> None:
        with self._guard:
            for path in [path for path in self._files if path.rpartition("/")[0] == folder]:
                self._forget(path)

    def forget(self, path: str) -> None:
        with self._guard:
            if path in self._files:
                self._forget(path)

    def _forget(self, path: str) -> None:
        file = self._files.pop(path)
        file.forgotten = True
        if not file.users:
            self._disk.close(file.handle)

    def unsynced(self) -> Iterator[tuple[str, OpenFile]]:
        return (
            (path, file)
            for path, file in self._files.items()
            if file.writes != file.synced and not file.failed
        )

    def _close_surplus(self) -> None:
        surplus = len(self._files) - open_files_max
        idle = [path for path, file in self._files.items() if not file.users and file.writes == file.synced]
        for path in idle[:surplus]:
            self._disk.close(self._files.pop(path).handle)


class FileUse:
    """The context manager of `OpenFiles.use`: a class for speed, because every append enters and exits it."""

    __slots__ = ("_create", "_file", "_files", "_path")

    def __init__(self, files: OpenFiles, path: str, *, create: bool) -> None:
        self._files = files
        self._path = path
        self._create = create

    def __enter__(self) -> OpenFile:
        self._file = self._files.take(self._path, create=self._create)
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.leave(self._file)


# --- New copies of objects ---------------------------------------------------------------------------------


CopyEffect = v.WriteRepair | v.InstallRepair | v.DropRepair


def _copy_name(effect: CopyEffect) -> str:
    return f"{REPAIR}{effect.name}.{effect.copy}"


def _copy_path(effect: CopyEffect) -> str:
    return f"{OBJECTS}/{effect.directory}/{_copy_name(effect)}"


def write_copy(disk: Disk, files: OpenFiles, effect: v.WriteRepair) -> None:
    with files.use(_copy_path(effect), create=effect.create) as file:
        file.writes += 1
        disk.write(file.handle, effect.position, effect.buffers)


def sync_copy(files: OpenFiles, effect: v.InstallRepair) -> None:
    with files.use(_copy_path(effect)) as file:
        files.sync(file)
    files.forget(_copy_path(effect))


def exchange_copies(disk: Disk, effect: v.InstallRepair) -> None:
    """Move the old copy aside, if it is to be kept, and the new one into its place; both durably."""
    folder = f"{OBJECTS}/{effect.directory}"
    names = set(disk.names(folder) or ())
    if effect.keep and effect.name in names:
        disk.rename(folder, effect.name, side_files.free_name(f"{BROKEN}{effect.name}", names))
    # A crash between the renames leaves no file of that name. Its mark is durable, so it counts as lost.
    disk.rename(folder, _copy_name(effect), effect.name)
    disk.sync_folder(folder)


def drop_copy(disk: Disk, files: OpenFiles, effect: v.DropRepair) -> None:
    files.forget(_copy_path(effect))
    with contextlib.suppress(FileNotFoundError):
        disk.remove(_copy_path(effect))


# --- Verified reads ----------------------------------------------------------------------------------------


logger = logging.getLogger("dos.server")


def _meaning_of_read(place: str, error: OSError, offset: int) -> tuple[int | None, str]:
    """Return the offset from which an error means damage, or None and the reason why it proves none."""
    logger.error("read of %s: %s", place, error)
    return (None, str(error)) if is_temporary(error) else (offset, "")


class StoredReads:
    """Verified reads. Thread-safe. `yield_to_loop` is called regularly during long reads."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files = OpenFiles(disk)
        self.yield_to_loop: Callable[[], None] = lambda: None

    def reader(self, handle: int) -> ReadAt:
        """Return a read function for walks over up to a million headers; it calls `yield_to_loop`."""
        yield_to_loop, read = self.yield_to_loop, self._disk.read

        def read_on(position: int, count: int) -> bytes:
            yield_to_loop()
            return read(handle, position, count)

        return read_on

    def read(self, effect: v.ReadData) -> v.GotData:
        try:
            with self._files.use(f"{OBJECTS}/{effect.directory}/{effect.name}") as file:
                read, seed = partial(self._disk.read, file.handle), object_seed(effect.directory, effect.name)
                part = read_part(read, seed, effect.extent, effect.start, effect.end, read_extents_max)
                return v.GotData(effect, part.parts, after=part.after)
        except DamagedExtentError as damage:
            logger.error("%s/%s: %s", effect.directory, effect.name, damage)
            return v.GotData(effect, damaged_at=damage.offset)
        except OSError as error:
            at, missed = _meaning_of_read(f"{effect.directory}/{effect.name}", error, effect.start)
            return v.GotData(effect, damaged_at=at, missed=missed)

    def digest(self, effect: v.ReadDigest) -> v.GotDigest:
        try:
            with self._files.use(f"{OBJECTS}/{effect.directory}/{effect.name}") as file:
                read, seed = self.reader(file.handle), object_seed(effect.directory, effect.name)
                return v.GotDigest(effect, prefix_fold(read, seed, effect.extents, effect.size).value)
        except DamagedExtentError as damage:
            logger.error("%s/%s: %s", effect.directory, effect.name, damage)
            return v.GotDigest(effect, 0, damage.offset)
        except OSError as error:
            at, missed = _meaning_of_read(
                f"{effect.directory}/{effect.name}", error, effect.extents.first.offset
            )
            return v.GotDigest(effect, 0, at, missed)

    def scrub_read(self, effect: ScrubRead, clock: Callable[[], float]) -> ScrubReadDone:
        """Verify the next part of an object for the scrub, reading from the device if possible."""
        began = clock()
        try:
            with self._files.use(f"{OBJECTS}/{effect.directory}/{effect.name}") as file:
                chain = verify_part(
                    partial(self._disk.read_stored, file.handle),
                    object_seed(effect.directory, effect.name),
                    effect.chain,
                    effect.goal,
                    scrub_part_bytes,
                    scrub_part_extents_max,
                )
        except DamagedExtentError as damage:
            return ScrubReadDone(effect, None, damage.offset, damage.what, clock() - began)
        except OSError as error:
            at, _ = _meaning_of_read(f"{effect.directory}/{effect.name}", error, effect.chain.offset)
            return ScrubReadDone(effect, None, at, str(error), clock() - began)
        return ScrubReadDone(effect, chain, None, "", clock() - began)


# --- Loading directories -----------------------------------------------------------------------------------


class UnexpectedOpenError(OSError):
    """A file could not be opened, for a reason that says nothing about it: the next request tries again."""


@dataclass
class LoadedDirectory:
    marks: ObjectMarks
    durable: bool


class DirectoryLoader(StoredReads):
    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.register = DirectoryRegister(disk)
        self._folders: dict[str, LoadedDirectory] = {}

    def forget(self, directory: str) -> None:
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
            data = read_file(self._disk, f"{path}/.claim")
            claim = NO_CLAIM if data is None else records.decode_claim(data, f"{directory}/.claim")
            self.register.add(directory)
            marks = folder.marks.load()
            for name in [name for name, mark in marks.items() if mark.removed]:
                finish_removal(self._disk, folder.marks, path, name)
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
                f"{OBJECTS}/{directory}",
                0,
                "the folder of a directory",
                "none, now or at some time",
                REGISTER_REMEDY,
            )

    def load_object(self, directory: str, name: str) -> v.ObjectLoaded:
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
        """Remove the flag "poisoned" from a mark, durably."""
        try:
            # Before any new append is acknowledged: a power cut would bring the flag back, and the next start
            # would cut what was acknowledged since.
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
        """Carry out the decision of `core.files.recovery`. What is kept is on stable storage afterwards."""
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
        """Store a lower bound of what is synced. A failure is only logged: the bound is merely lower."""
        try:  # not `log_errors`, for speed: this runs with every sync
            self._folders[directory].marks.write(mark, durable=mark.poisoned or mark.damaged)
        except OSError as error:
            logger.warning("mark of %s/%s: %s", directory, mark.name, error)


def _lost_or_uncut(durable: int, error: OSError) -> RecoveredObject:
    """Return the state of an object that could not be made durable: lost, or for want of space only
    unavailable.
    """
    # Some file systems need new space even for bytes that are overwritten in place.
    found = lost(durable)
    return found.uncut(1) if failure_of(error) is v.DiskFailure.NO_SPACE else found


# --- The effects -------------------------------------------------------------------------------------------


class _NotRegisteredError(OSError):
    """There was no space to register a directory whose folder and objects are durable."""


class Storage(DirectoryLoader):
    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._reported_no_space = False
        self._server_id, self._is_new = NO_ID, False
        self._log: LogFiles | None = None
        self.halted = False
        """A write or sync failed whose bytes the group log has: nothing is synced at the end."""
        self.timing: Callable[[], AbstractContextManager[None]] = nullcontext
        """Surrounds each sync of an object or of the log, in the thread that makes it."""

    def perform(self, effect: v.Effect) -> v.Event | None:
        """Carry out an effect that a thread performs as a whole. Return the event that reports it."""
        method: Callable[[Storage, Any], v.Event | None] = _METHODS[type(effect)]
        return method(self, effect)

    # Start and stop

    def start(self, fresh_id: bytes) -> tuple[bytes, bytes, set[str]]:
        """Return the server id, the store record (or b"") and the names of the directories. A new one gets
        `fresh_id`. Raises CorruptDataError if this is not the complete data of one server, LocalProtocolError
        if a newer program wrote it.
        """
        try:
            return self._start(fresh_id)
        except BaseException:
            self.register.close()
            raise

    def _start(self, fresh_id: bytes) -> tuple[bytes, bytes, set[str]]:
        identity = read_file(self._disk, "identity")
        records.check_format(identity)
        if identity is None:
            identity = self._begin(fresh_id)
        self._server_id = records.decode_identity(identity, "identity")
        check_folder_of_objects(self._disk)
        # A killed server may have left an identity or a record that is not durable.
        self._disk.sync_folder("")
        self.register.check(self._folder_names())
        record = read_file(self._disk, "store")
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
        self.register.make_durable()
        self._is_new = True
        identity = records.encode_identity(fresh_id)
        replace_file(self._disk, "", "identity", identity)
        return identity

    def add_stamp(self, fresh: bytes) -> StampFiles:
        """Give the disk a new stamp for this start; return the files `stamps` and `witnessed`. fresh: 16
        random bytes. Raises CorruptDataError, OSError.
        """
        stamps = read_file(self._disk, STAMPS)
        witnessed = read_file(self._disk, WITNESSED)
        history = history_of(stamps, witnessed)
        if stamps is None and read_file(self._disk, "store") is not None:
            logger.info("%s and %s are missing: %s", STAMPS, WITNESSED, NO_STAMPS)
        history = history.keyed(fresh, is_new=self._is_new)
        if witnessed is not None:
            decode_witnesses(witnessed)
        grown = encode_history(history.made(self._server_id, fresh))
        try:
            replace_file(self._disk, "", STAMPS, grown)
        except OSError as error:
            # A full disk: the start goes on, because every stamp that another member knows is still there.
            logger.warning("cannot store a stamp for this start: %s", error)
            grown = encode_history(history)
        return StampFiles(grown, witnessed or b"")

    def store_stamps(self, effect: v.WriteStamps) -> v.EffectDone:
        return self._done(effect, effect.name, lambda: replace_file(self._disk, "", effect.name, effect.data))

    def _done(self, effect: v.Effect, what: str, work: Callable[[], None]) -> v.EffectDone:
        """Do the work of an effect. Return the event that reports it."""
        try:
            work()
        except OSError as error:
            logger.error("%s: %s", what, error)
            return v.EffectDone(effect, failure_of(error))
        return v.EffectDone(effect, v.DiskFailure.NONE)

    def directory_names(self) -> set[str]:
        """Return the names of the directories, also of those that were lost."""
        return self._folder_names() | self.register.names

    def _folder_names(self) -> set[str]:
        return {name for name in self._disk.names(OBJECTS) or [] if is_name(name)}

    def damaged_among(self, directories: set[str]) -> set[str]:
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
        return {name: stored_usage(self._disk, f"{OBJECTS}/{name}") for name in directories}

    def stop(self) -> None:
        """Sync and close everything, marks last. Errors are only logged: no guarantee depends on it."""
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
            try:
                self.replay_log()
            except (CorruptDataError, OSError) as error:
                # The log stays in use: the next start replays it, or is refused for the same reason.
                logger.error("the group log is not replayed at the stop: %s", error)

    def abandon(self) -> None:
        for directory in list(self._folders):
            self.forget(directory)
        self.register.close()
        if self._log is not None:
            self._log.close()

    # The group log

    def start_log(self, fresh_key: bytes, slot_bytes: int) -> LogTail | None:
        """Replay the group log and begin a new part of it. None, with a warning, if there is no space for a
        log. Raises CorruptDataError, OSError; `abandon` closes what is open then.
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
        # Before anything is answered: a later start takes a record that `seen` names and that is missing for
        # damage. Without it, the loss of the newest records would look like a torn end of the log.
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

    def store_claim(self, effect: v.WriteClaim | v.FileClaim) -> v.EffectDone:
        directory, claim = effect

        def work() -> None:
            self._make_folder(directory)
            replace_file(self._disk, f"{OBJECTS}/{directory}", ".claim", records.encode_claim(claim))
            self._folder_durable(directory)
            # Before the claim is answered: a folder that is lost later must not look like a directory that
            # nobody has claimed yet, in which an old writer could continue.
            self.register.add(directory, claim.epoch)

        return self._done(effect, f"claim of {directory}", work)

    def store_record(self, effect: v.WriteStoreRecord) -> v.EffectDone:
        return self._done(
            effect, "store record", lambda: replace_file(self._disk, "", "store", effect.record)
        )

    def why_gone(self) -> str:
        """Why what the server needs is not where it was opened; '' while all is. A failure proves nothing,
        and is logged.
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
                    # Counts as a write that no sync covers, so the file stays open: the kernel would report
                    # its loss to no later handle.
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
        """Remove what is on disk of a refused write. Whether that worked, also across a power cut."""
        try:
            if effect.create:
                self._disk.remove(f"{OBJECTS}/{effect.directory}/{effect.name}")
                self._disk.sync_folder(f"{OBJECTS}/{effect.directory}")
            else:
                # Synced before anything else is written there: the disk could hold a mixture of two writes,
                # which recovery does not expect from a crash (row D).
                self._disk.cut(file.handle, effect.position)
                self._files.sync(file)
        except OSError as error:
            logger.error("write of %s/%s cannot be undone: %s", effect.directory, effect.name, error)
            return False
        return True

    def sync(self, effect: v.Sync) -> v.DiskFailure:
        """Put an object on stable storage; with `entry` also its directory entry and each ancestor.
        TEMPORARY: it may be retried, because it was not attempted, or only the directory could not be
        registered.
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

    def make_directory(self, effect: v.MakeDirectory) -> v.EffectDone:
        directory = effect.directory

        def work() -> None:
            if self.register.is_lost(directory):
                raise OSError(errno.EIO, "the directory was lost")
            self._disk.make_folder(f"{OBJECTS}/{directory}")
            self._disk.sync_folder(OBJECTS)  # first: a registered directory without a folder counts as lost
            self.register.add(directory)

        return self._done(effect, f"directory {directory}", work)

    def remove(self, effect: v.RemoveObject) -> v.Removed:
        session, request_id, directory, name, durable, damaged = effect
        folder = f"{OBJECTS}/{directory}"
        mark = ObjectMark(name, durable, damaged=damaged)
        ending = remove_object(self._disk, self._folders[directory].marks, folder, mark)
        # Afterwards: a reader may open the file as long as it has its name, and a new object must not get it.
        self._files.forget(f"{folder}/{name}")
        return v.Removed(session, request_id, directory, name, ending)

    # New copies of objects: see `side_files`

    def write_repair(self, effect: v.WriteRepair) -> v.EffectDone:
        def work() -> None:
            if effect.create:
                self._make_folder(effect.directory)
            write_copy(self._disk, self._files, effect)

        return self._done(effect, f"new copy of {effect.directory}/{effect.name}", work)

    def install_repair(self, effect: v.InstallRepair) -> v.RepairInstalled:
        found = self._installed(effect)
        return v.RepairInstalled(effect.session, effect.directory, effect.name, found)

    def _installed(self, effect: v.InstallRepair) -> RecoveredObject | None:
        directory, name = effect.directory, effect.name
        new = ObjectMark(name, effect.goal_size)
        try:
            sync_copy(self._files, effect)  # before the exchange: from there on it is the only copy here
            if effect.exists:
                # If a crash leaves neither copy, the mark shows that the object existed and is lost.
                old = ObjectMark(name, effect.durable, effect.poisoned, effect.damaged)
                self._folders[directory].marks.write(old, durable=True)
                self._disk.sync_folder(f"{OBJECTS}/{directory}")
            try:
                exchange_copies(self._disk, effect)
            finally:  # as in `remove`
                self._files.forget(f"{OBJECTS}/{directory}/{name}")
            self._folder_durable(directory)
            self._folders[directory].marks.write(new, durable=True)
            # The object is judged as a start would judge it: only what is really there counts.
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
            drop_copy(self._disk, self._files, effect)

    # Shared helpers

    def _make_folder(self, directory: str) -> None:
        folder = self._folders[directory]
        if not folder.durable:
            self._disk.make_folder(f"{OBJECTS}/{directory}")

    def _folder_durable(self, directory: str) -> None:
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


_METHODS: Final[dict[type[Any], Callable[[Storage, Any], v.Event | None]]] = {
    v.LoadDirectory: lambda storage, effect: storage.load(effect.directory),
    v.LoadObject: lambda storage, effect: storage.load_object(*effect),
    v.MakeDirectory: lambda storage, effect: storage.make_directory(effect),
    v.WriteClaim: lambda storage, effect: storage.store_claim(effect),
    v.FileClaim: lambda storage, effect: storage.store_claim(effect),
    v.WriteStoreRecord: lambda storage, effect: storage.store_record(effect),
    v.WriteStamps: lambda storage, effect: storage.store_stamps(effect),
    v.ReadData: lambda storage, effect: storage.read(effect),
    v.ReadDigest: lambda storage, effect: storage.digest(effect),
    v.WriteRepair: lambda storage, effect: storage.write_repair(effect),
    v.InstallRepair: lambda storage, effect: storage.install_repair(effect),
    v.DropRepair: lambda storage, effect: storage.drop_repair(effect),
    v.RemoveObject: lambda storage, effect: storage.remove(effect),
}
"""Effect -> its method, looked up when it is called."""
