"""A member answers a claim, and its disk loses what it had before the take-over is done."""

import re
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
import trio

from dos_client import Claim, QuorumUnavailableError, init_store
from dos_client.core.claim import has_lost_objects
from dos_client.errors import MissingDataError
from dos_client.limits import milestone_bytes, window_bytes_max
from dos_client.live_store import Store
from dos_client.reading.damage import CopyFault
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.digests import prefix_digest
from dos_protocol.messages import ObjectInfo
from tests.dos_client.support import (
    ThreadServer,
    caught_up,
    claimed,
    copy_disk,
    damage,
    has,
    off,
    on,
    until,
    url_of,
)
from tests.sim.bugs import planted

CONTENT = bytes(range(256)) * 20
MUCH = bytes(1 << 20)


@asynccontextmanager
async def written(
    servers: list[ThreadServer], content: bytes = CONTENT
) -> AsyncGenerator[tuple[Store, Claim, ObjectWriter]]:
    """A new store whose members all have this in the object x, and its writer, of epoch 1."""
    await init_store(url_of(servers))
    async with claimed(servers) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(content))
        await caught_up(store)
        for server in servers:
            await has(server, "d", "x", content)
        yield store, claim, writer


@pytest.mark.trio
@pytest.mark.parametrize("went_back", [False, True], ids=["damaged", "went back"])
async def test_bytes_that_only_a_member_damaged_since_the_claim_had_are_for_a_new_claim_to_judge(
    three: list[ThreadServer], went_back: bool
) -> None:
    """One member had them, so they were never acknowledged: they are not "lost", and the next claim finds
    two sound members without them (R4)."""
    async with written(three, b"a") as (_, _, writer):
        image = await copied(three[2])
        await off(*three[:2])
        writer.append(CONTENT)
        await has(three[2], "d", "x", b"a" + CONTENT)
    await on(*three[:2])
    async with claimed(three, epoch=2) as (store, claim):
        assert await claim.wait_all(20)
        if went_back:
            await put_back_an_older_copy(three[2], image)
        else:
            await off(three[2])
            await damage(three[2], "d", "x", notice=False)
            await on(three[2])
        with (
            pytest.raises(QuorumUnavailableError, match="take over again with a new claim"),
            trio.fail_after(40),
        ):
            await claim.settle("x", 1 + len(CONTENT), prefix_digest(b"a" + CONTENT))
        if not went_back:
            noted = store.damage.of_member(bytes.fromhex(three[2].server_id))
            assert noted is not None
            assert noted.why is CopyFault.DAMAGED, "what its server says of it, not only that it differs"
    async with claimed(three, epoch=3) as (_, claim):
        assert {objects["x"].synced for objects in claim.answers.values()} == {1}
        await claim.settle("x", 1, prefix_digest(b"a"))


@pytest.mark.trio
async def test_bytes_that_only_a_member_that_left_has_are_for_a_new_claim_to_judge(
    three: list[ThreadServer],
) -> None:
    """A claim does not wait for the machine of that member: two of three are enough to decide without it."""
    *stay, leaves = three
    async with written(three, b"a") as (_, _, writer):
        await off(*stay)
        writer.append(CONTENT)
        await has(leaves, "d", "x", b"a" + CONTENT)
    await on(*stay)
    async with claimed(three, epoch=2) as (_, claim), trio.open_nursery() as nursery:
        assert await claim.wait_all(20)
        await off(*stay)
        size = 1 + len(CONTENT)

        async def change_places() -> None:
            await until(lambda: "x" in claim.targets, "the take-over has begun")
            await until(lambda: size in claim.targets["x"].sizes.values(), "its copy is compared")
            await off(leaves)
            await on(*stay)

        nursery.start_soon(change_places)
        with (
            trio.fail_after(60),
            pytest.raises(QuorumUnavailableError, match="take over again with a new claim"),
        ):
            await claim.settle("x", size, prefix_digest(b"a" + CONTENT))
    async with claimed(stay, epoch=3) as (_, claim):
        await claim.settle("x", 1, prefix_digest(b"a"))


