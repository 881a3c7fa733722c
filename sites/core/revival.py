"""What is done for a port all of whose streams are late. Pure and deterministic.

Hwang, Cetintemel, Zdonik, section V-C. A port is late if each of its streams is later than `late_s` of the
description, or has given nothing. A port whose reader is not alive cannot be helped, and one with a stream
that was revived a short time ago is given time. The first of these ways that is possible is taken:

    1   a collected stream, from a replica that *works*: it is alive, whole at its living readers, and no port
        of it is late
    2   a collected replica, with a stream on each of its ports. It starts from its own checkpoint if all that
        follows is still retained, which its site finds out, otherwise from that of a replica that works,
        otherwise from the beginning of the logs. A replica that it needs and that was collected is revived,
        too
    3   one more replica, where the plan would place it, unless kmax replicas are at sites that answer
    4   the reader is stopped, if another replica of its region works, and all that must remain does
        (`collection`, C2 and C3)

If the cost is below theta, ports that are later than a tenth of `late_s` get the ways 1 and 2, as long as the
cost then is at most theta. Ports are considered in the order of the streams, so a repair upstream is known
to the ports after it.
"""

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from sites.core.collection import Dependents, Remaining, replicas_in
from sites.core.deployment import Deployment, RegionReplica, StreamReplica, Streams
from sites.core.observed import Observation

YOUNG_S: Final = 30.0
"""So long a revived stream is not taken to be late."""
_SPARE: Final = 0.1


class ReplicaStart(NamedTuple):
    """A replica to start. checkpoint: whose it restores if it cannot continue its own."""

    replica: RegionReplica
    checkpoint: RegionReplica | None


class Revival(NamedTuple):
    """What is done for one port. way: its number, 0 if none is possible."""

    reader: RegionReplica
    node: str
    way: int
    added: tuple[StreamReplica, ...] = ()
    started: tuple[ReplicaStart, ...] = ()
    removed: tuple[StreamReplica, ...] = ()


class _Additions(NamedTuple):
    """Streams that are added, and replicas that start."""

    streams: tuple[StreamReplica, ...] = ()
    starts: tuple[ReplicaStart, ...] = ()

    def plus(self, other: "_Additions") -> "_Additions":
        return _Additions(
            tuple(dict.fromkeys(self.streams + other.streams)),
            tuple(dict.fromkeys(self.starts + other.starts)),
        )


def find_revivals(
    deployment: Deployment, streams: Streams, observed: Observation, only: RegionReplica | None = None
) -> list[Revival]:
    """Return what is to be done for each port that is late. only: the ports of one replica or exit."""
    return _Repair(deployment, streams, observed).all(only)


def find_revival_of(
    deployment: Deployment, streams: Streams, observed: Observation, replica: RegionReplica
) -> Revival | None:
    """Return how a collected replica starts, with streams to all that read it, if it can."""
    return _Repair(deployment, streams, observed).start_for_all(replica)


def apply_revivals(streams: Streams, revivals: Iterable[Revival]) -> frozenset[StreamReplica]:
    """Return the streams after them."""
    found = set(streams)
    for one in revivals:
        found |= set(one.added)
        found -= set(one.removed)
    return frozenset(found)


