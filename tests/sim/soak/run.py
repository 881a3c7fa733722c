"""The run of a soak: its parts, what disturbs it, what is sampled, and the verdict.

A region with one server commits checkpoints for as long as it is asked to. After every `disturbed_every`
commits something happens to it, in turns: a worker is killed; a status is requested; a savepoint is made,
later dropped; the driver is killed; the server is killed and started, or loses its power; a reset is
requested; another consumer registers and leaves; the producer is replaced. After each restart, the time and
the requests until the next commit are noted. Figures are sampled at regular counts of commits, between
disturbances.

There are two kinds of runs, because each hides what the other one finds. Where processes are killed, growth
of what is stored is found, and of what a restart costs; but what a process adds to its memory with each
checkpoint is gone whenever it ends. In a calm run nothing is killed.
"""

import gc
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from checkpoint import limits as checkpoint_limits
from checkpoint.chains.consumer_register import change_register
from checkpoint.core.coordination import rounds
from checkpoint.core.records.consumers import input_register, with_consumer
from dos_protocol.store_record import Member, StoreRecord
from dos_server.core.requests import stamps
from dos_server.memory.disk import MemoryDisk
from tests.sim.engine.environment import Environment, Process, sleeping_virtually
from tests.sim.engine.network import Network, Wire
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.engine.trace import Trace
from tests.sim.history import ViolationError
from tests.sim.regions.claiming import Host
from tests.sim.soak.quiet import NoHistory, NoTrace, SoakMachine, TailFile, TailOutput
from tests.sim.soak.region import HANDLE, SoakRegion
from tests.sim.soak.users import WORDS, LogReader, Person, Producer, word_of
from tests.support.census import census
from tests.support.growth import FACTOR, SLACK, Samples

SHORT_LIMITS: Final = (
    (checkpoint_limits, "input_segment_bytes_max", 2_000),
    (checkpoint_limits, "output_segment_bytes_max", 2_000),
    (checkpoint_limits, "request_ids_kept_max", 4),
    (rounds, "RESETS_KEPT_MAX", 2),
    (stamps, "stamps_kept_max", 4),
)
"""So that segments are begun and deleted all the time, and everything reaches its limit soon."""
LOOSE: Final = {
    "restart": (1.5, 20.0),
    "memory: peak": (1.1, 4.0),
    "memory of server: ObjectMarks._free": (1.5, 8.0),
}
"""Costs of restarts depend on the moment; the allocator keeps free pages; slots of a marks file are reused,
so their number is the largest that was ever needed at once.
"""
PATIENCE_S: Final = 300.0
"""Virtual seconds without a commit after which the run fails."""
_CATCH_UP_S: Final = 120.0


@contextmanager
def soaking() -> Iterator[None]:
    """The context of soaks: limits are short. What exists in this process before is not counted, nor visited
    by the garbage collector until the context ends.
    """
    with ExitStack() as stack:
        stack.enter_context(sleeping_virtually())
        for module, name, value in SHORT_LIMITS:
            stack.enter_context(mock.patch.object(module, name, value))
        gc.collect()
        gc.freeze()  # before a soak exists: garbage that is frozen is kept, with everything that it can reach
        stack.callback(gc.unfreeze)
        yield


