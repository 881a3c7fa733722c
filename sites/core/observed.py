"""What is known of a deployment at one time: who was first, who is alive, what is late. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from sites.core.deployment import RegionReplica, StreamReplica

ALIVE_S: Final = 30.0
"""A replica is alive if its mark has moved within this time."""


@dataclass(frozen=True, slots=True)
class Observation:
    """weights: of each stream, see `utility`. alive: the mark of these replicas and exits has moved within
    `ALIVE_S`. whole: these streams have given, or will give, all rows above the mark of their reader.
    lateness_s: how far the rows of a stream are behind, at its reader; a stream that is left out has given
    nothing. young: streams that were revived a short time ago; a port with one of them is not late.
    lost: sites that do not answer. restorable: collected replicas whose own checkpoint can be joined at every
    port. since_revival_s: since the last one.
    """

    weights: Mapping[StreamReplica, float] = field(default_factory=dict)
    alive: frozenset[RegionReplica] = frozenset()
    whole: frozenset[StreamReplica] = frozenset()
    lateness_s: Mapping[StreamReplica, float] = field(default_factory=dict)
    young: frozenset[StreamReplica] = frozenset()
    lost: frozenset[str] = frozenset()
    restorable: frozenset[RegionReplica] = frozenset()
    since_revival_s: float = inf
