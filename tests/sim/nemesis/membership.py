"""What a person does to a store at work, and what becomes of the person's processes. Only runs with an
operator have these.
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
    town = _of(cluster)
    if not town.busy():
        job = town.replacement(rng)
        if job is not None:
            town.begin(job)


def add(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The store becomes one larger."""
    town = _of(cluster)
    if not town.busy() and town.spares and not town.lost and len(town.record.members) < MEMBERS_MAX:
        town.begin(Job("add", new=town.spares[0]))


def repair(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A person repairs, also beside a replacement."""
    _of(cluster).begin(Job("repair", alone=False))


def kill_operator(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    operators = _of(cluster).operators
    if operators:
        operator = rng.choice(operators)
        cluster.network.process_died(operator, power=rng.random() < 0.3)
        operator.kill()


def pause_operator(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """It sleeps, in half of the cases so long that another one continues its work; then it wakes up."""
    town = _of(cluster)
    if town.operators:
        operator = rng.choice(town.operators)
        operator.pause()
        if rng.random() < 0.5:
            town.try_job(operator.job)
        cluster.env.after(fault.seconds + 1.0, operator.resume)


def second_operator(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The same command in a second terminal; or one that wants something else."""
    town = _of(cluster)
    job = next((one for one in town.jobs if not one.over), None)
    if job is None:
        return
    if rng.random() < 0.7 or not town.spares or job.what == "repair" or job.word:
        town.try_job(job)
    else:
        old = rng.choice(town.record.members).address
        town.begin(Job("replace", old, town.spares[0], alone=False))


def two_replacements(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Two people, who know nothing of each other, replace the same member at the same moment, each by a
    server of their own."""
    town = _of(cluster)
    if town.busy() or len(town.spares) < 2:
        return
    job = town.replacement(rng)
    if job is None or job.word or job.new not in town.spares:
        return
    town.begin(job)
    other = Job("replace", job.old, town.spares[0], alone=False)
    cluster.env.after(rng.choice([0.0, 0.001, 0.01, 0.05]) * rng.random(), lambda: town.begin(other))


def damaged_ahead(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """What a writer sent last reached one member alone; the writer dies, and a sector of that copy goes bad.
    No other member can give it back, and its server takes no copy that is shorter: a person gives it up."""
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
    """As many disks are lost as acknowledge. A person decides to continue with what is left."""
    _of(cluster).lose_too_many(rng)
