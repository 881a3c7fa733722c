"""Reads that a quorum vouches for: wrong bytes are found, reported, avoided, and never served.

Real servers. A member "lies" here when its file is whole and holds other bytes: what a misdirected write, a
restored image or a diverged copy looks like."""

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dos_client import Bookmark, QuorumUnavailableError, connect, init_store, open_store
from dos_client.core.agreement import agree, reach, reading_quorums
from dos_client.core.quorum import Quorums
from dos_client.live_store import Store
from dos_client.reading import committed as committed_reads
from dos_client.reading.committed import CommittedReads
from dos_client.reading.damage import CopyFault
from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_protocol.errors import CorruptError, NotFoundError, PastEndError
from dos_protocol.limits import digest_block_bytes
from dos_protocol.store_record import Member, MemberState, StoreRecord, claims_needed
from tests.dos_client.support import Threads, ThreadServer, claimed, has, until, url_of

IDS = [bytes([number]) * 16 for number in range(1, 6)]
PIECE = 1 << 20


def record_of(count: int, ack_quorum: int, change: MemberState) -> StoreRecord:
    """A store of so many members, and perhaps one more that replaces the first, or is added."""
    members = [Member(server_id, f"h{server_id[0]}:1") for server_id in IDS[:count]]
    if change != "in":
        members.insert(1, Member(b"n" * 16, "new:1", change))
    return StoreRecord(b"s" * 16, 1, ack_quorum, tuple(members))


changes: list[MemberState] = ["in", "joining", "adding"]
records = st.integers(1, 5).flatmap(
    lambda count: st.builds(record_of, st.just(count), st.integers(1, count), st.sampled_from(changes))
)


@given(records, st.data())
def test_a_reader_is_only_sure_where_nothing_acknowledged_can_lie_beyond(
    record: StoreRecord, data: st.DataObject
) -> None:
    # EVIDENCE-OF: P-2, P-5
    quorums = data.draw(st.sampled_from([Quorums(record), reading_quorums(record)]))
    members = sorted(Quorums(record).members)
    copies = {one: data.draw(st.integers(0, 4)) for one in members}
    answered = data.draw(st.sets(st.sampled_from(members)))
    damaged = data.draw(st.sets(st.sampled_from(members))) & answered
    reported = {one: copies[one] for one in answered}
    reported |= {one: min(copies[one], data.draw(st.integers(0, 4))) for one in sorted(damaged)}
    before = sorted((copies[one.server_id] for one in record.voters), reverse=True)[record.ack_quorum - 1]
    found = reach(quorums, reported, answered - damaged)
    assert found.held <= quorums.watermark(copies)
    if found.sure:
        assert found.held >= before, "acknowledged, perhaps before the change of members"


@given(records, st.data())
def test_a_digest_counts_when_a_quorum_gives_it_and_no_other_has_one(
    record: StoreRecord, data: st.DataObject
) -> None:
    quorums = Quorums(record)
    members = sorted(quorums.members)
    digests = data.draw(st.dictionaries(st.sampled_from([*members, b"x" * 16]), st.integers(1, 3)))
    found = agree(quorums, digests)
    camps = {value: [one for one in members if digests.get(one) == value] for value in digests.values()}
    winners = [value for value, camp in camps.items() if quorums.can_acknowledge(camp)]
    assert found.digest == (winners[0] if len(winners) == 1 else None)
    if found.digest is not None:
        assert found.against == {one for one in members if digests.get(one, found.digest) != found.digest}
        assert found.lacking == 0
    elif not winners:
        assert found.lacking >= 1
        silent = [one for one in members if one not in digests]
        for few in itertools.combinations(silent, min(found.lacking, len(silent) + 1) - 1):
            assert not any(quorums.can_acknowledge([*camp, *few]) for camp in camps.values())


