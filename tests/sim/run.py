"""Run one seed: its cluster, its faults, the heal, and the verdict.

safety     clients work while the planned faults happen; a violation ends the run immediately
liveness   everything is healed except damage; each directory must acknowledge new records within a limit of
           virtual time
verdict    a fresh writer takes each chain over, a fresh reader reads it, and the platters are compared with
           the history
"""

import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

from dos_protocol.store_record import Member, StoreRecord, claims_needed
from tests.sim import nemesis
from tests.sim.conditions import acknowledged, topology_text
from tests.sim.engine.disk import PowerCutError
from tests.sim.engine.environment import Environment, Process, sleeping_virtually
from tests.sim.engine.network import Network
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.engine.trace import Trace
from tests.sim.history import History
from tests.sim.membership.kind import has_operator
from tests.sim.nemesis import Fault
from tests.sim.oracles import ViolationError, bench, checkpoints
from tests.sim.regions.audit import Auditor
from tests.sim.regions.region import Region, has_region
from tests.sim.result import Result
from tests.sim.sometimes import watching
from tests.sim.store.clients import PACES_S, Observer, Reader, Stores, Writer
from tests.sim.store.machine import Machine
from tests.sim.store.server_log import ServerLog
from tests.sim.visitors.visitors import Crowd, has_visitors
from tests.support.group_log import LOG_SEEDS

CRASH = "crash"
"""The name of the oracle of a run that ended with an unexpected error."""
ROOT = Path(__file__).resolve().parents[2]
LIVENESS_S = 120.0
"""Virtual seconds. After the heal: sessions notice silence in 15 s, members come back in 2 s."""
LIVENESS_AWAY_S = 360.0
"""Added for each second of latency: a take-over, or opening a manifest, takes some ten messages one after the
other, and contenders wait several attempts for each other (R17)."""
NEW_RECORDS = 3


