"""The record, versions 0 and 1: values to bytes and bytes to values. Pure, and the hot path of every replay.

Rules of this file: whole records only; `decoder.py` feeds it from streams. It knows no chains, no files and
no meaning of operations beyond the arity of the three file operations. Every byte layout below is held to
the executable specification in `specification.py` by property tests. All numbers are big-endian.

Version 1, 24 + body + 8 bytes:

    offset size
         0    2  magic, D0 4A
         2    1  version, 1
         3    1  op
         4    2  flags. Bits 0x00ff may be ignored by a reader that does not know them, 0xff00 must not
         6    1  number of ints, I
         7    1  number of strings, S
         8    8  tag (0 = none)
        16    4  body bytes, B = 8*I + 8*S + the lengths of all strings; at most 64 MiB
        20    4  header digest: the low 32 bits of xxh3-64 over bytes 0..19
        24  8*I  the ints
          +  8*S  the sizes of the strings
          +    .  the strings, one after another
      24+B    8  xxh3-64 over bytes 0 .. 24+B-1

A version 1 record is valid if and only if (1) magic and version are right, (2) the header digest matches,
(3) no flag of 0xff00 is set that the reader does not know, (4) the op is known, (5) B is within the limit
and equal to the sum above, (6) the final digest matches, (7) a file operation has its arity. (1)-(5) are
checked before the body is waited for, so a flipped length is never taken for a cut-off record.

Version 0, the original's, 4 + length bytes and no checksum at all:

    offset size
         0    4  length of what follows, L = 12 + 8*I + 8*S + the lengths of all strings
         4    1  version, 0
         5    1  op: 0 truncate, 1 write, 2 remove
         6    1  number of ints, I
         7    1  number of strings, S
         8    8  tag (0 = none)
        16  8*I  the ints
          +  8*S  the sizes of the strings
          +    .  the strings

Valid if and only if (1) the version is 0, (2) the op is one of the three, with its arity, (3) L is within
the limit and equal to the sum above. (3) is checked as soon as the sizes are there.
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

import msgspec
import xxhash

from dos_protocol.errors import CorruptDataError, LocalProtocolError
from dos_protocol.limits import u64_max
from journal.core.errors import CorruptRecordError, TornRecordError, UnknownRecordError
from journal.limits import record_body_bytes_max, record_ints_max, record_strings_max
from journal.ops import FILE_ARITY, OPS_BY_NUMBER, Op

MAGIC: Final = b"\xd0\x4a"
VERSION_1: Final = 1
FLAGS_MUST_UNDERSTAND: Final = 0xFF00
"""A reader that does not know a flag of this half refuses the record. Version 1 as of now knows none."""

HEADER_V1: Final = Struct(">2sBBHBBQII")
HEADER_V0: Final = Struct(">IBBBBQ")
DIGEST_BYTES: Final = 8
_DIGESTED_HEADER_BYTES: Final = HEADER_V1.size - 4
_LENGTH_BYTES_V0: Final = 4
_FIXED_BYTES_V0: Final = HEADER_V0.size - _LENGTH_BYTES_V0
assert HEADER_V1.size == 24
assert HEADER_V0.size == 16
assert _FIXED_BYTES_V0 == 12

_WORDS: Final = tuple(Struct(f">{count}Q") for count in range(record_ints_max + record_strings_max + 1))
_xxh3 = xxhash.xxh3_64_intdigest
_ARITY: Final = tuple(FILE_ARITY[Op(number)] for number in range(len(FILE_ARITY)))
_KNOWN_OPS: Final = len(OPS_BY_NUMBER)


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


class Parsed(NamedTuple):
    """What a run over a buffer found: where the whole records end, what the next one needs, or what is
    wrong.
    """

    end: int
    """Offset in the buffer just past the last whole record."""
    needed: int
    """Bytes from `end` on that the next step of parsing needs; 0 if there is a fault."""
    fault: CorruptDataError | None


def encode(record: Record, version: int = VERSION_1) -> bytes:
    """The bytes of a record. Raises LocalProtocolError if it breaks a rule of that version; nothing is
    returned.
    """
    if version == VERSION_1:
        return encode_v1(record)
    if version == 0:
        return encode_v0(record)
    raise LocalProtocolError(f"records have version 0 or 1, not {version}")


def encode_v1(record: Record) -> bytes:
    """The bytes of a record in version 1. Raises LocalProtocolError."""
    op, tag, ints, strings, flags = record.op, record.tag, record.ints, record.strings, record.flags
    sizes = [len(string) for string in strings]
    body_bytes = 8 * (len(ints) + len(sizes)) + sum(sizes)
    if op < 3 or body_bytes > record_body_bytes_max or flags or len(ints) > 255 or len(sizes) > 255:
        _check_record(record, body_bytes)
    try:
        header = HEADER_V1.pack(MAGIC, VERSION_1, op, flags, len(ints), len(sizes), tag, body_bytes, 0)
        words = _WORDS[len(ints) + len(sizes)].pack(*ints, *sizes)
    except StructError as error:
        raise LocalProtocolError(f"a record's tag and ints are 0 to 2^64-1: {tag}, {ints!r:.80}") from error
    digest = (_xxh3(header[:_DIGESTED_HEADER_BYTES]) & 0xFFFFFFFF).to_bytes(4)
    data = b"".join((header[:_DIGESTED_HEADER_BYTES], digest, words, *strings))
    return data + _xxh3(data).to_bytes(DIGEST_BYTES)


def encode_v0(record: Record) -> bytes:
    """The bytes of a record as the original writes it. Raises LocalProtocolError for what it cannot say."""
    sizes = [len(string) for string in record.strings]
    body_bytes = 8 * (len(record.ints) + len(sizes)) + sum(sizes)
    if record.op not in FILE_ARITY:
        raise LocalProtocolError(f"version 0 knows truncate, write and remove, not {record.op.name}")
    if record.flags:
        raise LocalProtocolError(f"version 0 has no flags: {record.flags:#06x}")
    _check_record(record, body_bytes)
    header = HEADER_V0.pack(
        _FIXED_BYTES_V0 + body_bytes, 0, record.op, len(record.ints), len(sizes), record.tag
    )
    return b"".join(
        (header, _WORDS[len(record.ints) + len(sizes)].pack(*record.ints, *sizes), *record.strings)
    )


def _check_record(record: Record, body_bytes: int) -> None:
    """Raise LocalProtocolError for a record that no reader would take."""
    ints, strings = len(record.ints), len(record.strings)
    if ints > record_ints_max or strings > record_strings_max:
        raise LocalProtocolError(f"a record has at most 255 ints and 255 strings: {ints} and {strings}")
    if body_bytes > record_body_bytes_max:
        raise LocalProtocolError(
            f"a record's body has at most {record_body_bytes_max} bytes: {body_bytes}",
            remedy="split it into several records",
        )
    if record.flags & ~0xFFFF or record.flags & FLAGS_MUST_UNDERSTAND:
        raise LocalProtocolError(f"flags of version 1 lie within 0x00ff: {record.flags:#06x}")
    if any(not 0 <= word <= u64_max for word in (record.tag, *record.ints)):
        raise LocalProtocolError(
            f"a record's tag and ints are 0 to 2^64-1: {record.tag}, {record.ints!r:.80}"
        )
    arity = FILE_ARITY.get(record.op)
    if arity is not None and arity != (ints, strings):
        raise LocalProtocolError(
            f"{record.op.name} takes {arity[0]} ints and {arity[1]} strings, not {ints} and {strings}"
        )


def parse_v1(data: bytes, at: int, out: list[tuple[int, Record]], origin: int, where: str) -> Parsed:
    """Take whole records of `data` from `at` on; append (stream offset of its end, record) to `out`.

    origin: stream offset of data[0], for the offsets in `out` and in faults. Never raises for bad data.
    """
    view = memoryview(data)
    size = len(data)
    unpack = HEADER_V1.unpack_from
    while True:
        if size - at < 24:
            return Parsed(at, 24, _partial_fault_v1(data, at, origin, where))
        magic, version, op, flags, n_ints, n_strings, tag, body, header_digest = unpack(data, at)
        words = n_ints + n_strings
        if (
            magic != MAGIC
            or version != VERSION_1
            or _xxh3(view[at : at + 20]) & 0xFFFFFFFF != header_digest
            or flags & FLAGS_MUST_UNDERSTAND
            or op >= _KNOWN_OPS
            or body > record_body_bytes_max
            or body < 8 * words
            or (op < 3 and (n_ints, n_strings) != _ARITY[op])
        ):
            return Parsed(at, 0, _header_fault_v1(data, at, origin, where))
        last = at + 24 + body
        if last + 8 > size:
            return Parsed(at, 24 + body + 8, None)
        if _xxh3(view[at:last]) != int.from_bytes(data[last : last + 8]):
            return Parsed(at, 0, _body_fault_v1(data, at, last, origin, where))
        numbers = _WORDS[words].unpack_from(data, at + 24)
        start = at + 24 + 8 * words
        strings = []
        for length in numbers[n_ints:]:
            strings.append(data[start : start + length])
            start += length
        if start != last:
            return Parsed(at, 0, _sizes_fault(at + 24 + 8 * n_ints, origin, where, body, numbers[n_ints:]))
        at = last + 8
        out.append((origin + at, Record(OPS_BY_NUMBER[op], tag, numbers[:n_ints], tuple(strings), flags)))


class Header(NamedTuple):
    """What a version 1 header says of its record: the op, and how many bytes it has in all."""

    op: Op
    bytes: int


def parse_header_v1(data: bytes, at: int, origin: int, where: str) -> Header:
    """The valid header at `at`, of 24 bytes that are there. Raises CorruptRecordError, UnknownRecordError."""
    magic, version, op, flags, n_ints, n_strings, _, body, digest = HEADER_V1.unpack_from(data, at)
    if (
        magic != MAGIC
        or version != VERSION_1
        or _xxh3(data[at : at + _DIGESTED_HEADER_BYTES]) & 0xFFFFFFFF != digest
        or flags & FLAGS_MUST_UNDERSTAND
        or op >= _KNOWN_OPS
        or not 8 * (n_ints + n_strings) <= body <= record_body_bytes_max
    ):
        raise _header_fault_v1(data, at, origin, where)
    return Header(OPS_BY_NUMBER[op], HEADER_V1.size + body + DIGEST_BYTES)


def parse_v0(data: bytes, at: int, out: list[tuple[int, Record]], origin: int, where: str) -> Parsed:
    """As `parse_v1`, for version 0."""
    size = len(data)
    while True:
        left = size - at
        if left < 16:
            return Parsed(at, 16, _partial_fault_v0(data, at, origin, where))
        length, version, op, n_ints, n_strings, tag = HEADER_V0.unpack_from(data, at)
        words = n_ints + n_strings
        if (
            version != 0
            or op >= len(_ARITY)
            or (n_ints, n_strings) != _ARITY[op]
            or not _FIXED_BYTES_V0 + 8 * words <= length <= _FIXED_BYTES_V0 + record_body_bytes_max
        ):
            return Parsed(at, 0, _header_fault_v0(data, at, origin, where))
        start = at + 16 + 8 * words
        if start > size:
            return Parsed(at, 16 + 8 * words, None)
        numbers = _WORDS[words].unpack_from(data, at + 16)
        if sum(numbers[n_ints:]) != length - _FIXED_BYTES_V0 - 8 * words:
            return Parsed(at, 0, _sizes_fault(at, origin, where, length - _FIXED_BYTES_V0, numbers[n_ints:]))
        end = at + _LENGTH_BYTES_V0 + length
        if end > size:
            return Parsed(at, _LENGTH_BYTES_V0 + length, None)
        strings = []
        for count in numbers[n_ints:]:
            strings.append(data[start : start + count])
            start += count
        at = end
        out.append((origin + at, Record(OPS_BY_NUMBER[op], tag, numbers[:n_ints], tuple(strings))))


# What is wrong, in words. These run once, so they may be slow; they check in the order of the rules above.


def _partial_fault_v1(data: bytes, at: int, origin: int, where: str) -> CorruptDataError | None:
    """Fewer bytes than a header: good so far, or already wrong?"""
    part = data[at : at + 3]
    if not part or (MAGIC + bytes([VERSION_1])).startswith(part):
        return None
    return _header_fault_v1(data, at, origin, where)


def _header_fault_v1(data: bytes, at: int, origin: int, where: str) -> CorruptDataError:
    head = data[at : at + 24]
    offset = origin + at
    if not MAGIC.startswith(head[:2]):
        hint = "bytes were lost, changed or inserted here; another member's copy may be good"
        return CorruptRecordError(where, offset, f"a record's magic {MAGIC.hex()}", head[:2].hex(), hint)
    if len(head) < 3 or head[2] != VERSION_1:
        flipped = head[:2] + bytes([VERSION_1]) + head[3:20]
        if len(head) == 24 and _xxh3(flipped) & 0xFFFFFFFF == int.from_bytes(head[20:24]):
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
    digest = _xxh3(head[:20]) & 0xFFFFFFFF
    if digest != header_digest:
        hint = "the header changed after it was written; another member's copy may be good"
        return CorruptRecordError(where, offset, f"header digest {digest:08x}", f"{header_digest:08x}", hint)
    if flags & FLAGS_MUST_UNDERSTAND:
        hint = "use a newer release to read this journal"
        return UnknownRecordError(where, offset + 4, "flags within 0x00ff", f"{flags:#06x}", hint)
    if op >= _KNOWN_OPS:
        hint = "use a newer release to read this journal"
        return UnknownRecordError(where, offset + 3, f"an op below {_KNOWN_OPS}", f"op {op}", hint)
    if op < 3 and (n_ints, n_strings) != _ARITY[op]:
        return _arity_fault(where, offset + 6, op, n_ints, n_strings)
    expected = f"a body of {8 * (n_ints + n_strings)} to {record_body_bytes_max} bytes"
    return CorruptRecordError(where, offset + 16, expected, f"{body} bytes")


def _body_fault_v1(data: bytes, at: int, last: int, origin: int, where: str) -> CorruptDataError:
    digest, found = _xxh3(data[at:last]), data[last : last + 8].hex()
    hint = "the record changed after it was written; another member's copy may be good"
    return CorruptRecordError(where, origin + at, f"record digest {digest:016x}", found, hint)


def _sizes_fault(at: int, origin: int, where: str, body: int, sizes: Sequence[int]) -> CorruptDataError:
    found = f"strings of {', '.join(str(size) for size in sizes[:8])} bytes"
    return CorruptRecordError(where, origin + at, f"arguments that fill a body of {body} bytes", found)


def _arity_fault(where: str, offset: int, op: int, n_ints: int, n_strings: int) -> CorruptDataError:
    ints, strings = _ARITY[op]
    expected = f"{ints} ints and {strings} strings for {OPS_BY_NUMBER[op].name}"
    return CorruptRecordError(where, offset, expected, f"{n_ints} and {n_strings}")


_NO_CHECKSUM_HINT: Final = "version 0 has no checksums: where the damage begins is a guess"


def _partial_fault_v0(data: bytes, at: int, origin: int, where: str) -> CorruptDataError | None:
    part = data[at : at + 16]
    if len(part) < 5:
        return None
    length = int.from_bytes(part[:4])
    if part[4] or length > _FIXED_BYTES_V0 + record_body_bytes_max or length < _FIXED_BYTES_V0:
        return _header_fault_v0(data, at, origin, where)
    if len(part) > 5 and part[5] >= len(_ARITY):
        return _header_fault_v0(data, at, origin, where)
    return None


def _header_fault_v0(data: bytes, at: int, origin: int, where: str) -> CorruptDataError:
    head = data[at : at + 16].ljust(16, b"\0")
    offset = origin + at
    length, version, op, n_ints, n_strings, _ = HEADER_V0.unpack(head)
    if not _FIXED_BYTES_V0 <= length <= _FIXED_BYTES_V0 + record_body_bytes_max:
        expected = f"a length of {_FIXED_BYTES_V0} to {_FIXED_BYTES_V0 + record_body_bytes_max} bytes"
        return CorruptRecordError(where, offset, expected, f"{length}", _NO_CHECKSUM_HINT)
    if version:
        hint = "use a newer release, or the bytes changed: " + _NO_CHECKSUM_HINT
        return UnknownRecordError(where, offset + 4, "record version 0", f"version {version}", hint)
    if op >= len(_ARITY):
        expected = "an op of version 0: 0, 1 or 2"
        return CorruptRecordError(where, offset + 5, expected, f"op {op}", _NO_CHECKSUM_HINT)
    if (n_ints, n_strings) != _ARITY[op]:
        return _arity_fault(where, offset + 6, op, n_ints, n_strings)
    expected = f"a length of at least {_FIXED_BYTES_V0 + 8 * (n_ints + n_strings)} bytes"
    return CorruptRecordError(where, offset, expected, f"{length}", _NO_CHECKSUM_HINT)


def torn(where: str, offset: int, needed: int, found: int) -> TornRecordError:
    """The error for data that ends inside a record which begins at `offset`."""
    hint = "a record cut off at the end: its writer died here; everything before it is whole"
    return TornRecordError(
        where, offset, f"a record of at least {needed} bytes", f"the end after {found}", hint
    )
