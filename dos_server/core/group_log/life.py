"""Two small files of the group log, as bytes.

`life`, replaced whole: the number of starts, and whether the log may hold what no other file has:

    magic 2 = D0 4E | version u8 = 1 | state u8 | starts u64 | key 16 | xxh3-64 of everything before

    state     meaning
    0 NO_LOG  there is no log: everything is in the files of the objects
    1 IN_USE  the log has to be read before anything else is
    2 CLEAN   the server was stopped after everything was filed: as NO_LOG, and the slots exist

`seen`, overwritten in place after each sync of the log and before its answers, not synced: the header and the
table of the record that was synced last. It is a lower bound, as marks are: an older one, or an invalid one,
only makes damage to the very last records harder to detect.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError
from dos_server.core.files.log_record import (
    HEADER_BYTES,
    LogHeaderFault,
    TableError,
    decode_header,
    decode_table,
)
from dos_server.core.files.log_replay import SeenRecord

_MAGIC: Final = b"\xd0\x4e"
_BODY: Final = struct.Struct(">2sBBQ16s")
_DIGEST: Final = struct.Struct(">Q")
LIFE_BYTES: Final = _BODY.size + _DIGEST.size
_REMEDY: Final = "replace the server: without this file nobody knows whether its log holds acknowledged bytes"


class LogState(IntEnum):
    """Whether the log has to be read at a start."""

    NO_LOG = 0
    IN_USE = 1
    CLEAN = 2


class Life(NamedTuple):
    """The number of starts of a data directory, the state of its log, and the secret of its digests."""

    starts: int
    state: LogState
    key: bytes


def encode_life(life: Life) -> bytes:
    """Return the bytes of the file `life`."""
    body = _BODY.pack(_MAGIC, 1, life.state, life.starts, life.key)
    return body + _DIGEST.pack(digest64(body))


def decode_life(data: bytes) -> Life:
    """Return what the file says. Raises CorruptDataError for anything but one whole `life`."""
    if len(data) != LIFE_BYTES:
        raise CorruptDataError("life", 0, f"{LIFE_BYTES} bytes", f"{len(data)}", _REMEDY)
    body, (digest,) = data[: _BODY.size], _DIGEST.unpack_from(data, _BODY.size)
    if digest64(body) != digest:
        raise CorruptDataError("life", 0, f"digest {digest64(body):016x}", f"{digest:016x}", _REMEDY)
    magic, version, state, starts, key = _BODY.unpack(body)
    if magic != _MAGIC or version != 1 or state > LogState.CLEAN:
        raise CorruptDataError("life", 0, "life of version 1", body[:4].hex(), "use a newer release")
    return Life(starts, LogState(state), key)


def decode_seen(data: bytes | None, seed: int) -> SeenRecord | None:
    """Return the record that the file `seen` names; None if it is missing or not whole."""
    if data is None or len(data) < HEADER_BYTES:
        return None
    header = decode_header(data[:HEADER_BYTES], seed)
    if isinstance(header, LogHeaderFault):
        return None
    try:
        tables = decode_table(header, data[HEADER_BYTES : HEADER_BYTES + header.table_bytes])
    except TableError:
        return None
    return SeenRecord(header, tuple(tables[0])) if tables is not None else None
