"""The records of the append-set workload, and the checker's log of which were acknowledged.

Every record is unique and describes itself: the epoch of its writer, its number in that epoch, its sequence
number (its position in the directory's whole history), a random payload, and a digest over all of that. The
store does not compute this digest.

The log is a file of entries of 32 bytes, one for each acknowledged record, written after the record's own
synced watermark was passed, outside of all servers. What a killed writer could not log any more
counts as not acknowledged.
"""

import hashlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Self

from journal import Op, Record

CHAIN: Final = "J"
MANIFEST_DIRECTORY: Final = "app.coord"
"""Its chain is not pipelined, so readers decide differently what is committed (R9, R10)."""
_FIELDS: Final = struct.Struct(">QQQ")
_ENTRY: Final = struct.Struct(">QQQQ")


class DamagedRecordError(Exception):
    """A record that is not what its writer made."""


class Entry(NamedTuple):
    """One record, without its payload. Order is the order of history."""

    epoch: int
    number: int
    sequence: int
    digest: int

    @property
    def name(self) -> tuple[int, int]:
        """What no two records share."""
        return self.epoch, self.number


def digest_of(directory: str, epoch: int, number: int, sequence: int, payload: bytes) -> int:
    content = directory.encode() + _FIELDS.pack(epoch, number, sequence) + payload
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def make_record(
    directory: str, epoch: int, number: int, sequence: int, payload: bytes
) -> tuple[Record, Entry]:
    digest = digest_of(directory, epoch, number, sequence, payload)
    record = Record(Op.OUTPUT, tag=sequence, ints=(epoch, number, digest), strings=(payload,))
    return record, Entry(epoch, number, sequence, digest)


def read_entry(directory: str, record: Record) -> Entry:
    """Decode a record of the workload. Raises DamagedRecordError if it is damaged."""
    try:
        epoch, number, digest = record.ints
        (payload,) = record.strings
    except ValueError:
        raise DamagedRecordError(f"a record with {len(record.ints)} ints") from None
    if digest != digest_of(directory, epoch, number, record.tag, payload):
        raise DamagedRecordError(
            f"record {number} of epoch {epoch} in {directory}: its digest does not match"
        )
    return Entry(epoch, number, record.tag, digest)


class AckLog:
    """The writing end. One writer process, one file; a kill leaves whole entries, and at most one part."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, entries: Iterable[Entry]) -> None:
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


def read_log(path: Path) -> list[Entry]:
    """The whole entries of a log."""
    data = path.read_bytes()
    whole = len(data) - len(data) % _ENTRY.size
    return [Entry(*fields) for fields in _ENTRY.iter_unpack(data[:whole])]
