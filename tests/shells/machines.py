"""A host of a run: its disk can fail, and what its server promised is recorded.

Everything is recorded where it leaves the real server's core.
"""

import errno
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any, NamedTuple

import trio

from dos_protocol import messages as m
from dos_protocol.errors import CorruptDataError
from dos_protocol.stamps import NO_STAMP
from dos_protocol.store_record import decode_store_record
from dos_server.core import vocabulary as v
from dos_server.core.records import decode_identity
from dos_server.core.scrub import ScrubPlan
from dos_server.core.stamps import decode_history, decode_witnesses
from dos_server.memory.host import MemoryHost
from dos_server.memory.network import MemoryNetwork
from dos_server.memory.ports import MemoryPorts
from tests.sim.engine.disk import SimDisk
from tests.sim.oracles.oracle import Bench
from tests.sim.store.reported_sizes import ReportedSizes

PORT = 9999
SLOWEST_S = 2.0


class FateDisk(SimDisk):
    """The first tier's disk. Its power goes within a call too, but here nobody is thrown out of the server:
    who called gets an error that he can tell nobody of any more."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cut: Callable[[], None] = lambda: None

    def _called(self, method: str, what: str) -> None:
        if self.cut_in is not None and self.cut_in <= 1 and not self.off:
            self.cut_in = None
            self.on_cut()
            raise OSError(errno.EIO, "the power went", what)
        super()._called(method, what)


class Image(NamedTuple):
    """A copy of a disk, what its server had told by then, and the number of its newest stamp."""

    root: Any
    reported: ReportedSizes
    newest_stamp: int


class Machine:
    """One host. `told`: the bytes of each object that its server reported as synced."""

    def __init__(
        self,
        network: MemoryNetwork,
        name: str,
        rng: Random,
        note: Callable[[str, str], None],
        bench: Bench,
    ) -> None:
        self.network = network
        self.name = name
        self.rng = rng
        self.slowness = 1.0
        self.was_full = False
        self.wiped = False
        self.reported = ReportedSizes()
        self.removing: set[tuple[str, str]] = set()
        self.damaged: dict[str, None] = {}
        self.disk = FateDisk()
        self.disk.on_cut = self.power_cut
        self.host = MemoryHost(
            network, name, PORT, lambda: MemoryPorts(network.timers, rng, self._takes_s), disk=self.disk
        )
        self._note = note
        self._bench = bench
        self._scrub = ScrubPlan(rng.choice([0, 0, 0, 0, 0, 1 << 20]), 1.0, rng.random())
        self._sync_s = rng.choice([0.000_2, 0.002, 0.01])

    @property
    def address(self) -> str:
        return self.host.address

    @property
    def up(self) -> bool:
        return self.host.up

    def _takes_s(self) -> tuple[float, float]:
        """The disk takes its time, now and then a long one; where in it it is touched is chance too."""
        typical = min(self._sync_s * self.slowness * self.rng.lognormvariate(0.0, 0.7), SLOWEST_S)
        before = typical * self.rng.random()
        return before, typical - before

    async def start(self, nursery: trio.Nursery) -> None:
        """A new life, on what the disk has. A disk that cannot be started from is tried again later."""
        if self.up:
            return
        await self.host.wait_ended()
        if self.up:  # another task has started it meanwhile
            return
        try:
            self.host.start(nursery, self._scrub)
        except (CorruptDataError, OSError) as error:
            self._note(self.name, f"cannot start: {error}")
            return
        server = self.host.server
        assert server is not None
        send = server._perform[v.Send]
        core = server._core

        def overheard(effect: v.Send) -> Any:
            self._remember(core, effect)
            return send(effect)

        server._perform[v.Send] = overheard
        self._watch_removals(server._perform)
        self._note(self.name, "is up")

    def _watch_removals(self, perform: dict[type, Any]) -> None:
        """From the asking on an object that is removed may go, with a crash too."""
        remove = perform[v.RemoveObject]
        self.removing.clear()

        def watched(effect: v.RemoveObject) -> Any:
            self.removing.add((effect.directory, effect.name))
            self.reported.remove_requested((effect.directory, effect.name))
            return remove(effect)

        perform[v.RemoveObject] = watched

    def _remember(self, core: Any, effect: v.Send) -> None:
        """What this machine has promised to have on its platters."""
        message = effect.message
        if isinstance(message, m.DurabilityAck):
            infos: tuple[tuple[str, int], ...] = ((message.name, message.synced),)
        elif isinstance(message, m.DirectoryOpened):
            infos = tuple((info.name, info.synced) for info in message.entries if not info.corrupt)
        else:
            return
        directory = core._tables.sessions[effect.session].directory
        if directory is None:  # its connection is gone: nobody hears it
            return
        for name, synced in infos:
            if (directory, name) in self.removing:
                continue
            self.reported[directory, name] = max(self.reported.get((directory, name), 0), synced)

    def kill(self) -> None:
        """SIGKILL."""
        if self.up:
            self.disk.cut_in = None
            self.host.crash()
            self._note(self.name, "was killed")

    def image(self) -> Image:
        """A copy of the disk, as programs see it."""
        history = self._file("stamps")
        newest = decode_history(history).newest.number if history is not None else 0
        return Image(deepcopy(self.disk.root), deepcopy(self.reported), newest)

    def put_back(self, image: Image) -> None:
        """The disk is the copy again, and so is what it can be asked for."""
        self.disk.root, self.reported = image.root, image.reported
        self._note(self.name, f"has the disk again that it had at stamp {image.newest_stamp}")

    def is_member_with(self, other: "Machine") -> bool:
        """Whether the store record on its disk names both."""
        kept = self._file("store")
        ids = {decode_identity(one, "") for one in (self._file("identity"), other._file("identity")) if one}
        return kept is not None and ids <= {one.server_id for one in decode_store_record(kept).members}

    def was_told_of(self, other: "Machine") -> int:
        """The number of the newest stamp of another machine that it keeps on its disk; 0: of none."""
        kept, identity = self._file("witnessed"), other._file("identity")
        assert identity is not None
        witnessed = decode_witnesses(kept) if kept is not None else {}
        return witnessed.get(decode_identity(identity, ""), NO_STAMP).number

    def _file(self, path: str) -> bytes | None:
        try:
            return self.disk.content(path)
        except KeyError:
            return None

    def power_cut(self) -> None:
        """The power of this machine goes."""
        if self.host.without_power:
            return
        self.disk.cut_in = None
        self.host.power_cut(self.rng)
        self._note(self.name, "lost its power")
        self._bench.power_cut(self)
