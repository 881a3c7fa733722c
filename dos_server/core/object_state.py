"""One object: which of its bytes are accepted, written and synced, and the appends that wait for an ack.

    filed <= synced <= covered <= written <= accepted

    accepted  passed the size and digest check
    written   in the file; survives a killed process
    covered   synced, or in a record of the group log that is being written: needs no sync of its own
    synced    on stable storage, with the name: in the file, or in the group log
    filed     on stable storage in the file, with the directory entry

Readers only get bytes below `synced`. Only a durability ack acknowledges, after `Synced`.

Group commit: at most one sync of an object runs. It covers what was written before it began; later writes
wait for the next one.

A failed sync, or a write with unknown effect, poisons the object: nothing more is acknowledged until a
restart. A failed sync is never retried, because the kernel forgets it and serves the lost bytes from its
cache.
"""

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from msgspec import structs

from dos_protocol.digests import Buffer, PrefixDigest
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import object_bytes_max
from dos_protocol.messages import Append, ObjectInfo, RepairChunk
from dos_server.core.access import RequestRefusal
from dos_server.core.files.extent import AcceptedBytes, build_extents, link_after, object_seed, small_extent
from dos_server.core.files.log_record import names_of
from dos_server.core.files.records import ObjectMark
from dos_server.core.files.recovery import RecoveredObject
from dos_server.core.files.scan import SparseIndex
from dos_server.core.vocabulary import Sync, Write
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max, log_small_bytes_max


class PendingAppend(NamedTuple):
    end: int
    session: int
    request_id: int
    bytes: int


class WriteBatch(NamedTuple):
    """The write in progress. All values are those after it. `data`: what is written at `position`, None if it
    is long.
    """

    end: int
    file_bytes: int
    link: int
    starts: list[tuple[int, int, int]]
    fold: PrefixDigest
    tickets: int
    position: int
    data: bytes | None


_SMALL_PAYLOAD_BYTES: Final = log_small_bytes_max - extent_header_bytes
_end_of: Final = attrgetter("end")
_end_of_digest: Final = itemgetter(0)