class Cluster:
    """All parts of a run. `LAGS`: factors of which one multiplies the latency of one server."""

    LAGS = (1.0, 1.0, 1.0, 20.0, 100.0)

    def __init__(self, seed: int, trace: Trace) -> None:
        self.rng = rng = RandomStreams(seed)
        self.env = Environment(trace)
        self.env.with_log = seed >= LOG_SEEDS
        self.history = History(bench(), sometimes=self.env.sometimes)
        topology = rng.topology
        base_s = topology.choice([0.000_1, 0.000_5, 0.005])
        laggard, lag = f"s{topology.randrange(3)}", topology.choice(self.LAGS)

        def latency_s(here: str, there: str) -> float:
            return base_s * lag if laggard in (here, there) else base_s

        self.network = Network(self.env, rng.network, latency_s)
        count, quorum = topology.choice([(3, 2), (3, 2), (3, 2), (2, 2), (5, 3), (1, 1)])
        self.machines = [
            Machine(self.env, self.network, f"s{index}", rng.stream(f"machine {index}"))
            for index in range(count)
        ]
        members = tuple(Member(machine.fresh_id, machine.address) for machine in self.machines)
        self.record = StoreRecord(topology.randbytes(16), 1, quorum, members)
        self.stores = Stores(self.network, self.record)
        self.victim = topology.choice(self.machines)
        self.directories = [f"app.w{index:04}" for index in range(topology.choice([1, 1, 2]))]
        self.pipelined = {one: topology.random() < 0.75 for one in self.directories}
        pace_s = rng.stream("pace").choice(PACES_S)
        self.paces_s = {one: pace_s if many else PACES_S[0] for one, many in self.pipelined.items()}
        """Of a directory's writers. A writer that waits for each record is fast, otherwise it appends too
        little."""
        if has_region(rng):
            self.directories = []
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []
        self.healed = False
        self.nemesis = Process(self.env, "nemesis")
        """Runs the scripts among the faults."""
        self.on_stage: dict[str, None] = {}
        """Directories whose writers a script controls, while it runs."""
        self.may_damage = True
        self._writers_made = 0
        self.log = ServerLog(self.say)
        self.say("run", topology_text(self))
        for machine in self.machines:
            machine.bench = self.history.bench
            if trace.kept:
                self.log.listen_to(machine)
            machine.prepare(self.record)
            machine.start()
        for directory in self.directories:
            self.new_writer(directory)
            self.new_reader(directory)
        self.region = Region(self) if has_region(rng) else None
        self.crowd = Crowd(self) if has_visitors(rng) else None
        observer_rng = rng.stream("looker")
        self.observer = Observer(
            "observer", self.stores, self.machines, self.directories, self.history, observer_rng
        )
        self._supervise()

    def may_fail(self, machine: Machine) -> bool:
        """Return whether that machine's disk may be damaged or fail: one in each run, if the others can
        continue without it, and only after the journals are created, for which all are needed (R16)."""
        if not self.may_damage or len(self.history.starts) < len(self.directories):
            return False
        if self.region is not None and not self.region.all_made:
            return False
        needed = claims_needed(len(self.machines), self.record.ack_quorum)
        return machine is self.victim and len(self.machines) - 1 >= needed

    def may_lose(self, machine: Machine) -> bool:
        """Return whether its whole disk may be lost."""
        return self.may_fail(machine)

    def lose(self, machine: Machine, fresh_id: bytes) -> None:
        """Lose the disk of a machine."""
        machine.kill()
        machine.lose_disk(fresh_id)

    def known(self) -> list[Machine]:
        """Return the servers that visitors use."""
        return self.machines

    def liveness_s(self) -> float:
        """Return how long work may take to continue after the heal. The promise (P-10) names no time."""
        return LIVENESS_S + LIVENESS_AWAY_S * max(
            self.network.latency_s(one.name, "w1") for one in self.machines
        )

    def settled(self) -> bool:
        """Return whether all other work is finished."""
        return self.region is None or self.region.settled

    def new_writer(self, directory: str) -> Writer:
        self._writers_made += 1
        name = f"w{self._writers_made}"
        rng = self.rng.stream(name)
        writer = self._make_writer(name, directory, rng)
        writer.skew = rng.uniform(-0.1, 0.1)
        self.writers.append(writer)
        return writer

    def _make_writer(self, name: str, directory: str, rng: Random) -> Writer:
        pipelined, pace_s = self.pipelined[directory], self.paces_s[directory]
        return Writer(name, self.stores, directory, self.history, rng, pipelined=pipelined, pace_s=pace_s)

    def new_reader(self, directory: str) -> Reader:
        name = f"r{len(self.readers) + 1}"
        reader = self._make_reader(name, directory, self.rng.stream(name))
        self.readers.append(reader)
        return reader

    def _make_reader(self, name: str, directory: str, rng: Random) -> Reader:
        return Reader(name, self.stores, directory, self.history, rng)

    def living_writers(self) -> list[Writer]:
        return [writer for writer in self.writers if writer.alive and not writer.paused]

    def client_names(self) -> list[str]:
        names = [one.name for one in (*self.writers, *self.readers) if one.alive]
        return names + (self.region.names() if self.region is not None else [])

    def note(self, who: str, what: str) -> None:
        self.env.trace.note(self.env.now, who, what)

    def say(self, who: str, what: str) -> None:
        """Add a line to the trace that is not in the digest."""
        self.env.trace.say(self.env.now, who, what)

    def unless_healed(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return the call, without effect after the heal; for what a fault does later."""
        return lambda: None if self.healed else call()

    def _supervise(self) -> None:
        """Start a writer in each directory that has none."""
        for directory in self.directories:
            if directory in self.on_stage:
                continue
            if not any(writer.directory == directory for writer in self.living_writers()):
                self.new_writer(directory)
        self.env.after(0.5 + self.rng.scheduler.random(), self._supervise)

    def end(self) -> None:
        """Stop all clients."""
        for process in (*self.writers, *self.readers, self.observer, self.nemesis):
            process.kill()
        if self.crowd is not None:
            self.crowd.leave()
        if self.region is not None:
            self.region.kill_all()

    def heal(self) -> None:
        """End all faults; damage remains."""
        self.healed = True
        self.nemesis.kill()
        self.on_stage.clear()
        self.network.heal()
        for machine in self.machines:
            machine.disk.heal()
            machine.slowness = 1.0
            machine.go_on()
            if machine.server is not None:
                machine.server.resume()
            if machine is self.victim and machine.up:
                machine.kill()  # as an operator would: only a start shows what a failed disk has
            machine.start()
        for process in (*self.writers, *self.readers, self.observer):
            process.resume()
        if self.region is not None:
            self.region.heal()


def crash_of(error: BaseException) -> str:
    """Describe an error and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = Path(place.filename)
    where = where.relative_to(ROOT) if where.is_relative_to(ROOT) else where
    return f"{CRASH}: {type(error).__name__}: {error} ({where}:{place.lineno}, {place.name})"


def _cluster_of(seed: int, trace: Trace) -> Cluster:
    from tests.sim.membership.cluster import MembershipCluster  # it imports Cluster

    return (MembershipCluster if has_operator(RandomStreams(seed)) else Cluster)(seed, trace)


def run_seed(seed: int, *, keep: bool = False, faults: list[Fault] | None = None) -> Result:
    """Run one seed. `faults`: these instead of the plan's, to reduce a failing run."""
    trace = Trace(keep=keep)
    cluster = _cluster_of(seed, trace)
    planned = nemesis.plan(cluster.rng)
    chosen = planned if faults is None else faults
    violation, oracle = "", ""
    try:
        with cluster.log, watching(cluster.history.sometimes), sleeping_virtually():
            _run(cluster, chosen)
    except ViolationError as error:
        violation, oracle = str(error), error.oracle
        cluster.note("oracle", violation)
    except (Exception, PowerCutError) as error:  # of the product or of the simulator: both are findings
        violation, oracle = crash_of(error), CRASH
        cluster.note("oracle", violation)
    finally:
        cluster.end()
    judged = sum(machine.tails_judged for machine in cluster.machines)
    if judged:
        cluster.history.sometimes["torn tail judged again"] += judged
    return Result(
        seed,
        violation,
        oracle,
        chosen,
        cluster.env.steps,
        cluster.env.now,
        trace.digest,
        cluster.history,
        trace.lines,
    )


def _run(cluster: Cluster, faults: list[Fault]) -> None:
    env = cluster.env
    for fault in faults:
        env.after(fault.at_s, _strike, cluster, fault)
    env.run(None, nemesis.safety_s(cluster.rng))
    cluster.note("nemesis", "heals")
    cluster.say("run", acknowledged(cluster))
    cluster.heal()
    before = {one: len(cluster.history.line(one).acknowledged) for one in cluster.directories}

    def moved() -> bool:
        return cluster.settled() and all(
            len(cluster.history.line(one).acknowledged) >= before[one] + NEW_RECORDS
            for one in cluster.directories
        )

    bound_s = cluster.liveness_s()
    if not env.run(moved, env.now + bound_s):
        cluster.history.bench.stuck(f"{bound_s:.0f} s after the heal too little is acknowledged")
    _final_take_over(cluster)
    cluster.say("run", f"verdict: {acknowledged(cluster)}")
    _last_scrub(cluster)
    cluster.history.bench.ended(cluster)
    if cluster.crowd is not None:
        cluster.crowd.judge()


def _strike(cluster: Cluster, fault: Fault) -> None:
    if not cluster.healed:
        nemesis.strike(cluster, fault)


def _final_take_over(cluster: Cluster) -> None:
    """Kill the writers; fresh ones take over, fresh readers read."""
    for process in (*cluster.writers, *cluster.readers):
        cluster.network.process_died(process, power=False)
        process.kill()
    fresh = [cluster.new_writer(directory) for directory in cluster.directories]
    if not cluster.env.run(lambda: all(one.running for one in fresh), cluster.env.now + LIVENESS_S):
        cluster.history.bench.stuck("a fresh writer cannot take over")
    readers = [cluster.new_reader(directory) for directory in cluster.directories]
    seen = cluster.history.sometimes["reader: read"]
    done = seen + len(readers)
    if not cluster.env.run(
        lambda: cluster.history.sometimes["reader: read"] >= done, cluster.env.now + LIVENESS_S
    ):
        cluster.history.bench.stuck("a fresh reader cannot read")
    if cluster.region is not None:
        for region in (cluster.region, cluster.region.fork):
            if region is not None:
                _run_region_again(cluster, region)


def _run_region_again(cluster: Cluster, region: Region) -> None:
    """Restore the finished region by fresh processes, and check all of its checkpoints."""
    checkpoints.check_output(region)
    region.run_again()
    if not cluster.env.run(lambda: region.finished, cluster.env.now + LIVENESS_S):
        raise ViolationError("O11", "a fresh driver and fresh workers do not restore the region")
    region.kill_all()
    audit = Auditor(region)
    if not cluster.env.run(lambda: audit.done, cluster.env.now + LIVENESS_S):
        raise ViolationError("O11", "the region's journals cannot be read")
    checkpoints.check_checkpoints(region, audit)


def _last_scrub(cluster: Cluster) -> None:
    """Stop all clients, and let each scrub finish two more rounds."""
    cluster.on_stage.update(dict.fromkeys(cluster.directories))
    for process in (*cluster.writers, *cluster.readers, cluster.observer):
        cluster.network.process_died(process, power=False)
        process.kill()
    if cluster.crowd is not None:
        cluster.crowd.leave()
    scrubs = [machine.server.scrub for machine in cluster.machines if machine.server and machine.scrub[0]]
    goals = [scrub.rounds + 2 for scrub in scrubs]
    cluster.env.run(
        lambda: all(scrub.rounds >= goal for scrub, goal in zip(scrubs, goals, strict=True)),
        cluster.env.now + LIVENESS_S,
    )
