"""Copy bytes of an object from one place to another, with the prefix digest verified at both.

What the source returns is folded into the prefix digest, and compared wherever the digest is known, before it
is passed on. Each chunk carries the prefix digest before it, which the target compares with its own content.
So no byte can follow wrong content, and an interrupted copy continues where the target ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dos_client.core.window import Chunk
from dos_client.sessions.connection import Connection
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import CorruptDataError
from dos_protocol.limits import digest_block_bytes


class CopySource(Protocol):
    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Return durable bytes from `offset`, none at the end."""
        ...

    async def digest(self, size: int) -> int:
        """Return the prefix digest at that size."""
        ...


class CopyTarget(Protocol):
    async def wanted(self, offset: int) -> int:
        """Wait until there is room. Return how many bytes from `offset` on to read next; 0 ends the copy."""
        ...

    async def put(self, chunk: Chunk) -> None:
        """Append the chunk."""
        ...


@dataclass(frozen=True, slots=True)
class MemberSource:
    connection: Connection
    name: str

    def __str__(self) -> str:
        return f"{self.name} of {self.connection.address}"

    async def read(self, offset: int, max_bytes: int) -> bytes:
        return await self.connection.get(self.name, offset, max_bytes)

    async def digest(self, size: int) -> int:
        return (await self.connection.stat(self.name, size)).digest


async def fold_at(source: CopySource, size: int) -> PrefixDigest:
    """Return the source's digest at `size`, to continue from there. Reads a digest and less than a block."""
    block = size - size % digest_block_bytes
    fold = PrefixDigest(block, await source.digest(block) if block else 0)
    while fold.size < size:
        data = await source.read(fold.size, size - fold.size)
        if not data:
            raise CorruptDataError(str(source), fold.size, f"{size} durable bytes", "fewer")
        fold.update(data)
    return fold


async def copy_bytes(
    source: CopySource, target: CopyTarget, fold: PrefixDigest, digest_at: Callable[[int], int | None]
) -> int:
    """Copy from the end of `fold`, the content that the target has, until it wants no more or the source
    ends. Returns the size that was reached. Raises CorruptDataError if the source has other bytes, and the
    errors of both; the target has whole chunks then, and nothing wrong.
    """
    while wanted := await target.wanted(fold.size):
        data = await source.read(fold.size, wanted)
        if not data:
            break
        chunk = Chunk(fold.size, fold.value, data)
        fold.update(data)
        # before it is passed on: the target would append wrong bytes after right ones, and could only be
        # repaired as a whole
        expected = digest_at(fold.size)
        if expected is not None and expected != fold.value:
            raise CorruptDataError(str(source), fold.size, f"{expected:016x}", f"{fold.value:016x}")
        await target.put(chunk)
    return fold.size
