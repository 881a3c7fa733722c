"""Records of the chain of a tree. Pure.

| op | strings |
|---|---|
| FS_CHANGE | the change, or a part of a snapshot, as MessagePack; a short body of a PutFile |
| FS_DATA | a piece of a body, which a later PutFile names |

A body is read from the chain by its offset, so it is the last string of its record: it ends where the digest
of the record begins.
"""

from typing import Final

import msgspec
import xxhash

from dos_gateway.core.space import BodyExtent
from dos_gateway.core.tree import PutFile, TreeRecord
from journal import Op, Record

_DIGEST_BYTES: Final = 8
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(TreeRecord)


def change_record(change: TreeRecord, body: bytes = b"") -> Record:
    data = _encoder.encode(change)
    return Record(Op.FS_CHANGE, strings=(data, body) if body else (data,))


def piece_record(data: bytes) -> Record:
    return Record(Op.FS_DATA, strings=(data,))


def extent_of(body: bytes, end: int) -> BodyExtent:
    """Return where the last string of the record lies that ends at this logical offset."""
    return BodyExtent(end - _DIGEST_BYTES - len(body), len(body), xxhash.xxh3_64_intdigest(body))


def is_body(data: bytes, extent: BodyExtent) -> bool:
    return len(data) == extent.size and xxhash.xxh3_64_intdigest(data) == extent.digest


def read_change(record: Record, end: int) -> TreeRecord:
    """Return what an FS_CHANGE that ends at this logical offset changes. Raises the error of msgspec."""
    change: TreeRecord = _decoder.decode(record.strings[0])
    if len(record.strings) > 1 and isinstance(change, PutFile):
        return msgspec.structs.replace(change, extents=(extent_of(record.strings[1], end),))
    return change
