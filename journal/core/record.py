"""Records of versions 0 and 1: encoding, parsing, faults, decoding of streams. Pure: no I/O. All numbers are
big-endian.

This is the hot path of every replay. Property tests compare the layouts at `HEADER_V1` and `HEADER_V0` with
the executable specification in `tests/specifications/records.py`.
"""

from collections.abc import Sequence
from enum import Enum, IntEnum, auto
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

import msgspec
import xxhash

from dos_protocol.errors import CorruptDataError, LocalProtocolError
from dos_protocol.limits import u64_max
from journal.core.errors import CorruptRecordError, TornRecordError, UnknownRecordError
from journal.limits import record_body_bytes_max, record_ints_max, record_strings_max


class Op(IntEnum):
    """The operation of a record; the first three are those of version 0. A number is never reused: a removed
    operation keeps its name, prefixed `RETIRED_`. `ARGUMENTS` explains a dump.
    """

    TRUNCATE = 0
    WRITE = 1
    REMOVE = 2
    SEGMENT_START = 3
    MARK = 4
    CHECKPOINT = 5
    STATE_BLOCK = 6
    SNAPSHOT_BEGIN = 7
    SNAPSHOT_END = 8
    DIVISION = 9
    OUTPUT = 10
    INPUT = 11
    INPUT_CLOSED = 12
    CONSUMERS = 13
    INPUT_MARK = 14
    DEPLOYMENT = 15
    REPORT = 16
    FS_CHANGE = 17
    FS_DATA = 18
    INDEX = 19


OPS_BY_NUMBER: tuple[Op, ...] = tuple(Op)
assert [int(op) for op in OPS_BY_NUMBER] == list(range(len(OPS_BY_NUMBER))), "op numbers have no holes"

FILE_ARITY: dict[Op, tuple[int, int]] = {
    Op.TRUNCATE: (1, 1),
    Op.WRITE: (1, 2),
    Op.REMOVE: (0, 1),
}
"""Number of (ints, strings) of the file operations. Encoder and decoder reject any other number."""

ARGUMENTS: dict[Op, str] = {
    Op.TRUNCATE: "ints=[new length] strings=[path]",
    Op.WRITE: "ints=[offset] strings=[path, data]",
    Op.REMOVE: "ints=[] strings=[path]",
    Op.SEGMENT_START: "ints=[] strings=[JSON SegmentStart]",
    Op.MARK: "ints=[wall clock, ms since 1970] strings=[]",
    Op.CHECKPOINT: (
        "ints=[checkpoint, step, incarnation] strings=[JSON Checkpoint]; of files"
        " ints=[checkpoint, step] strings=[]"
    ),
    Op.STATE_BLOCK: "ints=[checkpoint] strings=[operator, Arrow IPC stream]",
    Op.SNAPSHOT_BEGIN: "ints=[] strings=[]",
    Op.SNAPSHOT_END: "ints=[records between begin and end] strings=[]",
    Op.DIVISION: "ints=[step, time ms, possibly a checkpoint] strings=[JSON division, possibly workers]",
    Op.OUTPUT: "ints=[step, wall clock ms, rows, digest] strings=[JSON head, Arrow IPC stream]",
    Op.INPUT: "ints=[batch, part, 1 if the last, rows, digest before, wall clock ms] strings=[data, mark];"
    " of an entry point ints=[..., time us] strings=[..., late rows]",
    Op.INPUT_CLOSED: "ints=[wall clock ms] strings=[JSON of the producers' ends]",
    Op.CONSUMERS: "ints=[wall clock ms, epochs of changes]"
    " strings=[JSON of the consumers and the retention rule]",
    Op.INPUT_MARK: "ints=[mark us, version, origin, last time us, batch, digest before, wall clock ms]"
    " strings=[mark]",
    Op.DEPLOYMENT: "ints=[wall clock ms, epochs of changes]"
    " strings=[JSON of the replicas and streams of an application]",
    Op.REPORT: "ints=[wall clock ms, epochs of changes]"
    " strings=[JSON of what a reader of replicas, or a site, reports]",
    Op.FS_CHANGE: "ints=[] strings=[MessagePack of a change of the tree of a gateway, possibly a body]",
    Op.FS_DATA: "ints=[] strings=[a piece of a body]",
    Op.INDEX: "ints=[checkpoint, records that follow, their bytes] strings=[Arrow IPC stream]",
}
assert set(ARGUMENTS) == set(Op)