def test_what_readers_are_visible_while_a_member_is_added_every_later_claimant_finds() -> None:
    # EVIDENCE-OF: P-2, P-5
    for count in range(1, 6):
        for ack_quorum in range(count // 2 + 1, count + 1):
            adding = record_of(count, ack_quorum, "adding")
            quorums = reading_quorums(adding)
            holder_sets = [set(one) for one in itertools.combinations(IDS[:count], ack_quorum)]
            assert all(quorums.can_acknowledge(holders) for holders in holder_sets)
            for later in {ack_quorum, (count + 1) // 2 + 1} & {ack_quorum, ack_quorum + 1}:
                needed = claims_needed(count + 1, later)
                for claimed_on in itertools.combinations([*IDS[:count], b"n" * 16], needed):
                    assert all(holders & set(claimed_on) for holders in holder_sets)


async def written(servers: Threads, content: bytes, name: str = "x") -> None:
    """The object in a new store, on all its members."""
    await init_store(url_of(servers))
    async with claimed(servers) as (_, claim):
        writer = claim.open_object(name)
        for start in range(0, len(content), PIECE):
            writer.append(content[start : start + PIECE])
            await writer.wait_room()
        await writer.wait_synced(writer.size)
        for server in servers:
            await has(server, "d", name, content)


def file_of(server: ThreadServer, name: str = "x") -> Path:
    return server.data / "d" / "d" / name


async def falsify(server: ThreadServer, content: bytes, tmp_path: Path) -> None:
    """Give the server a whole file of that content, with the mark that vouches for it."""
    liar = ThreadServer(tmp_path / "liar")
    async with connect(liar.url) as store, await store.unclaimed("d") as claim:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(content))
    liar.kill()
    server.kill()
    for path in (file_of(liar), file_of(liar).with_name(".marks")):
        shutil.copy(path, file_of(server).with_name(path.name))
    server.restart()
    shutil.rmtree(tmp_path / "liar")


def flip(server: ThreadServer, position: int) -> None:
    """Flip one bit of the object's file."""
    with file_of(server).open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def reports(servers: Threads, found: Sequence[object]) -> list[tuple[int, CopyFault]]:
    ids = [server.server_id for server in servers]
    return [(ids.index(one.server_id.hex()), one.why) for one in found]  # type: ignore[attr-defined]


@pytest.mark.trio
async def test_committed_reads_give_any_part_and_end_where_the_object_ends(three: Threads) -> None:
    content = os.urandom(2 * PIECE + 3 * digest_block_bytes + 77)
    await written(three, content)
    async with open_store(url_of(three)) as store:
        assert b"".join([data async for data in store.stream("d", "x")]) == content
        edges = [0, 1, digest_block_bytes - 1, digest_block_bytes, PIECE - 1, PIECE, PIECE + 9]
        for begin in [*edges, len(content) - 1, len(content)]:
            for count in (1, digest_block_bytes, PIECE, len(content)):
                found = await store.read("d", "x", begin, count, committed=True)
                assert found == content[begin : begin + count], (begin, count)
        with pytest.raises(PastEndError):
            await store.read("d", "x", len(content) + 1, 1, committed=True)
        with pytest.raises(NotFoundError):
            await store.read("d", "y", 0, 1, committed=True)
        with pytest.raises(QuorumUnavailableError, match="no connected member has the bytes"):
            await CommittedReads(store, "d", "x").fetch(PIECE, len(content) + 1)
        three[1].kill()
        assert await store.read("d", "x", 5, 500, committed=True) == content[5:505]
        assert not store.damage.reports()


@pytest.mark.trio
async def test_who_reads_on_from_a_bookmark_asks_for_the_new_bytes_alone(three: Threads) -> None:
    await init_store(url_of(three))
    content = os.urandom(digest_block_bytes + 5_000)
    async with claimed(three) as (store, claim):
        writer = claim.open_object("x")
        bookmark, found, questions = Bookmark(), bytearray(), []
        for begin in range(0, len(content), 23_000):
            await writer.wait_synced(writer.append(content[begin : begin + 23_000]))
            before = store.counts.questions
            async for data in store.stream("d", "x", begin, writer.synced, bookmark):
                found += data
            questions.append(store.counts.questions - before)
        assert found == content
        assert set(questions[1:]) == {2}, "the digest, and the bytes"
        whole = [data async for data in store.stream("d", "x", 0, len(content), bookmark)]
        assert b"".join(whole) == content, "a bookmark that lies elsewhere changes nothing"


@pytest.mark.trio
async def test_who_begins_in_the_middle_and_knows_the_end_asks_once_more(three: Threads) -> None:
    await init_store(url_of(three))
    content = os.urandom(2 * digest_block_bytes)
    begin, end = digest_block_bytes + 1_000, len(content)
    async with claimed(three) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(content))
        before = store.counts.questions
        found = [data async for data in store.stream("d", "x", begin, end, Bookmark())]
        assert b"".join(found) == content[begin:]
        assert store.counts.questions - before == 3, "the digest below, the one at the end, and the bytes"
        for start in (0, 1_000, begin):
            with pytest.raises(NotFoundError):
                [data async for data in store.stream("d", "y", start, end, Bookmark())]


