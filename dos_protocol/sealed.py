"""Sealed records: small values that are written and read as a whole, with a digest over all of it. Pure.

    offset 0  magic 2
    offset 2  version u8
    offset 3  the fields of the layout, big-endian, without gaps
              the rest, if the layout has one: bytes that the owner of the layout interprets
              xxh3-64 u64 of everything before

A record is valid if and only if (1) its length is that of the fields, or at least that if the layout has a
rest, (2) the digest matches, (3) magic and version are those of the layout, (4) no field is above its
maximum, and reserved bytes are zero.

A layout is a table. Encoding, checks, the texts of errors, the table of protocol.md and the specification in
the tests come from it. What a value means is decided by its owner, and so is what follows from damage.
"""

import struct
from typing import Any, Final, NamedTuple

from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError
from dos_protocol.limits import id_bytes
from dos_protocol.names import check_id

_DIGEST: Final = struct.Struct(">Q")
KINDS: Final = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "16s": "16 bytes", "?": "u8 0 or 1"}
"""Struct code -> its name in protocol.md."""
_ID: Final = f"{id_bytes}s"


class SealedField(NamedTuple):
    name: str
    code: str
    most: int | None = None
    note: str = ""


RESERVED: Final = SealedField("reserved", "B", 0)
"""A byte that is zero and takes no value."""


class OpenedRecord(NamedTuple):
    values: tuple[Any, ...]
    rest: bytes


class SealedLayout:
    """The layout of one kind of record. `what` names it in errors; `rest`: what follows the fields, "" for
    nothing.
    """

    def __init__(
        self,
        what: str,
        magic: bytes,
        *fields: SealedField,
        rest: str = "",
        version: int = 1,
        remedy: str = "",
    ) -> None:
        self.what, self.magic, self.version, self.fields, self.rest = what, magic, version, fields, rest
        self._remedy = remedy
        self._struct = struct.Struct(">2sB" + "".join(field.code for field in fields))
        self.bytes_min = self._struct.size + _DIGEST.size
        """The length of a record without a rest."""

    def seal(self, *values: int | bytes, rest: bytes = b"") -> bytes:
        given = iter(values)
        packed = [0 if field is RESERVED else next(given) for field in self.fields]
        for field, value in zip(self.fields, packed, strict=True):
            if field.code == _ID:  # struct would cut a longer one and pad a shorter one: two ids become equal
                assert isinstance(value, bytes)
                check_id(value, field.name)
        body = self._struct.pack(self.magic, self.version, *packed) + rest
        return body + _DIGEST.pack(digest64(body))

    def open(self, data: bytes, where: str) -> OpenedRecord:
        """Return the values in the bytes. Raises CorruptDataError for anything but one whole valid record."""
        if len(data) < self.bytes_min or (not self.rest and len(data) > self.bytes_min):
            least = f"at least {self.bytes_min}" if self.rest else f"{self.bytes_min}"
            raise self.damage(where, 0, f"a {self.what} of {least} bytes", f"{len(data)} bytes")
        body, (digest,) = data[: -_DIGEST.size], _DIGEST.unpack_from(data, len(data) - _DIGEST.size)
        # Before the version: a flipped bit in it must be reported as damage, not as a newer release.
        if digest64(body) != digest:
            raise self.damage(where, len(body), f"digest {digest64(body):016x}", f"{digest:016x}")
        magic, version, *packed = self._struct.unpack_from(body)
        known = zip(self.fields, packed, strict=True)
        if (magic, version) != (self.magic, self.version) or any(
            field.most is not None and value > field.most for field, value in known
        ):
            text = f"{self.what} version {self.version}"
            raise CorruptDataError(where, 0, text, body[:4].hex(), "use a newer release")
        values = tuple(
            value for field, value in zip(self.fields, packed, strict=True) if field is not RESERVED
        )
        return OpenedRecord(values, body[self._struct.size :])

    def damage(self, where: str, offset: int, expected: str, found: str) -> CorruptDataError:
        """Return the error for damage that the owner of the layout has found."""
        return CorruptDataError(where, offset, expected, found, self._remedy)

    @property
    def rest_at(self) -> int:
        return self._struct.size

    def as_text(self) -> str:
        parts = [f"magic {self.magic.hex(' ').upper()}", f"version u8 = {self.version}"]
        for field in self.fields:
            note = " = 0" if field is RESERVED else f" ({field.note})" if field.note else ""
            parts.append(f"{field.name} {KINDS[field.code]}{note}")
        return ", ".join([*parts, *([self.rest] if self.rest else []), "xxh3-64 u64 of everything before"])
