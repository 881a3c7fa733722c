"""When each row is at each replica and exit. A *round* is one row of each source; times are seconds.

A reader has a row when the first of the streams of a port has it, and a join when both of its ports do. So
arithmetic gives what `DuplicateFilter` (algorithm 1) passes, as long as that is right. In the first part of a
run, real filters decide: they receive the digests of the rows in the order of their arrival, with the marks.

The last column of an array of times is the mark, which a sender sends when it has the marks of all ports. A
link is a queue, so a mark comes after the rows that were sent before it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkpoint.key_hash import hash_rows
from dataflow.core.duplicate_filter import DuplicateFilter
from sites.core.deployment import Deployment, RegionReplica, StreamReplica
from tests.sites.simulation.entry import EntryStore
from tests.sites.simulation.network import Network, Times
from tests.sites.simulation.query import INTERVAL_S, KINDS, rows_of

First = Callable[[Times, Times], Times]
"""(times of the rounds, when each stream has each row and mark) -> when the reader has them."""
Column = npt.NDArray[np.int64]
_MICROSECONDS: Final = 1_000_000


@dataclass(slots=True)
class Activity:
    """When a stream begins to be sent, and when it ends."""

    since: float = -inf
    until: float = inf


@dataclass(slots=True)
class Flowed:
    """ready: when each replica and exit has each row, and the mark. arrivals: when each stream has the marks
    of its sender. weights: of each stream, see `sites.core.observed`.
    """

    ready: dict[RegionReplica, Times]
    arrivals: dict[StreamReplica, Times] = field(default_factory=dict)
    weights: dict[StreamReplica, float] = field(default_factory=dict)


class Flow:
    """The rows of a deployment over a network. entry: where rows are recorded; None: nowhere."""

    def __init__(self, network: Network, deployment: Deployment, entry: EntryStore | None = None) -> None:
        self._network, self._deployment = network, deployment
        self._entry = entry
        self._servers = network.servers

    def run(
        self,
        rounds: Times,
        streams: Mapping[StreamReplica, Activity],
        first: First,
        *,
        before: Mapping[RegionReplica, Times] | None = None,
        now: float = -inf,
        weigh: slice | None = None,
    ) -> Flowed:
        """Return the times of these rounds.

        before: the times that were computed earlier; those up to `now` have happened, and stay. weigh: the
        rounds for which weights are computed.
        """
        ports = dict[RegionReplica, dict[str, list[StreamReplica]]]()
        for stream in sorted(streams):
            ports.setdefault(stream.reader, {}).setdefault(stream.sender.node, []).append(stream)
        rank = {node: number for number, node in enumerate(self._deployment.order)}
        found = Flowed({})
        for reader in sorted(ports, key=lambda one: (rank.get(one.node, len(rank)), one)):
            if reader.node in KINDS:
                times = self._union(rounds, reader, ports[reader], streams, found)
            else:
                parts = [
                    self._port(rounds, reader, port, streams, first, found, weigh)
                    for port in ports[reader].values()
                ]
                times = np.maximum.reduce(parts)
            past = None if before is None else before.get(reader)
            if past is not None:
                times[: len(past)] = np.where(past <= now, past, times[: len(past)])
            found.ready[reader] = times
        return found

    def _union(
        self,
        rounds: Times,
        reader: RegionReplica,
        port: Mapping[str, list[StreamReplica]],
        streams: Mapping[StreamReplica, Activity],
        found: Flowed,
    ) -> Times:
        """Each source is at one place, so each port has one stream."""
        times = np.full((len(rounds), len(self._servers) + 1), inf)
        inputs = [port[f"{reader.node}-{server}"][0] for server in self._servers]
        since, until = (
            np.array([getattr(streams[one], name) for one in inputs]) for name in ("since", "until")
        )
        sent = np.maximum(rounds[:, None], since)
        times[:, :-1] = np.where(sent < until, self._arrive(reader, sent), inf)
        marked = times[:, :-1]
        if self._entry is not None:
            marked = self._arrive(reader, np.maximum(self._entry.marked(self._servers, rounds), since))
        times[:, -1] = np.maximum(marked, times[:, :-1]).max(axis=1)
        found.arrivals |= dict(zip(inputs, times[:, :-1].T, strict=True))
        return times

    def _arrive(self, reader: RegionReplica, sent: Times) -> Times:
        """Return when a reader has what the sources have at these times."""
        if self._entry is not None:
            return self._entry.visible(self._servers, reader.site, sent)
        return self._network.arrive(self._network.links(self._servers, reader.site), sent)

    def _port(
        self,
        rounds: Times,
        reader: RegionReplica,
        port: list[StreamReplica],
        streams: Mapping[StreamReplica, Activity],
        first: First,
        found: Flowed,
        weigh: slice | None,
    ) -> Times:
        """Return when the reader has the rows of a port. Notes marks and weights in `found`."""
        rows = self._columns(port[0].sender.node, reader.node)
        sent = np.stack([self._sent(found, one.sender, len(rounds), rows) for one in port])
        since = np.array([streams[one].since for one in port])[:, None, None]
        until = np.array([streams[one].until for one in port])[:, None, None]
        sent = np.maximum(sent, since)
        links = self._network.links([one.sender.site for one in port], reader.site)
        arrived = self._network.arrive(links[:, None, None], sent)
        arrived[np.broadcast_to(sent >= until, sent.shape)] = inf
        for at, stream in enumerate(port):
            found.arrivals[stream] = arrived[at, :, -1]
            if weigh is not None:
                found.weights[stream] = _weight(arrived[:, weigh, :-1], at)
        return first(rounds, arrived)

    def _columns(self, sender: str, reader: str) -> npt.NDArray[np.int64]:
        """Return the columns of a sender that its reader uses; the last one is the mark."""
        has, needs = (rows_of(node, len(self._servers)) for node in (sender, reader))
        return np.append(np.searchsorted(has, needs), len(has))

    @staticmethod
    def _sent(found: Flowed, sender: RegionReplica, rounds: int, rows: npt.NDArray[np.int64]) -> Times:
        ready = found.ready.get(sender)
        return np.full((rounds, len(rows)), inf) if ready is None else ready[:, rows]


def _weight(arrived: Times, stream: int) -> float:
    """Return the weight of a stream for these rows: 1 for each that it has first, 1/2 if second, ..."""
    own, others = arrived[stream], np.arange(len(arrived))
    earlier = (arrived < own) | ((arrived == own) & (others < stream)[:, None, None])
    return float((np.isfinite(own) / (1.0 + earlier.sum(axis=0))).sum())


def by_arithmetic(_rounds: Times, arrived: Times) -> Times:
    """Return when the first stream has each row."""
    times: Times = arrived.min(axis=0)
    return times


class BadOptionError(AssertionError):
    """A filter lost a row, or passed one twice."""


def by_filter(
    rounds: Times, arrived: Times, make: Callable[[int], DuplicateFilter] = DuplicateFilter
) -> Times:
    """Return when `DuplicateFilter` passes each row, and when its mark reaches that of each round.

    Raises BadOptionError if a row is passed never, although a stream has it, or twice.
    """
    streams, count, columns = arrived.shape
    stamps = np.round(rounds * _MICROSECONDS).astype(np.int64)
    rows = columns - 1
    digests = hash_rows(
        [
            pa.array(np.repeat(stamps, rows)).view(pa.timestamp("us")),
            pa.array(np.tile(np.arange(rows), count)),
        ]
    ).reshape(count, rows)
    filtering = make(int(INTERVAL_S * _MICROSECONDS * 6))
    for stream in range(streams):
        filtering.join(str(stream), ["w0"])
    passed = np.full((count, columns), inf)
    for stream, at, row, times in _deliveries(arrived):
        if row[0] == rows:
            if filtering.set_mark(str(stream), "w0", int(stamps[at[0]])):
                passed[(stamps <= filtering.mark) & np.isinf(passed[:, -1]), -1] = times[0]
            continue
        passes = filtering.take(str(stream), digests[at, row], stamps[at])
        places = at[passes], row[passes]
        if np.isfinite(passed[places]).any():
            raise BadOptionError(f"rows of stream {stream} were passed before, at {times[0]:.3f} s")
        passed[places] = times[passes]
    if (lost := np.isfinite(arrived[..., :-1]).any(axis=0) & np.isinf(passed[:, :-1])).any():
        raise BadOptionError(f"{np.count_nonzero(lost)} rows were never passed")
    return passed


def _deliveries(arrived: Times) -> Iterable[tuple[int, Column, Column, Times]]:
    """Yield (stream, rounds, columns, times) of consecutive rows of one stream, and of each mark. Of one
    time, rows come before the mark.
    """
    stream, at, column = np.nonzero(np.isfinite(arrived))
    times, marks = arrived[stream, at, column], column == arrived.shape[2] - 1
    order = np.lexsort((at, marks, stream, times))
    stream, at, column, times, marks = (one[order] for one in (stream, at, column, times, marks))
    changes = (stream[1:] != stream[:-1]) | marks[1:] | marks[:-1]
    for begin, end in pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(times)]):
        if begin < end:
            part = slice(begin, end)
            yield int(stream[begin]), at[part], column[part], times[part]
