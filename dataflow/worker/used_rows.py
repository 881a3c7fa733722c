"""The records of the rows that a worker has used of its peers, or sends to them, for local recovery.

Batches to `RowsRecord`s; it runs on the circuit thread. DADSTORM calls the collection a shared tuple table.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from dataflow.core.retained_steps import Records, RowsRecord
from dataflow.operators.base import HASH_COLUMN
from dos_protocol.digests import digest64


def rows_record(batches: Sequence[pa.RecordBatch]) -> RowsRecord:
    """Return the record of rows. It does not depend on their division into batches, nor on their order.

    Rows with a key are known by its hash, which they carry; others by all of their columns.
    """
    rows = hashes = 0
    for batch in batches:
        rows += batch.num_rows
        if batch.schema.get_field_index(HASH_COLUMN) >= 0:
            hashes += int(np.sum(batch.column(HASH_COLUMN).to_numpy(), dtype=np.uint64))
        else:  # rows of a broadcast table are few, and of any type
            hashes += sum(digest64(repr(row).encode()) for row in batch.to_pylist())
    return RowsRecord(rows, hashes % (1 << 64))


class UsedRows:
    """What one worker has used of each peer, in the steps that no checkpoint covers."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._records: dict[int, dict[tuple[int, int], RowsRecord]] = {}
        """Peer -> (channel, step) -> record."""

    def note(self, step: int, received: Mapping[int, Sequence[tuple[int, pa.RecordBatch]]]) -> None:
        """Note the batches of a step that a stage is about to use: channel -> (sender, batch)."""
        for channel, items in received.items():
            batches: dict[int, list[pa.RecordBatch]] = {sender: [] for sender in range(self._workers)}
            for sender, batch in items:
                batches[sender].append(batch)
            for sender, own in batches.items():
                self._records.setdefault(sender, {})[channel, step] = rows_record(own)

    def of(self, peer: int) -> Records:
        """Return what was used of a peer."""
        return self._records.get(peer, {})

    def purge(self, step: int) -> None:
        """Forget the steps up to this one: a committed checkpoint covers them."""
        for peer, records in self._records.items():
            self._records[peer] = {key: one for key, one in records.items() if key[1] > step}
