"""Who is left of a store, and the record that a person may force. Plain values."""

import pytest

from dos_client.core.logs import OVERRIDES, Override, is_finished
from dos_client.core.membership import ServerAnswer, decide
from dos_client.core.replacement import GENERATIONS_PER_ERA, StoreSurvivors, era, forced, survivors
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from tests.dos_client.records import member, record, server_id


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
