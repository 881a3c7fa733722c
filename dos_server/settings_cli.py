"""`dos token` and `dos quota`: the files of tokens and of quotas that `dos serve` reads.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | there is no token of that name, or no quota of that prefix |
| 2 | usage error; the file cannot be read or written, or is not valid |

The commands need no server: copy the file to every server of a store. The file of tokens has the SHA-256 of
each token, not the token.
"""

import fcntl
import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Generic, NoReturn, TypeVar

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from dos_protocol.arguments import parse_bytes, parse_span
from dos_protocol.errors import LocalProtocolError
from dos_server.core.access import (
    EVERY,
    FILE_VERSION,
    Grant,
    GrantedToken,
    Right,
    TokenFile,
    check_grants,
    decode_tokens,
    encode_settings,
)
from dos_server.core.quotas import (
    QUOTA_FILE_VERSION,
    Quota,
    QuotaFile,
    check_quota,
    decode_quotas,
)
from dos_server.disk import path_argument
from dos_tls import sync_folder

NOT_FOUND: Final = 1
REFUSED: Final = 2
_TOKEN_BYTES: Final = 32

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Content = TypeVar("Content", TokenFile, QuotaFile)


@dataclass(frozen=True)
class _SettingsFile(Generic[Content]):
    """A kind of file of settings, and the command that changes it."""

    command: str
    decode: Callable[[bytes, str], Content]

    def fail(self, text: str, code: int = REFUSED) -> NoReturn:
        print(f"{self.command}: {text}", file=sys.stderr)
        raise typer.Exit(code)

    def read(self, file: Path) -> Content:
        try:
            return self.decode(file.read_bytes(), str(file))
        except OSError as error:
            self.fail(f"{file} cannot be read: {error.strerror}")
        except LocalProtocolError as error:
            self.fail(str(error))

    def change(
        self, file: Path, change: Callable[[Content], Content], *, empty: Content | None = None
    ) -> None:
        """Change a file. `empty`: what a file that is missing means; None: it must be there."""

        def edit(content: bytes | None) -> bytes:
            if content is None and empty is None:
                self.fail(f"{file} cannot be read: there is no such file")
            before = empty if content is None else self.decode(content, str(file))
            assert before is not None
            return encode_settings(change(before))

        try:
            edit_file(file, edit, self.command)
        except LocalProtocolError as error:
            self.fail(str(error))


_TOKENS: Final = _SettingsFile("dos token", decode_tokens)
_QUOTAS: Final = _SettingsFile("dos quota", decode_quotas)


def _covers(prefix: str) -> str:
    return "all" if prefix == EVERY else f"{prefix}, {prefix}.*"


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


# --- Tokens ------------------------------------------------------------------------------------------------

_token = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Add, list and revoke the tokens of `dos serve --tokens FILE`, which grant rights in directories."
    "\n\nExample: dos token add tokens.json shop --grant shop:read,append,delete --out shop.token",
)
TokensFile = Annotated[
    Path, typer.Argument(parser=path_argument, help="The file of tokens of a server.", metavar="FILE")
]
Names = Annotated[list[str], typer.Argument(help="Names of tokens.", metavar="NAME...")]


