"""What may be done to a copy: against every way in which bytes can have been acknowledged."""

from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.comparing import ABSENT, MemberCopy, RepairPlan, RepairRefused, needed_digests, plan
from dos_client.core.quorum import Quorums
from dos_protocol.digests import prefix_digest
from dos_protocol.store_record import Member, StoreRecord

IDS = [bytes([n]) * 16 for n in range(1, 6)]
Contents = dict[bytes, bytes | None]


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
