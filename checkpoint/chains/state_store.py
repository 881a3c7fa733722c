"""The versioned store of a worker, over its `state` chain: version v *is* checkpoint v. The manifest decides
which versions count; `state_blocks.py` has the format of blocks.

`StateStore` moves to a version, regardless of longer or newer data (R13), and makes the next one durable on
the quorum, as a vote requires. `blocks_at`, `blocks_between` and `changed_state` read from any client of the
store, and claim nothing.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import limits
from checkpoint.chains.chain_store import ChainStore, TakenChain
from checkpoint.chains.state_blocks import EncodedBlock, StateFold, decode_block
from checkpoint.chains.state_index import (
    BlockEntry,
    HashRanges,
    StateIndex,
    block_record,
    encode_index,
    runs,
)
from checkpoint.core.records.manifest import Checkpoint, Rolling
from checkpoint.core.region import worker_directory
from checkpoint.errors import StateNotRecordedError
from checkpoint.key_hash import HASH_COLUMN
from checkpoint.runtime import runtime
from dos_client import Store
from dos_client.errors import QuorumUnavailableError
from dos_protocol.errors import CorruptDataError, LocalProtocolError
from journal import (
    ORIGIN,
    ChainState,
    ChainWriter,
    LostBytesError,
    Op,
    Position,
    Record,
    Scratch,
    SegmentSpan,
    StopNotFoundError,
    inspect_chain_at,
    read_batches,
    read_span,
)
from journal.limits import start_read_bytes_max
from journal.ports import ClaimPort, StorePort

STATE_CHAIN = "state"
Blocks: TypeAlias = Iterable[EncodedBlock | tuple[str, bytes]]
"""A (table, data) is a block that every reader needs."""


class StoredStateBlock(NamedTuple):
    """The changes of one table of an operator in a checkpoint; `data` is the Arrow stream."""

    checkpoint: int
    operator: str
    data: bytes

    def decoded(self) -> Any:
        """Decode the block. CPU-heavy: call it in a thread. Raises CorruptDataError."""
        return decode_block(
            self.data, where=f"the block of operator {self.operator!r} in checkpoint {self.checkpoint}"
        )


def state_block(end: int, record: Record) -> StoredStateBlock | None:
    """Return the block in a record that ends at offset `end`; None if it is no block. Raises
    CorruptDataError.
    """
    if record.op is not Op.STATE_BLOCK:
        return None
    if len(record.ints) != 1 or len(record.strings) != 2:
        raise CorruptDataError(f"chain {STATE_CHAIN}", end, "a state block of 1 int and 2 strings", "others")
    operator, data = record.strings
    return StoredStateBlock(record.ints[0], operator.decode("utf-8", "replace"), data)


class StateStore(ChainStore):
    """The state of one worker at one version, all of it synced. Not for several tasks at once."""

    def __init__(
        self, restored: TakenChain, writer: ChainWriter, version: int, rolling: Rolling | None = None
    ) -> None:
        super().__init__(restored, writer, rolling)
        spans = restored.state.segments
        self._snapshot_bytes = spans[0].snapshot_end if spans else 0
        self.version = version

    @classmethod
    async def open(
        cls,
        claim: ClaimPort,
        *,
        version: int,
        at: Position | None,
        generation: int,
        scratch: Scratch | None = None,
        rolling: Rolling | None = None,
    ) -> "StateStore":
        """Move to `version`, at the position `at` (None with version 0: no state), and open a segment there.

        Raises what `journal.take_over` and `ChainWriter.open` raise; LocalProtocolError if the two do not
        match.
        """
        if (at is None) != (version == 0):
            raise LocalProtocolError(
                f"version {version} does not match position {at}: version 0, and no other, has no position"
            )
        at = ORIGIN if at is None else at
        # At the position of the checkpoint, not at the end of the chain: blocks after it are of a checkpoint
        # that was never committed, and counted they would apply input twice (R13).
        taken = await TakenChain.take(claim, STATE_CHAIN, at=at, generation=generation, scratch=scratch)
        return cls(taken, await taken.open(), version, rolling)

    def blocks(self) -> AsyncGenerator[StoredStateBlock, None]:
        """Yield (checkpoint, operator, encoded block) of the opened version from its newest snapshot on,
        oldest first. After an error, discard all. Raises CorruptDataError and what reading raises.
        """
        claim, state, _, scratch = self._restored
        return blocks_in(read_batches(claim, state, scratch=scratch))

    async def load(self) -> dict[str, Any]:
        """Return the state of each operator as one block without deleted rows. Folds in a thread."""
        fold = StateFold()
        blocks = self.blocks()
        async with aclosing(blocks):
            async for block in blocks:
                await runtime().in_thread(_add_decoded, fold, block)
        return {operator: await runtime().in_thread(fold.take, operator) for operator in fold.operators()}

    async def commit(self, checkpoint: int, blocks: Blocks) -> Position:
        """Append blocks, wait for the quorum, and become that version; return its position.

        Raises LocalProtocolError if `checkpoint` is not above `version`, FencedError. If it is cancelled or
        fails, the version has not changed, and the chain must be opened again.
        """
        self._check_above(checkpoint)
        for record in _records(checkpoint, blocks):
            self._writer.append(record)
            await self._writer.wait_room()
        end = self._writer.end
        # Before the vote: a committed checkpoint may name only positions that the quorum has.
        await self._writer.wait_synced(end)
        self.version = checkpoint
        return end

    async def commit_whole(
        self, checkpoint: int, blocks: Blocks, entries: Sequence[BlockEntry] | None = None
    ) -> Position:
        """Commit the whole state as a snapshot, which refers to nothing before it. As `commit` and
        `snapshot`.
        """
        self._check_above(checkpoint)
        await self._roll(checkpoint, blocks, entries)
        end = self._writer.end
        await self._writer.wait_synced(end)
        self.version = checkpoint
        return end

    def _check_above(self, checkpoint: int) -> None:
        if checkpoint <= self.version:
            raise LocalProtocolError(f"checkpoint {checkpoint} is not above version {self.version}")

    async def _roll(self, checkpoint: int, blocks: Blocks, entries: Sequence[BlockEntry] | None) -> None:
        """Begin a new segment with these blocks, which are the whole state of this checkpoint."""
        before = self._writer.end.size
        await self._writer.roll(_records(checkpoint, blocks, entries))
        self._snapshot_bytes = self._writer.end.size - before

    @property
    def snapshot_due(self) -> bool:
        """Whether so much was appended since the last snapshot that a restore should not have to read it."""
        return self._due(self._snapshot_bytes)

    async def snapshot(self, blocks: Blocks, entries: Sequence[BlockEntry] | None = None) -> None:
        """Write the whole state of `version` at the start of a new segment, where a restore starts. entries:
        of the blocks, in their order, so that these are read once and one by one; None: all are in memory.

        Nothing may be committed at the same time. Raises FencedError. If it fails or is cancelled, it is
        closed.
        """
        await self._roll(self.version, blocks, entries)


def _records(
    checkpoint: int, blocks: Blocks, entries: Sequence[BlockEntry] | None = None
) -> Iterator[Record]:
    """Yield the records of blocks, after an index unless they are small."""
    if entries is None:
        encoded = [EncodedBlock(*block) for block in blocks]
        blocks, entries = encoded, [BlockEntry.of(block) for block in encoded]
    ordered = iter(blocks)
    for begin in range(0, len(entries), limits.state_index_blocks_max):
        group = entries[begin : begin + limits.state_index_blocks_max]
        if sum(entry.bytes for entry in group) >= limits.state_indexed_bytes_min:
            yield encode_index(checkpoint, group)
        for block in islice(ordered, len(group)):
            yield block_record(checkpoint, block[0], block[1])


def _add_decoded(fold: StateFold, block: StoredStateBlock) -> None:
    fold.add(block.operator, block.decoded())


async def state_chain(store: StorePort, region: str, worker: int, at: Position) -> ChainState:
    """Return a worker's state chain up to a position, from the newest snapshot below it. Raises
    LostBytesError if the checkpoint may be released, and as `inspect_chain_at`.
    """
    return await inspect_chain_at(store, worker_directory(region, worker), STATE_CHAIN, at)


async def blocks_at(
    store: StorePort, region: str, worker: int, at: Position, *, ranges: HashRanges | None = None
) -> AsyncGenerator[StoredStateBlock]:
    """Yield the blocks of a worker's state at a checkpoint, oldest first. ranges: only the blocks that may
    have rows with these hashes, and those that every reader needs. Raises as `state_chain`.
    """
    chain = await state_chain(store, region, worker, at)
    directory = worker_directory(region, worker)
    if ranges is not None:
        begun = False
        try:
            async with aclosing(
                _blocks_after(store, directory, chain, ORIGIN, ranges, snapshots=True)
            ) as some:
                async for block in some:
                    begun = True
                    yield block
            return
        except QuorumUnavailableError:
            # Only the digests of a quorum prove a part of a span; those of the chain prove a whole one.
            if begun:
                raise
    async with aclosing(blocks_in(read_batches(store, chain, directory=directory))) as blocks:
        async for block in blocks:
            yield block


async def blocks_in(
    batches: AsyncGenerator[list[tuple[Position, Record]]],
) -> AsyncGenerator[StoredStateBlock]:
    """Yield the blocks among a state chain's records, in order. Closes `batches`. Raises CorruptDataError."""
    async with aclosing(batches):
        async for batch in batches:
            for position, record in batch:
                if (block := state_block(position.size, record)) is not None:
                    yield block


