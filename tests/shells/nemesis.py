"""The faults of a run of shells, planned from the seed before it begins, as in `tests.sim.nemesis`.

A kind is a function of the cluster and a fault; the table names them all. On one machine of a run, the
victim, a sync may fail (P-5); every other fault may happen on any machine.
"""

import errno
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from tests.shells.forger import Forger
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.nemesis.fault import Fault

if TYPE_CHECKING:
    from tests.shells.machines import Image, Machine
    from tests.shells.run import Cluster

Kind = Callable[["Cluster", Fault, Random], None]
_POLL_S: Final = 0.02
_INFORMED_S: Final = 0.5
"""Without disturbances a client needs less time to inform the members of a stamp."""


def kill_server(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    machine.kill()
    cluster.later(fault.seconds, cluster.start, machine)


def power_cut(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    machine.power_cut()
    cluster.later(fault.seconds, cluster.start, machine)


def power_cut_all(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    for machine in cluster.machines:
        machine.power_cut()
        cluster.later(fault.seconds * (0.5 + rng.random()), cluster.start, machine)


def power_cut_midway(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The power fails at one particular disk call."""
    machine = rng.choice(cluster.machines)
    if machine.up:
        machine.disk.cut_in = rng.randint(1, 30)
    cluster.later(fault.seconds, cluster.start, machine)


def reset(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Some connections are reset, and the data in flight is lost."""
    sockets = list(cluster.network.sockets)
    for sock in rng.sample(sockets, min(len(sockets), rng.randint(1, 4))):
        cluster.network.reset(sock)


def half_open(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Connections of a writer, or of any client, are dead without notice: a waiting client must detect the
    silence. The servers' kernels end them at the heal, the clients' kernels never."""
    writers, sockets = cluster.living_writers(), list(cluster.network.sockets)
    if writers and rng.random() < 0.7:
        name = rng.choice(writers).name
        chosen = [one for one in sockets if one.host == name]
    else:
        chosen = rng.sample(sockets, min(len(sockets), rng.randint(1, 4)))
    machines = {machine.name for machine in cluster.machines}
    for sock in chosen:
        cluster.network.forget(sock)
        cluster.half_open += [end for end in (sock, sock.peer) if end.host in machines]


def stall_path(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Nothing arrives between a client and a server for a while, one way or both."""
    clients = [client.name for client in cluster.clients if client.alive]
    if clients:
        _stall(cluster, rng.choice(clients), [rng.choice(cluster.machines).name], fault.seconds, rng)


def stall_server(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """All paths of a server are blocked both ways, as if it were stopped."""
    clients = [client.name for client in cluster.clients if client.alive]
    _stall(cluster, rng.choice(cluster.machines).name, clients, fault.seconds, None)


def _stall(cluster: "Cluster", one: str, others: list[str], seconds: float, rng: Random | None) -> None:
    ways = [(one, other) for other in others], [(other, one) for other in others]
    chosen = [*ways[0], *ways[1]] if rng is None else rng.choice([ways[0], ways[1], [*ways[0], *ways[1]]])
    for source, target in chosen:
        cluster.network.block(source, target)
        cluster.later(seconds, cluster.network.unblock, source, target)


def zombie(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A writer is cut off, another takes over, then the messages of the first one arrive."""
    writers = cluster.living_writers()
    if writers:
        writer = rng.choice(writers)
        _stall(
            cluster, writer.name, [machine.name for machine in cluster.machines], 1.0 + fault.seconds, None
        )
        cluster.new_writer(writer.directory)


def kill_writer(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    writers = cluster.living_writers()
    if writers:
        rng.choice(writers).kill()


def cancel_client(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A client is canceled before a random step of any task."""
    alive = [client for client in cluster.clients if client.alive]
    if alive:
        client = rng.choice(alive)
        cluster.count.at.setdefault(cluster.count.steps + rng.randint(1, 200), []).append(client.scope.cancel)


def rival(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    cluster.new_writer(rng.choice(cluster.directories))


def slow_network(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    host, before = rng.choice(cluster.machines).name, dict(cluster.slow_hosts)
    cluster.slow_hosts[host] = rng.choice([10.0, 100.0])
    cluster.later(fault.seconds, cluster.slow_hosts.pop, host, before)


def slow_disk(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    machine.slowness = rng.choice([10.0, 100.0, 1000.0])
    cluster.later(fault.seconds, setattr, machine, "slowness", 1.0)


def full_disk(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    machine.disk.fill(rng.choice([0, 100, 2_000]))
    machine.was_full = True
    cluster.later(fault.seconds, machine.disk.free)


def sync_error(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """One sync of the victim fails; the data that it should have written is lost, and later syncs succeed."""
    if cluster.may_fail():
        cluster.victim.disk.fail("sync", errno.EIO, nth=rng.randint(1, 3))


def restored_disk(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The disk of the victim is copied: it is stopped for that and continues, or the copy is a snapshot of
    the running disk, and another writer claims after it. Then one other member is unavailable while the
    writers use the victim. Then the writers are killed, the victim gets the copy back, the second other
    member is unavailable, and the first one, which has less, is back. Without effect if one of the others
    does not know a newer stamp of the victim, because then the old disk cannot be detected
    (docs/decisions/0211). After a claim that nothing disturbed, they must know one."""
    victim = cluster.victim
    others = [one for one in cluster.machines if one is not victim and one.is_member_with(victim)]
    if victim.up and cluster.may_fail() and len(others) == 2:
        rng.shuffle(others)
        if rng.random() < 0.5:
            _snapshot_and_claim(cluster, others, rng)
            return
        victim.kill()
        image = victim.image()
        cluster.later(0.05, cluster.start, victim)
        cluster.later(0.1 + 0.4 * rng.random(), _stop_one, cluster, image, others, rng)


def _snapshot_and_claim(cluster: "Cluster", others: "list[Machine]", rng: Random) -> None:
    image, before = cluster.victim.image(running=True), _disturbances(cluster)
    writer = cluster.new_writer(rng.choice(cluster.directories))
    waited = 0

    def informed_or_late() -> None:
        nonlocal waited
        waited += writer.running
        late, ended = waited * _POLL_S > _INFORMED_S, cluster.healed or not writer.alive
        if ended or late or _informed(cluster, image, others):
            undisturbed = not ended and late and before == _disturbances(cluster) and before[-1]
            _stop_one(cluster, image, others, rng, undisturbed=undisturbed)
        else:
            cluster.later(_POLL_S, informed_or_late)

    informed_or_late()


def _disturbances(cluster: "Cluster") -> tuple[object, ...]:
    """Return what must not change while a client informs members of a stamp, and whether nothing prevents
    it now."""
    faults = [number for name, number in cluster.history.sometimes.items() if name.startswith("fault: ")]
    quiet = all(one.up and one.slowness == 1.0 and one.disk.is_healthy() for one in cluster.machines)
    quiet = quiet and not cluster.slow_hosts and not cluster.network._blocked
    forged = cluster.history.sometimes["fault: forged_stamps"]
    return sum(faults), *(one.host.server for one in cluster.machines), quiet and not forged


def _informed(cluster: "Cluster", image: "Image", others: "list[Machine]") -> bool:
    return all(one.newest_stamp_known(cluster.victim) > image.newest_stamp for one in others)


def _stop_one(
    cluster: "Cluster", image: "Image", others: "list[Machine]", rng: Random, *, undisturbed: bool = False
) -> None:
    known = undisturbed or _informed(cluster, image, others)
    cluster.history.sometimes["a disk is restored" if known else "a disk may not be restored"] += 1
    if known and not cluster.healed:
        others[0].kill()
        cluster.later(0.1 + 0.4 * rng.random(), _restore_disk, cluster, image, others)


def _restore_disk(cluster: "Cluster", image: "Image", others: "list[Machine]") -> None:
    if cluster.healed:
        return
    for writer in cluster.living_writers():
        writer.kill()
    cluster.victim.kill()
    others[1].kill()
    cluster.victim.put_back(image)
    cluster.later(0.05, cluster.start, cluster.victim)
    cluster.later(0.05, cluster.start, others[0])
    cluster.later(10.0, cluster.start, others[1])  # or at the heal


def forged_stamps(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A client sends stamps that no disk ever had."""
    cluster.begin(lambda name: Forger(cluster, name), "f")


KINDS: Final[dict[str, Kind]] = {
    kind.__name__: kind
    for kind in (
        *(kill_server, power_cut, power_cut_all, power_cut_midway),
        *(reset, stall_path, stall_server, slow_network),
        *(zombie, kill_writer, cancel_client, rival),
        *(slow_disk, full_disk, sync_error),
    )
}
RARE: Final[dict[str, Kind]] = {"half_open": half_open}
RESTORED: Final[dict[str, Kind]] = {"restored_disk": restored_disk}
FORGED: Final[dict[str, Kind]] = {"forged_stamps": forged_stamps}
"""Each planned by a stream of its own: so many of the runs have one of it, or two."""
RARE_SHARE: Final = 0.2
RESTORED_SHARE: Final = 0.4
FORGED_SHARE: Final = 0.2
ALL_KINDS: Final = {**KINDS, **RARE, **RESTORED, **FORGED}


def plan(streams: RandomStreams, seconds: float) -> list[Fault]:
    """Return the faults of a run of `seconds`; about half of the kinds are disabled."""
    rng = streams.nemesis
    on = [kind for kind in KINDS if rng.random() < 0.5] or [rng.choice(list(KINDS))]
    pace = rng.choice([0.5, 1.0, 2.0, 4.0])
    faults: list[Fault] = []
    at = 0.0
    while True:
        at += rng.expovariate(pace)
        if at > seconds:
            faults += _rare(
                streams.stream("rare faults"), streams.seed, RARE, RARE_SHARE, seconds, len(faults)
            )
            restored, forged = streams.stream("restored disks"), streams.stream("forged stamps")
            faults += _rare(restored, streams.seed, RESTORED, RESTORED_SHARE, 0.5 * seconds, len(faults), 1)
            return faults + _rare(forged, streams.seed, FORGED, FORGED_SHARE, seconds, len(faults), 1)
        number = len(faults)
        length = rng.choice([0.01, 0.1, 0.3, 1.0, 3.0]) * (0.5 + rng.random())
        faults.append(Fault(number, at, rng.choice(on), length, f"{streams.seed}/fault/{number}"))


def _rare(
    rng: Random, run: int, kinds: dict[str, Kind], share: float, seconds: float, first: int, most: int = 2
) -> list[Fault]:
    if rng.random() >= share:
        return []
    kind, moments = (
        rng.choice(list(kinds)),
        sorted(rng.uniform(0.5, seconds) for _ in range(rng.randint(1, most))),
    )
    seeds = (f"{run}/fault/{number}" for number in range(first, first + len(moments)))
    return [
        Fault(number, at, kind, 1.0, seed)
        for number, (at, seed) in enumerate(zip(moments, seeds, strict=True), first)
    ]


def strike(cluster: "Cluster", fault: Fault) -> None:
    """Perform the fault, unless the run is healed."""
    strike_with(ALL_KINDS, cluster, fault)


def strike_with(kinds: Mapping[str, Kind], cluster: "Cluster", fault: Fault) -> None:
    """Perform a fault of these kinds, unless the run is healed."""
    if not cluster.healed:
        cluster.note("nemesis", f"{fault} for {fault.seconds:.3f} s")
        cluster.history.sometimes[f"fault: {fault.kind}"] += 1
        kinds[fault.kind](cluster, fault, Random(fault.seed))
