"""The bytes of one object that its writer still has in memory, cut into the chunks that are sent. Pure.

Theory. `append` takes any bytes; they become *chunks*, each one APPEND on the wire, each knowing the prefix
digest before it. All members are sent the same chunks with the same request ids, so a chunk's frame is made
once, whatever the number of members. Cuts fall on multiples of 64 KiB, the block of the prefix digest,
always on those of 256 KiB, and wherever a sender had nothing more to take; small appends that come between
two takes travel as one chunk. So a chunk that starts at a block boundary is never far, and from it the
digest of any prefix within the window can be computed; and the digests at 256 KiB stay known as milestones.
When a block is whole, the chunks within it become one: what waits for a quorum costs its bytes, not a chunk
for every append.

`trim` forgets what every member that keeps up has, and what a quorum has beyond a bound; never what no
quorum has.

Not here: who has what. The window knows no members.
"""

from bisect import bisect_right
from collections.abc import Iterator

from dos_client.core.milestones import Milestones
from dos_client.limits import chunk_bytes_max, milestone_bytes
from dos_protocol.digests import Buffer, PrefixDigest
from dos_protocol.frames import frame_head
from dos_protocol.limits import digest_block_bytes, object_bytes_max
from dos_protocol.messages import encode
from dos_protocol.vocabulary import Append

APPEND_IDS = 1 << 63
_TAG_SHIFT = 43
"""Request ids of appends have the highest bit, then 20 bits of *tag*, the writer's number for the object,
then where the chunk ends. Ids of other requests never have that bit. A refusal is told by id alone: the tag
finds the object."""

if object_bytes_max >= 1 << _TAG_SHIFT:
    raise ValueError("an object's size must fit below the tag")


class Chunk:
    """`payload` stands at `start`, after content with the prefix digest `digest`."""

    __slots__ = ("digest", "end", "head", "payload", "start")

    def __init__(self, start: int, digest: int, payload: bytes) -> None:
        self.start = start
        self.end = start + len(payload)
        self.digest = digest
        self.payload = payload
        self.head: bytes | None = None


def append_id(tag: int, end: int) -> int:
    """The request id of the append that ends there."""
    return APPEND_IDS | tag << _TAG_SHIFT | end


def append_head(name: str, tag: int, chunk: Chunk) -> bytes:
    """Header and meta of the chunk's APPEND; made once, kept in the chunk."""
    if chunk.head is None:
        message = Append(name, chunk.start, chunk.digest, chunk.payload)
        chunk.head = frame_head(encode(message, append_id(tag, chunk.end)))
    return chunk.head


def tag_of(request_id: int) -> int | None:
    """The tag in the request id of an append; None for the id of another request."""
    return (request_id & ~APPEND_IDS) >> _TAG_SHIFT if request_id & APPEND_IDS else None


