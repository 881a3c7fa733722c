"""What became of a member: each way in which a server is not the member it should be, on real servers.

Each is called by its name, and neither acknowledges nor answers: with one more member stopped, a writer
waits.
"""

import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from dos_client import NotEmptyError, init_store
from dos_client.core.claim import ClaimState
from dos_client.core.membership import Condition, ServerAnswer, describe
from dos_client.core.replacement import begin
from dos_client.membership.status import StoreStatus, store_status
from dos_client.repair.verifying import MemberHolding, VerifyReport
from dos_client.sessions.connection import open_connection
from dos_client.sessions.discovery import send_record
from dos_protocol.errors import StaleGenerationError
from dos_protocol.store_record import StoreRecord
from tests.dos_client.records import record, server_id
from tests.dos_client.support import Threads, ThreadServer, claimed, damage, off, on, until, url_of
from tests.dos_client.test_cli import dos
from tests.dos_client.test_verifying import CONTENT, filled

G1 = record("abc", 2)


def seen(letter: str, shown: StoreRecord | None, address: str = "") -> ServerAnswer:
    return ServerAnswer(address or f"{letter}:1", server_id(letter), shown)


def test_how_much_of_a_joining_member_is_filled_is_known_only_if_its_copies_were_compared() -> None:
    joining = begin(G1, G1.members[0], server_id("d"), "d:1")
    compared = VerifyReport(total_bytes=10, holdings={server_id("d"): MemberHolding(lag_bytes=3)})
    others = VerifyReport(total_bytes=10, holdings={server_id("a"): MemberHolding()})
    assert StoreStatus(joining, compared=compared).filling == (joining.member(server_id("d")), 7)
    for status in (StoreStatus(joining), StoreStatus(joining, compared=others), StoreStatus(None)):
        assert status.filling is None
    assert StoreStatus(G1, compared=compared).filling is None, "nobody joins"


@pytest.mark.parametrize(
    ("answers", "condition", "detail"),
    [
        ([seen("c", G1)], Condition.THERE, ""),
        ([], Condition.UNAVAILABLE, "why"),
        ([seen("c", None)], Condition.STALE, "no record yet"),
        ([seen("c", record("abd", 2, 4))], Condition.AHEAD, "generation 4"),
        ([seen("x", None, "c:1")], Condition.WIPED, "in no store"),
        ([seen("x", StoreRecord(b"F" * 16, 1, 1, G1.members), "c:1")], Condition.FOREIGN, "of store 4646"),
        ([seen("b", G1, "c:1"), seen("c", G1, "b:1")], Condition.SWAPPED, "it answers at b:1"),
        ([seen("c", G1, "z:1")], Condition.ELSEWHERE, "it answers at z:1"),
        ([seen("x", G1, "c:1")], Condition.LEFT, "answers there"),
    ],
)
def test_a_member_is_called_what_it_is(
    answers: list[ServerAnswer], condition: Condition, detail: str
) -> None:
    view = describe(G1, [seen("a", G1), *answers], {"c:1": "why"})[2]
    assert view.condition is condition
    assert detail in view.detail
    assert view.counts == (condition is Condition.THERE)


# On real servers


async def wiped(servers: Threads) -> None:
    await off(servers[2])
    shutil.rmtree(servers[2].data)
    await on(servers[2])


async def foreign(servers: Threads) -> None:
    await wiped(servers)
    await init_store(servers[2].url)


async def swapped(servers: Threads) -> None:
    one, two = servers[1:]
    await off(one, two)
    one.data, two.data = two.data, one.data
    await on(one, two)


async def stopped(servers: Threads) -> None:
    await off(servers[2])


@pytest.mark.trio
@pytest.mark.parametrize("happens", [wiped, foreign, swapped, stopped])
async def test_who_is_not_the_member_never_counts(
    three: Threads, happens: Callable[[Threads], Awaitable[None]]
) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before"))
        await happens(three)
        if happens is not swapped:
            await writer.wait_synced(writer.append(b" with two"))
            await off(three[1])
        await until(lambda: claim.state is ClaimState.WAITING, "the writer waits")
        size = writer.synced
        writer.append(b" never")
        assert not (await store_status([three[0].location, three[2].location], holdings=False)).usable
        with trio.move_on_after(0.3):
            await writer.wait_synced(writer.size)
        assert writer.synced == size