async def blocks_between(
    store: StorePort,
    region: str,
    worker: int,
    before: Position,
    after: Position,
    *,
    ranges: HashRanges | None = None,
) -> AsyncGenerator[StoredStateBlock]:
    """Yield the blocks written between two checkpoints, oldest first. ranges: as of `blocks_at`. Raises
    StateNotRecordedError, as `blocks_at`.
    """
    chain = await _chain_between(store, region, worker, before, after)
    directory = worker_directory(region, worker)
    blocks = _blocks_after(store, directory, chain, before, ranges, snapshots=False)
    async with aclosing(blocks):
        async for block in blocks:
            yield block


async def _blocks_after(
    store: StorePort,
    directory: str,
    chain: ChainState,
    since: Position,
    ranges: HashRanges | None,
    *,
    snapshots: bool,
) -> AsyncGenerator[StoredStateBlock]:
    """Yield the blocks of a chain after a position in it. snapshots: also those of finished snapshots."""
    for span in chain.segments:
        at = max(since.size - span.base, 0)
        skips = False
        while at < span.length:
            index = None
            window = 0 if ranges is None else start_read_bytes_max  # only up to the next index is needed
            records = read_span(store, directory, span, at, span.length, window_bytes=window)
            async with aclosing(flat(records)) as found:
                async for at, record in found:
                    if record.op is Op.SNAPSHOT_BEGIN:
                        # Half of a state is the state of no moment: its writer failed.
                        skips = not (snapshots and span.snapshot_end)
                    elif record.op is Op.SNAPSHOT_END:
                        skips = False
                    elif record.op is Op.INDEX and (skips or ranges is not None):
                        index = StateIndex(record, span.name, at)
                        break
                    elif not skips and (block := state_block(span.base + at, record)) is not None:
                        yield block
            if index is None:
                break
            if not skips and ranges is not None:
                async with aclosing(_indexed(store, directory, span, at, index, ranges)) as blocks:
                    async for block in blocks:
                        yield block
            at += int(index.ends[-1])


