"""A new copy of an object on its way in: how much of it is there, and what it is to be. Pure values.

Rules of this file: sizes, digests and extents of one new copy. Whether it may take the old one's place is
decided in `repairs`.
"""

from dos_protocol.digests import Buffer, PrefixDigest
from dos_protocol.messages import RepairChunk as Request
from dos_server.core.extent import AcceptedBytes, build_extents, link_after, object_seed
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max


class RepairInProgress:
    """See the module.

    `size`: logical bytes there; `position`: bytes of its file. `agrees`: at the old copy's size it has the
    old copy's digest; None as long as it is shorter. `busy`: the disk has something of it in hand; `orphan`:
    its session is gone or wants it no more."""

    def __init__(
        self, directory: str, request: Request, old: tuple[int, int], number: int, root: int
    ) -> None:
        """`old`: size and digest of the old copy, as it was written. `number`, `root`: no other copy's."""
        self.number = number
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
        """Whether the whole of it is what was announced."""
        return self._fold.value == self.request.goal_digest

    def same_as(self, other: Request) -> bool:
        """Whether the request goes on with this copy."""
        mine = self.request
        return (
            mine.name,
            mine.goal_size,
            mine.goal_digest,
            mine.old_size,
            mine.old_digest,
            mine.overwrite,
        ) == (
            other.name,
            other.goal_size,
            other.goal_digest,
            other.old_size,
            other.old_digest,
            other.overwrite,
        )

    def take(self, payload: Buffer, epoch: int) -> list[Buffer]:
        """The extents to write for the next bytes. They say of themselves that all below them is durable: it
        is, before anyone sees them."""
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
