"""The executable specification of extents, claims and marks, written with construct.

It is derived from protocol.md, not from `core`; property tests check that the two agree. It is slow: for
tests, and for people who read a data directory with other tools.
"""

from typing import Any, Final

import xxhash
from construct import (
    Bytes,
    Check,
    Checksum,
    Computed,
    Const,
    Int8ub,
    Int16ub,
    Int32ub,
    Int64ub,
    RawCopy,
    Terminated,
    this,
)
from construct import Struct as Layout

Spec = Any
"""construct is untyped; its specifications are values of its own classes."""


def extent_spec(directory: str, name: str) -> Spec:
    """One extent of an object, header and payload."""
    seed = xxhash.xxh3_64_intdigest(f"{directory}/{name}".encode("ascii"))
    return Layout(
        "head"
        / RawCopy(
            Layout(
                "magic" / Const(b"\xd0\x58"),
                "version" / Const(1, Int8ub),
                Const(0, Int8ub),
                Const(0, Int16ub),
                Const(0, Int16ub),
                "payload_bytes" / Int32ub,
                Check((this.payload_bytes >= 1) & (this.payload_bytes <= 262_144)),
                "link" / Int32ub,
                "offset" / Int64ub,
                "epoch" / Int64ub,
                "durable" / Int64ub,
                Check(this.durable <= this.offset),
                "payload_digest" / Int64ub,
                "prefix_digest" / Int64ub,
            )
        ),
        "header_digest"
        / Checksum(Int64ub, lambda data: xxhash.xxh3_64_intdigest(data, seed), this.head.data),
        "payload" / Bytes(this.head.value.payload_bytes),
        "expected" / Computed(lambda ctx: xxhash.xxh3_64_intdigest(ctx.payload)),
        Check(this.expected == this.head.value.payload_digest),
    )


ClaimSpec: Final[Spec] = Layout(
    "body"
    / RawCopy(
        Layout(
            "magic" / Const(b"\xd0\x4c"),
            "version" / Const(1, Int8ub),
            Const(0, Int8ub),
            "epoch" / Int64ub,
            "writer_id" / Bytes(16),
        )
    ),
    "digest" / Checksum(Int64ub, xxhash.xxh3_64_intdigest, this.body.data),
    Terminated,
)

MarkSpec: Final[Spec] = Layout(
    "body"
    / RawCopy(
        Layout(
            "name" / Bytes(128),
            "synced" / Int64ub,
            "flags" / Int8ub,
            Check(this.flags <= 7),
            "root" / Int32ub,
            Const(bytes(107)),
        )
    ),
    "digest" / Checksum(Int64ub, xxhash.xxh3_64_intdigest, this.body.data),
    Terminated,
)
