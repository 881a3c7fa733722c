"""What copies are to each other: the verdicts against the bytes themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.comparing import (
    ABSENT,
    CopyState,
    MemberCopy,
    epoch_granted_twice,
    judge,
    needed_digests,
)
from dos_protocol.digests import prefix_digest
from dos_protocol.messages import ObjectInfo

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
