"""What has to be asked and told so that a disk which went back is found out: the core, with members that are
lists of stamps."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.witnessing import ProveStamp, StoreStamp, Witnessing
from dos_protocol.store_record import NO_STAMP, DiskStamp

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))
MEMBERS = [A, B, C]


def stamp(number: int, letter: str = "x") -> DiskStamp:
    return DiskStamp(number, letter.encode() * 16)


class Members:
    """Three servers: the history of each, the stamps it knows of the others, and which were detected. `lost`:
    a member that lacks a stamp which another member knows.
    """

    def __init__(self) -> None:
        self.histories = {one: [DiskStamp(1, one)] for one in MEMBERS}
        self.known_stamps: dict[bytes, dict[bytes, DiskStamp]] = {one: {} for one in MEMBERS}
        self.detected: set[bytes] = set()
        self._made = 0

    def start(self, member: bytes) -> None:
        self._made += 1
        number = self.histories[member][-1].number + 1
        self.histories[member].append(DiskStamp(number, self._made.to_bytes(16, "big")))

    def lacks(self, member: bytes, witness: bytes) -> bool:
        """Whether the witness knows a stamp that the member lacks."""
        held = self.known_stamps[witness].get(member)
        return held is not None and held not in self.histories[member]

    def take(self, core: Witnessing, step: ProveStamp | StoreStamp) -> None:
        """As the servers answer."""
        if isinstance(step, ProveStamp):
            if step.stamp not in self.histories[step.member]:
                self.detected.add(step.member)
                core.left(step.member)
                return
            core.proved(step.member, step.stamp, self.histories[step.member][-1])
            return
        held = self.known_stamps[step.witness].get(step.member, NO_STAMP)
        if held == step.before:
            assert not self.lacks(step.member, step.witness), "the proof that it went back is not overwritten"
            held = self.known_stamps[step.witness][step.member] = step.stamp
        core.stored(step.witness, step.member, held)


@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_who_is_compared_with_everybody_there_has_every_stamp_that_they_were_notified_of(
    seed: int, length: int
) -> None:
    # EVIDENCE-OF: P-5
    rng, members = random.Random(seed), Members()
    clients = [(Witnessing(), set[bytes]()) for _ in range(2)]
    copies: dict[bytes, list[DiskStamp]] = {}
    for _ in range(length):
        one, what = rng.choice(MEMBERS), rng.choice(["copy", "start", "back", "client", "client", "client"])
        if what == "copy":
            copies[one] = list(members.histories[one])
        elif what == "client":
            live_on(rng, members, *rng.choice(clients), one)
        else:
            if what == "back" and one in copies:
                members.histories[one] = list(copies[one])
            members.start(one)
            for core, connected in clients:
                core.left(one)
                connected.discard(one)
        for core, connected in clients:
            connected -= members.detected
            for member in connected:
                if not core.steps(member):
                    check_compared(members, core, member, connected)


def live_on(
    rng: random.Random, members: Members, core: Witnessing, connected: set[bytes], one: bytes
) -> None:
    """A client meets a member, leaves it, or takes some of the steps that are due."""
    what = rng.choice(["met", "met", "left", "steps", "steps", "steps"])
    if what == "met" and one not in members.detected:
        core.joined(one, members.histories[one][-1], members.known_stamps[one])
        connected.add(one)
    elif what == "left":
        core.left(one)
        connected.discard(one)
    elif what == "steps":
        for step in core.steps()[: rng.randint(1, 3)]:
            members.take(core, step)


def check_compared(members: Members, core: Witnessing, member: bytes, connected: set[bytes]) -> None:
    for other in connected - {member}:
        for one, witness in ((member, other), (other, member)):
            known = core._stored[witness].get(one)
            assert known == core._newest[one], "both know of each other's newest"
            assert not members.lacks(one, witness), "no disk that went back counts beside who knows it"


def test_all_agree_and_nothing_is_asked() -> None:
    core = Witnessing()
    newest = {one: stamp(3, "n") for one in MEMBERS}
    for one in MEMBERS:
        core.joined(one, newest[one], {other: newest[other] for other in MEMBERS if other != one})
    assert core.steps() == []


def test_who_receives_nothing_is_reported_at_once() -> None:
    core = Witnessing()
    core.joined(A, stamp(3), {})
    assert core.steps() == [], "alone it waits for nobody"
    core.joined(B, stamp(5, "y"), {})
    assert set(core.steps()) == {
        StoreStamp(B, A, stamp(3), NO_STAMP),
        StoreStamp(A, B, stamp(5, "y"), NO_STAMP),
    }
    core.stored(B, A, stamp(3))
    assert core.steps() == [StoreStamp(A, B, stamp(5, "y"), NO_STAMP)]
    assert core.steps(A) == core.steps(B) == core.steps()
    core.stored(A, B, stamp(5, "y"))
    assert core.steps() == []


@pytest.mark.parametrize("other", [stamp(2), stamp(3, "y"), stamp(4)], ids=["older", "as new", "newer"])
def test_another_stamp_is_proved_before_the_newest_is_told_in_its_place(other: DiskStamp) -> None:
    core = Witnessing()
    core.joined(A, stamp(3), {B: stamp(1, "b")})
    core.joined(B, stamp(1, "b"), {A: other})
    assert core.steps() == [ProveStamp(A, other)]
    core.proved(A, other, stamp(4, "z"))
    assert set(core.steps()) == {ProveStamp(A, stamp(3)), StoreStamp(B, A, stamp(4, "z"), other)}, (
        "we knew three"
    )
    core.stored(B, A, stamp(4, "z"))
    core.proved(A, stamp(3), stamp(4, "z"))
    assert core.steps() == []


def test_the_stamps_of_a_copy_are_no_evidence_against_the_disk_that_it_is_a_copy_of() -> None:
    """Found by the simulator: a client saw the older copy first, at the old address of a moved member."""
    core = Witnessing()
    core.joined(A, stamp(2, "copy"), {})
    core.joined(B, stamp(1, "b"), {A: stamp(3, "disk")})
    assert ProveStamp(A, stamp(3, "disk")) in core.steps(A), "the copy does not have it"
    core.went_back(A)
    core.left(A)
    core.joined(A, stamp(3, "disk"), {B: stamp(1, "b")})
    assert core.steps(A) == []


def test_a_client_that_knows_the_disk_still_knows_it_after_it_has_seen_a_copy() -> None:
    core = Witnessing()
    core.joined(A, stamp(3, "disk"), {})
    core.left(A)
    core.joined(A, stamp(2, "copy"), {})
    assert core.steps(A) == [ProveStamp(A, stamp(3, "disk"))]
    core.went_back(A)
    core.left(A)
    core.joined(A, stamp(9, "another copy"), {})
    assert core.steps(A) == [ProveStamp(A, stamp(3, "disk"))]


def test_what_was_proved_before_a_start_is_proved_again() -> None:
    """It may have started on another disk."""
    core = Witnessing()
    core.joined(B, stamp(1, "b"), {A: stamp(2)})
    core.joined(A, stamp(3), {B: stamp(1, "b")})
    core.proved(A, stamp(2), stamp(3))
    assert core.steps() == [StoreStamp(B, A, stamp(3), stamp(2))]
    core.left(A)
    core.joined(A, stamp(3, "other"), {B: stamp(1, "b")})
    assert ProveStamp(A, stamp(2)) in core.steps()
    assert not [one for one in core.steps() if isinstance(one, StoreStamp)]


def test_this_client_is_a_witness_too() -> None:
    core = Witnessing()
    core.joined(A, stamp(3), {})
    core.left(A)
    core.joined(A, stamp(3, "back"), {})
    assert core.steps() == [ProveStamp(A, stamp(3))]
    core.proved(A, stamp(3), stamp(3, "back"))
    assert core.steps() == []
    core.left(A)
    core.joined(A, stamp(4), {})
    assert core.steps() == [ProveStamp(A, stamp(3, "back"))]


def test_a_server_without_stamps_is_not_compared() -> None:
    core = Witnessing()
    core.joined(A, NO_STAMP, {})
    core.joined(B, stamp(1), {A: stamp(7)})
    assert core.steps() == [StoreStamp(A, B, stamp(1), NO_STAMP)]


def test_who_left_is_not_waited_for() -> None:
    core = Witnessing()
    core.joined(A, stamp(3), {})
    core.joined(B, stamp(1), {})
    core.left(B)
    assert core.steps() == []


def test_a_member_waits_only_for_what_concerns_it() -> None:
    core = Witnessing()
    core.joined(A, stamp(1, "a"), {B: stamp(1, "b"), C: stamp(1, "c")})
    core.joined(B, stamp(1, "b"), {A: stamp(1, "a"), C: stamp(1, "c")})
    core.joined(C, stamp(1, "c"), {A: stamp(1, "a")})
    assert core.steps() == [StoreStamp(C, B, stamp(1, "b"), NO_STAMP)]
    assert core.steps(A) == []
    assert core.steps(B) == core.steps(C) == core.steps()


def test_what_was_proved_stays_so_through_all_sessions_of_one_start() -> None:
    core = Witnessing()
    core.joined(B, stamp(1, "b"), {A: stamp(2)})
    core.joined(A, stamp(3), {B: stamp(1, "b")})
    core.proved(A, stamp(2), stamp(3))
    core.joined(A, stamp(3), {B: stamp(1, "b")})
    assert core.steps() == [StoreStamp(B, A, stamp(3), stamp(2))]


def test_after_a_disk_went_back_nothing_is_sent_to_this_client_itself() -> None:
    """The sessions of that member may end later."""
    core = Witnessing()
    core.joined(A, stamp(1), {})
    core.went_back(A)
    assert core.steps() == []
