"""An executable specification of the record layouts, in `construct`, to compare `record.py` with.

It describes the layout only, in the order of protocol.md. Limits, digests and arity are not part of it. The
property tests in `tests/journal/test_record.py` compare both. It is a hundred times slower than
`record.py`: do not use it on a hot path.
"""

from construct import (
    Array,
    Byte,
    Bytes,
    Const,
    Int16ub,
    Int32ub,
    Int64ub,
    Rebuild,
    Struct,
    len_,
    this,
)

RECORD_V1 = Struct(
    "magic" / Const(b"\xd0\x4a"),
    "version" / Const(1, Byte),
    "op" / Byte,
    "flags" / Int16ub,
    "int_count" / Rebuild(Byte, len_(this.ints)),
    "string_count" / Rebuild(Byte, len_(this.strings)),
    "tag" / Int64ub,
    "body_bytes" / Int32ub,
    "header_digest" / Int32ub,
    "ints" / Array(this.int_count, Int64ub),
    "sizes" / Array(this.string_count, Int64ub),
    "strings" / Array(this.string_count, Bytes(lambda context: context.sizes[context["_index"]])),
    "digest" / Int64ub,
)
"""header_digest: the low 32 bits of xxh3-64 over the 20 bytes before it. digest: xxh3-64 over everything
before it.
"""

RECORD_V0 = Struct(
    "length" / Int32ub,
    "version" / Const(0, Byte),
    "op" / Byte,
    "int_count" / Rebuild(Byte, len_(this.ints)),
    "string_count" / Rebuild(Byte, len_(this.strings)),
    "tag" / Int64ub,
    "ints" / Array(this.int_count, Int64ub),
    "sizes" / Array(this.string_count, Int64ub),
    "strings" / Array(this.string_count, Bytes(lambda context: context.sizes[context["_index"]])),
)
"""length: the number of bytes after this field."""