class ObjectState:
    """The state of one object in memory. Fields named `*_bytes` are file positions or counts; sizes are
    logical.

    `names`: as in entries of the group log.
    `appender`: the version 0 session that streams to it; no other session may append. `link`: of the next
    extent to be written. `corrupt_from`: logical offset where damage begins. `tail_damaged`: any byte may be
    damaged, so no size is reported. `uncut_bytes`: of a torn tail whose copy found no space; `judging`: it is
    judged again.
    """

    __slots__ = (
        "_durable",
        "after_filing",
        "appender",
        "batch",
        "corrupt_from",
        "covered",
        "digests",
        "direct_until",
        "directory",
        "entry_covered",
        "entry_durable",
        "entry_safe",
        "exists",
        "file_bytes",
        "filed",
        "filing",
        "fold",
        "index",
        "judging",
        "link",
        "name",
        "named_until",
        "names",
        "pieces",
        "poisoned",
        "removing",
        "repairing",
        "root",
        "seed",
        "sync_asked",
        "sync_covers",
        "synced",
        "synced_digest",
        "tail_damaged",
        "tickets",
        "uncut_bytes",
        "unwritten_tickets",
        "version",
        "waiters",
        "written",
        "written_fold",
    )

    def __init__(
        self,
        directory: str,
        name: str,
        *,
        fresh_root: int,
        found: RecoveredObject | None = None,
        version: int = 0,
    ) -> None:
        self.directory = directory
        self.name = name
        self.names = names_of(directory, name)
        self.seed = object_seed(directory, name)
        self.fold = found.fold if found else PrefixDigest()
        self.index = found.index if found else SparseIndex()
        self.exists = found is not None
        self.entry_durable = self.entry_safe = self.entry_covered = found is not None
        self.root = (found.root if found else 0) or fresh_root
        self.link = found.link if found and found.link is not None else self.root
        self.written = self.covered = self.synced = self.filed = found.size if found else 0
        self.direct_until = self.named_until = 0.0
        self.file_bytes = found.file_bytes if found else 0
        self.synced_digest = self.fold.value
        self.corrupt_from: int | None = found.size if found and found.corrupt else None
        self.poisoned = False
        self.tail_damaged = found is not None and found.letter == "R"
        self.version = version
        self.uncut_bytes = found.uncut_bytes if found else 0
        self.repairing = False
        self.removing = False
        self.judging = False
        self.appender: int | None = None
        # `found` also counts headers of what was cut off, because none of it was acknowledged.
        self._durable = found.durable if found and found.corrupt else 0
        self.pieces: list[AcceptedBytes] = []
        self.tickets: list[PendingAppend] = []
        self.unwritten_tickets = 0
        self.batch: WriteBatch | None = None
        self.digests: list[tuple[int, int]] = []
        self.written_fold = self.fold
        self.sync_asked = False
        self.filing = False
        self.after_filing: Callable[[], None] | None = None
        self.sync_covers: int | None = None
        self.waiters = 0

    @property
    def accepted(self) -> int:
        return self.fold.size

    @property
    def durable(self) -> int:
        """The largest size known to have been durable at any time; above `synced` if damaged."""
        return max(self._durable, self.synced)

    @property
    def damaged(self) -> bool:
        """Whether this copy must not be counted in a quorum."""
        return self.poisoned or self.corrupt_from is not None

    @property
    def changing(self) -> str | None:
        """Why the object's file cannot be used now, or None."""
        if self.repairing:
            return f"{self.name} is being repaired"
        if self.judging:
            return f"{self.name} is being recovered: its torn tail is copied aside and cut"
        return f"{self.name} is being removed" if self.removing else None

    @property
    def being_appended(self) -> bool:
        return bool(self.tickets) or self.appender is not None

    @property
    def settled(self) -> bool:
        return self._is_quiet and not self.sync_asked and (self.poisoned or not self.needs_sync)

    @property
    def settled_or_filing(self) -> bool:
        """Whether it is settled, or its file only gets what is durable in the group log."""
        return self.settled or (self._is_quiet and self.filing and not self.needs_sync)

    @property
    def _is_quiet(self) -> bool:
        return self.batch is None and self.changing is None and not self.pieces

    @property
    def may_forget(self) -> bool:
        """Whether it can be dropped from memory without loss. A poisoned one must stay: only a restart may
        judge its file.
        """
        return self.settled and self.is_filed and not self.waiters and not self.poisoned

    @property
    def needs_sync(self) -> bool:
        return self.exists and (self.written > self.synced or not self.entry_safe)

    @property
    def is_filed(self) -> bool:
        """Whether the group log has nothing of the object that its own file lacks."""
        return not self.exists or (self.filed == self.synced and self.entry_durable == self.entry_safe)

    @property
    def claimed_size(self) -> tuple[int, int]:
        """The size and digest that clients may rely on: a reported size speaks for all bytes below it."""
        return (0, 0) if self.tail_damaged else (self.synced, self.synced_digest)

    @property
    def mark(self) -> ObjectMark:
        return ObjectMark(self.name, self.filed, self.poisoned, self.corrupt_from is not None, root=self.root)

    def info(self) -> ObjectInfo:
        size, digest = self.claimed_size
        received = 0 if self.tail_damaged else self.written
        return ObjectInfo(self.name, received, size, digest, self.being_appended, self.damaged, self.poisoned)

    def fold_to_change(self) -> PrefixDigest:
        """Return the fold of the accepted bytes, apart from those of the written bytes and of the write in
        progress.
        """
        fold, batch = self.fold, self.batch
        # They share one object while they are equal: a server may hold tens of thousands of objects without
        # appends.
        if fold is self.written_fold or (batch is not None and fold is batch.fold):
            self.fold = fold = fold.copy()
        return fold

    def accept(self, payload: Buffer, session: int, request_id: int) -> None:
        if self.batch is not None:
            payload = bytes(payload)  # copied: the receive buffer is reused before the next write
        fold, count = self.fold_to_change(), len(payload)
        if count <= extent_payload_bytes_max:
            if count:
                self.pieces.append(AcceptedBytes(fold.size, fold.blocks_digest, payload))
                fold.update(payload)
        else:
            view = memoryview(payload)
            for start in range(0, count, extent_payload_bytes_max):
                part = view[start : start + extent_payload_bytes_max]
                self.pieces.append(AcceptedBytes(fold.size, fold.blocks_digest, part))
                fold.update(part)
        self.tickets.append(PendingAppend(fold.size, session, request_id, count))
        self.unwritten_tickets += 1

    def next_write(self, epoch: int, *, for_log: bool = False) -> Write | None:
        """Return the write of everything accepted; None if a write runs or nothing is pending. `for_log`:
        keep its bytes if few.
        """
        if self.batch is not None or not self.unwritten_tickets or self.poisoned:
            return None
        at, link, starts, buffers = self.file_bytes, self.link, [], list[Buffer]()
        position, data = at, None
        # `durable` in the headers proves to a later start that what is below was acknowledged: if it is gone
        # then, that is damage and not a torn tail.
        if for_log and len(self.pieces) == 1 and len(self.pieces[0].data) <= _SMALL_PAYLOAD_BYTES:
            (piece,) = self.pieces
            data = small_extent(piece, seed=self.seed, epoch=epoch, durable=self.synced, link=link)
            starts.append((piece.offset, at, link))
            position, link = at + len(data), link_after(data)
        else:
            for header, parts in build_extents(
                self.pieces, seed=self.seed, epoch=epoch, durable=self.synced, link=link
            ):
                starts.append((header.offset, position, header.link))
                position += extent_header_bytes + header.payload_bytes
                link = link_after(parts[0])
                buffers += parts
            if for_log and position - at <= log_small_bytes_max:
                data = b"".join(buffers)  # copied: the log needs it after the receive buffer is reused
        if data is not None:
            buffers = [data]
        tickets, self.unwritten_tickets, self.pieces = self.unwritten_tickets, 0, []
        self.batch = WriteBatch(self.fold.size, position, link, starts, self.fold, tickets, at, data)
        return Write(self.directory, self.name, at, buffers, not self.exists)

    def wrote(self) -> WriteBatch:
        batch = self._take_batch()
        for offset, position, link in batch.starts:
            self.index.add(offset, position, link)
        self.exists = True
        self.written, self.file_bytes, self.link = batch.end, batch.file_bytes, batch.link
        self.written_fold = batch.fold
        self.digests.append((batch.end, batch.fold.value))
        return batch

    def undo_write(self) -> list[PendingAppend]:
        batch = self._take_batch()
        refused = batch.tickets + self.unwritten_tickets
        self.unwritten_tickets = 0
        self.pieces = []
        # The refused bytes leave the fold, too: an append that continues after them would leave a hole.
        self.fold = self.written_fold.copy()
        return [self.tickets.pop() for _ in range(refused)][::-1]

    def forget_write(self) -> None:
        self.batch = None

    def forget_sync(self) -> None:
        self.sync_covers, self.sync_asked, self.filing = None, False, False

    def poison(self) -> list[PendingAppend]:
        """Poison the object after a failed write or sync. Return all tickets: none will be acknowledged."""
        self.poisoned = True
        self.unwritten_tickets = 0
        self.pieces = []
        self.fold = self.written_fold.copy()
        # An operation in progress stays registered: nothing else may touch the file before it ends, and its
        # end must not be taken for that of a later one.
        tickets = list(self.tickets)
        self.tickets.clear()
        return tickets

    @property
    def needs_direct_sync(self) -> bool:
        """Whether something is written that neither a sync nor a record of the log covers."""
        return self.exists and (self.written > self.covered or not self.entry_covered)

    def next_sync(self) -> Sync | None:
        """Return a sync of what is written, if one is needed and none runs. The log's sync needs none."""
        if self.sync_asked or self.poisoned or not self.needs_direct_sync:
            return None
        self.sync_asked = True
        return Sync(self.directory, self.name, not self.entry_durable)

    def filing_sync(self) -> Sync | None:
        if self.sync_asked or self.poisoned:
            return None
        self.sync_asked = self.filing = True
        return Sync(self.directory, self.name, not self.entry_durable)

    def sync_begins(self) -> None:
        """The sync covers what is written now; later writes wait for the next one."""
        self.sync_covers = self.written

    def was_synced(self) -> list[PendingAppend]:
        assert self.sync_covers is not None, "a sync ended that did not begin"
        # Up to what was written when it began: bytes written during a sync may be on no disk.
        self.filed, self.sync_covers, self.sync_asked, self.filing = self.sync_covers, None, False, False
        self.entry_durable = self.entry_safe = self.entry_covered = True
        return self._settle(self.filed)

    def was_logged(self, end: int) -> list[PendingAppend]:
        self.entry_safe = True
        return self._settle(end)

    def _settle(self, upto: int) -> list[PendingAppend]:
        if upto <= self.synced and not self.tickets:
            return []
        if upto > self.synced:
            self.synced = upto
        if self.synced > self.covered:
            self.covered = self.synced
        covered = bisect_right(self.digests, self.synced, key=_end_of_digest)
        if covered:
            self.synced_digest = self.digests[covered - 1][1]
            del self.digests[:covered]
        count = bisect_right(self.tickets, self.synced, key=_end_of)
        settled = self.tickets[:count]
        del self.tickets[:count]
        if not self.tickets and self.fold.size == self.written:
            self.written_fold = self.fold
        return settled

    def _take_batch(self) -> WriteBatch:
        assert self.batch is not None, "a write ended that was not under way"
        batch, self.batch = self.batch, None
        return batch


