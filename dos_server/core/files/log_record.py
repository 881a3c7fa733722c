"""Records of the group log: the unit that one sync makes durable.

A record begins at a multiple of 4,096 bytes of a slot, is padded with zeros to one, and lies within its slot.
Big-endian:

    offset 0   magic 2 = D0 47
    offset 2   version u8 = 1
    offset 3   reserved u8 = 0
    offset 4   table bytes u32
    offset 8   content bytes u32
    offset 12  entries u16
    offset 14  entries u16 of the record before, which the table repeats
    offset 16  start u64            the number of the server's start in which it was written
    offset 24  segment u64
    offset 32  sequence u64         of the record; rises by 1, and never repeats in a data directory
    offset 40  first live segment u64
    offset 48  first live sequence u64
    offset 56  header digest u64 of the record before
    offset 64  table digest u64
    offset 72  content digest u64
    offset 80  header digest u64    xxh3-64 of the first 80 bytes, seeded with xxh3-64 of the log's key
    offset 88  table: the entries, then those of the record before, without their contents
               contents, in the order of the entries

Entry:

    kind u8 | directory name bytes u8 | object name bytes u8 | reserved u8 = 0 | root u32 | position u64 |
    end u64 | content bytes u32 | directory name | object name

    kind          position         end            content
    1 EXTENTS     in the file      logical size   the extents
    2 CREATED     0                0              none: the object is empty
    3 REMOVED     0                0              none
    4 REPLACED    root after it    logical size   none: a repair; the root before it is `root`
    5 CLAIM       0                epoch          the claim file; the object name is empty

A record is valid if and only if its three digests match, magic, version and reserved bytes have the values
above, its table decodes to these numbers of entries, their contents have the content bytes, and, if the
record before it is present, it names that one's header digest. `log_replay` checks the last condition.

The table repeats the entries of the record before, so that after damage to one record the next one tells
which objects had bytes in it.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

import xxhash

from dos_protocol.digests import Buffer, digest64
from dos_protocol.names import is_name
from dos_server.limits import log_align_bytes, log_content_bytes_max

MAGIC: Final = b"\xd0\x47"
VERSION: Final = 1
_HEADER: Final = struct.Struct(">2sBBIIHHQQQQQQQQ")
_DIGEST: Final = struct.Struct(">Q")
_ENTRY: Final = struct.Struct(">BBBBIQQI")
HEADER_BYTES: Final = _HEADER.size + _DIGEST.size
assert HEADER_BYTES == 88


class EntryKind(IntEnum):
    EXTENTS = 1
    CREATED = 2
    REMOVED = 3
    REPLACED = 4
    CLAIM = 5


class LogEntry(NamedTuple):
    kind: EntryKind
    directory: str
    name: str
    root: int
    position: int
    end: int
    content_bytes: int


class LogHeader(NamedTuple):
    table_bytes: int
    content_bytes: int
    entries: int
    entries_before: int
    start: int
    segment: int
    sequence: int
    first_segment: int
    first_sequence: int
    before_digest: int
    table_digest: int
    content_digest: int
    digest: int

    @property
    def size(self) -> int:
        return padded(HEADER_BYTES + self.table_bytes + self.content_bytes)


class LogPlace(NamedTuple):
    """Where a record is written, and what it releases."""

    start: int
    segment: int
    sequence: int
    first_segment: int
    first_sequence: int
    before_digest: int


class LogHeaderFault(Enum):
    """Why 88 bytes are not a header that can be used."""

    DIGEST = "the header digest does not match"
    VERSION = "the header digest matches, but this version is not known"


class TableError(ValueError):
    """A table whose digest matches and that does not decode: a fault of the program that wrote it."""


def log_seed(key: bytes) -> int:
    # A client writes what it likes into contents, at every alignment, and a slot may hold the rest of an old
    # record: with a seed that clients know, such bytes could be a valid record.
    return digest64(key)


def padded(count: int) -> int:
    return -(-count // log_align_bytes) * log_align_bytes


def names_of(directory: str, name: str) -> bytes:
    """Return the end of each entry of an object or claim."""
    return (directory + name).encode("ascii")


def encode_entry(entry: LogEntry, names: bytes | None = None) -> bytes:
    """Return the bytes of an entry. `names`: what `names_of` returns for it, if that is at hand."""
    kind, directory, name, root, position, end, content_bytes = entry
    head = _ENTRY.pack(kind, len(directory), len(name), 0, root, position, end, content_bytes)
    return head + (names or names_of(directory, name))


def entry_bytes(names: bytes) -> int:
    return _ENTRY.size + len(names)


def encode_record(
    place: LogPlace, own: Sequence[bytes], contents: Iterable[Buffer], before: Sequence[bytes], seed: int
) -> tuple[bytearray, int]:
    """Return the bytes of a record and its header digest. `own`, `before`: its encoded entries, and those of
    the record before.
    """
    table = b"".join((*own, *before))
    data = bytearray(HEADER_BYTES)
    data += table
    content_at = len(data)
    for content in contents:
        data += content
    content_bytes = len(data) - content_at
    assert content_bytes <= log_content_bytes_max
    content_digest = xxhash.xxh3_64_intdigest(memoryview(data)[content_at:])
    _HEADER.pack_into(
        data, 0, MAGIC, VERSION, 0, len(table), content_bytes, len(own), len(before), *place, digest64(table),
        content_digest,
    )  # fmt: skip
    digest = xxhash.xxh3_64_intdigest(memoryview(data)[: _HEADER.size], seed)
    _DIGEST.pack_into(data, _HEADER.size, digest)
    data += bytes(padded(len(data)) - len(data))
    return data, digest


def decode_header(data: Buffer, seed: int) -> LogHeader | LogHeaderFault:
    (digest,) = _DIGEST.unpack_from(data, _HEADER.size)
    if xxhash.xxh3_64_intdigest(memoryview(data)[: _HEADER.size], seed) != digest:
        return LogHeaderFault.DIGEST
    magic, version, reserved, *fields = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or reserved:
        return LogHeaderFault.VERSION
    return LogHeader._make((*fields, digest))


def decode_table(header: LogHeader, table: Buffer) -> tuple[list[LogEntry], list[LogEntry]] | None:
    """Return the entries of a record and those of the record before; None if the digest does not match.
    Raises TableError.
    """
    if len(table) != header.table_bytes or digest64(table) != header.table_digest:
        return None
    entries, at = [], 0
    for _ in range(header.entries + header.entries_before):
        if at + _ENTRY.size > len(table):
            raise TableError(f"the table ends at byte {at} in an entry")
        kind, count, count_name, reserved, *numbers = _ENTRY.unpack_from(table, at)
        at += _ENTRY.size
        text = bytes(table[at : at + count + count_name]).decode("latin-1")
        at += count + count_name
        directory, name = text[:count], text[count:]
        named = is_name(directory) and (is_name(name) or (kind == EntryKind.CLAIM and not name))
        if reserved or not named or kind not in _KINDS:
            raise TableError(f"the entry that ends at byte {at} is invalid: kind {kind}, {text!a}")
        entries.append(LogEntry(EntryKind(kind), directory, name, *numbers))
    own = entries[: header.entries]
    if at != len(table) or sum(entry.content_bytes for entry in own) != header.content_bytes:
        raise TableError(f"the entries take {at} of {len(table)} bytes, or their contents differ in length")
    return own, entries[header.entries :]


def content_matches(header: LogHeader, content: Buffer) -> bool:
    return len(content) == header.content_bytes and xxhash.xxh3_64_intdigest(content) == header.content_digest


_KINDS: Final = frozenset(EntryKind)