MAGIC: Final = b"\xd0\x4a"
VERSION_1: Final = 1
FLAGS_MUST_UNDERSTAND: Final = 0xFF00
"""A reader rejects a record with an unknown flag of this mask. Version 1 currently defines none."""

# Version 1, 24 + body + 8 bytes:
#
#     offset size
#          0    2  magic, D0 4A
#          2    1  version, 1
#          3    1  op
#          4    2  flags. A reader may ignore unknown bits of 0x00ff; it must reject unknown bits of 0xff00
#          6    1  number of ints, I
#          7    1  number of strings, S
#          8    8  tag (0 = none)
#         16    4  body bytes, B = 8*I + 8*S + the lengths of all strings; at most 64 MiB
#         20    4  header digest: the low 32 bits of xxh3-64 over bytes 0..19
#         24  8*I  the ints
#           +  8*S  the sizes of the strings
#           +    .  the strings, one after another
#       24+B    8  xxh3-64 over bytes 0 .. 24+B-1
#
# A record is valid if and only if
#
#     (1) magic and version are right
#     (2) the header digest matches
#     (3) no flag of 0xff00 is set that the reader does not know
#     (4) the op is known
#     (5) B is within the limit and equal to the sum above
#     (6) the final digest matches
#     (7) a file operation has its arity
#
# The decoder checks (1) to (4) and the limit of B before it waits for the body, so it never takes a flipped
# length for a record that is cut off.
HEADER_V1: Final = Struct(">2sBBHBBQII")
# Version 0, the format of the original service, 4 + length bytes and no checksum:
#
#     offset size
#          0    4  length of what follows, L = 12 + 8*I + 8*S + the lengths of all strings
#          4    1  version, 0
#          5    1  op: 0 truncate, 1 write, 2 remove
#          6    1  number of ints, I
#          7    1  number of strings, S
#          8    8  tag (0 = none)
#         16  8*I  the ints
#           +  8*S  the sizes of the strings
#           +    .  the strings
#
# A record is valid if and only if
#
#     (1) the version is 0
#     (2) the op is one of the three, with its arity
#     (3) L is within the limit and equal to the sum above, checked as soon as the sizes have arrived
HEADER_V0: Final = Struct(">IBBBBQ")
DIGEST_BYTES: Final = 8
DIGESTED_HEADER_BYTES: Final = HEADER_V1.size - 4
LENGTH_BYTES_V0: Final = 4
FIXED_BYTES_V0: Final = HEADER_V0.size - LENGTH_BYTES_V0
assert HEADER_V1.size == 24
assert HEADER_V0.size == 16
assert FIXED_BYTES_V0 == 12

WORDS: Final = tuple(Struct(f">{count}Q") for count in range(record_ints_max + record_strings_max + 1))
xxh3 = xxhash.xxh3_64_intdigest
ARITY: Final = tuple(FILE_ARITY[Op(number)] for number in range(len(FILE_ARITY)))
KNOWN_OPS: Final = len(OPS_BY_NUMBER)


# --- faults: each function returns the error that names the first broken rule, in the order above ----------


def partial_fault_v1(data: bytes, at: int, origin: int, where: str) -> CorruptDataError | None:
    """Return the fault of fewer bytes than a header; None if more bytes could still make it valid."""
    part = data[at : at + 3]
    if not part or (MAGIC + bytes([VERSION_1])).startswith(part):
        return None
    return header_fault_v1(data, at, origin, where)


