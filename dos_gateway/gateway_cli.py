"""`dos gateway`: serves the tree of a store to Hadoop clients, and shows what is in it."""

import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer
from typer.core import TyperGroup

from dos_client import DosUrl, FileToken, Store, open_store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    Call,
    MetricsAddress,
    Report,
    ago_text,
    certificate_to_serve,
    clock_text,
    command,
    count_text,
    fail,
    key_in,
    metrics_served,
    parsed_url,
    warn,
)
from dos_gateway.core.confs import client_confs, logical_name, scheme_of, spark_lines
from dos_gateway.core.hadoop import HadoopError, parts_of
from dos_gateway.core.status import TreeStatus
from dos_gateway.core.tree import Tree
from dos_gateway.limits import deletions_bytes, driver_watch_s, max_bytes_min
from dos_gateway.serving import directory_of, now_ms
from dos_gateway.status import read_status, read_tree
from dos_monitoring import answer_of_loop, silence_of
from dos_protocol.arguments import address_text, is_loopback, is_wildcard, parse_bytes, parse_listen
from dos_protocol.limits import MIB
from journal import inspect_whole

if TYPE_CHECKING:
    from dos_gateway.gateway import Gateway

_PORT = 9870


_TreeUrl = Annotated[
    str,
    typer.Argument(
        help="The tree: dos://HOST:PORT,HOST2:PORT/NAME. dos:///NAME is in the store of the context.",
        metavar="TREE-URL",
    ),
]
_MaxBytes = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Refuse new files 128 MiB before the chain of the tree is this long, such as 20GB: deletions"
        " need that room. Choose it below the quota and the disks. All gateways of a tree: the same.",
    ),
]
_TreePath = Annotated[str, typer.Argument(help="A directory or file of the tree.", metavar="PATH")]


class _ServesUrls(TyperGroup):
    """`dos gateway URL` is `dos gateway serve URL`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0].startswith("dos://"):
            args = ["serve", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_ServesUrls, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def _gateway() -> None:
    """Serve a tree of files in a store to Spark and Hadoop clients, by WebHDFS; show what is in it, and who
    serves it.

    Example: dos gateway dos://h1,h2,h3/orders

    Example: dos gateway status dos://h1,h2,h3/orders
    """


@command(app, "serve", as_json=False, log_json=True, progress=False)
async def serve(
    call: Call,
    url: _TreeUrl,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve here, and bodies at the next port; 0: free ones.")
    ] = f"127.0.0.1:{_PORT}",
    max_bytes: _MaxBytes = "",
    key_file: Annotated[
        Path | None,
        typer.Option(help="File with the key that clients must have.", metavar="FILE"),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Serve TLS, with the certificate of DOS_TLS.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve other machines without TLS and key.")
    ] = False,
    serve_metrics: MetricsAddress = None,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Serve a tree of files that Spark and Hadoop clients use as webhdfs://NAME.

    The URL names the tree: dos://h1,h2,h3/NAME. It is made when a gateway first serves it. Of several
    gateways of one tree, on several hosts, one serves; the others are its standbys, and one of them takes
    over when it ends. It runs until interrupted.

    Example: dos gateway dos://h1,h2,h3/orders --max-bytes 20GB

    Example: dos gateway dos://h1,h2,h3/orders --listen 10.0.0.5:9870 --tls --key-file gateway.key

    Example: dos gateway dos://h1,h2,h3/orders --metrics 127.0.0.1:9402

    Exit codes: 2 usage, or the address cannot be used.
    """
    from dos_gateway.gateway import Gateway
    from dos_gateway.webhdfs import serve_gateway  # needs the extra [ui]

    servers, name, _ = _tree_in(url)
    given = json.loads(sys.stdin.readline()) if child else {}
    try:
        host, port = parse_listen(listen)
        room = _room_in(max_bytes)
    except ValueError as error:
        fail(str(error), REFUSED)
    key = key_in(key_file) if key_file is not None else given.get("key", "")
    token = _token_in(given) or call.token
    if not is_loopback(host) and not (tls and key):
        if not insecure:
            fail(f"listening on {host} needs --tls and --key-file, or --insecure", REFUSED)
        warn(f"listening on {host} without TLS or key, because of --insecure")
    async with (
        open_store(servers, token=token) as store,
        _gateway_of(Gateway(store, name, max_bytes=room, alone=child), serve_metrics) as gateway,
        trio.open_nursery() as nursery,
    ):
        settings = certificate_to_serve() if tls else None
        bound = await nursery.start(
            lambda task_status: serve_gateway(
                gateway, host, port, tls=settings, key=key, task_status=task_status
            )
        )
        logical, at = logical_name(store.record.store_id, name), address_text(host, bound)
        place = f"{scheme_of(tls=tls)}://{logical}"
        if child:
            told = {"place": place, "listen": at, "confs": client_confs(logical, [at], tls=tls)}
            print(json.dumps({**told, "standbyOf": await gateway.standby_of()}), flush=True)
            # Not the end of its standard input: processes that the driver has forked keep that open.
            while os.getppid() == given["driver"]:  # noqa: ASYNC110 - no event tells it
                await trio.sleep(driver_watch_s)
            nursery.cancel_scope.cancel()
        else:
            print(f"dos gateway: listening for {place} at {at}; clients need what this prints:", flush=True)
            reached = address_text(socket.gethostname() if is_wildcard(host) else host, bound)
            more = f"{' --tls' if tls else ''}{f' --key-file {key_file}' if key_file else ''}"
            print(f"dos gateway confs {url} {reached}{more}", flush=True)
            if text := await gateway.standby_of():
                print(f"dos gateway: {text}", flush=True)


