"""What an apply changes, on random plans and observations; and what the reports of readers mean."""

import contextlib
import random
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from dos_protocol.errors import CorruptDataError
from journal.core.record import decode_all
from sites.core import deployed as deployed_module
from sites.core import observed
from sites.core.collection import Collected, find_collection, replicas_in
from sites.core.deployed import (
    Deployed,
    RevivedStream,
    Situation,
    apply_plan,
    collected,
    fitting,
    forget_site,
    revived,
    situation,
)
from sites.core.deployment import Deployment, Plan, RegionReplica, StreamReplica, make_plan
from sites.core.description import Description
from sites.core.observed import (
    Observation,
    Ranks,
    ReaderReport,
    SiteReport,
    StreamReport,
    decode_record,
    encode_record,
    observation,
)
from sites.core.revival import find_revivals
from sites.errors import PlanRefusedError
from tests.sites import test_collection
from tests.sites.applications import SEEDS, an_application, planned
from tests.sites.test_collection import a_situation, broken_rule, pruned
from tests.support.planted_source import planted

NOTHING = Deployed()


def exits_are_fed(description: Description, streams: set[StreamReplica]) -> bool:
    ports = {(one.reader.node, one.sender.node) for one in streams}
    exits = {place.name for place in description.exits}
    return {(one.reader, one.sender) for one in description.streams if one.reader in exits} <= ports


def another_plan(rng: random.Random, description: Description) -> tuple[Description, Plan] | None:
    """The description with other loads, so that replicas move."""
    sites = tuple(msgspec.structs.replace(site, load=rng.choice([0.0, 0.6])) for site in description.sites)
    other = msgspec.structs.replace(description, sites=sites, kmax=rng.randint(description.kmin, 3))
    plan = planned(other)
    return None if plan is None else (other, plan)


def check_apply(seed: int) -> None:
    """Apply, collect or revive some, then apply another plan."""
    rng = random.Random(seed)
    description = msgspec.structs.replace(an_application(seed), distance_ms=0.0, theta=0.0)
    plan = planned(description)
    if plan is None:
        return
    first = apply_plan(Situation(NOTHING, Deployment(description, {}), Observation()), plan.replicas, 1)
    placed = Deployment(description, plan.replicas)
    assert set(first.deployed.streams) == set(placed.streams())
    assert (first.deployed.number, first.removed, first.kept) == (1, (), ())
    assert first.cost == pytest.approx(plan.cost)
    deployed = first.deployed
    for _ in range(rng.randrange(4)):
        well = test_collection.healthy(frozenset(deployed.streams), rng)
        found = find_collection(Deployment(description, deployed.replicas), deployed.streams, well)
        if isinstance(found, Collected):
            deployed = collected(Situation(deployed, placed, well), found, 2)
    again = apply_plan(Situation(deployed, placed, Observation()), plan.replicas, 3)
    assert not again.changes, "what was collected stays collected"
    assert again.deployed is deployed
    made = another_plan(rng, description)
    if made is None:
        return
    other, plan = made
    streams = frozenset(deployed.streams)
    observed_now = a_situation(rng, other, streams, Deployment(other, deployed.replicas)).observed
    if rng.random() < 0.5:  # nothing ails, and the new ones run already
        every = frozenset(Deployment(other, plan.replicas).streams()) | streams
        observed_now = test_collection.healthy(every, rng)
    now = Situation(deployed, Deployment(other, deployed.replicas), observed_now)
    change = apply_plan(now, plan.replicas, 4)
    after = set(change.deployed.streams)
    assert after == (set(streams) | {*change.added}) - {*change.removed}
    assert not set(streams) & {*change.added}
    assert {*change.removed} <= set(streams)
    assert pruned(other, frozenset(after)) == after
    assert exits_are_fed(other, after)
    planned_streams = set(Deployment(other, plan.replicas).streams())
    assert after - planned_streams == {*change.kept} - planned_streams
    if change.removed:
        one = test_collection.Situation(now.deployment, streams | {*change.added}, observed_now)
        assert not broken_rule(one, frozenset(after)), "removed before the others are whole"
    running = {one for one in replicas_in(after) if one.node not in now.deployment.fixed}
    assert running == change.deployed.running()
    for region, sites in plan.replicas.items():
        new = {RegionReplica(region, site) for site in set(sites) - set(deployed.replicas[region])}
        assert new <= running, "what is planned anew runs"
    if change.changes:
        assert change.deployed.number == deployed.number + 1
        assert change.deployed.decisions[-1].cost == pytest.approx(change.cost)


@given(SEEDS)
@settings(max_examples=150, deadline=None)
def test_an_apply_adds_at_once_and_removes_only_what_others_replace(seed: int) -> None:
    check_apply(seed)


