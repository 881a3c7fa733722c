"""A directory of the store into which several parties write records in turn, and from which anybody reads
them.

Rules of this file: claims, objects and bytes; what the records say is for others. Used for the requests
to a region (many write, its driver reads) and for the answers (its driver writes, those who asked read).

Writing: claim the directory above the epoch seen, append, wait until it is synced on the quorum, give the
claim up. Claims exclude each other, so nobody coordinates: who is superseded before the acknowledgement
tries again after a random pause, and a record may then be there twice. Objects are named by the epoch
that made them, 16 hexadecimal digits. The newest one is gone on with if *every* member answered, all
copies are prefixes of the longest, and there is room. Otherwise a new one is begun: the tail of a writer
that died on a member that is away cannot contradict what comes after it then (docs/decisions/0100).

Reading: committed bytes alone, from where one was; a look tells how much there is. Only the newest few
objects are looked at; the writers take older ones away.
"""

import re
from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import Final

import trio

from checkpoint import limits
from checkpoint.core.request_records import Found, RecordReader
from dos_client import Claim, ObjectWriter, Store, randomness, repair_store
from dos_client.core.backoff import backoff_s
from dos_protocol.errors import FencedError, NotFoundError, PastEndError
from dos_protocol.limits import digest_block_bytes
from dos_protocol.vocabulary import ObjectInfo

_NAME: Final = re.compile(r"[0-9a-f]{16}")


class QueueReader:
    """Reads a directory's records as they come. On the trio thread of its store."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._read: dict[str, int] = {}
        self._readers: dict[str, RecordReader] = {}
        self._found: list[Found] = []
        """Read, and not given yet: a trouble came between."""
        self._from = ""
        """Objects of lower names are never read."""

    async def skip_present(self) -> None:
        """What is there now, also what only one member has, is old. Raises QuorumUnavailableError."""
        self._read = {name: info.synced for name, info in (await self._sizes()).items()}
        self._from = max(self._read, default="")

    async def poll(self) -> list[Found]:
        """What has come since the last call, in order. Raises QuorumUnavailableError,
        BrokenConnectionError, and CorruptError when members contradict each other; nothing is lost
        then: call again.
        """
        sizes = await self._sizes()
        for name in sorted(name for name in sizes if name >= self._from):
            if sizes[name].synced > self._read.get(name, 0):
                await self._read_on(name)
        kept = sorted(self._read)[-limits.queue_objects_kept :]
        self._from = kept[0] if len(kept) == limits.queue_objects_kept else self._from
        self._read = {name: self._read[name] for name in kept}
        self._readers = {name: reader for name, reader in self._readers.items() if name in self._read}
        found, self._found = self._found, []
        return found

    async def _read_on(self, name: str) -> None:
        reader = self._readers.setdefault(name, RecordReader())
        stream = self._store.stream(self._directory, name, self._read.setdefault(name, 0))
        # what fewer than a quorum have is nothing yet, and holds up no other object
        with suppress(NotFoundError, PastEndError):
            async with aclosing(stream):
                async for data in stream:
                    self._read[name] += len(data)
                    self._found += reader.feed(data)

    async def _sizes(self) -> dict[str, ObjectInfo]:
        """Each object of ours, its longest copy."""
        view = await self._store.look(self._directory)
        return _longest(view.answers.values())


class QueueRepair:
    """Brings members that were unavailable up to date with a directory's records. On the trio thread of its
    store.

    A claim for letters lasts for one write. So nobody fills a member that was unavailable then: a later
    writer goes on with the newest object at most. Whoever reads the letters for long runs this.
    """

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._behind: dict[tuple[bytes, str], int] = {}

    async def repair(self) -> None:
        """Repair copies that lack what a quorum holds, if they lacked just that at the last call too: a
        writer may be about to fill them.

        Raises QuorumUnavailableError, BrokenConnectionError; call again then.
        """
        before, self._behind = self._behind, await self._find_behind()
        if not any(before.get(copy) == synced for copy, synced in self._behind.items()):
            return
        await repair_store(self._store, [self._directory])

    async def _find_behind(self) -> dict[tuple[bytes, str], int]:
        """(member, object) -> what it has durably, of the newest objects."""
        answers = (await self._store.look(self._directory)).answers
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
    """Append records, synced on the quorum when this returns. Waits for a quorum as long as it takes: put
    a time around it. Cancelled or failed, they may be there or not, and another call may bring them a
    second time.
    """
    attempt = 0
    while True:
        view = await store.look(directory)
        try:
            claim = await store.claim(directory, view.epoch_seen + 1, randomness.fresh_id())
            async with claim:
                writer = await _writer(claim, len(data), roll_bytes)
                await writer.wait_synced(writer.append(data))
                await _tidy(claim, writer.name)
                return
        except FencedError:  # somebody else writes too: it is done within a moment
            attempt += 1
            await trio.sleep(backoff_s(attempt, randomness.jitter()))


async def _writer(claim: Claim, size: int, roll_bytes: int) -> ObjectWriter:
    """The newest object, if it can be gone on with; else a new one."""
    new = f"{claim.epoch:016x}"
    newest = max(_longest(claim.answers.values()), default="")
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
        if copy.received != copy.synced:
            return claim.open_object(new)
        if copy.synced and (await session.stat(newest, copy.synced)).digest != copy.digest:
            return claim.open_object(new)
    base = longest.synced - longest.synced % digest_block_bytes
    base_digest = (await session.stat(newest, base)).digest if base else 0
    tail = await session.get(newest, base, longest.synced - base) if longest.synced > base else b""
    return claim.resume_object(newest, base, base_digest, tail)


async def _tidy(claim: Claim, newest: str) -> None:
    """Objects that nobody looks at any more go: what was written is acknowledged in `newest`, and readers
    look at the few objects up to it (R14). What is not gone soon goes with a later writer.
    """
    there = sorted({newest, *_longest(claim.answers.values())})
    if len(there) > limits.queue_objects_kept:
        oldest = there[-limits.queue_objects_kept]
        with suppress(FencedError):  # somebody else writes now, and tidies
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