@_token.command("add")
def add_token(
    file: TokensFile,
    name: Annotated[str, typer.Argument(help="Its name, for people and for the audit log.", metavar="NAME")],
    grant: Annotated[
        list[str],
        typer.Option(
            help="Rights in the directories PREFIX and PREFIX.*, or * for all: read, append, delete, admin,"
            " or all. Can be given several times.",
            metavar="PREFIX:RIGHTS",
        ),
    ],
    expires_in: Annotated[
        str | None, typer.Option(help="It is refused after this time, for example 90d.", metavar="TIME")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path_argument,
            help="Write the token to this new file, which only you can read, and do not print it.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Add a token, and print it. Only its SHA-256 is kept: it cannot be printed again.

    A server that runs notices the change within a second. Copy the file to all servers of the store.

    To replace a token, add another one, give it to its users, and revoke the old one.

    Example: dos token add tokens.json shop --grant shop:read,append,delete --out shop.token

    Example: dos token add tokens.json reports --grant shop:read --grant prices:read --expires-in 90d

    Example: dos token add tokens.json operator --grant '*:all'
    """
    grants = tuple(map(_parsed_grant, grant))
    try:
        check_grants(grants, f"token {name!r}")
        expires_s = None if expires_in is None else time.time() + parse_span(expires_in)
    except (LocalProtocolError, ValueError) as error:
        _TOKENS.fail(str(error))
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    made = GrantedToken(name, hashlib.sha256(token.encode()).hexdigest(), grants, expires_s)

    def added(before: TokenFile) -> TokenFile:
        if any(one.name == name for one in before.tokens):
            _TOKENS.fail(f"{file} has a token {name!r} already: choose another name, or revoke it first")
        return TokenFile(FILE_VERSION, (*before.tokens, made))

    secret = None if out is None else _new_file(out)
    try:
        _TOKENS.change(file, added, empty=TokenFile(FILE_VERSION))
    except BaseException:
        if out is not None:
            out.unlink()
        raise
    if secret is None:
        print(token)
        return
    with os.fdopen(secret, "w") as stream:
        print(token, file=stream)


@_token.command("ls")
def list_tokens(file: TokensFile, as_json: AsJson = False) -> None:
    """List the tokens of a file: what each one grants, and when it expires.

    Example: dos token ls tokens.json
    """
    tokens = sorted(_TOKENS.read(file).tokens, key=lambda one: one.name)
    if as_json:
        print(json.dumps([_json_of(one) for one in tokens], indent=2))
        return
    table = Table("name", "directories", "rights", "expires", box=box.SIMPLE_HEAD, pad_edge=False)
    for one in tokens:
        for number, grant in enumerate(one.grants):
            covers = _covers(grant.prefix)
            first = number == 0
            table.add_row(
                one.name if first else "", covers, ", ".join(grant.rights), _expiry(one) if first else ""
            )
    _print(table)


@_token.command("revoke")
def revoke_tokens(file: TokensFile, names: Names) -> None:
    """Remove tokens. Within a second, a server that runs ends the sessions that use them.

    Example: dos token revoke tokens.json shop
    """

    def removed(before: TokenFile) -> TokenFile:
        known = {one.name for one in before.tokens}
        if missing := sorted({*names} - known):
            listed = ", ".join(sorted(known)) or "none"
            _TOKENS.fail(f"{file} has no token {missing[0]!r}; it has {listed}", NOT_FOUND)
        return TokenFile(FILE_VERSION, tuple(one for one in before.tokens if one.name not in names))

    _TOKENS.change(file, removed)
    print(f"revoked: {', '.join(names)}")


def _parsed_grant(text: str) -> Grant:
    prefix, colon, rights = text.rpartition(":")
    try:
        found = tuple(Right) if rights == "all" else tuple(Right(one.strip()) for one in rights.split(","))
    except ValueError:
        colon, found = "", ()
    if not colon or not prefix:
        _TOKENS.fail(
            f"a grant is PREFIX:RIGHTS, and the rights are {', '.join(Right)}, separated by commas, or all:"
            f" got {text!r}"
        )
    return Grant(prefix, found)


def _json_of(one: GrantedToken) -> dict[str, Any]:
    grants = [{"prefix": grant.prefix, "rights": [*map(str, grant.rights)]} for grant in one.grants]
    return {"name": one.name, "grants": grants, "expires": None if one.expires_s is None else _expiry(one)}


def _expiry(one: GrantedToken) -> str:
    if one.expires_s is None:
        return "never"
    return datetime.fromtimestamp(one.expires_s, UTC).isoformat(timespec="seconds")


def _new_file(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _TOKENS.fail(f"{path} cannot be made: {error.strerror}")


# --- Quotas ------------------------------------------------------------------------------------------------

_quota = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Set, list and remove the quotas of `dos serve --quotas FILE`: limits for directories by prefix."
    "\n\nExample: dos quota set quotas.json shop --bytes 10GB --requests 500",
)
QuotasFile = Annotated[
    Path, typer.Argument(parser=path_argument, help="The file of quotas of a server.", metavar="FILE")
]
Prefix = Annotated[
    str, typer.Argument(help="The directories PREFIX and PREFIX.* together, or * for all.", metavar="PREFIX")
]


@_quota.command("set")
def set_quota(
    file: QuotasFile,
    prefix: Prefix,
    count_bytes: Annotated[
        str | None,
        typer.Option("--bytes", help="Content of all objects, for example 10GB or 512MiB.", metavar="BYTES"),
    ] = None,
    objects: Annotated[int | None, typer.Option(min=0, help="Number of objects.")] = None,
    directories: Annotated[
        int | None,
        typer.Option(min=0, help="Number of directories. Default: 1000 where bytes or objects are limited."),
    ] = None,
    connections: Annotated[
        int | None, typer.Option(min=0, help="Number of sessions in these directories.")
    ] = None,
    requests: Annotated[
        float | None, typer.Option(min=1, help="Requests in a second, on average; more have to wait.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option(min=1, help="Requests that may come at once. Default: those of a second.")
    ] = None,
) -> None:
    """Set the quota of a prefix. It replaces an earlier one, also the limits that are left out.

    A server that runs notices the change within a second. Data that is stored already stays, also above the
    limit.

    Example: dos quota set quotas.json shop --bytes 10GB --objects 20000 --connections 100

    Example: dos quota set quotas.json '*' --requests 5000 --burst 20000
    """
    try:
        limit = None if count_bytes is None else parse_bytes(count_bytes)
        quota = Quota(prefix, limit, objects, connections, requests, burst, directories)
        check_quota(quota, _QUOTAS.command)
    except (LocalProtocolError, ValueError) as error:
        _QUOTAS.fail(str(error).removeprefix(f"{_QUOTAS.command}: "))

    def replaced(before: QuotaFile) -> QuotaFile:
        others = (one for one in before.quotas if one.prefix != prefix)
        quotas = sorted((*others, quota), key=lambda one: one.prefix)
        return QuotaFile(QUOTA_FILE_VERSION, tuple(quotas))

    _QUOTAS.change(file, replaced, empty=QuotaFile(QUOTA_FILE_VERSION))


@_quota.command("rm")
def remove_quota(file: QuotasFile, prefix: Prefix) -> None:
    """Remove the quota of a prefix.

    Example: dos quota rm quotas.json shop
    """

    def removed(before: QuotaFile) -> QuotaFile:
        rest = tuple(one for one in before.quotas if one.prefix != prefix)
        if rest == before.quotas:
            listed = ", ".join(one.prefix for one in before.quotas) or "none"
            _QUOTAS.fail(f"{file} has no quota of {prefix!r}; it has {listed}", NOT_FOUND)
        return QuotaFile(QUOTA_FILE_VERSION, rest)

    _QUOTAS.change(file, removed)
    print(f"removed: {prefix}")


@_quota.command("ls")
def list_quotas(file: QuotasFile, as_json: AsJson = False) -> None:
    """List the quotas of a file. The metrics of each server show their usage.

    Example: dos quota ls quotas.json
    """
    quotas = _QUOTAS.read(file).quotas
    if as_json:
        print(json.dumps(msgspec.to_builtins(quotas), indent=2))
        return
    table = Table("directories", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("bytes", "objects", "directories", "connections", "requests/s", "burst"):
        table.add_column(name, justify="right")
    for one in quotas:
        covers = _covers(one.prefix)
        limits = (
            *(one.bytes_max, one.objects_max, one.directories_limit),
            *(one.connections_max, one.requests_per_s, one.burst),
        )
        table.add_row(covers, *("" if limit is None else f"{limit:,}" for limit in limits))
    _print(table)


app = typer.Typer()
app.add_typer(_token, name="token")
app.add_typer(_quota, name="quota")
"""The two groups, for the table of commands."""


# --- Files that commands change while servers read them ----------------------------------------------------


def edit_file(file: Path, edit: Callable[[bytes | None], bytes], command: str) -> None:
    """Replace the file by a changed one, durably. `edit` returns the new content for the old one, None if
    there is no file; what it raises leaves the file as it was. Raises LocalProtocolError.
    """
    new = file.with_name(f"{file.name}.new")
    with _locked(new, command) as stream:
        content = edit(_content_of(file))
        stream.truncate(0)  # what a command that was killed has left
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        new.replace(file)
    sync_folder(file.parent)


@contextmanager
def _locked(new: Path, command: str) -> Iterator[BinaryIO]:
    while True:
        try:
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LocalProtocolError(f"{new} cannot be written: {error.strerror}") from error
        with os.fdopen(descriptor, "r+b") as stream:
            try:
                # Of two commands at once, one would undo what the other has done. The lock ends with its
                # process, so a file that a killed command has left blocks nobody.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = f"another `{command}` changes {new.with_suffix('')} now: run it again"
                raise LocalProtocolError(text) from error
            if not _is_at(new, descriptor):
                continue  # the other command has just finished: this is its file, which has another name now
            os.fchmod(descriptor, 0o600)
            try:
                yield stream
            except BaseException:
                new.unlink(missing_ok=True)
                raise
            return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _content_of(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalProtocolError(f"{file} cannot be read: {error.strerror}") from error
