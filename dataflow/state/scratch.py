"""The worker's local disk for temporary data. A full or failing disk is reported as `OperatorFailure`: it
needs a person, but must not stop the region, which resets to its last checkpoint.
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkpoint.chains.state_blocks import encoded_blocks
from checkpoint.chains.state_index import BlockEntry
from dataflow import limits
from dataflow.errors import OperatorFailure, UserFault


def scratch_directory(scratch: str) -> Path:
    """Return this directory, created if needed; for '' the system's for temporary files. Raises OSError."""
    directory = Path(scratch or tempfile.gettempdir())
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def of_scratch(scratch: str, failure: str, *errors: type[Exception]) -> Iterator[None]:
    """Convert OSError and `errors` to UserFault with the message `failure`."""
    expected: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except expected as error:
        # LMDB reports EIO if a full disk accepted a part of a write, so the message has the free space.
        problem = f"{failure} in {_named(scratch or tempfile.gettempdir())}: {error}"
        raise UserFault(
            problem,
            remedy="make space on that disk, or start the region with scratch= on a larger one; nothing is"
            " lost: the region resets to its last checkpoint",
        ) from OperatorFailure(problem)


def _named(directory: str) -> str:
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return repr(directory)
    return f"{directory!r}, where {free / (1 << 20):.1f} MiB are free"


class SnapshotSpool:
    """A snapshot that one thread writes and another reads after it. scratch: as of `scratch_directory`."""

    def __init__(self, scratch: str = "") -> None:
        self._scratch = scratch
        self._names: list[tuple[str, int]] = []
        """(table, size of the block), in order."""
        self.entries: list[BlockEntry] = []
        """What an index states of the blocks of `add`."""
        self._file: Any = None

    def add(self, table: str, blocks: Iterable[pa.RecordBatch], *, by_key: bool = False) -> None:
        """Append the blocks of a table. by_key: as of `encoded_blocks`. Raises UserFault if the disk fails;
        the spool is invalid then.
        """
        for block in blocks:
            for one in encoded_blocks(table, block, by_key=by_key):
                self.append(table, one.data)
                self.entries.append(BlockEntry.of(one))

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
