"""Deleting an object of one server: from a session, from a claim, from threads, and with `dos rm`."""

import json
import os
import pty
import subprocess
import sys
from contextlib import aclosing

import pytest
import trio

from dos_client import blocking, connect
from dos_client.membership.founding import init_store
from dos_client.sessions.connection import open_connection
from dos_protocol.errors import (
    BeingAppendedError,
    ClosedError,
    LocalProtocolError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
)
from tests.dos_client.support import ThreadServer, claimed, content_of, damage, new_writer, until
from tests.dos_client.test_cli import answered, examples_of_command, refused


async def epoch_of(server: ThreadServer) -> int:
    async with open_connection(server.location) as connection:
        return (await connection.open_directory("app")).epoch


@pytest.mark.trio
async def test_a_session_deletes_and_reports_what_it_may_not(alone: ThreadServer) -> None:
    # EVIDENCE-OF: P-8
    async with open_connection(alone.location) as connection, connect(alone.url) as store:
        async with await store.unclaimed("d") as claim:
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"hello"))
        await connection.open_directory("d")
        with pytest.raises(NotFoundError):
            await connection.delete("y")
        await connection.delete("x")
        with pytest.raises(NotFoundError):
            await connection.stat("x")
        await connection.claim("d", 1, new_writer())
        async with open_connection(alone.location) as other:
            await other.open_directory("d")
            with pytest.raises(RefusedError, match="claimed by a writer"):
                await other.delete("x")


@pytest.mark.trio
async def test_a_claim_deletes_what_it_does_not_write_and_may_begin_it_anew(alone: ThreadServer) -> None:
    async with connect(alone.url) as store, await store.claim("d", 1, new_writer()) as claim:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"hello"))
        with pytest.raises(LocalProtocolError, match="in use by this claim"):
            await claim.delete("x")
    async with connect(alone.url) as store:
        claim = await store.claim("d", 2, new_writer())
        async with claim:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim.delete, "x")
                for _ in range(2):  # it has asked, and the answer needs more turns than that
                    await trio.lowlevel.checkpoint()
                with pytest.raises(LocalProtocolError, match="being deleted"):
                    claim.open_object("x")
            assert [list(objects) for objects in claim.answers.values()] == [[]]
            with pytest.raises(NotFoundError):
                await claim.delete("x")
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"anew"))
            assert await content_of(alone, "d", "x") == b"anew"
        with pytest.raises(ClosedError):
            await claim.delete("x")


@pytest.mark.trio
async def test_what_a_claim_is_given_to_delete_may_be_appended_by_nobody(alone: ThreadServer) -> None:
    async with connect(alone.url) as store, await store.unclaimed("d") as claim:
        with trio.socket.socket() as stream:
            await stream.connect(alone.address)
            await stream.send(b"\0\0\0\2ud" + b"\0\0\0\4ax\t0")
            replies = b""
            while len(replies) < 12:
                replies += await stream.recv(100)
            assert replies == b"\0\0\0\2ok" * 2
            with pytest.raises(BeingAppendedError):
                await claim.delete("x")


@pytest.mark.trio
async def test_of_a_store_nothing_is_deleted_at_once_nor_by_a_stranger(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-5
    await init_store("dos://" + ",".join(server.location for server in three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"kept"))
        with pytest.raises(LocalProtocolError, match="belongs to a store"):
            await claim.delete("y")
        for server in three:
            async with open_connection(server.location) as connection:
                await connection.open_directory("d")
                with pytest.raises(UnsupportedError, match="its copies may count"):
                    await connection.delete("x")
    url = "dos://" + ",".join(server.location for server in three)
    assert "cannot be deleted" in await trio.to_thread.run_sync(refused, 2, "rm", f"{url}/d/x", "-y")
    message = await trio.to_thread.run_sync(refused, 2, "rm", f"{three[0].url}/d/x", "-y", "--take-over")
    assert "is in store" in message
    async with open_connection(three[0].location) as connection:
        assert (await connection.open_directory("d")).epoch == 1, "nobody was fenced for it"


@pytest.mark.trio
@pytest.mark.parametrize("size", [100, 70_000])
async def test_a_follower_is_not_given_bytes_of_another_object_of_the_name(
    alone: ThreadServer, size: int
) -> None:
    # EVIDENCE-OF: P-2
    async with connect(alone.url) as store, open_connection(alone.location) as connection:
        await connection.open_directory("d")
        async with await store.unclaimed("d") as claim:
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"a" * size))
        given = b""
        async with aclosing(store.follow("d", "x")) as stream, trio.open_nursery() as nursery:
            while len(given) < size:
                given += await anext(stream)

            @nursery.start_soon
            async def go_on() -> None:
                nonlocal given
                given += await anext(stream)

            await connection.delete("x")
            async with await store.unclaimed("d") as claim:
                writer = claim.open_object("x")
                await writer.wait_synced(writer.append(b"b" * size * 2))
            (member,) = store.record.members
            await until(
                lambda: store.damage.avoid(member.server_id, "d", "x"), "it noted that this is another object"
            )
            nursery.cancel_scope.cancel()
        assert given == b"a" * size


