"""Revivals in random deployments, against the ways that plain search finds."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings

from sites.core import revival
from sites.core.deployment import Deployment, RegionReplica, StreamReplica
from sites.core.description import Description
from sites.core.observed import Observation
from sites.core.revival import Revival, apply_revivals, find_revivals
from tests.sites.applications import SEEDS
from tests.sites.test_collection import (
    Situation,
    a_deployment,
    a_situation,
    broken_rule,
    cost_of,
    number,
    pruned,
)
from tests.support.planted_source import planted


class Oracle:
    """What is deployed, and which way would help a port, by search over all possibilities."""

    def __init__(self, one: Situation) -> None:
        self.situation = one
        self.description, self.observed = one.deployment.description, one.observed
        self.known = {region: list(sites) for region, sites in one.deployment.replicas.items()}
        self.streams = set(one.streams)
        self.started, self.helped = set[RegionReplica](), set[tuple[RegionReplica, str]]()
        self.left = set[RegionReplica]()

    def ports(self, reader: RegionReplica) -> list[str]:
        return sorted(stream.sender for stream in self.description.streams if stream.reader == reader.node)

    def is_source(self, node: str) -> bool:
        return node in {place.name for place in self.description.sources}

    def is_present(self, one: RegionReplica) -> bool:
        return self.is_source(one.node) or any(one in stream for stream in self.streams)

    def lateness(self, reader: RegionReplica, node: str) -> float:
        port = [one for one in self.streams if one.reader == reader and one.sender.node == node]
        if (reader, node) in self.helped or any(one in self.observed.young for one in port):
            return 0.0
        return min(self.observed.lateness_s.get(one, 1e99) for one in port)

    def works(self, one: RegionReplica) -> bool:
        if self.is_source(one.node) or one in self.started:
            return True
        living = [
            other for other in self.streams if other.sender == one and other.reader in self.observed.alive
        ]
        return (
            one in self.observed.alive
            and one.site not in self.observed.lost
            and all(other in self.observed.whole for other in living)
            and all(self.lateness(one, node) <= self.description.late_s for node in self.ports(one))
        )

    def all_of(self, node: str) -> list[RegionReplica]:
        if self.is_source(node):
            return [
                RegionReplica(node, place.site) for place in self.description.sources if place.name == node
            ]
        return [RegionReplica(node, site) for site in self.known[node]]

    def can_start(self, one: RegionReplica) -> bool:
        """Whether each port can have a stream from what works, or from what can start."""
        return (
            one.site not in self.observed.lost
            and one not in self.left
            and all(
                any(
                    self.works(sender) if self.is_present(sender) else self.can_start(sender)
                    for sender in self.all_of(node)
                )
                for node in self.ports(one)
            )
        )

    def spare_site(self, node: str) -> bool:
        if self.is_source(node):
            return False
        answering = [site for site in self.known[node] if site not in self.observed.lost]
        if len(answering) >= self.description.kmax:
            return False
        replicas = {region: tuple(sites) for region, sites in self.known.items()}
        site = Deployment(self.description, replicas).cheapest(node, self.observed.lost)
        return site is not None and self.can_start(RegionReplica(node, site))

    def may_stop(self, reader: RegionReplica) -> bool:
        if reader.node not in self.known:
            return False
        if not any(self.works(one) for one in self.all_of(reader.node) if self.is_present(one)):
            return False
        streams = frozenset(self.streams)
        left = pruned(self.description, frozenset(one for one in streams if reader not in one))
        return not broken_rule(self.situation._replace(streams=streams), left)

    def way(self, reader: RegionReplica, node: str) -> int:
        """The first possible way."""
        if any(
            self.is_present(sender)
            and self.works(sender)
            and StreamReplica(sender, reader) not in self.streams
            for sender in self.all_of(node)
        ):
            return 1
        if any(not self.is_present(sender) and self.can_start(sender) for sender in self.all_of(node)):
            return 2
        return 3 if self.spare_site(node) else 4 if self.may_stop(reader) else 0

    def check(self, made: Revival) -> None:
        """Its way is the first possible one, and it does what the way states. Then it is done."""
        reader, node = made.reader, made.node
        assert reader in self.observed.alive
        expected = self.way(reader, node)
        assert made.way == expected, (made, expected)
        assert not self.streams & {*made.added}
        assert {*made.removed} <= self.streams
        present = {one for stream in self.streams for one in stream}
        starts = [one.replica for one in made.started]
        assert not present & {*starts}, "what is present is not started"
        assert len(made.added) == len({*made.added})
        if made.way in (1, 2, 3):
            assert made.added[0].reader == reader
            assert made.added[0].sender.node == node
        if made.way == 1:
            assert len(made.added) == 1
            assert self.works(made.added[0].sender)
        for replica in starts:
            assert replica.site not in self.observed.lost
            inputs = [one for one in made.added if one.reader == replica]
            assert sorted(one.sender.node for one in inputs) == self.ports(replica)
            assert all(one.sender in starts or self.works(one.sender) for one in inputs)
        for replica, source in made.started:
            peers = [one for one in self.all_of(replica.node) if one not in self.started]
            peers = [one for one in peers if self.is_present(one) and self.works(one)]
            assert source in peers if peers else source is None
        if made.way == 4:
            assert all(reader not in one for one in self.streams - {*made.removed})
        if made.added:
            self.helped.add((reader, node))
        self.started |= {*starts}
        for replica in starts:
            if replica.site not in self.known[replica.node]:
                self.known[replica.node].append(replica.site)
        self.streams = (self.streams | {*made.added}) - {*made.removed}
        self.left |= present - {one for stream in self.streams for one in stream}
        assert pruned(self.description, frozenset(self.streams)) == self.streams


def some_streams(
    rng: random.Random, description: Description, placed: Deployment
) -> frozenset[StreamReplica]:
    """Streams as collections may have left them."""
    streams = frozenset(placed.streams())
    for one in rng.sample(sorted(streams), rng.randrange(len(streams))):
        left = pruned(description, streams - {one})
        exits = {(one.sender.node, one.reader) for one in left if one.reader in placed.exits()}
        if all((node, end) in exits for end in placed.exits() for node in placed.senders[end.node]):
            streams = left
    return streams


def check_revivals(seed: int) -> None:
    made = a_deployment(seed)
    if made is None:
        return
    rng, description, placed = made
    if rng.random() < 0.5:
        description = msgspec.structs.replace(description, theta=None)
    if rng.random() < 0.5:  # with places for one more
        description = msgspec.structs.replace(description, kmax=description.kmax + 1)
    placed = Deployment(description, placed.replicas)
    one = a_situation(rng, description, some_streams(rng, description, placed), placed)
    found = find_revivals(placed, one.streams, one.observed)
    oracle = Oracle(one)
    before, spare = Oracle(one), False
    for revived in found:
        late = oracle.lateness(revived.reader, revived.node)
        assert late > (description.late_s if description.theta is None else description.late_s / 10)
        spare |= late <= description.late_s
        assert not spare or late <= description.late_s, "late ports are first"
        oracle.check(revived)
        if spare:
            assert description.theta is not None
            assert revived.way in (1, 2)
            assert cost_of(description, oracle.streams) <= description.theta
    assert apply_revivals(one.streams, found) == oracle.streams
    done = {(revived.reader, revived.node) for revived in found}
    for reader in {stream.reader for stream in one.streams} & one.observed.alive:
        for node in before.ports(reader):
            if before.lateness(reader, node) > description.late_s and (reader, node) not in done:
                assert all(reader not in stream for stream in oracle.streams), "a late port was left out"
    for region in placed.replicas:
        now = number(one.streams, region)
        assert number(frozenset(oracle.streams), region) >= min(description.kmin, now)


@given(SEEDS)
@example(369111816)  # a replica that was stopped because it is late was started again for another reader
@settings(max_examples=150, deadline=None)
def test_every_late_port_gets_the_first_way_that_is_possible(seed: int) -> None:
    check_revivals(seed)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_a_healthy_deployment_without_theta_is_left_as_it_is(seed: int) -> None:
    made = a_deployment(seed)
    if made is None:
        return
    rng, description, placed = made
    description = msgspec.structs.replace(description, theta=None)
    streams = some_streams(rng, description, placed)
    healthy = Observation(
        alive=frozenset(end for stream in streams for end in stream),
        whole=streams,
        lateness_s=dict.fromkeys(streams, 9.9),
    )
    assert find_revivals(Deployment(description, placed.replicas), streams, healthy) == []


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_only_the_ports_of_one_reader_are_repaired_if_it_is_named(seed: int) -> None:
    made = a_deployment(seed)
    if made is None:
        return
    rng, description, placed = made
    one = a_situation(rng, description, some_streams(rng, description, placed), placed)
    reader = rng.choice(sorted({stream.reader for stream in one.streams}))
    assert {found.reader for found in find_revivals(placed, one.streams, one.observed, reader)} <= {reader}


BUGS = {
    "a dead sender works": ("sender not in self._observed.alive", "False"),
    "a late sender works": ("return max(ports) <= self._description.late_s", "return True"),
    "a sender at a lost site works": ("or sender.site in self._observed.lost", ""),
    "a sender that is not whole works": ("one.reader in alive and one not in whole and", "False and"),
    "young streams are late": ("or not self._observed.young.isdisjoint(port)", ""),
    "the latest stream decides": (
        "return min((self._observed.lateness_s.get",
        "return max((self._observed.lateness_s.get",
    ),
    "a replica starts at a lost site": ("if replica.site in self._observed.lost or", "if"),
    "what was stopped is started again": ("or replica in self._left:", "or False:"),
    "a replica starts with one port": (
        "            made = made.plus(more)\n",
        "            made = made.plus(more)\n            break\n",
    ),
    "more than kmax": (">= self._description.kmax:", "> self._description.kmax:"),
    "it starts without a checkpoint of a peer": ("in self._senders(replica.node) if one", "in [] if one"),
    "the last of its peers is stopped": ("or not any(map(self._works, peers))", ""),
    "what remains is not looked at": (".refusal(group):", ".refusal(group) and False:"),
    "spare streams exceed theta": (".union(made.added)) <= theta", ".union(made.added)) <= theta * 2 + 1"),
    "one more before a collected one": (
        "(self._by_stream, self._by_replica, self._by_one_more,",
        "(self._by_stream, self._by_one_more, self._by_replica,",
    ),
    "the dead are helped": ("if port[0] in self._observed.alive and only", "if only"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = planted(revival, *BUGS[bug])
    for name in ("find_revivals", "Revival", "apply_revivals"):
        monkeypatch.setitem(globals(), name, names[name])
    with pytest.raises((AssertionError, LookupError, ValueError)):
        check_many()


def check_many() -> None:
    for seed in range(1500):
        check_revivals(seed)
