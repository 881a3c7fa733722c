"""The executable specification of the wire: the same bytes, declaratively, with construct.

Written from protocol.md, sharing no table with `frames` or `messages`; property tests compare the two. About
a hundred times slower than the struct code. For tests and for authors of clients in other languages, never
for a connection.
"""

from typing import Any, Final

import xxhash
from construct import (
    Bytes,
    Check,
    Checksum,
    Computed,
    Const,
    ExprAdapter,
    GreedyBytes,
    Int8ub,
    Int16ub,
    Int32ub,
    Int64ub,
    OneOf,
    PascalString,
    Prefixed,
    RawCopy,
    Rebuild,
    Struct,
    Terminated,
    len_,
    this,
)

Spec = Any
"""construct is untyped; its specifications are values of its own classes."""

Name: Final[Spec] = ExprAdapter(
    Prefixed(Int8ub, GreedyBytes),
    lambda data, _: data.decode("latin-1"),
    lambda text, _: text.encode("latin-1"),
)
Text: Final[Spec] = PascalString(Int16ub, "utf8")
Blob: Final[Spec] = Prefixed(Int16ub, GreedyBytes)
Identity: Final[Spec] = Bytes(16)
Bit: Final[Spec] = ExprAdapter(OneOf(Int8ub, (0, 1)), lambda bit, _: bool(bit), lambda bit, _: int(bit))

FrameSpec: Final[Spec] = Struct(
    "head"
    / RawCopy(
        Struct(
            "magic" / Const(b"\xd0\x5e"),
            "version" / Const(1, Int8ub),
            "opcode" / Int8ub,
            "flags" / Int16ub,
            "reserved" / Const(0, Int16ub),
            "request_id" / Int64ub,
            "meta_bytes" / Int32ub,
            "payload_bytes" / Int32ub,
            Check(this.meta_bytes <= 64 * 1024),
            Check(this.payload_bytes <= 1024 * 1024),
        )
    ),
    "digest" / Int64ub,
    "meta" / Bytes(this.head.value.meta_bytes),
    "payload" / Bytes(this.head.value.payload_bytes),
    "expected_digest"
    / Computed(lambda ctx: xxhash.xxh3_64_intdigest(ctx.head.data + ctx.meta + ctx.payload)),
    Check(this.digest == this.expected_digest),
    Terminated,
)

EntrySpec: Final[Spec] = Struct(
    "name" / Name,
    "received" / Int64ub,
    "synced" / Int64ub,
    "digest" / Int64ub,
    "marks" / Int8ub,
    Check(this.marks < 8),
    "appending" / Computed(lambda ctx: bool(ctx.marks & 1)),
    "corrupt" / Computed(lambda ctx: bool(ctx.marks & 2)),
    "poisoned" / Computed(lambda ctx: bool(ctx.marks & 4)),
)

EntriesSpec: Final[Spec] = Struct(
    "count" / Rebuild(Int32ub, len_(this.entries)),
    "entries" / EntrySpec[this.count],
    Terminated,
)

