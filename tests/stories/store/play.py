"""A store of a story, its time, and its clients.

A step happens; then time passes until its consequences have ended, or for as long as a person would wait, and
a little longer, so that nothing is still in progress. Events are printed in order; repeated ones once.
"""

from collections.abc import Callable
from contextlib import ExitStack
from random import Random

from dos_protocol.store_record import Member, StoreRecord
from tests.sim.engine.environment import Environment, Process
from tests.sim.engine.guest import scheduled_by
from tests.sim.engine.network import Network
from tests.sim.engine.trace import Trace
from tests.sim.store.clients import Stores
from tests.sim.store.server_log import ServerLog
from tests.sim.store.sim_store import SimStore
from tests.stories.store.copies import Book, short
from tests.stories.store.machine import StoryMachine
from tests.stories.store.middle import Middle
from tests.stories.store.old_client import OldClient, StoryServer
from tests.stories.store.writer import StoryWriter
from tests.stories.words import WrongStepError

PATIENCE_S = 4.5
"""How long a step that comes to nothing is waited for."""
SETTLE_S = 0.2
LATENCY_S = 0.001
READER = "the reader"


class Play:
    """The state of one story of a store. `told`: the events since it was last emptied."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.env = Environment(Trace())
        self.network = Network(self.env, Middle("network"), lambda here, there: LATENCY_S)
        self.book = Book()
        self.machines: dict[str, StoryMachine] = {}
        self.writers: dict[str, StoryWriter] = {}
        self.reader = Process(self.env, READER)
        self.stores: Stores
        self._old: OldClient | None = None
        self._log = ServerLog(lambda who, what: self.tell(f"{who} {what}"))
        self._open = ExitStack()
        self._open.enter_context(self._log)
        self._open.enter_context(scheduled_by(Random("story/tasks")))

    def tell(self, what: str) -> None:
        said = self.book.in_plain_words(what)
        if said not in self.told:
            self.told.append(said)

    def end(self) -> None:
        """Nothing runs any more, and nobody listens."""
        self._open.close()
        for writer in self.writers.values():
            writer.kill()
        self.reader.kill()

    def make_store(self, count: int, quorum: int) -> None:
        """So many servers, of which so many acknowledge."""
        if not 1 <= quorum <= count <= 9:
            raise WrongStepError("a store has 1 to 9 servers, and no larger quorum than that")
        names = [f"s{number}" for number in range(1, count + 1)]
        for name in names:
            self.new_machine(name)
        members = tuple(Member(one.fresh_id, one.address) for one in self.machines.values())
        record = StoreRecord(Random("store").randbytes(16), 1, quorum, members)
        self.book.calls[record.store_id.hex()] = "this one"
        for machine in self.machines.values():
            machine.prepare(record)
            machine.start()
        self.stores = Stores(self.network, record)

    def new_machine(self, name: str) -> StoryMachine:
        """A machine with an empty disk."""
        machine = StoryMachine(self.env, self.network, name, Middle(name), self._log)
        self.machines[name] = machine
        self.book.calls[machine.fresh_id.hex()] = name
        return machine

    # Who is there

    def machine(self, name: str) -> StoryMachine:
        if name not in self.machines:
            raise WrongStepError(f"there is no server {name}: there are {', '.join(self.machines)}")
        return self.machines[name]

    def running(self, name: str) -> StoryMachine:
        """That machine, whose server runs."""
        if not self.machine(name).up:
            raise WrongStepError(f"{name} is down")
        return self.machines[name]

    def down(self, name: str) -> StoryMachine:
        """That machine, whose server does not run."""
        if self.machine(name).up:
            raise WrongStepError(f"{name} is running: kill it first")
        return self.machines[name]

    def path_of(self, machine: StoryMachine, called: str) -> str:
        """The file of a segment, by the name that stories have for it."""
        paths = [
            f"d/{folder}/{name}"
            for folder in sorted(machine.disk.names("d") or [])
            for name in sorted(machine.disk.names(f"d/{folder}") or [])
            if short(name) == called
        ]
        if len(paths) != 1:
            raise WrongStepError(f"{machine.name} has {len(paths)} files of segment {called}")
        return paths[0]

    def writer(self, name: str) -> StoryWriter:
        if name not in self.writers:
            raise WrongStepError(f"there is no writer {name} yet")
        return self.writers[name]

    def new_writer(self, name: str) -> StoryWriter:
        """That writer; another process of the same name when it had died."""
        writer = self.writers.get(name)
        if writer is None or not writer.alive:
            writer = self.writers[name] = StoryWriter(name, self.stores, self.book, self.tell)
        return writer

    def new_store(self, process: Process) -> SimStore:
        """That process's own view of the store."""
        return SimStore(process, self.network, self.stores.record)

    def block(self, client: str, servers: list[str]) -> None:
        """Nothing passes between them any more, without notice."""
        for server in servers:
            self.machine(server)
            self.network.block((client, server))
            self.network.block((server, client))

    def connect_old(self, server: str) -> None:
        """A new connection of the old client."""
        life = self.running(server).server
        assert isinstance(life, StoryServer)
        self._old = OldClient(life, self.tell)

    def old_client(self) -> OldClient:
        if self._old is None:
            raise WrongStepError("there is no old client yet")
        return self._old

    # Time

    def until_idle(self, *writers: StoryWriter) -> None:
        """Run until they have finished, or wait in vain: then print what they wait for."""
        waiting = list(writers)
        took = self._run(lambda: not any(one.busy for one in waiting), PATIENCE_S)
        for one in waiting:
            if one.busy:
                self.tell(f"{one.name} waits for {one.waits_for()}")
        self._tell_time(took)

    def pass_time(self, done: Callable[[], bool] = lambda: False, seconds: float = 0.0) -> None:
        """Until it is done, or for so long; and a little longer."""
        self._tell_time(self._run(done, seconds))

    def _run(self, done: Callable[[], bool], seconds: float) -> float:
        begun = self.env.now
        self.env.run(done, begun + seconds)
        self.env.run(lambda: False, self.env.now + SETTLE_S)
        if self._old is not None:
            self._old.tell()
        return self.env.now - begun

    def _tell_time(self, took: float) -> None:
        if took >= 1.0:
            self.tell(f"({took:.0f} s later)")
