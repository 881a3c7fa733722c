"""Collections in random deployments, against every group found by plain search."""

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings

from sites.core import collection, deployment
from sites.core.collection import Dependents, Kept, Remaining, find_collection, utilities
from sites.core.deployment import Deployment, RegionReplica, StreamReplica, make_plan
from sites.core.description import Description
from sites.core.observed import Observation, weight
from tests.sites.applications import SEEDS, an_application, planned
from tests.support.planted_source import planted

Streams = frozenset[StreamReplica]


class Situation(NamedTuple):
    deployment: Deployment
    streams: Streams
    observed: Observation


def a_situation(
    rng: random.Random, description: Description, streams: Streams, made: Deployment
) -> Situation:
    """Most of it is well: what is dead or late is rare, as in a real deployment."""
    replicas = sorted({one for stream in streams for one in stream})
    sick = rng.choice([0.0, 0.1, 0.4])
    names = sorted(streams)
    return Situation(
        made,
        streams,
        Observation(
            weights={one: rng.choice([0.0, 1.0, rng.random() * 9]) for one in names if rng.random() < 0.9},
            alive=frozenset(one for one in replicas if rng.random() >= sick),
            whole=frozenset(one for one in names if rng.random() >= sick),
            lateness_s={one: rng.choice([0.1, 2.0, 8.0, 60.0]) for one in names if rng.random() >= sick / 4},
            young=frozenset(one for one in names if rng.random() < 0.1),
            lost=frozenset(site.name for site in description.sites if rng.random() < sick / 2),
            since_revival_s=rng.choice([599.0, 600.0, inf, inf, inf, inf, inf]),
        ),
    )


def healthy(streams: Streams, rng: random.Random) -> Observation:
    """All is alive and whole."""
    return Observation(
        weights={one: rng.random() for one in sorted(streams)},
        alive=frozenset(end for stream in streams for end in stream),
        whole=streams,
    )


def a_deployment(seed: int) -> tuple[random.Random, Description, Deployment] | None:
    rng = random.Random(seed)
    description = msgspec.structs.replace(an_application(seed), distance_ms=0.0)
    plan = planned(description)
    if plan is None:
        return None
    description = msgspec.structs.replace(description, theta=plan.cost * rng.choice([0.0, 0.3, 0.8]))
    return rng, description, Deployment(description, plan.replicas)


# --- the oracle: as the rules are stated, by search ---------------------------------------------------------


def pruned(description: Description, streams: Streams) -> Streams:
    """What is left of streams when replicas without a reader, or with a port without streams, are gone."""
    ends = {place.name for place in (*description.sources, *description.exits)}
    while True:
        bad = set()
        for one in {end for stream in streams for end in stream if end.node not in ends}:
            ports = {stream.sender for stream in description.streams if stream.reader == one.node}
            if {stream.sender.node for stream in streams if stream.reader == one} != ports:
                bad.add(one)
            if not any(stream.sender == one for stream in streams):
                bad.add(one)
        if not bad:
            return streams
        streams = frozenset(one for one in streams if not bad & {*one})


def number(streams: Streams, region: str, observed: Observation | None = None) -> int:
    """The replicas of a region, or those that count."""
    found = 0
    for replica in {end for stream in streams for end in stream if end.node == region}:
        outputs = [stream for stream in streams if stream.sender == replica]
        if observed is not None:
            outputs = [stream for stream in outputs if stream.reader in observed.alive]
            if (
                replica not in observed.alive
                or not outputs
                or not all(one in observed.whole for one in outputs)
            ):
                continue
        found += 1
    return found


def gets_rows(one: Situation, streams: Streams, reader: RegionReplica, lost: Iterable[str]) -> bool:
    """Whether every port of a replica or exit has a whole stream from a living sender that gets rows."""
    description, observed = one.deployment.description, one.observed
    sources = {place.name for place in description.sources}
    if reader.node in sources:
        return True
    if reader not in observed.alive or (reader.node in one.deployment.replicas and reader.site in lost):
        return False
    return all(
        any(
            other in observed.whole and gets_rows(one, streams, other.sender, lost)
            for other in streams
            if other.reader == reader and other.sender.node == port.sender
        )
        for port in description.streams
        if port.reader == reader.node
    )


