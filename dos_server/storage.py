"""Objects, claims, marks and records on a disk: what the effects of the core mean in files.

    identity         the server's id
    store            the store record, when it is in one
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
from dataclasses import dataclass

from dos_protocol.errors import CorruptDataError
from dos_protocol.names import is_name
from dos_protocol.store_record import decode_store_record
from dos_server import removal, side_files, small_files
from dos_server.core import findings, records
from dos_server.core import vocabulary as v
from dos_server.core.extent import object_seed
from dos_server.core.layout import OBJECTS
from dos_server.core.records import NO_CLAIM, Claim, Mark
from dos_server.core.recovery import NO_ROOM, Decision
from dos_server.core.recovery_scan import Found, judge, lost
from dos_server.disk import Disk, FreeSpace
from dos_server.marks import Marks, says_damaged
from dos_server.stored_reads import StoredReads
from dos_server.troubles import noted, says_nothing_of_the_disk, trouble_of

log = logging.getLogger("dos.server")


@dataclass
class _Folder:
    """What is known of a loaded directory: its marks, and whether its own entry is durable."""

    marks: Marks
    durable: bool


class Storage(StoredReads):
    """See the module."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._folders: dict[str, _Folder] = {}
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

    def forget(self, directory: str) -> None:
        """Close the files of a directory that is not in use."""
        folder = self._folders.pop(directory, None)
        self._files.forget_folder(f"{OBJECTS}/{directory}")
        if folder is not None:
            folder.marks.close()

    # Directories

    def load(self, directory: str) -> v.DirectoryLoaded:
        """Read a directory and bring each object to a state that is on stable storage.

        Changes nothing twice.
        """
        path = f"{OBJECTS}/{directory}"
        try:
            names = self._disk.names(path)
            folder = self._folders[directory] = _Folder(Marks(self._disk, path), names is not None)
            if names is None:
                return v.DirectoryLoaded(directory, exists=False, claim=NO_CLAIM, objects={})
            # a killed server leaves names that can be read and are not durable: no mark may outlive its name
            self._disk.sync_folder(OBJECTS)
            self._disk.sync_folder(path)
            data = small_files.read(self._disk, f"{path}/.claim")
            claim = NO_CLAIM if data is None else records.decode_claim(data, f"{directory}/.claim")
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
                log.error(
                    "object %s/%s is gone, %d bytes of it were synced", directory, name, marks[name].synced
                )
                objects[name] = lost(marks[name].synced)
            epoch_max = max((found.epoch_max for found in objects.values()), default=0)
            records.check_claim(claim, f"{directory}/.claim", epoch_max)
        except (OSError, CorruptDataError) as error:
            log.error("directory %s cannot be used: %s", directory, error)
            self.forget(directory)
            return v.DirectoryLoaded(
                directory, exists=True, claim=NO_CLAIM, objects={}, problem=f"{directory}: {error}"
            )
        return v.DirectoryLoaded(directory, exists=True, claim=claim, objects=objects)

    def load_object(self, directory: str, name: str) -> v.ObjectLoaded:
        """Judge an object of a loaded directory anew, by its mark as it is now."""
        try:
            mark = self._folders[directory].marks.of(name)
        except OSError as error:
            log.error("mark of %s/%s: %s", directory, name, error)
            return v.ObjectLoaded(directory, name, None)
        return v.ObjectLoaded(directory, name, self._load_object(directory, name, mark))

    def _load_object(self, directory: str, name: str, mark: Mark | None) -> Found:
        durable = mark.synced if mark is not None else 0
        try:
            with self._files.use(f"{OBJECTS}/{directory}/{name}") as file:
                found, size = self._judge(directory, name, file.handle, mark)
                durable = max(durable, found.size)  # all of that may have been acknowledged
                if not found.corrupt:
                    found = self._bring_in_order(directory, name, file.handle, found, size, mark)
        except OSError as error:
            log.error("object %s/%s cannot be used: %s", directory, name, error)
            return _without(durable, error)
        if found.letter == NO_ROOM:
            return found
        if found.corrupt:
            poisoned = mark is not None and mark.poisoned
            durable = max(found.durable, found.size)
            self.set_mark(directory, Mark(name, durable, poisoned, damaged=True, root=found.root))
            return found
        if mark is not None and mark.poisoned:
            return self._forgive(directory, name, found)
        said = Mark(name, found.size, root=found.root)
        if mark != said:
            self.set_mark(directory, said)
        return found

    def _forgive(self, directory: str, name: str, found: Found) -> Found:
        """Take the word "poisoned" off a mark, durably, before anything new is acknowledged.

        Or a power cut brings it back, and the next start cuts what was acknowledged since."""
        try:
            self._folders[directory].marks.write(Mark(name, found.size, root=found.root), durable=True)
        except OSError as error:
            log.error("mark of %s/%s: %s", directory, name, error)
            return _without(found.size, error)
        return found

    def _judge(self, directory: str, name: str, handle: int, mark: Mark | None) -> tuple[Found, int]:
        """What the table of `core.recovery` says, and the bytes of the file."""
        disk = self._disk
        seed = object_seed(directory, name)
        size = disk.size(handle)
        found = judge(lambda position, count: disk.read(handle, position, count), size, seed, mark)
        if found.decision is not Decision.KEEP:
            log.warning("%s", findings.logged(f"{directory}/{name}", found, size))
        return found, size

    def _bring_in_order(
        self, directory: str, name: str, handle: int, found: Found, size: int, mark: Mark | None
    ) -> Found:
        """Carry the table's decision out; what is kept is on stable storage then."""
        disk = self._disk
        try:
            side_files.cut_tail(disk, directory, name, handle, found, size)
        except OSError as error:
            if trouble_of(error) is not v.Trouble.NO_SPACE:
                raise
            log.error("tail of %s/%s: no space to copy it aside; free some, then it is done", directory, name)
            found = found.uncut(size)
        if found.decision is not Decision.KEEP or mark is None or mark.synced < found.size:
            side_files.make_durable(disk, handle, found, mark.synced if mark is not None else 0)
        return found

    def store_claim(self, directory: str, claim: Claim) -> v.Trouble:
        """Put a claim on stable storage, with the folder and its entry."""
        try:
            self._make_folder(directory)
            small_files.replace(self._disk, f"{OBJECTS}/{directory}", ".claim", records.encode_claim(claim))
            self._folder_durable(directory)
        except OSError as error:
            log.error("claim of %s: %s", directory, error)
            return trouble_of(error)
        return v.Trouble.NONE

    def store_record(self, record: bytes) -> v.Trouble:
        """Put the store record on stable storage."""
        try:
            small_files.replace(self._disk, "", "store", record)
        except OSError as error:
            log.error("store record: %s", error)
            return trouble_of(error)
        return v.Trouble.NONE

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

    def write(self, effect: v.Write) -> v.Trouble:
        """Write extents, whole or not at all: on a full disk the file is cut back.

        A file that cannot be opened, for want of descriptors, say, is as it was: that is no space too.
        """
        directory, name, position, buffers, create = effect
        path, opened = f"{OBJECTS}/{directory}/{name}", False
        try:
            if create:
                self._make_folder(directory)
            with self._files.use(path, create=create) as file:
                wrote, opened = 1, True
                try:
                    self._disk.write(file.handle, position, buffers)
                except OSError as error:
                    if trouble_of(error) is v.Trouble.NO_SPACE:
                        self._disk.cut(file.handle, position)
                        if create:
                            self._disk.remove(path)
                        wrote = 0
                    raise
                finally:
                    file.writes += wrote
        except OSError as error:
            log.error("write of %s/%s: %s", directory, name, error)
            if not opened and says_nothing_of_the_disk(error):
                return v.Trouble.NO_SPACE
            if create and trouble_of(error) is v.Trouble.NO_SPACE:
                self._files.forget(path)
            return trouble_of(error)
        return v.Trouble.NONE

    def sync(self, effect: v.Sync) -> v.Trouble:
        """Put an object on stable storage.

        With `entry` its directory entry and each ancestor not yet durable.
        """
        try:
            path = f"{OBJECTS}/{effect.directory}/{effect.name}"
            with self._files.use(path) as file:
                self._files.sync(file)
                if effect.entry:
                    self._disk.sync_folder(f"{OBJECTS}/{effect.directory}")
                    self._folder_durable(effect.directory)
                if not self._disk.is_named(file.handle, path):
                    raise FileNotFoundError(errno.ENOENT, "its file was removed or replaced", path)
        except OSError as error:
            log.error("sync of %s/%s: %s", effect.directory, effect.name, error)
            return v.Trouble.FAILED
        return v.Trouble.NONE

    def set_mark(self, directory: str, mark: Mark) -> None:
        """Note a lower bound of what is synced.

        A failure is only noted: a missing mark is a lower bound too.
        """
        try:  # and no `noted`: this is done with every sync
            self._folders[directory].marks.write(mark, durable=mark.poisoned or mark.damaged)
        except OSError as error:
            log.warning("mark of %s/%s: %s", directory, mark.name, error)

    def make_directory(self, directory: str) -> v.Trouble:
        """Make a directory, if it is not there, and put its entry on stable storage."""
        try:
            self._disk.make_folder(f"{OBJECTS}/{directory}")
            self._disk.sync_folder(OBJECTS)
        except OSError as error:
            log.error("directory %s: %s", directory, error)
            return trouble_of(error)
        return v.Trouble.NONE

    def remove(self, effect: v.RemoveObject) -> v.Removed:
        """Take a settled object away, durably; a crash leaves the whole object or nothing."""
        session, request_id, directory, name, durable, damaged = effect
        folder = f"{OBJECTS}/{directory}"
        self._files.forget(f"{folder}/{name}")
        mark = Mark(name, durable, damaged=damaged)
        ending = removal.remove(self._disk, self._folders[directory].marks, folder, mark)
        return v.Removed(session, request_id, directory, name, ending)

    # New copies of objects: see `side_files`

    def write_mend(self, effect: v.WriteMend) -> v.Trouble:
        """Write a part of a new copy into its own file."""
        try:
            if effect.create:
                self._make_folder(effect.directory)
            side_files.write(self._disk, self._files, effect)
        except OSError as error:
            log.error("new copy of %s/%s: %s", effect.directory, effect.name, error)
            return trouble_of(error)
        return v.Trouble.NONE

    def install_mend(self, effect: v.InstallMend) -> Found | None:
        """The new copy on stable storage, the old one aside, the new one in its place. None: it failed."""
        directory, name = effect.directory, effect.name
        new = Mark(name, effect.goal_size)
        try:
            side_files.sync(self._files, effect)
            if effect.exists:
                # should a crash leave neither copy, this one is known to be lost, not never to have been
                old = Mark(name, effect.durable, effect.poisoned, effect.damaged)
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

    def drop_mend(self, effect: v.DropMend) -> None:
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


def _without(durable: int, error: OSError) -> Found:
    """What an object is that could not be brought to a durable state: nothing, until there is room if that is
    all it wants, as some file systems do also for bytes that are written again in their place."""
    found = lost(durable)
    return found.uncut(1) if trouble_of(error) is v.Trouble.NO_SPACE else found
