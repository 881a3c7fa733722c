"""The faults of a run, planned from the seed before it begins, each with its own moment and random stream.

So a fault can be left out without changing the others, which is how a failing run is reduced. Each seed
disables most kinds and gives the others weights (swarm testing), because constant faults of all kinds hide
bugs that need one kind alone. Some seeds use scripts, which need time without other faults: they have few
other kinds, and fewer faults.

A kind is a function of the cluster and a fault; the table names all of them. The promise (P-5) allows
damage on Qa - 1 members; a run damages the disk of one machine only.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.conditions import changed, conditions
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.membership.kind import has_operator
from tests.sim.nemesis import (
    clients,
    disks,
    machines,
    membership,
    paths,
    peers,
    rot,
    scripts,
    troubles,
    with_log,
)
from tests.sim.nemesis.fault import Fault, Kind, by_name
from tests.sim.nemesis.region_plays import REGION_ACTS, REGION_PLAYS, plan_acts, plan_plays
from tests.sim.nemesis.regions import REGION_KINDS, plan_region
from tests.sim.regions.region import has_region
from tests.support.group_log import LOG_SEEDS

if TYPE_CHECKING:
    from tests.sim.run import Cluster

__all__ = ["ALL_KINDS", "KINDS", "Fault", "plan", "plan_of", "strike"]

KINDS: Final[dict[str, Kind]] = {
    "kill_server": machines.kill_server,
    "power_cut": machines.power_cut,
    "power_cut_all": machines.power_cut_all,
    "power_cut_midway": machines.power_cut_midway,
    "pause_server": machines.pause_server,
    "pause_writer": clients.pause_writer,
    "zombie": clients.zombie,
    "kill_writer": clients.kill_writer,
    "rival": clients.rival,
    "hurry": clients.hurry,
    "clock_jump": clients.clock_jump,
    "clock_drift": clients.clock_drift,
    "flood": peers.flood,
    "wild_claim": peers.wild_claim,
    "block": paths.block,
    "slow": paths.slow,
    "thin": paths.thin,
    "bar": paths.bar,
    "reset": paths.reset,
    "zombie_connection": paths.zombie_connection,
    "slow_disk": disks.slow_disk,
    "stalled_disk": disks.stalled_disk,
    "full_disk": disks.full_disk,
    "short_of_space": disks.short_of_space,
    "sync_error": disks.sync_error,
    "write_error": disks.write_error,
    "failed_sync_then_power": disks.failed_sync_then_power,
    "flip": rot.flip,
    "zero_sector": rot.zero_sector,
    "swap_sectors": rot.swap_sectors,
    "older_sector": rot.older_sector,
    "truncate": rot.truncate,
    "unreadable_sector": rot.unreadable_sector,
    "wipe": disks.wipe,
    **scripts.KINDS,
}
RARE: Final = by_name(disks.full_at_the_start)
"""Kinds that few runs have, planned by a stream of their own: one of them happens two or three times."""
_RARE_SHARE: Final = 0.06
TROUBLES: Final = by_name(
    *(troubles.no_descriptors, troubles.no_rights, troubles.short_writes),
    *(troubles.trouble_at_the_start, troubles.failing_medium, troubles.removed_directory),
)
"""Kinds planned by another stream: some of them happen several times in a part of the runs."""
TROUBLED_SHARE: Final = 0.15
OF_LOGS: Final = by_name(with_log.stop_server, with_log.large_records)
"""Kinds that half of the runs with a group log have, planned by a stream of their own."""
OF_OPERATORS: Final = by_name(
    *(membership.replace, membership.add, membership.repair),
    *(membership.kill_operator, membership.pause_operator, membership.second_operator),
)
"""Kinds that only runs with an operator have."""
ACTS: Final = by_name(membership.two_replacements, membership.damaged_ahead, membership.lose_too_many)
"""Kinds that happen at most once in a run with an operator, planned by a stream of their own."""
_ACTS_SHARE: Final = {"two_replacements": 0.3, "damaged_ahead": 0.2, "lose_too_many": 0.25}
BESIDE_OPERATORS: Final = tuple(kind for kind in KINDS if kind not in scripts.KINDS)
"""Other kinds in runs with an operator. Scripts do not support changes of members."""
ALL_KINDS: Final = {
    **KINDS,
    **RARE,
    **TROUBLES,
    **OF_LOGS,
    **REGION_KINDS,
    **REGION_PLAYS,
    **REGION_ACTS,
    **OF_OPERATORS,
    **ACTS,
}
FAULTS_MEAN: Final = (12, 24, 48, 96)
"""Mean numbers of faults of servers, writers and paths in a run, of which one is drawn."""

_SCRIPTED: Final = 0.5
"""The share of the seeds that use scripts."""


def safety_s(streams: RandomStreams) -> float:
    """Return for how many virtual seconds faults happen. A region needs time for checkpoints and resets."""
    return 11.0 if has_region(streams) else 8.0


def plan(streams: RandomStreams) -> list[Fault]:
    """Return the faults of a run."""
    rng, seconds = streams.nemesis, safety_s(streams)
    scripted = rng.random() < _SCRIPTED
    weights = _of_operators(rng) if has_operator(streams) else _weights(rng, scripted=scripted)
    pace = rng.choice(FAULTS_MEAN) / seconds / (8 if scripted else 1)
    faults: list[Fault] = []
    at = 0.0
    while True:
        at += rng.expovariate(pace)
        if at > seconds:
            break
        number = len(faults)
        length = rng.choice([0.01, 0.1, 0.3, 1.0, 3.0]) * (0.5 + rng.random())
        (kind,) = rng.choices(list(weights), list(weights.values()))
        faults.append(Fault(number, at, kind, length, f"{streams.seed}/fault/{number}"))
    if has_region(streams):
        faults += plan_region(streams.seed, streams.stream("nemesis of the region"), seconds, len(faults))
        faults += plan_plays(streams.seed, streams.stream("plays of the region"), seconds, len(faults))
        faults += plan_acts(streams.seed, streams.stream("acts in the region"), seconds, len(faults))
    faults += _rare(streams, seconds, len(faults))
    faults += _troubles(streams, seconds, len(faults))
    return faults + _of_logs(streams, seconds, len(faults))


def has_troubles(streams: RandomStreams) -> bool:
    """Return whether a run has kinds of `TROUBLES`. Runs with an operator have none: they have many disk
    faults."""
    return not has_operator(streams) and streams.stream("troubles").random() < TROUBLED_SHARE


def _troubles(streams: RandomStreams, seconds: float, first: int) -> list[Fault]:
    if not has_troubles(streams):
        return []
    rng = streams.stream("which troubles")
    kinds = rng.sample(list(TROUBLES), rng.randint(1, 3))
    return _some_of(kinds, rng, streams.seed, seconds, first)


def _of_logs(streams: RandomStreams, seconds: float, first: int) -> list[Fault]:
    rng = streams.stream("faults of logs")
    if streams.seed < LOG_SEEDS or rng.random() < 0.5:
        return []
    kinds = rng.sample(list(OF_LOGS), rng.randint(1, len(OF_LOGS)))
    return _some_of(kinds, rng, streams.seed, seconds, first)


def _some_of(kinds: list[str], rng: Random, seed: int, seconds: float, first: int) -> list[Fault]:
    """Draw some faults of these kinds."""
    moments = sorted(rng.uniform(0.2, seconds) for _ in range(rng.choice([2, 4, 8])))
    return [
        Fault(number, at, rng.choice(kinds), rng.choice([0.1, 0.5, 2.0]), f"{seed}/fault/{number}")
        for number, at in enumerate(moments, first)
    ]


def _rare(streams: RandomStreams, seconds: float, first: int) -> list[Fault]:
    if has_operator(streams):
        return _acts(streams, seconds, first)
    rng = streams.stream("rare faults")
    if rng.random() >= _RARE_SHARE:
        return []
    kind, moments = (
        rng.choice(list(RARE)),
        sorted(rng.uniform(1.0, seconds) for _ in range(rng.randint(2, 3))),
    )
    return [
        Fault(number, at, kind, 0.5, f"{streams.seed}/fault/{number}")
        for number, at in enumerate(moments, first)
    ]


def _acts(streams: RandomStreams, seconds: float, first: int) -> list[Fault]:
    rng = streams.stream("acts of people")
    chosen = [(rng.uniform(1.0, seconds / 2), kind) for kind in ACTS if rng.random() < _ACTS_SHARE[kind]]
    return [
        Fault(number, at, kind, 0.5, f"{streams.seed}/fault/{number}")
        for number, (at, kind) in enumerate(chosen, first)
    ]


def _weights(rng: Random, *, scripted: bool) -> dict[str, float]:
    """Draw which kinds a run has, and their weights."""
    weights: dict[str, float] = {}
    for kind in KINDS:
        on, weight = rng.random(), rng.choice([0.3, 1.0, 3.0])
        if kind in scripts.KINDS:
            if on < (0.6 if scripted else 0.15):
                weights[kind] = 12.0 * weight if scripted else weight
        elif on < (0.2 if scripted else 0.4):
            weights[kind] = weight
    return weights or {rng.choice(list(KINDS)): 1.0}


def _of_operators(rng: Random) -> dict[str, float]:
    """Draw the kinds and weights of a run with an operator."""
    kinds = [*BESIDE_OPERATORS, *OF_OPERATORS]
    weights: dict[str, float] = {kind: rng.choice([0.3, 1.0, 3.0]) for kind in kinds if rng.random() < 0.4}
    return weights or {rng.choice(kinds): 1.0}


def plan_of(seed: int) -> list[Fault]:
    """Return the plan of a seed alone."""
    return plan(RandomStreams(seed))


def strike(cluster: "Cluster", fault: Fault) -> None:
    """Perform the fault."""
    cluster.note("nemesis", f"{fault} for {fault.seconds:.3f} s")
    before = conditions(cluster) if cluster.env.trace.kept else {}
    cluster.history.sometimes[f"fault: {fault.kind}"] += 1
    ALL_KINDS[fault.kind](cluster, fault, Random(fault.seed))
    if cluster.env.trace.kept:
        cluster.say("nemesis", f"  {changed(before, conditions(cluster))}")
