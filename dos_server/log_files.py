"""The files of the group log, and the start of a server with it.

`DATA/log/0` to `3` are its slots. They are written full of zeros and synced before they are used, and never
renamed or cut: then the sync of a record writes no metadata of the file system. Methods raise OSError; an
error of `append` ends the server, because a sync of the log that failed is never retried.

A start:

    1  read every slot, find the live records (`core.files.log_replay`)
    2  sync the last record again: nothing may act on what a power cut could still take
    3  carry out the entries of each object and claim
    4  put everything that was touched on stable storage, then marks that require it
    5  count the start in `life`, and sync a first record in a free slot: older segments are obsolete

A crash in any step: the next start does the same again.
"""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from dos_protocol.digests import Buffer
from dos_protocol.errors import CorruptDataError
from dos_server import side_files
from dos_server.core.files.extent import HeaderFault, decode_header, object_seed
from dos_server.core.files.log_record import HEADER_BYTES, LogEntry, encode_entry, log_seed
from dos_server.core.files.log_replay import (
    NO_FILE,
    FileFacts,
    FoundRecord,
    Life,
    LogState,
    LogSurvey,
    ObjectPlan,
    RecordPlace,
    ReplayEntry,
    claim_to_store,
    decode_life,
    decode_seen,
    encode_life,
    plan_object,
    scan_slot,
    survey,
    unused_numbers,
)
from dos_server.core.files.records import (
    NO_CLAIM,
    OBJECTS,
    REPAIR,
    ObjectMark,
    decode_claim,
    decode_identity,
    encode_identity,
    is_log_in_use,
    torn_name,
)
from dos_server.core.group_log import LogTail, Segments
from dos_server.core.tables import reserve_of
from dos_server.core.vocabulary import DiskFailure
from dos_server.disk import Disk, FreeSpace, failure_of, read_file, replace_file
from dos_server.limits import extent_header_bytes, log_align_bytes, log_slots
from dos_server.marks import (
    DirectoryRegister,
    ObjectMarks,
    check_folder_of_objects,
    check_register,
    finish_removal,
)

FOLDER: Final = "log"
_FILL_BYTES: Final = 1 << 20


class LogFiles:
    """The open files of the log of one data directory. One thread at a time. `slot_bytes`: the size of new
    slots.
    """

    def __init__(self, disk: Disk, slot_bytes: int = 0) -> None:
        self._disk = disk
        self.slot_bytes = slot_bytes
        self._slots: list[int] = []
        self._seen: int | None = None

    def make(self) -> None:
        """Make the slots that are missing or have another size, full of zeros, and open all. Durable."""
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
            # After a full disk the slots that were made must take no space.
            for handle in made:
                with contextlib.suppress(OSError):
                    self._disk.cut(handle, 0)
            raise
        self._seen = self._disk.open(f"{FOLDER}/seen", create=True)
        # Before the first record: a power cut could take the name of a slot with what was acknowledged.
        self._disk.sync_folder(FOLDER)

    def _fill(self, handle: int) -> None:
        self._disk.cut(handle, 0)
        for position in range(0, self.slot_bytes, _FILL_BYTES):
            zeros = bytes(min(_FILL_BYTES, self.slot_bytes - position))
            self._disk.write(handle, position, [zeros])
        self._disk.sync(handle)

    def missing_bytes(self) -> int:
        return sum(max(0, self.slot_bytes - self._size_of(slot)) for slot in range(log_slots))

    def _size_of(self, slot: int) -> int:
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
        for handle in (*self._slots, *([] if self._seen is None else [self._seen])):
            self._disk.close(handle)
        self._slots, self._seen = [], None

    def missing(self) -> str:
        """Return a file that is not where it was opened: nothing that is written to it would be found; ''."""
        files = [(str(slot), handle) for slot, handle in enumerate(self._slots)]
        lost = (name for name, handle in files if not self._disk.is_named(handle, f"{FOLDER}/{name}"))
        return next((f"{FOLDER}/{name}" for name in lost), "")

    def read(self, slot: int, position: int, count: int) -> bytes:
        return self._disk.read(self._slots[slot], position, count)

    def scan(self, slot: int, seed: int) -> Iterator[FoundRecord]:
        return scan_slot(partial(self.read, slot), slot, self._disk.size(self._slots[slot]), seed)

    def content(self, found: FoundRecord) -> bytes:
        at = found.place.offset + HEADER_BYTES + found.header.table_bytes
        return self.read(found.place.slot, at, found.header.content_bytes)

    def append(self, place: RecordPlace, record: Buffer) -> None:
        self._disk.write(self._slots[place.slot], place.offset, [record])
        self._disk.sync(self._slots[place.slot])

    def append_again(self, found: FoundRecord) -> None:
        """Put a record that was found on stable storage: it may be in the cache only."""
        whole = self.read(found.place.slot, found.place.offset, found.header.size)
        self.append(found.place, whole)

    def see(self, head: Buffer) -> None:
        """Note the header and the table of a record that is synced. Not synced itself."""
        assert self._seen is not None
        self._disk.write(self._seen, 0, [head])

    def seen(self) -> bytes | None:
        return read_file(self._disk, f"{FOLDER}/seen")


