"""Every error of the wire and of the clients, grouped by who must act. Messages name the rule, the values and
the remedy.
"""

from enum import Enum, IntEnum, unique
from typing import ClassVar, Final, NamedTuple


class Blame(Enum):
    """Who must act after the error."""

    CALLER = "the caller: change the request"
    PEER = "the program at the other end: it broke the protocol"
    WRITER = "another writer: it has superseded this one or writes at the same time"
    DISK = "the server's disk: use another member, then repair or replace this one"
    STORE = "the store's membership: read the newest store record"
    SERVER = "the server: try again later, or report it"


@unique
class ErrorCode(IntEnum):
    """Why a request was refused. The number is sent in the ERROR message and is never reused."""

    BAD_FRAME = 1
    BAD_DIGEST = 2
    TOO_LARGE = 3
    UNKNOWN_OPCODE = 4
    UNSUPPORTED = 5
    BAD_VERSION = 6
    NOT_READY = 7
    UNAUTHORISED = 8
    BAD_NAME = 9
    NOT_FOUND = 10
    SIZE_MISMATCH = 11
    DIGEST_MISMATCH = 12
    FENCED = 13
    NOT_CLAIMED = 14
    BEING_APPENDED = 15
    PAST_END = 16
    CORRUPT = 17
    POISONED = 18
    NO_SPACE = 19
    STALE_GENERATION = 20
    WRONG_STORE = 21
    NOT_A_MEMBER = 22
    BUSY = 23
    INTERNAL = 24
    WOULD_LOSE = 25
    ROLLED_BACK = 26
    FORBIDDEN = 27
    TLS_REQUIRED = 28
    QUOTA_EXCEEDED = 29


class ErrorMeaning(NamedTuple):
    """What a code means for a client. `actual`: the meaning of the number that comes with it; '' if it is
    always 0.
    """

    blame: Blame
    remedy: str
    actual: str = ""


VERDICTS: Final[dict[ErrorCode, ErrorMeaning]] = {
    ErrorCode.BAD_FRAME: ErrorMeaning(Blame.PEER, "send frames as specified in protocol.md"),
    ErrorCode.BAD_DIGEST: ErrorMeaning(Blame.PEER, "connect again and send the frame again"),
    ErrorCode.TOO_LARGE: ErrorMeaning(
        Blame.CALLER, "split the request: the limits are in WELCOME", "of a PING, the most bytes it carries"
    ),
    ErrorCode.UNKNOWN_OPCODE: ErrorMeaning(Blame.PEER, "use the opcodes of the version agreed in WELCOME"),
    ErrorCode.UNSUPPORTED: ErrorMeaning(Blame.CALLER, "do not send this request here: the message says why"),
    ErrorCode.BAD_VERSION: ErrorMeaning(
        Blame.PEER, "use a client and a server with the same protocol version"
    ),
    ErrorCode.NOT_READY: ErrorMeaning(
        Blame.CALLER, "send HELLO first, and CWD before requests about objects"
    ),
    ErrorCode.UNAUTHORISED: ErrorMeaning(Blame.CALLER, "send a token that is valid at this server"),
    ErrorCode.BAD_NAME: ErrorMeaning(
        Blame.CALLER, "use 1 to 128 of A-Z a-z 0-9 . _ - beginning with a letter or digit"
    ),
    ErrorCode.NOT_FOUND: ErrorMeaning(Blame.CALLER, "list the directory to see which objects exist"),
    ErrorCode.SIZE_MISMATCH: ErrorMeaning(
        Blame.CALLER,
        "compare the digest of the existing content, then append at the size in `actual`",
        "the size there",
    ),
    ErrorCode.DIGEST_MISMATCH: ErrorMeaning(
        Blame.CALLER,
        "the existing content is another writer's: take over before appending",
        "the prefix digest there; 0 for the bytes of a REPAIR",
    ),
    ErrorCode.FENCED: ErrorMeaning(
        Blame.WRITER, "stop, or take over with an epoch above the one in `actual`", "the epoch held"
    ),
    ErrorCode.NOT_CLAIMED: ErrorMeaning(
        Blame.CALLER, "claim the directory with CWD, an epoch and a writer id", "the epoch held"
    ),
    ErrorCode.BEING_APPENDED: ErrorMeaning(
        Blame.WRITER, "wait until the other writer has finished", "the size accepted so far"
    ),
    ErrorCode.PAST_END: ErrorMeaning(
        Blame.CALLER, "read within the synced size, which is in `actual`", "the synced size"
    ),
    ErrorCode.CORRUPT: ErrorMeaning(
        Blame.DISK,
        "read from another member; bytes below `actual` are good here",
        "where the damage begins",
    ),
    ErrorCode.POISONED: ErrorMeaning(
        Blame.DISK,
        "a write or sync failed: check the disk, restart the server, compare its copy with another",
        "the synced size; 0 for a claim or a new copy",
    ),
    ErrorCode.NO_SPACE: ErrorMeaning(
        Blame.DISK,
        "free space on the server's disk, or use another object or directory; nothing was written",
        "0, or the limit that is reached",
    ),
    ErrorCode.STALE_GENERATION: ErrorMeaning(
        Blame.STORE, "use the store record in `record` and connect again"
    ),
    ErrorCode.WRONG_STORE: ErrorMeaning(
        Blame.STORE, "this server belongs to another store: check the address"
    ),
    ErrorCode.NOT_A_MEMBER: ErrorMeaning(Blame.STORE, "use the members of the newest store record"),
    ErrorCode.BUSY: ErrorMeaning(Blame.SERVER, "try again later", "0, or the limit that is reached"),
    ErrorCode.INTERNAL: ErrorMeaning(Blame.SERVER, "please report this, with the server's log"),
    ErrorCode.WOULD_LOSE: ErrorMeaning(
        Blame.CALLER,
        "repair from a copy with all `actual` bytes, or show that those missing were never acknowledged",
        "the size that was durable",
    ),
    ErrorCode.ROLLED_BACK: ErrorMeaning(
        Blame.DISK,
        "start the server on an empty data directory, and replace the old member with `dos store replace`",
        "the number of the missing stamp",
    ),
    ErrorCode.FORBIDDEN: ErrorMeaning(
        Blame.CALLER, "use a token with this right: `dos token ls` shows what each one grants"
    ),
    ErrorCode.TLS_REQUIRED: ErrorMeaning(
        Blame.CALLER,
        "use TLS: set DOS_TLS to the client directory that `dos tls init` made for this server",
    ),
    ErrorCode.QUOTA_EXCEEDED: ErrorMeaning(
        Blame.CALLER,
        "delete what is not needed, or ask the operator for more: `dos quota ls` shows the limits",
        "the limit that is reached",
    ),
}

