"""What each client may do: tokens, and the rights that they grant. Pure.

A token is a random text, of which the server has only the SHA-256. A grant names a prefix: `shop` covers the
directory `shop` and those that begin with `shop.`; `*` covers every directory.

| right | allows |
|---|---|
| read | LIST, GET and STAT in a directory |
| append | to claim a directory, and to append |
| delete | to claim a directory, and to delete objects |
| admin | of a prefix, to repair its objects; with the prefix `*` also CONFIGURE |

Every valid token may greet, ping, and exchange stamps. LIST of the directories shows those with any grant.
"""

import hashlib
import hmac
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from dos_protocol import messages as m
from dos_protocol.errors import MALFORMED_JSON, ErrorCode, LocalProtocolError
from dos_protocol.names import is_name

FILE_VERSION: Final = 1
EVERY: Final = "*"
_DIGEST_CHARS: Final = 64


class RequestRefusal(NamedTuple):
    code: ErrorCode
    message: str
    actual: int = 0


class Right(StrEnum):
    READ = "read"
    APPEND = "append"
    DELETE = "delete"
    ADMIN = "admin"


def covers(prefix: str, directory: str) -> bool:
    return prefix in (EVERY, directory) or directory.startswith(f"{prefix}.")


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: str
    rights: tuple[Right, ...]

    def covers(self, directory: str) -> bool:
        return covers(self.prefix, directory)


class GrantedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token as the file has it. expires_s: the Unix time from which on it is refused; None: never."""

    name: str
    sha256: str
    grants: tuple[Grant, ...]
    expires_s: float | None = None


class TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    tokens: tuple[GrantedToken, ...] = ()


class Access(NamedTuple):
    """What a session may do. name: of its token, "" without a file of tokens. grants: None allows all."""

    name: str
    grants: tuple[Grant, ...] | None = None
    digest: bytes = b""

    def may(self, right: Right, directory: str) -> bool:
        return self.grants is None or any(
            right in grant.rights and grant.covers(directory) for grant in self.grants
        )

    def sees(self, directory: str) -> bool:
        return self.grants is None or any(grant.covers(directory) for grant in self.grants)

    @property
    def is_admin(self) -> bool:
        return self.may(Right.ADMIN, EVERY)

    @property
    def is_operator(self) -> bool:
        return self.grants is not None and self.is_admin


EVERYTHING: Final = Access("")
"""Of a session that has not greeted yet, and of version 0, which has no token."""


class Tokens:
    def __init__(self, valid: Iterable[Access]) -> None:
        self._valid = {access.digest: access for access in valid}

    @classmethod
    def single(cls, token: bytes) -> "Tokens":
        """One token that allows everything; b"": clients must send none."""
        return cls([Access("", None, hashlib.sha256(token).digest())])

    @classmethod
    def of_file(cls, file: TokenFile, now_s: float) -> "Tokens":
        """The tokens of a file that have not expired at a Unix time."""
        return cls(
            Access(one.name, one.grants, bytes.fromhex(one.sha256))
            for one in file.tokens
            if one.expires_s is None or now_s < one.expires_s
        )

    def find(self, token: bytes) -> Access | None:
        presented, found = hashlib.sha256(token).digest(), None
        for digest, access in self._valid.items():  # all of them: when one matches must not be measurable
            if hmac.compare_digest(presented, digest):
                found = access
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and self._valid == other._valid

    __hash__ = None  # type: ignore[assignment]

    def renewed(self, access: Access) -> Access | None:
        """Return what a session with this access may do by these tokens; None if its token is gone."""
        return self._valid.get(access.digest)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(access.name for access in self._valid.values())


_RIGHT_OF: Final[dict[type[Any], Right]] = {
    m.Get: Right.READ,
    m.Stat: Right.READ,
    m.List: Right.READ,
    m.Append: Right.APPEND,
    m.Delete: Right.DELETE,
    m.RepairChunk: Right.ADMIN,
}


def why_forbidden(access: Access, directory: str | None, message: m.Message) -> str | None:
    """Return why a session may not make a request; None if it may. directory: its current one."""
    if access.grants is None:
        return None
    if isinstance(message, m.Configure | m.ScrubRequest):
        what = "change the store record" if isinstance(message, m.Configure) else "control the scrub"
        return None if access.is_admin else f"token {access.name!r} may not {what}"
    if isinstance(message, m.ChangeDirectory):
        wanted = (Right.APPEND, Right.DELETE, Right.ADMIN) if message.claim else tuple(Right)
        if any(access.may(right, message.directory) for right in wanted):
            return None
        what = "claim" if message.claim else "open"
        return f"token {access.name!r} may not {what} directory {message.directory[:128]!a}"
    right = _RIGHT_OF.get(type(message))
    if right is None or directory is None or access.may(right, directory):
        return None
    return f"token {access.name!r} has no right {right} in directory {directory!r}"


# --- the file -----------------------------------------------------------------------------------------------


def encode_settings(file: msgspec.Struct) -> bytes:
    """Return the JSON of a file of tokens or quotas, with a line for each value that people compare."""
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def decode_tokens(data: bytes, where: str) -> TokenFile:
    """Return the content of a file of tokens. Raises LocalProtocolError, which names the entry."""
    remedy = "`dos token add` writes it"
    try:
        file = msgspec.json.decode(data, type=TokenFile)
    except MALFORMED_JSON as error:
        raise LocalProtocolError(f"tokens file {where}: {error}", remedy=remedy) from error
    if file.version != FILE_VERSION:
        raise LocalProtocolError(
            f"tokens file {where} has version {file.version}; this program reads version {FILE_VERSION}",
            remedy="use a newer program",
        )
    for name in (names := [one.name for one in file.tokens]):
        if not is_name(name) or names.count(name) > 1:
            raise LocalProtocolError(f"tokens file {where}: token {name!a} needs a name of its own")
    for one in file.tokens:
        check_grants(one.grants, f"tokens file {where}, token {one.name!r}")
        if len(one.sha256) != _DIGEST_CHARS or not _is_hex(one.sha256):
            raise LocalProtocolError(
                f"tokens file {where}, token {one.name!r}: sha256 must have 64 hexadecimal digits"
            )
    return file


def check_grants(grants: Iterable[Grant], where: str) -> None:
    """Raise LocalProtocolError for a token that grants nothing, and for a prefix that names no directory."""
    listed = tuple(grants)
    if not listed or not all(grant.rights for grant in listed):
        raise LocalProtocolError(f"{where}: a token needs at least one grant, and a grant one right")
    for grant in listed:
        if grant.prefix != EVERY and not is_name(grant.prefix):
            raise LocalProtocolError(f"{where}: {grant.prefix!a} is no directory, and not {EVERY!r}")


def _is_hex(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True
