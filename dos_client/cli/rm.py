"""`dos rm`: delete an object of one server, in one session.

The command asks for confirmation before it changes anything, and claims the directory only with --take-over.
"""

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
from dos_protocol.messages import ObjectInfo
from dos_protocol.names import id_text


def rm(
    url: Url,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Delete even if a writer has claimed the directory; it is fenced."),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
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

    async def work() -> dict[str, Any]:
        async with open_connection(
            parsed.servers[0], token=read_token(token_file), client="dos rm"
        ) as connection:
            info = await _check_deletable(connection, directory, name, take_over=take_over)
            if not yes and not await _confirmed(str(parsed), info):
                fail(f"{directory}/{name} was not deleted", REFUSED)
            if take_over:
                await _claim(connection, directory)
            await connection.delete(name)
            return {"deleted": f"{directory}/{name}", "synced": info.synced, "digest": f"{info.digest:016x}"}

    result = run(work)
    text = f"{result['deleted']} is deleted; it had {result['synced']} bytes"
    print_result(result, text, as_json=as_json)


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


async def _claim(connection: Connection, directory: str) -> None:
    """Claim the directory above its present epoch, read again here: the writer may have claimed it while the
    question was open. A directory that was never claimed stays unclaimed.
    """
    epoch = (await connection.open_directory(directory)).epoch
    if epoch:
        await connection.claim(directory, epoch + 1, tool_writer_id(b"rm"))
