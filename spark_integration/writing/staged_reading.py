"""Reads staged rows for the commit: in pieces of several parts, and ahead of the sender.

The bytes are returned in order, and each part is verified with the digest that its task reported. While one
piece is sent the next ones are read, so that neither waits for the other.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field

import trio

from dos_client import Store
from dos_protocol.digests import digest64
from dos_protocol.errors import NotFoundError, PastEndError
from spark_integration.errors import StagedRowsGoneError
from spark_integration.limits import SINK_READ_BYTES, SINK_READS_AHEAD
from spark_integration.writing.staging import StagedCommit, StagedPart


@dataclass(slots=True)
class _Piece:
    """Consecutive parts of an object from `begin` on, or parts that came with their data.

    After `ended` is set, it has their data or the error.
    """

    prepared: StagedCommit
    begin: int
    parts: list[StagedPart]
    data: list[bytes] = field(default_factory=list)
    error: Exception | None = None
    ended: trio.Event = field(default_factory=trio.Event)


class StagedReading:
    """All staged parts, in order. `run` reads and `parts` yields, in tasks of one nursery."""

    def __init__(self, store: Store, prepared: Sequence[StagedCommit]) -> None:
        self._store = store
        self._pieces = [piece for one in prepared for piece in _pieces(one)]
        self._room = trio.Semaphore(SINK_READS_AHEAD)

    async def run(self) -> None:
        """Read until everything is read. Errors are raised by `parts`."""
        async with trio.open_nursery() as nursery:
            for piece in self._pieces:
                await self._room.acquire()
                nursery.start_soon(self._read, piece)

    async def parts(self) -> AsyncGenerator[tuple[int, bytes]]:
        """Yield rows and data of each part. Raises StagedRowsGoneError, and what reading raises."""
        for piece in self._pieces:
            await piece.ended.wait()
            if piece.error is not None:
                raise piece.error
            for part, data in zip(piece.parts, piece.data, strict=True):
                yield part.rows, data
            piece.data = []
            self._room.release()

    async def _read(self, piece: _Piece) -> None:
        try:
            piece.data = await staged_data(self._store, piece.prepared, piece.begin, piece.parts)
        except Exception as error:
            piece.error = error
        finally:
            piece.ended.set()


def _pieces(prepared: StagedCommit) -> Iterator[_Piece]:
    at, begin, parts = 0, 0, list[StagedPart]()
    for part in prepared.parts:
        if parts and at - begin + part.size > SINK_READ_BYTES:
            yield _Piece(prepared, begin, parts)
            begin, parts = at, []
        parts.append(part)
        at += part.size
    if parts:
        yield _Piece(prepared, begin, parts)


async def staged_data(
    store: Store, prepared: StagedCommit, begin: int, parts: Sequence[StagedPart]
) -> list[bytes]:
    """Return the data of parts, which begin at `begin` if they are in the store.

    Raises StagedRowsGoneError, and what reading raises.
    """
    handed = [part.data for part in parts if part.data is not None]
    if len(handed) == len(parts):
        return handed
    staged = await _bytes_of(store, prepared, begin, sum(part.size for part in parts))
    data, at = [], 0
    for part in parts:
        one = staged[at : at + part.size]
        if digest64(one) != part.digest:
            location = f"{prepared.directory}/{prepared.name}, {begin + at} to {begin + at + part.size}"
            raise StagedRowsGoneError(f"{location}: the bytes differ from those that the task staged")
        data.append(one)
        at += part.size
    return data


async def _bytes_of(store: Store, prepared: StagedCommit, begin: int, size: int) -> bytes:
    """Return bytes of the staged object; fewer only if the object is shorter."""
    chunks = list[bytes]()
    remaining = size
    try:
        while remaining:
            data = await store.read(prepared.directory, prepared.name, begin + size - remaining, remaining)
            if not data:
                break
            chunks.append(data)
            remaining -= len(data)
    except (NotFoundError, PastEndError) as error:
        location = f"{prepared.directory}/{prepared.name}"
        raise StagedRowsGoneError(f"{location} is gone: another attempt removed it ({error})") from error
    return b"".join(chunks)
