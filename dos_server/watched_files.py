"""A file of settings of a running server, and what changed in it.

A change is noticed within a second. A file that cannot be read or is not valid changes nothing, and the log
says why.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import trio

from dos_protocol.errors import LocalProtocolError
from dos_server.core.access import TokenFile, Tokens, decode_tokens
from dos_server.core.quotas import Quota, QuotaFile, decode_quotas
from dos_server.ports import Ports

logger = logging.getLogger("dos.server")
SETTINGS_BYTES_MAX: Final = 4_194_304
_LOOK_SECONDS: Final = 1.0
Content = TypeVar("Content")
Settings = TypeVar("Settings")


class WatchedFile(Generic[Content, Settings]):
    """Not for several threads at once. `settings`: those in force. `problem`: why the file, as it is now, is
    not used.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        decode: Callable[[bytes, str], Content],
        in_force: Callable[[Content], Settings],
    ) -> None:
        """Read the file. `in_force`: what its content means at this time. Raises LocalProtocolError,
        OSError.
        """
        self._path, self._what = path, what
        self._decode, self._in_force = decode, in_force
        self._seen = self._state()
        self._content = self._read()
        self.settings = in_force(self._content)
        self.problem = ""

    async def watch(self, ports: Ports, changed: Callable[[Settings], None]) -> None:
        """Look every second until cancelled. changed: gets the settings that are in force from now on."""
        problem = ""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            if await ports.in_thread(self.look):
                changed(self.settings)
            if self.problem != problem:
                problem = self.problem
                logger.warning("%s", problem or f"the {self._what} is valid again")

    def look(self) -> bool:
        try:
            if (state := self._state()) != self._seen:
                self._content = self._read()
                self._seen = state
            self.problem = ""
        except (LocalProtocolError, OSError) as error:
            self.problem = str(error)
        before, self.settings = self.settings, self._in_force(self._content)
        return before != self.settings

    def _state(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> Content:
        with self._path.open("rb") as file:
            data = file.read(SETTINGS_BYTES_MAX + 1)
        if len(data) > SETTINGS_BYTES_MAX:
            raise LocalProtocolError(f"{self._what} {self._path} has more than {SETTINGS_BYTES_MAX} bytes")
        return self._decode(data, str(self._path))


WatchedTokens = WatchedFile[TokenFile, Tokens]
WatchedQuotas = WatchedFile[QuotaFile, tuple[Quota, ...]]


def watched_tokens(path: Path) -> WatchedTokens:
    """Read a file of tokens. Each look also finds tokens that expire."""
    return WatchedFile(path, "tokens file", decode_tokens, lambda file: Tokens.of_file(file, time.time()))


def watched_quotas(path: Path) -> WatchedQuotas:
    return WatchedFile(path, "quotas file", decode_quotas, lambda file: file.quotas)
