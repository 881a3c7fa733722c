"""Random applications over sites."""

import itertools
import random

from hypothesis import strategies as st

from sites.core.deployment import Plan, make_plan
from sites.core.description import (
    Description,
    FixedPlace,
    ReplicatedRegion,
    ReplicatedStream,
    Site,
    SiteLink,
    check,
)
from sites.errors import PlanRefusedError


def an_application(seed: int) -> Description:
    """Some sites, and regions that read sources and earlier regions."""
    rng = random.Random(seed)
    names = [f"site{number}" for number in range(rng.randrange(1, 7))]
    sites = tuple(Site(name, rng.choice([1.0, 2.0, 9.0]), rng.choice([0.0, 0.3])) for name in names)
    links = []
    for pair in itertools.combinations(names, 2):
        latency = float(rng.randrange(1, 100))
        links.append(SiteLink(pair, latency, rng.choice([None, latency / 2])))
    sources = tuple(FixedPlace(f"source{number}", rng.choice(names)) for number in range(rng.randrange(1, 3)))
    exits = tuple(FixedPlace(f"exit{number}", rng.choice(names)) for number in range(rng.randrange(1, 3)))
    regions = tuple(
        ReplicatedRegion(f"region{number}", rng.choice([0.1, 0.5])) for number in range(rng.randrange(1, 4))
    )
    streams, senders = [], [source.name for source in sources]
    for region in regions:
        read = rng.sample(senders, rng.randrange(1, len(senders) + 1))
        streams += [ReplicatedStream(one, region.name, float(rng.choice([1, 10, 1_000]))) for one in read]
        senders.append(region.name)
    for number, region in enumerate(regions):
        if region.name not in {stream.sender for stream in streams}:
            streams.append(ReplicatedStream(region.name, exits[number % len(exits)].name, 10.0))
    for one in exits:
        if one.name not in {stream.reader for stream in streams}:
            streams.append(ReplicatedStream(regions[-1].name, one.name, 10.0))
    kmax = rng.randrange(1, 4)
    distance = rng.choice([0.0, 10.0, 30.0])
    description = Description(
        sites, sources, exits, regions, tuple(streams), tuple(links), kmax, rng.randint(1, kmax), distance
    )
    check(description)
    return description


SEEDS = st.integers(0, 1 << 40)


def planned(description: Description) -> Plan | None:
    """The plan, None if it is refused."""
    try:
        return make_plan(description)
    except PlanRefusedError:
        return None
