"""Which members count. Each decision that counts members is a row, and is asked with and without a member
that must not count. The answer is the same, or there is none.
"""

from collections.abc import Awaitable, Callable
from itertools import combinations
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dos_client import open_store
from dos_client.core.agreement import agree, reach, reading_quorums, view_of
from dos_client.core.membership import ServerAnswer, decide, is_confirmed
from dos_client.core.quorum import Quorums, refusal_of_token
from dos_client.core.replacement import add, survivors
from dos_client.errors import QuorumUnavailableError
from dos_client.repair.verifying import need_quorum
from dos_client.repair.walking import open_walk
from dos_client.store import Store
from dos_protocol.errors import BrokenConnectionError, ForbiddenError, NotFoundError
from dos_protocol.messages import DirectoryOpened, ObjectInfo
from dos_protocol.store_record import Member, StoreRecord
from dos_server.testing import memory_store
from journal.core.chain import SegmentName, segments_seen
from journal.core.read_walk import held_by_quorum
from tests.dos_client.records import member, record, server_id

RECORDS = {
    "three": record("abc", 2),
    "four, three acknowledge": record("abcd", 3),
    "one joins": record("abc", 2, 2, joining="j", after="c"),
    "one is added": add(record("abc", 2), server_id("j"), "j:1"),
    "two and a spare": StoreRecord(
        b"S" * 16, 1, 2, (member("a"), member("b")), (Member(server_id("s"), "s:1"),)
    ),
}
STRANGERS = {"a removed member": "r", "a spare that decides nothing": "t"}
SEGMENT = SegmentName("log", 3, 0)

Members = tuple[bytes, ...]


def view(record: StoreRecord, members: Members) -> object:
    """Which members' answers prove what a directory has; None if they are too few."""
    opened = {one: DirectoryOpened(1, b"w" * 16, (ObjectInfo("x", 5, 5, 0),)) for one in members}
    try:
        return sorted(view_of("d", record, opened, {}).answers)
    except QuorumUnavailableError:
        return None


def held(record: StoreRecord, members: Members) -> object:
    """How many bytes of a segment readers take for acknowledged."""
    objects = {one: {str(SEGMENT): ObjectInfo(str(SEGMENT), 5, 5, 0)} for one in members}
    seen = segments_seen("log", objects)
    return held_by_quorum(Quorums(record), seen[0], dict.fromkeys(members, 3), {}) if seen else 0


def refused(record: StoreRecord, members: Members) -> object:
    """Whether so many members refuse a token that it is refused."""
    return refusal_of_token(Quorums(record), dict.fromkeys(members, ForbiddenError("no"))) is not None


COUNTING: dict[str, Callable[[StoreRecord, Members], object]] = {
    "acknowledge": lambda record, members: Quorums(record).can_acknowledge(members),
    "members that are missing": lambda record, members: Quorums(record).lacking(members),
    "take over": lambda record, members: Quorums(record).can_take_over(members),
    "read": lambda record, members: reading_quorums(record).can_take_over(members),
    "cover in a repair": lambda record, members: Quorums(record).cover(members),
    "watermark": lambda record, members: Quorums(record).watermark(dict.fromkeys(members, 5)),
    "agree on a digest": lambda record, members: agree(
        Quorums(record), {one: 7 if record.member(one) in record.members else 8 for one in members}
    ),
    "end of an object": lambda record, members: (
        reach(Quorums(record), dict.fromkeys(members, 5), members).sure
    ),
    "view of a directory": view,
    "bytes of a segment": held,
    "refusal of a token": refused,
}
"""What is counted -> the answer, if exactly these members answer alike."""


@pytest.mark.parametrize("what", COUNTING)
@pytest.mark.parametrize("store", RECORDS)
@pytest.mark.parametrize("stranger", STRANGERS)
def test_who_is_not_in_the_record_changes_no_count(what: str, store: str, stranger: str) -> None:
    ask, one = COUNTING[what], RECORDS[store]
    ids = [member.server_id for member in one.members]
    answers = set()
    for size in range(len(ids) + 1):
        for members in combinations(ids, size):
            alone = ask(one, members)
            assert ask(one, (*members, server_id(STRANGERS[stranger]))) == alone, members
            answers.add(str(alone))
    assert len(answers) > 1, "the members of the record do change it"


def test_members_with_a_claim_of_another_epoch_acknowledge_nothing_of_a_segment() -> None:
    one = RECORDS["three"]
    ids = [member.server_id for member in one.members]
    seen = segments_seen(
        "log", {member: {str(SEGMENT): ObjectInfo(str(SEGMENT), 5, 5, 0)} for member in ids}
    )[0]
    for claims in ({ids[0]: 3, ids[1]: 2}, {ids[0]: 3, ids[1]: 4}, {ids[0]: 3}):
        assert held_by_quorum(Quorums(one), seen, claims, {}) == 0
    assert held_by_quorum(Quorums(one), seen, {ids[0]: 3, ids[1]: 3, ids[2]: 4}, {}) == 5


