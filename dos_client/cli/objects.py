"""`dos ls`, `append`, `stat` and `ping`, and the groups of commands: this file's app and `dos store`.

A command for objects works on one server alone if the URL names one, and on the store if it names several.
`dos get` and `dos rm` are in `get` and `rm`, the commands of `dos store` in `store`, `status` and `repair`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import trio
import typer

from dos_client.cli import directories
from dos_client.cli.get import get
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    UNREACHABLE,
    AsJson,
    TokenFile,
    Url,
    fail,
    fill_help,
    is_tool,
    opened,
    parsed_url,
    print_json,
    print_result,
    read_token,
    run,
    tool_writer_id,
)
from dos_client.cli.repair import recover, repair, scrub, verify
from dos_client.cli.rm import rm
from dos_client.cli.status import status
from dos_client.cli.store import add, init, replace
from dos_client.cli.watch import move, spare_app, watch
from dos_client.live_store import Store
from dos_client.sessions.connection import open_connection
from dos_client.sessions.dialling import line_of
from dos_client.urls import DosUrl
from dos_client.writing.claim import Claim
from dos_client.writing.resuming import resume
from dos_protocol.errors import DosError
from dos_protocol.limits import payload_bytes_max, u64_max
from dos_protocol.messages import ObjectInfo, StatResult
from dos_protocol.names import id_text

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Objects on DOS servers.")
store_app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Create a store of several servers, show it, change its members, compare and repair the copies.\n\n"
    "Example: dos store init dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003",
)
app.add_typer(store_app, name="store")
app.command()(get)
app.command()(rm)
_OF_STORE: tuple[Callable[..., None], ...] = (
    add,
    init,
    move,
    replace,
    verify,
    scrub,
    repair,
    recover,
    status,
)
for _command in _OF_STORE:
    store_app.command()(_command)
store_app.command("ls")(directories.ls)
store_app.command(context_settings={"auto_envvar_prefix": "DOS_WATCH"})(watch)
store_app.add_typer(spare_app, name="spare")


@app.command()
def ls(
    url: Url,
    prefix: Annotated[str, typer.Option(help="List only names that begin with TEXT.", metavar="TEXT")] = "",
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """List directories, or the objects of one directory with their durable sizes.

    For a store, all directories of all servers are listed, and the longest copy of each object. For one
    server, objects that it knows to be corrupt or poisoned are marked.

    Example: dos ls dos://127.0.0.1/app.w0000

    Example: dos ls dos://127.0.0.1 --prefix app.
    """
    parsed = parsed_url(url)

    async def work() -> list[dict[str, Any]]:
        async with opened(parsed, read_token(token_file)) as store:
            if parsed.directory is None:
                return [{"name": name} for name in await store.list_directories(prefix)]
            found = await object_rows(store, parsed.directory)
            if not found and parsed.directory not in await store.list_directories(parsed.directory):
                fail(f"directory {parsed.directory} does not exist", NEGATIVE)
            return [row for row in found if row["name"].startswith(prefix)]

    rows = run(work)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        marks = "".join(f"  {mark}" for mark in ("corrupt", "poisoned") if row.get(mark))
        print(f"{row['synced']:>15} {row['name']}{marks}" if "synced" in row else row["name"])


async def object_rows(store: Store, directory: str) -> list[dict[str, Any]]:
    """Return a row for each object of a directory, as `dos ls --json` prints it; none if the directory does
    not exist. Raises QuorumUnavailableError.
    """
    list_copies = _copies_on_one_server if store.of_one_server else _copies_on_members
    objects = await list_copies(store, directory)
    return [_entry(name, copies) for name, copies in sorted(objects.items())]


async def _copies_on_members(store: Store, directory: str) -> dict[str, list[ObjectInfo]]:
    """Return the copies of each object on the sound members."""
    copies: dict[str, list[ObjectInfo]] = {}
    for objects in (await store.inspect(directory)).answers.values():
        for name, info in objects.items():
            copies.setdefault(name, []).append(info)
    return copies


async def _copies_on_one_server(store: Store, directory: str) -> dict[str, list[ObjectInfo]]:
    """Return each object of the server, also damaged ones: there is no other copy to list."""
    (member,) = store.record.members
    return {info.name: [info] for info in (await store.reopened(member, directory)).entries}


def _entry(name: str, copies: list[ObjectInfo]) -> dict[str, Any]:
    best = max(copies, key=lambda info: info.synced)
    entry = {"name": name, "synced": best.synced, "digest": f"{best.digest:016x}", "copies": len(copies)}
    marks = {"corrupt": best.corrupt, "poisoned": best.poisoned}
    return entry | {mark: True for mark, is_so in marks.items() if is_so}


@app.command()
def append(
    url: Url,
    file: Annotated[str, typer.Argument(help="File to append; - is standard input.", metavar="FILE")] = "-",
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Write even if another writer has claimed the directory; it is fenced."
        ),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Append a file or standard input to an object, and wait until it is durable; on a quorum if the URL
    names a store.

    The command claims the directory. If a program has claimed it before, that program would be fenced, so
    the command refuses; --take-over confirms it. On one server alone, a directory that was never claimed is
    written without a claim.

    Example: echo hello | dos append dos://127.0.0.1/notes/greetings
    """
    parsed = parsed_url(url, needs="object")
    source: BinaryIO = sys.stdin.buffer if file == "-" else _open_file(file)

    async def work() -> dict[str, Any]:
        async with opened(parsed, read_token(token_file)) as store:
            return await _append(store, parsed, source, take_over=take_over)

    with source:
        result = run(work)
    print_result(result, f"{result['appended']} bytes appended, {result['size']} durable", as_json=as_json)


