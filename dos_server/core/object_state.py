"""One object: what was accepted, written, synced, and who waits to hear of it.

    synced <= written <= accepted

*accepted*: passed the size and digest check. *written*: in the file (a killed process does not lose it).
*synced*: on stable storage, the directory entry too. Only `synced` is ever read by others, only a watermark
tells it, and only after `Synced`.

Group commit: at most one sync runs; it covers what was written before it began, everything later
waits for the next. A failed sync or a write of unknown effect poisons the object: nothing more is
acknowledged until a restart, because the kernel forgets a failed sync and shows the lost bytes from its cache
(reliability: fsync is never retried).

Rules of this file: sizes, tickets and extents of one object. Claims and sessions are not known here.
"""

from bisect import bisect_right
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from dos_protocol.digests import Buffer, PrefixDigest
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import object_bytes_max
from dos_protocol.messages import Append, ObjectInfo
from dos_server.core.extent import AcceptedBytes, build_extents, link_after, object_seed
from dos_server.core.index import SparseIndex
from dos_server.core.records import ObjectMark
from dos_server.core.recovery_scan import RecoveredObject
from dos_server.core.vocabulary import Sync, Write
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max

_end_of: Final = attrgetter("end")
_end_of_digest: Final = itemgetter(0)


class PendingAppend(NamedTuple):
    """One accepted append, until it is synced or refused."""

    end: int
    session: int
    request_id: int
    bytes: int


class AppendRefusal(NamedTuple):
    """Why an append is not accepted."""

    code: ErrorCode
    message: str
    actual: int = 0


class WriteBatch(NamedTuple):
    """What is being written.

    Where it ends, the link there, its extents for the index, the fold at its end, how many appends.
    """

    end: int
    file_bytes: int
    link: int
    starts: list[tuple[int, int, int]]
    fold: PrefixDigest
    tickets: int