def header_fault_v1(data: bytes, at: int, origin: int, where: str) -> CorruptDataError:
    head = data[at : at + 24]
    offset = origin + at
    if not MAGIC.startswith(head[:2]):
        hint = "bytes were lost, changed or inserted here; another member's copy may be good"
        return CorruptRecordError(where, offset, f"a record's magic {MAGIC.hex()}", head[:2].hex(), hint)
    if len(head) < 3 or head[2] != VERSION_1:
        flipped = head[:2] + bytes([VERSION_1]) + head[3:20]
        if len(head) == 24 and xxh3(flipped) & 0xFFFFFFFF == int.from_bytes(head[20:24]):
            return CorruptRecordError(
                where, offset + 2, "record version 1, as the header's digest says", f"{head[2]}"
            )
        return UnknownRecordError(
            where,
            offset + 2,
            "record version 1",
            f"version {head[2]}",
            "use a newer release to read this journal",
        )
    _, _, op, flags, n_ints, n_strings, _, body, header_digest = HEADER_V1.unpack(head)
    digest = xxh3(head[:20]) & 0xFFFFFFFF
    if digest != header_digest:
        hint = "the header changed after it was written; another member's copy may be good"
        return CorruptRecordError(where, offset, f"header digest {digest:08x}", f"{header_digest:08x}", hint)
    if flags & FLAGS_MUST_UNDERSTAND:
        hint = "use a newer release to read this journal"
        return UnknownRecordError(where, offset + 4, "flags within 0x00ff", f"{flags:#06x}", hint)
    if op >= KNOWN_OPS:
        hint = "use a newer release to read this journal"
        return UnknownRecordError(where, offset + 3, f"an op below {KNOWN_OPS}", f"op {op}", hint)
    if op < 3 and (n_ints, n_strings) != ARITY[op]:
        return _arity_fault(where, offset + 6, op, n_ints, n_strings)
    expected = f"a body of {8 * (n_ints + n_strings)} to {record_body_bytes_max} bytes"
    return CorruptRecordError(where, offset + 16, expected, f"{body} bytes")


def body_fault_v1(data: bytes, at: int, last: int, origin: int, where: str) -> CorruptDataError:
    digest, found = xxh3(data[at:last]), data[last : last + 8].hex()
    hint = "the record changed after it was written; another member's copy may be good"
    return CorruptRecordError(where, origin + at, f"record digest {digest:016x}", found, hint)


def sizes_fault(at: int, origin: int, where: str, body: int, sizes: Sequence[int]) -> CorruptDataError:
    found = f"strings of {', '.join(str(size) for size in sizes[:8])} bytes"
    return CorruptRecordError(where, origin + at, f"arguments that fill a body of {body} bytes", found)


def _arity_fault(where: str, offset: int, op: int, n_ints: int, n_strings: int) -> CorruptDataError:
    ints, strings = ARITY[op]
    expected = f"{ints} ints and {strings} strings for {OPS_BY_NUMBER[op].name}"
    return CorruptRecordError(where, offset, expected, f"{n_ints} and {n_strings}")


_NO_CHECKSUM_HINT: Final = "version 0 has no checksums: where the damage begins is a guess"


def partial_fault_v0(data: bytes, at: int, origin: int, where: str) -> CorruptDataError | None:
    part = data[at : at + 16]
    if len(part) < 5:
        return None
    length = int.from_bytes(part[:4])
    if part[4] or length > FIXED_BYTES_V0 + record_body_bytes_max or length < FIXED_BYTES_V0:
        return header_fault_v0(data, at, origin, where)
    if len(part) > 5 and part[5] >= len(ARITY):
        return header_fault_v0(data, at, origin, where)
    return None


