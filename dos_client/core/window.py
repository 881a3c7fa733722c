"""The bytes of one object that its writer still has in memory, divided into the chunks that are sent. Pure.

Each *chunk* is one APPEND on the wire and carries the prefix digest before it. All members receive the same
chunks with the same request ids, so a frame is encoded once, a small one together with its bytes. A chunk
ends at multiples of 64 KiB (the block of the digest) or 256 KiB, or where a sender had nothing more to send.
So a chunk that starts at a block boundary is never far away, and the digest of any prefix within the window
can be computed from it.

`trim` drops bytes that every member that keeps up has, and bytes beyond a bound that a quorum has. It never
drops bytes that no quorum has.
"""

from array import array
from bisect import bisect_right

from dos_client.limits import (
    append_times_max,
    append_times_step_s,
    chunk_bytes_max,
    joined_frame_bytes_max,
    milestone_bytes,
    milestones_max,
)
from dos_protocol.digests import Buffer, PrefixDigest
from dos_protocol.frames import encode_frame, frame_head
from dos_protocol.limits import digest_block_bytes, object_bytes_max
from dos_protocol.messages import Append, encode

APPEND_IDS = 1 << 63
_TAG_SHIFT = 43
"""The request id of an append: the highest bit, 20 bits of *tag*, the writer's number for the object, and the
end of the chunk. A rejection carries only the id, so the tag identifies the object."""

if object_bytes_max >= 1 << _TAG_SHIFT:
    raise ValueError("an object's size must fit below the tag")


class Chunk:
    __slots__ = ("digest", "end", "frame", "payload", "start")

    def __init__(self, start: int, digest: int, payload: bytes) -> None:
        self.start = start
        self.end = start + len(payload)
        self.digest = digest
        self.payload = payload
        self.frame: tuple[bytes, ...] = ()


def append_id(tag: int, end: int) -> int:
    return APPEND_IDS | tag << _TAG_SHIFT | end


def append_frame(name: str, tag: int, chunk: Chunk) -> tuple[bytes, ...]:
    """Return the buffers of the chunk's APPEND. It is encoded once, and is the same for all members."""
    if not chunk.frame:
        message = Append(name, chunk.start, chunk.digest, chunk.payload)
        frame = encode(message, append_id(tag, chunk.end))
        small = len(chunk.payload) <= joined_frame_bytes_max
        chunk.frame = (encode_frame(frame),) if small else (frame_head(frame), chunk.payload)
    return chunk.frame


def tag_of(request_id: int) -> int | None:
    return (request_id & ~APPEND_IDS) >> _TAG_SHIFT if request_id & APPEND_IDS else None