def slots_used(found: Sequence[FoundRecord], first_sequence: int, start: int) -> frozenset[int]:
    live = [one for one in found if one.header.start == start and one.header.sequence >= first_sequence]
    return frozenset(one.place.slot for one in live)


# --- The start ---------------------------------------------------------------------------------------------


logger = logging.getLogger("dos.server")
LIFE: Final = "life"
_COPY_BYTES: Final = 1 << 20


class LogContent(NamedTuple):
    slot: int
    position: int
    bytes: int


class NoLogSpaceError(Exception):
    """There is no space for the slots of a log that is not in use."""


def start_log(disk: Disk, fresh_key: bytes, files: LogFiles, free: FreeSpace) -> LogTail:
    """Replay the log of a data directory and begin a new part of it. `free`: of which new slots leave as much
    as they take, and the reserve. Raises NoLogSpaceError, OSError, and CorruptDataError if the log misses
    acknowledged bytes and nobody could tell of which objects.
    """
    life = _life(disk, fresh_key)
    in_use = life.state is LogState.IN_USE
    seed = log_seed(life.key)
    if in_use:
        files.open()
    else:
        needed = 2 * files.missing_bytes() + reserve_of(free.total_bytes)
        if free.total_bytes and free.free_bytes < needed:
            raise NoLogSpaceError(f"{free.free_bytes} bytes are free, {needed} are needed to begin one")
        try:
            files.make()
        except OSError as error:
            if failure_of(error) is DiskFailure.NO_SPACE:
                raise NoLogSpaceError(str(error)) from error
            raise
    found = [one for slot in range(log_slots) for one in files.scan(slot, seed)]
    starts, busy = life.starts, frozenset[int]()
    if in_use:
        result = _replay(disk, files, found, life)
        next_segment, next_sequence = result.next_segment, result.next_sequence
        if result.last is not None:
            busy = slots_used(found, result.records[0].sequence, result.last.header.start)
    else:  # what the slots hold is filed, or was never used: only its numbers count
        starts = max([starts, *(one.header.start for one in found)])
        next_segment, next_sequence = unused_numbers([one.header for one in found])
    now = Life(starts + 1, LogState.IN_USE, life.key)
    if in_use:  # before the record: one of a later start than `life` has is refused
        replace_file(disk, "", LIFE, encode_life(now))
    else:
        replace_file(disk, "", LIFE, encode_life(life))  # a marked identity without `life` is refused
        _mark_identity(disk, log_in_use=True)
    segments = Segments(log_slots, files.slot_bytes, next_segment, busy)
    log = LogTail(segments, now.starts, seed, next_sequence)
    append_record(log, files, [], [], 0.0)
    if not in_use:  # after the record: a log in use without any record is refused
        replace_file(disk, "", LIFE, encode_life(now))
    return log


def end_log(disk: Disk) -> None:
    """Replay the log if it is in use; afterwards everything is in the files of the objects. Raises as
    `start_log`.
    """
    life = _life(disk, b"")
    if life.state is not LogState.IN_USE:
        _mark_identity(disk, log_in_use=False)  # the start of the log, or its end, was interrupted
        return
    files = LogFiles(disk)
    files.open()
    try:
        found = [one for slot in range(log_slots) for one in files.scan(slot, log_seed(life.key))]
        _replay(disk, files, found, life)
    finally:
        files.close()
    replace_file(disk, "", LIFE, encode_life(life._replace(state=LogState.CLEAN)))
    _mark_identity(disk, log_in_use=False)


def _mark_identity(disk: Disk, *, log_in_use: bool) -> None:
    """Let releases that do not know the log refuse the directory while the log is in use."""
    data = read_file(disk, "identity")
    if data is not None and is_log_in_use(data) is not log_in_use:
        server_id = decode_identity(data, "identity")
        replace_file(disk, "", "identity", encode_identity(server_id, log_in_use=log_in_use))


