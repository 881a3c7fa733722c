"""`dos rm`.

Rules of this file: arguments in, an object gone or words why not. One session with one server does it all; it
asks before it changes anything, and claims only when it was told to."""

import sys
from typing import Annotated, Any

import trio
import typer

from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    AsJson,
    TokenFile,
    Url,
    fail,
    parsed_url,
    print_result,
    read_token,
    run,
    tool_writer_id,
)
from dos_client.sessions.connection import Connection, open_connection
from dos_protocol.names import id_text
from dos_protocol.vocabulary import ObjectInfo


def rm(
    url: Url,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: delete it.")] = False,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Delete although a writer claimed the directory: it is fenced."),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Delete an object of one server, for ever. Done when it is gone from stable storage.

    Asks before; where nobody can be asked, say --yes. An object that is being appended is not deleted, and
    nothing of a store: its servers refuse it.

    Example: dos rm dos://127.0.0.1/notes/greetings --yes
    """
    parsed = parsed_url(url, needs="object")
    assert parsed.directory is not None
    assert parsed.object is not None
    if len(parsed.servers) != 1:
        fail("nothing of a store is deleted: name one server that is in no store", REFUSED)
    directory, name = parsed.directory, parsed.object

    async def work() -> dict[str, Any]:
        async with open_connection(
            parsed.servers[0], token=read_token(token_file), client="dos rm"
        ) as connection:
            info = await _look(connection, directory, name, take_over=take_over)
            if not yes and not await _agreed(f"{directory}/{name}", info):
                fail(f"{directory}/{name} is kept", REFUSED)
            if take_over:
                await _claim(connection, directory)
            await connection.delete(name)
            return {"deleted": f"{directory}/{name}", "synced": info.synced, "digest": f"{info.digest:016x}"}

    result = run(work)
    text = f"{result['deleted']} is deleted, it had {result['synced']} bytes"
    print_result(result, text, as_json=as_json)


async def _look(connection: Connection, directory: str, name: str, *, take_over: bool) -> ObjectInfo:
    """What would be deleted; or the end of the program, with nothing changed."""
    if connection.record is not None:
        store_id = id_text(connection.record.store_id)
        fail(f"{connection.address} is in store {store_id}: nothing of a store is deleted", REFUSED)
    opened = await connection.open_directory(directory)
    info = next((one for one in opened.entries if one.name == name), None)
    if info is None:
        fail(f"no object {name} in {directory}", NEGATIVE)
    if opened.epoch and not take_over:
        fail(f"{directory} has a writer, which would be fenced: say --take-over if you mean that", REFUSED)
    return info


async def _agreed(what: str, info: ObjectInfo) -> bool:
    """What the person says. The session lives on meanwhile, however long it takes."""
    if not sys.stdin.isatty():
        fail(f"{what} would be deleted for ever, and nobody is here to ask: say --yes", REFUSED)
    question = f"delete {what}, {info.synced} bytes, for ever?"
    return await trio.to_thread.run_sync(lambda: typer.confirm(question, err=True), abandon_on_cancel=True)


async def _claim(connection: Connection, directory: str) -> None:
    """As it is now: the writer may have claimed again while somebody thought about the question. What nobody
    claimed stays so."""
    held = (await connection.open_directory(directory)).epoch
    if held:
        await connection.claim(directory, held + 1, tool_writer_id(b"rm"))
