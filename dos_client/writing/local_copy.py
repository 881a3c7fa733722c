"""The writer's own copy of an object, in a local file: the first source to fill a member from.

A local copy is an unreliable cache. At any time it may be deleted, truncated, outdated or another object's.
So no byte of it is used before the digest of its range matches a known one: from the writer's milestones, its
memory, or the object's end. A copy that was wrong or too slow once is never used again.
"""

import logging
from typing import Final, Protocol

import trio

from dos_client.core.milestones import Milestones, milestone_range
from dos_client.core.window import SendWindow
from dos_client.limits import local_read_timeout_s, milestone_bytes
from dos_protocol.digests import PrefixDigest

log: Final = logging.getLogger("dos.client")


class LocalCopy(Protocol):
    """The bytes of one object on this machine, if there are any. Called from threads; never raises."""

    def size(self) -> int:
        """Return the number of bytes, 0 if there are none."""
        ...

    def read(self, offset: int, max_bytes: int) -> bytes | None:
        """Return bytes from `offset`, fewer at the end, or None if they cannot be read."""
        ...


class CopiedTarget(Protocol):
    """The object of which there is a local copy (`target.WriteTarget`)."""

    name: str
    milestones: Milestones
    window: SendWindow | None
    goal_size: int
    goal_digest: int

    @property
    def base(self) -> int:
        """Where the memory begins."""
        ...

    def digest_at(self, size: int) -> int | None:
        """Return the prefix digest at `size` if it is known."""
        ...


class Proved:
    """Verified bytes of an object: `data` at `start`, after content with the prefix digest `digest`."""

    __slots__ = ("data", "digest", "start")

    def __init__(self, start: int, digest: int, data: bytes) -> None:
        self.start = start
        self.digest = digest
        self.data = data


class LocalSource:
    """The local copy of one target, as far as it can be verified. Shared by all members that lack
    something.
    """

    def __init__(self, target: CopiedTarget, copy: LocalCopy | None) -> None:
        self._target = target
        self._copy = copy
        self._proving = trio.Lock()

    def size(self) -> int:
        """Return the size that it may be useful for, 0 if it is not usable."""
        return self._copy.size() if self._copy is not None else 0

    async def proved(self, offset: int) -> Proved | None:
        """Return the bytes from `offset` to the next milestone, or to where the memory begins.

        Returns None if they are not available or not the writer's. `data` is empty where the memory begins.
        """
        begin, end = milestone_range(offset, self._target.base)
        before, after = self._target.milestones.at(begin), self._target.digest_at(end)
        if self._copy is None or end < offset:
            return None
        if before is None or after is None:
            if not await self._prove_all():
                return None
            before, after = self._target.milestones.at(begin), self._target.digest_at(end)
            if before is None or after is None:
                return None
        data = await self._read(begin, end - begin)
        if data is None:
            return None
        fold = PrefixDigest(begin, before)
        fold.update(memoryview(data)[: offset - begin])
        digest = fold.value
        fold.update(memoryview(data)[offset - begin :])
        if fold.value != after:
            self._distrust(f"its content between {begin} and {end} is different")
            return None
        return Proved(offset, digest, data[offset - begin :] if offset > begin else data)

    async def _prove_all(self) -> bool:
        """Fold the whole copy once, if only the digest of the object's end is known.

        If that digest results, the digests on the way become milestones.
        """
        async with self._proving:
            target = self._target
            if len(target.milestones):
                return True
            if target.window is not None or self._copy is None:
                return False
            milestones, fold = Milestones(), PrefixDigest()
            while fold.size < target.goal_size:
                milestones.note(fold.size, fold.value)
                data = await self._read(fold.size, min(milestone_bytes, target.goal_size - fold.size))
                if data is None:
                    return False
                fold.update(data)
            if fold.value != target.goal_digest:
                self._distrust(f"its first {target.goal_size} bytes are different")
                return False
            target.milestones = milestones
            return True

    async def _read(self, offset: int, count: int) -> bytes | None:
        """Read exactly `count` bytes. Returns None and stops using the copy if that fails."""
        if self._copy is None or not count:
            return b"" if not count else None
        data: bytes | None = None
        with trio.move_on_after(local_read_timeout_s):
            data = await trio.to_thread.run_sync(self._copy.read, offset, count, abandon_on_cancel=True)
        if data is None or len(data) != count:
            self._distrust(f"it cannot be read from byte {offset} on")
            return None
        return data

    def _distrust(self, why: str) -> None:
        if self._copy is not None:
            log.info("the local copy of %s is not used: %s", self._target.name, why)
        self._copy = None
