"""All of a worker's state as of a cut, encoded, until it is sent: in memory while it is small, else on disk.

Rules of this file: bytes in and out, in order. A state may be larger than memory, so no more than a piece of
it is there at a time. The file has no name, and is gone with its last user.
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
    """Filled by one thread, then read by one other. scratch: a directory; '': that for temporary files."""

    def __init__(self, scratch: str = "") -> None:
        self._scratch = scratch
        self._names: list[tuple[str, int]] = []
        """Table, size of its next block."""
        self._file: Any = None

    def add(self, table: str, blocks: Iterable[pa.RecordBatch]) -> None:
        """Take the blocks of a table, one after the other. Raises UserFault if the disk does not take them:
        the spool is void then.
        """
        with of_scratch(self._scratch, "a snapshot could not be written"):
            if self._file is None:
                self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - it lives as long as this
                    limits.snapshot_memory_bytes_max, dir=str(scratch_directory(self._scratch))
                )
                weakref.finalize(self, self._file.close)  # whoever reads it, or never does
            for block in blocks:
                for data in encode_block(block):
                    self._file.write(data)
                    self._names.append((table, len(data)))

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """(table, encoded block), from the first on. Raises OSError."""
        if self._file is not None:
            self._file.seek(0)
        for table, size in self._names:
            yield table, self._file.read(size)