@pytest.mark.trio
@pytest.mark.parametrize("bug", [None, "damaged_copies_say_what_they_held"])
async def test_a_copy_found_damaged_does_not_say_that_what_an_absent_member_has_is_lost(
    three: list[ThreadServer], bug: str | None
) -> None:
    """R4. One member lacks the bytes, one shows its damage when it is compared, the third is away and has
    them. No new claim covers it: the damage was found in the session that answered. With the rule broken they
    are called lost."""
    lacks, damaged, away = three
    await init_store(url_of(three))
    async with claimed(three, epoch=1) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"a"))
        await has(lacks, "d", "x", b"a")
        await off(lacks)
        await writer.wait_synced(writer.append(CONTENT))
        await has(damaged, "d", "x", b"a" + CONTENT)
        await has(away, "d", "x", b"a" + CONTENT)
        await off(away)
        writer.append(b"and what counts for nothing")
        await has(damaged, "d", "x", b"a" + CONTENT + b"and what counts for nothing")
    await on(lacks)
    with planted(bug):
        async with claimed(three, epoch=2) as (_, claim), trio.open_nursery() as nursery:
            assert len(claim.answers) == 2
            await damage(damaged, "d", "x", notice=False)

            async def bring_back() -> None:
                await until(
                    lambda: "x" in claim.targets and bool(claim.targets["x"].spoiled), "the damage is found"
                )
                await on(away)

            if bug is None:
                nursery.start_soon(bring_back)
            with (
                trio.fail_after(40),
                pytest.raises(MissingDataError) if bug is not None else nullcontext(),
            ):
                await claim.settle("x", 1 + len(CONTENT), prefix_digest(b"a" + CONTENT))


@pytest.mark.trio
@pytest.mark.parametrize("offset", [1, 100])
async def test_what_a_claim_reads_is_not_short_while_members_that_have_more_are_unavailable(
    three: list[ThreadServer], offset: int
) -> None:
    """The end of the one member that is there is not the object's end."""
    async with written(three, b"a") as (_, _, writer):
        await off(three[2])
        await writer.wait_synced(writer.append(CONTENT))
    await on(three[2])
    async with claimed(three, epoch=2) as (_, claim):
        assert await claim.wait_all(20)
        await off(*three[:2])
        with pytest.raises(QuorumUnavailableError), trio.fail_after(40):
            await claim.read("x", offset, 100)
        await on(*three[:2])
        assert await claim.read("x", offset, 100) == (b"a" + CONTENT)[offset : offset + 100]


def test_an_answer_is_taken_back_by_less_by_damage_and_by_absence_and_not_by_more() -> None:
    first = {"x": ObjectInfo("x", 10, 10), "y": ObjectInfo("y", 5, 5)}
    y = first["y"]
    assert not has_lost_objects(first, [*first.values(), ObjectInfo("z", 1, 1)])
    assert not has_lost_objects(first, [ObjectInfo("x", 11, 11), y])
    assert has_lost_objects(first, [ObjectInfo("x", 10, 9), y])
    assert has_lost_objects(first, [y])
    assert has_lost_objects(first, [ObjectInfo("x", 10, 10, corrupt=True), y])
    assert has_lost_objects(first, [ObjectInfo("x", 10, 10, poisoned=True), y])
    assert not has_lost_objects({}, [ObjectInfo("x", 10, 9, corrupt=True)])


async def copied(server: ThreadServer) -> Path:
    """A copy of its disk, as it is now."""
    image = server.data.with_name(f"{server.data.name}-image")
    await copy_disk(server, image)
    return image