def _open_file(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb")
    except OSError as error:
        fail(f"cannot read {name}: {error.strerror}", REFUSED)


def _read_available(source: BinaryIO) -> bytes:
    """Return the bytes that can be read now, b"" at the end.

    Unbuffered: a line typed at a terminal is returned at once, and the thread that an interrupted command
    leaves behind holds no lock of a buffer.
    """
    data: bytes = getattr(source, "raw", source).read(payload_bytes_max)
    return data


async def _append(store: Store, url: DosUrl, source: BinaryIO, *, take_over: bool) -> dict[str, Any]:
    assert url.directory is not None
    assert url.object is not None
    if store.of_one_server and not (await store.inspect(url.directory)).epoch_seen:
        claim = await store.unclaimed(url.directory)
    else:
        claim = await _claim(store, url.directory, take_over=take_over)
    async with claim:
        writer = await resume(store, claim, url.object)
        before = writer.size
        while data := await trio.to_thread.run_sync(_read_available, source, abandon_on_cancel=True):
            writer.append(data)
            await writer.wait_room()
        await writer.wait_synced(writer.size)
        return {"appended": writer.size - before, "size": writer.size, "digest": f"{writer.digest:016x}"}


async def _claim(store: Store, directory: str, *, take_over: bool) -> Claim:
    view = await store.inspect(directory)
    foreign = any(epoch and not is_tool(writer) for epoch, writer in view.epochs.values())
    if foreign and not take_over:
        fail(
            f"directory {directory} has another writer, which would be fenced; pass --take-over to confirm",
            REFUSED,
        )
    return await store.claim(directory, view.epoch_seen + 1, tool_writer_id(b"append"))


@app.command()
def stat(
    url: Url,
    digest_at: Annotated[
        int | None,
        typer.Option(min=0, max=u64_max - 1, help="Also show the digest of the first N bytes.", metavar="N"),
    ] = None,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Show a server, a directory, or an object's sizes and digest on every member.

    Copies of equal size with equal digests hold equal bytes. --digest-at compares the first N bytes of
    copies of different sizes.

    Example: dos stat dos://127.0.0.1/app.w0000/greetings

    Example: dos stat dos://127.0.0.1/app.w0000/greetings --digest-at 5
    """
    parsed = parsed_url(url, needs="object" if digest_at is not None else "")

    async def work() -> list[dict[str, Any]]:
        async with opened(parsed, read_token(token_file)) as store:
            address = {member.server_id: member.address for member in store.record.members}
            if parsed.directory is None:
                await store.ping()
                return [_server(store, one.address, one.server_id, one.error) for one in store.members()]
            if parsed.object is None:
                view = await store.inspect(parsed.directory)
                return [
                    {
                        "address": address[server_id],
                        "epoch": epoch,
                        "writer_id": id_text(writer_id),
                        "objects": len(view.answers.get(server_id, {})),
                        "bytes": sum(info.synced for info in view.answers.get(server_id, {}).values()),
                    }
                    for server_id, (epoch, writer_id) in view.epochs.items()
                ]
            results = await store.stat(parsed.directory, parsed.object, digest_at)
            return [
                {
                    "address": address[server_id],
                    "name": result.info.name,
                    "received": result.info.received,
                    "synced": result.info.synced,
                    "digest": f"{result.info.digest:016x}",
                    "appending": result.info.appending,
                    "corrupt": result.info.corrupt,
                    "poisoned": result.info.poisoned,
                }
                | ({} if digest_at is None else {"digest_at": digest_at, "prefix_digest": _hex(result)})
                for server_id, result in results.items()
            ]

    rows = run(work)
    text = "\n".join("  ".join(f"{key}={value}" for key, value in row.items()) for row in rows)
    print_result(rows, text, as_json=as_json)


def _hex(result: StatResult) -> str:
    return f"{result.digest:016x}"


def _server(store: Store, address: str, server_id: bytes, error: str) -> dict[str, Any]:
    record = store.server_record if store.of_one_server else store.record
    return {
        "address": address,
        "server_id": id_text(server_id),
        "store_id": id_text(record.store_id) if record is not None else None,
        "generation": record.generation if record is not None else 0,
        "problem": error,
    }


@app.command()
def ping(
    url: Url,
    count: Annotated[int, typer.Option(min=1, max=1_000_000, help="Round trips to make to each server.")] = 3,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Measure the round trip to each server of the URL.

    Exit code 1 if some servers do not answer, 3 if none does.

    Example: dos ping dos://127.0.0.1
    """
    parsed = parsed_url(url)
    token = read_token(token_file)
    rows: list[dict[str, Any]] = []

    async def ping_server(address: str) -> None:
        try:
            async with open_connection(address, token=token, client="dos ping") as connection:
                times = [await connection.ping() for _ in range(count)]
        except DosError as error:
            rows.append({"address": address, "error": line_of(error)})
        else:
            milliseconds = [1_000 * seconds for seconds in times]
            rows.append(
                {
                    "address": address,
                    "server_id": id_text(connection.server_id),
                    "count": count,
                    "min_ms": min(milliseconds),
                    "mean_ms": sum(milliseconds) / count,
                    "max_ms": max(milliseconds),
                }
            )

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            for address in parsed.servers:
                nursery.start_soon(ping_server, address)

    run(work)
    rows.sort(key=lambda row: parsed.servers.index(row["address"]))
    if as_json:
        print_json(rows)
    for row in rows if not as_json else []:
        print(
            f"{row['address']}: {row['error']}"
            if "error" in row
            else f"{row['address']}: {row['min_ms']:.2f} / {row['mean_ms']:.2f} / {row['max_ms']:.2f} ms"
            " (minimum / mean / maximum)"
        )
    failed = sum("error" in row for row in rows)
    if failed:
        raise typer.Exit(UNREACHABLE if failed == len(rows) else NEGATIVE)


for _group in (app, store_app):
    fill_help(_group)