def check_forget(seed: int) -> None:
    rng = random.Random(seed)
    description = msgspec.structs.replace(an_application(seed), distance_ms=0.0)
    plan = planned(description)
    if plan is None:
        return
    placed = Deployment(description, plan.replicas)
    nothing = Situation(NOTHING, Deployment(description, {}), Observation())
    deployed = apply_plan(nothing, plan.replicas, 1).deployed
    site = rng.choice(description.sites).name
    found = forget_site(Situation(deployed, placed, Observation()), site, 2)
    after = frozenset(found.deployed.streams)
    assert found.deployed.forgotten == (site,)
    assert all(site not in sites for sites in found.deployed.replicas.values())
    assert all(end.site != site or end.node in placed.fixed for stream in after for end in stream), (
        "no stream of a replica there"
    )
    assert after == pruned(description, after)
    assert bool(found.starving) != exits_are_fed(description, set(after))
    with contextlib.suppress(PlanRefusedError):
        again = make_plan(description, found.deployed.forgotten)
        assert all(site not in sites for sites in again.replicas.values())


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_a_forgotten_site_has_no_replica_and_gets_none(seed: int) -> None:
    check_forget(seed)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_revivals_are_recorded_with_their_streams_and_where_replicas_start(seed: int) -> None:
    made = test_collection.a_deployment(seed)
    if made is None:
        return
    rng, description, placed = made
    one = a_situation(rng, description, frozenset(placed.streams()), placed)
    found = find_revivals(placed, one.streams, one.observed)
    state = Deployed(number=7, replicas=dict(placed.replicas), streams=tuple(sorted(one.streams)))
    if not any(revival.way for revival in found):
        return
    after = revived(Situation(state, placed, one.observed), found, 9_000)
    added = {stream for revival in found for stream in revival.added}
    assert after.number == 8
    assert {stream.stream for stream in after.young} == added
    assert after.revived_ms == (9_000 if added else 0)
    for start in (start for revival in found for start in revival.started):
        assert start.replica.site in after.replicas[start.replica.node]
        expected = None if start.checkpoint in (None, start.replica) else str(start.checkpoint)
        assert after.starts.get(str(start.replica)) == expected
    assert decode_record(Deployed, [encode_record(after)], where="here", at=0) == after


def test_a_revived_stream_is_given_time_to_start_and_to_be_reported() -> None:
    description = next(one for one in map(an_application, range(99)) if planned(one))
    streams = tuple(Deployment(description, make_plan(description).replicas).streams())
    deployed = Deployed(
        number=1, streams=streams, young=(RevivedStream(streams[0], 5_000),), revived_ms=5_000
    )
    for now_ms, young in ((94_999, {streams[0]}), (95_000, set())):
        found = situation(description, deployed, [], [], now_ms)
        assert found.observed.young == young
        assert found.observed.since_revival_s == (now_ms - 5_000) / 1000


def test_what_is_not_described_any_more_does_not_fit() -> None:
    description = next(one for one in map(an_application, range(99)) if planned(one))
    plan = make_plan(description)
    streams = Deployment(description, plan.replicas).streams()
    other = StreamReplica(RegionReplica("old", "site0"), RegionReplica("exit0", "site0"))
    replicas = {**plan.replicas, "old": ("site0",)}
    found = fitting(description, Deployed(number=1, replicas=replicas, streams=(*streams, other)))
    assert found == Deployed(number=1, replicas=plan.replicas, streams=tuple(streams))


# --- reports ------------------------------------------------------------------------------------------------

BOARD, FAST, SLOW = (
    RegionReplica("board", "osu"),
    RegionReplica("joined", "osu"),
    RegionReplica("joined", "wisc"),
)


def a_report(**changes: Any) -> ReaderReport:
    report = ReaderReport(
        reader=BOARD,
        at_ms=1_000_000,
        mark=5,
        moved_s=1.0,
        streams=(
            StreamReport(sender=FAST, ranks=(6, 2), mark=5, moved_s=1.0, late_s=0.5, whole=True),
            StreamReport(sender=SLOW, ranks=(2, 6), mark=1, moved_s=31.0, late_s=12.0),
        ),
    )
    return msgspec.structs.replace(report, **changes)


def check_observation() -> None:
    fast, slow = StreamReplica(FAST, BOARD), StreamReplica(SLOW, BOARD)
    now = 1_000_000
    found = observation([a_report()], [], now, revived_ms=now - 7_000)
    assert found == Observation(
        weights={fast: 7.0, slow: 5.0},
        alive=frozenset({BOARD, FAST}),
        whole=frozenset({fast}),
        lateness_s={fast: 0.5, slow: 12.0},
        since_revival_s=7.0,
    )
    assert observation([a_report()], [], now + 65_000).alive == {BOARD, FAST}
    old = observation([a_report()], [], now + 65_001)
    assert old == Observation(), "an old report is not used"
    assert observation([a_report(at_ms=now + 900_000)], [], now).alive == {BOARD, FAST}
    own = a_report(reader=SLOW, streams=(), moved_s=30.0)
    assert observation([a_report(), own], [], now).alive == {BOARD, FAST, SLOW}
    assert observation([a_report(moved_s=None, streams=())], [], now).alive == frozenset()
    sites = [
        SiteReport(site=name, at_ms=at, number=1, regions={}) for name, at in (("osu", now), ("wisc", 1))
    ]
    assert observation([], sites, now, lost=["uiuc"]).lost == {"wisc", "uiuc"}
    assert observation([], [], now).since_revival_s == inf
    for gone, reported in (
        ([FAST.site], []),
        ([], [SiteReport(site=FAST.site, at_ms=1, number=1, regions={})]),
    ):
        found = observation([a_report()], reported, now, lost=gone)
        assert FAST not in found.alive, "what runs at a site that is lost does not count"