def _room_in(max_bytes: str) -> int | None:
    """Return the bytes of `--max-bytes`, None without. Raises ValueError with a message for the user."""
    room = parse_bytes(max_bytes) if max_bytes else None
    if room is not None and room < max_bytes_min:
        least = f"{max_bytes_min // MIB}MiB, of which {deletions_bytes // MIB} are for deletions"
        raise ValueError(f"--max-bytes {max_bytes} is too small: it is at least {least}")
    return room


def _token_in(given: dict[str, Any]) -> bytes:
    """Return the token that a driver gives its gateway, b"" if none."""
    if given.get("tokenFile"):
        return FileToken(given["tokenFile"])
    token: str = given.get("token") or ""
    return token.encode()


@asynccontextmanager
async def _gateway_of(gateway: "Gateway", metrics_at: str | None) -> AsyncIterator["Gateway"]:
    """Serve the figures of the gateway during the block, if an address for them is given."""
    from dos_client.metrics import registry

    loop = trio.lowlevel.current_trio_token()
    # Other threads collect them: the tree is read on its own loop.
    gateway.figures.tree = lambda: answer_of_loop(loop, gateway.tree_figures)
    registry.register(gateway.figures)
    try:
        with metrics_served(metrics_at, hangs=lambda: silence_of(loop), not_ready=gateway.not_ready):
            yield gateway
    finally:
        registry.unregister(gateway.figures)


@command(app, "status")
async def status(call: Call, url: _TreeUrl) -> Report:
    """Show who serves a tree and since when nobody does, what it holds, and what is wrong with it.

    The store alone is read, and its chain is watched for up to 3 s: no gateway is asked, and none needs to
    run.

    Example: dos gateway status dos://h1,h2,h3/orders

    Example: dos gateway status dos://h1,h2,h3/orders --json | jq .roomBytes

    Exit codes: 0 a gateway serves the tree, and nothing is wrong; 1 nobody serves it, or a person has to act;
    2 usage; 3 the store cannot be reached.
    """
    async with _opened(call, url) as (store, name, _):
        found = await read_status(store, name)
    now = now_ms()
    return Report(found.as_json(now), _status_text(found, now), NEGATIVE if found.problems(now) else 0)


def _status_text(found: TreeStatus, now: int) -> str:
    served = f"served by {found.gateway}" if found.grows else "not served"
    lines = [f"tree {found.tree} ({found.host} in URLs): {served}; read from the store alone"]
    if found.sign_ms:
        lines.append(f"  last sign {ago_text(found.sign_ms, now)} ({clock_text(found.sign_ms)})")
    if found.epoch:
        room = found.room_bytes
        left = "no --max-bytes" if room is None else f"{count_text(room)} left for new files (--max-bytes)"
        newest = f", the newest of {clock_text(found.newest_ms)}" if found.files else ""
        live, chain = count_text(found.live_bytes), count_text(found.chain_bytes)
        lines += [
            f"  {found.files} files in {found.directories} directories, {live}{newest}",
            f"  a chain of {chain} in {found.segments} segments; {left}",
        ]
    return "\n".join([*lines, *(f"  {one}" for one in found.problems(now))])


