"""Quorums: the counts that everything else stands on."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.quorum import Quorums, joining_member, replaced_member
from dos_client.core.replacement import add, finish
from dos_protocol.store_record import StoreRecord
from tests.dos_client.records import member, record, server_id

SIZES = [(n, qa) for n in range(1, 6) for qa in range(1, n + 1)]


def subsets(ids: frozenset[bytes]) -> list[tuple[bytes, ...]]:
    return [chosen for count in range(len(ids) + 1) for chosen in combinations(sorted(ids), count)]


@pytest.mark.parametrize(("n", "qa"), SIZES)
def test_every_take_over_meets_every_acknowledgement_and_every_other_take_over(n: int, qa: int) -> None:
    # EVIDENCE-OF: P-4, P-5
    quorums = Quorums(record("abcde"[:n], qa))
    takes = [set(one) for one in subsets(quorums.members) if quorums.can_take_over(one)]
    acks = [set(one) for one in subsets(quorums.members) if quorums.can_acknowledge(one)]
    assert takes
    assert all(take & ack for take in takes for ack in acks)
    assert all(one & other for one in takes for other in takes)


@pytest.mark.parametrize(("n", "qa"), SIZES)
def test_while_one_joins_quorums_meet_those_of_the_records_before_and_after(n: int, qa: int) -> None:
    # EVIDENCE-OF: P-4, P-5
    before = Quorums(record("abcde"[:n], qa))
    during = Quorums(record("abcde"[:n], qa, 2, joining="j", after="a"))
    after = Quorums(record("jbcde"[:n], qa, 3))
    for other in (before, during, after):
        takes = [set(one) for one in subsets(other.members) if other.can_take_over(one)]
        acks = [set(one) for one in subsets(during.members) if during.can_acknowledge(one)]
        assert all(take & ack for take in takes for ack in acks), (
            "what is acknowledged while it joins is found"
        )
        takes = [set(one) for one in subsets(during.members) if during.can_take_over(one)]
        acks = [set(one) for one in subsets(other.members) if other.can_acknowledge(one)]
        assert all(take & ack for take in takes for ack in acks), (
            "a take-over while it joins fences the others"
        )


@pytest.mark.parametrize(("n", "qa"), [(n, qa) for n, qa in SIZES if n < 5])
def test_while_one_is_added_quorums_meet_those_of_the_smaller_and_the_larger_store(n: int, qa: int) -> None:
    # EVIDENCE-OF: P-4, P-5
    before = record("abcd"[:n], qa)
    during = add(before, server_id("j"), "j:1")
    after = finish(during)
    assert after.ack_quorum <= qa + 1, "the new one is filled: what Qa members hold is then on Qa + 1"
    for other in (before, during, after):
        for takers, ackers in ((other, during), (during, other)):
            takes = [
                set(one) for one in subsets(Quorums(takers).members) if Quorums(takers).can_take_over(one)
            ]
            acks = [
                set(one) for one in subsets(Quorums(ackers).members) if Quorums(ackers).can_acknowledge(one)
            ]
            assert all(take & ack for take in takes for ack in acks)
            assert takes
            assert acks
    everyone = [server_id(letter) for letter in "abcd"[:n]]
    assert not Quorums(during).can_acknowledge(everyone), "the new one too"
    assert Quorums(during).watermark(dict.fromkeys(everyone, 5)) == 0
    assert Quorums(during).watermark(dict.fromkeys([*everyone, server_id("j")], 5)) == 5
    takes = [set(one) for one in subsets(Quorums(after).members) if Quorums(after).can_take_over(one)]
    holders = [
        {*one, server_id("j")}
        for one in subsets(Quorums(before).members)
        if Quorums(before).can_acknowledge(one)
    ]
    assert all(take & held for take in takes for held in holders), (
        "what was acknowledged before, once it is filled"
    )
    claimed = [
        {*one, server_id("j")}
        for one in subsets(Quorums(before).members)
        if Quorums(before).can_take_over(one)
    ]
    assert all(take & held for take in takes for held in claimed), "who was fenced before stays fenced"


@pytest.mark.parametrize(("n", "qa"), [(n, qa) for n, qa in SIZES if n < 5])
def test_while_one_is_added_members_cover_only_what_a_quorum_of_before_cannot_have_alone(
    n: int, qa: int
) -> None:
    """What is acknowledged meanwhile is everywhere, what was before is on Qa: who covers has one of those."""
    letters = "abcd"[:n]
    before, during = Quorums(record(letters, qa)), Quorums(add(record(letters, qa), server_id("j"), "j:1"))
    acks = [set(one) for one in subsets(before.members) if before.can_acknowledge(one)]
    covers = [set(one) for one in subsets(during.members) if during.cover(one)]
    assert all(cover & ack for cover in covers for ack in acks)
    assert {server_id(letter) for letter in letters[: n - qa + 1]} in covers


def test_with_the_replaced_member_dead_the_two_others_continue() -> None:
    during = Quorums(record("abc", 2, 2, joining="j", after="c"))
    assert during.can_acknowledge([server_id("a"), server_id("b")])
    assert during.can_take_over([server_id("a"), server_id("b")])
    assert not during.can_acknowledge([server_id("a"), server_id("c")])
    assert during.can_acknowledge([server_id("a"), server_id("c"), server_id("j")])


@given(st.dictionaries(st.sampled_from("abcj"), st.integers(0, 9)), st.integers(1, 3), st.booleans())
def test_the_watermark_is_the_largest_size_that_a_quorum_has(
    sizes: dict[str, int], qa: int, joins: bool
) -> None:
    quorums = Quorums(record("abc", qa, joining="j", after="b") if joins else record("abc", qa))
    have = {server_id(letter): size for letter, size in sizes.items()}
    largest = max(
        size
        for size in range(10)
        if size == 0 or quorums.can_acknowledge([k for k, v in have.items() if v >= size])
    )
    assert quorums.watermark(have) == largest


def test_the_joining_member_stands_after_the_one_it_replaces() -> None:
    one = record("abc", 2, joining="j", after="b")
    assert joining_member(one) == member("j", "joining")
    assert replaced_member(one) == member("b")
    assert joining_member(record("abc", 2)) is None
    assert replaced_member(record("abc", 2)) is None


def test_two_that_join_or_one_that_replaces_nobody_are_refused() -> None:
    for members in (
        (member("j", "joining"), member("a"), member("b")),
        (member("a"), member("j", "joining"), member("k", "joining"), member("b")),
    ):
        with pytest.raises(ValueError, match="only one member may join at a time"):
            Quorums(StoreRecord(b"S" * 16, 1, 1, members))
