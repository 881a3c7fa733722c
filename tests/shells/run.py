"""Run one seed: its servers, its clients, its faults, the heal, and the verdict, as the first tier's `run`.

safety     clients work while the planned faults happen
liveness   everything is healed; each directory must acknowledge new records within a time limit
verdict    all clients are killed; fresh ones take over and read; nothing is left at the end
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import trio

from dos_client.rounds import ClientRounds
from dos_client.runtime import replace_runtime
from dos_protocol.store_record import Member, StoreRecord, claims_needed
from dos_server.memory.host import MemoryRounds
from dos_server.memory.network import MemoryNetwork, MemorySocket, MemoryTimers
from tests.shells import nemesis, oracles
from tests.shells.clients import Client, Deaf, Reader, Repairer, Replacer, Writer
from tests.shells.machines import Machine
from tests.shells.region.nemesis import plan as region_plan
from tests.shells.region.phases import SAFETY_S as REGION_SAFETY_S
from tests.shells.region.phases import run_phases
from tests.shells.region.region import ShellRegion, has_region
from tests.shells.trio_run import TaskCount, run_deterministic
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.engine.trace import Trace
from tests.sim.history import History, ViolationError
from tests.sim.nemesis.fault import Fault
from tests.sim.oracles.backups import check as check_backups
from tests.sim.oracles.store import Bench, NothingLost, OneWriter, Order, ReadsStay, Refused
from tests.sim.result import Result
from tests.support.group_log import LOG_SEEDS

SAFETY_S = 2.0
RESTORED_S = 2.0
"""A run with a restored disk has more time before the heal, so that a writer may take over with that disk."""
LIVENESS_S = 120.0
SETTLED_S = 6.0
"""Virtual seconds. In SETTLED_S servers detect clients that ended without notice, and release everything."""
NEW_RECORDS = 3


class _MemoryRuntime:
    """The `dos_client.runtime` of the clients."""

    def __init__(self, network: MemoryNetwork, rng: Random) -> None:
        self.network = network
        self.rng = rng
        self.rounds = ClientRounds(MemoryRounds(rng))

    def fresh_id(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    async def connect(self, host: str, port: int) -> tuple[MemorySocket, ClientRounds]:
        return (await self.network.connect(host, port)).socket, self.rounds


class Cluster:
    """All parts of a run. It is created inside of its trio run."""

    def __init__(self, rng: RandomStreams, trace: Trace, count: TaskCount) -> None:
        self.rng = rng
        self.trace = trace
        self.count = count
        count.on_spin = lambda: self.fail(ViolationError("O11", "tasks wake each other, and no time passes"))
        self.history = History(Bench((NothingLost, Order, ReadsStay, OneWriter, Refused)))
        self.timers = MemoryTimers()
        self.healed = False
        self.slow_hosts: dict[str, float] = {}
        self.half_open: list[MemorySocket] = []
        """The servers' ends of half-open connections."""
        self.violation: ViolationError | None = None
        topology = rng.topology
        self._base_s = topology.choice([0.000_1, 0.000_5, 0.005])
        self.pace_s = topology.choice([0.1, 0.2, 0.4])
        self.large_bytes = topology.choice([1_000, 5_000, 30_000])
        self.deaf_bytes = topology.choice([500_000, 6 << 20])
        way_bytes_max = topology.choice([16_384, 65_536, 262_144])
        self.network = MemoryNetwork(
            self.timers, rng.network, self._latency_s, way_bytes_max=way_bytes_max, trace=self.note
        )
        members, spares, outside = self.sizes(topology)
        self.machines = [
            Machine(
                self.network,
                f"s{number}",
                rng.stream(f"machine {number}"),
                self.note,
                self.history.bench,
                with_log=rng.seed >= LOG_SEEDS,
            )
            for number in range(members + spares + outside)
        ]
        ids = [topology.randbytes(16) for _ in range(members + spares)]
        named = [(one, machine.address) for one, machine in zip(ids, self.machines, strict=False)]
        self.record = StoreRecord(
            topology.randbytes(16),
            1,
            1 if members == 1 else 2,
            tuple(Member(*one) for one in named[:members]),
            tuple(Member(*one, "spare") for one in named[members:]),
        )
        for one, machine in zip(ids, self.machines, strict=False):
            machine.host.prepare(one, self.record)
        self.url = "dos://" + ",".join(member.address for member in self.record.members)
        self.victim = topology.choice(self.machines[:members])
        self.directories = [f"app.w{index:04}" for index in range(topology.choice([1, 1, 1, 2]))]
        self.pipelined = {one: topology.random() < 0.75 for one in self.directories}
        self.clients: list[Client] = []
        self.region: ShellRegion | None = None
        if has_region(rng.seed):
            self.directories = []
            self.region = ShellRegion(self)
        self.servers: trio.Nursery
        self.processes: trio.Nursery
        self._made = 0

    def sizes(self, topology: Random) -> tuple[int, int, int]:
        """Return the numbers of members, of spares, and of servers that are in no store."""
        members = topology.choice([3, 3, 3, 3, 1])
        return members, 0, 1 if members == 3 and topology.random() < 0.4 else 0

    async def run_phases(self, faults: list[Fault]) -> None:
        """Run the phases of the run."""
        await _phases(self, faults)

    def _latency_s(self, source: str, target: str) -> float:
        slow = self.slow_hosts.get(source, 1.0) * self.slow_hosts.get(target, 1.0)
        return self._base_s * slow * (0.5 + self.rng.network.random())

    def note(self, who: str, what: str) -> None:
        self.trace.note(trio.current_time(), who, what)

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Make the call in `seconds`; a ViolationError ends the run."""
        self.timers.after(seconds, partial(self.guarded, call, *args))

    def guarded(self, call: Callable[..., Any], *args: Any) -> None:
        """Make the call; a ViolationError ends the run."""
        try:
            call(*args)
        except ViolationError as error:
            self.fail(error)

    def check(self, call: Callable[..., Any], *args: Any) -> None:
        """Make the call after the end of the run; a ViolationError is its result."""
        try:
            call(*args)
        except ViolationError as error:
            self.violation = error

    def fail(self, error: ViolationError) -> None:
        if self.violation is None:
            self.violation = error
            self.note("oracle", str(error))
            self.servers.cancel_scope.cancel()

    def start(self, machine: Machine) -> None:
        """Start a server after its previous incarnation has ended."""
        if not self.healed:
            self.servers.start_soon(machine.start, self.servers)

    def may_fail(self) -> bool:
        """Return whether the victim's disk may fail: the others suffice, and the journals exist (R16)."""
        count = len(self.record.members)
        made = len(self.history.starts) == len(self.directories)
        if self.region is not None:
            made = self.region.made
        return made and count - 1 >= claims_needed(count, self.record.ack_quorum)

    def begin(self, make: Callable[[str], Client], kind: str) -> Client:
        """Start a client process."""
        self._made += 1
        client = make(f"{kind}{self._made}")
        self.clients.append(client)
        self.processes.start_soon(self._run_client, client)
        return client

    async def _run_client(self, client: Client) -> None:
        try:
            await client.run()
        except ViolationError as error:
            self.fail(error)

    def new_writer(self, directory: str) -> Writer:
        writer = self.begin(
            lambda name: Writer(self, name, directory, pipelined=self.pipelined[directory]), "w"
        )
        assert isinstance(writer, Writer)
        return writer

    def new_reader(self, directory: str) -> Reader:
        reader = self.begin(lambda name: Reader(self, name, directory), "r")
        assert isinstance(reader, Reader)
        return reader

    def living_writers(self) -> list[Writer]:
        return [one for one in self.clients if isinstance(one, Writer) and one.alive]

    async def supervise(self) -> None:
        """Start writers and readers where there are none; check the limits of queues."""
        while True:
            await trio.sleep(0.25)
            for directory in self.directories:
                if not any(one.directory == directory for one in self.living_writers()):
                    self.new_writer(directory)
                readers = [one for one in self.clients if isinstance(one, Reader) and one.alive]
                if not any(one.directory == directory for one in readers):
                    self.new_reader(directory)
            for machine in self.machines:
                self.guarded(oracles.check_bounds, machine)
            self.guarded(oracles.check_ends, self)

    async def heal(self) -> None:
        """End all faults."""
        self.note("nemesis", "heals")
        self.healed = True
        self.network.unblock_all()
        for end in self.half_open:
            end.reset()
        self.slow_hosts.clear()
        for machine in self.machines:
            machine.disk.heal()
            machine.slowness = 1.0
            if machine.was_full or machine is self.victim:
                machine.kill()  # as an operator would, see the first tier
            await machine.start(self.servers)


