"""A server reduced to what the group log has to survive: real storage, extents, marks, recovery and log
files, one operation at a time, on a disk in memory whose machine crashes at any call.

It keeps the rules of the log: bytes are logged only if everything below them is logged or synced, a removal
is logged before the mark is written, and a segment is released only when its objects are filed and their
marks are on stable storage.
"""

from random import Random

from dos_server.core import vocabulary as v
from dos_server.core.files.extent import fresh_root
from dos_server.core.files.log_record import EntryKind, LogEntry, encode_entry
from dos_server.core.files.records import OBJECTS, ClaimRecord, ObjectMark, encode_claim
from dos_server.core.group_log import LogTail
from dos_server.core.object_state import ObjectState
from dos_server.disk import FreeSpace
from dos_server.limits import log_reserved_bytes
from dos_server.log_files import LogFiles, append_record, start_log
from dos_server.memory.disk import MemoryDisk
from dos_server.storage import Storage

DIRECTORIES = ("one", "two")
NAMES = ("a", "b", "c")
SLOT_BYTES = log_reserved_bytes + 8 * 4096
Key = tuple[str, str]


class CrashError(BaseException):
    """The machine, or the process, ends here."""


class CrashingDisk(MemoryDisk):
    """Raises CrashError at the nth call from now on, and at every later one."""

    left: int | None = None

    def _called(self, method: str, what: str) -> None:
        if self.left is not None:
            if self.left <= 0:
                raise CrashError(f"{method} {what}")
            self.left -= 1
        super()._called(method, what)


class Promised:
    """What clients know. `content`: acknowledged; `maybe`: contents that an unanswered request may have
    left; None: no object.
    """

    def __init__(self) -> None:
        self.content: dict[Key, bytes | None] = {}
        self.maybe: dict[Key, list[bytes | None]] = {}
        self.epochs: dict[str, int] = {}
        self.roots = 0