def header_fault_v0(data: bytes, at: int, origin: int, where: str) -> CorruptDataError:
    head = data[at : at + 16].ljust(16, b"\0")
    offset = origin + at
    length, version, op, n_ints, n_strings, _ = HEADER_V0.unpack(head)
    if not FIXED_BYTES_V0 <= length <= FIXED_BYTES_V0 + record_body_bytes_max:
        expected = f"a length of {FIXED_BYTES_V0} to {FIXED_BYTES_V0 + record_body_bytes_max} bytes"
        return CorruptRecordError(where, offset, expected, f"{length}", _NO_CHECKSUM_HINT)
    if version:
        hint = "use a newer release, or the bytes changed: " + _NO_CHECKSUM_HINT
        return UnknownRecordError(where, offset + 4, "record version 0", f"version {version}", hint)
    if op >= len(ARITY):
        expected = "an op of version 0: 0, 1 or 2"
        return CorruptRecordError(where, offset + 5, expected, f"op {op}", _NO_CHECKSUM_HINT)
    if (n_ints, n_strings) != ARITY[op]:
        return _arity_fault(where, offset + 6, op, n_ints, n_strings)
    expected = f"a length of at least {FIXED_BYTES_V0 + 8 * (n_ints + n_strings)} bytes"
    return CorruptRecordError(where, offset, expected, f"{length}", _NO_CHECKSUM_HINT)


def torn(where: str, offset: int, needed: int, found: int) -> TornRecordError:
    """Return the error for data that ends inside a record, which begins at `offset`."""
    hint = "a record cut off at the end: its writer died here; everything before it is whole"
    return TornRecordError(
        where, offset, f"a record of at least {needed} bytes", f"the end after {found}", hint
    )


# --- encoding and parsing -----------------------------------------------------------------------------------
# Nearly every record of a journal of files is a WRITE. A valid WRITE takes a fast path (`_write_v1`,
# `_take_writes`) that applies the same rules. Everything else takes the general path, and only the general
# path reports errors.

_xxh3_bytes: Final = xxhash.xxh3_64_digest
_WRITE: Final = Op.WRITE
_WRITE_BEGINS: Final = HEADER_V1.pack(MAGIC, VERSION_1, Op.WRITE, 0, *FILE_ARITY[Op.WRITE], 0, 0, 0)[:8]
"""The first 8 bytes of every WRITE without flags: magic, version, op, flags and arity."""
_WRITE_V1: Final = Struct(">8sQIIQQQ")
"""`_WRITE_BEGINS`; tag, body bytes, header digest; the offset, and the sizes of path and data."""
_WRITE_HEADER: Final = Struct(">8sQI")
_WRITE_REST: Final = Struct(">IQQQ")
_WRITE_WORDS_BYTES: Final = 8 * sum(FILE_ARITY[Op.WRITE])
assert _WRITE_V1.size == HEADER_V1.size + _WRITE_WORDS_BYTES == _WRITE_HEADER.size + _WRITE_REST.size
_COPIED_BYTES: Final = 2048
"""Up to this size, copying the bytes for a digest is faster than creating a view of them."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One entry of a journal. ints are unsigned 64-bit; both tuples have at most 255 items; version 0 has no
    flags.
    """

    op: Op
    tag: int = 0
    ints: tuple[int, ...] = ()
    strings: tuple[bytes, ...] = ()
    flags: int = 0


class ParseResult(NamedTuple):
    """The end of the whole records of a buffer, and what the next record needs or its fault."""

    end: int
    """Offset in the buffer just past the last whole record."""
    needed: int
    """The number of bytes from `end` on that the next parse needs; 0 if there is a fault."""
    fault: CorruptDataError | None


def bytes_of_record(ints: int, strings: Sequence[int]) -> int:
    """Return the size of a record in version 1. ints: how many. strings: the size of each."""
    return HEADER_V1.size + 8 * (ints + len(strings)) + sum(strings) + DIGEST_BYTES


