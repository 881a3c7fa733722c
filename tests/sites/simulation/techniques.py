"""Four techniques for reliable processing, under a load spike and a failure: figure 2 of the paper.

The join is at OSU. The union of latencies is at WISC, that of loads at Purdue; their copies are at the other
of the two sites. Each of 30 servers sends both kinds of rows every half second. A load spike delays what WISC
processes, and later WISC fails.

- *none*: no copies
- *replication*: the join passes each row from whichever replica is first, through real filters
- *synchronization*: a primary sends the order of its input to its backup, and holds its output until that
  has acknowledged it
- *deterministic*: both replicas process rows in the order of time, so a row waits for a later row, or one of
  the same time, from each source; the join reads the primary

The last two notice a failure after `DETECTED_S`, and then read the backup from where the primary ended.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from tests.sites.simulation.flow import by_filter
from tests.sites.simulation.generator import AREAS, POPULATION, Generator
from tests.sites.simulation.network import Times

INTERVAL_S: Final = 0.5
ENDS_S: Final = 80.0
SPIKE_S: Final = (45.0, 50.0)
SPIKE_DELAY_S: Final = 0.7
"""At its top, of each row."""
FAILS_S: Final = 60.0
DETECTED_S: Final = 1.0
SOURCES: Final = 30
WISC, PURDUE, OSU = "madison", "lafayette", "columbus"
PRIMARY: Final = {"latencies": WISC, "loads": PURDUE}
BACKUP: Final = {"latencies": PURDUE, "loads": WISC}
_JITTER: Final = 0.1
"""The mean of the noise, as a share of the delay."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the join gives. times_s: of each row; latencies_s: inf for one that was never given."""

    times_s: Times
    latencies_s: Times

    def mean_ms(self, begin: float, end: float) -> float:
        """Return the mean latency of rows of these times; NaN if none was given."""
        found = self.latencies_s[(self.times_s >= begin) & (self.times_s < end)]
        found = found[np.isfinite(found)]
        return float(found.mean() * 1000) if len(found) else float("nan")


class _Place:
    """The delays between the three sites, and from the sources."""

    def __init__(self, seed: int, bases_s: Mapping[tuple[int, int], float]) -> None:
        self._bases = bases_s
        self._sites = {name: list(AREAS).index(name) for name in (WISC, PURDUE, OSU)}
        self._rng = np.random.default_rng([seed, 30])
        others = np.arange(len(AREAS), POPULATION)
        self._sources = self._rng.permutation(others)[:SOURCES]
        offsets = self._rng.uniform(0, INTERVAL_S, SOURCES)
        self.times = np.arange(0, ENDS_S, INTERVAL_S)[:, None] + offsets

    def from_sources(self, site: str) -> Times:
        """Return when each row arrives at a site."""
        bases = np.array([self._bases[self._sites[site], int(one)] for one in self._sources])
        return self._sent(self.times, bases)

    def between(self, sent: Times, one: str, other: str) -> Times:
        """Return when what is sent from one site arrives at another."""
        if one == other:
            return sent
        pair = sorted((self._sites[one], self._sites[other]))
        return self._sent(sent, self._bases[pair[0], pair[1]])

    def _sent(self, sent: Times, base: Times | float) -> Times:
        arrived: Times = sent + base * (1 + _JITTER * self._rng.standard_exponential(sent.shape))
        return np.maximum.accumulate(arrived, axis=0)


def _processed(arrived: Times, site: str) -> Times:
    """Return when a site gives its output for rows: never if it has failed."""
    if site != WISC:
        return arrived
    begin, end = SPIKE_S
    height = 1 - np.abs(2 * (arrived - begin) / (end - begin) - 1)
    done = arrived + SPIKE_DELAY_S * np.clip(height, 0, 1)
    return np.where(done < FAILS_S, done, inf)


def _none(place: _Place, kind: str) -> Times:
    site = PRIMARY[kind]
    return place.between(_processed(place.from_sources(site), site), site, OSU)


def _replication(place: _Place, kind: str) -> Times:
    arrived = []
    for site in (PRIMARY[kind], BACKUP[kind]):
        rows = place.between(_processed(place.from_sources(site), site), site, OSU)
        arrived.append(np.concatenate([rows, rows.max(axis=1, keepdims=True)], axis=1))
    return by_filter(place.times[:, 0], np.stack(arrived))[:, :-1]


def _synchronization(place: _Place, kind: str) -> Times:
    primary, backup = PRIMARY[kind], BACKUP[kind]
    own = _processed(place.from_sources(primary), primary)
    acknowledged = place.between(_processed(place.between(own, primary, backup), backup), backup, primary)
    alone = own if primary != WISC else np.full_like(own, inf)
    held = np.where(np.isfinite(acknowledged), acknowledged, np.maximum(alone, FAILS_S + DETECTED_S))
    late = own >= FAILS_S + DETECTED_S  # after the partner's failure was noticed, nothing is held
    given = place.between(np.where(late & (primary != WISC), own, held), primary, OSU)
    return _failed_over(place, kind, given, place.from_sources(backup))


def _deterministic(place: _Place, kind: str) -> Times:
    def in_order(site: str) -> Times:
        arrived = place.from_sources(site)
        due = np.empty_like(arrived)
        for row, time in np.ndenumerate(place.times):
            following = [
                arrived[at, source]
                for source in range(SOURCES)
                if (at := int(np.searchsorted(place.times[:, source], time))) < len(arrived)
            ]
            due[row] = max(following)
        return due

    primary = PRIMARY[kind]
    given = place.between(_processed(in_order(primary), primary), primary, OSU)
    return _failed_over(place, kind, given, in_order(BACKUP[kind]))


def _failed_over(place: _Place, kind: str, given: Times, backup: Times) -> Times:
    """Return when the join has rows: those that the primary does not give come from the backup."""
    after = place.between(np.maximum(backup, FAILS_S + DETECTED_S), BACKUP[kind], OSU)
    return np.where(np.isfinite(given), given, after)


TECHNIQUES: Final[dict[str, Callable[[_Place, str], Times]]] = {
    "no replication": _none,
    "replication": _replication,
    "synchronization": _synchronization,
    "deterministic": _deterministic,
}


def compare(seed: int = 1) -> dict[str, Outputs]:
    """Return the output of the join with each technique, over the same network."""
    generator, found = Generator(seed, POPULATION, 1), dict[str, Outputs]()
    bases_s = dict(zip(generator.header.pairs(), generator.bases_ms() / 1000, strict=True))
    for name, technique in TECHNIQUES.items():
        place = _Place(seed, bases_s)
        ready = np.maximum(technique(place, "latencies"), technique(place, "loads"))
        found[name] = Outputs(place.times.ravel(), (ready - place.times).ravel())
    return found
