"""The application of the paper's simulations, as a description for the planner, and the rows of its nodes.

Each server has two sources: its load, and the latency of its connections. Two unions merge the sources of a
kind. Three joins match both for a third of the servers each; the window is as long as the interval between
rows, so rows of one server and one time match. Ten filters, which pass all rows, read a join each, and each
feeds one application. With these rates k replicas need 3.22, 6.67, 11.33 and 17.22 times the bandwidth for
k = 2 to 5, as in the paper.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from sites.core.description import (
    Description,
    FixedPlace,
    ReplicatedRegion,
    ReplicatedStream,
    Site,
    SiteLink,
    check,
)
from tests.sites.simulation.network import Network

INTERVAL_S: Final = 10.0
KINDS: Final = ("loads", "latencies")
JOINS: Final = 3
APPLICATIONS: Final = 10
SOURCE_BYTES: Final = 40.0
JOINED_BYTES: Final = 60.0
CAPACITY: Final = 6.0
"""Of a server, in replicas; of which the planner uses alpha."""


def describe(network: Network, seed: int, kmax: int, kmin: int = 1, distance_ms: float = 30.0) -> Description:
    """Return the application over the servers of a trace. Ten servers, by the seed, have an application."""
    servers = network.servers
    rng = np.random.default_rng([seed, 10])
    exits = [servers[at] for at in rng.permutation(len(servers))[np.arange(APPLICATIONS) % len(servers)]]
    means, least = network.means_ms()
    streams = []
    rate = SOURCE_BYTES / INTERVAL_S
    for kind in KINDS:
        streams += [ReplicatedStream(f"{kind}-{server}", kind, rate) for server in servers]
        streams += [ReplicatedStream(kind, f"joined-{one}", rate * len(servers)) for one in range(JOINS)]
    for one in range(APPLICATIONS):
        joined = JOINED_BYTES / INTERVAL_S * len(rows_of(f"joined-{one % JOINS}", len(servers)))
        streams.append(ReplicatedStream(f"joined-{one % JOINS}", f"passed-{one}", joined))
        streams.append(ReplicatedStream(f"passed-{one}", f"application-{one}", joined))
    regions = [
        *KINDS,
        *(f"joined-{one}" for one in range(JOINS)),
        *(f"passed-{one}" for one in range(APPLICATIONS)),
    ]
    found = Description(
        sites=tuple(Site(server, CAPACITY) for server in servers),
        sources=tuple(FixedPlace(f"{kind}-{server}", server) for kind in KINDS for server in servers),
        exits=tuple(FixedPlace(f"application-{one}", site) for one, site in enumerate(exits)),
        regions=tuple(ReplicatedRegion(name, 1.0) for name in regions),
        streams=tuple(streams),
        links=tuple(
            SiteLink((servers[a], servers[b]), float(mean), float(low))
            for (a, b), mean, low in zip(network.trace.header.pairs(), means, least, strict=True)
        ),
        kmax=kmax,
        kmin=kmin,
        distance_ms=distance_ms,
    )
    check(found)
    return found


def rows_of(node: str, servers: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the servers whose rows a union, a join, a filter or an exit has."""
    kind, _, number = node.partition("-")
    first = int(number) % JOINS if number else 0
    return np.arange(first, servers, JOINS if number else 1) if kind not in KINDS else np.arange(servers)