# --- Whether an object takes an append now. Nothing here has an effect -------------------------------------


def refuses_append(state: ObjectState, append: Append, session: int) -> RequestRefusal | None:
    refusal = refuses_session(state, session)
    if refusal is not None:
        return refusal
    if append.expected_size != state.accepted:
        return RequestRefusal(
            ErrorCode.SIZE_MISMATCH,
            f"{state.name} has {state.accepted} bytes, not {append.expected_size}",
            state.accepted,
        )
    if append.prefix_digest != state.fold.value:
        return RequestRefusal(
            ErrorCode.DIGEST_MISMATCH,
            f"the content of {state.name} below {state.accepted} has digest {state.fold.value:016x},"
            f" not {append.prefix_digest:016x}",
            state.fold.value,
        )
    return refuses_bytes(state, len(append.payload))


def refuses_session(state: ObjectState, session: int) -> RequestRefusal | None:
    if state.poisoned:
        return RequestRefusal(
            ErrorCode.POISONED, f"{state.name} is poisoned: a write or sync of it failed", state.synced
        )
    if state.corrupt_from is not None:
        return RequestRefusal(
            ErrorCode.CORRUPT,
            f"{state.name} is damaged from offset {state.corrupt_from} on",
            state.corrupt_from,
        )
    if state.changing is not None:
        return RequestRefusal(ErrorCode.BEING_APPENDED, state.changing, state.accepted)
    others = state.tickets and state.tickets[-1].session != session
    if others or state.appender not in (None, session):
        return RequestRefusal(
            ErrorCode.BEING_APPENDED, f"another session appends to {state.name}", state.accepted
        )
    return None


