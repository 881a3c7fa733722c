"""What the targets share: the input read as fields, and the checks that every decoder must pass."""

from typing import Final

from construct import ConstructError

REFUSED_BY_SPEC: Final = (ConstructError, UnicodeDecodeError)


HELD_BYTES_MAX: Final = 3 << 20
"""A decoder may hold one largest frame, and what came besides."""


class Fields:
    """The input, read from the front; past its end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        self._at += count
        return part

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count).ljust(count, b"\0"))

    def rest(self) -> bytes:
        return self.take(len(self._data))


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def assert_printable(error: Exception) -> None:
    """What came from outside is never shown raw."""
    assert str(error).isprintable(), ascii(str(error))
    assert str(error).isascii(), ascii(str(error))
