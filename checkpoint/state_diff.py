"""What changed in the state of a region between two cuts, as its state blocks tell: rows and keys by
operator.

Rules of this file: reads the workers' state chains, claims nothing, and says where it cannot know: when
the blocks between were replaced by a snapshot, or the region went back and the two cuts are not on one
line.
"""

from contextlib import aclosing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkpoint.core.manifest import Cut
from checkpoint.core.region import worker_directory
from checkpoint.key_hash import HASH_COLUMN
from checkpoint.state_blocks import decode_block
from checkpoint.state_store import STATE_CHAIN
from checkpoint.world import world
from dos_client import Store
from journal import ChainState, Op, Position, StopNotFoundError, look_chain, read_records


class _Changes:
    """Of one operator, over all workers."""

    def __init__(self) -> None:
        self.blocks = self.bytes = self.rows = 0
        self.hashes: list[pa.Array] = []

    def add(self, operator: str, data: bytes) -> None:
        batch = decode_block(data, where=f"a block of operator {operator!r}")
        self.blocks += 1
        self.bytes += len(data)
        self.rows += batch.num_rows
        self.hashes.append(batch.column(HASH_COLUMN))

    def keys(self) -> int:
        """Distinct ones, told apart by their hash."""
        return int(pc.count_distinct(pa.chunked_array(self.hashes)).as_py()) if self.hashes else 0


async def changed_state(store: Store, region: str, before: Cut, after: Cut) -> dict[str, Any]:
    """{operators: [{name, blocks, bytes, rows, keys}], unknown: [why the blocks of a worker do not tell]}."""
    changes: dict[str, _Changes] = {}
    unknown: list[str] = []
    for worker in sorted(before.workers.keys() & after.workers.keys()):
        start, end = before.workers[worker].state, after.workers[worker].state
        directory = worker_directory(region, worker)
        chain = await look_chain(store, directory, STATE_CHAIN)
        why = _why_not(chain, start, end)
        try:
            if not why:
                chain.up_to(start)  # is it on this line of history?
                await _read(store, directory, chain, (before.cut, after.cut), (start, end), changes)
        except StopNotFoundError:
            why = "the region went back between the two cuts"
        if why:
            unknown.append(f"worker {worker}: {why}")
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


def _why_not(chain: ChainState, start: Position, end: Position) -> str:
    if end.size < start.size:
        return "the region went back between the two cuts"
    if not chain.segments:
        return "its chain shows nothing that is committed"
    first = chain.segments[0]
    if first.snapshot_end and first.base >= start.size:
        return "a snapshot has replaced the blocks between the two cuts"
    return ""


async def _read(
    store: Store,
    directory: str,
    chain: ChainState,
    cuts: tuple[int, int],
    positions: tuple[Position, Position],
    changes: dict[str, _Changes],
) -> None:
    in_snapshot = False
    records = read_records(store, chain, directory=directory, stop=positions[1])
    async with aclosing(records):
        async for position, record in records:
            if record.op in (Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END):
                in_snapshot = record.op is Op.SNAPSHOT_BEGIN
            if record.op is not Op.STATE_BLOCK or in_snapshot or position.size <= positions[0].size:
                continue
            if cuts[0] < record.ints[0] <= cuts[1]:
                operator = record.strings[0].decode("utf-8", "replace")
                change = changes.setdefault(operator, _Changes())
                await world().in_thread(change.add, operator, record.strings[1])
