"""xxh3-64 and the prefix digest. Both detect accidents, not attacks.

The prefix digest of content c, divided into 64 KiB blocks b_0 .. b_{k-1} and a tail t shorter than a block:

    D_0 = 0;  D_{i+1} = xxh3_64(b_i, seed=D_i);  value = D_k if t is empty, else xxh3_64(t, seed=D_k)

It does not depend on how c was divided into appends, and it can be resumed from (k, D_k) and the tail. It
distinguishes two histories of the same length: an append that names it cannot be stored after another
writer's bytes.
"""

from typing import Final, NamedTuple

import xxhash

from dos_protocol.limits import digest_block_bytes

Buffer = bytes | bytearray | memoryview

_one_shot: Final = xxhash.xxh3_64_intdigest


def digest64(data: Buffer, seed: int = 0) -> int:
    """Return the xxh3-64 of the data as an unsigned number."""
    value: int = _one_shot(data, seed)
    return value


class ResumePoint(NamedTuple):
    """The prefix digest at `size`, a multiple of 64 KiB: `PrefixDigest(*point)` continues from there."""

    size: int
    digest: int


class PrefixDigest:
    """The digest of all bytes passed to `update` so far, readable at any time. Resumes at a multiple of 64
    KiB.

    Invariants: `size` counts the bytes; `blocks_digest` is D_k for k = size // 64 KiB; the tail is in the
    hasher.
    """

    __slots__ = ("_tail", "_tail_bytes", "blocks_digest", "size")

    def __init__(self, size: int = 0, blocks_digest: int = 0) -> None:
        if size % digest_block_bytes:
            raise ValueError(
                f"a prefix digest resumes at a multiple of {digest_block_bytes} bytes, not {size}"
            )
        self.size = size
        self.blocks_digest = blocks_digest
        self._tail: xxhash.xxh3_64 | None = None
        self._tail_bytes = 0

    @property
    def value(self) -> int:
        if self._tail is None:
            return self.blocks_digest
        value: int = self._tail.intdigest()
        return value

    def update(self, data: Buffer) -> None:
        """Add the next bytes, in pieces of any length."""
        count = len(data)
        if count == digest_block_bytes and self._tail is None:  # fast path: the usual append
            self.blocks_digest = _one_shot(data, self.blocks_digest)
            self.size += count
            return
        if self._tail is not None and self._tail_bytes + count < digest_block_bytes:  # a small append
            self._tail.update(data)
            self._tail_bytes += count
            self.size += count
            return
        self._update_slowly(memoryview(data), count)

    def _update_slowly(self, view: memoryview, count: int) -> None:
        start = 0
        self.size += count
        if self._tail is not None:
            start = min(count, digest_block_bytes - self._tail_bytes)
            self._tail.update(view[:start])
            self._tail_bytes += start
            if self._tail_bytes < digest_block_bytes:
                return
            self.blocks_digest = self._tail.intdigest()
            self._tail, self._tail_bytes = None, 0
        while count - start >= digest_block_bytes:
            self.blocks_digest = _one_shot(view[start : start + digest_block_bytes], self.blocks_digest)
            start += digest_block_bytes
        if start < count:
            self._tail = xxhash.xxh3_64(view[start:], self.blocks_digest)
            self._tail_bytes = count - start

    def copy(self) -> "PrefixDigest":
        twin = PrefixDigest(0, self.blocks_digest)
        twin.size = self.size
        twin._tail = None if self._tail is None else self._tail.copy()
        twin._tail_bytes = self._tail_bytes
        return twin


def prefix_digest(data: Buffer) -> int:
    fold = PrefixDigest()
    fold.update(data)
    return fold.value
