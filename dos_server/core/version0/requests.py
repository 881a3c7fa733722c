"""Version 0 requests: the body of a request as a value, or what is wrong with it.

The first byte is the command, the rest is ASCII text: exactly the arguments in the table, separated by TAB.
Names follow the grammar of version 1. Numbers are decimal digits without sign, space or leading zero, below
2^63; only the offset of `g` may be negative.

Pure: values only. `service` decides whether an invalid request closes the connection.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from dos_protocol.names import is_name

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
    """An invalid request, and what is wrong with it."""

    command: str
    text: str


Request = V0Use | V0Append | V0List | V0Get | V0Delete | V0Sync


class _InvalidArgumentError(Exception):
    """An argument is invalid."""


def parse(body: bytes) -> Request | V0InvalidRequest:
    """Return the request in a nonempty body."""
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
    """Escape the command unless it is printable ASCII: bytes from outside are never echoed raw."""
    return command if command.isascii() and command.isprintable() else ascii(command)[1:-1]


_COMMANDS: Final[dict[str, tuple[Callable[..., Request], tuple[Callable[[str], str | int], ...]]]] = {
    "u": (V0Use, (_name,)),
    "a": (V0Append, (_name, _number)),
    "l": (V0List, ()),
    "g": (V0Get, (_name, _signed_number, _number)),
    "d": (V0Delete, (_name,)),
    "s": (V0Sync, (_name,)),
}
