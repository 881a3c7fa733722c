"""The tree under one claim: requests, appends, space. A request keeps the `ServedTree` in which it began, and
ends with it: its pieces are bytes of that epoch, and offsets of another line of history would name others.

An answer is composed in one step, together with the logical offset on which it rests, and waits until that is
synced; it is never composed anew. A refusal is an answer, too. If the lease was over when it was composed, it
waits for a MARK that is appended afterwards.
"""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Final, TypeVar

import trio

from dos_client import Claim, MissingDataError, QuorumUnavailableError, Store
from dos_gateway.core.hadoop import FileStatus, HadoopError, Parts, Summary, refused, standby, text_of
from dos_gateway.core.records import change_record, extent_of, is_body, piece_record, read_change
from dos_gateway.core.roles import Lease
from dos_gateway.core.space import BodyExtent, SegmentNote, alive_in
from dos_gateway.core.tree import Change, CopyForward, PutFile, Tree, TreeHead, TreeNode, TreeNodes
from dos_gateway.limits import (
    beat_s,
    cache_bytes_max,
    deletions_bytes,
    give_back_again_s,
    inline_bytes_max,
    lease_s,
    lease_wait_s,
    piece_bytes,
    segment_bytes,
    settle_wait_s,
    snapshot_nodes,
    upload_unsynced_bytes_max,
    yield_nodes,
)
from dos_protocol.errors import ClosedError, CorruptError, DosError, FencedError, NotFoundError, PoisonedError
from dos_protocol.limits import MIB
from journal import (
    ChainState,
    ChainWriter,
    Op,
    Position,
    Record,
    SegmentName,
    SegmentSpan,
    parse_segment_name,
    read_plain_batches,
    take_over,
)

logger: Final = logging.getLogger("dos.gateway")
CHAIN: Final = "fs"
T = TypeVar("T")


def directory_of(name: str) -> str:
    """Return the directory of the store in which the chain of a tree lies."""
    return f"{name}.fs"