def refuses_bytes(state: ObjectState, count: int) -> RequestRefusal | None:
    if state.accepted + count > object_bytes_max:
        return RequestRefusal(
            ErrorCode.NO_SPACE, f"an object holds at most {object_bytes_max} bytes", object_bytes_max
        )
    return None


# --- The bytes of a new copy -------------------------------------------------------------------------------


class RepairInProgress:
    """One new copy that a session sends. `size`, `position`: logical bytes received, bytes of its file.
    `agrees`: it has the old copy's digest at that copy's size; None while shorter. `orphan`: its session is
    gone.
    """

    def __init__(
        self, directory: str, request: RepairChunk, old: tuple[int, int], number: int, root: int
    ) -> None:
        """`old`: size and digest of the old copy. `number`, `root`: unique to this copy."""
        self.number = number
        self.root = root
        self.directory = directory
        self.request = request
        self.request_id = 0
        self.name = request.name
        self.position = 0
        self.busy = False
        self.orphan = False
        self._link = root
        self._fold = PrefixDigest()
        self._old_size, self._old_digest = old
        self.agrees: bool | None = True if self._old_size == 0 else None

    @property
    def size(self) -> int:
        return self._fold.size

    @property
    def complete(self) -> bool:
        return self.size == self.request.goal_size

    @property
    def digest_matches(self) -> bool:
        return self._fold.value == self.request.goal_digest

    def same_as(self, other: RepairChunk) -> bool:
        mine, theirs = (structs.replace(one, offset=0, payload=b"") for one in (self.request, other))
        return mine == theirs

    def extents_for(self, payload: Buffer, epoch: int) -> list[Buffer]:
        """Return the extents to write for the next bytes."""
        # Their headers declare everything below them durable, which is true before the copy becomes visible.
        seed, view, buffers = object_seed(self.directory, self.name), memoryview(payload), list[Buffer]()
        for start in range(0, len(view), extent_payload_bytes_max):
            part = view[start : start + extent_payload_bytes_max]
            piece = AcceptedBytes(self._fold.size, self._fold.blocks_digest, part)
            for header, parts in build_extents(
                [piece], seed=seed, epoch=epoch, durable=self._fold.size, link=self._link
            ):
                self._link = link_after(parts[0])
                self.position += extent_header_bytes + header.payload_bytes
                buffers += parts
            self._update(part)
        return buffers

    def _update(self, part: memoryview) -> None:
        before = self._old_size - self._fold.size
        if 0 < before <= len(part):
            at_old = self._fold.copy()
            at_old.update(part[:before])
            self.agrees = at_old.value == self._old_digest
        self._fold.update(part)