def _life(disk: Disk, fresh_key: bytes) -> Life:
    data = read_file(disk, LIFE)
    if data is not None:
        return decode_life(data)
    identity = read_file(disk, "identity")
    if identity is not None and is_log_in_use(identity):
        raise CorruptDataError(LIFE, 0, "the state of the group log", "no file", "replace the server")
    return Life(0, LogState.NO_LOG, fresh_key)


def _replay(disk: Disk, files: LogFiles, found: list[FoundRecord], life: Life) -> LogSurvey:
    result = survey(found, decode_seen(files.seen(), log_seed(life.key)), life.starts)
    if not result.records:
        raise CorruptDataError("the group log", 0, "a record", "none", "replace the server")
    if result.last is not None:
        # A killed server may have left it in the cache only. What is replayed from it is acknowledged, and a
        # power cut must not take it back.
        files.append_again(result.last)
    for record in result.records:
        if record.place is None:
            logger.error("record %d of the group log is damaged (case %s)", record.sequence, record.letter)
    _Replay(disk, files, found).run(result)
    return result


def append_record(
    log: LogTail, files: LogFiles, entries: Sequence[LogEntry], contents: Sequence[Buffer], now: float
) -> None:
    slot, offset, record, seen_bytes, first_segment = log.next_record(
        entries, list(map(encode_entry, entries)), contents, now, reserved=True
    )
    files.append(RecordPlace(slot, offset), record)
    files.see(memoryview(record)[:seen_bytes])
    log.segments.synced(first_segment)


