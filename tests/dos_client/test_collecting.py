"""Unneeded objects are deleted on every member of a store, also on one that was unavailable or lags; nothing
else goes, and nobody waits for it."""

from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dos_client import Claim, init_store, replace_member
from dos_client.core.claim import Collecting
from dos_client.membership.filling import ReplaceProgress
from dos_client.sessions.connection import open_connection
from dos_protocol.errors import LocalProtocolError
from tests.dos_client.support import (
    ThreadServer,
    caught_up,
    claimed,
    has,
    off,
    on,
    thread_servers,
    until,
    url_of,
)
from tests.support.census import census

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