def plan_of(seed: int) -> list[Fault]:
    """Return the plan of a seed alone."""
    rng = RandomStreams(seed)
    return region_plan(rng, REGION_SAFETY_S) if has_region(seed) else nemesis.plan(rng, SAFETY_S)


def run_seed(
    seed: int,
    *,
    keep: bool = False,
    faults: list[Fault] | None = None,
    make: Callable[[RandomStreams, Trace, TaskCount], Cluster] = Cluster,
) -> Result:
    """Run one seed. `faults`: these instead of the plan's. `make`: the kind of cluster."""
    rng, trace = RandomStreams(seed), Trace(keep=keep)
    chosen = plan_of(seed) if faults is None else faults
    clusters: list[Cluster] = []

    async def main(count: TaskCount) -> float:
        cluster = make(rng, trace, count)
        clusters.append(cluster)
        await _run(cluster, chosen)
        return trio.current_time()

    with _errors_logged(clusters):
        seconds, steps = run_deterministic(main, seed)
    (cluster,) = clusters
    if cluster.violation is None and cluster.region is not None and cluster.region.backups is not None:
        cluster.check(check_backups, cluster.region, cluster.region.backups.place)  # runs trio itself
    found = cluster.violation
    return Result(
        seed,
        "" if found is None else str(found),
        "" if found is None else found.oracle,
        chosen,
        steps,
        seconds,
        trace.digest,
        cluster.history,
        trace.lines,
    )