class Soak:
    """One run, within `soaking`. calm: nothing is killed, so that processes live as long as the run.
    `finishing`: the producer sends nothing more. `produced`: rows that are recorded.
    """

    def __init__(
        self,
        seed: int,
        *,
        calm: bool,
        workers: int = 1,
        disturbed_every: int = 100,
        sampled_every: int = 100,
        limit: tuple[float, float] = (FACTOR, SLACK),
    ) -> None:
        self.rng = RandomStreams(seed)
        self.env = Environment(NoTrace(), steps_max=1 << 62)
        self.history = NoHistory()
        self.env.sometimes = self.history.sometimes
        self.network = Network(self.env, self.rng.network, lambda here, there: 0.000_2)
        self.machine = SoakMachine(self.env, self.network, "s0", self.rng.stream("machine"))
        self.record = StoreRecord(
            self.rng.topology.randbytes(16), 1, 1, (Member(self.machine.fresh_id, self.machine.address),)
        )
        self.machine.prepare(self.record)
        self.machine.start()
        self.interval_s = 0.9
        self.pace_s = 1.0
        self.batch_rows = 2
        self.finishing = False
        self.produced = 0
        self.region = SoakRegion(self, workers)
        self.region.on_commit = self._committed
        self.samples = Samples(LOOSE, limit=limit)
        self.verdicts: dict[str, int] = {}
        self._disturbed_every = disturbed_every
        self._sampled_every = sampled_every
        self._sampling = self.rng.stream("sampling")
        self._turns = _CALM if calm else _TURNS
        self._turn = 0
        self._persons = 0
        self._restart: tuple[str, float, int, int] | None = None
        self._restarts: dict[str, float] = {}
        self._setting_up = Process(self.env, "setting up")
        self.producer: Producer | None = None
        self.reader: LogReader | None = None

    @property
    def commits(self) -> int:
        return self.region.record.count  # type: ignore[attr-defined,no-any-return]

    # The run

    def run(self, checkpoints: int) -> None:
        """Run until so many checkpoints are committed, then check the output. Raises ViolationError."""
        self.begin()
        while self.commits < checkpoints:
            self.advance(checkpoints)
        self.finish()

    def begin(self) -> None:
        """Start everything. Raises ViolationError."""
        region = self.region
        task = self._setting_up.start("register", self._register())
        self._until(lambda: task.done, "the register")
        self.new_producer()
        self._until(lambda: self.produced > 0, "the first batch")
        region.start()
        self.reader = LogReader(self)

    def advance(self, checkpoints: int) -> None:
        """Run to the next sample, but not further than to that count of checkpoints, and take the sample.
        Raises ViolationError.
        """
        # At random distances: else a saw tooth of nearly the same period would look like a slow growth.
        distance = max(round(self._sampled_every * (0.5 + self._sampling.random())), 1)
        goal = min(self.commits + distance, checkpoints)
        self._until(lambda: self.commits >= goal and self._restart is None, "a commit")
        self._sample()

    async def _register(self) -> None:
        process, region = self._setting_up, self.region
        host = Host(process, region.network, region.store, region.history, self.rng.stream("setting up"))
        place = input_register(region.spec.name, HANDLE)
        await change_register(
            host, place, lambda register: with_consumer(register, region.spec.name, "lines", 1)
        )
        host._store.close()

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        """Run until it is reached. Raises ViolationError after too long a time without any commit."""
        seen = -1
        while seen != self.commits:
            seen = self.commits
            if self.env.run(reached, self.env.now + PATIENCE_S):
                return
        raise ViolationError("O11", f"{what} is not reached; {self.commits} checkpoints are committed")

    def finish(self) -> None:
        """Let the region read everything, and check the output. Raises ViolationError."""
        self.finishing = True
        assert self.reader is not None
        assert self.producer is not None
        expected = {word_of(number): 0 for number in range(1, WORDS + 1)}

        def read() -> bool:
            for word in expected:
                expected[word] = self._count_of(word)
            assert self.reader is not None
            return self.reader.counts == expected

        if not self.env.run(read, self.env.now + _CATCH_UP_S):
            raise ViolationError("O8", f"counts {self.reader.counts}, expected {expected}")
        self.region.stop()
        for user in (self.producer, self.reader):
            user.kill()
        rows = total = 0
        for part in self.region.output.files.values():  # type: ignore[attr-defined]
            part.finish()
            rows, total = rows + part.rows, total + part.sum
        if (rows, total) != (self.produced, self.produced * (self.produced + 1) // 2):
            raise ViolationError("O8", f"{rows} rows are in the output, {self.produced} were sent")

    def _count_of(self, word: str) -> int:
        first = int(word[1:]) or WORDS
        return 0 if self.produced < first else (self.produced - first) // WORDS + 1

    # What disturbs it

    @property
    def disturbances(self) -> int:
        return self._turn

    def _committed(self) -> None:
        if self._restart is not None:
            kind, began, requests, read = self._restart
            self._restart = None
            self._restarts |= {
                f"restart: {kind}, virtual ms": 1000 * (self.env.now - began),
                f"restart: {kind}, requests": self.machine.bench.requests - requests,
                f"restart: {kind}, bytes read": self.machine.disk.read_bytes - read,
            }
        elif self.commits % self._disturbed_every == 0 and not self.finishing:
            turn = self._turns[self._turn % len(self._turns)]
            self._turn += 1
            self.env.after(0.003, turn, self)

    def _restarting(self, kind: str, call: Callable[[], Any]) -> None:
        """Make the call, and note what it costs until the next commit."""
        self._restart = kind, self.env.now, self.machine.bench.requests, self.machine.disk.read_bytes
        call()

    def _kill_worker(self) -> None:
        worker = self._turn % self.region.spec.workers
        self._restarting("worker", lambda: self.region.kill_worker(worker))

    def _kill_driver(self) -> None:
        self._restarting("driver", self.region.kill_driver)

    def _kill_server(self) -> None:
        def call() -> None:
            self.machine.kill()
            self.env.after(0.05, self.machine.start)

        self._restarting("server", call)

    def _cut_power(self) -> None:
        def call() -> None:
            self.machine.power_cut()
            self.env.after(0.05, self.machine.start)

        self._restarting("power", call)

    def new_producer(self) -> None:
        """Start a producer; the one before is killed."""
        if self.producer is not None:
            self.network.process_died(self.producer, power=False)
            self.producer.kill()
        self.producer = Producer(self)

    def _person(self) -> Person:
        self._persons += 1
        return Person(self, self._persons)

    def _heard(self, verdict: str) -> None:
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1

    def _ask_status(self) -> None:
        self._person().ask("status", self._heard)

    def _ask_reset(self) -> None:
        self._person().ask("reset", self._heard)

    def _ask_savepoint(self) -> None:
        self._person().ask("savepoint", self._heard, name="held")

    def _ask_drop(self) -> None:
        self._person().ask("drop_savepoint", self._heard, name="held")

    def _ask_register(self) -> None:
        self._person().register(self._heard)

    # What is sampled

    def _sample(self) -> None:
        region, machine = self.region, self.machine
        figures: dict[str, float] = {}
        for directory, (size, files) in machine.platters().items():
            figures[f"disk bytes: {directory or '/'}"] = size
            figures[f"disk files: {directory or '/'}"] = files
        figures["open files: server"] = machine.open_files
        figures |= self._restarts
        users = [one for one in (self.producer, self.reader) if one is not None]
        for label, roots in {
            "server": [machine.server],
            "driver": [region.driver],
            "worker": region.workers,
            "user": users,
        }.items():
            found = census([one for one in roots if one is not None], stop=_STOP)
            figures |= {
                f"memory of {label}: {name}": count
                for name, count in found.items()
                if "sometimes" not in name
            }
        gc.collect()
        figures["memory: objects"] = len(gc.get_objects())
        figures["memory: peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.samples.add(self.commits, figures)


_STOP: Final = (
    Environment,
    MemoryDisk,
    Network,
    NoHistory,
    Process,
    RandomStreams,
    Soak,
    SoakMachine,
    SoakRegion,
    TailFile,
    TailOutput,
    Trace,
    Wire,
)
"""What belongs to no process of the product, or to another one. Its entries are not counted."""
_TURNS: Final[tuple[Callable[[Soak], None], ...]] = (
    Soak._kill_worker,
    Soak._ask_status,
    Soak._ask_savepoint,
    Soak._kill_driver,
    Soak._kill_server,
    Soak._ask_drop,
    Soak._ask_register,
    Soak.new_producer,
    Soak._cut_power,
    Soak._ask_reset,
)
_CALM: Final[tuple[Callable[[Soak], None], ...]] = (
    Soak._ask_savepoint,
    Soak._ask_register,
    Soak._ask_drop,
    Soak._ask_status,
)
"""Without resets: an incarnation of a worker lives as long as the run, too."""
