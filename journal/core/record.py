"""Encode and parse records of versions 0 and 1. Pure: no I/O. This is the hot path of every replay.

This module handles whole records; `decoder.py` feeds it from streams. It knows neither chains nor files, and
of the operations only the arity of the three file operations. The layouts and the rules of validity are in
`record_layout.py`. The errors for invalid records are in `record_faults.py`.

Nearly every record of a journal of files is a WRITE. A valid WRITE takes a fast path (`_write_v1`,
`_take_writes`) that applies the same rules. Everything else takes the general path, and only the general path
reports errors.
"""

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

import msgspec
import xxhash

from dos_protocol.errors import CorruptDataError, LocalProtocolError
from dos_protocol.limits import u64_max
from journal.core.record_faults import (
    body_fault_v1,
    header_fault_v0,
    header_fault_v1,
    partial_fault_v0,
    partial_fault_v1,
    sizes_fault,
)
from journal.core.record_layout import (
    ARITY,
    DIGEST_BYTES,
    DIGESTED_HEADER_BYTES,
    FIXED_BYTES_V0,
    FLAGS_MUST_UNDERSTAND,
    HEADER_V0,
    HEADER_V1,
    KNOWN_OPS,
    LENGTH_BYTES_V0,
    MAGIC,
    VERSION_1,
    WORDS,
    xxh3,
)
from journal.limits import record_body_bytes_max, record_ints_max, record_strings_max
from journal.ops import FILE_ARITY, OPS_BY_NUMBER, Op

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
    """One entry of a journal.

    Invariants: ints are unsigned 64-bit; strings are bytes; both have at most 255 items. `flags` is 0 in
    version 0.
    """

    op: Op
    tag: int = 0
    ints: tuple[int, ...] = ()
    strings: tuple[bytes, ...] = ()
    flags: int = 0


class ParseResult(NamedTuple):
    """The result of parsing a buffer: the end of the whole records, and what the next record needs or its
    fault.
    """

    end: int
    """Offset in the buffer just past the last whole record."""
    needed: int
    """The number of bytes from `end` on that the next parse needs; 0 if there is a fault."""
    fault: CorruptDataError | None


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
    """Return the bytes of a WRITE; None if it breaks a rule."""
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
    """Raise LocalProtocolError for a record that every reader would reject."""
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

    origin: the stream offset of data[0], for the offsets in `out` and in faults. where: the name of the file
    or segment, for faults. Never raises for bad data.
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
            or body > record_body_bytes_max
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
    """Return the header at `at`; `data` must hold its 24 bytes. Raises CorruptRecordError,
    UnknownRecordError.
    """
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
