"""Every error of the wire and of the SDK, named by who must act (h11's and trio's split).

Rules of this file: exceptions and their codes, nothing that builds or reads frames. Words are lower case: the
rule broken, the values seen, the remedy. `ErrorCode` numbers are wire bytes and are never reused.
"""

from enum import Enum, IntEnum, unique
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

if TYPE_CHECKING:
    from dos_protocol.messages import Error


class Blame(Enum):
    """Whose move it is after the error."""

    CALLER = "the caller: change the request"
    PEER = "the program at the other end: it broke the protocol"
    WRITER = "another writer: this one has been superseded or runs beside it"
    DISK = "the server's disk: use another member, then repair or replace this one"
    STORE = "the store's membership: read the newest store record"
    SERVER = "the server: try again later, or report it"


@unique
class ErrorCode(IntEnum):
    """Why a request was refused. The number travels in the ERROR message; numbers are never reused."""

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


class ErrorMeaning(NamedTuple):
    """What a code means to the one who gets it. `actual`: the number that comes with it; "" is always 0."""

    blame: Blame
    remedy: str
    actual: str = ""


VERDICTS: Final[dict[ErrorCode, ErrorMeaning]] = {
    ErrorCode.BAD_FRAME: ErrorMeaning(Blame.PEER, "send frames as protocol.md lays them out"),
    ErrorCode.BAD_DIGEST: ErrorMeaning(Blame.PEER, "connect again and send the frame again"),
    ErrorCode.TOO_LARGE: ErrorMeaning(
        Blame.CALLER, "split it: the limits are in WELCOME", "of a PING, the most it carries"
    ),
    ErrorCode.UNKNOWN_OPCODE: ErrorMeaning(Blame.PEER, "use the opcodes of the version agreed in WELCOME"),
    ErrorCode.UNSUPPORTED: ErrorMeaning(
        Blame.CALLER, "do without: the message says what is not done, and why"
    ),
    ErrorCode.BAD_VERSION: ErrorMeaning(Blame.PEER, "use a client and a server of one protocol version"),
    ErrorCode.NOT_READY: ErrorMeaning(Blame.CALLER, "send HELLO first, and CWD before naming objects"),
    ErrorCode.UNAUTHORISED: ErrorMeaning(Blame.CALLER, "send the token this server was started with"),
    ErrorCode.BAD_NAME: ErrorMeaning(
        Blame.CALLER, "use 1 to 128 of A-Z a-z 0-9 . _ - beginning with a letter or digit"
    ),
    ErrorCode.NOT_FOUND: ErrorMeaning(Blame.CALLER, "list the directory to see what is there"),
    ErrorCode.SIZE_MISMATCH: ErrorMeaning(
        Blame.CALLER,
        "read `actual`, compare the digest of what is there, append at that size",
        "the size there",
    ),
    ErrorCode.DIGEST_MISMATCH: ErrorMeaning(
        Blame.CALLER,
        "the content there is not yours: take over before appending",
        "the prefix digest there; 0 of bytes that MEND brought",
    ),
    ErrorCode.FENCED: ErrorMeaning(
        Blame.WRITER, "stop, or take over with an epoch above the one in `actual`", "the epoch held"
    ),
    ErrorCode.NOT_CLAIMED: ErrorMeaning(
        Blame.CALLER, "claim the directory with CWD, an epoch and a writer id", "the epoch held"
    ),
    ErrorCode.BEING_APPENDED: ErrorMeaning(
        Blame.WRITER, "wait until the other writer is done", "the size accepted so far"
    ),
    ErrorCode.PAST_END: ErrorMeaning(
        Blame.CALLER, "ask within the synced size, which is in `actual`", "the synced size"
    ),
    ErrorCode.CORRUPT: ErrorMeaning(
        Blame.DISK,
        "read it from another member; bytes below `actual` are good here",
        "where the damage begins",
    ),
    ErrorCode.POISONED: ErrorMeaning(
        Blame.DISK,
        "a write or sync failed: check the disk, restart the server, compare with another",
        "the synced size; 0 of a claim, or of a new copy",
    ),
    ErrorCode.NO_SPACE: ErrorMeaning(
        Blame.DISK,
        "free space on the server's disk, or begin another object or directory; nothing was written",
        "0, or the limit that is full",
    ),
    ErrorCode.STALE_GENERATION: ErrorMeaning(
        Blame.STORE, "take the store record in `record` and connect again"
    ),
    ErrorCode.WRONG_STORE: ErrorMeaning(
        Blame.STORE, "this server belongs to another store: check the address"
    ),
    ErrorCode.NOT_A_MEMBER: ErrorMeaning(Blame.STORE, "use the members of the newest store record"),
    ErrorCode.BUSY: ErrorMeaning(Blame.SERVER, "try again later", "0, or the limit that is reached"),
    ErrorCode.INTERNAL: ErrorMeaning(Blame.SERVER, "please report this, with the server's log"),
    ErrorCode.WOULD_LOSE: ErrorMeaning(
        Blame.CALLER,
        "mend it from a copy that has all of `actual` bytes, or show that none ever counted",
        "so much was durable",
    ),
    ErrorCode.ROLLED_BACK: ErrorMeaning(
        Blame.DISK,
        "start the server on an empty data directory, and put it in with `dos store replace`",
        "the number of the stamp that is missing",
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
        ErrorCode.INTERNAL,
    }
)
"""After these the server ends the connection; after all others the session goes on."""


class DosError(Exception):
    """Base of every error this project raises on purpose. `remedy` says what to do next."""

    remedy: str = ""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        if remedy:
            self.remedy = remedy

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} ({self.remedy})" if self.remedy else text