CLOSING: Final = frozenset(
    {
        ErrorCode.BAD_FRAME,
        ErrorCode.BAD_DIGEST,
        ErrorCode.TOO_LARGE,
        ErrorCode.BAD_VERSION,
        ErrorCode.UNAUTHORISED,
        ErrorCode.STALE_GENERATION,
        ErrorCode.WRONG_STORE,
        ErrorCode.NOT_A_MEMBER,
        ErrorCode.ROLLED_BACK,
        ErrorCode.TLS_REQUIRED,
        ErrorCode.INTERNAL,
    }
)
"""Codes after which the server closes the connection. After all others the session remains usable."""


# --- Exceptions ---------------------------------------------------------------------------------------------


MALFORMED_JSON: Final = (ValueError, RecursionError)
"""What decoding JSON with msgspec raises for any bytes: ValueErrors (UnicodeDecodeError is one), or
RecursionError for deep nesting."""


class DosError(Exception):
    """Base of every error that this project raises on purpose. `remedy` says what to do next."""

    remedy: str = ""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        if remedy:
            self.remedy = remedy

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} ({self.remedy})" if self.remedy else text


class LocalProtocolError(DosError):
    """The call violates a rule of the protocol. Nothing was sent."""


class RemoteProtocolError(DosError):
    """The peer violated the protocol. The connection is unusable; `code` says which rule was broken."""

    def __init__(
        self, message: str, *, code: ErrorCode = ErrorCode.BAD_FRAME, request_id: int = 0, remedy: str = ""
    ) -> None:
        super().__init__(message, remedy=remedy or VERDICTS[code].remedy)
        self.code = code
        self.request_id = request_id


class BrokenConnectionError(DosError):
    """The connection failed. Requests in flight may or may not have been carried out. `__cause__`: the
    OSError, if any.
    """

    remedy = "connect again; compare digests before sending again what was in flight"


class ClosedError(DosError):
    """The object was used after it was closed."""

    remedy = "open a new one"


class CorruptDataError(DosError):
    """Stored bytes are not what was written, at byte `offset` of the file or object `where`. Nothing was read
    from there.
    """

    def __init__(self, where: str, offset: int, expected: str, found: str, hint: str = "") -> None:
        super().__init__(f"{where} at byte {offset}: expected {expected}, found {found}", remedy=hint)
        self.where = where
        self.offset = offset
        self.expected = expected
        self.found = found
        self.hint = hint