async def _indexed(
    store: StorePort, directory: str, span: SegmentSpan, at: int, index: StateIndex, ranges: HashRanges
) -> AsyncGenerator[StoredStateBlock]:
    """Yield the blocks of an index, which ends at offset `at`, that overlap the ranges."""
    for first, last in runs(index.overlapping(ranges)):
        begin, end = at + int(index.ends[first]), at + int(index.ends[last])
        number = first
        async with aclosing(flat(read_span(store, directory, span, begin, end))) as records:
            async for offset, record in records:
                index.check(number, record, offset - at)
                block = state_block(span.base + offset, record)
                assert block is not None
                yield block
                number += 1


async def flat(batches: AsyncGenerator[list[tuple[int, Record]]]) -> AsyncGenerator[tuple[int, Record]]:
    """Yield the records of batches, and close these."""
    async with aclosing(batches):
        async for batch in batches:
            for decoded in batch:
                yield decoded


async def _chain_between(
    store: StorePort, region: str, worker: int, before: Position, after: Position
) -> ChainState:
    """Return the chain up to `after`, which must also contain `before`."""
    if after.size < before.size:
        raise StateNotRecordedError(worker, "the region was rolled back between the two checkpoints")
    try:
        chain = await state_chain(store, region, worker, after)
        first = chain.segments[0] if chain.segments else None
        if first is not None and first.snapshot_end and first.base >= before.size:
            raise StateNotRecordedError(
                worker, "a snapshot has replaced the blocks between the two checkpoints"
            )
        chain.up_to(before)  # raises StopNotFoundError if `before` is not on this line of history
    except StopNotFoundError as error:
        raise StateNotRecordedError(
            worker, "the region was rolled back between the two checkpoints"
        ) from error
    except LostBytesError as error:
        raise StateNotRecordedError(worker, f"its blocks no longer exist: {error}") from error
    return chain


