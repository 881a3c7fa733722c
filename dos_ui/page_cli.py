"""`dos ui`: serves the web page of a store."""

from pathlib import Path
from typing import Annotated

import trio
import typer

from dos_client.cli.kit import (
    REFUSED,
    Call,
    StoreUrl,
    certificate_to_serve,
    command,
    fail,
    key_in,
    parsed_url,
    warn,
)
from dos_protocol.arguments import is_loopback, parse_listen

_PORT = 4050


app = typer.Typer(pretty_exceptions_enable=False)


@command(app, "ui", as_json=False, progress=False)
async def ui(
    call: Call,
    url: StoreUrl,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve the page here; port 0 picks a free port.")
    ] = f"127.0.0.1:{_PORT}",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Offer no changes: only show what is there.")
    ] = False,
    key_file: Annotated[
        Path | None,
        typer.Option(help="File with the key of the page; a new random one otherwise.", metavar="FILE"),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Serve HTTPS, with the certificate of DOS_TLS.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve plain HTTP to other machines; the key can be read.")
    ] = False,
) -> None:
    """Serve a web page that shows a store: its members, regions and checkpoints, what is stored, live.

    Open the address that is printed. It ends with the key of the page, without which it shows nothing. What
    the page may read and change is what the token of --token-file may: give it one that may only read, or
    pass --read-only. It runs until interrupted.

    Example: dos ui dos://h1,h2,h3

    Example: dos ui dos://h1,h2,h3 --read-only --listen 127.0.0.1:0

    Exit codes: 2 usage, or the address cannot be used.
    """
    from dos_ui.app import PageKey  # needs the extra [ui], like the next
    from dos_ui.serving import new_key, serve_page

    servers = parsed_url(url).servers
    try:
        host, port = parse_listen(listen)
    except ValueError as error:
        fail(str(error), REFUSED)
    settings = certificate_to_serve() if tls else None
    if not is_loopback(host) and settings is None:
        if not insecure:
            fail(f"{host} can be reached from other machines: pass --tls, or listen on 127.0.0.1", REFUSED)
        warn(f"listening on {host} without TLS, because of --insecure: the key can be read on the way")
    secret = new_key() if key_file is None else key_in(key_file)
    key, token = PageKey(secret, read_only=read_only), call.token
    async with trio.open_nursery() as nursery:
        address = await nursery.start(
            lambda task_status: serve_page(
                servers, host, port, key, token=token, tls=settings, task_status=task_status
            )
        )
        shown = f"/?key={secret}" if key_file is None else f" with the key of {key_file}"
        print(f"dos ui: open {address}{shown}", flush=True)
