"""Deleting an object of one server: from a session, from a claim, from threads, and with `dos rm`. Unneeded
objects are deleted on every member of a store, also on one that was unavailable or lags; nothing else goes.
"""

import json
import os
import pty
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dos_client import Claim, blocking, connect, replace_member
from dos_client.core.claim import Collecting
from dos_client.membership.filling import ReplaceProgress
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
from tests.dos_client.support import (
    ThreadServer,
    caught_up,
    claimed,
    content_of,
    damage,
    has,
    new_writer,
    off,
    on,
    thread_servers,
    until,
    url_of,
)
from tests.dos_client.test_cli import answered, examples_of_command, refused
from tests.support.census import census


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


NAMES = st.sampled_from("abcdef")


def old(name: str) -> bool:
    return name.startswith("old")


@given(st.lists(st.tuples(st.sampled_from(["entered", "made", "gone", "postpone"]), NAMES)), st.sets(NAMES))
def test_only_garbage_that_may_be_there_is_next_and_all_of_it_once(
    events: list[tuple[str, str]], garbage: set[str]
) -> None:
    collecting, there, later = Collecting(), set[str](), set[str]()
    for what, name in events:
        if what == "entered":
            collecting.entered([name, "z"])
            there, later = {name, "z"}, set()
        elif what == "made":
            collecting.made(name)
            there.add(name)
            later.discard(name)
        elif what == "gone":
            collecting.gone(name)
            there.discard(name)
        else:
            collecting.postpone(name)
            later.add(name)
        expected = sorted((there - later) & garbage)
        assert collecting.next(garbage.__contains__) == (expected[0] if expected else None)


async def names(server: ThreadServer) -> set[str]:
    async with open_connection(server.location) as connection:
        return {info.name for info in (await connection.open_directory("d")).entries}


async def until_names(servers: list[ThreadServer], expected: set[str]) -> None:
    with trio.fail_after(20):
        while [await names(server) for server in servers] != [expected] * len(servers):  # noqa: ASYNC110 - from outside
            await trio.sleep(0.02)


async def write(claim: Claim, name: str, data: bytes) -> None:
    writer = claim.open_object(name)
    await writer.wait_synced(writer.append(data))
    writer.seal()


async def make(three: list[ThreadServer]) -> None:
    await init_store("dos://" + ",".join(server.location for server in three))


@pytest.mark.trio
async def test_garbage_continues_all_members_and_the_rest_stays(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-5, P-9
    await make(three)
    async with claimed(three) as (store, claim):
        for name in ("old.1", "old.2", "new"):
            await write(claim, name, b"x" * 70_000)
        claim.collect(old)
        await until_names(three, {"new"})
        await write(claim, "old.3", b"later")
        claim.collect(old)
        await until_names(three, {"new"})
        assert store.counts.collected_objects >= 8
        for server in three:
            await has(server, "d", "new", b"x" * 70_000)


@pytest.mark.trio
async def test_a_claim_remembers_nothing_of_deleted_objects(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-9
    await make(three)
    async with claimed(three) as (_, claim):
        sizes = []
        for number in range(1, 13):
            await write(claim, f"old.{number}", b"x")
            claim.collect(old)
            if number % 6 == 0:
                assert await claim.wait_collected(20)
                sizes.append(sum(census([claim]).values()))
        assert sizes[0] == sizes[1], "entries of the containers that the claim can reach"


@pytest.mark.trio
async def test_what_is_being_written_is_no_garbage(three: list[ThreadServer]) -> None:
    await make(three)
    async with claimed(three) as (_, claim):
        await write(claim, "old.1", b"x")
        writer = claim.open_object("old.2")
        with pytest.raises(LocalProtocolError, match="being written"):
            claim.collect(old)
        await writer.wait_synced(writer.append(b"y"))
        assert await names(three[0]) >= {"old.1"}, "nothing has changed"


@pytest.mark.trio
async def test_a_member_that_was_unavailable_is_swept_when_it_is_back(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-10
    await make(three)
    async with claimed(three) as (store, claim):
        await write(claim, "old.1", b"x" * 300_000)
        await caught_up(store)
        await off(three[2])
        await write(claim, "old.2", b"y" * 300_000)
        await write(claim, "new", b"z")
        claim.collect(old)
        await until_names(three[:2], {"new"})
        await on(three[2])
        await until_names(three, {"new"})


@pytest.mark.trio
async def test_the_next_writer_sweeps_what_the_last_one_left(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-10
    await make(three)
    async with claimed(three) as (store, claim):
        for name in ("old.1", "new"):
            await write(claim, name, b"x")
        await caught_up(store)
    async with claimed(three, epoch=2) as (_, claim):
        claim.collect(old)
        await until_names(three, {"new"})


@pytest.mark.trio
async def test_a_member_that_is_filled_with_what_is_garbage_then_is_let_go(three: list[ThreadServer]) -> None:
    """Its copy is on its way from another member when nobody needs it any more."""
    # EVIDENCE-OF: P-10
    await make(three)
    await off(three[2])
    async with claimed(three) as (_, claim):
        await write(claim, "old.1", bytes(range(256)) * 60_000)
        await on(three[2])
        link = next(one for one in claim.links() if one.member.address == three[2].location)
        await until(lambda: link.copies.held.held != set() or link.connection is not None, "it is back")
        claim.collect(old)
        await write(claim, "new", b"z")
        await until_names(three, {"new"})


@pytest.mark.trio
async def test_a_member_is_replaced_while_a_writer_takes_objects_away(
    three: list[ThreadServer], tmp_path: Path
) -> None:
    """The tool fills the new member with what old members hold, and finds some of it gone under its hands."""
    # EVIDENCE-OF: P-10
    await make(three)
    with thread_servers(tmp_path / "new", 1) as (new,):
        async with claimed(three) as (store, claim):
            for number in range(20):
                await write(claim, f"old.{number:02}", bytes([number]) * 400_000)
            await write(claim, "new", b"z" * 400_000)
            await caught_up(store)
        await off(three[2])
        begun = trio.Event()

        def on_progress(progress: ReplaceProgress) -> None:
            if progress.bytes_done > 1_000_000:
                begun.set()

        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def take_away() -> None:
                await begun.wait()
                async with claimed(three, epoch=2) as (_, claim):
                    claim.collect(old)
                    await until_names([three[0], three[1], new], {"new"})

            url = url_of(three)
            await replace_member(url, old=three[2].location, new=new.location, progress=on_progress)
            begun.set()
        await has(new, "d", "new", b"z" * 400_000)