def broken_rule(one: Situation, left: Streams) -> str:
    """Words of the reason why no more than these streams must be left to go, none if it is allowed."""
    description = one.deployment.description
    for region in sorted(region.name for region in description.regions):
        needed = min(description.kmin, number(one.streams, region, one.observed))
        if number(left, region, one.observed) < needed:
            return f"replicas of region {region!r} that are alive, and whole at their readers"
    fed = all(
        gets_rows(one, left, RegionReplica(place.name, place.site), lost)
        for lost in itertools.combinations([site.name for site in description.sites], description.kmin - 1)
        for place in description.exits
    )
    return "" if fed else "would get no rows"


def utility_of(one: Situation, stream: StreamReplica) -> float:
    if stream not in one.streams:
        return 0.0
    port = [
        other
        for other in one.streams
        if (other.reader, other.sender.node) == (stream.reader, stream.sender.node)
    ]
    weights = [one.observed.weights.get(other, 0.0) for other in port]
    share = one.observed.weights.get(stream, 0.0) / sum(weights) if sum(weights) else 1 / len(port)
    if stream.reader.node in {place.name for place in one.deployment.description.exits}:
        return share
    return share * sum(utility_of(one, other) for other in one.streams if other.sender == stream.reader)


def cost_of(description: Description, streams: Iterable[StreamReplica]) -> float:
    rates = {(stream.sender, stream.reader): stream.bytes_per_s for stream in description.streams}
    latency = description.latencies()
    return sum(
        rates[one.sender.node, one.reader.node] * latency[one.sender.site, one.reader.site] / 1000
        for one in streams
    )


def check_collection(one: Situation) -> Streams:
    """The streams after one collection, which is the one that the rules state."""
    description, theta = one.deployment.description, one.deployment.description.theta
    assert theta is not None
    found = find_collection(one.deployment, one.streams, one.observed)
    allowed = {}
    for stream in one.streams:
        left = pruned(description, one.streams - {stream})
        group = one.streams - left
        assert Dependents(one.deployment, one.streams).of([stream]) == group
        words = broken_rule(one, left)
        why = Remaining(one.deployment, one.streams, one.observed).refusal(group)
        assert words in why if words and why else words == (why or "")
        if cost_of(description, group) > 0 and not words:
            allowed[group] = sum(utility_of(one, other) for other in group) / cost_of(description, group)
    if isinstance(found, Kept):
        due = cost_of(description, one.streams) > theta and one.observed.since_revival_s >= 600
        assert not due or not allowed, found.why
        return one.streams
    assert cost_of(description, one.streams) > theta
    assert one.observed.since_revival_s >= 600, "soon after a revival"
    assert found.streams == tuple(sorted(found.streams))
    group = frozenset(found.streams)
    assert group in allowed, "a group that must be kept"
    assert allowed[group] <= min(allowed.values()) * (1 + 1e-9) + 1e-12, "not the least useful one"
    assert found.utility == pytest.approx(allowed[group] * found.cost)
    left = one.streams - group
    for region in one.deployment.replicas:
        assert number(left, region) >= min(description.kmin, number(one.streams, region))
    for end in one.deployment.exits():
        ports = {stream.sender.node for stream in left if stream.reader == end}
        assert ports == set(description.senders()[end.node])
    stopped = {end for stream in group for end in stream} - {end for stream in left for end in stream}
    assert found.replicas == tuple(
        sorted(stopped - {end for end in stopped if end.node in one.deployment.fixed})
    )
    assert cost_of(description, left) < cost_of(description, one.streams)
    return left


def check_history(seed: int) -> None:
    """Collections one after the other: what was removed before shapes what can be removed next."""
    made = a_deployment(seed)
    if made is None:
        return
    rng, description, placed = made
    streams = frozenset(placed.streams())
    for _ in range(6):
        streams = check_collection(a_situation(rng, description, streams, placed))
        assert pruned(description, streams) == streams, (
            "each replica has a stream on every port, and a reader"
        )