@pytest.mark.trio
async def test_what_was_read_ahead_of_an_object_is_not_given_of_its_successor(alone: ThreadServer) -> None:
    # EVIDENCE-OF: P-2
    piece = 1 << 18
    async with connect(alone.url) as store, await store.unclaimed("d") as claim:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"a" * 6 * piece))
    async with connect(alone.url) as store, await store.unclaimed("d") as claim:
        for number in range(3):
            assert await claim.read("x", number * piece, piece) == b"a" * piece
        await claim.delete("x")
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"b" * 6 * piece))
        assert await claim.read("x", 3 * piece, piece) == b"b" * piece


def test_a_claim_deletes_from_a_thread(alone: ThreadServer) -> None:
    with blocking.connect(alone.url) as store:
        with store.unclaimed("d") as claim:
            writer = claim.open_object("x")
            writer.wait_synced(writer.append(b"hello"))
        with store.unclaimed("d") as claim:
            claim.delete("x")
            with pytest.raises(NotFoundError):
                claim.delete("x")


def test_objects_are_deleted_from_the_command_line(alone: ThreadServer) -> None:
    url = f"{alone.url}/notes"
    for name in "xyz":
        answered("append", f"{url}/{name}", stdin=b"hello")
    assert "pass --yes" in refused(2, "rm", f"{url}/x")
    assert answered("rm", f"{url}/x", "--yes") == b"notes/x is deleted; it had 5 bytes\n"
    assert "directory notes has no object x" in refused(1, "rm", f"{url}/x", "--yes")
    assert json.loads(answered("rm", f"{url}/y", "-y", "--json"))["deleted"] == "notes/y"
    assert answered("ls", url).split() == [b"5", b"z"]
    assert "must name an object" in refused(2, "rm", url)


def test_the_example_of_rm_works(alone: ThreadServer) -> None:
    answered("append", f"{alone.url}/notes/greetings", stdin=b"hello")
    (example,) = examples_of_command("rm", alone)
    answered(*example)
    assert answered("ls", f"{alone.url}/notes") == b""


def test_what_a_writer_claimed_is_deleted_only_by_taking_over_even_if_it_is_damaged(
    alone: ThreadServer,
) -> None:
    # EVIDENCE-OF: P-4

    async def write() -> None:
        async with connect(alone.url) as store, await store.claim("app", 7, new_writer()) as claim:
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(bytes(5_000)))
        await damage(alone, "app", "x")

    trio.run(write)
    assert "pass --take-over to confirm" in refused(2, "rm", f"{alone.url}/app/x", "-y")
    assert trio.run(epoch_of, alone) == 7
    answered("rm", f"{alone.url}/app/x", "-y", "--take-over")
    assert trio.run(epoch_of, alone) == 8
    assert answered("ls", f"{alone.url}/app") == b""
    answered("append", f"{alone.url}/app/x", stdin=b"hello")  # its last writer was this very tool
    assert answered("get", f"{alone.url}/app/x") == b"hello"


def test_nobodys_directory_stays_nobodys_when_it_is_taken_over(alone: ThreadServer) -> None:
    answered("append", f"{alone.url}/app/x", stdin=b"hello")
    answered("rm", f"{alone.url}/app/x", "-y", "--take-over")
    assert trio.run(epoch_of, alone) == 0


def test_what_a_program_claimed_on_one_server_is_appended_to_only_by_taking_over(alone: ThreadServer) -> None:
    # EVIDENCE-OF: P-4

    async def write() -> None:
        async with connect(alone.url) as store, await store.claim("app", 7, new_writer()) as claim:
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"hello"))

    trio.run(write)
    message = refused(2, "append", f"{alone.url}/app/x", stdin=b"!")
    assert "app has another writer, which would be fenced; pass --take-over" in message
    answered("append", f"{alone.url}/app/x", "--take-over", stdin=b"!")
    assert answered("get", f"{alone.url}/app/x") == b"hello!"


@pytest.mark.process
@pytest.mark.parametrize(("typed", "kept"), [(b"n\n", True), (b"\n", True), (b"y\n", False)])
def test_on_a_terminal_it_asks(alone: ThreadServer, typed: bytes, kept: bool) -> None:
    answered("append", f"{alone.url}/notes/x", stdin=b"hello")
    program = "from dos_client.cli.objects import app; app(prog_name='dos')"
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed)
        done = subprocess.run(
            [sys.executable, "-c", program, "rm", f"{alone.url}/notes/x"],
            stdin=theirs,
            capture_output=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == (2 if kept else 0), done
    assert f"delete {alone.url}/notes/x, 5 bytes, permanently? [y/N]".encode() in done.stderr
    assert answered("ls", f"{alone.url}/notes").split() == ([b"5", b"x"] if kept else [])
