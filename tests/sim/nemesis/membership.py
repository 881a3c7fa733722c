"""Changes of the store that a person makes during a run, and faults of the person's processes. Only runs with
an operator have these.
"""

from random import Random
from typing import TYPE_CHECKING, Final, cast

from tests.sim.membership.jobs import Job
from tests.sim.nemesis.fault import Fault
from tests.sim.nemesis.machines import down_for
from tests.sim.nemesis.rot import objects_of, rot

if TYPE_CHECKING:
    from tests.sim.membership.cluster import MembershipCluster
    from tests.sim.run import Cluster

MEMBERS_MAX: Final = 5


def _of(cluster: "Cluster") -> "MembershipCluster":
    return cast("MembershipCluster", cluster)


def replace(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A member is replaced: the one whose disk was lost, if there is one."""
    store = _of(cluster)
    if not store.busy():
        job = store.replacement(rng)
        if job is not None:
            store.begin(job)


def add(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A member is added."""
    store = _of(cluster)
    if not store.busy() and store.spares and not store.lost and len(store.record.members) < MEMBERS_MAX:
        store.begin(Job("add", new=store.spares[0]))


def repair(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A person runs a repair, possibly during a replacement."""
    _of(cluster).begin(Job("repair", alone=False))


def kill_operator(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    operators = _of(cluster).operators
    if operators:
        operator = rng.choice(operators)
        cluster.network.process_died(operator, power=rng.random() < 0.3)
        operator.kill()


def pause_operator(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """An operator is paused, in half of the cases while another continues its work; then it continues."""
    store = _of(cluster)
    if store.operators:
        operator = rng.choice(store.operators)
        operator.pause()
        if rng.random() < 0.5:
            store.try_job(operator.job)
        cluster.env.after(fault.seconds + 1.0, operator.resume)


def second_operator(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The same command in a second terminal; or a contradictory one."""
    store = _of(cluster)
    job = next((one for one in store.jobs if not one.over), None)
    if job is None:
        return
    if rng.random() < 0.7 or not store.spares or job.what == "repair" or job.confirmed:
        store.try_job(job)
    else:
        old = rng.choice(store.record.members).address
        store.begin(Job("replace", old, store.spares[0], alone=False))


def two_replacements(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Two people replace the same member at the same moment without coordination, each by another server."""
    store = _of(cluster)
    if store.busy() or len(store.spares) < 2:
        return
    job = store.replacement(rng)
    if job is None or job.confirmed or job.new not in store.spares:
        return
    store.begin(job)
    other = Job("replace", job.old, store.spares[0], alone=False)
    cluster.env.after(rng.choice([0.0, 0.001, 0.01, 0.05]) * rng.random(), lambda: store.begin(other))


def damaged_ahead(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A writer's last records reach one member only; the writer dies, and a sector of that copy is damaged.
    No other member can restore it, and its server accepts no shorter copy: a person gives it up."""
    directory, machine = rng.choice(cluster.directories or [""]), cluster.victim
    writers = [one for one in cluster.living_writers() if one.directory == directory]
    if not cluster.may_fail(machine) or not machine.up:
        return
    others = [one.name for one in cluster.machines if one is not machine]
    paths = [(writer.name, other) for writer in writers for other in others]
    for path in paths:
        cluster.network.block(path)
    for writer in writers:
        writer.hurries_until = cluster.env.now + 1.0

    def strike() -> None:
        for writer in writers:
            cluster.network.process_died(writer, power=True)
            writer.kill()
        for path in paths:
            cluster.network.unblock(path)
        if cluster.may_fail(machine) and not machine.without_power:
            machine.kill()
            machine.disk.write_back()
            found = objects_of(machine, directory)
            if found:
                rot(cluster, found[-1], rng, 0)
            down_for(cluster, machine, fault.seconds)

    cluster.env.after(0.3 + fault.seconds, cluster.unless_healed(strike))


def lose_too_many(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """As many disks are lost as a quorum has. A person decides to continue with what is left."""
    _of(cluster).lose_too_many(rng)
