"""The records of a replacement, and the log in which they are decided."""

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from dos_client import QuorumUnavailableError, open_store
from dos_client.core import logs
from dos_client.core.logs import OVERRIDES, RECORDS, Override, is_finished
from dos_client.core.membership import ServerAnswer, decide
from dos_client.core.replacement import (
    GENERATIONS_PER_ERA,
    GONE_SUFFIX,
    ReplacementStep,
    StoreSurvivors,
    add,
    begin,
    era,
    finish,
    forced,
    move,
    plan,
    survivors,
    with_spare,
)
from dos_client.limits import change_beat_s
from dos_client.membership import record_log
from dos_client.membership.record_log import open_record_log
from dos_protocol.errors import ClosedError, FencedError
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import Member, StoreRecord, decode_store_record, encode_store_record
from dos_server.testing import memory_store
from tests.dos_client.records import member, record, server_id

G1 = record("abc", 2)
J = server_id("j")


def test_a_replacement_is_two_records() -> None:
    first = plan(G1, "c:1", J, "j:1")
    assert first == (ReplacementStep.BEGIN, record("abc", 2, 2, joining="j", after="c"))
    assert plan(first.record, "c:1", J, "j:1") == (ReplacementStep.FILL, first.record)
    last = finish(first.record)
    assert last == record("abj", 2, 3)
    assert plan(last, "c:1", J, "j:1") == (ReplacementStep.DONE, last)


def test_the_old_member_may_be_named_by_its_identity() -> None:
    assert plan(G1, server_id("c").hex(), J, "j:1") == plan(G1, "c:1", J, "j:1")


def test_a_new_server_may_stand_at_the_old_ones_address() -> None:
    first = plan(G1, "c:1", J, "c:1").record
    assert first.members[2].address == server_id("c").hex() + GONE_SUFFIX
    assert first.members[3] == Member(J, "c:1", "joining")
    assert decode_store_record(encode_store_record(first)) == first
    assert plan(first, "c:1", J, "c:1").step is ReplacementStep.FILL
    assert plan(finish(first), "c:1", J, "c:1").step is ReplacementStep.DONE


def test_a_new_member_that_only_its_own_machine_reaches_is_refused() -> None:
    for change in (
        lambda: plan(G1, "c:1", J, "127.0.0.1:1"),
        lambda: add(G1, J, "127.0.0.1:1"),
        lambda: with_spare(G1, J, "127.0.0.1:1"),
        lambda: move(G1, {server_id("c"): "127.0.0.1:1"}),
    ):
        with pytest.raises(ValueError, match=r"only its own machine can reach 127\.0\.0\.1:1, and the other"):
            change()
    local = StoreRecord(G1.store_id, 1, 1, (Member(server_id("a"), "127.0.0.1:1"),))
    with pytest.raises(ValueError, match=r"only its own machine can reach 127\.0\.0\.1:1, and j:1 is"):
        add(local, J, "j:1")
    assert add(local, J, "127.0.0.1:2").members[1].state == "adding"
    gone = begin(local, local.members[0], J, "127.0.0.1:1")
    assert gone.members[0].address.endswith(GONE_SUFFIX), "it does not count as another machine"


def test_one_that_joins_may_be_let_go_for_another() -> None:
    during = record("abc", 2, 2, joining="j", after="c")
    again = plan(during, "c:1", server_id("k"), "k:1")
    assert again == (ReplacementStep.BEGIN, record("abc", 2, 3, joining="k", after="c"))
    assert plan(during, "j:1", server_id("k"), "k:1") == again


