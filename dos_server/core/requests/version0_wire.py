"""The bytes of version 0, the protocol of the original service: requests out of a buffer, replies as frames.
Pure.

    offset 0   4   length of the body, big-endian; of a request at most 255
    offset 4       body: the command, a character, and its arguments, ASCII text separated by TAB

The first byte of a connection identifies the version: it is 0 in version 0, because request lengths are below
256, and D0 in version 1. After an `a` that was answered `ok`, bytes are not framed. Names follow the grammar
of version 1. Numbers are decimal digits without sign, space or leading zero, below 2^63; only the offset of
`g` may be negative.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from dos_protocol.digests import Buffer
from dos_protocol.limits import KIB
from dos_protocol.names import is_name
from dos_server.limits import version0_request_bytes_max

# --- Requests as values ------------------------------------------------------------------------------------


_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_NUMBER_MAX: Final = (1 << 63) - 1
_ECHOED_CHARACTERS_MAX: Final = 40


class V0Use(NamedTuple):
    """`u` DIR"""

    directory: str


class V0Append(NamedTuple):
    """`a` FILE TAB OFFSET"""

    name: str
    offset: int


class V0List(NamedTuple):
    """`l`"""


class V0Get(NamedTuple):
    """`g` FILE TAB OFFSET TAB COUNT; `bytes_max` 0: all"""

    name: str
    offset: int
    bytes_max: int


class V0Delete(NamedTuple):
    """`d` FILE"""

    name: str


class V0Sync(NamedTuple):
    """`s` FILE"""

    name: str


class V0InvalidRequest(NamedTuple):
    command: str
    text: str


Request = V0Use | V0Append | V0List | V0Get | V0Delete | V0Sync


class _InvalidArgumentError(Exception):
    """An argument is invalid."""


def parse(body: bytes) -> Request | V0InvalidRequest:
    command = body[:1].decode("latin-1")
    row = _COMMANDS.get(command)
    if row is None:
        return V0InvalidRequest(command, f'unknown command "{_escaped(command)}"')
    form, kinds = row
    try:
        arguments = _arguments(body[1:])
        if len(arguments) != len(kinds):
            raise _InvalidArgumentError(f"{command} takes {len(kinds)} arguments, not {len(arguments)}")
        return form(*(kind(one) for kind, one in zip(kinds, arguments, strict=True)))
    except _InvalidArgumentError as error:
        return V0InvalidRequest(command, str(error))


def _arguments(data: bytes) -> list[str]:
    if not data.isascii():
        raise _InvalidArgumentError("the text of a request is ASCII")
    return data.decode("ascii").split("\t") if data else []


def _name(text: str) -> str:
    if not is_name(text):
        raise _InvalidArgumentError(f"not a name: {_quoted(text)}")
    return text


def _number(text: str) -> int:
    if _NUMBER.fullmatch(text) is None or int(text) > _NUMBER_MAX:
        raise _InvalidArgumentError(f"not a number: {_quoted(text)}")
    return int(text)


def _signed_number(text: str) -> int:
    return -_number(text[1:]) if text.startswith("-") and text != "-0" else _number(text)


def _quoted(text: str) -> str:
    return f"{text[:_ECHOED_CHARACTERS_MAX]!a}, {len(text)} long"


def _escaped(command: str) -> str:
    # Bytes from outside are never echoed raw.
    return command if command.isascii() and command.isprintable() else ascii(command)[1:-1]


_COMMANDS: Final[dict[str, tuple[Callable[..., Request], tuple[Callable[[str], str | int], ...]]]] = {
    "u": (V0Use, (_name,)),
    "a": (V0Append, (_name, _number)),
    "l": (V0List, ()),
    "g": (V0Get, (_name, _signed_number, _number)),
    "d": (V0Delete, (_name,)),
    "s": (V0Sync, (_name,)),
}


# --- Bytes -------------------------------------------------------------------------------------------------


LENGTH_BYTES: Final = 4
FIRST_BYTE: Final = 0
"""The first byte of a version 0 connection."""
REPLY_BYTES_MAX: Final = (1 << 32) - 1

_FIRST_CAPACITY: Final = 16 * KIB


class RequestTooLongError(Exception):
    """The length of a request is above the limit, so nothing after it can be framed."""

    def __init__(self, count: int) -> None:
        super().__init__(f"a request has at most {version0_request_bytes_max} bytes, not {count}")


def head(count: int) -> bytes:
    return count.to_bytes(LENGTH_BYTES, "big")


def reply(body: bytes) -> bytes:
    return head(len(body)) + body


class Inlet:
    """The receive buffer of a version 0 connection. `_start <= _end <= len(_buffer)`; what is between is not
    consumed.
    """

    def __init__(self, capacity_grown: int) -> None:
        self.capacity_grown = capacity_grown
        self._buffer = bytearray(_FIRST_CAPACITY)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._filled = False

    @property
    def buffered(self) -> int:
        return self._end - self._start

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    def writable(self) -> memoryview:
        if self._start:
            count = self.buffered
            # the ranges may overlap, which slice assignment of a memoryview handles
            self._view[:count] = self._view[self._start : self._end]
            self._start, self._end = 0, count
        if self._filled and self.capacity < self.capacity_grown:
            self._resize(self.capacity_grown)
        return self._view[self._end :]

    def wrote(self, count: int) -> None:
        """Record that `count` bytes of the view from `writable` are filled."""
        self._end += count
        self._filled = self._end == self.capacity

    def receive(self, data: Buffer) -> None:
        if len(self.writable()) < len(data):
            self._resize(self._end + len(data))
        self._view[self._end : self._end + len(data)] = data
        self.wrote(len(data))

    def next_request(self) -> bytes | None:
        """Return the body of the next request; None if incomplete. Raises RequestTooLongError."""
        if self.buffered < LENGTH_BYTES:
            return None
        start = self._start + LENGTH_BYTES
        count = int.from_bytes(self._view[self._start : start], "big")
        if count > version0_request_bytes_max:
            raise RequestTooLongError(count)
        if self._end < start + count:
            return None
        self._start = start + count
        return bytes(self._view[start : self._start])

    def take(self) -> memoryview:
        data = self._view[self._start : self._end]
        self._start = self._end = 0
        return data

    def shrink(self) -> None:
        if not self.buffered and self.capacity > _FIRST_CAPACITY:
            self._start = self._end = 0
            self._filled = False
            self._resize(_FIRST_CAPACITY)

    def _resize(self, capacity: int) -> None:
        resized = bytearray(capacity)
        resized[: self._end] = self._view[: self._end]
        self._buffer, self._view = resized, memoryview(resized)
