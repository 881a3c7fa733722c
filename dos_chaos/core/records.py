"""The records of the append-set workload. Pure.

Every record is unique and describes itself: the epoch of its writer, its number in that epoch, its sequence
number (its position in the directory's whole history), a random payload, and a digest over all of that. The
store does not compute this digest.
"""

import hashlib
import struct
from typing import Final, NamedTuple

from journal import Op, Record

CHAIN: Final = "J"
_MANIFEST: Final = ".coord"
_FIELDS: Final = struct.Struct(">QQQ")


def is_manifest(directory: str) -> bool:
    """Return whether a directory holds a manifest: its chain is not pipelined, so each record proves the one
    before, and readers decide differently what is committed (R9, R10).
    """
    return directory.endswith(_MANIFEST)


class DamagedRecordError(Exception):
    """A record that is not what its writer made."""


class WrittenRecord(NamedTuple):
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
) -> tuple[Record, WrittenRecord]:
    digest = digest_of(directory, epoch, number, sequence, payload)
    record = Record(Op.OUTPUT, tag=sequence, ints=(epoch, number, digest), strings=(payload,))
    return record, WrittenRecord(epoch, number, sequence, digest)


def read_entry(directory: str, record: Record) -> WrittenRecord:
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
    return WrittenRecord(epoch, number, record.tag, digest)
