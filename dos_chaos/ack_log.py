"""The checker's log of acknowledged records: a file of entries of 32 bytes, outside of all servers.

An entry is written after the synced watermark has passed its record. What a killed writer could not log any
more counts as not acknowledged.
"""

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from dos_chaos.core.records import WrittenRecord

_ENTRY: Final = struct.Struct(">QQQQ")


class AckLog:
    """The writing end. One writer process, one file; a kill leaves whole entries, and at most one part."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, entries: Iterable[WrittenRecord]) -> None:
        os.write(self._file, b"".join(_ENTRY.pack(*entry) for entry in entries))

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def count_acknowledged(path: Path) -> int:
    """How many entries a log has by now."""
    return path.stat().st_size // _ENTRY.size if path.exists() else 0


def read_log(path: Path) -> list[WrittenRecord]:
    """The whole entries of a log."""
    data = path.read_bytes()
    whole = len(data) - len(data) % _ENTRY.size
    return [WrittenRecord(*fields) for fields in _ENTRY.iter_unpack(data[:whole])]
