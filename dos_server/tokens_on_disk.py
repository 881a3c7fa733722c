"""The file of tokens of a running server: what it grants now, and what changed in it.

It is read again when it is replaced or changed, which is noticed within a second; so tokens are added and
revoked without a restart. A file that cannot be read or is not valid changes nothing: the tokens that were
valid before stay so, and the log says why.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from dos_protocol.errors import LocalProtocolError
from dos_server.core.access import TokenFile, Tokens, decode_tokens
from dos_server.ports import Ports

logger = logging.getLogger("dos.server")
TOKENS_BYTES_MAX: Final = 4_194_304
_LOOK_SECONDS: Final = 1.0


class TokensOnDisk:
    """Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises LocalProtocolError if it is not valid, and OSError."""
        self._path = path
        self._seen = self._state()
        self._file = self._read()
        self.tokens = self._valid()
        """Those that are valid, as of the last look."""
        self.problem = ""
        """Why the file, as it is now, is not used; "" if it is."""

    async def watch(self, ports: Ports, changed: Callable[[Tokens], None]) -> None:
        """Look every second until cancelled. changed: gets the tokens that are valid from now on."""
        problem = ""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            if await ports.in_thread(self.look):
                changed(self.tokens)
            if self.problem != problem:
                problem = self.problem
                logger.warning("%s", problem or "the tokens file is valid again")

    def look(self) -> bool:
        """Return whether other tokens are valid than before: the file was changed, or one has expired."""
        try:
            if (state := self._state()) != self._seen:
                self._file = self._read()
                self._seen = state
            self.problem = ""
        except (LocalProtocolError, OSError) as error:
            self.problem = str(error)
        before, self.tokens = self.tokens, self._valid()
        return before != self.tokens

    def _state(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> TokenFile:
        with self._path.open("rb") as file:
            data = file.read(TOKENS_BYTES_MAX + 1)
        if len(data) > TOKENS_BYTES_MAX:
            raise LocalProtocolError(f"tokens file {self._path} has more than {TOKENS_BYTES_MAX} bytes")
        return decode_tokens(data, str(self._path))

    def _valid(self) -> Tokens:
        return Tokens.of_file(self._file, time.time())
