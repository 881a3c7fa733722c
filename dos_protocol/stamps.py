"""Stamps: how the members of a store notice that a disk of one of them went back in time.

A server gives its disk a *stamp* at each start, and now and then while it runs: the next number, and a random
id. Clients tell the other members. A disk that lacks a stamp which another member was told of is an older
copy of itself, put back: what it had acknowledged since may be missing, and nothing that it says counts.

Why an id beside the number: a disk that went back counts on, and reaches the number again
(docs/decisions/0211).

Rules of this file: the values, and the bytes in which WELCOME tells what a server was told of the others.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from dos_protocol.limits import id_bytes
from dos_protocol.names import NO_ID

_ENTRY: Final = struct.Struct(f">{id_bytes}sQ{id_bytes}s")


class DiskStamp(NamedTuple):
    """`number` counts from 1 on one disk; `stamp_id` is random."""

    number: int
    stamp_id: bytes


NO_STAMP: Final = DiskStamp(0, NO_ID)
"""Of a server that gives none, or was told of none."""


def encode_witnessed(witnessed: Mapping[bytes, DiskStamp]) -> bytes:
    """Entries of server id 16 | number u64 | stamp id 16, by server id."""
    return b"".join(_ENTRY.pack(one, *stamp) for one, stamp in sorted(witnessed.items()))


def decode_witnessed(data: bytes) -> dict[bytes, DiskStamp]:
    """The newest stamp that a server was told of each other one. Raises ValueError for anything but whole
    entries, one a server."""
    if len(data) % _ENTRY.size:
        raise ValueError(f"{len(data)} bytes are no whole entries of {_ENTRY.size}")
    witnessed = {one: DiskStamp(number, stamp_id) for one, number, stamp_id in _ENTRY.iter_unpack(data)}
    if len(witnessed) * _ENTRY.size != len(data):
        raise ValueError("two entries of one server")
    return witnessed
