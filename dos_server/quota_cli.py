"""`dos quota`: the file of quotas that `dos serve --quotas` reads.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | there is no quota of that prefix |
| 2 | usage error; the file cannot be read or written, or is not valid |

The commands need no server: copy the file to every server of a store.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from dos_protocol.arguments import parse_bytes
from dos_protocol.errors import LocalProtocolError
from dos_server.core.quota_file import (
    QUOTA_FILE_VERSION,
    Quota,
    QuotaFile,
    check_quota,
    decode_quotas,
    encode_quotas,
)
from dos_server.edited_files import edit_file
from dos_server.wording import path_argument

NOT_FOUND: Final = 1
REFUSED: Final = 2
_COMMAND: Final = "dos quota"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Set, list and remove the quotas of `dos serve --quotas FILE`: limits for directories by prefix."
    "\n\nExample: dos quota set quotas.json shop --bytes 10GB --requests 500",
)
File = Annotated[
    Path, typer.Argument(parser=path_argument, help="The file of quotas of a server.", metavar="FILE")
]
Prefix = Annotated[
    str, typer.Argument(help="The directories PREFIX and PREFIX.* together, or * for all.", metavar="PREFIX")
]


@app.command("set")
def set_quota(
    file: File,
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

    A server that runs notices the change within a second. What is stored already stays, also above the limit.

    Example: dos quota set quotas.json shop --bytes 10GB --objects 20000 --connections 100

    Example: dos quota set quotas.json '*' --requests 5000 --burst 20000
    """
    try:
        limit = None if count_bytes is None else parse_bytes(count_bytes)
        quota = Quota(prefix, limit, objects, connections, requests, burst, directories)
        check_quota(quota, _COMMAND)
    except (LocalProtocolError, ValueError) as error:
        _fail(str(error).removeprefix(f"{_COMMAND}: "))

    def edit(content: bytes | None) -> bytes:
        before = () if content is None else decode_quotas(content, str(file)).quotas
        others = (one for one in before if one.prefix != prefix)
        quotas = sorted((*others, quota), key=lambda one: one.prefix)
        return encode_quotas(QuotaFile(QUOTA_FILE_VERSION, tuple(quotas)))

    _edit(file, edit)


@app.command()
def rm(file: File, prefix: Prefix) -> None:
    """Remove the quota of a prefix.

    Example: dos quota rm quotas.json shop
    """

    def edit(content: bytes | None) -> bytes:
        before = _decoded(file, content)
        rest = tuple(one for one in before.quotas if one.prefix != prefix)
        if rest == before.quotas:
            listed = ", ".join(one.prefix for one in before.quotas) or "none"
            _fail(f"{file} has no quota of {prefix!r}; it has {listed}", NOT_FOUND)
        return encode_quotas(QuotaFile(QUOTA_FILE_VERSION, rest))

    _edit(file, edit)
    print(f"removed: {prefix}")


@app.command()
def ls(file: File, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the quotas of a file. What is used of them is in the metrics of each server.

    Example: dos quota ls quotas.json
    """
    try:
        quotas = _decoded(file, file.read_bytes()).quotas
    except OSError as error:
        _fail(f"{file} cannot be read: {error.strerror}")
    except LocalProtocolError as error:
        _fail(str(error))
    if as_json:
        print(json.dumps(msgspec.to_builtins(quotas), indent=2))
        return
    table = Table("directories", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("bytes", "objects", "directories", "connections", "requests/s", "burst"):
        table.add_column(name, justify="right")
    for one in quotas:
        covers = "all" if one.prefix == "*" else f"{one.prefix}, {one.prefix}.*"
        limits = (
            *(one.bytes_max, one.objects_max, one.directories_limit),
            *(one.connections_max, one.requests_per_s, one.burst),
        )
        table.add_row(covers, *("" if limit is None else f"{limit:,}" for limit in limits))
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def _decoded(file: Path, content: bytes | None) -> QuotaFile:
    if content is None:
        _fail(f"{file} cannot be read: there is no such file")
    return decode_quotas(content, str(file))


def _edit(file: Path, edit: Callable[[bytes | None], bytes]) -> None:
    try:
        edit_file(file, edit, _COMMAND)
    except LocalProtocolError as error:
        _fail(str(error))


def _fail(text: str, code: int = REFUSED) -> NoReturn:
    print(f"{_COMMAND}: {text}", file=sys.stderr)
    raise typer.Exit(code)