# --- Records of a store -----------------------------------------------------------------------------------


def answer(letter: str, one: StoreRecord | None, **more: Any) -> ServerAnswer:
    return ServerAnswer(f"{letter}:1", server_id(letter), one, **more)


OTHERS: dict[str, Callable[[StoreRecord], ServerAnswer]] = {
    "went back in time": lambda one: answer("b", one, rolled_back=True),
    "of another store": lambda one: answer("b", StoreRecord(b"T" * 16, one.generation, 2, one.members)),
    "in no store": lambda one: answer("b", None),
    "not of the record": lambda one: answer("r", one),
}
OF_AN_OLDER_GENERATION = answer("b", record("abc", 2, 1))


@pytest.mark.parametrize("other", OTHERS)
def test_a_record_of_a_store_is_confirmed_and_survived_by_members_that_count(other: str) -> None:
    one = record("abc", 2, 5)
    alone, counts = [answer("a", one)], answer("b", one)
    extra = OTHERS[other](one)
    assert is_confirmed(one, [*alone, counts])
    assert not is_confirmed(one, [*alone, extra])
    assert not is_confirmed(one, [*alone, OF_AN_OLDER_GENERATION])
    for answers, enough in (([*alone, counts], True), ([*alone, extra], False)):
        membership = decide(answers, store_id=one.store_id)
        assert (membership.record is not None) == enough
        now = survivors(membership, answers)
        assert now is not None
        assert [member.server_id for member in now.present] == [server_id("a"), server_id("b")][: 1 + enough]
        assert now.complete == enough


# --- Reads of a store -------------------------------------------------------------------------------------


async def all_stat(store: Store) -> None:
    assert len(await store.stat("d", "x")) > 1, "two members answered"


async def grown(store: Store) -> None:
    with store.growth("d", "x", 0) as growth:
        assert await growth.beyond(0) == 7


READS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "a read of what does not exist": lambda store: store.read("d", "nothing", 0, 10),
    "a committed read of what does not exist": lambda store: store.read(
        "d", "nothing", 0, 10, committed=True
    ),
    "a committed read past the end": lambda store: store.read("d", "x", 100, 10, committed=True),
    "the list of directories": lambda store: store.list_directories(),
    "a view": lambda store: store.inspect("d"),
    "the sizes of copies": all_stat,
    "growth of an object": grown,
}


async def asked(store: Store, read: Callable[[Store], Awaitable[object]]) -> str:
    """What the store says: nothing, an absence, too few members."""
    with trio.move_on_after(30) as scope:
        try:
            await read(store)
        except NotFoundError:
            return "absent"
        except (QuorumUnavailableError, AssertionError):
            return "too few"
        except Exception as error:
            return type(error).__name__
    return "too few" if scope.cancelled_caught else "answered"


@pytest.mark.parametrize("what", READS)
def test_a_member_that_is_found_to_have_gone_back_counts_in_no_read(what: str) -> None:
    """One of three is off, another one answers, and only then it is known that its disk went back."""

    async def run() -> None:
        async with memory_store() as servers, open_store(servers.url) as store:
            async with await store.claim("d", 1, b"w" * 16) as claim:
                writer = claim.open_object("x")
                await writer.wait_synced(writer.append(b"content"))
            await servers[0].stop()
            before = await asked(store, READS[what])
            assert before in ("absent", "answered", "PastEndError")
            store.witnesses.rolled_back.add(store.record.members[1].server_id)
            assert await asked(store, READS[what]) == "too few"

    trio.run(run, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("how", ["its session ends", "its disk went back"])
def test_a_member_that_is_lost_during_a_comparison_counts_no_more(how: str) -> None:
    async def run() -> None:
        async with memory_store() as servers, open_store(servers.url) as store:
            async with await store.claim("d", 1, b"w" * 16) as claim:
                writer = claim.open_object("x")
                await writer.wait_synced(writer.append(b"content"))
            async with open_walk(store) as walk:
                await walk.enter("d")
                assert len(walk.infos("x")) == len(walk.infos("nothing")) == 3
                if how == "its session ends":
                    await servers[0].stop()
                    with trio.fail_after(30):
                        while len(walk.sessions) == 3:  # noqa: ASYNC110 - in virtual time
                            await trio.sleep(0.1)
                else:
                    store.witnesses.rolled_back.add(store.record.members[0].server_id)
                    await walk.enter("d")
                assert len(walk.infos("x")) == len(walk.infos("nothing")) == 2
                need_quorum(walk, "compare the copies")
                walk.lose(store.record.members[1].server_id, BrokenConnectionError("it ended"))
                with pytest.raises(QuorumUnavailableError):
                    need_quorum(walk, "compare the copies")

    trio.run(run, clock=MockClock(autojump_threshold=0))
