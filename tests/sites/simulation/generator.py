"""Traces that are made up, with the properties of the one in the paper, which is not published.

100 servers in 19 metropolitan areas; the application gets some of them. The delay between two servers is a
base that follows from the distance of their areas, with noise. Beside that there are episodes:

- A pair is *cut off*: 0.6 times a day. How long is lognormal, with a median of 2 minutes and at most 1 hour.
- A *partition* cuts a center and all areas that are at most `PARTITION_MS` from it off from half of the
  others. So servers that are near to each other lose the same others at the same time. On average 0.6
  partitions a day separate a pair of areas. They last as long as above.
- A pair is *congested*: 3 % of the time; every fourth pair 30 %.

Everything follows from the seed. What concerns a pair does not depend on which other servers are drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import asin, cos, radians, sin, sqrt
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.sites.simulation.trace import (
    SAMPLES,
    STEP_S,
    UNIT_S,
    UNREACHABLE,
    Delays,
    Header,
    TraceServer,
)

AREAS: Final[dict[str, tuple[float, float]]] = {
    "madison": (43.1, -89.4),
    "lafayette": (40.4, -86.9),
    "columbus": (40.0, -83.0),
    "boston": (42.4, -71.1),
    "princeton": (40.3, -74.7),
    "atlanta": (33.7, -84.4),
    "houston": (29.8, -95.4),
    "berkeley": (37.9, -122.3),
    "seattle": (47.6, -122.3),
    "london": (51.5, -0.1),
    "paris": (48.9, 2.4),
    "zurich": (47.4, 8.5),
    "berlin": (52.5, 13.4),
    "tokyo": (35.7, 139.7),
    "beijing": (39.9, 116.4),
    "singapore": (1.4, 103.8),
    "hong kong": (22.3, 114.2),
    "sydney": (-33.9, 151.2),
    "sao paulo": (-23.6, -46.6),
}
"""Latitude and longitude."""
POPULATION: Final = 100
WITHIN_MS: Final = 1.0
"""The delay within an area."""
MS_PER_KM: Final = 0.0078
"""Light in fiber takes 0.005 ms; ways are longer than great circles."""
DELAY_MAX_MS: Final = 135.0
PARTITION_MS: Final = 25.0
OUTAGES_A_DAY: Final = 0.6
OUTAGE_S: Final = (120.0, 1.3, 3600.0)
"""Median, sigma and maximum."""
CONGESTED: Final = 0.03
BAD_PAIRS: Final = 0.25
BAD_CONGESTED: Final = 0.3
CONGESTION_S: Final = 600.0
"""The mean of an episode."""
CONGESTION_DELAY_S: Final = (0.06, 1.3)
"""Median and sigma of the additional delay of an episode."""
_DAY_S: Final = 86_400.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Episodes:
    """Of one pair. begins and ends: in samples since the start of the trace; delays: in seconds, NaN if it
    is cut off.
    """

    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    delays: Floats


class Partition(NamedTuple):
    """inside, outside: which areas are separated from which."""

    inside: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]
    begin_s: float
    end_s: float

    def separates(self, one: int, other: int) -> bool:
        """Return whether two areas, by their numbers, are separated."""
        return bool(self.inside[one] & self.outside[other] | self.inside[other] & self.outside[one])


class Generator:
    """A trace of `count` servers, drawn from the population."""

    def __init__(self, seed: int, count: int = 30, days: int = 30) -> None:
        self.seed, self.days = seed, days
        rng = np.random.default_rng([seed, 0])
        names = list(AREAS)
        areas = [*range(len(names)), *rng.integers(len(names), size=POPULATION - len(names))]
        self.drawn = sorted(rng.permutation(POPULATION)[:count].tolist())
        self.areas = [areas[one] for one in self.drawn]
        self.header = Header(
            servers=tuple(
                TraceServer(f"s{one:02}", names[area])
                for one, area in zip(self.drawn, self.areas, strict=True)
            ),
            days=days,
            origin=f"generated with seed {seed}",
        )
        self._pairs = self.header.pairs()
        self._between = _between_areas_ms()
        self._partitions = self._draw_partitions(np.random.default_rng([seed, 1]))

    def bases_ms(self) -> Floats:
        """Return the delay of each pair without noise and episodes."""
        return np.array([self._base(a, b) for a, b in self._pairs])

    def delays(self) -> Iterator[Delays]:
        """Yield each day."""
        bases = self.bases_ms() / 1000
        episodes = [self._episodes(a, b) for a, b in self._pairs]
        rngs = [np.random.default_rng([self.seed, 3, *self._ids(a, b)]) for a, b in self._pairs]
        for day in range(self.days):
            found = np.empty((len(self._pairs), SAMPLES), np.uint16)
            for pair, (base, rng) in enumerate(zip(bases, rngs, strict=True)):
                noise = rng.standard_exponential(SAMPLES, np.float32)
                samples = base * (1 + 0.01 * noise)
                _add(episodes[pair], samples, noise, day * SAMPLES)
                units = np.minimum(np.round(samples / UNIT_S), UNREACHABLE - 1)
                found[pair] = np.where(np.isnan(units), UNREACHABLE, units)
            yield found

    def _ids(self, a: int, b: int) -> tuple[int, int]:
        return self.drawn[a], self.drawn[b]

    def _base(self, a: int, b: int) -> float:
        rng = np.random.default_rng([self.seed, 2, *self._ids(a, b)])
        between = float(self._between[self.areas[a], self.areas[b]])
        return min(between * rng.uniform(0.95, 1.15), DELAY_MAX_MS)

    def _draw_partitions(self, rng: np.random.Generator) -> list[Partition]:
        near = self._between <= PARTITION_MS
        separated = sum((one[:, None] != one[None, :]).mean() for one in near) / 2 / len(near)
        count = rng.poisson(OUTAGES_A_DAY / separated * self.days)
        centers = rng.integers(len(near), size=count)
        lost = rng.random((count, len(near))) < 0.5
        begins, ends = _outages(rng, count, self.days)
        return [
            Partition(near[center], far & ~near[center], begin, end)
            for center, far, begin, end in zip(centers, lost, begins.tolist(), ends.tolist(), strict=True)
        ]

    def _episodes(self, a: int, b: int) -> Episodes:
        rng = np.random.default_rng([self.seed, 4, *self._ids(a, b)])
        share = BAD_CONGESTED if rng.random() < BAD_PAIRS else CONGESTED
        # the mean time between two episodes, so that they fill that share
        count = int(self.days * _DAY_S * share / CONGESTION_S * 1.5) + 10
        lengths = rng.exponential(CONGESTION_S, count)
        starts = np.cumsum(rng.exponential(CONGESTION_S * (1 - share) / share, count) + lengths) - lengths
        median, sigma = CONGESTION_DELAY_S
        levels = median * np.exp(rng.normal(0, sigma, count))
        begins, ends = _outages(rng, rng.poisson(OUTAGES_A_DAY * self.days), self.days)
        one, other = self.areas[a], self.areas[b]
        cuts = [(cut.begin_s, cut.end_s) for cut in self._partitions if cut.separates(one, other)]
        cut_begins, cut_ends = np.array(cuts).reshape(-1, 2).T
        return Episodes(
            np.ceil(np.concatenate([starts, begins, cut_begins]) / STEP_S).astype(np.int64),
            np.ceil(np.concatenate([starts + lengths, ends, cut_ends]) / STEP_S).astype(np.int64),
            np.concatenate([levels, np.full(len(begins) + len(cuts), np.nan)]),
        )


def _outages(rng: np.random.Generator, count: int, days: int) -> tuple[Floats, Floats]:
    median, sigma, longest = OUTAGE_S
    begins = rng.uniform(0, days * _DAY_S, count)
    return begins, begins + np.minimum(median * np.exp(rng.normal(0, sigma, count)), longest)


def _add(episodes: Episodes, samples: Floats, noise: npt.NDArray[np.float32], start: int) -> None:
    """Add the episodes to the samples of a day. Once a sample is NaN, it stays so."""
    near = (episodes.ends > start) & (episodes.begins < start + len(samples))
    for begin, end, delay in zip(
        episodes.begins[near] - start, episodes.ends[near] - start, episodes.delays[near], strict=True
    ):
        part = slice(max(begin, 0), max(end, 0))
        samples[part] += delay * (0.5 + 0.5 * noise[part])


def _between_areas_ms() -> Floats:
    places = [tuple(map(radians, place)) for place in AREAS.values()]
    found = np.empty((len(places), len(places)))
    for at, one in enumerate(places):
        for to, other in enumerate(places):
            found[at, to] = WITHIN_MS + MS_PER_KM * _kilometers(one, other)
    return found


def _kilometers(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return the great circle between two places, by the haversine formula."""
    half = sin((other[0] - one[0]) / 2) ** 2
    half += cos(one[0]) * cos(other[0]) * sin((other[1] - one[1]) / 2) ** 2
    return 2 * 6371 * asin(sqrt(half))