@pytest.mark.trio
@pytest.mark.parametrize("off", [0, 1])
async def test_who_reads_an_object_that_is_removed_is_told_at_once(
    three: Threads, off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads a state that is replaced meanwhile reads the newer one."""
    await init_store(url_of(three))
    monkeypatch.setattr(committed_reads, "read_timeout_s", 3600.0)
    async with claimed(three) as (store, claim), open_store(url_of(three)) as reading:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(os.urandom(2 * PIECE)))
        writer.seal()
        bookmark = Bookmark()
        [data async for data in reading.stream("d", "x", 0, PIECE, bookmark)]
        for server in three[:off]:
            server.kill()
        claim.collect(lambda name: name == "x")
        await until(lambda: store.counts.collected_objects >= 3 - off, "the object is removed")
        with trio.fail_after(60), pytest.raises(NotFoundError):
            [data async for data in reading.stream("d", "x", PIECE, 2 * PIECE, bookmark)]


@pytest.mark.trio
async def test_a_bookmark_does_not_make_a_liar_believed(three: Threads) -> None:
    await init_store(url_of(three))
    content = os.urandom(40_000)
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(content))
    for server in three:
        await has(server, "d", "x", content)
    bookmark = Bookmark()
    async with open_store(url_of(three)) as store:
        first = [data async for data in store.stream("d", "x", 0, 10_000, bookmark)]
        assert b"".join(first) == content[:10_000]
        bookmark.fold = PrefixDigest()
        bookmark.fold.update(b"other bytes" + content[11:10_000])
        with pytest.raises(QuorumUnavailableError, match="has other bytes"):
            [data async for data in store.stream("d", "x", 10_000, 40_000, bookmark)]


@pytest.mark.trio
async def test_a_flipped_bit_on_one_member_is_reported_and_the_good_bytes_are_served(three: Threads) -> None:
    # EVIDENCE-OF: P-2, P-5
    content = os.urandom(3 * PIECE)
    await written(three, content)
    for position in (100, 1_500_000):
        flip(three[2], position)
    async with open_store(url_of(three)) as store:
        await until(lambda: all(one.connected for one in store.members()), "all connected")
        prefer(store, three[2], PIECE)  # a slow member is not asked, and then nobody would know
        for _ in range(6):
            assert b"".join([data async for data in store.stream("d", "x")]) == content
            for begin in (0, PIECE, 2 * PIECE):
                assert await store.read("d", "x", begin, PIECE) == content[begin : begin + PIECE]
        assert reports(three, store.damage.reports()) == [(2, CopyFault.DAMAGED)]


@pytest.mark.trio
async def test_a_member_with_other_bytes_in_a_whole_file_is_found_out_and_never_served(
    three: Threads, tmp_path: Path
) -> None:
    # EVIDENCE-OF: P-2, P-5
    content = os.urandom(PIECE + 200_000)
    await written(three, content)
    other = bytearray(content)
    other[500_000] ^= 1
    other[700_000] ^= 1
    await falsify(three[0], bytes(other), tmp_path)
    for preferred in three:
        async with open_store(url_of(three)) as store:
            await until(lambda: all(one.connected for one in store.members()), "all connected")
            prefer(store, preferred, 100_000)
            assert await store.read("d", "x", 650_000, 100_000, committed=True) == content[650_000:750_000]
            assert b"".join([data async for data in store.stream("d", "x")]) == content
            for _ in range(5):
                await store.read("d", "x", 650_000, 100_000, committed=True)
            expected = [(0, CopyFault.DIFFERENT)]
            found = reports(three, store.damage.reports())
            assert found == expected or (not found and preferred is not three[0])
    async with open_store(url_of(three)) as store:
        await until(lambda: all(one.connected for one in store.members()), "all connected")
        prefer(store, three[0], 0)
        while not store.damage.reports():  # until it is among those that were asked
            await CommittedReads(store, "d", "x").begin(650_000)
        assert [one.offset for one in store.damage.reports()] == [0], "nobody knows its first wrong byte"
    async with open_store(url_of(three)) as store:
        await until(lambda: all(one.connected for one in store.members()), "all connected")
        prefer(store, three[0], 100_000)
        await store.read("d", "x", 650_000, 100_000, committed=True)
        assert {await store.read("d", "x", 700_000, 1) for _ in range(20)} == {content[700_000:700_001]}
        three[1].kill()
        three[2].kill()
        with pytest.raises(CorruptError, match="has other bytes of d/x than a quorum"):
            await store.read("d", "x", 700_000, 1)


def prefer(store: Store, server: ThreadServer, size: int) -> None:
    """Have the store believe that this member is the quickest."""
    for member in store.record.members:
        seconds = 0.0001 if member.server_id.hex() == server.server_id else 1.0
        for one in (size, PIECE):
            store.pace.note(member.server_id, one, seconds, trio.current_time())


@pytest.mark.trio
async def test_members_that_contradict_each_other_without_a_quorum_are_named_and_not_served(
    three: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # EVIDENCE-OF: P-5
    monkeypatch.setattr(committed_reads, "read_timeout_s", 0.5)  # so long they may be about to be put right
    content = os.urandom(200_000)
    await written(three, content)
    await falsify(three[0], content[:150_000] + bytes(50_000), tmp_path)
    three[2].kill()
    async with open_store(url_of(three)) as store:
        assert await store.read("d", "x", 0, 150_000, committed=True) == content[:150_000]
        found = b""

        async def read_on() -> None:
            nonlocal found
            async for data in store.stream("d", "x", 10):
                found += data

        with pytest.raises(CorruptError) as caught:
            await read_on()
        assert content[10:].startswith(found)
        assert len(found) >= 149_990
        assert three[0].location in str(caught.value)
        assert three[1].location in str(caught.value)
        three[2].restart()
        assert await store.read("d", "x", 0, 200_000, committed=True) == content


@pytest.mark.trio
async def test_what_one_member_alone_holds_is_not_served_as_committed(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await written(three, b"acknowledged")
    async with open_store(url_of(three)) as store:
        assert await store.read("d", "x", 0, 99, committed=True) == b"acknowledged"
        three[1].kill()
        three[2].kill()
        assert await store.read("d", "x", 0, 99) == b"acknowledged"
        with trio.move_on_after(1.0) as scope:
            await store.read("d", "x", 0, 99, committed=True)
        assert scope.cancelled_caught, "one member of three cannot say what a quorum has"
    async with connect(three[0].url) as one:
        assert await one.read("d", "x", 0, 99, committed=True) == b"acknowledged", "asked alone, it is all"


@pytest.mark.trio
async def test_a_damaged_copy_does_not_say_how_far_an_object_goes(three: Threads) -> None:
    """One member has the end, and is away; one was away when it was written; one is damaged before it. The
    two that answer agree on a shorter object, which no reader may take for complete."""
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        writer.append(b"acknowledged, ")
        for server in three:
            await has(server, "d", "x", b"acknowledged, ")
        three[1].kill()
        writer.append(b"and so is this")
        for server in (three[0], three[2]):
            await has(server, "d", "x", b"acknowledged, and so is this")
    three[0].kill()
    three[2].kill()
    three[1].restart()
    flip(three[0], file_of(three[0]).stat().st_size - 1)
    three[0].restart()
    async with open_store(url_of(three)) as store:
        there = [bytes.fromhex(one.server_id) for one in three[:2]]
        await until(lambda: all(map(store.is_connected, there)), "both that are there are connected")
        with pytest.raises(QuorumUnavailableError, match="2 members are needed to say how far it goes"):
            await CommittedReads(store, "d", "x").reach()


@pytest.mark.trio
async def test_a_take_over_reports_a_lying_copy_and_reads_it_from_the_others(
    three: Threads, tmp_path: Path
) -> None:
    # EVIDENCE-OF: P-2, P-5
    content = os.urandom(300_000)
    await written(three, content)
    await falsify(three[1], content[:-1] + bytes([content[-1] ^ 1]), tmp_path)
    async with claimed(three, epoch=2) as (store, claim):
        await until(lambda: len(claim.answers) == 3, "all claimed")
        await claim.settle("x", len(content), prefix_digest(content))
        await until(lambda: bool(store.damage.reports()), "it is reported")
        assert reports(three, store.damage.reports()) == [(1, CopyFault.DIFFERENT)]
        for member in (*store.record.members, *store.record.members):
            wrong = member.server_id.hex() == three[1].server_id
            store.pace.note(member.server_id, 300_000, 0.0001 if wrong else 1.0, trio.current_time())
        assert await claim.read("x", 0, 300_000) == content
        assert await store.read("d", "x", 0, 300_000) == content
