"""Raw objects of a directory as a source: a split is an object, a piece consists of some of its records.

A stream returns only finished records: lines with their newline. A batch also returns an object's last line
without one. An object has one line of history, so its points have no epoch. If it is shorter than what was
read of it, or gone, data was lost. `decoding` interprets the records.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from fnmatch import fnmatchcase

import pyarrow as pa

from dos_client import Store
from dos_client.reading.committed import CommittedReads
from dos_client.reading.member_queries import with_retries
from dos_protocol.errors import NotFoundError
from spark_integration.core.framing import (
    ArrowFramer,
    ArrowMessages,
    Framer,
    JournalFramer,
    LineFramer,
    PrefixFramer,
)
from spark_integration.core.offsets import BEGINNING, SplitPoint, StreamPiece
from spark_integration.core.options import ObjectContent, ReadGuarantee, SourceOptions
from spark_integration.errors import NothingThereError, nearest
from spark_integration.limits import PIECES_PER_TRIGGER, SAMPLE_BYTES, SEEK_BYTES
from spark_integration.reading.origin import ByteRange, Origin, Scan

logger = logging.getLogger("dos.spark_integration")
EXTRA = pa.schema([("_object", pa.string()), ("_offset", pa.int64())])
_FRAMERS: dict[ObjectContent, Callable[[str, int], Framer]] = {
    ObjectContent.ARROW: ArrowFramer,
    ObjectContent.LINES: LineFramer,
    ObjectContent.JSON: LineFramer,
    ObjectContent.LENGTH_PREFIXED: PrefixFramer,
    ObjectContent.JOURNAL: JournalFramer,
}
_LINES = (ObjectContent.LINES, ObjectContent.JSON)


class ObjectOrigin(Origin):
    """The objects of a directory."""

    what = "objects"

    def __init__(self, store: Store, options: SourceOptions) -> None:
        assert options.content is not None, "the options guarantee it"
        super().__init__(store, options)
        self._content = options.content
        self.directory = options.directory
        arrow = self._content is ObjectContent.ARROW
        self.extra = pa.schema([EXTRA.field("_object")]) if arrow else EXTRA
        self._tails: dict[str, ObjectScan] = {}
        rows, size = options.rows_max, options.bytes_max
        self.piece_limits = (
            1 << 62 if rows is None else 1 if arrow else max(1, rows // PIECES_PER_TRIGGER),
            1 << 62 if size is None else size // PIECES_PER_TRIGGER,
        )
        """Maximum number of records, and of bytes, of one piece, which a micro-batch takes whole."""

    async def splits(self) -> list[str]:
        view = await self.store.inspect(self.directory)
        names = sorted({name for objects in view.answers.values() for name in objects})
        if not names and not view.epoch_seen:
            near = nearest(self.directory, await self.store.list_directories())
            raise NothingThereError(
                f"there is no directory {self.directory!r} in the store {self.options.servers}{near}",
                remedy="`dos ls` lists what is there",
            )
        one = self.options.object
        if one is not None:
            if one not in names:
                raise NothingThereError(
                    f"there is no object {one!r} in directory {self.directory!r}{nearest(one, names)}",
                    remedy="`dos ls` lists what is there",
                )
            return [one]
        pattern = self.options.objects or "*"
        return [name for name in names if fnmatchcase(name, pattern)]

    async def size(self, split: str) -> int:
        """Return how far an object may be read now. Raises NotFoundError."""
        if self.options.read is ReadGuarantee.SYNCED:
            view = await self.store.inspect(self.directory)
            sizes = [objects[split].synced for objects in view.answers.values() if split in objects]
            return max(sizes, default=0)
        return (await with_retries(self.store, CommittedReads(self.store, self.directory, split).reach)).held

    async def bytes_at(self, split: str, offset: int, size: int) -> bytes:
        """Return some bytes from an offset."""
        committed = self.options.read is ReadGuarantee.COMMITTED
        return await self.store.read(self.directory, split, offset, size, committed=committed)

    async def all_ranges(self, split: str) -> list[ByteRange]:
        size, ranges, begin = await self.size(split), [], 0
        if self._content not in _LINES:
            return [ByteRange(self.directory, split, 0, size)] if size else []
        while begin < size:
            end = min(begin + self.options.partition_bytes, size)
            end = await self._line_end_after(split, end, size) if end < size else size
            ranges.append(ByteRange(self.directory, split, begin, end))
            begin = end
        return ranges

    async def begin(self, split: str) -> SplitPoint:
        del split
        return BEGINNING

    async def end(self, split: str) -> SplitPoint:
        if self._content in _LINES:
            return SplitPoint(0, await self._line_end_before(split, await self.size(split)))
        tail = self._tails.get(split)
        if tail is None:
            tail = self._tails[split] = ObjectScan(self, split, BEGINNING)
        while await tail.next() is not None:
            pass
        return tail.at

    async def data_end(self, split: str) -> SplitPoint:
        return SplitPoint(0, await self._size_now(split))

    async def ranges(self, split: str, start: SplitPoint, end: SplitPoint) -> list[ByteRange]:
        if start == end or not end.size:
            return []
        size = await self._size_now(split)
        if size < end.size:
            self._report_loss(split, f"ends at byte {size}, but is to be read up to byte {end.size}")
            return []
        if end.size < start.size:
            self._report_loss(split, f"was read up to byte {start.size}, but later ended at byte {end.size}")
        return [ByteRange(self.directory, split, start.size if start.size < end.size else 0, end.size)]

    async def scan(self, split: str, start: SplitPoint) -> "ObjectScan":
        size = await self._size_now(split) if start.size else 0
        if size < start.size:
            self._report_loss(split, f"was read up to byte {start.size}, but ends at byte {size}")
            return ObjectScan(self, split, BEGINNING)
        return ObjectScan(self, split, start)

    async def first_rows(self, split: str) -> AsyncGenerator[bytes]:
        if self._content not in (ObjectContent.ARROW, ObjectContent.JSON):
            yield b""  # these contents always have the same columns
            return
        data = b""
        async with aclosing(self._from(split, 0, SAMPLE_BYTES)) as chunks:
            async for chunk in chunks:
                data += chunk
        if self._content is ObjectContent.JSON:
            data = data[: data.rfind(b"\n") + 1] or data
        elif not ArrowMessages(f"{self.directory}/{split}", 0).feed(data):
            return  # not even the schema is complete
        if data:
            yield data

    def framer(self, split: str, at: int) -> Framer:
        """Return a framer that finds the ends of records from an offset on."""
        return _FRAMERS[self._content](f"{self.directory}/{split}", at)

    async def _from(self, split: str, offset: int, size: int) -> AsyncGenerator[bytes]:
        end = min(offset + size, await self.size(split))
        while offset < end:
            chunk = await self.bytes_at(split, offset, end - offset)
            if not chunk:
                return
            offset += len(chunk)
            yield chunk

    async def _line_end_after(self, split: str, offset: int, size: int) -> int:
        """Return the position after the first newline at or after the byte before `offset`."""
        at = offset - 1
        while at < size:
            data = await self.bytes_at(split, at, min(SEEK_BYTES, size - at))
            if not data:
                break
            newline = data.find(b"\n")
            if newline >= 0:
                return at + newline + 1
            at += len(data)
        return size

    async def _line_end_before(self, split: str, size: int) -> int:
        """Return the position after the last newline below `size`; 0 if there is none."""
        end = size
        while end > 0:
            begin = max(end - SEEK_BYTES, 0)
            data = b""
            while len(data) < end - begin:
                more = await self.bytes_at(split, begin + len(data), end - begin - len(data))
                if not more:
                    break
                data += more
            newline = data.rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return 0

    async def _size_now(self, split: str) -> int:
        try:
            return await self.size(split)
        except NotFoundError:
            return 0

    def _report_loss(self, split: str, what: str) -> None:
        self.lost(f"{self.directory}/{split} {what}")


class ObjectScan(Scan):
    """A scan of one object from a record boundary on; its pieces are whole records, within the limits."""

    def __init__(self, origin: ObjectOrigin, split: str, start: SplitPoint) -> None:
        self.at = start
        self._origin = origin
        self._split = split
        self._start = start.size
        self._read = start.size
        self._framer = origin.framer(split, start.size)
        self._ends: list[int] = []
        self._rows_max, self._bytes_max = origin.piece_limits

    async def next(self) -> StreamPiece | None:
        while not self._ends:
            size = await self._origin.size(self._split)
            if self._read >= size:
                return None
            chunk = await self._origin.bytes_at(self._split, self._read, min(SEEK_BYTES, size - self._read))
            if not chunk:
                return None
            self._read += len(chunk)
            self._ends = self._framer.feed(chunk)
        records, end = 1, self._ends[0]
        for further in self._ends[1 : self._rows_max]:
            if further - self.at.size > self._bytes_max:
                break
            records, end = records + 1, further
        del self._ends[:records]
        size = end - self.at.size
        self.at = SplitPoint(0, end)
        return StreamPiece(self.at, self._framer.rows(records), size, end - self._start)

    async def aclose(self) -> None:
        self._ends = []
