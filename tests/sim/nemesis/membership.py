"""What a person does to a store at work, and what becomes of the person's processes. Only runs with an
operator have these.
"""

from random import Random
from typing import TYPE_CHECKING, Final, cast

from tests.sim.membership.jobs import Job
from tests.sim.nemesis.fault import Fault

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
    """Somebody mends, also beside a replacement."""
    _of(cluster).begin(Job("repair", alone=False))


def kill_operator(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    operators = _of(cluster).operators
    if operators:
        operator = rng.choice(operators)
        cluster.network.process_died(operator, power=rng.random() < 0.3)
        operator.kill()


def pause_operator(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """It sleeps, in half of the cases so long that another one goes on with its work; then it wakes up."""
    town = _of(cluster)
    if town.operators:
        operator = rng.choice(town.operators)
        operator.pause()
        if rng.random() < 0.5:
            town.try_job(operator.job)
        cluster.world.after(fault.seconds + 1.0, operator.resume)


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