def encode(record: Record, version: int = VERSION_1) -> bytes:
    """Return the bytes of a record. Raises LocalProtocolError if it breaks a rule of that version."""
    if version == VERSION_1:
        return encode_v1(record)
    if version == 0:
        return encode_v0(record)
    raise LocalProtocolError(f"records have version 0 or 1, not {version}")


def encode_v1(record: Record) -> bytes:
    """Return the bytes of a record in version 1. Raises LocalProtocolError."""
    op, tag, ints, strings, flags = record.op, record.tag, record.ints, record.strings, record.flags
    if op is _WRITE and not flags and (written := _write_v1(tag, ints, strings)) is not None:
        return written
    sizes = [len(string) for string in strings]
    body_bytes = 8 * (len(ints) + len(sizes)) + sum(sizes)
    if op < 3 or body_bytes > record_body_bytes_max or flags or len(ints) > 255 or len(sizes) > 255:
        _check_record(record, body_bytes)
    try:
        header = HEADER_V1.pack(MAGIC, VERSION_1, op, flags, len(ints), len(sizes), tag, body_bytes, 0)
        words = WORDS[len(ints) + len(sizes)].pack(*ints, *sizes)
    except StructError as error:
        raise LocalProtocolError(
            f"the tag and ints of a record must be 0 to 2^64-1: {tag}, {ints!r:.80}"
        ) from error
    digest = (xxh3(header[:DIGESTED_HEADER_BYTES]) & 0xFFFFFFFF).to_bytes(4)
    data = b"".join((header[:DIGESTED_HEADER_BYTES], digest, words, *strings))
    return data + _xxh3_bytes(data)


def _write_v1(tag: int, ints: tuple[int, ...], strings: tuple[bytes, ...]) -> bytes | None:
    if len(ints) != 1 or len(strings) != 2:
        return None
    path, data = strings
    body_bytes = _WRITE_WORDS_BYTES + len(path) + len(data)
    if body_bytes > record_body_bytes_max:
        return None
    try:
        header = _WRITE_HEADER.pack(_WRITE_BEGINS, tag, body_bytes)
        rest = _WRITE_REST.pack(xxh3(header) & 0xFFFFFFFF, ints[0], len(path), len(data))
    except StructError:
        return None
    encoded = b"".join((header, rest, path, data))
    return encoded + _xxh3_bytes(encoded)


def encode_v0(record: Record) -> bytes:
    """Return the bytes of a record in version 0. Raises LocalProtocolError if version 0 cannot encode it."""
    sizes = [len(string) for string in record.strings]
    body_bytes = 8 * (len(record.ints) + len(sizes)) + sum(sizes)
    if record.op not in FILE_ARITY:
        raise LocalProtocolError(f"version 0 has only TRUNCATE, WRITE and REMOVE, not {record.op.name}")
    if record.flags:
        raise LocalProtocolError(f"version 0 has no flags, got {record.flags:#06x}")
    _check_record(record, body_bytes)
    header = HEADER_V0.pack(
        FIXED_BYTES_V0 + body_bytes, 0, record.op, len(record.ints), len(sizes), record.tag
    )
    return b"".join(
        (header, WORDS[len(record.ints) + len(sizes)].pack(*record.ints, *sizes), *record.strings)
    )


def _check_record(record: Record, body_bytes: int) -> None:
    ints, strings = len(record.ints), len(record.strings)
    if ints > record_ints_max or strings > record_strings_max:
        raise LocalProtocolError(f"a record has at most 255 ints and 255 strings, got {ints} and {strings}")
    if body_bytes > record_body_bytes_max:
        raise LocalProtocolError(
            f"the body of a record has at most {record_body_bytes_max} bytes, got {body_bytes}",
            remedy="split it into several records",
        )
    if record.flags & ~0xFFFF or record.flags & FLAGS_MUST_UNDERSTAND:
        raise LocalProtocolError(f"flags of version 1 are within 0x00ff, got {record.flags:#06x}")
    if any(not 0 <= word <= u64_max for word in (record.tag, *record.ints)):
        raise LocalProtocolError(
            f"the tag and ints of a record must be 0 to 2^64-1: {record.tag}, {record.ints!r:.80}"
        )
    arity = FILE_ARITY.get(record.op)
    if arity is not None and arity != (ints, strings):
        raise LocalProtocolError(
            f"{record.op.name} has {arity[0]} ints and {arity[1]} strings, got {ints} and {strings}"
        )


