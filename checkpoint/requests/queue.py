"""A directory of the store to which several parties append records, and which anyone can read.

Writing: claim the directory above the highest epoch seen, append, wait for the quorum, release the claim. A
writer that is superseded before the acknowledgement tries again, so its record may appear twice. Objects are
named by the epoch that created them. Readers examine only the newest few, and writers delete older ones.
"""

import re
from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import Final

import trio

from checkpoint import limits
from checkpoint.core.requests import QueueItem, RecordReader, Skipped
from dos_client import Claim, ObjectWriter, Store, backoff_s, randomness, repair_store
from dos_protocol.errors import FencedError, NotFoundError, PastEndError
from dos_protocol.limits import digest_block_bytes
from dos_protocol.messages import ObjectInfo

_NAME: Final = re.compile(r"[0-9a-f]{16}")


class QueueReader:
    """Reads a directory's records as they arrive. On the trio thread of its store."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._offsets: dict[str, int] = {}
        self._readers: dict[str, RecordReader] = {}
        self._undelivered: list[QueueItem] = []
        """Records that were read but not returned yet, because of an error."""
        self._first_name = ""
        """Objects with lower names are never read."""

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def frontier(self) -> tuple[str, int] | None:
        """The newest object that was found, and how many bytes of it were read; None if there is none."""
        newest = max(self._offsets, default=None)
        return None if newest is None else (newest, self._offsets[newest])

    async def skip_present(self) -> None:
        """Skip everything present now, including what only one member has. Raises QuorumUnavailableError."""
        self._offsets = {name: info.synced for name, info in (await self._sizes()).items()}
        self._first_name = max(self._offsets, default="")

    async def poll(self) -> list[QueueItem]:
        """Return what has arrived since the last call, in order. Raises QuorumUnavailableError,
        BrokenConnectionError, CorruptError; nothing is lost then: call it again.
        """
        sizes = await self._sizes()
        for name in sorted(name for name in sizes if name >= self._first_name):
            if sizes[name].synced > self._offsets.get(name, 0):
                await self._read_object(name)
        newest = sorted(self._offsets)[-limits.queue_objects_kept :]
        self._first_name = newest[0] if len(newest) == limits.queue_objects_kept else self._first_name
        self._offsets = {name: self._offsets[name] for name in newest}
        self._readers = {name: reader for name, reader in self._readers.items() if name in self._offsets}
        found, self._undelivered = self._undelivered, []
        return found

    async def _read_object(self, name: str) -> None:
        reader = self._readers.setdefault(name, RecordReader())
        stream = self._store.stream(self._directory, name, self._offsets.setdefault(name, 0))
        # What fewer than a quorum have is not committed, and must not delay other objects.
        with suppress(NotFoundError, PastEndError):
            async with aclosing(stream):
                async for data in stream:
                    self._offsets[name] += len(data)
                    self._undelivered += reader.feed(data)

    async def _sizes(self) -> dict[str, ObjectInfo]:
        """Return the longest copy of each record object."""
        view = await self._store.inspect(self._directory)
        return _longest(view.answers.values())


async def newest_records(store: Store, directory: str) -> list[QueueItem]:
    """Return the last records of the newest object: in its last `queue_tail_bytes`, or all. Raises as
    `QueueReader.poll`.
    """
    sizes = _longest((await store.inspect(directory)).answers.values())
    if not sizes:
        return []
    newest = sizes[max(sizes)]
    for begin in sorted({max(0, newest.synced - limits.queue_tail_bytes), 0}, reverse=True):
        reader, found = RecordReader(), list[QueueItem]()
        with suppress(NotFoundError, PastEndError):
            async with aclosing(store.stream(directory, newest.name, begin)) as stream:
                async for data in stream:
                    found += reader.feed(data)
        if any(not isinstance(one, Skipped) for one in found):
            return found
    return []


class QueueRepair:
    """Brings members that were unavailable up to date with a directory's records."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._behind: dict[tuple[bytes, str], int] = {}

    async def repair(self) -> None:
        """Repair copies that lack what a quorum holds. Raises what `QueueReader.poll` does."""
        before, self._behind = self._behind, await self._find_behind()
        # Only a copy that has not moved since the last call: a writer may be about to fill the others.
        if not any(before.get(copy) == synced for copy, synced in self._behind.items()):
            return
        await repair_store(self._store, [self._directory])

    async def _find_behind(self) -> dict[tuple[bytes, str], int]:
        """Return (member, object) -> durable size of each newest copy that is shorter than a quorum's."""
        answers = (await self._store.inspect(self._directory)).answers
        names = sorted(_longest(answers.values()))[-limits.queue_objects_kept :]
        behind: dict[tuple[bytes, str], int] = {}
        for name in names:
            synced = {
                member: objects.get(name, ObjectInfo(name)).synced for member, objects in answers.items()
            }
            held = sorted(synced.values(), reverse=True)[: self._store.record.ack_quorum][-1]
            behind |= {(member, name): size for member, size in synced.items() if size < held}
        return behind


