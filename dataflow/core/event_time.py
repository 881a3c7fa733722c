"""How far event time is on a stream: marks, what they promise, and how those of several streams are one.

Rules of this file: numbers. A *mark* is a punctuation (replication-transparency IV-A): microseconds since
1970; every later row of the stream has a larger event time. Three marks stand apart: `UNKNOWN` promises
nothing yet; `IDLE` is that of a stream on which nothing ever came, and holds nobody up; after `END` nothing
comes at all.
"""

import struct
from collections.abc import Iterable
from typing import Final, TypeAlias

Mark: TypeAlias = int

UNKNOWN: Final[Mark] = -(2**63)
IDLE: Final[Mark] = -(2**63) + 1
END: Final[Mark] = 2**63 - 1
_BEGIN: Final = -(2**63) + 2
_WIRE: Final = struct.Struct(">q")


def together(marks: Iterable[Mark]) -> Mark:
    """The mark of several streams as one: what all of them promise. Streams on which nothing ever came do
    not count; they may yet break what is promised without them, and their rows are late then.
    """
    heard = [mark for mark in marks if mark != IDLE]
    return min(heard) if heard else IDLE


def further(before: Mark, mark: Mark) -> Mark:
    """A promise that was given stays given."""
    return max(before, mark) if mark >= _BEGIN else before


def behind(time: int, lateness: int) -> Mark:
    """The mark when rows come at most `lateness` behind the largest time seen, which is `time`."""
    return max(time - lateness - 1, _BEGIN)


def encode_mark(mark: Mark) -> bytes:
    """The payload of a PUNCTUATION frame: 8 bytes, big-endian, signed."""
    return _WIRE.pack(mark)


def decode_mark(payload: bytes | bytearray | memoryview) -> Mark:
    """The mark in a payload. Raises ValueError."""
    if len(payload) != _WIRE.size:
        raise ValueError(f"a PUNCTUATION frame carries {_WIRE.size} bytes, not {len(payload)}")
    (mark,) = _WIRE.unpack(payload)
    return int(mark)