class ObjectState:
    """See the module. Fields named `*_bytes` are file positions or counts, sizes are logical.

    `appender`: the version 0 session that streams to it, which nobody else may append to meanwhile.
    `root`: the link of its first extent; `link`: of the next one to be written.
    `uncut_bytes`: of a torn tail that found no room for its copy; `judging`: it is tried again.
    """

    __slots__ = (
        "_durable",
        "appender",
        "batch",
        "corrupt_from",
        "digests",
        "directory",
        "entry_durable",
        "exists",
        "file_bytes",
        "fold",
        "index",
        "judging",
        "link",
        "name",
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
        "told_received",
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
        self.seed = object_seed(directory, name)
        self.fold = found.fold if found else PrefixDigest()
        self.index = found.index if found else SparseIndex()
        self.exists = found is not None
        self.entry_durable = found is not None
        self.root = (found.root if found else 0) or fresh_root
        self.link = found.link if found and found.link is not None else self.root
        self.written = self.synced = found.size if found else 0
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
        self._durable = found.durable if found else 0
        self.pieces: list[AcceptedBytes] = []
        self.tickets: list[PendingAppend] = []
        self.unwritten_tickets = 0
        self.batch: WriteBatch | None = None
        self.digests: list[tuple[int, int]] = []
        self.written_fold = self.fold
        self.sync_asked = False
        self.sync_covers: int | None = None
        self.told_received = self.written
        self.waiters = 0

    @property
    def accepted(self) -> int:
        return self.fold.size

    @property
    def durable(self) -> int:
        """So much of it was on stable storage at some time, as far as is known: more than `synced` when it is
        damaged."""
        return max(self._durable, self.synced)

    @property
    def damaged(self) -> bool:
        """This copy must not be counted."""
        return self.poisoned or self.corrupt_from is not None

    @property
    def changing(self) -> str | None:
        """Why its file cannot be used just now."""
        if self.repairing:
            return f"{self.name} is being mended"
        if self.judging:
            return f"{self.name} is being looked at: its torn tail is copied and cut"
        return f"{self.name} is being removed" if self.removing else None

    @property
    def being_appended(self) -> bool:
        return bool(self.tickets) or self.appender is not None

    @property
    def settled(self) -> bool:
        """Nothing accepted is on its way to the disk, or ever will be; nor is a new copy, its end, or
        another judgement."""
        return (
            self.batch is None
            and self.changing is None
            and not self.pieces
            and not self.sync_asked
            and (self.poisoned or not self.needs_sync)
        )

    @property
    def may_forget(self) -> bool:
        """Nothing is lost when it is loaded again later. A poisoned object stays: a restart must judge it."""
        return self.settled and not self.waiters and not self.poisoned

    @property
    def needs_sync(self) -> bool:
        return self.exists and (self.written > self.synced or not self.entry_durable)

    @property
    def told(self) -> tuple[int, int]:
        """The size and digest that others may go by. Of an object with a wound somewhere inside, none: a size
        that is told counts for all that is below it."""
        return (0, 0) if self.tail_damaged else (self.synced, self.synced_digest)

    @property
    def mark(self) -> ObjectMark:
        """What is to be noted of it now, on the disk."""
        return ObjectMark(
            self.name, self.synced, self.poisoned, self.corrupt_from is not None, root=self.root
        )

    def info(self) -> ObjectInfo:
        size, digest = self.told
        received = 0 if self.tail_damaged else self.written
        return ObjectInfo(self.name, received, size, digest, self.being_appended, self.damaged, self.poisoned)

    def refuses(self, append: Append, session: int) -> AppendRefusal | None:
        """Why the append cannot be taken now, or None. Has no effect."""
        refusal = self.refuses_session(session)
        if refusal is not None:
            return refusal
        if append.expected_size != self.accepted:
            return AppendRefusal(
                ErrorCode.SIZE_MISMATCH,
                f"{self.name} has {self.accepted} bytes, not {append.expected_size}",
                self.accepted,
            )
        if append.prefix_digest != self.fold.value:
            return AppendRefusal(
                ErrorCode.DIGEST_MISMATCH,
                f"the content of {self.name} below {self.accepted} has digest {self.fold.value:016x},"
                f" not {append.prefix_digest:016x}",
                self.fold.value,
            )
        return self.refuses_bytes(len(append.payload))

    def refuses_session(self, session: int) -> AppendRefusal | None:
        """Why nothing of that session can be taken now, or None."""
        if self.poisoned:
            return AppendRefusal(
                ErrorCode.POISONED, f"{self.name} is poisoned: a write or sync of it failed", self.synced
            )
        if self.corrupt_from is not None:
            return AppendRefusal(
                ErrorCode.CORRUPT, f"{self.name} is damaged from {self.corrupt_from} on", self.corrupt_from
            )
        if self.changing is not None:
            return AppendRefusal(ErrorCode.BEING_APPENDED, self.changing, self.accepted)
        others = self.tickets and self.tickets[-1].session != session
        if others or self.appender not in (None, session):
            return AppendRefusal(
                ErrorCode.BEING_APPENDED, f"another session appends to {self.name}", self.accepted
            )
        return None

    def refuses_bytes(self, count: int) -> AppendRefusal | None:
        """Why so many more bytes cannot be taken, or None."""
        if self.accepted + count > object_bytes_max:
            return AppendRefusal(
                ErrorCode.NO_SPACE, f"an object holds at most {object_bytes_max} bytes", object_bytes_max
            )
        return None

    def fold_to_change(self) -> PrefixDigest:
        """The fold of what was accepted, apart from that of what is written: while they are the same, they
        are one, because a server may have tens of thousands of objects that nobody appends to."""
        if self.fold is self.written_fold:
            self.fold = self.fold.copy()
        return self.fold

    def accept(self, payload: Buffer, session: int, request_id: int) -> None:
        """Take the bytes. The caller has asked `refuses`."""
        if self.batch is not None:
            payload = bytes(payload)  # it waits for that write, and the buffer it lies in does not
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

    def next_write(self, epoch: int) -> Write | None:
        """Everything accepted, as extents to write now.

        None while a write is under way or there is nothing.
        """
        if self.batch is not None or not self.unwritten_tickets or self.poisoned:
            return None
        position, link, starts, buffers = self.file_bytes, self.link, [], []
        for header, parts in build_extents(
            self.pieces, seed=self.seed, epoch=epoch, durable=self.synced, link=link
        ):
            starts.append((header.offset, position, header.link))
            position += extent_header_bytes + header.payload_bytes
            link = link_after(parts[0])
            buffers += parts
        self.batch = WriteBatch(
            self.accepted, position, link, starts, self.fold.copy(), self.unwritten_tickets
        )
        self.unwritten_tickets = 0
        self.pieces = []
        return Write(self.directory, self.name, self.file_bytes, buffers, not self.exists)

    def wrote(self) -> None:
        """The batch is in the file."""
        batch = self._take_batch()
        for offset, position, link in batch.starts:
            self.index.add(offset, position, link)
        self.exists = True
        self.written, self.file_bytes, self.link = batch.end, batch.file_bytes, batch.link
        self.written_fold = batch.fold
        self.digests.append((batch.end, batch.fold.value))

    def undo_write(self) -> list[PendingAppend]:
        """Nothing of the batch is in the file.

        Forget it and what was accepted after it. Gives the tickets refused.
        """
        batch = self._take_batch()
        refused = batch.tickets + self.unwritten_tickets
        self.unwritten_tickets = 0
        self.pieces = []
        self.fold = self.written_fold.copy()
        return [self.tickets.pop() for _ in range(refused)][::-1]

    def forget_write(self) -> None:
        """The write has ended, and what it did counts for nothing."""
        self.batch = None

    def forget_sync(self) -> None:
        """The sync has ended, and what it did counts for nothing."""
        self.sync_covers, self.sync_asked = None, False

    def poison(self) -> list[PendingAppend]:
        """A write or sync failed: acknowledge nothing more. Gives every ticket that will never be.

        A write or sync that is still under way stays that: nothing else may happen to the file before it
        ends, and its end must not be taken for that of a later one."""
        self.poisoned = True
        self.unwritten_tickets = 0
        self.pieces = []
        self.fold = self.written_fold.copy()
        tickets = list(self.tickets)
        self.tickets.clear()
        return tickets

    def next_sync(self) -> Sync | None:
        """A sync of what is written, if one is due and none runs."""
        if self.sync_asked or self.poisoned or not self.needs_sync:
            return None
        self.sync_asked = True
        return Sync(self.directory, self.name, not self.entry_durable)

    def sync_begins(self) -> None:
        """From here on, what is written waits for the next sync."""
        self.sync_covers = self.written

    def was_synced(self) -> list[PendingAppend]:
        """The sync ended well: what it covers is on stable storage. Gives the tickets it settles."""
        assert self.sync_covers is not None, "a sync ended that did not begin"
        self.synced, self.sync_covers, self.sync_asked = self.sync_covers, None, False
        self.entry_durable = True
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