async def append_more_than_a_window(writer: ObjectWriter) -> None:
    """So that the writer's memory has forgotten what came before."""
    for _ in range(2 * window_bytes_max // len(MUCH) + 1):
        await writer.wait_synced(writer.append(MUCH))


async def put_back_an_older_copy(server: ThreadServer, image: Path) -> None:
    """The disk has what it had then, but for its stamps: as if it was copied since the newest of them."""
    await off(server)
    stamps = (server.data / "stamps").read_bytes()
    await trio.to_thread.run_sync(shutil.rmtree, server.data)
    await trio.to_thread.run_sync(shutil.copytree, image, server.data)
    (server.data / "stamps").write_bytes(stamps)
    await on(server)


async def all_are(claim: Claim, servers: Sequence[ThreadServer], state: str) -> None:
    await until(lambda: all(state_of(claim, one)[0] == state for one in servers), state)


def state_of(claim: Claim, server: ThreadServer) -> tuple[str, str]:
    one = next(one for one in claim.status().members if one.address == server.location)
    return one.state, one.error


@pytest.mark.trio
@pytest.mark.parametrize("went_back", [1, 2, 3])
async def test_a_server_that_went_back_under_a_living_writer_is_filled_or_said_to_be_broken(
    three: list[ThreadServer], went_back: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It was comparing for ever, without a word, when nobody had the bytes any more: neither its memory, nor
    another member."""
    async with written(three) as (store, claim, writer):
        images = [await copied(one) for one in three]
        await append_more_than_a_window(writer)
        await writer.wait_synced(writer.append(b"the end"))
        size = claim.targets["x"].synced
        await caught_up(store)
        for one, image in zip(three[:went_back], images, strict=False):
            await put_back_an_older_copy(one, image)
        final = "in sync" if went_back < 3 else "broken"
        await all_are(claim, three, final)
        reason = f"has {len(CONTENT)} bytes of d/x, but had acknowledged {size}"
        assert sum(reason in one.getMessage() for one in caplog.records) == went_back
        position = writer.append(b", and more")
        if went_back < 3:
            await writer.wait_synced(position)
        else:
            why = f"bytes, after it had acknowledged {size}; no other member has the rest"  # some filled
            assert all(
                re.fullmatch(rf"d/x on this member: \d+ {why}", state_of(claim, one)[1]) for one in three
            )
            await until(lambda: why in claim.status().waiting, "the status names what the writer waits for")


@pytest.mark.trio
async def test_bytes_that_only_an_absent_member_may_have_are_waited_for(three: list[ThreadServer]) -> None:
    async with written(three) as (store, claim, writer):
        images = [await copied(one) for one in three]
        await append_more_than_a_window(writer)
        await caught_up(store)
        await off(three[2])
        for one, image in zip(three[:2], images, strict=False):
            await put_back_an_older_copy(one, image)
        await all_are(claim, three[:2], "comparing")
        await on(three[2])
        await all_are(claim, three, "in sync")
        await writer.wait_synced(writer.append(b"and more"))


@pytest.mark.trio
async def test_a_member_that_was_unavailable_while_the_others_went_back_is_not_compared_for_ever(
    three: list[ThreadServer],
) -> None:
    """It has all that it ever acknowledged, so nothing of it went back; nobody has the rest all the same."""
    async with written(three) as (_, claim, writer):
        images = [await copied(one) for one in three]
        await off(three[2])
        await append_more_than_a_window(writer)
        for one, image in zip(three[:2], images, strict=False):
            await put_back_an_older_copy(one, image)
        await on(three[2])
        await all_are(claim, three, "broken")


@pytest.mark.trio
async def test_members_that_one_with_more_fills_a_part_of_the_way_are_decided_when_it_breaks(
    three: list[ThreadServer],
) -> None:
    """All went back, one to a later state than the others: these were catching up from it for ever."""
    async with written(three) as (store, claim, writer):
        older = [await copied(one) for one in three[1:]]
        await writer.wait_synced(writer.append(bytes(16 * milestone_bytes - len(CONTENT))))
        await caught_up(store)
        images = [await copied(three[0]), *older]
        await append_more_than_a_window(writer)
        await caught_up(store)
        await off(*three)
        for one, image in zip(three, images, strict=True):
            await put_back_an_older_copy(one, image)
        await all_are(claim, three, "broken")