async def write_records(
    store: Store, directory: str, data: bytes, *, roll_bytes: int = limits.queue_object_bytes_max
) -> None:
    """Append records, synced on the quorum on return. Waits without limit: use a timeout. If it is cancelled
    or fails, they may be present or not, and another call may write them a second time.
    """
    attempt = 0
    while True:
        view = await store.inspect(directory)
        try:
            claim = await store.claim(directory, view.epoch_seen + 1, randomness.fresh_id())
            async with claim:
                writer = await _writer(claim, len(data), roll_bytes)
                # Delete after the quorum has synced the records: until then, the object just written does not
                # count among the newest ones, which readers need (R14).
                await writer.wait_synced(writer.append(data))
                await _delete_old(claim, writer.name)
                return
        except FencedError:  # another process writes too; it finishes soon
            attempt += 1
            await trio.sleep(backoff_s(attempt, randomness.jitter()))


async def _writer(claim: Claim, size: int, roll_bytes: int) -> ObjectWriter:
    """Return the newest object if it can be continued, otherwise a new one."""
    new = f"{claim.epoch:016x}"
    newest = max(_longest(claim.answers.values()), default="")
    # Not if a member does not answer: the tail of a writer that died there would contradict what follows
    # (docs/decisions/0100).
    if not newest or newest >= new or len(claim.answers) < len(claim.store.record.members):
        return claim.open_object(new)
    copies = {member: objects.get(newest, ObjectInfo(newest)) for member, objects in claim.answers.items()}
    member, longest = max(copies.items(), key=lambda copy: copy[1].synced)
    if longest.synced + size > roll_bytes:
        return claim.open_object(new)
    holder = claim.store.record.member(member)
    assert holder is not None
    session = await claim.store.reader(holder, claim.directory)
    for copy in copies.values():
        # Its tail may be of a writer that nobody acknowledged: continued, the copies would differ.
        if copy.received != copy.synced:
            return claim.open_object(new)
        # The longest copy is as it was listed; only the digest of a shorter one is not known of it.
        same = longest if copy.synced == longest.synced else None
        if copy.synced and copy.digest != (same or await session.stat(newest, copy.synced)).digest:
            return claim.open_object(new)
    base = longest.synced - longest.synced % digest_block_bytes
    base_digest = (await session.stat(newest, base)).digest if base else 0
    tail = await session.get(newest, base, longest.synced - base) if longest.synced > base else b""
    return claim.resume_object(newest, base, base_digest, tail)


async def _delete_old(claim: Claim, newest: str) -> None:
    """Delete objects that are no longer read (R14); what is left is for a later writer."""
    names = sorted({newest, *_longest(claim.answers.values())})
    if len(names) > limits.queue_objects_kept:
        oldest = names[-limits.queue_objects_kept]
        with suppress(FencedError):  # another process writes now, and will delete them
            claim.collect(lambda name: _NAME.fullmatch(name) is not None and name < oldest)
            await claim.wait_collected(limits.queue_tidy_s)


def _longest(answers: Iterable[dict[str, ObjectInfo]]) -> dict[str, ObjectInfo]:
    longest: dict[str, ObjectInfo] = {}
    for objects in answers:
        for name, info in objects.items():
            best = longest.get(name)
            if _NAME.fullmatch(name) and (best is None or info.synced > best.synced):
                longest[name] = info
    return longest
