"""The state of a duplicate filter as bytes, for records and tokens. Pure.

| bytes | content |
|---|---|
| 4 | `DOSM` |
| 1 | version, 1 |
| 8 | the mark, signed |
| 4 | n, the number of rows that differ |
| 8 n, 16 n, 8 n | buckets, digests, copies |
| 8 | the digest of all before |

Numbers are little-endian, as numpy writes them on the machines that are supported; the digest is big-endian.
"""

import struct
from typing import Final

import numpy as np

from dataflow.core.duplicate_filter import DIGEST, FilterState
from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError

_HEAD: Final = struct.Struct("<4sBqI")
_MAGIC: Final = b"DOSM"
_VERSION: Final = 1
_CHECK: Final = struct.Struct(">Q")
_ROW_BYTES: Final = 32


def encode_filter(state: FilterState) -> bytes:
    """Return the bytes of a state."""
    arrays = (state.buckets.astype("<i8"), state.digests, state.copies.astype("<i8"))
    head = _HEAD.pack(_MAGIC, _VERSION, state.mark, len(state.buckets))
    body = head + b"".join(one.tobytes() for one in arrays)
    return body + _CHECK.pack(digest64(body))


def decode_filter(data: bytes, *, where: str) -> FilterState:
    """Return the state in bytes that `encode_filter` made. Raises CorruptDataError, which names `where`."""
    if len(data) < _HEAD.size + _CHECK.size:
        raise CorruptDataError(where, 0, "the state of a filter", f"{len(data)} bytes")
    magic, version, mark, rows = _HEAD.unpack_from(data)
    body, (check,) = data[: -_CHECK.size], _CHECK.unpack(data[-_CHECK.size :])
    if magic != _MAGIC or version != _VERSION:
        expected = f"the state of a filter of version {_VERSION}"
        raise CorruptDataError(where, 0, expected, f"{magic!r} of version {version}")
    if len(body) != _HEAD.size + rows * _ROW_BYTES or digest64(body) != check:
        raise CorruptDataError(where, 0, f"a filter of {rows} rows with its digest", f"{len(data)} bytes")
    at = _HEAD.size
    buckets = np.frombuffer(body, "<i8", rows, at).astype(np.int64)
    digests = np.frombuffer(body, DIGEST, rows, at + 8 * rows)
    copies = np.frombuffer(body, "<i8", rows, at + 24 * rows).astype(np.int64)
    return FilterState(mark, buckets, digests, copies)