class LocalProtocolError(DosError):
    """You asked for something the protocol does not allow. Nothing was sent."""


class RemoteProtocolError(DosError):
    """The other end broke the protocol. The connection is of no further use; `code` says what was wrong."""

    def __init__(
        self, message: str, *, code: ErrorCode = ErrorCode.BAD_FRAME, request_id: int = 0, remedy: str = ""
    ) -> None:
        super().__init__(message, remedy=remedy or VERDICTS[code].remedy)
        self.code = code
        self.request_id = request_id


class BrokenConnectionError(DosError):
    """The world broke the connection.

    `__cause__` has the OSError. What was in flight may or may not have happened.
    """

    remedy = "connect again; compare digests before sending again what was in flight"


class ClosedError(DosError):
    """You use something that you closed."""

    remedy = "open a new one"


class CorruptDataError(DosError):
    """Stored bytes are not what was written. Nothing was served from there.

    where: file or object; offset: byte in it; expected, found: what the rule wanted and what stands there.
    """

    def __init__(self, where: str, offset: int, expected: str, found: str, hint: str = "") -> None:
        super().__init__(f"{where} at byte {offset}: expected {expected}, found {found}", remedy=hint)
        self.where = where
        self.offset = offset
        self.expected = expected
        self.found = found
        self.hint = hint


class RefusedError(DosError):
    """The server refused a request, which left no effect (P-8). `actual` is the number the code speaks of."""

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
    """A name outside the grammar. Raised on both ends."""

    code_of_class = ErrorCode.BAD_NAME


class NotFoundError(RefusedError):
    """No such directory or object."""

    code_of_class = ErrorCode.NOT_FOUND


class SizeMismatchError(RefusedError):
    """An append at another size than the object's; `actual` is the size there."""

    code_of_class = ErrorCode.SIZE_MISMATCH


class DigestMismatchError(RefusedError):
    """The size is right and the content is not yours."""

    code_of_class = ErrorCode.DIGEST_MISMATCH


class FencedError(RefusedError):
    """Another writer holds the directory, with the epoch `epoch_held`. Never acknowledged again (P-4)."""

    code_of_class = ErrorCode.FENCED

    @property
    def epoch_held(self) -> int:
        return self.actual


class NotClaimedError(RefusedError):
    """The directory has a writer, and this session is not it."""

    code_of_class = ErrorCode.NOT_CLAIMED


class BeingAppendedError(RefusedError):
    """Another session has appends to this object in flight."""

    code_of_class = ErrorCode.BEING_APPENDED


class PastEndError(RefusedError):
    """Asked for more than is durable; `actual` is the synced size."""

    code_of_class = ErrorCode.PAST_END


class CorruptError(RefusedError):
    """The server's copy is bad from `actual` on."""

    code_of_class = ErrorCode.CORRUPT


class PoisonedError(RefusedError):
    """A write or sync of this object failed on the server: it acknowledges nothing more there."""

    code_of_class = ErrorCode.POISONED


class NoSpaceError(RefusedError):
    """The server's disk is full. The append left nothing behind."""

    code_of_class = ErrorCode.NO_SPACE


class StaleGenerationError(RefusedError):
    """The server has another, newer store record: `record`, encoded."""

    code_of_class = ErrorCode.STALE_GENERATION


class WrongStoreError(RefusedError):
    """The server belongs to another store, or to none."""

    code_of_class = ErrorCode.WRONG_STORE


class NotAMemberError(RefusedError):
    """The server is not in the store record it was shown."""

    code_of_class = ErrorCode.NOT_A_MEMBER


class BusyError(RefusedError):
    """The server is at one of its limits."""

    code_of_class = ErrorCode.BUSY


class NotReadyError(RefusedError):
    """A request before its HELLO or CWD."""

    code_of_class = ErrorCode.NOT_READY


class UnauthorisedError(RefusedError):
    """The token was wrong or missing."""

    code_of_class = ErrorCode.UNAUTHORISED


class UnsupportedError(RefusedError):
    """The server knows the request and does not do it."""

    code_of_class = ErrorCode.UNSUPPORTED


class WouldLoseError(RefusedError):
    """The new copy lacks bytes that the old one had durable, and that may count."""

    code_of_class = ErrorCode.WOULD_LOSE

    @property
    def durable(self) -> int:
        """So much the old copy had durable once."""
        return self.actual


class RolledBackError(RefusedError):
    """The server's disk is an older copy of itself, put back: what it acknowledged since may be missing, so
    it counts for nothing in its store. `actual`: the number of the stamp that it lacks."""

    code_of_class = ErrorCode.ROLLED_BACK


class TooLargeError(RefusedError):
    """Beyond a limit; `actual` is the limit."""

    code_of_class = ErrorCode.TOO_LARGE


_BY_CODE: Final[dict[ErrorCode, type[RefusedError]]] = {
    cls.code_of_class: cls for cls in RefusedError.__subclasses__() if cls.code_of_class is not None
}


def refused(error: "Error") -> RefusedError:
    """The exception for an ERROR message, of the class callers catch for its code."""
    try:
        code = ErrorCode(error.code)
    except ValueError:
        return RefusedError(
            f"the server refused with code {error.code}, unknown to this client: {error.message}",
            code=ErrorCode.INTERNAL,
            remedy=error.remedy,
            actual=error.actual,
            record=error.record,
        )
    cls = _BY_CODE.get(code, RefusedError)
    return cls(error.message, code=code, remedy=error.remedy, actual=error.actual, record=error.record)
