"""What an object has in progress: appends that wait for an ack, and the write; why a request is refused."""

from typing import NamedTuple

from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import ErrorCode


class PendingAppend(NamedTuple):
    """One accepted append that is not yet synced or refused."""

    end: int
    session: int
    request_id: int
    bytes: int


class AppendRefusal(NamedTuple):
    """Why a request is refused: error code, message, and the number for the error's `actual` field."""

    code: ErrorCode
    message: str
    actual: int = 0


class WriteBatch(NamedTuple):
    """The write in progress.

    `end`: logical size after it. `file_bytes`: file size after it. `link`: for the extent after it. `fold`:
    at its end. `data`: what is written at `position` of the file, None if it is long: then it is not logged.
    """

    end: int
    file_bytes: int
    link: int
    starts: list[tuple[int, int, int]]
    fold: PrefixDigest
    tickets: int
    position: int
    data: bytes | None
