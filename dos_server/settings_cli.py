"""`dos token`: the file of tokens that `dos serve --tokens` reads.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | there is no token of that name |
| 2 | usage error; the file cannot be read or written, or is not valid |

The file has the SHA-256 of each token, not the token. The commands need no server: copy the file to every
server of a store.
"""

import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from dos_protocol.arguments import parse_span
from dos_protocol.errors import LocalProtocolError
from dos_server.core.access import (
    FILE_VERSION,
    Grant,
    GrantedToken,
    Right,
    TokenFile,
    check_grants,
    decode_tokens,
    encode_tokens,
)
from dos_server.edited_files import edit_file
from dos_server.wording import path_argument

NOT_FOUND: Final = 1
REFUSED: Final = 2
_TOKEN_BYTES: Final = 32

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Add, list and revoke the tokens of `dos serve --tokens FILE`, which grant rights in directories."
    "\n\nExample: dos token add tokens.json shop --grant shop:read,append,delete --out shop.token",
)
File = Annotated[
    Path, typer.Argument(parser=path_argument, help="The file of tokens of a server.", metavar="FILE")
]
Names = Annotated[list[str], typer.Argument(help="Names of tokens.", metavar="NAME...")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command()
def add(
    file: File,
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
        _fail(str(error))
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    made = GrantedToken(name, hashlib.sha256(token.encode()).hexdigest(), grants, expires_s)

    def added(before: TokenFile) -> TokenFile:
        if any(one.name == name for one in before.tokens):
            _fail(f"{file} has a token {name!r} already: choose another name, or revoke it first")
        return TokenFile(FILE_VERSION, (*before.tokens, made))

    secret = None if out is None else _new_file(out)
    try:
        _change(file, added, may_create=True)
    except BaseException:
        if out is not None:
            out.unlink()
        raise
    if secret is None:
        print(token)
        return
    with os.fdopen(secret, "w") as stream:
        print(token, file=stream)


@app.command()
def ls(file: File, as_json: AsJson = False) -> None:
    """List the tokens of a file: what each one grants, and when it expires.

    Example: dos token ls tokens.json
    """
    tokens = sorted(_read(file).tokens, key=lambda one: one.name)
    if as_json:
        print(json.dumps([_json_of(one) for one in tokens], indent=2))
        return
    table = Table("name", "directories", "rights", "expires", box=box.SIMPLE_HEAD, pad_edge=False)
    for one in tokens:
        for number, grant in enumerate(one.grants):
            covers = "all" if grant.prefix == "*" else f"{grant.prefix}, {grant.prefix}.*"
            first = number == 0
            table.add_row(
                one.name if first else "", covers, ", ".join(grant.rights), _expiry(one) if first else ""
            )
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


@app.command()
def revoke(file: File, names: Names) -> None:
    """Remove tokens. Within a second, a server that runs ends the sessions that use them.

    Example: dos token revoke tokens.json shop
    """

    def removed(before: TokenFile) -> TokenFile:
        known = {one.name for one in before.tokens}
        if missing := sorted({*names} - known):
            listed = ", ".join(sorted(known)) or "none"
            _fail(f"{file} has no token {missing[0]!r}; it has {listed}", NOT_FOUND)
        return TokenFile(FILE_VERSION, tuple(one for one in before.tokens if one.name not in names))

    _change(file, removed)
    print(f"revoked: {', '.join(names)}")


def _parsed_grant(text: str) -> Grant:
    prefix, colon, rights = text.rpartition(":")
    try:
        found = tuple(Right) if rights == "all" else tuple(Right(one.strip()) for one in rights.split(","))
    except ValueError:
        colon, found = "", ()
    if not colon or not prefix:
        _fail(
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
        _fail(f"{path} cannot be made: {error.strerror}")


# --- the file -----------------------------------------------------------------------------------------------


def _read(file: Path) -> TokenFile:
    try:
        return decode_tokens(file.read_bytes(), str(file))
    except OSError as error:
        _fail(f"{file} cannot be read: {error.strerror}")
    except LocalProtocolError as error:
        _fail(str(error))


def _change(file: Path, change: Callable[[TokenFile], TokenFile], *, may_create: bool = False) -> None:
    def edit(content: bytes | None) -> bytes:
        if content is None and not may_create:
            _fail(f"{file} cannot be read: there is no such file")
        before = TokenFile(FILE_VERSION) if content is None else decode_tokens(content, str(file))
        return encode_tokens(change(before))

    try:
        edit_file(file, edit, "dos token")
    except LocalProtocolError as error:
        _fail(str(error))


def _fail(text: str, code: int = REFUSED) -> NoReturn:
    print(f"dos token: {text}", file=sys.stderr)
    raise typer.Exit(code)
