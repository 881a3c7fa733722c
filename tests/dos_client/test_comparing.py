"""What copies are to each other: the verdicts against the bytes themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.comparing import (
    ABSENT,
    CopyState,
    MemberCopy,
    RepairPlan,
    RepairRefused,
    epoch_granted_twice,
    judge,
    needed_digests,
    plan,
)
from dos_client.core.quorum import Quorums
from dos_protocol.digests import prefix_digest
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import Member, StoreRecord

A, B, C, D, E = (bytes([n]) * 16 for n in range(1, 6))
Contents = dict[bytes, bytes | None]


def judged(contents: Contents, damaged: frozenset[bytes] = frozenset()) -> dict[bytes, CopyState]:
    copies = {
        one: ABSENT if data is None else MemberCopy(len(data), prefix_digest(data), damaged=one in damaged)
        for one, data in contents.items()
    }
    digests = {
        (one, size): prefix_digest((contents[one] or b"")[:size]) for one, size in needed_digests(copies)
    }
    return judge(copies, digests).verdicts


def test_lagging_copies_are_behind_and_not_different() -> None:
    assert judged({A: b"abc", B: b"ab", C: None}) == {
        A: CopyState.EQUAL,
        B: CopyState.BEHIND,
        C: CopyState.MISSING,
    }
    assert judged({A: b"", B: None}) == {A: CopyState.EQUAL, B: CopyState.MISSING}
    assert judged({A: None, B: None}) == {A: CopyState.EQUAL, B: CopyState.EQUAL}


def test_the_copy_that_most_contradict_is_the_one_that_differs() -> None:
    assert judged({A: b"abc", B: b"abX", C: b"ab", D: b"abc"})[B] is CopyState.DIFFERS
    verdicts = judged({A: b"abXY", B: b"abc", C: b"ab"})
    assert verdicts == {A: CopyState.DIFFERS, B: CopyState.DIFFERS, C: CopyState.BEHIND}, "nobody knows which"


def test_a_damaged_copy_is_that_and_judges_nobody() -> None:
    verdicts = judged({A: b"abc", B: b"abX and more", C: b"abc"}, frozenset({B}))
    assert verdicts == {A: CopyState.EQUAL, B: CopyState.DAMAGED, C: CopyState.EQUAL}


contents = st.dictionaries(
    st.sampled_from([A, B, C, D, E]),
    st.one_of(st.none(), st.text("ab", max_size=5).map(str.encode)),
    min_size=1,
)


@given(contents=contents, damaged=st.frozensets(st.sampled_from([A, B]), max_size=2))
def test_verdicts_say_what_the_bytes_say(contents: Contents, damaged: frozenset[bytes]) -> None:
    copies = {
        one: ABSENT if data is None else MemberCopy(len(data), prefix_digest(data), damaged=one in damaged)
        for one, data in contents.items()
    }
    digests = {
        (one, size): prefix_digest((contents[one] or b"")[:size]) for one, size in needed_digests(copies)
    }
    judgement = judge(copies, digests)
    assert judgement.verdicts.keys() == copies.keys()
    sound = {one: data or b"" for one, data in contents.items() if not copies[one].damaged}
    one_history = (
        all(max(sound.values(), key=len).startswith(data) for data in sound.values()) if sound else True
    )
    for one, verdict in judgement.verdicts.items():
        assert (verdict is CopyState.DAMAGED) == (one in damaged and contents[one] is not None)
        if one_history:
            assert verdict is not CopyState.DIFFERS
    if judgement.reference is not None:
        head = next(
            data
            for one, data in sound.items()
            if one in judgement.line and len(data) == judgement.reference.size
        )
        for one, data in sound.items():
            verdict = judgement.verdicts[one]
            assert (verdict is CopyState.DIFFERS) == (not head.startswith(data))
            assert verdict is not CopyState.EQUAL or data == head
            assert verdict is not CopyState.BEHIND or len(data) < len(head)
            others = [other for other in sound.values() if not head.startswith(other)]
            for other in others:
                line = [one for one in sound.values() if other.startswith(one)]
                assert len(line) < len(judgement.line), "the reference is what most hold"


def segment(chain: str, epoch: int) -> str:
    return f"{chain}.{epoch:016x}.{0:016x}"


def objects(*entries: tuple[str, int]) -> dict[str, ObjectInfo]:
    return {name: ObjectInfo(name, size, size, prefix_digest(bytes(size))) for name, size in entries}


FIRST, SECOND, OLDER = (5, b"x" * 16), (5, b"y" * 16), (4, b"z" * 16)


@pytest.mark.parametrize(
    ("claims", "held", "epoch"),
    [
        # two writers that contended for an epoch: at most one of them was granted it, and began a segment
        ((FIRST, SECOND, SECOND), ((), (("J", 5, 9),), (("J", 5, 9),)), 0),
        ((FIRST, SECOND, SECOND), ((("J", 4, 99),), (("J", 5, 9),), ()), 0),
        # ... and a repair has copied a part of it to the member of the other claim
        ((FIRST, SECOND, SECOND), ((("J", 5, 9),), (("J", 5, 9), ("J", 5, 9)), ()), 0),
        ((FIRST, SECOND, SECOND), ((("J", 5, 3),), (("J", 5, 9),), ()), 0),
        # both began segments: of two journals, or of one with other lengths of other content
        ((FIRST, SECOND, SECOND), ((("J", 5, 9),), (("K", 5, 9),), ()), 5),
        ((FIRST, SECOND, SECOND), ((("J", 5, 9), ("K", 5, 1)), (("J", 5, 10),), ()), 5),
        # the same, and a member holds an older claim; one writer only; epochs that differ
        ((FIRST, SECOND, OLDER), ((("J", 5, 9),), (("K", 5, 9),), ()), 5),
        ((FIRST, FIRST, FIRST), ((("J", 5, 9),), (("K", 5, 9),), ()), 0),
        ((FIRST, OLDER, OLDER), ((("J", 5, 9),), (("K", 5, 9),), ()), 0),
    ],
)
def test_an_epoch_was_granted_twice_if_both_of_its_writers_began_segments(
    claims: tuple[tuple[int, bytes], ...], held: tuple[tuple[tuple[str, int, int], ...], ...], epoch: int
) -> None:
    by_member = {bytes([number]) * 16: claim for number, claim in enumerate(claims)}
    entries = {
        bytes([number]) * 16: objects(*((segment(chain, of), size) for chain, of, size in one))
        for number, one in enumerate(held)
    }
    assert epoch_granted_twice(by_member, entries) == epoch


IDS = [bytes([n]) * 16 for n in range(1, 6)]


def quorums(n: int, qa: int, *, joining: bool = False) -> Quorums:
    members = [Member(one, f"{one[0]}:1") for one in IDS[:n]]
    if joining:
        members.append(Member(b"j" * 16, "j:1", "joining"))
    return Quorums(StoreRecord(b"s" * 16, 1, qa, tuple(members)))


def planned(
    contents: Contents, member: bytes, q: Quorums, damaged: frozenset[bytes] = frozenset()
) -> RepairPlan | RepairRefused | None:
    copies = {
        one: ABSENT if data is None else MemberCopy(len(data), prefix_digest(data), damaged=one in damaged)
        for one, data in contents.items()
    }
    digests = {
        (one, size): prefix_digest((contents[one] or b"")[:size]) for one, size in needed_digests(copies)
    }
    return plan(member, copies, digests, q)


A, B, C = IDS[:3]
THREE = quorums(3, 2)


def test_a_short_or_missing_copy_is_lengthened_from_one_that_begins_with_it() -> None:
    todo = planned({A: b"abc", B: b"a", C: None}, B, THREE)
    assert isinstance(todo, RepairPlan)
    assert (todo.goal.size, todo.sources, todo.overwrite) == (3, (A,), False)
    assert isinstance(planned({A: b"abc", C: None}, C, THREE), RepairPlan), (
        "one other is enough: nothing is taken away"
    )
    assert planned({A: b"abc", B: b"ab", C: b""}, A, THREE) is None, "the longest stays"
    assert isinstance(planned({A: b"abc", B: b"abX", C: b"ab"}, C, THREE), RepairRefused)


def test_a_damaged_copy_needs_others_that_hold_all_that_was_acknowledged() -> None:
    bad = frozenset({A})
    todo = planned({A: b"ab", B: b"abcd", C: b"abc"}, A, THREE, bad)
    assert isinstance(todo, RepairPlan)
    assert (todo.goal.size, todo.sources, todo.overwrite) == (4, (B,), False)
    assert isinstance(planned({A: b"ab", B: b"abcd"}, A, THREE, bad), RepairRefused)
    assert isinstance(planned({A: b"ab", B: b"abcd", C: b"abX"}, A, THREE, bad), RepairRefused)
    assert isinstance(planned({A: b"ab", B: b"ab"}, A, quorums(2, 2), bad), RepairPlan), (
        "each byte was on both"
    )
    assert isinstance(planned({A: b"ab"}, A, quorums(1, 1), bad), RepairRefused)
    assert isinstance(planned({A: b"ab", B: b"ab", C: b"ab"}, A, quorums(3, 1), bad), RepairRefused)


def test_a_copy_that_differs_is_replaced_only_when_it_can_never_have_been_acknowledged() -> None:
    todo = planned({A: b"abX and more", B: b"abcd", C: b"abc"}, A, THREE)
    assert isinstance(todo, RepairPlan)
    assert (todo.goal.size, todo.overwrite) == (4, True)
    assert isinstance(planned({A: b"abX", B: b"abcd"}, A, THREE), RepairRefused)
    assert isinstance(planned({A: b"abX", B: b"abcd", C: b"ab"}, A, THREE), RepairRefused), (
        "C may get what A has"
    )
    assert isinstance(planned({A: b"abX", B: b"abcd"}, A, quorums(2, 2)), RepairPlan), "it was on one of two"
    assert isinstance(planned({A: b"x", B: b"y"}, A, quorums(2, 1)), RepairRefused)


def test_while_a_member_joins_both_sets_must_be_covered() -> None:
    q = quorums(3, 2, joining=True)
    bad = frozenset({A})
    assert isinstance(planned({A: b"a", B: b"ab", C: b"ab"}, A, q, bad), RepairRefused), (
        "B alone of the set with J"
    )
    assert isinstance(planned({A: b"a", B: b"ab", C: b"ab", b"j" * 16: b"a"}, A, q, bad), RepairPlan)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Contents, bytes, Quorums, frozenset[bytes], bytes]:
    """Copies on N members of which one history was acknowledged up to a size; the others are anything that a
    dead writer, or an accident, left on the rest."""
    n = draw(st.integers(1, 5))
    qa = draw(st.integers(1, n))
    acknowledged = draw(st.text("ab", max_size=4)).encode()
    holders = draw(st.sets(st.sampled_from(IDS[:n]), min_size=qa, max_size=n))
    contents: Contents = {}
    for one in IDS[:n]:
        tail = draw(st.text("ab", max_size=4)).encode()
        contents[one] = acknowledged + tail if one in holders else draw(st.one_of(st.none(), st.just(tail)))
    member = draw(st.sampled_from(IDS[:n]))
    damaged = (
        frozenset({member}) if draw(st.booleans()) and contents[member] is not None else frozenset[bytes]()
    )
    for one in draw(st.sets(st.sampled_from(IDS[:n]), max_size=2)) - {member}:
        del contents[one]
    if damaged:
        contents[member] = (contents[member] or b"")[: draw(st.integers(0, 4))]
    return contents, member, quorums(n, qa), damaged, acknowledged


@given(story=histories())
def test_no_plan_takes_an_acknowledged_byte_away(
    story: tuple[Contents, bytes, Quorums, frozenset[bytes], bytes],
) -> None:
    # EVIDENCE-OF: P-5
    contents, member, q, damaged, acknowledged = story
    todo = planned(contents, member, q, damaged)
    if not isinstance(todo, RepairPlan):
        return
    source = next((contents[one] or b"" for one in todo.sources), b"")
    new, old = source[: todo.goal.size], contents[member] or b""
    assert prefix_digest(new) == todo.goal.digest
    if not damaged and not todo.overwrite:
        assert new.startswith(old)
    else:
        assert new.startswith(acknowledged)
