"""Plans of random applications: the rules of algorithm 5, against plain recomputation."""

import itertools
import random
from math import inf

import msgspec
import pytest
from hypothesis import given, settings

from sites.core import deployment
from sites.core.deployment import Plan, arrivals_ms, losses_survived, make_plan
from sites.core.description import (
    Description,
    FixedPlace,
    ReplicatedRegion,
    ReplicatedStream,
    Site,
    SiteLink,
)
from tests.sites import applications
from tests.sites.applications import SEEDS, an_application, planned
from tests.support.planted_source import planted


def cost_of(description: Description, plan: Plan) -> float:
    """As it is defined, one copy of a stream after the other."""
    fixed, latency = description.fixed(), description.latencies()
    total = 0.0
    for stream in description.streams:
        senders = plan.replicas.get(stream.sender) or (fixed[stream.sender],)
        readers = plan.replicas.get(stream.reader) or (fixed[stream.reader],)
        total += sum(stream.bytes_per_s * latency[pair] for pair in itertools.product(senders, readers))
    return total / 1000


def check_rules(seed: int) -> None:
    description = an_application(seed)
    plan = planned(description)
    if plan is None:
        return
    assert plan.replicas.keys() == {region.name for region in description.regions}
    distance = description.distances()
    for sites in plan.replicas.values():
        assert description.kmin <= len(sites) <= description.kmax
        assert len(set(sites)) == len(sites)
        assert all(distance[pair] > description.distance_ms for pair in itertools.combinations(sites, 2))
    loads = plan.loads(description)
    for site in description.sites:
        used = any(site.name in sites for sites in plan.replicas.values())
        assert loads[site.name] < description.alpha * site.capacity or not used
    left_out = [one.region for one in plan.left_out]
    for region, sites in plan.replicas.items():
        assert len(sites) + left_out.count(region) == description.kmax
    assert plan.cost == pytest.approx(cost_of(description, plan))


@given(SEEDS)
@settings(max_examples=150)
def test_a_plan_keeps_every_rule(seed: int) -> None:
    check_rules(seed)


@given(SEEDS)
@settings(max_examples=60)
def test_the_order_of_the_entries_does_not_matter(seed: int) -> None:
    description = an_application(seed)
    rng = random.Random(seed)
    shuffled = {
        name: tuple(rng.sample(entries, len(entries)))
        for name in ("sites", "links", "sources", "exits", "regions", "streams")
        if (entries := getattr(description, name))
    }
    one, other = planned(description), planned(msgspec.structs.replace(description, **shuffled))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.replicas == other.replicas
        assert one.cost == pytest.approx(other.cost)


def check_optimum(seed: int) -> None:
    description = msgspec.structs.replace(an_application(seed), kmax=1, kmin=1)
    plan = planned(description)
    if plan is None:
        return
    for region, site in itertools.product(plan.replicas, description.sites):
        moved = {**plan.replicas, region: (site.name,)}
        load = sum(one.load for one in description.regions if moved[one.name] == (site.name,)) + site.load
        if load < description.alpha * site.capacity:
            other = Plan(moved, (), 0.0, 0.0, {}, 0)
            assert cost_of(description, other) >= plan.cost * (1 - 1e-6)


@given(SEEDS)
@settings(max_examples=60)
def test_no_single_move_makes_an_unreplicated_plan_cheaper(seed: int) -> None:
    check_optimum(seed)


def check_losses(seed: int) -> None:
    """And after some set of one more they do not."""
    description = an_application(seed)
    plan = planned(description)
    if plan is None:
        return
    used = sorted({site for sites in plan.replicas.values() for site in sites})
    late = plan.latencies_ms
    assert inf not in late.values()
    for lost in itertools.combinations(used, plan.losses):
        then = arrivals_ms(description, plan.replicas, lost)
        assert all(late[name] <= then[name] < inf for name in late), "losses make nothing faster"
    if plan.losses < len(used):
        more = itertools.combinations(used, plan.losses + 1)
        assert any(inf in arrivals_ms(description, plan.replicas, lost).values() for lost in more)
    assert plan.losses >= min(map(len, plan.replicas.values())) - 1


@given(SEEDS)
@settings(max_examples=60)
def test_results_continue_after_as_many_losses_as_a_plan_states(seed: int) -> None:
    check_losses(seed)


@given(SEEDS)
@settings(max_examples=40)
def test_another_replica_makes_no_result_later(seed: int) -> None:
    description = msgspec.structs.replace(an_application(seed), kmin=1)
    later = dict.fromkeys(description.fixed(), inf)
    for kmax in (1, 2, 3):
        plan = planned(msgspec.structs.replace(description, kmax=kmax))
        if plan is None:
            return
        assert all(late <= later[name] for name, late in plan.latencies_ms.items())
        later = plan.latencies_ms


def test_the_papers_query_gets_replicas_far_from_each_other() -> None:
    """Figure 1: unions of loads and of latencies, and a join. No loss of one site stops the results."""
    names = ("wisc", "purdue", "osu", "uiuc")
    links = tuple(
        SiteLink(pair, latency)
        for pair, latency in zip(
            itertools.combinations(names, 2), (35.0, 40.0, 33.0, 36.0, 31.0, 38.0), strict=True
        )
    )
    description = Description(
        sites=tuple(Site(name, 2.0) for name in names),
        sources=(FixedPlace("loads", "wisc"), FixedPlace("latencies", "purdue")),
        exits=(FixedPlace("board", "osu"),),
        regions=(ReplicatedRegion("u1", 0.2), ReplicatedRegion("u2", 0.2), ReplicatedRegion("j3", 0.5)),
        streams=(
            ReplicatedStream("loads", "u1", 1_000),
            ReplicatedStream("latencies", "u2", 1_000),
            ReplicatedStream("u1", "j3", 1_000),
            ReplicatedStream("u2", "j3", 1_000),
            ReplicatedStream("j3", "board", 100),
        ),
        links=links,
        kmax=2,
        kmin=2,
    )
    plan = make_plan(description)
    assert plan.losses == 1
    assert (plan.replicas["u1"][0], plan.replicas["u2"][0]) == ("wisc", "purdue")
    assert losses_survived({name: sites[:1] for name, sites in plan.replicas.items()}) == 0


BUGS = {
    "fewer than kmin": ("if number <= description.kmin:", "if number < description.kmin:"),
    "nothing is moved": ("        _relax(placed, order, without)", "        pass"),
    "a loss too many": ("len(sites) - 1", "len(sites)"),
    "capacity is not kept": ("loads[site.name] + own >= allowed", "loads[site.name] >= allowed"),
    "the mean latency decides what is near": (
        "self.distance[site.name, there] <=",
        "self.latency[site.name, there] <=",
    ),
    "the first site by name": ("(self.cost_of(region, site), site)", "site"),
    "outputs cost nothing": ("if stream.sender == region:", "if False:"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planted(deployment, *BUGS[bug])
    for name in ("make_plan", "Plan", "arrivals_ms"):
        monkeypatch.setitem(globals(), name, names[name])
    monkeypatch.setattr(applications, "make_plan", names["make_plan"])
    with pytest.raises((AssertionError, LookupError)):
        check_many()


def check_many() -> None:
    for seed in range(300):
        for check_one in (check_rules, check_optimum, check_losses):
            check_one(seed)
