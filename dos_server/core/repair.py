"""A new copy of an object while it is being received: how much of it is there, and what it should become.

Pure: sizes, digests and extents of one new copy. `repairs` decides whether it may replace the old one.
"""

from dos_protocol.digests import Buffer, PrefixDigest
from dos_protocol.messages import RepairChunk as Request
from dos_server.core.files.extent import AcceptedBytes, build_extents, link_after, object_seed
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max


class RepairInProgress:
    """One new copy that a session sends.

    `size`: logical bytes received. `position`: bytes of its file. `agrees`: whether it has the old copy's
    digest at the old copy's size; None while it is shorter. `busy`: the disk is working on it. `orphan`: its
    session has ended or no longer wants it.
    """

    def __init__(
        self, directory: str, request: Request, old: tuple[int, int], number: int, root: int
    ) -> None:
        """Begin an empty copy.

        `old`: size and digest of the old copy as it was written. `number`, `root`: unique to this copy.
        """
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
        """Logical bytes received."""
        return self._fold.size

    @property
    def complete(self) -> bool:
        """Whether all announced bytes were received."""
        return self.size == self.request.goal_size

    @property
    def digest_matches(self) -> bool:
        """Whether the content has the announced digest."""
        return self._fold.value == self.request.goal_digest

    def same_as(self, other: Request) -> bool:
        """Return whether the request continues this copy."""
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

    def extents_for(self, payload: Buffer, epoch: int) -> list[Buffer]:
        """Return the extents to write for the next bytes.

        Their headers declare everything below them durable, which is true before the copy becomes visible.
        """
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
        """Add bytes to the fold, and compare it with the old copy's digest at the old copy's size."""
        before = self._old_size - self._fold.size
        if 0 < before <= len(part):
            at_old = self._fold.copy()
            at_old.update(part[:before])
            self.agrees = at_old.value == self._old_digest
        self._fold.update(part)
