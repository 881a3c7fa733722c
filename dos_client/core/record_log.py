"""The log in which store records are decided: names and bytes. Pure: no I/O.

A record after the first counts as *decided* if it is an entry of this log that was synced on a quorum under a
claim of the log's directory. So two replacements cannot both decide a generation: the later one takes the log
over as any chain is taken over (R5 to R8), and continues after the last entry that it finds. Only decided
records are ever sent to a server.

Each run writes one object, `records.<epoch, 16 hex>`. Its first entry repeats the last one decided before it.
An entry is a u32 length and an encoded store record, which contains its own digest. A truncated entry does
not count.
"""

import struct
from collections.abc import Iterable, Mapping

from dos_client.core.quorum import deciding_record
from dos_protocol.errors import CorruptDataError
from dos_protocol.limits import store_record_bytes_max
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import StoreRecord, decode_store_record, encode_store_record

DIRECTORY = "dos.store"
_PREFIX = "records."
_LENGTH = struct.Struct(">I")
assert _LENGTH.size == 4


def record_in(record: StoreRecord, directory: str) -> StoreRecord:
    """Return the record whose quorums count in that directory: where records are decided, with the
    tie-breaker.
    """
    return deciding_record(record) if directory == DIRECTORY else record


def object_name(epoch: int) -> str:
    """Return the name of the object that the run with that epoch writes."""
    return f"{_PREFIX}{epoch:016x}"


def names_newest_first(answers: Mapping[bytes, Mapping[str, ObjectInfo]]) -> list[str]:
    """Return the log's objects that any member has, highest epoch first."""
    names = {name for objects in answers.values() for name in objects if name.startswith(_PREFIX)}
    return sorted(names, reverse=True)


def longest(answers: Mapping[bytes, Mapping[str, ObjectInfo]], name: str) -> tuple[bytes, ObjectInfo] | None:
    """Return the member with the longest synced copy of an object."""
    copies = [(member, objects[name]) for member, objects in sorted(answers.items()) if name in objects]
    return max(copies, key=lambda pair: pair[1].synced, default=None)


def encode_entry(record: StoreRecord) -> bytes:
    """Encode an entry."""
    data = encode_store_record(record)
    return _LENGTH.pack(len(data)) + data


def decode_entries(data: bytes) -> tuple[list[StoreRecord], int]:
    """Return the complete entries at the beginning of the bytes, and how many bytes they use."""
    records: list[StoreRecord] = []
    position = 0
    while len(data) - position >= _LENGTH.size:
        (count,) = _LENGTH.unpack_from(data, position)
        end = position + _LENGTH.size + count
        if count > store_record_bytes_max or end > len(data):
            break
        try:
            records.append(decode_store_record(data[position + _LENGTH.size : end]))
        except CorruptDataError:
            break
        position = end
    return records, position


def last_of(records: Iterable[StoreRecord], using: StoreRecord) -> StoreRecord:
    """Return the newest of the decided records and the record in use."""
    return max([using, *records], key=lambda record: record.generation)
