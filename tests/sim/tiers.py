"""The two simulators, as the command, campaigns and hunts use them."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, NamedTuple

from tests.sim import nemesis, run
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.membership.kind import has_operator
from tests.sim.nemesis import Fault
from tests.sim.regions.region import has_region
from tests.sim.result import Result
from tests.sim.visitors.visitors import has_visitors

Kinds = Mapping[str, Callable[[RandomStreams], bool]]


class Tier(NamedTuple):
    """One simulator. `option`: what its command lines have in addition; `kinds`: of seeds, to which a
    campaign can be limited; `faults`: the names of all kinds of faults; `has_events`: whether the events of
    `sometimes.EVENT_GROUPS` must be seen."""

    option: str
    run_seed: Callable[..., Result]
    plan_of: Callable[[int], list[Fault]]
    kinds: Kinds
    faults: frozenset[str]
    has_events: bool


CORES: Final = "cores"
SHELLS: Final = "shells"


@cache
def tier_of(name: str) -> Tier:
    """Return the tier `CORES` (real cores in short shells) or `SHELLS` (real shells in one run of trio)."""
    if name == CORES:
        kinds: Kinds = {
            "store": lambda rng: not has_region(rng) and not has_operator(rng),
            "region": has_region,
            "membership": has_operator,
            "visitors": has_visitors,
            "troubles": nemesis.has_troubles,
        }
        return Tier("", run.run_seed, nemesis.plan_of, kinds, frozenset(nemesis.ALL_KINDS), has_events=True)
    from tests.shells import nemesis as shell_faults  # they take long to import
    from tests.shells import run as shells
    from tests.shells.region import nemesis as region_faults

    of_shells: Kinds = {
        "store": lambda rng: not shells.has_region(rng.seed),
        "region": lambda rng: shells.has_region(rng.seed),
    }
    faults = frozenset({**shell_faults.ALL_KINDS, **region_faults.KINDS})
    return Tier(" --shells", shells.run_seed, shells.plan_of, of_shells, faults, has_events=False)