class _Changes:
    """The changes of one operator, over all workers."""

    def __init__(self) -> None:
        self.blocks = self.bytes = self.rows = 0
        self.hashes: list[pa.Array] = []

    def add(self, block: StoredStateBlock) -> None:
        batch = block.decoded()
        self.blocks += 1
        self.bytes += len(block.data)
        self.rows += batch.num_rows
        self.hashes.append(batch.column(HASH_COLUMN))

    def keys(self) -> int:
        """Return the number of distinct keys, by their hash."""
        return int(pc.count_distinct(pa.chunked_array(self.hashes)).as_py()) if self.hashes else 0


async def changed_state(store: Store, region: str, before: Checkpoint, after: Checkpoint) -> dict[str, Any]:
    """Return {operators: [{name, blocks, bytes, rows, keys}], unknown: [why the changes of a worker are
    unknown]}.
    """
    changes: dict[str, _Changes] = {}
    unknown: list[str] = []
    for worker in sorted(after.workers):
        if before.layout != after.layout:  # its blocks contain keys that moved and did not change
            unknown.append(f"worker {worker}: its keys were on other workers in checkpoint {before.number}")
            continue
        if before.in_origin != after.in_origin:
            unknown.append(
                f"worker {worker}: checkpoint {before.number} is in the journals of another region"
            )
            continue
        start, end = before.workers[worker].state, after.workers[worker].state
        try:
            async with aclosing(blocks_between(store, after.chains_of(region), worker, start, end)) as blocks:
                async for block in blocks:
                    change = changes.setdefault(block.operator, _Changes())
                    await runtime().in_thread(change.add, block)
        except StateNotRecordedError as error:
            unknown.append(f"worker {worker}: {error.reason}")
    return {
        "operators": [
            {
                "name": name,
                "blocks": one.blocks,
                "bytes": one.bytes,
                "rows": one.rows,
                "keys": one.keys(),
            }
            for name, one in sorted(changes.items())
        ],
        "unknown": unknown,
    }