def parse_v1(data: bytes, at: int, out: list[tuple[int, Record]], origin: int, where: str) -> ParseResult:
    """Parse the whole records of `data` from `at` on, and append (stream offset of its end, record) to `out`.
    origin: the stream offset of data[0]. where: the file or segment, for faults. Never raises for bad data.
    """
    view = memoryview(data)
    size = len(data)
    unpack = HEADER_V1.unpack_from
    while True:
        at = _take_writes(data, view, at, out, origin)
        if size - at < 24:
            return ParseResult(at, 24, partial_fault_v1(data, at, origin, where))
        magic, version, op, flags, n_ints, n_strings, tag, body, header_digest = unpack(data, at)
        words = n_ints + n_strings
        if (
            magic != MAGIC
            or version != VERSION_1
            or xxh3(view[at : at + 20]) & 0xFFFFFFFF != header_digest
            or flags & FLAGS_MUST_UNDERSTAND
            or op >= KNOWN_OPS
            or body > record_body_bytes_max  # before the body is awaited: a flipped length is no torn end
            or body < 8 * words
            or (op < 3 and (n_ints, n_strings) != ARITY[op])
        ):
            return ParseResult(at, 0, header_fault_v1(data, at, origin, where))
        last = at + 24 + body
        if last + 8 > size:
            return ParseResult(at, 24 + body + 8, None)
        if xxh3(view[at:last]) != int.from_bytes(data[last : last + 8]):
            return ParseResult(at, 0, body_fault_v1(data, at, last, origin, where))
        numbers = WORDS[words].unpack_from(data, at + 24)
        start = at + 24 + 8 * words
        strings = []
        for length in numbers[n_ints:]:
            strings.append(data[start : start + length])
            start += length
        if start != last:
            return ParseResult(
                at, 0, sizes_fault(at + 24 + 8 * n_ints, origin, where, body, numbers[n_ints:])
            )
        at = last + 8
        out.append((origin + at, Record(OPS_BY_NUMBER[op], tag, numbers[:n_ints], tuple(strings), flags)))


def _take_writes(data: bytes, view: memoryview, at: int, out: list[tuple[int, Record]], origin: int) -> int:
    """Parse whole, valid WRITEs without flags, as `parse_v1` does. Return the offset at which they end."""
    size, unpack, digest, take = len(data), _WRITE_V1.unpack_from, xxh3, out.append
    while at + 56 <= size:
        begins, tag, body, header_digest, offset, path_bytes, data_bytes = unpack(data, at)
        words_end = at + 48
        path_end = words_end + path_bytes
        last = path_end + data_bytes
        if (
            begins != _WRITE_BEGINS
            or last != at + 24 + body
            or body > record_body_bytes_max
            or last + 8 > size
            or digest(data[at : at + 20]) & 0xFFFFFFFF != header_digest
            or _xxh3_bytes(data[at:last] if body <= _COPIED_BYTES else view[at:last]) != data[last : last + 8]
        ):
            break
        at = last + 8
        strings = data[words_end:path_end], data[path_end:last]
        take((origin + at, Record(_WRITE, tag, (offset,), strings)))
    return at


class RecordHeader(NamedTuple):
    """The op of a version 1 record and the size of the whole record in bytes, from its header."""

    op: Op
    bytes: int