@pytest.mark.parametrize(
    ("old", "new_id", "new_address", "reason"),
    [
        ("x:1", J, "j:1", "x:1 is not a member; the members are a:1, b:1, c:1"),
        ("c:1", server_id("b"), "b:1", "already a member"),
        ("c:1", J, "b:1", "b:1 is the address of member"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    old: str, new_id: bytes, new_address: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        plan(G1, old, new_id, new_address)


def test_a_run_that_was_superseded_beats_no_more() -> None:
    class Superseded:
        beats = 0

        def beat(self) -> None:
            self.beats += 1
            raise FencedError("another run has taken the log over")

    async def main() -> int:
        records: Any = Superseded()
        with trio.move_on_after(10 * change_beat_s):
            await record_log._beat(records)
        return int(records.beats)

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == 1


@pytest.mark.trio
async def test_a_take_over_of_the_log_that_fails_leaves_no_claim_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = list[Any]()

    async def fails(claim: Any) -> None:
        claims.append(claim)
        raise QuorumUnavailableError("too few members")

    monkeypatch.setattr("dos_client.membership.record_log._settle_all", fails)
    async with memory_store() as servers, open_store(servers.url) as store:
        with pytest.raises(QuorumUnavailableError):
            async with open_record_log(store):
                pass
        with pytest.raises(ClosedError):
            claims[0].check()


def test_one_replacement_at_a_time() -> None:
    with pytest.raises(ValueError, match="one replacement at a time"):
        plan(record("abc", 2, 2, joining="j", after="c"), "b:1", server_id("k"), "k:1")


def test_nothing_to_finish_is_refused() -> None:
    with pytest.raises(ValueError, match="no member joins"):
        finish(G1)


@given(st.lists(st.integers(1, 50), max_size=5), st.integers(0, 400))
def test_the_log_gives_the_whole_entries_of_any_cut(generations: list[int], cut: int) -> None:
    entries = [RECORDS.encode(record("abc", 2, one)) for one in generations]
    data = b"".join(entries)[:cut]
    found, whole = logs.decode_records(data)
    assert [one.generation for one in found] == generations[: len(found)]
    assert whole == sum(len(entry) for entry in entries[: len(found)])
    if len(found) < len(entries):
        assert len(data) - whole < len(entries[len(found)])


@given(st.binary(max_size=300))
def test_whatever_the_bytes_the_log_is_read_without_an_error(data: bytes) -> None:
    found, whole = logs.decode_records(data)
    assert whole == 0 or found


def test_a_flipped_bit_ends_the_log_there() -> None:
    entry = RECORDS.encode(G1)
    for position in range(4, len(entry)):
        damaged = bytearray(entry + entry)
        damaged[len(entry) + position] ^= 1
        assert logs.decode_records(bytes(damaged)) == ([G1], len(entry))


def test_the_head_is_the_highest_epoch_and_of_it_the_longest_copy() -> None:
    old, new = RECORDS.object_name(9), RECORDS.object_name(16)
    answers = {
        b"a": {old: ObjectInfo(old, 50, 50), "other": ObjectInfo("other")},
        b"b": {old: ObjectInfo(old, 70, 70), new: ObjectInfo(new, 10, 10)},
    }
    assert RECORDS.names(answers) == [old, new]
    assert logs.longest(answers, old) == (b"b", ObjectInfo(old, 70, 70))
    assert logs.longest(answers, "nothing") is None


def test_beginning_keeps_identities_and_order() -> None:
    assert [one.server_id for one in begin(G1, member("a"), J, "j:1").members] == [
        server_id(letter) for letter in "ajbc"
    ]


def answer(letter: str, shown: StoreRecord | None, address: str = "") -> ServerAnswer:
    return ServerAnswer(address or f"{letter}:1", server_id(letter), shown)


def stand(*answers: ServerAnswer) -> StoreSurvivors:
    found = survivors(decide(answers), answers)
    assert found is not None
    return found


THREE, TWO = record("abc", 2), record("ab", 2)


def test_enough_members_need_no_word() -> None:
    now = stand(answer("a", THREE), answer("c", THREE))
    assert now.complete
    assert [one.address for one in now.lost] == ["b:1"]


def test_of_two_one_has_all_that_was_acknowledged_and_of_three_it_has_not() -> None:
    now = stand(answer("a", TWO))
    assert (now.complete, now.covered) == (False, True)
    now = stand(answer("a", THREE))
    assert (now.complete, now.covered) == (False, False)
    now = stand(answer("a", record("abc", 3)))
    assert (now.complete, now.covered) == (False, True)
    now = stand(answer("a", record("abcde", 3)), answer("b", record("abcde", 3)))
    assert (now.complete, now.covered) == (False, False)


def test_wiped_and_foreign_servers_are_not_among_those_who_exist() -> None:
    foreign = StoreRecord(b"F" * 16, 9, 2, (member("c"), member("d")))
    wiped = ServerAnswer("b:1", server_id("x"), None)
    assert [one.address for one in stand(answer("a", TWO), wiped).present] == ["a:1"]
    both = [answer("a", TWO), wiped, answer("c", foreign)]
    assert [one.address for one in stand(*both).present] == ["a:1"]
    apart = [answer("a", TWO), answer("c", foreign)]
    assert survivors(decide(apart, addresses=["a:1", "c:1"]), apart) is None, (
        "nobody guesses which store is meant"
    )
    assert survivors(decide([]), []) is None


def test_the_forced_record_is_of_the_survivors_and_lies_an_era_above_all_that_was_seen() -> None:
    now = stand(answer("a", record("abc", 2, 7), "moved:1"))
    assert forced(now) == StoreRecord(
        now.record.store_id, 7 + GENERATIONS_PER_ERA, 1, (Member(server_id("a"), "moved:1"),)
    )
    assert era(forced(now).generation) == 1
    with_new = forced(now, Member(server_id("n"), "n:1"))
    assert [one.state for one in with_new.members] == ["in", "adding"]
    assert encode_store_record(with_new)
    later = decide([answer("a", with_new), answer("b", THREE), answer("c", THREE)])
    assert later.record == with_new, "it counts, also beside the lost who came back and agree with each other"
    assert {one.server_id for one in later.help} == {server_id("b"), server_id("c")}, (
        "they hear that they are out"
    )
    with pytest.raises(ValueError, match="the address of a member"):
        forced(now, Member(server_id("n"), "moved:1"))


def test_the_log_of_overrides_is_read_whatever_is_in_it() -> None:
    one = Override("accept-loss", "now", "me", 5, 1, ["a"], ["b"])
    line = OVERRIDES.encode(one)
    data = line + b"{not json\n" + b'{"version": 1, "other": 2}\n' + line[:-9]
    assert OVERRIDES.decode(data) == [one]
    assert not is_finished([one], 5)
    assert is_finished([Override("accept-loss", "", "", 5, 1, finished=True)], 5)