def clock() -> float:
    """Return seconds that a suspended machine counts, too: a lease must not sleep with it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now_ms() -> int:
    return int(time.time() * 1000)


async def replay(reader: Claim | Store, state: ChainState, directory: str | None = None) -> Tree:
    """Return the tree of a chain. directory: for a reader without a claim. Raises as `read_plain_batches`."""
    notes = tuple(_note(span) for span in state.segments)
    tree, nodes = Tree(notes), 0
    async with aclosing(read_plain_batches(reader, state, directory=directory)) as batches:
        async for batch in batches:
            for end, record in batch:
                if record.op is Op.FS_CHANGE:
                    change = read_change(record, end)
                    if isinstance(change, TreeHead):
                        tree = Tree.after(change, notes)
                    else:
                        tree.apply(change, end)
                    nodes += snapshot_nodes if isinstance(change, TreeNodes) else 1
                    if nodes >= yield_nodes:
                        # One batch may have 20,000 nodes: the process would seem to stand still.
                        nodes = 0
                        await trio.lowlevel.checkpoint()
                elif record.op is Op.MARK:
                    tree.sign_ms = record.ints[0]
    tree.space.forget_below(state.released)  # their bodies were copied forward
    return tree


def _note(span: SegmentSpan) -> SegmentNote:
    return SegmentNote(span.segment.epoch, span.base, span.length, span.digest)


class ServedTree:
    """The tree of one claim. Create it with `open`, then `run` it; `over` is set when it ends.

    Raises HadoopError for what is answered to the client; once the claim is lost, `standby()`.
    """

    def __init__(
        self,
        claim: Claim,
        tree: Tree,
        writer: ChainWriter,
        *,
        served_at: str,
        name: str,
        max_bytes: int | None,
    ) -> None:
        self.tree = tree
        self.over = trio.Event()
        self._claim, self._writer = claim, writer
        self._served_at, self._name, self._max_bytes = served_at, name, max_bytes
        self._lease = Lease()
        self._moving: trio.Event | None = None
        self._order = trio.Lock()
        self._pins: dict[object, int] = {}
        self._kept: dict[int, bytes] = {}
        self._kept_bytes = 0
        self.copied_bytes = 0

    @classmethod
    async def open(
        cls, claim: Claim, generation: int, *, served_at: str, name: str, max_bytes: int | None
    ) -> "ServedTree":
        """Take over the chain under this claim, and wait until no other gateway can answer from memory.
        Raises FencedError, and the errors of `take_over`.
        """
        granted = clock()
        state = await take_over(claim, CHAIN, generation=generation)
        tree = await replay(claim, state)
        snapshot = (change_record(one) for one in tree.snapshot(served_at, max_bytes or 0))
        # With a snapshot: otherwise a release of what is below this segment could precede the next one (R14).
        writer = await ChainWriter.open(
            claim, CHAIN, state if state.end is not None else None, generation, snapshot=snapshot
        )
        served = cls(claim, tree, writer, served_at=served_at, name=name, max_bytes=max_bytes)
        served._note_segment()
        writer.collect_released()
        await writer.wait_synced()
        await trio.sleep(max(granted + lease_wait_s - clock(), 0))
        return served

    async def run(self) -> None:
        """Serve until the claim is lost. Raises its error."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._beat)
                nursery.start_soon(self._keep_space)
                nursery.start_soon(self._settle_bodies)
        finally:
            self.over.set()
            if self._moving is not None:
                self._moving.set()

    @property
    def epoch(self) -> int:
        return self._claim.epoch

    @property
    def chain_bytes(self) -> int:
        return self.tree.space.bytes_up_to(self._writer.end.size)

    @property
    def unsynced_bytes(self) -> int:
        return self._writer.end.size - self._writer.synced

    # --- answers --------------------------------------------------------------------------------------------

    async def status(self, parts: Parts) -> FileStatus:
        return await self._answer(lambda: self.tree.get(parts).status, parts)

    async def listing(self, parts: Parts) -> list[FileStatus]:
        # On the whole tree: the status of a directory in it changes with what is in that directory.
        return await self._answer(lambda: self.tree.listing(parts))

    async def listing_after(self, parts: Parts, after: str, most: int) -> tuple[list[FileStatus], int]:
        return await self._answer(lambda: self.tree.listing_after(parts, after, most))

    async def summary(self, parts: Parts) -> Summary:
        return await self._answer(lambda: self.tree.summary(parts))

    async def check_create(self, parts: Parts, *, overwrite: bool, create_parent: bool) -> None:
        def compose() -> None:
            self.tree.check_put(parts, overwrite=overwrite, create_parent=create_parent)
            self._check_room()

        await self._answer(compose, parts)

    async def make_folder(self, parts: Parts, still_there: Callable[[], None]) -> None:
        def compose() -> None:
            if (change := self.tree.make_folder(parts, now_ms())) is not None:
                self._check_room()
                self._change(change)

        await self._change_answer(compose, still_there, parts)

    async def move(
        self, source: Parts, target: Parts, options: str | None, still_there: Callable[[], None]
    ) -> bool:
        def compose() -> bool:
            change = self.tree.move(source, target, options, now_ms())
            if isinstance(change, bool):
                return change
            self._check_room()
            self._change(change)
            return True

        return await self._change_answer(compose, still_there, source, target)

    async def remove(self, parts: Parts, *, recursive: bool, still_there: Callable[[], None]) -> bool:
        def compose() -> bool:
            change = self.tree.remove(parts, recursive=recursive, now_ms=now_ms())
            if change is not None:
                self._change(change)
            return change is not None

        return await self._change_answer(compose, still_there, parts)

    async def open_file(
        self, parts: Parts, offset: int, length: int | None
    ) -> tuple[int, AsyncGenerator[bytes]]:
        """Return how many bytes follow, and the bytes."""

        def compose() -> tuple[TreeNode, bytes | None]:
            node = self.tree.get_file(parts)
            if offset > node.length:
                raise refused(f"offset {offset} is beyond the end of {text_of(parts)}, {node.length}")
            return node, self._kept.get(node.id)

        node, kept = await self._answer(compose, parts)
        end = node.length if length is None else min(node.length, offset + length)
        return max(end - offset, 0), self._bytes_of(node, kept, offset, end)

    async def create(
        self,
        parts: Parts,
        body: AsyncIterable[bytes],
        *,
        overwrite: bool,
        create_parent: bool = True,
        still_there: Callable[[], None],
    ) -> None:
        """Put a file; nothing of it is seen before its whole body is there."""
        upload = object()
        extents: list[BodyExtent] = []
        pending = bytearray()
        try:
            async for data in body:
                pending += data
                if len(pending) > piece_bytes:
                    await self._append_piece(upload, bytes(pending), extents)
                    pending.clear()
            rest = bytes(pending)
            if rest and (extents or len(rest) > inline_bytes_max):
                await self._append_piece(upload, rest, extents)
                rest = b""

            def compose() -> None:
                self.tree.check_put(parts, overwrite=overwrite, create_parent=create_parent)
                self._check_room()
                put = PutFile(text_of(parts), self.tree.time_ms(now_ms()), self.tree.next_id, tuple(extents))
                self._change(put, rest)

            await self._change_answer(compose, still_there, parts)
        finally:
            self._pins.pop(upload, None)

    async def _answer(self, compose: Callable[[], T], *paths: Parts) -> T:
        """Return what `compose` returns or raises, once all that it rests on is acknowledged, and it is
        certain that no other gateway answered meanwhile. paths: where it looked; none for the whole tree.
        """
        result: T | None = None
        refusal: HadoopError | None = None
        if self.over.is_set():
            raise standby()
        try:
            result = compose()
        except HadoopError as error:
            refusal = error
        rests_on = self.tree.rests_on(*paths) if paths else self.tree.position
        if not self._lease.holds(clock()):
            await self._may_append()
            # Appended after it was composed: acknowledged, it proves that nobody had claimed until then.
            rests_on = max(rests_on, self._append(Record(Op.MARK, ints=(now_ms(),))))
        if rests_on > self._writer.synced:
            await self._wait_synced(rests_on)
        if refusal is not None:
            raise refusal
        return result  # type: ignore[return-value]

    async def _change_answer(
        self, compose: Callable[[], T], still_there: Callable[[], None], *paths: Parts
    ) -> T:
        await self._may_append()
        # A request whose client has left was repeated elsewhere, perhaps long ago.
        still_there()
        return await self._answer(compose, *paths)

    def _change(self, change: Change, body: bytes = b"") -> None:
        """Append and apply, in the step in which it was checked."""
        end = self._append(change_record(change, body))
        if isinstance(change, PutFile) and body:
            change = PutFile(change.path, change.mtime_ms, change.id, (extent_of(body, end),))
            self._keep(change.id, body)
        self.tree.apply(change, end)

    @property
    def _room(self) -> int | None:
        """The length of the chain from which on new files are refused."""
        return None if self._max_bytes is None else self._max_bytes - deletions_bytes

    def _check_room(self) -> None:
        if self._room is None or self._max_bytes is None or self.chain_bytes <= self._room:
            return
        sizes = (self.chain_bytes, self._max_bytes, self.tree.space.live_bytes, alive_in(self._room))
        used, limit, alive, below = (f"{size / MIB:.0f}" for size in sizes)
        text = (
            f"{self._name} has {used} of {limit} MiB (--max-bytes), {alive} MiB in files: files can only be"
        )
        raise refused(
            f"{text} deleted, and new ones are accepted again when less than {below} MiB are in files"
        )

    # --- appending ------------------------------------------------------------------------------------------

    async def _may_append(self) -> None:
        """Return when the next record may be appended, in the order of arrival: a request that was held is
        executed before those that came later. The caller appends in the step in which this returns.
        """
        await self._order.acquire()
        try:
            while self._moving is not None:
                await self._moving.wait()
        finally:
            self._order.release()
        if self.over.is_set():
            raise standby()

    def _append(self, record: Record) -> int:
        now = clock()  # before it is sent
        try:
            end = self._writer.append(record).size
        except (FencedError, ClosedError):
            raise standby() from None
        self._lease.sent(end, now)
        return end

    async def _wait_synced(self, end: int) -> None:
        try:
            await self._writer.wait_synced(Position(self.epoch, end, 0))
            self._lease.acknowledged(self._writer.synced)
        except (FencedError, ClosedError):
            raise standby() from None

    async def _beat(self) -> None:
        """Renew the lease while nobody asks, and show standbys that the tree is served."""
        while True:
            if (lost := self._claim.ended) is not None:
                raise lost
            if self._moving is None and clock() > self._lease.until - lease_s + beat_s:
                try:
                    await self._wait_synced(self._append(Record(Op.MARK, ints=(now_ms(),))))
                except HadoopError:
                    raise self._claim.ended or ClosedError("the writer of the tree has ended") from None
            await trio.sleep(beat_s / 2)

    # --- bodies ---------------------------------------------------------------------------------------------

    async def _append_piece(self, upload: object, data: bytes, extents: list[BodyExtent]) -> None:
        for at in range(0, len(data), piece_bytes):
            piece = data[at : at + piece_bytes]
            await self._may_append()
            self._check_room()
            end = self._append(piece_record(piece))
            extents.append(extent_of(piece, end))
            self._pins.setdefault(upload, extents[0].at)
            if end - self._writer.synced > upload_unsynced_bytes_max:
                await self._wait_synced(end - upload_unsynced_bytes_max)

    async def _bytes_of(
        self, node: TreeNode, kept: bytes | None, offset: int, end: int
    ) -> AsyncGenerator[bytes]:
        if kept is not None:
            if offset < end:
                yield kept[offset:end]
            return
        at = 0
        for index in range(len(node.extents)):
            extent = node.extents[index]
            low, high = max(offset, at), min(end, at + extent.size)
            if low < high:
                data = await self._read_moving(node, index)
                yield data if high - low == extent.size else data[low - at : high - at]
            at += extent.size

    async def _read_moving(self, node: TreeNode, index: int) -> bytes:
        """Read an extent that may be copied forward and whose segment may go meanwhile. Raises as `_read`."""
        while True:
            extent = node.extents[index]
            try:
                return await self._read(extent)
            except (HadoopError, DosError):
                if node.extents[index] == extent:
                    raise

    async def _read(self, extent: BodyExtent) -> bytes:
        """Return the bytes of an extent. Raises DosError, HadoopError if they are not those that were put."""
        await self._wait_synced(extent.at + extent.size)  # a copy that was made now may be on no member yet
        note = self.tree.space.segment_at(extent.at)
        name, offset, parts, missing = _name(note), extent.at - note.base, [], extent.size
        while missing:
            data = await self._claim.read(name, offset, missing)
            if not data:
                raise refused(f"{name} ends at {offset}, within a body")
            parts.append(data)
            offset, missing = offset + len(data), missing - len(data)
        body = b"".join(parts)
        if not is_body(body, extent):
            raise refused(f"{name}: the {extent.size} bytes before {offset} are not those that were written")
        return body

    def _keep(self, file: int, body: bytes) -> None:
        self._kept[file] = body
        self._kept_bytes += len(body)
        while self._kept_bytes > cache_bytes_max:
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))

    # --- space ----------------------------------------------------------------------------------------------

    async def _keep_space(self) -> None:
        while True:
            if self._writer.bytes_since_snapshot >= segment_bytes:
                await self._move(lambda: self._writer.roll(self._snapshot()))
                await self._writer.wait_synced()
            try:
                await self._give_back()
            except (HadoopError, CorruptError, PoisonedError, NotFoundError, QuorumUnavailableError) as error:
                if self.over.is_set() or self._claim.ended is not None:
                    raise
                # A body that cannot be read now: it stays where it is, and so does all that lies above it.
                logger.error("%s: no space is given back: %s", self._name, error)
                await trio.sleep(give_back_again_s)
            await trio.sleep(beat_s / 4)

    def _snapshot(self) -> Iterator[Record]:
        return (change_record(one) for one in self.tree.snapshot(self._served_at, self._max_bytes or 0))

    async def _give_back(self) -> None:
        """Copy what lives in the lowest segment forward, then release it."""
        space, pinned = self.tree.space, min(self._pins.values(), default=None)
        going = space.to_empty(self._writer.end.size, pinned, self._writer.floor, self._room)
        if not going:
            return
        for file in space.files_in(going[0]):
            await self._copy_forward(file)
        floor = space.floor_above(going[-1])
        await self._move(lambda: self._writer.release(floor))
        space.forget_below(floor)

    async def _copy_forward(self, file: int) -> None:
        node = self.tree.by_id.get(file)
        if node is None:
            return
        extents = []
        for extent in node.extents:
            data = await self._read(extent)
            await self._may_append()
            extents.append(extent_of(data, self._append(piece_record(data))))
            self.copied_bytes += len(data)
            await self._writer.wait_room()
        await self._may_append()
        self._change(CopyForward(file, tuple(extents)))  # nothing, if the file went meanwhile

    async def _move(self, move: Callable[[], Awaitable[None]]) -> None:
        """Open a new segment; nothing is appended meanwhile."""
        self._moving = trio.Event()
        try:
            end = self._writer.end
            self.tree.space.close(end.size - self._segment.base, end.digest)
            await move()
            self._note_segment()
        finally:
            self._moving.set()
            self._moving = None

    @property
    def _segment(self) -> SegmentName:
        name = parse_segment_name(self._writer.segment)
        assert name is not None, "a writer writes a segment"
        return name

    def _note_segment(self) -> None:
        self.tree.space.open(SegmentNote(self._segment.epoch, self._segment.base, 0, 0))

    async def _settle_bodies(self) -> None:
        """Fill members that were away while bodies were written: a take-over settles only what it reads."""
        for note in self.tree.space.notes:
            if not note.length or note not in self.tree.space.notes:
                continue  # it grows, or was released meanwhile: filled, it would come back
            try:
                with trio.move_on_after(settle_wait_s):  # it continues in the background
                    await self._claim.settle(_name(note), note.length, note.digest)
            except (MissingDataError, QuorumUnavailableError) as error:
                if note in self.tree.space.notes:
                    logger.error("%s: bodies cannot be read: %s", self._name, error)


def _name(note: SegmentNote) -> str:
    return str(SegmentName(CHAIN, note.epoch, note.base))