class _Replay:
    def __init__(self, disk: Disk, files: LogFiles, found: list[FoundRecord]) -> None:
        self._disk = disk
        self._files = files
        self._found = {one.place: one for one in found}

    def run(self, result: LogSurvey) -> None:
        directories: dict[str, dict[str, list[ReplayEntry]]] = defaultdict(lambda: defaultdict(list))
        for record in result.records:
            found = self._found[record.place] if record.place is not None else None
            at = found.place.offset + HEADER_BYTES + found.header.table_bytes if found is not None else 0
            for entry in record.entries:
                content = None
                if found is not None:
                    content = LogContent(found.place.slot, at, entry.content_bytes)
                    at += entry.content_bytes
                lost = found is None and entry.content_bytes > 0
                directories[entry.directory][entry.name].append(ReplayEntry(entry, content, lost))
        check_folder_of_objects(self._disk)
        check_register(self._disk)
        register = DirectoryRegister(self._disk)
        try:
            folders = set(self._disk.names(OBJECTS) or ())
            for gone in register.names - folders:  # what the log has would be a part of it only
                newest = claim_to_store(directories.pop(gone, {}).get("", []), register.epoch_of(gone))
                if newest is not None:  # `dos fsck --raise-claims` has to go above it
                    register.add(gone, newest.entry.end)
            for directory in directories:
                self._disk.make_folder(f"{OBJECTS}/{directory}")
            # The folders first: a registered directory without a folder counts as lost.
            self._disk.sync_folder(OBJECTS)
            for directory in directories:
                register.add(directory)
            for directory, objects in directories.items():
                self._replay_claim(register, directory, objects.pop("", []))
            register.make_durable()
        finally:
            register.close()
        for directory, objects in directories.items():
            self._replay_objects(directory, objects)

    def _replay_claim(self, register: DirectoryRegister, directory: str, entries: list[ReplayEntry]) -> None:
        path = f"{OBJECTS}/{directory}/.claim"
        data = read_file(self._disk, path)
        try:
            held = decode_claim(data, path) if data is not None else NO_CLAIM
        except CorruptDataError as error:  # the directory is refused when it is loaded
            logger.error("%s is not repaired from the log: %s", path, error)
            return
        claim = claim_to_store(entries, held.epoch)
        if claim is None:
            return
        if claim.lost:
            raise CorruptDataError(
                path, 0, f"the claim of epoch {claim.entry.end}", "damage", "replace the server"
            )
        replace_file(self._disk, f"{OBJECTS}/{directory}", ".claim", self._content(claim.content))
        register.add(directory, claim.entry.end)  # before the log forgets it: see `Storage.store_claim`

    def _replay_objects(self, directory: str, objects: Mapping[str, list[ReplayEntry]]) -> None:
        folder = f"{OBJECTS}/{directory}"
        marks = ObjectMarks(self._disk, folder)
        try:
            held = marks.load()
            new = []
            for name, entries in objects.items():
                old = held.get(name)
                plan = plan_object(entries, self._facts(directory, name, old))
                if plan.remove:
                    finish_removal(self._disk, marks, folder, name)
                    old = None
                if plan.synced is not None:
                    damaged = not self._carry_out(directory, name, plan)
                    new.append(_mark(name, plan, old, damaged=damaged))
            self._disk.sync_folder(folder)
            for mark in new:  # after everything that they require
                marks.write(mark, durable=mark is new[-1])
        finally:
            marks.close()

    def _facts(self, directory: str, name: str, mark: ObjectMark | None) -> FileFacts:
        named = mark.root if mark is not None and not mark.removed else 0
        try:
            handle = self._disk.open(f"{OBJECTS}/{directory}/{name}", create=False)
        except FileNotFoundError:
            return NO_FILE
        try:
            size = self._disk.size(handle)
            try:
                head = self._disk.read(handle, 0, extent_header_bytes)
            except OSError as error:
                if failure_of(error) is not DiskFailure.FAILED:
                    raise
                head = b""  # a sector that cannot be read
        finally:
            self._disk.close(handle)
        if len(head) < extent_header_bytes:
            return FileFacts(True, named, size)  # noqa: FBT003
        header = decode_header(head, object_seed(directory, name))
        return FileFacts(True, named if isinstance(header, HeaderFault) else header.link, size)  # noqa: FBT003

    def _carry_out(self, directory: str, name: str, plan: ObjectPlan) -> bool:
        """Write and sync what the log has of an object. False: it is damaged, and nothing needs the log."""
        if plan.damage:
            logger.error("object %s/%s: %s", directory, name, plan.damage)
            return False
        try:
            self._write(directory, name, plan)
        except OSError as error:
            if failure_of(error) is not DiskFailure.FAILED:
                raise  # the whole start is tried again
            logger.error("object %s/%s, written from the log: %s", directory, name, error)
            return self._write_anew(directory, name, plan)
        return True

    def _write_anew(self, directory: str, name: str, plan: ObjectPlan) -> bool:
        """Write a new file with what the old one has, and the log's entries. False: the old one cannot be
        read.
        """
        folder, new = f"{OBJECTS}/{directory}", f"{REPAIR}{name}"
        # A sync of a file that failed is never tried again: the kernel has dropped the pages. The log still
        # has the bytes.
        copy = self._disk.open(f"{folder}/{new}", create=True)
        try:
            self._disk.cut(copy, 0)
            if not self._copied(f"{folder}/{name}", copy):
                return False
            for position, content in plan.writes:
                self._disk.write(copy, position, [self._content(content)])
            self._disk.sync(copy)  # before the rename: the old file is the only other one with these bytes
        finally:
            self._disk.close(copy)
        self._disk.rename(folder, new, name)
        return True

    def _copied(self, path: str, copy: int) -> bool:
        old = self._disk.open(path, create=False)
        try:
            for position in range(0, self._disk.size(old), _COPY_BYTES):
                try:
                    data = self._disk.read(old, position, _COPY_BYTES)
                except OSError as error:
                    if failure_of(error) is not DiskFailure.FAILED:
                        raise
                    logger.error("%s cannot be read: %s", path, error)
                    return False
                self._disk.write(copy, position, [data])
        finally:
            self._disk.close(old)
        return True

    def _write(self, directory: str, name: str, plan: ObjectPlan) -> None:
        folder = f"{OBJECTS}/{directory}"
        if plan.aside:
            side_files.put_aside(self._disk, folder, name, torn_name(name, 0))
        try:
            handle = self._disk.open(f"{folder}/{name}", create=plan.create)
        except FileNotFoundError:
            return  # its lost entries were all that it had: the mark says that it is missing
        try:
            for position, content in plan.writes:
                self._disk.write(handle, position, [self._content(content)])
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)

    def _content(self, content: object) -> bytes:
        assert isinstance(content, LogContent)
        return self._files.read(*content)


def _mark(name: str, plan: ObjectPlan, old: ObjectMark | None, *, damaged: bool) -> ObjectMark:
    assert plan.synced is not None
    if old is None or old.root not in (plan.root, 0):
        return ObjectMark(name, plan.synced, damaged=damaged, root=plan.root)
    synced = max(old.synced, plan.synced)
    return old._replace(synced=synced, damaged=old.damaged or damaged, removed=False, root=plan.root)
