"""The state blocks of a region's workers as anybody may read them who reaches the store: all that make the
state at a committed cut, and those that were written between two cuts. Claims nothing.

Rules of this file: which records of a state chain count. What is in a block is `state_blocks.py`'s; which
cuts there are, and are retained, is `manifest_reading.py`'s.

    async with aclosing(blocks_at(store, "wordcount", 0, cut.workers[0].state)) as blocks:
        async for block in blocks:
            fold.add(block.operator, block.decoded())
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from checkpoint.chains.state_blocks import decode_block
from checkpoint.core.region import worker_directory
from checkpoint.errors import StateNotRecordedError
from dos_client import Store
from dos_protocol.errors import CorruptDataError
from journal import (
    ChainState,
    LostBytesError,
    Op,
    Position,
    Record,
    StopNotFoundError,
    look_chain_at,
    read_batches,
)

STATE_CHAIN = "state"


class StoredStateBlock(NamedTuple):
    """What changed in one table of an operator in a cut; `data` is its Arrow stream."""

    cut: int
    operator: str
    data: bytes

    def decoded(self) -> Any:
        """The block (pyarrow RecordBatch). Work for a thread. Raises CorruptDataError."""
        return decode_block(self.data, where=f"the block of operator {self.operator!r} in cut {self.cut}")


def state_block(end: int, record: Record) -> StoredStateBlock | None:
    """The block in a record that ends at logical offset `end`; None if it is no block. Raises
    CorruptDataError.
    """
    if record.op is not Op.STATE_BLOCK:
        return None
    if len(record.ints) != 1 or len(record.strings) != 2:
        raise CorruptDataError(f"chain {STATE_CHAIN}", end, "a state block of 1 int and 2 strings", "others")
    operator, data = record.strings
    return StoredStateBlock(record.ints[0], operator.decode("utf-8", "replace"), data)


async def state_chain(store: Store, region: str, worker: int, at: Position) -> ChainState:
    """A worker's state chain up to a position that a cut names, from the newest snapshot below it on.

    Raises LostBytesError if some of it is not there any more (was the cut released?), and what looking at a
    chain raises.
    """
    return await look_chain_at(store, worker_directory(region, worker), STATE_CHAIN, at)


async def blocks_at(store: Store, region: str, worker: int, at: Position) -> AsyncGenerator[StoredStateBlock]:
    """The blocks that make a worker's state at a cut, oldest first; `at` is its position there.

    Nothing of it may be used if the iteration ends in an error. Raises as `state_chain`.
    """
    chain = await state_chain(store, region, worker, at)
    batches = read_batches(store, chain, directory=worker_directory(region, worker))
    async with aclosing(batches):
        async for batch in batches:
            for position, record in batch:
                if (block := state_block(position.size, record)) is not None:
                    yield block


async def blocks_between(
    store: Store, region: str, worker: int, before: Position, after: Position
) -> AsyncGenerator[StoredStateBlock]:
    """The blocks that a worker wrote behind one cut, up to another, oldest first.

    Raises StateNotToldError where they do not tell what changed, and as `blocks_at`.
    """
    chain = await _chain_between(store, region, worker, before, after)
    in_snapshot = False
    batches = read_batches(store, chain, directory=worker_directory(region, worker))
    async with aclosing(batches):
        async for batch in batches:
            for position, record in batch:
                if record.op in (Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END):
                    in_snapshot = record.op is Op.SNAPSHOT_BEGIN
                block = state_block(position.size, record)
                if block is not None and not in_snapshot and position.size > before.size:
                    yield block


async def _chain_between(
    store: Store, region: str, worker: int, before: Position, after: Position
) -> ChainState:
    """The chain up to `after`, on which `before` lies too."""
    if after.size < before.size:
        raise StateNotRecordedError(worker, "the region went back between the two cuts")
    try:
        chain = await state_chain(store, region, worker, after)
        first = chain.segments[0] if chain.segments else None
        if first is not None and first.snapshot_end and first.base >= before.size:
            raise StateNotRecordedError(worker, "a snapshot has replaced the blocks between the two cuts")
        chain.up_to(before)  # is it on this line of history?
    except StopNotFoundError as error:
        raise StateNotRecordedError(worker, "the region went back between the two cuts") from error
    except LostBytesError as error:
        raise StateNotRecordedError(worker, f"its blocks are not there any more: {error}") from error
    return chain
