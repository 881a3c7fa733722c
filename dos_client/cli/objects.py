"""`dos ls`, `get`, `append`, `rm`, `stat`, `ping`, and the groups of commands: this app and `dos store`.

A command for objects works on one server alone if the URL names one, and on the store if it names several.
"""

import base64
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import trio
import typer

from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    UNREACHABLE,
    Call,
    Report,
    Url,
    command,
    fail,
    is_tool,
    opened,
    parsed_url,
    print_json,
    tool_writer_id,
)
from dos_client.cli.store import store_app
from dos_client.cli.watch import spare_app
from dos_client.live_store import Store
from dos_client.sessions.connection import Connection, line_of, open_connection
from dos_client.urls import DosUrl
from dos_client.writing.claim import Claim, resume
from dos_protocol.errors import DosError
from dos_protocol.limits import payload_bytes_max, u64_max
from dos_protocol.messages import ObjectInfo
from dos_protocol.names import id_text

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Objects on DOS servers.")


@command(app, "ls")
async def ls(
    call: Call,
    url: Url,
    prefix: Annotated[str, typer.Option(help="List only names that begin with TEXT.", metavar="TEXT")] = "",
) -> Report:
    """List directories, or the objects of one directory with their durable sizes.

    For a store, all directories of all servers are listed, and the longest copy of each object. For one
    server, objects that it knows to be corrupt or poisoned are marked.

    Example: dos ls dos://127.0.0.1/app.w0000

    Example: dos ls dos://127.0.0.1 --prefix app.
    """
    parsed = parsed_url(url)
    async with opened(parsed, call.token) as store:
        if parsed.directory is None:
            rows: list[dict[str, Any]] = [{"name": name} for name in await store.list_directories(prefix)]
        else:
            found = await object_rows(store, parsed.directory)
            if not found and parsed.directory not in await store.list_directories(parsed.directory):
                fail(f"directory {parsed.directory} does not exist", NEGATIVE)
            rows = [row for row in found if row["name"].startswith(prefix)]

    def show() -> None:
        for row in rows:
            marks = "".join(f"  {mark}" for mark in ("corrupt", "poisoned") if row.get(mark))
            print(f"{row['synced']:>15} {row['name']}{marks}" if "synced" in row else row["name"])

    return Report(rows, show)


async def object_rows(store: Store, directory: str) -> list[dict[str, Any]]:
    """Return a row for each object of a directory, as `dos ls --json` prints it; none if the directory does
    not exist. Raises QuorumUnavailableError.
    """
    list_copies = _copies_on_one_server if store.of_one_server else _copies_on_members
    objects = await list_copies(store, directory)
    return [_entry(name, copies) for name, copies in sorted(objects.items())]


async def _copies_on_members(store: Store, directory: str) -> dict[str, list[ObjectInfo]]:
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


@command(app, "append")
async def append(
    call: Call,
    url: Url,
    file: Annotated[str, typer.Argument(help="File to append; - is standard input.", metavar="FILE")] = "-",
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Write even if another writer has claimed the directory; it is fenced."
        ),
    ] = False,
) -> Report:
    """Append a file or standard input to an object, and wait until it is durable; on a quorum if the URL
    names a store.

    The command claims the directory. If a program has claimed it before, that program would be fenced, so
    the command refuses; --take-over confirms it. On one server alone, a directory that was never claimed is
    written without a claim.

    Example: echo hello | dos append dos://127.0.0.1/notes/greetings
    """
    parsed = parsed_url(url, needs="object")
    source: BinaryIO = sys.stdin.buffer if file == "-" else _open_file(file)
    if source.isatty():
        call.display.hide()  # lines are typed where it is
    with source:
        async with opened(parsed, call.token) as store:
            result = await _append(store, parsed, source, take_over=take_over)
    return Report(result, f"{result['appended']} bytes appended, {result['size']} durable")


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


