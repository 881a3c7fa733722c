"""The encoded state of a worker as of a checkpoint, until it is sent: in memory while small, otherwise on
disk.

Bytes in and out, in order. A state may be larger than memory, so only a piece of it is in memory at a time.
The file has no name and is deleted with its last user.
"""

import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from checkpoint.chains.state_blocks import encode_block
from dataflow import limits
from dataflow.state.scratch import of_scratch, scratch_directory


class SnapshotSpool:
    """A snapshot that one thread writes and another reads after it. scratch: a directory; '': that for
    temporary files.
    """

    def __init__(self, scratch: str = "") -> None:
        self._scratch = scratch
        self._names: list[tuple[str, int]] = []
        """(table, size of the block), in order."""
        self._file: Any = None

    def add(self, table: str, blocks: Iterable[pa.RecordBatch]) -> None:
        """Append the blocks of a table. Raises UserFault if the disk fails; the spool is invalid then."""
        for block in blocks:
            for data in encode_block(block):
                self.append(table, data)

    def append(self, table: str, data: bytes) -> None:
        """Append an encoded block of a table. Raises as `add`."""
        with of_scratch(self._scratch, "a snapshot could not be written"):
            if self._file is None:
                self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - it lives as long as this
                    limits.snapshot_memory_bytes_max, dir=str(scratch_directory(self._scratch))
                )
                weakref.finalize(self, self._file.close)  # even if it is never read
            self._file.write(data)
            self._names.append((table, len(data)))

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Yield (table, encoded block), from the first on. Raises OSError."""
        if self._file is not None:
            self._file.seek(0)
        for table, size in self._names:
            yield table, self._file.read(size)
