"""`dos gateway`: serves the tree of a store to Hadoop clients."""

from pathlib import Path
from typing import Annotated

import trio
import typer

from dos_client import open_store
from dos_client.cli.kit import REFUSED, Call, Url, command, fail, parsed_url, warn
from dos_protocol.arguments import is_loopback, parse_bytes, parse_listen
from dos_tls import tls_of_environment

app = typer.Typer(pretty_exceptions_enable=False)
_PORT = 9870


@command(app, "serve", as_json=False, progress=False)
async def serve(
    call: Call,
    url: Url,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve here; bodies at the next port. 0 picks free ones.")
    ] = f"127.0.0.1:{_PORT}",
    max_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Refuse files beyond this, so that deletions have room.")
    ] = "",
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key that clients must have.", metavar="FILE")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Serve TLS, with the certificate of DOS_TLS.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve other machines without TLS and key.")
    ] = False,
) -> None:
    """Serve a tree of files that Spark and Hadoop clients use as webhdfs://NAME.

    The URL names the tree: dos://h1,h2,h3/NAME. Several gateways of one tree, on several hosts: one serves,
    the others take over within 3 s. It runs until interrupted.

    Example: dos gateway serve dos://h1,h2,h3/orders

    Exit codes: 2 usage, or the address cannot be used.
    """
    from dos_gateway.gateway import Gateway
    from dos_gateway.webhdfs import serve_gateway  # needs the extra [ui]

    parsed = parsed_url(url)
    name = parsed.directory
    if name is None or parsed.object is not None:
        fail(f"name the tree in the URL: {parsed}/NAME", REFUSED)
    try:
        host, port = parse_listen(listen)
        room = parse_bytes(max_bytes) if max_bytes else None
    except ValueError as error:
        fail(str(error), REFUSED)
    key = key_file.read_text(encoding="utf-8").strip() if key_file is not None else ""
    if not is_loopback(host) and not (tls and key):
        if not insecure:
            fail(f"listening on {host} needs --tls and --key-file, or --insecure", REFUSED)
        warn(f"listening on {host} without TLS or key, because of --insecure")
    async with (
        open_store(type(parsed)(parsed.servers), token=call.token) as store,
        trio.open_nursery() as nursery,
    ):
        gateway = Gateway(store, name, served_at=listen, max_bytes=room)
        settings = tls_of_environment() if tls else None
        bound = await nursery.start(
            lambda task_status: serve_gateway(
                gateway, host, port, tls=settings, key=key, task_status=task_status
            )
        )
        print(f"dos gateway: {name} is at {host}:{bound}", flush=True)