@command(app, "stat")
async def stat(
    call: Call,
    url: Url,
    digest_at: Annotated[
        int | None,
        typer.Option(min=0, max=u64_max - 1, help="Also show the digest of the first N bytes.", metavar="N"),
    ] = None,
) -> Report:
    """Show a server, a directory, or an object's sizes and digest on every member.

    Copies of equal size with equal digests hold equal bytes. --digest-at compares the first N bytes of
    copies of different sizes.

    Example: dos stat dos://127.0.0.1/app.w0000/greetings

    Example: dos stat dos://127.0.0.1/app.w0000/greetings --digest-at 5
    """
    parsed = parsed_url(url, needs="object" if digest_at is not None else "")
    async with opened(parsed, call.token) as store:
        rows = await _stat_rows(store, parsed, digest_at)
    text = "\n".join("  ".join(f"{key}={value}" for key, value in row.items()) for row in rows)
    return Report(rows, text)


async def _stat_rows(store: Store, url: DosUrl, digest_at: int | None) -> list[dict[str, Any]]:
    address = {member.server_id: member.address for member in store.record.members}
    if url.directory is None:
        await store.ping()
        return [_server(store, one.address, one.server_id, one.error) for one in store.members()]
    if url.object is None:
        view = await store.inspect(url.directory)
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
    results = await store.stat(url.directory, url.object, digest_at)
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
        | ({} if digest_at is None else {"digest_at": digest_at, "prefix_digest": f"{result.digest:016x}"})
        for server_id, result in results.items()
    ]


def _server(store: Store, address: str, server_id: bytes, error: str) -> dict[str, Any]:
    record = store.server_record if store.of_one_server else store.record
    return {
        "address": address,
        "server_id": id_text(server_id),
        "store_id": id_text(record.store_id) if record is not None else None,
        "generation": record.generation if record is not None else 0,
        "problem": error,
    }


@command(app, "ping")
async def ping(
    call: Call,
    url: Url,
    count: Annotated[int, typer.Option(min=1, max=1_000_000, help="Round trips to make to each server.")] = 3,
) -> Report:
    """Measure the round trip to each server of the URL.

    Exit code 1 if some servers do not answer, 3 if none does.

    Example: dos ping dos://127.0.0.1
    """
    parsed, token = parsed_url(url), call.token
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

    async with trio.open_nursery() as nursery:
        for address in parsed.servers:
            nursery.start_soon(ping_server, address)
    rows.sort(key=lambda row: parsed.servers.index(row["address"]))
    failed = sum("error" in row for row in rows)
    text = "\n".join(
        f"{row['address']}: {row['error']}"
        if "error" in row
        else f"{row['address']}: {row['min_ms']:.2f} / {row['mean_ms']:.2f} / {row['max_ms']:.2f} ms"
        " (minimum / mean / maximum)"
        for row in rows
    )
    return Report(rows, text, UNREACHABLE if failed == len(rows) else NEGATIVE if failed else 0)


_PROGRESS_AFTER_S: Final = 2.0
"""A read that takes less time shows no progress."""


@command(app, "get")
async def get(
    call: Call,
    url: Url,
    offset: Annotated[int, typer.Option(min=0, help="Offset of the first byte.")] = 0,
    max_bytes: Annotated[int | None, typer.Option("--max", min=0, help="Maximum number of bytes.")] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Continue as the object grows, until interrupted. It need not exist yet.",
        ),
    ] = False,
    any_member: Annotated[
        bool,
        typer.Option(
            "--any-member", help="Read what one member holds durably, committed or not. Only for inspection."
        ),
    ] = False,
) -> None:
    """Write an object's committed bytes to standard output: the bytes that a quorum of the store holds,
    verified by digest. Committed bytes are never taken back. From one server alone, write its durable bytes.

    --json prints lines with offset, bytes (the number of bytes) and data (base64).

    Example: dos get dos://127.0.0.1/app.w0000/greetings --offset 100 --max 20

    Example: dos get dos://127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003/app.w0000/greetings --follow
    """
    parsed = parsed_url(url, needs="object")
    if follow and any_member:
        fail("--follow reads committed bytes only; leave out --any-member", REFUSED)
    async with opened(parsed, call.token) as store:
        end = None if max_bytes is None else offset + max_bytes
        pieces = _pieces(store, parsed, offset, end, follow, any_member)
        progress = call.progress(lines_after_s=_PROGRESS_AFTER_S)
        if follow or sys.stdout.isatty():
            progress.hide()
        async with aclosing(pieces):
            async for at, data in pieces:
                await trio.to_thread.run_sync(_write_json if call.as_json else _write, at, data)
                progress.show("read", at + len(data) - offset)


