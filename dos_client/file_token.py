"""A token that is in a file, and changes with it."""

import logging
import os
from pathlib import Path
from typing import Final, Self

from dos_protocol.arguments import token_in
from dos_protocol.errors import LocalProtocolError

logger: Final = logging.getLogger("dos.client")


class FileToken(bytes):
    """The token in the first line of a file, for every parameter `token=`. Raises OSError, and
    LocalProtocolError.

    The file is read again for each new session, so a person replaces a token without a restart. Workers on
    other machines need it under the same path; without it they continue with the token that the driver had.
    """

    path: str

    def __new__(cls, path: str | os.PathLike[str]) -> Self:
        return cls.of(os.path.abspath(path), token_in(Path(path).read_bytes(), str(path)))  # noqa: PTH100

    @classmethod
    def of(cls, path: str, token: bytes) -> Self:
        found = super().__new__(cls, token)
        found.path = path
        return found

    def __reduce__(self) -> tuple[object, tuple[str, bytes]]:
        return FileToken.of, (self.path, bytes(self))

    def __repr__(self) -> str:
        return f"FileToken({self.path!r})"


def current(token: bytes) -> bytes:
    """Return a token as it is now: that of a file is read again. A file that cannot be read leaves the token
    as it was.
    """
    if not isinstance(token, FileToken):
        return token
    try:
        return FileToken(token.path)
    except (OSError, LocalProtocolError) as error:
        logger.debug("the token that was read before is used: %s", error)
        return token
