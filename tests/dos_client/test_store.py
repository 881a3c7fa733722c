"""A store of three servers: opening, claiming, appending, looking, reading, settling."""

import pytest
import trio

from dos_client import (
    MissingDataError,
    NotEmptyError,
    QuorumUnavailableError,
    StoreNotReadyError,
    connect,
    init_store,
    open_store,
)
from dos_client.core.claim import ClaimState
from dos_client.sessions.connection import open_connection
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import (
    BadNameError,
    BrokenConnectionError,
    ClosedError,
    FencedError,
    LocalProtocolError,
    NotFoundError,
)
from tests.dos_client import support
from tests.dos_client.support import (
    ThreadServer,
    claimed,
    content_of,
    has,
    new_writer,
    off,
    on,
    until,
    url_of,
)
from tests.shells.bugs import planted

pytestmark = pytest.mark.trio
Servers = list[ThreadServer]


async def test_a_store_is_made_once_and_making_it_again_changes_nothing(three: Servers) -> None:
    url = url_of(three)
    record = await init_store(url)
    assert (record.generation, record.ack_quorum) == (1, 2)
    assert [member.server_id.hex() for member in record.members] == [one.server_id for one in three]
    assert await init_store(url) == record
    with pytest.raises(NotEmptyError, match="an ack quorum of 2, not 3"):
        await init_store(url, ack_quorum=3)
    with pytest.raises(NotEmptyError, match="with other members"):
        await init_store(url_of(three[:2]))


async def test_making_a_store_that_was_half_made_finishes_it(three: Servers) -> None:
    url = url_of(three)
    record = await init_store(url)
    await trio.to_thread.run_sync(three[2].kill)
    (three[2].data / "store").unlink()
    await trio.to_thread.run_sync(three[2].restart)
    async with open_store(url) as store:
        assert store.record == record
        async with open_connection(three[2].location) as connection:
            assert connection.record == record, "a client that reads a decided record passes it on"


async def test_servers_with_objects_or_away_are_refused_by_name(three: Servers) -> None:
    async with connect(three[0].url) as server, await server.unclaimed("old") as claim:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"here"))
    with pytest.raises(NotEmptyError, match="holds the directory old"):
        await init_store(url_of(three))
    await trio.to_thread.run_sync(three[1].kill)
    with pytest.raises(StoreNotReadyError, match=f"{three[1].location}"):
        await init_store(url_of(three))


async def test_opening_what_is_no_store_reports_it(three: Servers) -> None:
    with pytest.raises(StoreNotReadyError, match="dos store init") as caught:
        async with open_store(url_of(three)):
            pass
    assert len(caught.value.missing) == 3


async def test_what_is_acknowledged_is_on_a_quorum_and_soon_on_all(three: Servers) -> None:
    # EVIDENCE-OF: P-1
    await init_store(url_of(three))
    content = b""
    async with claimed(three) as (store, claim):
        assert await claim.wait_all(10)
        writer = claim.open_object("x")
        for number in range(50):
            data = bytes([number]) * (number * 997)
            content += data
            size = writer.append(data)
        assert size == writer.size == len(content)
        await writer.wait_received(size)
        await writer.wait_synced(size)
        assert writer.synced == size <= writer.received
        assert writer.digest == prefix_digest(content)
        copies = [info.get("x") for info in (await store.inspect("d")).answers.values()]
        assert sum(copy is not None and copy.synced == size for copy in copies) >= 2
        for server in three:
            await has(server, "d", "x", content)
        await until(lambda: all(one.state == "in sync" for one in store.members()), "all in sync")
        assert await claim.read("x", 5, 20_000) == content[5:20_005]
        asked = [one.address for tier in claim.reads._readers("x", size, None) for one in tier]
        assert sorted(asked) == sorted(one.location for one in three), "each once"
        assert await store.read("d", "x", 0, len(content) + 9) == content
        assert await store.read("d", "x", len(content), 10) == b""
        with pytest.raises(NotFoundError):
            await store.read("d", "nothing", 0, 1)
        assert await store.list_directories() == ["d"]
        assert (await store.inspect("d")).epoch_seen == 1
        assert set((await store.ping()).keys()) == {one.location for one in three}


