"""What a watcher decides: rules that hold for every sight of a store, and the bugs that break them."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from dos_client.core import logs
from dos_client.core.logs import Change
from dos_client.core.membership import ServerAnswer
from dos_client.core.membership import decide as decide_membership
from dos_client.core.quorum import Quorums
from dos_client.core.replacement import leave_out, move, plan, with_spare, without_spare
from dos_client.core.watching import (
    Action,
    CompleteAction,
    FollowAction,
    MemberSight,
    RepairAction,
    ReplaceAction,
    ReportAction,
    Silences,
    SpareSight,
    StoreSight,
    WaitAction,
    WatchPolicy,
    decide,
)
from dos_protocol.store_record import (
    DiskStamp,
    Member,
    StoreRecord,
    decode_store_record,
    default_ack_quorum,
    encode_store_record,
)

POLICY = WatchPolicy(replace_after_s=600.0, stand_by_s=30.0)
Decide = Callable[[StoreSight, WatchPolicy], Action]


def server(number: int) -> bytes:
    return bytes([number + 1]) * 16


def record_of(members: int, spares: int = 0, changing: str = "") -> StoreRecord:
    named = [Member(server(one), f"s{one}:1") for one in range(members)]
    if changing:
        named.insert(1, Member(server(40), "new:1", "joining" if changing == "joining" else "adding"))
    listed = tuple(Member(server(50 + one), f"t{one}:1", "spare") for one in range(spares))
    return StoreRecord(b"s" * 16, 7, default_ack_quorum(members), tuple(named), listed)


def any_sight(rng: Random) -> StoreSight:
    record = record_of(
        rng.choice([1, 2, 2, 3, 3, 3, 5]), rng.randint(0, 2), rng.choice(["", "", "joining", "adding"])
    )
    members = []
    for member in record.members:
        present = rng.random() < 0.6
        elsewhere = tuple(f"{member.address}{n}" for n in range(rng.choice([0, 0, 0, 1, 2])))
        silent_s = 0.0 if present else rng.choice([0.0, 100.0, 700.0])
        members.append(MemberSight(member, present, silent_s, elsewhere, "refused"))
    spares = tuple(SpareSight(one, rng.choice(["", "", "not empty"])) for one in record.spares)
    damaged = rng.choice([(), ("d",)])
    return StoreSight(
        record, tuple(members), spares, rng.choice([0.0, 100.0]), damaged, rng.choice([(), ("s0:1",)])
    )


def broken_rule(sight: StoreSight, action: Action) -> str:
    """Return the rule that an action breaks; '' if it breaks none."""
    record = sight.record
    assert record is not None
    if isinstance(action, WaitAction | ReportAction):
        return ""
    here = {one.member.server_id for one in sight.members if one.present}
    moved = {one.member.server_id for one in sight.members if not one.present and one.elsewhere}
    usable = {one.member.server_id for one in sight.spares if not one.problem}
    two = len(record.members) == len(record.voters) == 2
    deciding = bool(two and record.spares and record.spares[0].server_id in usable)
    enough = Quorums(record).can_take_over(here | moved) or (deciding and len(here | moved) == 1)
    if not enough:
        return "acts without a quorum"
    if sight.still_s < POLICY.stand_by_s:
        return "acts beside another run"
    if any(len(one.elsewhere) + one.present > 1 for one in sight.members):
        return "acts while one identity answers twice"
    by_id = {one.member.server_id: one for one in sight.members}
    match action:
        case FollowAction(addresses):
            fenced = Quorums(record).can_take_over(here) or (deciding and len(here) == 1)
            encode_store_record(move(record, addresses))
            return "".join(_broken_by_following(by_id[one], at, fenced) for one, at in addresses.items())
        case ReplaceAction(old, new):
            silent = next(
                (by_id[one.server_id] for one in record.members if one.state != "in"), by_id[old.server_id]
            )
            return _broken_by_replacing(record, silent, old, new, here, usable)
        case CompleteAction(_, new) if not by_id[new.server_id].present:
            return "completes with a member that is away"
    return ""


def _broken_by_following(member: MemberSight, address: str, fenced: bool) -> str:
    if member.present or member.elsewhere != (address,):
        return "follows a member that is not there"
    waits = not fenced and member.silent_s < POLICY.replace_after_s
    return "follows before the old place is fenced or silent" if waits else ""


def _broken_by_replacing(
    record: StoreRecord, silent: MemberSight, old: Member, new: Member, here: set[bytes], usable: set[bytes]
) -> str:
    if silent.present or silent.silent_s < POLICY.replace_after_s:
        return "replaces a member that is not silent"
    if new.server_id not in usable:
        return "uses a spare that cannot be used"
    after = plan(record, old.address, new.server_id, new.address, absent=True).record
    encode_store_record(after)
    if after.generation != record.generation + 1 or not after.names(new.server_id):
        return "decides no next record"
    if not Quorums(after).can_take_over(here | {new.server_id}):
        return "makes a store that cannot continue"
    return ""


def first_broken(decide: Decide) -> str:
    rng = Random(5)
    for _ in range(6_000):
        sight = any_sight(rng)
        if found := broken_rule(sight, decide(sight, POLICY)):
            return found
    return ""


def test_no_sight_makes_it_break_a_rule_and_every_action_occurs() -> None:
    # EVIDENCE-OF: P-4, P-5
    assert first_broken(decide) == ""
    rng = Random(5)
    kinds = {type(decide(any_sight(rng), POLICY)) for _ in range(6_000)}
    assert kinds == {WaitAction, ReportAction, CompleteAction, ReplaceAction, FollowAction, RepairAction}


def _seen_as(change: Callable[[StoreSight], StoreSight]) -> Decide:
    return lambda sight, policy: decide(change(sight), policy)


def _all_present(sight: StoreSight) -> StoreSight:
    """The quorum is not counted: an absent member is taken for one that moved."""
    return replace(
        sight,
        members=tuple(
            one if one.present or one.elsewhere else replace(one, elsewhere=("e9:1",))
            for one in sight.members
        ),
    )


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (_seen_as(_all_present), "acts without a quorum"),
        (lambda sight, policy: decide(sight, replace(policy, stand_by_s=0.0)), "acts beside another run"),
        (lambda sight, policy: decide(sight, replace(policy, replace_after_s=50.0)), "not silent|silent$"),
        (
            _seen_as(
                lambda sight: replace(sight, spares=tuple(replace(one, problem="") for one in sight.spares))
            ),
            "uses a spare that cannot be used|acts without a quorum",
        ),
        (
            _seen_as(
                lambda sight: replace(
                    sight, members=tuple(replace(one, elsewhere=one.elsewhere[:1]) for one in sight.members)
                )
            ),
            "answers twice",
        ),
    ],
    ids=["no quorum", "no stand-by", "impatient", "any spare", "two of one identity"],
)
def test_a_planted_bug_breaks_a_rule(planted: Decide, found: str) -> None:
    broken = first_broken(planted)
    assert any(one in broken for one in found.replace("$", "").split("|")), broken


def test_silence_is_counted_over_looks_and_ends_when_others_reach_the_member() -> None:
    silences, one = Silences(step_max_s=15.0), server(0)
    silences.look(0.0, {one}, {one: DiskStamp(3, b"a" * 16)})
    silences.look(10.0, {one}, {one: DiskStamp(3, b"a" * 16)})
    assert silences.silent_s(one) == 10.0
    silences.look(5_000.0, {one}, {one: DiskStamp(3, b"a" * 16)})
    assert silences.silent_s(one) == 25.0, "the watcher stood still: the member was not silent"
    assert not silences.reached_by_others(one)
    silences.look(5_010.0, {one}, {one: DiskStamp(4, b"b" * 16)})
    assert (silences.silent_s(one), silences.reached_by_others(one)) == (0.0, True)
    silences.look(5_020.0, {one}, {one: DiskStamp(4, b"b" * 16)})
    assert silences.silent_s(one) == 10.0
    silences.look(5_030.0, set(), {})
    silences.look(5_040.0, {one}, {})
    assert (silences.silent_s(one), silences.reached_by_others(one)) == (0.0, False)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, 3, 4])), min_size=1, max_size=12))
def test_silence_lasts_since_the_last_sign_of_life_in_any_order_of_looks(
    looks: list[tuple[bool, int | None]],
) -> None:
    """A look finds the member present, or absent with the stamp that others know, or with none."""
    silences, one = Silences(step_max_s=15.0), server(0)
    silent, newest, reached = -10.0, None, False
    for number, (present, stamp) in enumerate(looks):
        stamps = {} if stamp is None else {one: DiskStamp(stamp, b"a" * 16)}
        silences.look(10.0 * number, set() if present else {one}, {} if present else stamps)
        changed = stamp is not None and newest is not None and stamp != newest
        if present:
            silent, newest, reached = -10.0, None, False
        else:
            silent = 0.0 if changed else silent + 10.0
            newest, reached = newest if stamp is None else stamp, reached or changed
        assert silences.silent_s(one) == max(0.0, silent)
        assert silences.reached_by_others(one) is reached


# Records with spares


def test_spares_survive_the_bytes_of_a_record_and_older_bytes_have_none() -> None:
    record = record_of(3, 2)
    assert decode_store_record(encode_store_record(record)) == record
    assert decode_store_record(encode_store_record(record_of(3))).spares == ()
    for wrong in (
        structs.replace(record, spares=(record.members[0],)),
        structs.replace(record, spares=(Member(server(9), "s0:1", "spare"),)),
        structs.replace(record, members=(*record.members, record.spares[0]), spares=()),
    ):
        with pytest.raises(ValueError, match=r"distinct|apart"):
            encode_store_record(wrong)


def test_every_change_keeps_the_spares_that_are_not_used() -> None:
    record = record_of(3, 2)
    begun = plan(record, "s2:1", server(50), "t0:1").record
    assert [one.address for one in begun.spares] == ["t1:1"]
    assert [one.address for one in move(record, {server(0): "t0:1"}).spares] == ["t1:1"]
    assert [one.address for one in with_spare(record, server(9), "u:1").spares] == ["t0:1", "t1:1", "u:1"]
    assert [one.address for one in without_spare(record, "t0:1").spares] == ["t1:1"]
    for refused in (
        lambda: with_spare(record, server(0), "u:1"),
        lambda: with_spare(record, server(9), "s0:1"),
        lambda: without_spare(record, "s0:1"),
        lambda: move(record, {server(0): "s1:1"}),
        lambda: leave_out(record_of(2, 1), record_of(2, 1).members[0], server(9), "s1:1"),
    ):
        with pytest.raises(ValueError, match=r"already|not a spare|one address|the address of"):
            refused()


def answers(record: StoreRecord, *numbers: int) -> list[ServerAnswer]:
    return [ServerAnswer(f"x{one}:1", server(one), record) for one in numbers]


def test_of_two_members_one_and_the_first_spare_confirm_a_record() -> None:
    # EVIDENCE-OF: P-4
    two = record_of(2, 2)
    assert decide_membership(answers(two, 0, 50)).record == two
    assert decide_membership(answers(two, 0)).record is None
    assert decide_membership(answers(two, 0, 51)).record is None, "the second spare decides nothing"
    assert decide_membership(answers(record_of(3, 1), 0, 50)).record is None, "nor does one of three members"
    alone = leave_out(two, two.members[1], server(51), "t1:1")
    assert [one.state for one in alone.members] == ["in", "adding"]
    assert not Quorums(alone).can_acknowledge({server(0)}), "every quorum has the new server"
    assert Quorums(alone).can_acknowledge({server(0), server(51)})


def test_the_history_has_one_entry_per_change() -> None:
    begun = Change("replace", "1", "me", 1, "a", "b", "silent", True)
    done = replace(begun, at="2", generation=3, outcome="done")
    log, beat = logs.CHANGES, logs.BEAT
    data = log.encode(begun) + beat + b"{torn" + beat + log.encode(done)
    assert log.decode(data) == [begun, done]
    assert logs.merge([begun, done, begun]) == [replace(done, at="1"), begun]
    assert logs.merge([begun, done, done]) == [replace(done, at="1"), done], "it began elsewhere"
    assert logs.merge([begun, begun, done]) == [begun, replace(done, at="1")]