@given(SEEDS)
@settings(max_examples=80, deadline=None)
def test_a_collection_removes_the_least_useful_group_that_may_be_removed(seed: int) -> None:
    check_history(seed)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_a_healthy_deployment_survives_the_loss_of_any_kmin_minus_1_sites_after_all_collections(
    seed: int,
) -> None:
    made = a_deployment(seed)
    if made is None:
        return
    rng, description, placed = made
    description = msgspec.structs.replace(description, theta=0.0)
    placed = Deployment(description, placed.replicas)
    streams, cost = frozenset(placed.streams()), inf
    well = healthy(streams, rng)
    while True:
        found = find_collection(placed, streams, well)
        if isinstance(found, Kept):
            break
        streams -= set(found.streams)
        assert placed.cost(streams) < cost
        cost = placed.cost(streams)
    for region in description.regions:
        assert number(streams, region.name) >= description.kmin
    one = Situation(placed, streams, well)
    for lost in itertools.combinations([site.name for site in description.sites], description.kmin - 1):
        assert all(gets_rows(one, streams, end, lost) for end in placed.exits())


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_utilities_of_the_streams_to_an_exit_add_up_to_its_ports(seed: int) -> None:
    made = a_deployment(seed)
    if made is None:
        return
    rng, description, placed = made
    one = a_situation(rng, description, frozenset(placed.streams()), placed)
    found = utilities(placed, one.streams, one.observed.weights)
    for end in placed.exits():
        ports = len(description.senders()[end.node])
        assert sum(found[stream] for stream in found if stream.reader == end) == pytest.approx(ports)
    for stream in one.streams:
        assert found[stream] == pytest.approx(utility_of(one, stream))


def test_the_weight_of_a_row_is_one_by_its_rank() -> None:
    assert weight([]) == 0
    assert weight([6, 4, 3]) == 6 + 2 + 1


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_the_order_of_streams_and_of_sets_does_not_matter(seed: int) -> None:
    made = a_deployment(seed)
    if made is None:
        return
    rng, description, placed = made
    one = a_situation(rng, description, frozenset(placed.streams()), placed)
    mixed = rng.sample(sorted(one.streams), len(one.streams))
    weights = {stream: one.observed.weights[stream] for stream in mixed if stream in one.observed.weights}
    other = find_collection(placed, mixed, replace(one.observed, weights=weights))
    assert other == find_collection(placed, one.streams, one.observed)


def test_without_theta_nothing_is_collected() -> None:
    description = next(one for one in map(an_application, range(99)) if planned(one))
    placed = Deployment(description, make_plan(description).replicas)
    found = find_collection(placed, placed.streams(), Observation())
    assert found == Kept("the description has no theta, so any cost is accepted")


BUGS = {
    "dead replicas count": (
        "if one.sender in observed.alive and one.reader in observed.alive]\n    return {one.sender",
        "if one.reader in observed.alive]\n    return {one.sender",
    ),
    "replicas that are not whole count": (" - {one.sender for one in read if one not in observed.whole}", ""),
    "a replica without a reader is kept": (
        "                pending += self.streams_of(sender)",
        "                pass",
    ),
    "a replica with an empty port is kept": (
        "                pending += self.streams_of(reader)",
        "                pass",
    ),
    "soon after a revival": ("observed.since_revival_s < AFTER_REVIVAL_S", "observed.since_revival_s < 0"),
    "below theta": ("if cost <= theta:", "if cost < 0:"),
    "the most useful first": ("in sorted(groups)", "in sorted(groups, reverse=True)"),
    "the cost does not matter": ("for one in names) / price, names", "for one in names), names"),
    "living ones below kmin": (
        "if counts.get(region, 0) < min(kmin, now):\n",
        "if counts.get(region, 0) < min(kmin, now) - 1:\n",
    ),
    "exits may starve": ("return self._starves(left)", "return None"),
    "a loss fewer": ("description.kmin - 1, len(sites)", "description.kmin - 2, len(sites)"),
    "a stream that is not whole feeds an exit": (
        "        if stream in observed.whole\n        and ",
        "        if ",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planted(collection, *BUGS[bug])
    for name in ("find_collection", "Kept", "Remaining", "Dependents"):
        monkeypatch.setitem(globals(), name, names[name])
    with pytest.raises((AssertionError, LookupError, ValueError)):
        check_many()


BUGS_BESIDE = {
    "a port that is fed is enough": (deployment, "            return max(\n", "            return min(\n"),
    "utility stops at the first reader": (
        collection,
        "own = 1.0 if reader.node not in upstream else",
        "own = 1.0 or",
    ),
    "the weights of all ports are one sum": (collection, "if one.sender.node == node]", "if True]"),
}


@pytest.mark.parametrize("bug", BUGS_BESIDE)
def test_a_bug_beside_it_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, before, after = BUGS_BESIDE[bug]
    names = planted(module, before, after)
    monkeypatch.setattr(collection, "utilities", names.get("utilities", utilities))
    monkeypatch.setitem(globals(), "Deployment", names["Deployment"])
    with pytest.raises((AssertionError, LookupError, ValueError)):
        check_many()


def check_many() -> None:
    for seed in range(400):
        check_history(seed)