def parse_header_v1(data: bytes, at: int, origin: int, where: str) -> RecordHeader:
    """Return the header at `at`, of 24 bytes. Raises CorruptRecordError, UnknownRecordError."""
    magic, version, op, flags, n_ints, n_strings, _, body, digest = HEADER_V1.unpack_from(data, at)
    if (
        magic != MAGIC
        or version != VERSION_1
        or xxh3(data[at : at + DIGESTED_HEADER_BYTES]) & 0xFFFFFFFF != digest
        or flags & FLAGS_MUST_UNDERSTAND
        or op >= KNOWN_OPS
        or not 8 * (n_ints + n_strings) <= body <= record_body_bytes_max
    ):
        raise header_fault_v1(data, at, origin, where)
    return RecordHeader(OPS_BY_NUMBER[op], HEADER_V1.size + body + DIGEST_BYTES)


def parse_v0(data: bytes, at: int, out: list[tuple[int, Record]], origin: int, where: str) -> ParseResult:
    """Parse the whole records of version 0, with the parameters and the result of `parse_v1`."""
    size = len(data)
    while True:
        left = size - at
        if left < 16:
            return ParseResult(at, 16, partial_fault_v0(data, at, origin, where))
        length, version, op, n_ints, n_strings, tag = HEADER_V0.unpack_from(data, at)
        words = n_ints + n_strings
        if (
            version != 0
            or op >= len(ARITY)
            or (n_ints, n_strings) != ARITY[op]
            or not FIXED_BYTES_V0 + 8 * words <= length <= FIXED_BYTES_V0 + record_body_bytes_max
        ):
            return ParseResult(at, 0, header_fault_v0(data, at, origin, where))
        start = at + 16 + 8 * words
        if start > size:
            return ParseResult(at, 16 + 8 * words, None)
        numbers = WORDS[words].unpack_from(data, at + 16)
        if sum(numbers[n_ints:]) != length - FIXED_BYTES_V0 - 8 * words:
            return ParseResult(
                at, 0, sizes_fault(at, origin, where, length - FIXED_BYTES_V0, numbers[n_ints:])
            )
        end = at + LENGTH_BYTES_V0 + length
        if end > size:
            return ParseResult(at, LENGTH_BYTES_V0 + length, None)
        strings = []
        for count in numbers[n_ints:]:
            strings.append(data[start : start + count])
            start += count
        at = end
        out.append((origin + at, Record(OPS_BY_NUMBER[op], tag, numbers[:n_ints], tuple(strings))))


# --- streams ------------------------------------------------------------------------------------------------

Decoded = tuple[int, Record]
"""(stream offset just past the record, the record)"""

_PARSERS: Final = {VERSION_1: parse_v1, 0: parse_v0}


class DecoderState(Enum):
    READING = auto()
    """Whole records are returned, the rest, at most one record, is buffered."""
    ZEROS = auto()
    """Only zero bytes since the end of the last record: the tail that a file system leaves if a size reached
    the disk and the data did not (reliability row 8). They are counted, not buffered.
    """
    FAULTY = auto()
    """The bytes at `offset` are not a record. All earlier records were returned; the next call raises: the
    caller receives all valid records first, and cannot miss the fault if it continues to call.
    """
    FINISHED = auto()