@command(app, "confs")
async def confs(
    call: Call,
    url: _TreeUrl,
    addresses: Annotated[list[str], typer.Argument(metavar="HOST:PORT", help="The gateways of the tree.")],
    tls: Annotated[bool, typer.Option("--tls", help="The gateways serve TLS.")] = False,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key of the gateways.", metavar="FILE")
    ] = None,
    key_at: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where clients exchange the key, by default the first gateway. Better: a name of all of them"
            " in DNS and their certificates; a process that begins while one is down then asks another.",
        ),
    ] = "",
    truststore: Annotated[
        Path, typer.Option(help="Where Java's authorities and that of the gateways are.", metavar="FILE")
    ] = Path("/etc/dos/cacerts"),
) -> Report:
    """Print the settings with which Spark finds the gateways of a tree: lines for spark-defaults.conf.

    Name all gateways that run, in any order: clients try them in turn. With TLS, use the names in their
    certificates: Java looks up the name of an address, and expects that one.

    Spark takes the last line for a key: with several trees, or an HDFS, give all names in one line for
    dfs.nameservices, with commas between them.

    With TLS, they begin with two commands for each machine of Spark. With a key, the lines have it: let only
    those read the file who may use the tree.

    Example: dos gateway confs dos://h1,h2,h3/orders host1:9870 host2:9870 >> spark-defaults.conf

    Example: dos gateway confs dos://h1,h2,h3/orders host1:9870 --tls --key-file gateway.key
    """
    try:
        for one in addresses:
            parse_listen(one, "each gateway")
        if key_at:
            parse_listen(key_at, "--key-at")
    except ValueError as error:
        fail(str(error), REFUSED)
    key = key_in(key_file) if key_file is not None else ""
    if key and not tls:
        fail("--key-file needs --tls: without it, the network can read the key", REFUSED)
    async with _opened(call, url) as (store, name, _):
        logical = logical_name(store.record.store_id, name)
    place = f"{scheme_of(tls=tls)}://{logical}"
    found = client_confs(logical, addresses, tls=tls, key=key, key_at=key_at)
    return Report(found, "\n".join(spark_lines(place, found, truststore=str(truststore) if tls else "")))


@command(app, "ls")
async def ls(call: Call, url: _TreeUrl, path: _TreePath = "/") -> Report:
    """List a directory of a tree: the bytes of each file, or - for a directory. The store alone is read.

    Example: dos gateway ls dos://h1,h2,h3/orders /totals/offsets
    """
    tree = await _tree(call, url)
    try:
        entries = tree.listing(parts_of(path))
    except HadoopError as error:
        return Report(None, code=NEGATIVE, problem=error.text)
    value = [
        {"name": one.name, "isDirectory": one.is_dir, "length": one.length, "modifiedMs": one.mtime_ms}
        for one in entries
    ]
    lines = [
        f"{'-' if one.is_dir else one.length:>12} {one.name}{'/' if one.is_dir else ''}" for one in entries
    ]
    return Report(value, "\n".join(lines))


@command(app, "du")
async def du(call: Call, url: _TreeUrl, path: _TreePath = "/") -> Report:
    """Show how much lies below a path, and how long the chain of the tree is. The store alone is read.

    Example: dos gateway du dos://h1,h2,h3/orders /totals
    """
    tree = await _tree(call, url)
    try:
        below = tree.summary(parts_of(path))
    except HadoopError as error:
        return Report(None, code=NEGATIVE, problem=error.text)
    chain = tree.space.bytes_up_to(tree.position)
    text = f"{path}: {below.length} bytes in {below.files} files and {below.directories} directories"
    value = {**below._asdict(), "liveBytes": tree.space.live_bytes, "chainBytes": chain}
    return Report(value, f"{text}\nthe tree: {tree.space.live_bytes} bytes in a chain of {chain}")


def _tree_in(url: str) -> tuple[DosUrl, str, str]:
    """Return the store, the name of the tree, its directory. Ends the command for another URL."""
    parsed = parsed_url(url)
    if parsed.directory is None or parsed.object is not None:
        fail(f"name the tree in the URL: {DosUrl(parsed.servers)}/NAME", REFUSED)
    return DosUrl(parsed.servers), parsed.directory, directory_of(parsed.directory)


@asynccontextmanager
async def _opened(call: Call, url: str) -> AsyncIterator[tuple[Store, str, str]]:
    servers, name, directory = _tree_in(url)
    async with call.store(str(servers)) as store:
        yield store, name, directory


async def _tree(call: Call, url: str) -> Tree:
    async with _opened(call, url) as (store, name, directory):
        state, tree = await read_tree(store, directory, inspect_whole)
        if state.end is None:
            fail(f"the store has no tree {name}: check its name; a gateway makes it", NEGATIVE)
        return tree
