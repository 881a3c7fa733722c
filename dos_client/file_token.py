"""A token that is in a file, and changes with it."""

import logging
import os
from pathlib import Path
from typing import Final, Self

from dos_protocol.arguments import token_in
from dos_protocol.errors import LocalProtocolError

logger: Final = logging.getLogger("dos.client")


class FileToken(bytes):
    """The token in the first line of a file, for every parameter `token=`.

    A process that uses it reads the file again for each new session, so a person replaces a token that
    expires or was revoked without a restart: everything that waits for the store continues. Workers on other
    machines need the file under the same path; without it they continue with the token that the driver had.

    Raises OSError, and LocalProtocolError for a file without a token.
    """

    path: str

    def __new__(cls, path: str | os.PathLike[str]) -> Self:
        """Read the file."""
        return cls.of(os.path.abspath(path), token_in(Path(path).read_bytes(), str(path)))  # noqa: PTH100

    @classmethod
    def of(cls, path: str, token: bytes) -> Self:
        """Return what was read from a file before."""
        found = super().__new__(cls, token)
        found.path = path
        return found

    def __reduce__(self) -> tuple[object, tuple[str, bytes]]:
        return FileToken.of, (self.path, bytes(self))

    def __repr__(self) -> str:
        return f"FileToken({self.path!r})"


def current(token: bytes) -> bytes:
    """Return a token as it is now: that of a file is read again. What cannot be read stays as it was."""
    if not isinstance(token, FileToken):
        return token
    try:
        return FileToken(token.path)
    except (OSError, LocalProtocolError) as error:
        logger.debug("the token that was read before is used: %s", error)
        return token