class _ErrorLog(logging.Handler):
    """Treats an unexpected error that a shell only logs, with a traceback, as a violation."""

    def __init__(self, clusters: list[Cluster]) -> None:
        super().__init__(logging.ERROR)
        self._clusters = clusters

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.name == "dos.checkpoint":
            error = ViolationError("shell", f"{record.getMessage()}: {record.exc_info[1]!r}")
            self._clusters[0].fail(error)


@contextmanager
def _errors_logged(clusters: list[Cluster]) -> Iterator[None]:
    """Suppress the output of the logs, and check them for unexpected errors."""
    logger, handler = logging.getLogger("dos"), _ErrorLog(clusters)
    level, propagate = logging.root.manager.disable, logger.propagate
    logging.disable(logging.WARNING)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logging.disable(level)
        logger.propagate = propagate
        logger.removeHandler(handler)


async def _run(cluster: Cluster, faults: list[Fault]) -> None:
    replace_runtime(_MemoryRuntime(cluster.network, cluster.rng.stream("clients")))
    async with trio.open_nursery() as runtime_tasks:
        runtime_tasks.start_soon(cluster.timers.run)
        async with trio.open_nursery() as servers:
            cluster.servers = servers
            for machine in cluster.machines:
                await machine.start(servers)
            if cluster.region is not None:
                await run_phases(cluster, cluster.region, faults)
            else:
                await cluster.run_phases(faults)
            for machine in cluster.machines:
                machine.host.stop()
                await machine.host.wait_ended()
        if cluster.violation is None:
            cluster.guarded(oracles.check_all_closed, cluster)
        runtime_tasks.cancel_scope.cancel()


async def _phases(cluster: Cluster, faults: list[Fault]) -> None:
    async with trio.open_nursery() as processes:
        cluster.processes = processes
        for directory in cluster.directories:
            cluster.new_writer(directory)
            cluster.new_reader(directory)
        _start_optional_clients(cluster)
        processes.start_soon(cluster.supervise)
        for fault in faults:
            cluster.later(fault.at_s, nemesis.strike, cluster, fault)
        await trio.sleep(SAFETY_S)
        if any(fault.kind == "restored_disk" for fault in faults):
            await trio.sleep(RESTORED_S)
        await cluster.heal()
        await check_liveness(cluster)
        await final_take_over(cluster)
        processes.cancel_scope.cancel()
    await trio.sleep(SETTLED_S)
    cluster.guarded(oracles.check_nothing_left, cluster)
    cluster.guarded(cluster.history.bench.ended, cluster)


def _start_optional_clients(cluster: Cluster) -> None:
    """Start the clients that not every run has."""
    topology = cluster.rng.topology
    if len(cluster.machines) > len(cluster.record.members):
        old, new = cluster.victim.address, cluster.machines[-1].address
        cluster.later(
            topology.random() * SAFETY_S,
            lambda: cluster.begin(lambda name: Replacer(cluster, name, old, new), "x"),
        )
    if topology.random() < 0.2:
        cluster.begin(lambda name: Repairer(cluster, name), "m")
    if topology.random() < 0.2:
        cluster.begin(lambda name: Deaf(cluster, name), "d")


async def check_liveness(cluster: Cluster) -> None:
    """O11: check that each directory acknowledges new records after the heal."""
    before = {one: len(cluster.history.line(one).acknowledged) for one in cluster.directories}

    def moved() -> bool:
        return all(
            len(cluster.history.line(one).acknowledged) >= before[one] + NEW_RECORDS
            for one in cluster.directories
        )

    if not await until(moved):
        cluster.fail(ViolationError("O11", f"{LIVENESS_S:.0f} s after the heal too little is acknowledged"))


async def until(condition: Callable[[], bool]) -> bool:
    with trio.move_on_after(LIVENESS_S):
        while not condition():  # noqa: ASYNC110 - the condition sets no event
            await trio.sleep(0.1)
    return condition()


async def final_take_over(cluster: Cluster) -> None:
    """Kill all clients; fresh writers take over, fresh readers read."""
    for client in cluster.clients:
        client.kill()
    writers = [cluster.new_writer(directory) for directory in cluster.directories]
    if not await until(lambda: all(one.running for one in writers)):
        cluster.fail(ViolationError("O11", "a fresh writer cannot take over"))
    readers = [cluster.new_reader(directory) for directory in cluster.directories]
    if not await until(lambda: all(one.reads_done for one in readers)):
        cluster.fail(ViolationError("O11", "a fresh reader cannot read"))
