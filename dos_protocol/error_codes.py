"""The codes of the wire: who must act after each, and what to do. protocol.md has the same table.

`ErrorCode` numbers are wire bytes and are never reused.
"""

from enum import Enum, IntEnum, unique
from typing import Final, NamedTuple


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
    """What a code means for the client that receives it.

    `actual`: the meaning of the number that comes with it; '' if the number is always 0.
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
        "the prefix digest there; 0 for the bytes of a MEND",
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