@pytest.mark.parametrize("bug", [None, "a_member_that_was_away_is_not_watched"])
async def test_a_member_that_returns_is_seen_again(
    three: Servers, bug: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its rule broken it stays away for this client as long as anybody looks."""
    await init_store(url_of(three))
    with planted(bug):
        async with open_store(url_of(three)) as store:

            def connected_count() -> int:
                return sum(one.connected for one in store.members())

            await until(lambda: connected_count() == 3, "all are connected")
            await off(three[1])
            await until(lambda: connected_count() == 2, "one is away")
            await on(three[1])
            if bug is None:
                await until(lambda: connected_count() == 3, "it is seen again")
            else:
                monkeypatch.setattr(support, "PATIENCE_S", 5.0)
                with pytest.raises(AssertionError, match="it is seen again"):
                    await until(lambda: connected_count() == 3, "it is seen again")


async def test_several_objects_of_one_claim_are_written_side_by_side(three: Servers) -> None:
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writers = [claim.open_object(f"o{number}") for number in range(5)]
        for _ in range(20):
            for number, writer in enumerate(writers):
                writer.append(bytes([number]) * 10_000)
        for writer in writers:
            await writer.wait_synced(200_000)
        with pytest.raises(LocalProtocolError, match="already known"):
            claim.open_object("o1")
        with pytest.raises(BadNameError):
            claim.open_object("../x")
    assert await content_of(three[0], "d", "o3") == b"\3" * 200_000


async def test_a_sealed_object_takes_no_more_and_is_still_brought_to_all(three: Servers) -> None:
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        size = writer.append(b"y" * 300_000)
        writer.seal()
        with pytest.raises(ClosedError, match="sealed"):
            writer.append(b"z")
        await writer.wait_synced(size)
        for server in three:
            await has(server, "d", "x", b"y" * 300_000)


async def test_after_the_end_of_a_claim_everything_says_closed(three: Servers) -> None:
    await init_store(url_of(three))
    async with open_store(url_of(three)) as store:
        claim = await store.claim("d", 1, new_writer())
        writer = claim.open_object("x")
        await claim.aclose()
        assert claim.state is ClaimState.CLOSED
        with pytest.raises(ClosedError):
            writer.append(b"x")
        with pytest.raises(ClosedError):
            await writer.wait_synced(1)
        with pytest.raises(ClosedError):
            await claim.settle("y", 1, 1)
        await claim.aclose()


async def test_a_newer_claim_fences_the_older_one_for_ever(three: Servers) -> None:
    # EVIDENCE-OF: P-4
    await init_store(url_of(three))
    async with claimed(three, epoch=1) as (_, old):
        zombie = old.open_object("x")
        await zombie.wait_synced(zombie.append(b"before"))
        async with claimed(three, epoch=2) as (_, new):
            acknowledged = zombie.synced
            with pytest.raises(FencedError) as caught:  # noqa: PT012 - any of them may be the one
                while True:
                    await zombie.wait_synced(zombie.append(b"after"))
                    acknowledged = zombie.synced
            assert caught.value.epoch_held == 2
            assert old.lost is not None
            assert old.epoch_seen == 2
            assert acknowledged == 6
            assert all(info["x"].synced == 6 for info in new.answers.values())
            writer = new.open_object("y")
            await writer.wait_synced(writer.append(b"mine"))
        async with open_store(url_of(three)) as store:
            with pytest.raises(FencedError):
                await store.claim("d", 1, old.writer_id)
            with pytest.raises(FencedError) as held:
                await store.claim("d", 2, new_writer())
            assert held.value.epoch_held == 2


async def test_an_idle_writer_is_notified_that_it_was_superseded(three: Servers) -> None:
    # EVIDENCE-OF: P-4
    await init_store(url_of(three))
    async with claimed(three, epoch=1) as (_, old), claimed(three, epoch=2):
        await until(lambda: old.lost is not None, "the older claim is lost")
        with pytest.raises(FencedError):
            old.open_object("x")


async def test_a_claim_reached_by_another_name_of_the_url_is_the_same_store(three: Servers) -> None:
    await init_store(url_of(three))
    async with claimed(three[1:], url=url_of(three[1:])) as (store, _):
        assert len(store.record.members) == 3


async def test_settling_puts_the_longest_copy_on_a_quorum(three: Servers) -> None:
    await init_store(url_of(three))
    content = b"".join(number.to_bytes(4, "big") for number in range(200_000))
    async with claimed(three, epoch=1) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(content[:70_000]))
        for server in three:
            await has(server, "d", "x", content[:70_000])
        for server in three[:2]:
            await trio.to_thread.run_sync(server.kill)
        writer.append(content[70_000:])
        await has(three[2], "d", "x", content)
        assert writer.synced == 70_000, "one copy is no quorum"
    for server in three[:2]:
        await trio.to_thread.run_sync(server.restart)
    async with claimed(three, epoch=2) as (_, claim):
        assert await claim.wait_all(20)
        assert max(info["x"].synced for info in claim.answers.values()) == len(content)
        await claim.settle("x", len(content) - 7, prefix_digest(content[:-7]))
        for server in three[:2]:
            await has(server, "d", "x", content[:-7])
        assert await content_of(three[2], "d", "x") == content, "what is past it stays, and does not count"
        await claim.settle("x", len(content) - 7, prefix_digest(content[:-7]))


async def test_settling_what_nobody_holds_is_refused(three: Servers) -> None:
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"abc"))
    async with claimed(three, epoch=2) as (_, claim):
        with pytest.raises(MissingDataError, match="no member holds 3 bytes of d/x"):
            await claim.settle("x", 3, 12345)
        with pytest.raises(MissingDataError, match="no member holds 9 bytes of d/gone"):
            await claim.settle("gone", 9, 12345)
        await claim.settle("empty", 0, 0)


async def test_looking_claims_nothing_and_says_when_too_few_answer(three: Servers) -> None:
    await init_store(url_of(three))
    async with claimed(three) as (_, claim), open_store(url_of(three)) as reader:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"abc"))
        assert (await reader.inspect("nowhere")).epoch_seen == 0
        for server in three[:2]:
            await trio.to_thread.run_sync(server.kill)
        with pytest.raises(QuorumUnavailableError, match="2 undamaged members are needed"):
            await reader.inspect("d")
        with pytest.raises(QuorumUnavailableError):
            await reader.list_directories()
        assert await reader.read("d", "x", 0, 10) == b"abc", "reading needs one member only"


async def test_what_is_seen_after_a_read_is_new(three: Servers) -> None:
    """The session of a read has listed the directory when it connected: that is not what is there now."""
    await init_store(url_of(three))
    async with claimed(three) as (_, claim), open_store(url_of(three)) as reader:
        for name in ("before", "after"):
            writer = claim.open_object(name)
            await writer.wait_synced(writer.append(b"abc"))
            for server in three:
                await has(server, "d", name, b"abc")
            assert await reader.read("d", name, 0, 10) == b"abc"
        for found in (await reader.inspect("d")).answers.values():
            assert {"before", "after"} <= found.keys()


async def test_a_member_that_lags_does_not_end_the_reading(three: Servers) -> None:
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"abc"))
        await has(three[2], "d", "x", b"abc")
        await trio.to_thread.run_sync(three[2].kill)
        await writer.wait_synced(writer.append(b"def"))
        for server in three[:2]:
            await has(server, "d", "x", b"abcdef")
    await trio.to_thread.run_sync(three[2].restart)
    async with open_store(url_of(three)) as store:
        await store.ping()
        assert {await store.read("d", "x", 3, 9) for _ in range(20)} == {b"def"}


async def test_a_member_with_a_damaged_object_has_not_answered(three: Servers) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        for _ in range(4):
            await writer.wait_synced(writer.append(b"z" * 100_000))
        for server in three:
            await has(server, "d", "x", b"z" * 400_000)
    damaged = three[0]
    await trio.to_thread.run_sync(damaged.kill)
    (path,) = (damaged.data / "d" / "d").glob("x*")
    stored = bytearray(path.read_bytes())
    stored[-50] ^= 1
    path.write_bytes(stored)
    await trio.to_thread.run_sync(damaged.restart)
    async with claimed(three, epoch=2) as (store, claim):
        await until(lambda: any(one.connected for one in store.members()), "members")
        assert bytes.fromhex(damaged.server_id) not in claim.answers
        assert len(claim.answers) == 2
        assert bytes.fromhex(damaged.server_id) not in (await store.inspect("d")).answers


async def test_epochs_far_above_are_climbed_to(three: Servers) -> None:
    await init_store(url_of(three))
    async with claimed(three, epoch=5_000_000) as (store, _):
        assert (await store.inspect("d")).epoch_seen == 5_000_000


async def test_alone_alone_is_written_without_a_claim_or_with_one(alone: ThreadServer) -> None:
    async with connect(alone.url) as server:
        async with await server.unclaimed("d") as claim:
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"abc"))
        async with await server.claim("e", 1, new_writer()) as claim:
            writer = claim.open_object("y")
            await writer.wait_synced(writer.append(b"def"))
        assert await server.read("d", "x", 1, 9) == b"bc"
        assert await server.list_directories() == ["d", "e"]
        assert [one.connected for one in server.members()] == [True]


async def test_a_directory_with_a_writer_is_not_written_without_a_claim(alone: ThreadServer) -> None:
    # EVIDENCE-OF: P-4
    async with connect(alone.url) as server, connect(alone.url) as other:
        async with await server.unclaimed("d") as claim:
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"abc"))
            async with await other.claim("d", 5, new_writer()) as newer:
                with pytest.raises(FencedError, match="d has a writer, at epoch 5; claim it to write"):
                    await writer.wait_synced(writer.append(b"def"))
                again = newer.resume_object("x", 0, 0, b"abc")
                await again.wait_synced(again.append(b"xyz"))
        with pytest.raises(FencedError, match="d has a writer, at epoch 5"):
            await server.unclaimed("d")
        assert await server.read("d", "x", 0, 99) == b"abcxyz"


async def test_a_member_of_a_store_is_not_written_alone(three: Servers) -> None:
    await init_store(url_of(three))
    async with connect(three[0].url) as server:
        with pytest.raises(LocalProtocolError, match="open the store: dos://"):
            await server.claim("d", 1, new_writer())
        with pytest.raises(LocalProtocolError, match="belongs to store"):
            await server.unclaimed("d")
    with pytest.raises(LocalProtocolError, match=r"use open_store\(\) for several"):
        async with connect(url_of(three)):
            pass


async def test_a_read_of_a_store_that_is_unavailable_is_given_up_after_some_seconds(
    three: list[ThreadServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dos_client.reading.member_queries.read_timeout_s", 0.5)
    await init_store(url_of(three))
    async with open_store(url_of(three)) as store:
        await off(*three)
        with trio.fail_after(30), pytest.raises((QuorumUnavailableError, BrokenConnectionError)):
            await store.read("d", "o", 0, 10)
