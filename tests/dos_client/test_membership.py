"""Which record counts: only one that enough of its own members show."""

import itertools

from dos_client.core.membership import MemberAdmission, Membership, ServerAnswer, admit, decide
from dos_protocol.store_record import Member, StoreRecord
from tests.dos_client.records import member, record, server_id

G1 = record("abc", 2)
G2 = record("abc", 2, 2, joining="j", after="c")
G3 = record("abj", 2, 3)


def shown(**records: StoreRecord | None) -> list[ServerAnswer]:
    """Answers by letter of the server."""
    return [ServerAnswer(f"{letter}:1", server_id(letter), one) for letter, one in records.items()]


def decided(**records: StoreRecord | None) -> Membership:
    return decide(shown(**records))


def test_a_record_that_a_majority_of_its_members_shows_counts() -> None:
    assert decided(a=G1, b=G1).record == G1
    assert decided(a=G1).record is None


def test_the_highest_confirmed_generation_counts() -> None:
    assert decided(a=G2, b=G2, c=G1).record == G2
    assert decided(a=G2, b=G1, c=G1).record == G1
    assert decided(a=G3, b=G2, c=G2, j=G3).record == G3


def test_a_joining_member_confirms_nothing() -> None:
    assert decided(a=G2, j=G2).record is None


def test_a_weak_quorum_needs_more_confirmations_than_a_majority() -> None:
    weak = record("abcde", 2)
    assert decided(a=weak, b=weak, c=weak).record is None
    assert decided(a=weak, b=weak, c=weak, d=weak).record == weak


def test_one_server_under_two_names_counts_once() -> None:
    # EVIDENCE-OF: P-5
    twice = [ServerAnswer("a:1", server_id("a"), G1), ServerAnswer("localhost:1", server_id("a"), G1)]
    assert decide(twice).record is None


def test_a_wiped_server_has_a_new_identity_and_never_counts() -> None:
    # EVIDENCE-OF: P-5
    answers = [*shown(a=G1), ServerAnswer("b:1", server_id("x"), None)]
    found = decide(answers)
    assert found.record is None
    assert any("b:1" in line for line in found.problems)
    assert found.help == ()


def test_a_server_of_another_store_never_counts() -> None:
    foreign = StoreRecord(b"T" * 16, 9, 1, (Member(server_id("b"), "b:1"), member("q")))
    found = decided(a=G1, b=foreign, c=G1)
    assert found.record == G1
    assert any("another store" in line for line in found.problems)


def test_a_stray_server_at_a_members_address_leads_nobody_into_its_own_store() -> None:
    # EVIDENCE-OF: P-5
    stray = StoreRecord(b"T" * 16, 9, 1, (Member(server_id("q"), "c:1"),))
    answers = [*shown(a=G1), ServerAnswer("c:1", server_id("q"), stray)]
    requested = ["a:1", "b:1", "c:1"]
    assert decide(answers, addresses=requested).record is None, (
        "its own is confirmed, and is not the one that is meant"
    )
    assert decide([*answers, *shown(b=G1)], addresses=requested).record == G1


def test_which_store_is_meant_is_said_by_its_newest_record_whoever_answers_first() -> None:
    """The record before a replacement names an address that another store's server has now."""
    stray = StoreRecord(b"T" * 16, 9, 1, (Member(server_id("q"), "c:1"), Member(server_id("r"), "x:1")))
    ours, theirs = shown(a=G3, b=G3, j=G1), ServerAnswer("c:1", server_id("q"), stray)
    requested = ["b:1", "c:1", "x:1"]
    for answers in itertools.permutations([*ours, theirs]):
        found = decide(list(answers), addresses=requested)
        assert (found.record or found.newest) == stray, "it names two of the addresses; ours names one by now"


def test_servers_of_a_store_that_it_leaves_out_are_handed_a_record_that_counts() -> None:
    alone = StoreRecord(G1.store_id, 1 << 20, 1, (member("a"),))
    assert [one.address for one in decided(a=alone, b=G1, c=G1).help] == ["b:1", "c:1"]
    unconfirmed = StoreRecord(G1.store_id, 5, 2, (member("a"), member("d")))
    assert decided(a=unconfirmed, b=G1, c=G1).help == ()


def test_two_stores_behind_one_url_are_no_store() -> None:
    one, other = record("a", 1), StoreRecord(b"T" * 16, 1, 1, (member("b"),))
    assert decided(a=one, b=other).record is None


def test_a_decided_record_is_handed_on_to_members_that_lag() -> None:
    found = decided(a=G2, b=G1, j=None, x=None)
    assert found.newest == G2
    assert {answer.server_id for answer in found.help} == {server_id("b"), server_id("j")}


def test_two_records_of_one_generation_are_handed_to_nobody() -> None:
    other = record("abc", 2, 2, joining="k", after="c")
    found = decided(a=G2, b=other, c=G1)
    assert found.newest is None
    assert found.help == ()
    assert any("different records" in line for line in found.problems)


def test_a_record_that_this_release_does_not_understand_is_not_used() -> None:
    strange = StoreRecord(G1.store_id, 7, 1, (member("j", "joining"), member("a"), member("b")))
    assert decided(a=strange, b=strange, c=G1).record is None


def test_no_answers_are_no_store() -> None:
    assert decide([]) == Membership(None, None, (), ())


def test_a_session_is_worth_having_only_with_the_very_member_at_the_very_generation() -> None:
    a = server_id("a")
    assert admit(G2, a, a, G2) is MemberAdmission.ADMITTED
    assert admit(G2, a, a, G1) is MemberAdmission.OLDER_RECORD
    assert admit(G2, a, a, None) is MemberAdmission.OLDER_RECORD
    assert admit(G2, a, a, G3) is MemberAdmission.NEWER_RECORD
    assert admit(G2, a, server_id("x"), None) is MemberAdmission.OTHER_SERVER
    assert admit(G2, a, server_id("x"), G3) is MemberAdmission.NEWER_RECORD
    assert admit(G2, a, a, StoreRecord(b"T" * 16, 1, 1, (member("a"),))) is MemberAdmission.OTHER_STORE