class SendWindow:
    """Invariants: chunks follow each other without a gap from `base` to the start of what is pending;
    `base` is a multiple of the digest's block; `size` counts everything appended, pending bytes too."""

    def __init__(self, base: int = 0, base_digest: int = 0, tail: bytes = b"") -> None:
        """A window that begins at `base`, a multiple of 64 KiB, with that prefix digest; `tail` is content
        after it."""
        self.milestones = Milestones()
        self._fold = PrefixDigest(base, base_digest)
        self._chunks: list[Chunk] = []
        self._starts: list[int] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._unfolded: list[bytes] = []
        self._pending_digest = base_digest
        self._base = base
        self.size = base
        if tail:
            self.append(tail)

    @property
    def base(self) -> int:
        """The first byte still here."""
        return self._base

    @property
    def digest(self) -> int:
        """The prefix digest at `size`."""
        self._fold_pending()
        return self._fold.value

    @property
    def retained_bytes(self) -> int:
        return self.size - self._base

    @property
    def chunks_count(self) -> int:
        return len(self._chunks)

    def append(self, data: Buffer) -> int:
        """Take the next bytes; returns the new size. A `bytes` is kept as it is, anything else copied."""
        count = len(data)
        if not isinstance(data, bytes):
            data = bytes(data)
        if count == digest_block_bytes and not self._pending and not self.size % digest_block_bytes:
            self._add_chunk(Chunk(self.size, self._fold.blocks_digest, data))  # the usual append, kept short
            self._fold.update(data)
            self._pending_digest = self._fold.blocks_digest
            self.size += count
            return self.size
        position = 0
        while position < count:
            position = self._append_part(data, position)
        return self.size

    def _append_part(self, data: bytes, position: int) -> int:
        """Put bytes from `position` on up to the next cut; returns where the next part begins."""
        until_block = digest_block_bytes - self.size % digest_block_bytes
        if until_block == digest_block_bytes and not self._pending_bytes:
            until_cut = chunk_bytes_max - self.size % chunk_bytes_max
            blocks = min(len(data) - position, until_cut) // digest_block_bytes
            until_block *= max(1, blocks)
        end = min(len(data), position + until_block)
        part = data if position == 0 and end == len(data) else data[position:end]
        self._pending.append(part)
        self._unfolded.append(part)
        self._pending_bytes += len(part)
        self.size += len(part)
        if not self.size % digest_block_bytes:
            self._cut()
        return end

    def _fold_pending(self) -> None:
        if self._unfolded:
            self._fold.update(b"".join(self._unfolded) if len(self._unfolded) > 1 else self._unfolded[0])
            self._unfolded.clear()

    def _cut(self) -> None:
        if not self._pending:
            return
        payload = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        self._add_chunk(Chunk(self.size - self._pending_bytes, self._pending_digest, payload))
        self._fold_pending()
        self._pending_digest = self._fold.value
        self._pending.clear()
        self._pending_bytes = 0

    def _add_chunk(self, chunk: Chunk) -> None:
        if not chunk.start % milestone_bytes:
            self.milestones.note(chunk.start, chunk.digest)
        self._chunks.append(chunk)
        self._starts.append(chunk.start)
        if chunk.start % digest_block_bytes and not chunk.end % digest_block_bytes:
            self._merge_block()

    def _merge_block(self) -> None:
        """A block is whole: its many small chunks become one, so that a window of small appends costs little
        more than its bytes. Who was sent a part of it is sent the rest as a chunk of its own."""
        index = len(self._starts) - 1
        while self._starts[index] % digest_block_bytes:
            index -= 1
        first = self._chunks[index]
        whole = Chunk(first.start, first.digest, b"".join(chunk.payload for chunk in self._chunks[index:]))
        self._chunks[index:] = [whole]
        del self._starts[index + 1 :]

    def chunks_from(self, offset: int) -> Iterator[Chunk]:
        """The chunks from `offset` on, to the end: pending bytes are cut off first. `base <= offset <= size`.

        When `offset` lies inside a chunk, the first one yielded is its rest."""
        if offset < self._base or offset > self.size:
            raise ValueError(f"offset {offset} is outside the window from {self._base} to {self.size}")
        if offset == self.size:
            return
        self._cut()
        index = bisect_right(self._starts, offset) - 1
        chunk = self._chunks[index]
        if chunk.start != offset:
            digest = self.digest_at(offset)
            assert digest is not None
            yield Chunk(offset, digest, chunk.payload[offset - chunk.start :])
            index += 1
        for place in range(index, len(self._chunks)):
            yield self._chunks[place]

    def digest_at(self, offset: int) -> int | None:
        """The prefix digest at `offset`, or None when the bytes it needs are no longer here."""
        if offset < self._base or offset > self.size:
            return None
        if offset == self.size:
            return self.digest
        self._cut()
        index = bisect_right(self._starts, offset) - 1
        if self._starts[index] == offset:
            return self._chunks[index].digest
        while self._starts[index] % digest_block_bytes:
            index -= 1
        fold = PrefixDigest(self._starts[index], self._chunks[index].digest)
        while fold.size < offset:
            fold.update(self._chunks[index].payload[: offset - fold.size])
            index += 1
        return fold.value

    def trim(self, keep_from: int) -> None:
        """Forget what ends at or before `keep_from`, in whole blocks."""
        index = bisect_right(self._starts, keep_from) - 1
        while index > 0 and self._starts[index] % digest_block_bytes:
            index -= 1
        if index <= 0:
            return
        del self._chunks[:index]
        del self._starts[:index]
        self._base = self._starts[0]