def test_an_observation_is_what_fresh_reports_state() -> None:
    check_observation()


def test_rows_by_rank_are_summed_over_five_minutes() -> None:
    ranks = Ranks()
    for _ in range(12):
        found = ranks.add({FAST: (3, 1), SLOW: (0, 2, 1)})
    assert found == {FAST: (30, 10), SLOW: (0, 20, 10)}
    assert ranks.add({FAST: (0,)}) == {FAST: (27, 9)}, "a stream that is read no more is left out"


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"number":"x"}', b'{"version":2}', b'{"streams":[["a"]]}', b'{"replicas":[]}']
)
def test_an_invalid_or_newer_record_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_record(Deployed, [text], where="here", at=0)
    with pytest.raises(CorruptDataError):
        decode_record(ReaderReport, [text], where="here", at=0)
    with pytest.raises(CorruptDataError):
        decode_record(SiteReport, [], where="here", at=0)


def test_the_records_of_the_golden_file_are_read_for_ever() -> None:
    golden = Path(__file__).parent.parent / "journal" / "golden" / "v1-sites.journal"
    records, fault = decode_all(golden.read_bytes())
    assert fault is None
    first, second, third = (record.strings for _, record in records)
    joined, loads = RegionReplica("joined", "osu"), RegionReplica("loads", "purdue")
    deployed = decode_record(Deployed, first, where="golden", at=0)
    assert deployed.replicas == {"joined": ("purdue", "osu")}
    assert deployed.streams == (StreamReplica(joined, BOARD), StreamReplica(loads, joined))
    assert (deployed.number, deployed.forgotten, deployed.revived_ms) == (3, ("wisc",), 1_732_147_200_000)
    assert deployed.young[0].stream == deployed.streams[1]
    assert deployed.starts == {"joined@osu": "joined@purdue"}
    report = decode_record(ReaderReport, second, where="golden", at=0)
    assert [(one.sender.site, one.ranks, one.whole) for one in report.streams] == [
        ("osu", (40, 2), True),
        ("purdue", (), False),
    ]
    site = decode_record(SiteReport, third, where="golden", at=0)
    assert (site.site, site.number, site.regions) == ("osu", 3, {"joined": "RUNNING"})
    again = (encode_record(deployed), encode_record(report), encode_record(site))
    assert again == (first[0], second[0], third[0])


def test_a_report_is_decoded_as_it_was_encoded() -> None:
    assert decode_record(ReaderReport, [encode_record(a_report())], where="here", at=0) == a_report()
    site = SiteReport(site="osu", at_ms=1, number=2, regions={"joined": "running"})
    assert decode_record(SiteReport, [encode_record(site)], where="here", at=0) == site


BUGS = {
    "a replica at a lost site is alive": (
        observed,
        "for one in alive if one.site not in gone",
        "for one in alive",
    ),
    "old replicas are removed at once": (deployed_module, 'refusal(old) or ""', 'refusal(old) and ""'),
    "what was collected is read again": (deployed_module, "return target if", "return every if"),
    "a plan whose inputs were collected is left without": (
        deployed_module,
        "target) else every",
        "target) else target",
    ),
    "new replicas read nothing": (
        deployed_module,
        "(one not in known and one.sender in usable and one.reader in usable)",
        "False",
    ),
    "old replicas are forgotten while they run": (
        deployed_module,
        "if one not in placed[region]))",
        "if False))",
    ),
    "a forgotten site is planned again": (deployed_module, "{*state.forgotten, site}", "state.forgotten"),
    "what a lost replica fed stays": (
        deployed_module,
        ".of(one for one in now.streams if gone",
        ".of(one for one in () if gone",
    ),
    "an old report is used": (observed, "[one for one in every if is_fresh(one, now_ms)]", "every"),
    "what never moved is alive": (
        observed,
        "return one.moved_s is not None and one.moved_s <= ALIVE_S",
        "return True",
    ),
    "a stream that is not whole is": (observed, "if one.whole)", ")"),
    "a site that does not answer is not lost": (
        observed,
        " | {one.site for one in sites if not is_fresh(one, now_ms)}",
        "",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, before, after = BUGS[bug]
    for name, value in planted(module, before, after).items():
        if name in ("apply_plan", "forget_site", "observation"):
            monkeypatch.setitem(globals(), name, value)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        check_many()


def check_many() -> None:
    check_observation()
    for seed in range(400):
        check_apply(seed)
        check_forget(seed)