class SmallServer:
    """One start of the server. `check` compares what it found with what was promised."""

    def __init__(self, disk: CrashingDisk, promised: Promised, rng: Random) -> None:
        self.disk, self.promised, self.rng = disk, promised, rng
        self.now = 0.0
        self.storage = Storage(disk)
        self.storage.start(b"s" * 16)
        self.files = LogFiles(disk, SLOT_BYTES)
        self.log: LogTail = start_log(disk, b"k" * 16, self.files, FreeSpace(0, 0))
        self.objects: dict[Key, ObjectState] = {}
        self.covered: dict[Key, int] = {}
        """Up to where each object is logged or synced."""
        self.epochs: dict[str, int] = {}
        self.in_log: set[Key] = set()
        """Objects that ever had an entry in this start: their removal is logged."""
        self.claims: dict[str, ClaimRecord] = {}
        for directory in DIRECTORIES:
            self._load(directory)

    def _load(self, directory: str) -> None:
        loaded = self.storage.load(directory)
        assert not loaded.problem, loaded.problem
        self.epochs[directory] = loaded.claim.epoch
        for name, found in loaded.objects.items():
            assert not found.corrupt, f"{directory}/{name} is damaged: row {found.letter}"
            state = ObjectState(directory, name, fresh_root=1, found=found)
            self.objects[directory, name] = state
            self.covered[directory, name] = found.size

    def check(self) -> None:
        """Nothing acknowledged is missing, and nothing is there that nobody sent."""
        promised = self.promised
        for directory, epoch in promised.epochs.items():
            assert self.epochs[directory] >= epoch, f"claim {epoch} of {directory} is lost"
        for key in {*promised.content, *promised.maybe, *self.objects}:
            content = promised.content.get(key)
            allowed = [content, *promised.maybe.get(key, [])]
            there = self._content(key)
            if there is None:
                assert None in allowed, f"{key} is gone"
            else:
                sent = any(one is not None and one.startswith(there) for one in allowed)
                enough = content is None or there.startswith(content)
                why = f"{key} has {len(there)} bytes, promised {_sizes(allowed)}"
                assert sent, why
                assert enough, why
            promised.content[key] = there
        promised.maybe.clear()

    def _content(self, key: Key) -> bytes | None:
        state = self.objects.get(key)
        if state is None:
            return None
        path = f"{OBJECTS}/{key[0]}/{key[1]}"
        handle = self.disk.open(path, create=False)
        try:
            return b"".join(payloads(self.disk.read(handle, 0, self.disk.size(handle)), state.written))
        finally:
            self.disk.close(handle)

    # Operations

    def append(self) -> None:
        """Append to some objects; one record acknowledges those that may be logged."""
        entries, contents, logged = [], [], []
        for key in self.rng.sample([(d, n) for d in DIRECTORIES for n in NAMES], self.rng.randrange(1, 4)):
            write, begin = self._write(key)
            state = self.objects[key]
            data = b"".join(bytes(one) for one in write.buffers)
            entry = LogEntry(EntryKind.EXTENTS, *key, state.root, write.position, state.written, len(data))
            if self.covered[key] == begin and self.rng.random() < 0.8:
                entries.append(entry)
                contents.append(data)
                logged.append(key)
            elif self.rng.random() < 0.7:
                self._sync(key)
                self._acknowledge(key)
        if entries and self._record(entries, contents):
            for key in logged:
                state = self.objects[key]
                self.covered[key] = state.synced = state.written
                self._acknowledge(key)

    def _write(self, key: Key) -> tuple[v.Write, int]:
        """Write to the page cache, as the shell does before anything is logged."""
        state = self.objects.get(key)
        if state is None:
            self.promised.roots += 1
            root = fresh_root(b"i" * 16, self.promised.roots)
            state = self.objects[key] = ObjectState(*key, fresh_root=root)
            self.covered[key] = 0
        payload = self.rng.randbytes(self.rng.randrange(1, 3_000))
        begin = state.written
        state.accept(payload, 1, 1)
        write = state.next_write(self.epochs[key[0]])
        assert write is not None
        before = self.promised.maybe.setdefault(key, [self.promised.content.get(key)])
        before.append((before[-1] or b"") + payload)
        assert self.storage.write(write) is v.DiskFailure.NONE
        state.wrote()
        return write, begin

    def _acknowledge(self, key: Key) -> None:
        self.promised.content[key] = self.promised.maybe[key][-1]
        self.promised.maybe[key] = [self.promised.content[key]]

    def _record(self, entries: list[LogEntry], contents: list[bytes]) -> bool:
        reserved = any(one.kind is not EntryKind.EXTENTS for one in entries)
        table_bytes = sum(len(encode_entry(one)) for one in entries)
        if not self.log.has_room(table_bytes, sum(map(len, contents)), reserved=reserved):
            return False
        append_record(self.log, self.files, entries, contents, self.now)
        for one in entries:
            self.in_log.add((one.directory, one.name))
        return True

    def _sync(self, key: Key) -> None:
        """The direct path, which also files what was logged."""
        state = self.objects[key]
        upto = state.written
        assert self.storage.sync(v.Sync(*key, entry=True)) is v.DiskFailure.NONE
        self.storage.set_mark(key[0], ObjectMark(key[1], upto, root=state.root))
        self.covered[key] = max(upto, self.covered[key])
        state.synced = max(state.synced, upto)

    def claim(self) -> None:
        """Claim a directory, through the log or directly."""
        directory = self.rng.choice(DIRECTORIES)
        claim = ClaimRecord(self.epochs[directory] + 1, self.rng.randbytes(16))
        data = encode_claim(claim)
        entry = LogEntry(EntryKind.CLAIM, directory, "", 0, 0, claim.epoch, len(data))
        if not self._record([entry], [data]):
            stored = self.storage.store_claim(v.WriteClaim(directory, claim))
            assert stored.failure is v.DiskFailure.NONE
        self.claims[directory] = claim
        self.epochs[directory] = self.promised.epochs[directory] = claim.epoch

    def remove(self) -> None:
        """Remove an object; first in the log, if that has any of its bytes."""
        if not self.objects:
            return
        key = self.rng.choice(sorted(self.objects))
        state = self.objects[key]
        maybe = self.promised.maybe.setdefault(key, [self.promised.content.get(key)])
        maybe.insert(0, None)
        if key in self.in_log:
            entry = LogEntry(EntryKind.REMOVED, *key, state.root, 0, 0, 0)
            if not self._record([entry], []):
                del maybe[0]
                return
        self._sync(key)
        ending = self.storage.remove(v.RemoveObject(1, 1, *key, state.written, damaged=False)).ending
        assert ending is v.Removal.GONE
        self.log.segments.forget(key)
        del self.objects[key], self.covered[key]
        self.promised.content[key] = None
        self.promised.maybe[key] = [None]

    def file(self) -> None:
        """File the oldest sealed segment, or a part of it, and release what is filed."""
        segments = self.log.segments
        for key in segments.to_file():
            if self.rng.random() < 0.3:
                continue
            directory, name = key
            if not name:
                claim = self.claims[directory]
                stored = self.storage.store_claim(v.WriteClaim(directory, claim))
                assert stored.failure is v.DiskFailure.NONE
                segments.filed(key, claim.epoch)
            elif key in self.objects:
                self._sync(key)
                self.storage._folders[directory].marks.sync()
                segments.filed(key, self.objects[key].written)
            else:
                segments.forget(key)
        segments.release()

    def step(self) -> None:
        self.now += self.rng.random()
        self.log.segments.seal(self.now)
        operation = self.rng.choices([self.append, self.file, self.claim, self.remove], [8, 3, 1, 1])[0]
        operation()


def payloads(data: bytes, size: int) -> list[bytes]:
    """The contents of extents, up to a logical size."""
    found, at, total = [], 0, 0
    while total < size:
        count = int.from_bytes(data[at + 8 : at + 12], "big")
        found.append(data[at + 64 : at + 64 + count])
        at, total = at + 64 + count, total + count
    return found


def _sizes(allowed: list[bytes | None]) -> list[int | None]:
    return [None if one is None else len(one) for one in allowed]


def crash_run(seed: int, crashes: int = 6) -> int:
    """Run a server, crash it at a random call, start it again. Return the number of crashes."""
    rng = Random(seed)
    disk, promised, count = CrashingDisk(), Promised(), 0
    for _ in range(crashes):
        disk.left = rng.randrange(1, 500)
        try:
            server = SmallServer(disk, promised, rng)
            server.check()
            while True:
                server.step()
        except CrashError:
            count += 1
        disk.left = None
        disk.kill()
        if rng.random() < 0.7:
            disk.power_cut(rng)
    SmallServer(disk, promised, rng).check()
    return count


__all__ = ["CrashError", "CrashingDisk", "Promised", "SmallServer", "crash_run"]