class RecordDecoder:
    """An incremental decoder of one journal file or segment. version: 0, 1, or None to detect it. where: its
    name, for errors. offset: the stream offset of the first byte fed, which must begin a record.
    """

    def __init__(self, version: int | None = VERSION_1, *, where: str = "journal", offset: int = 0) -> None:
        if version is not None and version not in _PARSERS:
            raise LocalProtocolError(f"records have version 0 or 1, not {version}")
        self.version = version
        self.where = where
        self.offset = offset
        """The stream offset just past the last whole record."""
        self.state = DecoderState.READING
        self._fault: CorruptDataError | None = None
        self._parts: list[bytes] = []
        self._buffered = 0
        self._needed = 1

    @property
    def buffered(self) -> int:
        """The number of bytes that were fed beyond `offset`."""
        return self._buffered

    def feed(self, data: bytes) -> list[Decoded]:
        """Feed the next bytes and return the records that are complete. Raises CorruptRecordError or
        UnknownRecordError after every record before the fault was returned, and again on each later call.
        """
        if self.state is DecoderState.FAULTY:
            assert self._fault is not None
            raise self._fault
        if self.state is DecoderState.FINISHED:
            raise LocalProtocolError("feed was called after finish")
        if self.state is DecoderState.ZEROS:
            self._take_zeros(data)
            return []
        self._parts.append(data)
        self._buffered += len(data)
        if self._buffered < self._needed:
            return []
        return self._parse()

    def finish(self) -> TornRecordError | None:
        """End the data. Return None at a boundary, the error of a torn tail otherwise. Raises the fault, if
        any.
        """
        if self.state is DecoderState.READING and self._buffered:
            self._parse(last=True)  # judge bytes that were too few while more could follow
        if self.state is DecoderState.FAULTY:
            assert self._fault is not None
            raise self._fault
        zeros = self.state is DecoderState.ZEROS
        self.state = DecoderState.FINISHED
        if zeros:
            hint = "the file's size reached the disk and its data did not; everything before is whole"
            return TornRecordError(self.where, self.offset, "a record", f"{self._buffered} zero bytes", hint)
        if self._buffered:
            return torn(self.where, self.offset, self._needed, self._buffered)
        return None

    def _parse(self, *, last: bool = False) -> list[Decoded]:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if self.version is None:
            self.version = detect_version(data)
            if self.version is None:
                self._needed = len(data) + 1
                self._parts = [data]
                return []
        out: list[Decoded] = []
        parsed = _PARSERS[self.version](data, 0, out, self.offset, self.where)
        rest = data[parsed.end :] if parsed.end else data
        self.offset += parsed.end
        self._parts = [rest] if rest else []
        self._buffered = len(rest)
        self._needed = parsed.needed
        if isinstance(parsed.fault, UnknownRecordError) and len(rest) < HEADER_V1.size and not last:
            # Only the header digest distinguishes a newer version from a flipped bit.
            self._needed = HEADER_V1.size
        elif parsed.fault is not None:
            self._set_fault(parsed, rest)
            if not out and self.state is DecoderState.FAULTY:
                raise parsed.fault
        return out

    def _set_fault(self, parsed: ParseResult, rest: bytes) -> None:
        self._parts = []
        # Zeros to the end are what a file system leaves of a tail whose size, not whose data, reached the
        # disk: torn, not corrupt. Zeros before other bytes are damage.
        if rest.count(0) == len(rest):
            self.state = DecoderState.ZEROS
        else:
            self.state = DecoderState.FAULTY
            self._fault = parsed.fault

    def _take_zeros(self, data: bytes) -> None:
        if data.count(0) == len(data):
            self._buffered += len(data)
            return
        self.state = DecoderState.FAULTY
        found = f"{self._buffered + len(data) - len(data.lstrip(bytes(1)))} zero bytes, then others"
        self._fault = CorruptRecordError(self.where, self.offset, "a record", found)
        raise self._fault


def detect_version(data: bytes) -> int | None:
    if data[:2] == MAGIC:
        return VERSION_1
    if len(data) < 2 and MAGIC.startswith(data):
        return None
    return 0


def decode_all(
    data: bytes, version: int | None = VERSION_1, *, where: str = "journal"
) -> tuple[list[Decoded], CorruptDataError | None]:
    """Return every whole record of `data`, and the fault after them, if any. Never raises for bad data."""
    decoder = RecordDecoder(version, where=where)
    records: list[Decoded] = []
    try:
        records = decoder.feed(data)
        return records, decoder.finish()
    except CorruptDataError as fault:
        return records, fault
