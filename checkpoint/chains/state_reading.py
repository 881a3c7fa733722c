"""Reads the state blocks of a region's workers from any client of the store: those of the state at a
committed checkpoint, and those written between two checkpoints. Claims nothing.

    async with aclosing(blocks_at(store, "wordcount", 0, checkpoint.workers[0].state)) as blocks:
        async for block in blocks:
            fold.add(block.operator, block.decoded())

This file decides which records of a state chain count. `state_blocks.py` has the format of a block;
`manifest_reading.py` lists the checkpoints and which of them are retained.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from checkpoint.chains.state_blocks import decode_block
from checkpoint.core.region import worker_directory
from checkpoint.errors import StateNotRecordedError
from dos_protocol.errors import CorruptDataError
from journal import (
    ChainState,
    LostBytesError,
    Op,
    Position,
    Record,
    StopNotFoundError,
    inspect_chain_at,
    read_batches,
    read_batches_since,
)
from journal.ports import StorePort

STATE_CHAIN = "state"


class StoredStateBlock(NamedTuple):
    """The changes of one table of an operator in a checkpoint; `data` is the Arrow stream."""

    checkpoint: int
    operator: str
    data: bytes

    def decoded(self) -> Any:
        """Decode the block (a pyarrow RecordBatch). CPU-heavy: call it in a thread. Raises
        CorruptDataError.
        """
        return decode_block(
            self.data, where=f"the block of operator {self.operator!r} in checkpoint {self.checkpoint}"
        )


def state_block(end: int, record: Record) -> StoredStateBlock | None:
    """Return the block in a record that ends at logical offset `end`; None if the record is not a block.
    Raises CorruptDataError.
    """
    if record.op is not Op.STATE_BLOCK:
        return None
    if len(record.ints) != 1 or len(record.strings) != 2:
        raise CorruptDataError(f"chain {STATE_CHAIN}", end, "a state block of 1 int and 2 strings", "others")
    operator, data = record.strings
    return StoredStateBlock(record.ints[0], operator.decode("utf-8", "replace"), data)


async def state_chain(store: StorePort, region: str, worker: int, at: Position) -> ChainState:
    """Return a worker's state chain up to a position from a checkpoint, starting at the newest snapshot below
    it.

    Raises LostBytesError if part of it no longer exists (the checkpoint may be released), and the errors of
    `inspect_chain_at`.
    """
    return await inspect_chain_at(store, worker_directory(region, worker), STATE_CHAIN, at)


async def blocks_at(
    store: StorePort, region: str, worker: int, at: Position
) -> AsyncGenerator[StoredStateBlock]:
    """Yield the blocks of a worker's state at a checkpoint, oldest first; `at` is its position there.

    If the iteration ends with an error, discard everything it yielded. Raises as `state_chain`.
    """
    chain = await state_chain(store, region, worker, at)
    blocks = blocks_in(read_batches(store, chain, directory=worker_directory(region, worker)))
    async with aclosing(blocks):
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
    store: StorePort, region: str, worker: int, before: Position, after: Position
) -> AsyncGenerator[StoredStateBlock]:
    """Yield the blocks that a worker wrote after one checkpoint, up to another, oldest first. The blocks
    before are not read.

    Raises StateNotRecordedError if they do not describe the changes, and as `blocks_at`.
    """
    chain = await _chain_between(store, region, worker, before, after)
    in_snapshot = False
    batches = read_batches_since(store, chain, before, directory=worker_directory(region, worker))
    async with aclosing(batches):
        async for batch in batches:
            for end, record in batch:
                if record.op in (Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END, Op.SEGMENT_START):
                    # A segment start also ends the snapshot before it, whose writer failed.
                    in_snapshot = record.op is Op.SNAPSHOT_BEGIN
                if not in_snapshot and (block := state_block(end, record)) is not None:
                    yield block


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