class SendWindow:
    """The retained bytes of one object. Chunks follow each other without a gap from `base`, a multiple of the
    digest's block, to the pending bytes; `size` counts everything appended.
    """

    def __init__(self, base: int = 0, base_digest: int = 0, tail: bytes = b"") -> None:
        """Begin at `base`, a multiple of 64 KiB, with that prefix digest. `tail` is content after it."""
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
        return self._base

    @property
    def digest(self) -> int:
        self._fold_pending()
        return self._fold.value

    @property
    def retained_bytes(self) -> int:
        return self.size - self._base

    @property
    def chunks_count(self) -> int:
        return len(self._chunks)

    def append(self, data: Buffer) -> int:
        """Append bytes and return the new size. A `bytes` object is kept, anything else is copied."""
        count = len(data)
        if not isinstance(data, bytes):
            data = bytes(data)
        if count == digest_block_bytes and not self._pending and not self.size % digest_block_bytes:
            # the most frequent append, as a fast path
            self._add_chunk(Chunk(self.size, self._fold.blocks_digest, data))
            self._fold.update(data)
            self._pending_digest = self._fold.blocks_digest
            self.size += count
            return self.size
        position = 0
        while position < count:
            position = self._append_part(data, position)
        return self.size

    def _append_part(self, data: bytes, position: int) -> int:
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
        # Merged: a window of small appends costs little more than its bytes.
        index = len(self._starts) - 1
        while self._starts[index] % digest_block_bytes:
            index -= 1
        first = self._chunks[index]
        merged = Chunk(first.start, first.digest, b"".join(chunk.payload for chunk in self._chunks[index:]))
        self._chunks[index:] = [merged]  # a member that was sent a part of the block gets the rest alone
        del self._starts[index + 1 :]

    def chunks_from(self, offset: int) -> list[Chunk]:
        """Return the chunks from `offset` to the end, the first one perhaps in part. Pending bytes become a
        chunk first.
        """
        if offset < self._base or offset > self.size:
            raise ValueError(f"offset {offset} is outside the window from {self._base} to {self.size}")
        if offset == self.size:
            return []
        if self._pending:
            self._cut()
        if self._starts[-1] == offset:  # the usual append
            return self._chunks[-1:]
        index = bisect_right(self._starts, offset) - 1
        chunk = self._chunks[index]
        if chunk.start == offset:
            return self._chunks[index:]
        digest = self.digest_at(offset)
        assert digest is not None
        return [Chunk(offset, digest, chunk.payload[offset - chunk.start :]), *self._chunks[index + 1 :]]

    def digest_at(self, offset: int) -> int | None:
        """Return the prefix digest at `offset`, or None if the bytes for it are no longer in memory."""
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
        """Drop whole blocks that end at or before `keep_from`."""
        index = bisect_right(self._starts, keep_from) - 1
        while index > 0 and self._starts[index] % digest_block_bytes:
            index -= 1
        if index <= 0:
            return
        del self._chunks[:index]
        del self._starts[:index]
        self._base = self._starts[0]


class Milestones:
    """Digests at multiples of `milestone_bytes`, without a gap, for the first `milestones_max` only."""

    __slots__ = ("_digests", "_first")

    def __init__(self) -> None:
        self._first = 0
        self._digests = array("Q")

    def __len__(self) -> int:
        return len(self._digests)

    def note(self, size: int, digest: int) -> None:
        """Record the digest of the prefix of `size` bytes, if that is the next multiple of
        `milestone_bytes`.
        """
        if size % milestone_bytes:
            raise ValueError(f"a milestone must be at a multiple of {milestone_bytes}, got {size}")
        index = size // milestone_bytes
        if not self._digests:
            self._first = index
        if index == self._first + len(self._digests) and len(self._digests) < milestones_max:
            self._digests.append(digest)

    def at(self, size: int) -> int | None:
        index = size // milestone_bytes - self._first
        if size % milestone_bytes or not 0 <= index < len(self._digests):
            return None
        return self._digests[index]


def milestone_range(offset: int, limit: int) -> tuple[int, int]:
    """Return the range around `offset` that is verified as a unit: up to the next milestone or `limit`."""
    begin = offset - offset % milestone_bytes
    return begin, min(begin + milestone_bytes, limit)


class AppendTimes:
    """Samples (size, time): the bytes at `size` and after were appended at `time` or later. At most
    `append_times_max`: above that, every second of the older half is dropped.
    """

    __slots__ = ("_sizes", "_times")

    def __init__(self, now: float) -> None:
        self._sizes = [0]
        self._times = [now]

    def __len__(self) -> int:
        return len(self._sizes)

    def note(self, size: int, now: float) -> None:
        """Record that the object has `size` bytes at time `now`. Later bytes are younger."""
        if size == self._sizes[-1]:
            self._times[-1] = now
        elif now - self._times[-1] >= append_times_step_s:
            self._sizes.append(size)
            self._times.append(now)
            if len(self._sizes) > append_times_max:
                half = append_times_max // 2
                del self._sizes[1:half:2], self._times[1:half:2]

    def age(self, offset: int, now: float) -> float:
        index = max(0, bisect_right(self._sizes, offset) - 1)
        return max(0.0, now - self._times[index])
