"""The changes of a region's state between two checkpoints, according to its state blocks: rows and keys by
operator.

This file counts what `state_reading.py` returns, and reports where the changes are unknown: if the blocks in
between were replaced by a snapshot, if the region was rolled back and the two checkpoints are not on one line
of history, or if keys were on other workers.
"""

from contextlib import aclosing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkpoint.chains.state_reading import StoredStateBlock, blocks_between
from checkpoint.core.manifest import Checkpoint
from checkpoint.errors import StateNotRecordedError
from checkpoint.key_hash import HASH_COLUMN
from checkpoint.runtime import runtime
from dos_client import Store


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