class RefusedError(DosError):
    """The server refused a request, which had no effect (P-8). The code defines the meaning of `actual`."""

    code_of_class: ClassVar[ErrorCode | None] = None

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        remedy: str = "",
        actual: int = 0,
        record: bytes = b"",
    ) -> None:
        self.code: ErrorCode = code or self.code_of_class or ErrorCode.INTERNAL
        super().__init__(message, remedy=remedy or VERDICTS[self.code].remedy)
        self.actual = actual
        self.record = record


class BadNameError(RefusedError):
    """A name does not match the grammar. Raised on both ends."""

    code_of_class = ErrorCode.BAD_NAME


class NotFoundError(RefusedError):
    """The directory or object does not exist."""

    code_of_class = ErrorCode.NOT_FOUND


class SizeMismatchError(RefusedError):
    """An append at a size other than the object's. `actual` is the object's size."""

    code_of_class = ErrorCode.SIZE_MISMATCH


class DigestMismatchError(RefusedError):
    """The size is right, but the content is another writer's."""

    code_of_class = ErrorCode.DIGEST_MISMATCH


class FencedError(RefusedError):
    """Another writer holds the directory. This writer's appends are never acknowledged again (P-4)."""

    code_of_class = ErrorCode.FENCED

    @property
    def epoch_held(self) -> int:
        return self.actual


class BeingAppendedError(RefusedError):
    """Another session has appends to this object in flight."""

    code_of_class = ErrorCode.BEING_APPENDED


class PastEndError(RefusedError):
    """A read beyond the durable bytes. `actual` is the synced size."""

    code_of_class = ErrorCode.PAST_END


class CorruptError(RefusedError):
    """The server's copy is damaged from offset `actual` on."""

    code_of_class = ErrorCode.CORRUPT


class PoisonedError(RefusedError):
    """A write or sync of this object failed on the server, which acknowledges nothing more for it."""

    code_of_class = ErrorCode.POISONED


class NoSpaceError(RefusedError):
    """The server's disk is full, or a limit is reached. Nothing of the append was kept."""

    code_of_class = ErrorCode.NO_SPACE


class StaleGenerationError(RefusedError):
    """The server has another generation of the store record, in `record`, encoded."""

    code_of_class = ErrorCode.STALE_GENERATION


class WrongStoreError(RefusedError):
    """The server belongs to another store, or to none."""

    code_of_class = ErrorCode.WRONG_STORE


class NotAMemberError(RefusedError):
    """The server is not a member in the store record."""

    code_of_class = ErrorCode.NOT_A_MEMBER


class BusyError(RefusedError):
    """The server is at one of its limits, or the request failed for a temporary reason."""

    code_of_class = ErrorCode.BUSY


class UnauthorisedError(RefusedError):
    """The token is wrong or missing."""

    code_of_class = ErrorCode.UNAUTHORISED


class ForbiddenError(RefusedError):
    """The token is valid, and does not grant this request."""

    code_of_class = ErrorCode.FORBIDDEN


class UnsupportedError(RefusedError):
    """The server knows the request but does not carry it out here."""

    code_of_class = ErrorCode.UNSUPPORTED


class WouldLoseError(RefusedError):
    """The new copy lacks bytes that were durable in the old one and may have been acknowledged."""

    code_of_class = ErrorCode.WOULD_LOSE

    @property
    def durable(self) -> int:
        """The largest size that the old copy had durable."""
        return self.actual


class RolledBackError(RefusedError):
    """The server's disk is an older copy of itself, so it counts for nothing. `actual`: the stamp that it
    lacks.
    """

    code_of_class = ErrorCode.ROLLED_BACK


class TlsRequiredError(RefusedError):
    """The server accepts TLS only, and this client sent plain text. The server read nothing of it."""

    code_of_class = ErrorCode.TLS_REQUIRED


class QuotaExceededError(RefusedError):
    """A limit of the directory's prefix is reached. Nothing was done. `actual` is the limit."""

    code_of_class = ErrorCode.QUOTA_EXCEEDED


ERRORS_BY_CODE: Final[dict[ErrorCode, type[RefusedError]]] = {
    cls.code_of_class: cls for cls in RefusedError.__subclasses__() if cls.code_of_class is not None
}


def text_of(error: BaseException) -> str:
    """Return the type and the text of any exception, also of one whose text cannot be made or encoded."""
    try:
        text = str(error)
    except BaseException as failed:  # the code of its class, which must not end who reports it
        text = f"its text cannot be made: {type(failed).__name__}"
    return encodable(f"{type(error).__name__}: {text}")


def encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def errors_in(error: BaseException) -> list[Exception]:
    """Return the exceptions in nested groups, in order, without the groups."""
    if isinstance(error, BaseExceptionGroup):
        return [one for inner in error.exceptions for one in errors_in(inner)]
    return [error] if isinstance(error, Exception) else []
