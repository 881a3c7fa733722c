"""The grammar of names, and ids as text. Directories and objects share one grammar, one level, ASCII only.

No normalisation anywhere: U+FF0F becomes a slash under NFKC, and two names that look alike are two names or
an error. Beginning with a letter or digit keeps `.`, `..`, `-rf` and the server's own dot files out.
"""

import re
from typing import Final

from dos_protocol.errors import BadNameError, LocalProtocolError
from dos_protocol.limits import id_bytes

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)

SEGMENT_NAME: Final = re.compile(
    r"(?P<chain>[A-Za-z0-9][A-Za-z0-9._-]*)\.(?P<epoch>[0-9a-f]{16})\.(?P<base>[0-9a-f]{16})", re.ASCII
)
"""The name of a journal's segment: it carries the epoch of the one claim under which it was begun."""

NO_ID: Final = bytes(id_bytes)
"""Sixteen zero bytes: no store, no writer."""


def is_name(name: str) -> bool:
    """Whether the name is inside the grammar."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """The same name, or `BadNameError`. Values are shown escaped and cut: they come from outside."""
    if not isinstance(name, str):
        raise BadNameError(f"a name is text, got {name!r:.60}")
    if _NAME.fullmatch(name) is None:
        shown = ascii(name[:40])
        raise BadNameError(f"a name must match [A-Za-z0-9][A-Za-z0-9._-]{{0,127}}: {shown}, {len(name)} long")
    return name


def check_id(identity: bytes, what: str) -> bytes:
    """Return the id unchanged. Raises LocalProtocolError unless it is 16 bytes.

    Every layout with an id calls this before it packs one: `struct` cuts a longer value and pads a shorter
    one without a word, and two ids that begin alike would become one.
    """
    if not isinstance(identity, bytes) or len(identity) != id_bytes:
        shown = f"{len(identity)} bytes" if isinstance(identity, bytes) else type(identity).__name__
        raise LocalProtocolError(f"{what} must be exactly {id_bytes} bytes, got {shown}: {identity!a:.60}")
    return identity


def has_one_writer(name: str) -> bool:
    """Whether an object of this name is written under one epoch alone, and so by one writer: a segment. Any
    two copies of it are then on one line, unless its epoch was granted twice.
    """
    return SEGMENT_NAME.fullmatch(name) is not None


def id_text(identity: bytes) -> str:
    """An id as people see it: 32 hex digits."""
    return identity.hex()


def parse_id(text: str) -> bytes:
    """The id behind 32 hex digits. Raises ValueError for anything else."""
    identity = bytes.fromhex(text)
    if len(identity) != id_bytes or len(text) != 2 * id_bytes:
        raise ValueError(f"an id is 32 hex digits: {text[:40]!r}")
    return identity