def _write(_: int, data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _write_json(at: int, data: bytes) -> None:
    print_json({"offset": at, "bytes": len(data), "data": base64.b64encode(data).decode()})


async def _pieces(
    store: Store, url: DosUrl, offset: int, end: int | None, follow: bool, any_member: bool
) -> AsyncGenerator[tuple[int, bytes]]:
    assert url.directory is not None
    assert url.object is not None
    position = (url.directory, url.object, offset)
    if any_member:
        stream = _stream_any_member(store, *position, end)
    elif follow:
        stream = store.follow(*position)
    else:
        stream = store.stream(*position, end)
    async with aclosing(stream):
        while end is None or offset < end:
            data = await anext(stream, b"")
            if not data:
                return
            data = data if end is None else data[: end - offset]
            yield offset, data
            offset += len(data)


async def _stream_any_member(
    store: Store, directory: str, name: str, offset: int, end: int | None
) -> AsyncGenerator[bytes]:
    while data := await store.read(
        directory, name, offset, payload_bytes_max if end is None else min(payload_bytes_max, end - offset)
    ):
        yield data
        offset += len(data)


@command(app, "rm", progress=False)
async def rm(
    call: Call,
    url: Url,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Delete even if a writer has claimed the directory; it is fenced."),
    ] = False,
) -> Report:
    """Delete an object of one server, permanently, and wait until it is gone from stable storage.

    Asks for confirmation; --yes is required if standard input is not a terminal. An object that is being
    appended to is not deleted. Servers of a store refuse to delete.

    Example: dos rm dos://127.0.0.1/notes/greetings --yes
    """
    parsed = parsed_url(url, needs="object")
    assert parsed.directory is not None
    assert parsed.object is not None
    if len(parsed.servers) != 1:
        fail("objects of a store cannot be deleted; name one server that is not in a store", REFUSED)
    directory, name = parsed.directory, parsed.object
    async with open_connection(parsed.servers[0], token=call.token, client="dos rm") as connection:
        info = await _check_deletable(connection, directory, name, take_over=take_over)
        if not yes and not await _confirmed(str(parsed), info):
            fail(f"{directory}/{name} was not deleted", REFUSED)
        if take_over:
            await _claim_above(connection, directory)
        await connection.delete(name)
    value = {"deleted": f"{directory}/{name}", "synced": info.synced, "digest": f"{info.digest:016x}"}
    return Report(value, f"{directory}/{name} is deleted; it had {info.synced} bytes")


async def _check_deletable(
    connection: Connection, directory: str, name: str, *, take_over: bool
) -> ObjectInfo:
    """Return the object to delete. End the command, with nothing changed, if it must not be deleted."""
    if connection.record is not None:
        store_id = id_text(connection.record.store_id)
        fail(f"{connection.address} is in store {store_id}: objects of a store cannot be deleted", REFUSED)
    opened = await connection.open_directory(directory)
    info = next((one for one in opened.entries if one.name == name), None)
    if info is None:
        fail(f"directory {directory} has no object {name}", NEGATIVE)
    if opened.epoch and not take_over:
        fail(
            f"directory {directory} has a writer, which would be fenced; pass --take-over to confirm", REFUSED
        )
    return info


async def _confirmed(target: str, info: ObjectInfo) -> bool:
    """Ask for confirmation. In a thread, so that the session is kept alive however long the answer takes."""
    if not sys.stdin.isatty():
        fail(f"{target} was not deleted: standard input is not a terminal; pass --yes to confirm", REFUSED)
    question = f"delete {target}, {info.synced} bytes, permanently?"
    return await trio.to_thread.run_sync(lambda: typer.confirm(question, err=True), abandon_on_cancel=True)


async def _claim_above(connection: Connection, directory: str) -> None:
    """Claim the directory above its present epoch. One that was never claimed stays unclaimed."""
    # read again: a writer may have claimed the directory while the question to the user was open
    epoch = (await connection.open_directory(directory)).epoch
    if epoch:
        await connection.claim(directory, epoch + 1, tool_writer_id(b"rm"))


app.add_typer(store_app, name="store")
store_app.add_typer(spare_app, name="spare")