META_SPECS: Final[dict[int, Spec]] = {
    1: Struct(
        "version" / Int8ub,
        "store_id" / Identity,
        "generation" / Int64ub,
        "token" / Blob,
        "client" / Text,
        Terminated,
    ),
    2: Struct("claim" / Bit, "epoch" / Int64ub, "writer_id" / Identity, "directory" / Name, Terminated),
    3: Struct("expected_size" / Int64ub, "prefix_digest" / Int64ub, "name" / Name, Terminated),
    4: Struct("offset" / Int64ub, "max_bytes" / Int32ub, "wait_ms" / Int32ub, "name" / Name, Terminated),
    5: Struct("entries_max" / Int32ub, "prefix" / Name, "after" / Name, Terminated),
    6: Struct("digest_at" / Int64ub, "name" / Name, Terminated),
    7: Struct("name" / Name, Terminated),
    8: Struct("store_record" / Blob, Terminated),
    9: Struct(Terminated),
    10: Struct(Terminated),
    11: Struct(
        "offset" / Int64ub,
        "goal_size" / Int64ub,
        "goal_digest" / Int64ub,
        "old_size" / Int64ub,
        "old_digest" / Int64ub,
        "overwrite" / Bit,
        "name" / Name,
        Terminated,
    ),
    12: Struct("number" / Int64ub, "stamp_id" / Identity, Terminated),
    13: Struct(
        "server_id" / Identity,
        "number" / Int64ub,
        "stamp_id" / Identity,
        "before_number" / Int64ub,
        "before_id" / Identity,
        Terminated,
    ),
    14: Struct("begin" / Bit, "bytes_per_s" / Int64ub, Terminated),
    129: Struct(
        "version" / Int8ub,
        "server_id" / Identity,
        "payload_bytes_max" / Int32ub,
        "in_flight_bytes_max" / Int32ub,
        "entries_max" / Int32ub,
        "stamp_number" / Int64ub,
        "stamp_id" / Identity,
        "rolled_back" / Bit,
        "refuses_appends" / Bit,
        "store_record" / Blob,
        "witnessed" / Blob,
        Terminated,
    ),
    130: Struct("epoch" / Int64ub, "writer_id" / Identity, Terminated),
    131: Struct("received" / Int64ub, "synced" / Int64ub, "name" / Name, Terminated),
    132: Struct("offset" / Int64ub, "synced" / Int64ub, "name" / Name, Terminated),
    133: Struct("more" / Bit, Terminated),
    134: Struct("digest_at" / Int64ub, "digest" / Int64ub, Terminated),
    135: Struct("name" / Name, Terminated),
    136: Struct("generation" / Int64ub, Terminated),
    137: Struct(Terminated),
    138: Struct(Terminated),
    139: Struct("size" / Int64ub, "done" / Bit, "name" / Name, Terminated),
    140: Struct("number" / Int64ub, "stamp_id" / Identity, Terminated),
    141: Struct("server_id" / Identity, "number" / Int64ub, "stamp_id" / Identity, Terminated),
    142: Struct(
        "rounds" / Int64ub,
        "objects" / Int64ub,
        "bytes" / Int64ub,
        "damaged" / Int64ub,
        "directories_left" / Int64ub,
        Terminated,
    ),
    255: Struct(
        "code" / Int16ub,
        "actual" / Int64ub,
        "message" / Text,
        "remedy" / Text,
        "record" / Blob,
        Terminated,
    ),
}
"""The layout of meta, by opcode."""

PAYLOADS: Final[dict[int, str]] = {
    3: "bytes",
    9: "bytes",
    11: "bytes",
    130: "entries",
    132: "bytes",
    133: "entries",
    134: "one entry",
    137: "bytes",
}
"""The kind of payload, by opcode. Every other opcode has none."""

StoreRecordSpec: Final[Spec] = Struct(
    "body"
    / RawCopy(
        Struct(
            "magic" / Const(b"\xd0\x53"),
            "version" / Const(1, Int8ub),
            "reserved" / Const(0, Int8ub),
            "store_id" / Identity,
            "generation" / Int64ub,
            "ack_quorum" / Int8ub,
            "member_count" / Rebuild(Int8ub, len_(this.members)),
            "members"
            / Struct(
                "server_id" / Identity,
                "state" / Int8ub,
                "address" / PascalString(Int8ub, "ascii"),
            )[this.member_count],
        )
    ),
    "digest" / Checksum(Int64ub, xxhash.xxh3_64_intdigest, this.body.data),
    Terminated,
)


def build_frame(opcode: int, request_id: int, meta: bytes, payload: bytes, flags: int = 0) -> bytes:
    """Return a frame by the specification. Raises construct's errors for values that do not fit."""
    head = {
        "opcode": opcode,
        "flags": flags,
        "request_id": request_id,
        "meta_bytes": len(meta),
        "payload_bytes": len(payload),
    }
    raw = FrameSpec.head.subcon.build({"value": head})
    digest = xxhash.xxh3_64_intdigest(raw + meta + payload)
    frame: bytes = raw + Int64ub.build(digest) + meta + payload
    return frame