class _Repair:
    """The streams, and what is known of them, with the repairs so far."""

    def __init__(self, deployment: Deployment, streams: Streams, observed: Observation) -> None:
        self._deployment = Deployment(deployment.description, deployment.replicas)
        self._description = deployment.description
        self._observed = observed
        self._sources = {place.name for place in self._description.sources}
        self._helped = set[tuple[RegionReplica, str]]()
        self._started = set[RegionReplica]()
        self._left = set[RegionReplica]()
        """What repairs before have stopped, which is not started again by the same decision."""
        self._set(streams)

    def _set(self, streams: Streams) -> None:
        self._streams, self._present = frozenset(streams), replicas_in(streams)
        self._ports = dict[tuple[RegionReplica, str], list[StreamReplica]]()
        self._damaged = set[RegionReplica]()
        alive, whole = self._observed.alive, self._observed.whole
        for one in sorted(streams):
            self._ports.setdefault((one.reader, one.sender.node), []).append(one)
            if one.reader in alive and one not in whole and one.sender not in self._started:
                self._damaged.add(one.sender)

    def all(self, only: RegionReplica | None) -> list[Revival]:
        late_s = self._description.late_s
        found = [
            self._repair(reader, node)
            for reader, node in self._alive(only)
            if self._lateness(reader, node) > late_s
        ]
        theta = self._description.theta
        if theta is None:
            return found
        for reader, node in self._alive(only):
            if not late_s * _SPARE < self._lateness(reader, node) <= late_s:
                continue
            made = self._by_stream(reader, node) or self._by_replica(reader, node)
            if made and self._deployment.cost(self._streams.union(made.added)) <= theta:
                found.append(self._done(made))
        return found

    def start_for_all(self, replica: RegionReplica) -> Revival | None:
        if replica in self._present or replica.site not in self._deployment.replicas.get(replica.node, ()):
            return None
        readers = [
            reader
            for reader in sorted(self._present)
            if replica.node in self._deployment.senders.get(reader.node, ())
        ]
        made = [self._start(replica, reader) for reader in readers]
        additions = _Additions()
        for one in made:
            if one is None:
                return None
            additions = additions.plus(one)
        return Revival(readers[0], replica.node, 2, *additions) if readers else None

    def _alive(self, only: RegionReplica | None) -> list[tuple[RegionReplica, str]]:
        # In the order of the streams: a repair upstream is known to the ports after it.
        rank = {node: number for number, node in enumerate(self._deployment.order)}
        ports = [port for port in self._ports if port[0] in self._observed.alive and only in (None, port[0])]
        return sorted(ports, key=lambda port: (rank.get(port[0].node, len(rank)), port))

    def _lateness(self, reader: RegionReplica, node: str) -> float:
        # 0 while it is given time, or if it is gone.
        port = self._ports.get((reader, node), ())
        if (reader, node) in self._helped or not self._observed.young.isdisjoint(port):
            return 0.0
        return min((self._observed.lateness_s.get(one, inf) for one in port), default=0.0)

    def _works(self, sender: RegionReplica) -> bool:
        if sender.node in self._sources or sender in self._started:
            return True
        if (
            sender not in self._observed.alive
            or sender.site in self._observed.lost
            or sender in self._damaged
        ):
            return False
        ports = [self._lateness(sender, node) for node in self._deployment.senders[sender.node]]
        return max(ports) <= self._description.late_s

    def _senders(self, node: str) -> list[RegionReplica]:
        return [
            one
            for one in self._deployment.replicas_of(node)
            if (one in self._present or node in self._sources) and self._works(one)
        ]

    def _price(self, stream: StreamReplica) -> tuple[float, StreamReplica]:
        return self._deployment.stream_cost(stream), stream

    def _repair(self, reader: RegionReplica, node: str) -> Revival:
        ways = (self._by_stream, self._by_replica, self._by_one_more, self._by_stop)
        made = next((made for way in ways if (made := way(reader, node))), None)
        return self._done(made or Revival(reader, node, 0))

    def _done(self, made: Revival) -> Revival:
        if made.added:
            self._helped.add((made.reader, made.node))
        for replica, _ in made.started:
            self._started.add(replica)
            sites = self._deployment.at(replica.node)
            if replica.site not in sites:
                self._deployment.replicas[replica.node] = (*sites, replica.site)
        before = self._present
        self._set(apply_revivals(self._streams, [made]))
        self._left |= before - self._present
        return made

    # --- the four ways --------------------------------------------------------------------------------------

    def _by_stream(self, reader: RegionReplica, node: str) -> Revival | None:
        candidates = [StreamReplica(sender, reader) for sender in self._senders(node)]
        added = min((one for one in candidates if one not in self._streams), key=self._price, default=None)
        return added and Revival(reader, node, 1, (added,))

    def _by_replica(self, reader: RegionReplica, node: str) -> Revival | None:
        made = self._revived(node, reader)
        return made and Revival(reader, node, 2, *made)

    def _by_one_more(self, reader: RegionReplica, node: str) -> Revival | None:
        if node in self._sources:
            return None
        lost = self._observed.lost
        if len(set(self._deployment.at(node)) - lost) >= self._description.kmax:
            return None
        site = self._deployment.cheapest(node, lost)
        made = None if site is None else self._start(RegionReplica(node, site), reader)
        return made and Revival(reader, node, 3, *made)

    def _by_stop(self, reader: RegionReplica, node: str) -> Revival | None:
        peers = [one for one in self._deployment.replicas_of(reader.node) if one in self._present]
        if reader.node in self._deployment.fixed or not any(map(self._works, peers)):
            return None
        dependents = Dependents(self._deployment, self._streams)
        group = dependents.of(dependents.streams_of(reader))
        if Remaining(self._deployment, self._streams, self._observed).refusal(group):
            return None
        return Revival(reader, node, 4, removed=tuple(sorted(group)))

    # --- replicas that start --------------------------------------------------------------------------------

    def _revived(self, node: str, reader: RegionReplica) -> _Additions | None:
        if node in self._sources:
            return None
        collected = [one for one in self._deployment.replicas_of(node) if one not in self._present]
        collected.sort(key=lambda one: self._price(StreamReplica(one, reader)))
        return next((made for one in collected if (made := self._start(one, reader))), None)

    def _start(self, replica: RegionReplica, reader: RegionReplica) -> _Additions | None:
        if replica.site in self._observed.lost or replica in self._left:
            return None
        made = _Additions((StreamReplica(replica, reader),))
        for node in self._deployment.senders[replica.node]:
            inputs = [StreamReplica(one, replica) for one in self._senders(node)]
            more = _Additions((min(inputs, key=self._price),)) if inputs else self._revived(node, replica)
            if more is None:
                return None
            made = made.plus(more)
        return made.plus(_Additions(starts=(ReplicaStart(replica, self._checkpoint(replica)),)))

    def _checkpoint(self, replica: RegionReplica) -> RegionReplica | None:
        peers = [one for one in self._senders(replica.node) if one not in self._started]
        distance = self._deployment.distance
        return min(peers, key=lambda one: (distance[one.site, replica.site], one), default=None)