@pytest.mark.trio
async def test_the_status_names_each_of_them(three: Threads) -> None:
    await init_store(url_of(three))
    addresses = [one.location for one in three]
    for happens, condition in (
        (wiped, Condition.WIPED),
        (foreign, Condition.FOREIGN),
        (stopped, Condition.UNAVAILABLE),
    ):
        await happens(three)
        status = await store_status(addresses)
        assert [one.condition for one in status.members] == [Condition.THERE, Condition.THERE, condition]
        assert status.usable


@pytest.mark.trio
async def test_two_members_that_changed_places_are_visible_so(three: Threads) -> None:
    await init_store(url_of(three))
    await swapped(three)
    status = await store_status([one.location for one in three])
    assert [one.condition for one in status.members] == [
        Condition.THERE,
        Condition.SWAPPED,
        Condition.SWAPPED,
    ]
    assert not status.usable
    await swapped(three)
    assert (await store_status([one.location for one in three])).usable


@pytest.mark.trio
async def test_a_stale_server_counts_only_when_it_has_the_record_in_use(
    three: Threads, tmp_path: Path
) -> None:
    # EVIDENCE-OF: P-5
    old = await init_store(url_of(three))
    new = ThreadServer(tmp_path / "new")
    try:
        await off(three[1])
        joining = begin(old, old.members[2], bytes.fromhex(new.server_id), new.location)
        for server in (three[0], three[2]):
            await send_record(server.location, joining)
        await on(three[1])
        with pytest.raises(StaleGenerationError):
            async with open_connection(three[1].location, store_id=old.store_id, generation=2):
                pass
        status = await store_status([three[0].location, three[2].location])
        assert [one.generation for one in status.members] == [2, 2, 2, 2], "it was handed the record"
        assert any("joining: 0 of 0 bytes" in line for line in status.problems)
    finally:
        await off(new)


@pytest.mark.trio
async def test_one_server_under_two_names_counts_once(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    port = three[0].address[1]
    twice = f"dos://127.0.0.1:{port},localhost:{port},{three[1].location}"
    with pytest.raises(NotEmptyError, match="several addresses belong to the same server"):
        await init_store(twice)
    await init_store(url_of(three))
    await off(*three[1:])
    status = await store_status([f"127.0.0.1:{port}", f"localhost:{port}"])
    assert (status.record, status.usable) == (None, False)
    assert any("are one server" in line for line in status.problems)


@pytest.mark.trio
async def test_lag_and_damage_are_visible(three: Threads) -> None:
    await filled(three, "a")
    await off(three[2])
    async with claimed(three, epoch=2) as (_, claim):
        writer = claim.open_object("b")
        await writer.wait_synced(writer.append(b"late"))
    await on(three[2])
    await damage(three[1], "d", "a")
    status: StoreStatus = await store_status([one.location for one in three])
    lag = {one.member.address: status.holdings[one.member.server_id].lag_bytes for one in status.members}
    assert lag[three[0].location] == 0
    assert lag[three[2].location] == 4
    assert status.holdings[bytes.fromhex(three[1].server_id)].damaged == ["d/a"]
    assert status.total_bytes == len(CONTENT) + 4


def test_the_command_shows_it(three: Threads) -> None:
    url = url_of(three)
    trio.run(filled, three, "a")
    text = dos("store", "status", url, "--log").stdout.decode()
    assert "250.0 KiB in 1 objects" in text
    assert "nothing was ever forced" in text
    rows = json.loads(dos("store", "status", url, "--json", "--quick").stdout)
    assert rows["overrides"] == []
    assert {row["condition"] for row in rows["store"]["members"]} == {"there"}
    assert {row["lag_bytes"] for row in rows["store"]["members"]} == {None}
