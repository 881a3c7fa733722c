"""The canonical bytes of keys, whose xxh3-64 is `_hash`. The reference in plain Python, one key at a time.

Pure: definitions. `key_hash.py` is the vectorized form over Arrow arrays; tests compare both with each other
and with golden vectors. The bytes decide which worker owns a key, so a released definition never changes.

| kind | canonical bytes |
|---|---|
| string | its UTF-8 bytes, unchanged (no normalization) |
| binary | its bytes |
| bool | one byte, 0 or 1 |
| int | 8 bytes, big-endian two's complement; equal for all widths, so widening keeps the hashes |
| uint | 8 bytes, big-endian |
| float | 8 bytes, big-endian IEEE 754 double; -0.0 as 0.0, every NaN as 7ff8000000000000 |
| decimal | 16 bytes, big-endian two's complement of the unscaled value; the scale belongs to the schema |
| date | days since 1970-01-01, as int |
| timestamp | ticks since 1970-01-01 in the column's unit, as int; the unit belongs to the schema |
| null | no bytes |
| several columns | of each: 4 bytes big-endian length, its bytes; ffffffff alone for null |

Keys are compared by value, not by hash: null and '' share a hash and are different keys.
"""

import math
import struct
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from checkpoint.errors import UnsupportedKeyTypeError
from dos_protocol.digests import digest64

Kind: TypeAlias = Literal["string", "binary", "bool", "int", "uint", "float", "decimal", "date", "timestamp"]
Value: TypeAlias = str | bytes | bool | int | float | None

NULL_LENGTH: Final = 0xFFFFFFFF
NAN_BYTES: Final = bytes.fromhex("7ff8000000000000")


def canonical_bytes(kind: Kind, value: Value) -> bytes:
    """Return the canonical bytes of one value.

    For decimal, date and timestamp, `value` is the integer named in the table. Raises UnsupportedKeyTypeError
    for a value that is not of its kind, OverflowError for one outside the kind's range.
    """
    if value is None:
        return b""
    if kind == "string" and isinstance(value, str):
        return value.encode()
    if kind == "binary" and isinstance(value, bytes):
        return value
    if kind == "bool" and isinstance(value, bool):
        return bytes([value])
    if kind == "float" and isinstance(value, float):
        return NAN_BYTES if math.isnan(value) else struct.pack(">d", value + 0.0)
    if isinstance(value, int) and kind in ("int", "uint", "date", "timestamp", "decimal"):
        return value.to_bytes(16 if kind == "decimal" else 8, "big", signed=kind != "uint")
    raise UnsupportedKeyTypeError(f"no canonical bytes for a {type(value).__name__} as {kind}")


def canonical_key(kinds: Sequence[Kind], values: Sequence[Value]) -> bytes:
    """Return the canonical bytes of a key of one or several columns."""
    if len(kinds) == 1:
        return canonical_bytes(kinds[0], values[0])
    parts: list[bytes] = []
    for kind, value in zip(kinds, values, strict=True):
        data = canonical_bytes(kind, value)
        length = NULL_LENGTH if value is None else len(data)
        parts.append(length.to_bytes(4, "big") + data)
    return b"".join(parts)


def key_hash(kinds: Sequence[Kind], values: Sequence[Value]) -> int:
    """Return `_hash` of a key."""
    return digest64(canonical_key(kinds, values))
