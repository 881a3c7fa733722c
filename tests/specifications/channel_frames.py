"""The executable specification of the channel frame: slow and plain.

protocol.md shows this layout. Property tests check that both write and read the same bytes.
"""

import xxhash
from construct import Bytes, Const, Int8ub, Int16ub, Int32ub, Int64ub, Struct, this

channel_head = Struct(
    "magic" / Const(b"\xd0\x43"),
    "version" / Const(1, Int8ub),
    "type" / Int8ub,
    "flags" / Int16ub,
    "sender" / Int16ub,
    "job" / Int64ub,
    "sender_epoch" / Int64ub,
    "step" / Int64ub,
    "checkpoint" / Int64ub,
    "seq" / Int32ub,
    "channel" / Int32ub,
    "payload_bytes" / Int32ub,
    "reserved" / Const(0, Int32ub),
)

channel_frame = Struct(
    "head" / channel_head,
    "digest" / Int64ub,
    "payload" / Bytes(this.head.payload_bytes),
)


def digest(head: bytes, payload: bytes) -> int:
    """Return xxh3-64 over the 56 bytes before the digest and the payload."""
    value: int = xxhash.xxh3_64_intdigest(head + payload)
    return value
