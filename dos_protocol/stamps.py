"""Stamps: how the members of a store detect that the disk of one of them went back in time.

A server gives its disk a *stamp* at each start and periodically while it runs: the next number, and an id,
which is random in its first half and a MAC of the server in its second half. Clients report it to the other
members, which *witness* it. A disk that lacks a stamp that another member witnessed is an older copy of
itself, for example a restored backup. Bytes that it acknowledged since may be missing, so nothing that it
reports counts.

The id is needed beside the number because a disk that went back continues counting and reaches the same
number again (docs/decisions/0211). The MAC shows the server which stamps it made (docs/decisions/0258).

Pure: the values, and their bytes in WELCOME.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from dos_protocol.limits import id_bytes
from dos_protocol.names import NO_ID

_ENTRY: Final = struct.Struct(f">{id_bytes}sQ{id_bytes}s")


class DiskStamp(NamedTuple):
    """One stamp. `number` counts from 1 on one disk; Only the server can check `stamp_id`."""

    number: int
    stamp_id: bytes


NO_STAMP: Final = DiskStamp(0, NO_ID)
"""The stamp of a server that has none, or of which none was witnessed."""


def encode_witnessed(witnessed: Mapping[bytes, DiskStamp]) -> bytes:
    """Return the entries server id 16 | number u64 | stamp id 16, ordered by server id."""
    return b"".join(_ENTRY.pack(one, *stamp) for one, stamp in sorted(witnessed.items()))


def decode_witnessed(data: bytes) -> dict[bytes, DiskStamp]:
    """Return the newest witnessed stamp per server id.

    Raises ValueError unless the data are whole entries with distinct server ids.
    """
    if len(data) % _ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not a multiple of the {_ENTRY.size} bytes of an entry")
    witnessed = {one: DiskStamp(number, stamp_id) for one, number, stamp_id in _ENTRY.iter_unpack(data)}
    if len(witnessed) * _ENTRY.size != len(data):
        raise ValueError("more than one entry for one server")
    return witnessed
