"""The errors for invalid records: each function returns the error that names the first broken rule.

The rules are checked in the order of `record_layout.py`. These functions run at most once per replay, so they
need not be fast.
"""

from collections.abc import Sequence
from typing import Final

from dos_protocol.errors import CorruptDataError
from journal.core.errors import CorruptRecordError, TornRecordError, UnknownRecordError
from journal.core.record_layout import (
    ARITY,
    FIXED_BYTES_V0,
    FLAGS_MUST_UNDERSTAND,
    HEADER_V0,
    HEADER_V1,
    KNOWN_OPS,
    MAGIC,
    VERSION_1,
    xxh3,
)
from journal.limits import record_body_bytes_max
from journal.ops import OPS_BY_NUMBER


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
