"""The grammar of names, and ids as text. Directories and objects share one grammar: one level, ASCII only.

Names are never normalized: U+FF0F becomes a slash under NFKC. The first character excludes `.`, `..`, `-rf`
and the server's own dot files.
"""

import re
from typing import Final

from dos_protocol.errors import BadNameError, LocalProtocolError
from dos_protocol.limits import id_bytes

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)

SEGMENT_NAME: Final = re.compile(
    r"(?P<chain>[A-Za-z0-9][A-Za-z0-9._-]*)\.(?P<epoch>[0-9a-f]{16})\.(?P<base>[0-9a-f]{16})", re.ASCII
)
"""The name of a journal segment: the chain, the epoch of the claim under which it was begun, and its base."""

NO_ID: Final = bytes(id_bytes)
"""Sixteen zero bytes: no store, no writer."""


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def printable(text: str) -> str:
    """Return a text of another program with everything escaped that a terminal obeys: line ends, ESC, ..."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def printable_lines(text: str) -> str:
    """Return a text of another program as `printable` does, except that it may have several lines."""
    return "\n".join(map(printable, text.split("\n")))


def check_name(name: str) -> str:
    """Return the name unchanged. Raises BadNameError; the message escapes and truncates untrusted values."""
    if not isinstance(name, str):
        raise BadNameError(f"a name must be a str, got {name!r:.60}")
    if _NAME.fullmatch(name) is None:
        escaped = ascii(name[:40])
        raise BadNameError(
            f"a name must match [A-Za-z0-9][A-Za-z0-9._-]{{0,127}}: {escaped}, {len(name)} long"
        )
    return name


def check_id(identity: bytes, what: str) -> bytes:
    """Return the id unchanged. Raises LocalProtocolError unless it is 16 bytes: `struct` would cut a longer
    value and pad a shorter one, so that two ids become equal.
    """
    if not isinstance(identity, bytes) or len(identity) != id_bytes:
        escaped = f"{len(identity)} bytes" if isinstance(identity, bytes) else type(identity).__name__
        raise LocalProtocolError(f"{what} must be exactly {id_bytes} bytes, got {escaped}: {identity!a:.60}")
    return identity


def has_one_writer(name: str) -> bool:
    """Return whether the name is a segment's, which is written under one epoch: all copies are on one line of
    history.
    """
    return SEGMENT_NAME.fullmatch(name) is not None


def epoch_of_segment(name: str) -> int:
    """Return the epoch under which a segment was begun; 0 if the name is not one of a segment."""
    found = SEGMENT_NAME.fullmatch(name)
    return int(found["epoch"], 16) if found is not None else 0


def id_text(identity: bytes) -> str:
    return identity.hex()


def parse_id(text: str) -> bytes:
    """Return the id for 32 hex digits. Raises ValueError for anything else."""
    identity = bytes.fromhex(text)
    if len(identity) != id_bytes or len(text) != 2 * id_bytes:
        raise ValueError(f"an id is 32 hex digits, got {text[:40]!r}")
    return identity
