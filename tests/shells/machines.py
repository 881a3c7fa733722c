"""A host of a run: its disk can fail, and what its server promised is recorded.

Everything is recorded where it leaves the real server's core.
"""

import errno
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any, NamedTuple

import trio

from dos_client.core.logs import DIRECTORY
from dos_protocol import messages as m
from dos_protocol.errors import CorruptDataError
from dos_protocol.names import NO_ID
from dos_protocol.store_record import NO_STAMP, StoreRecord, decode_store_record
from dos_server.core import vocabulary as v
from dos_server.core.files.records import decode_identity
from dos_server.core.requests.scrub import ScrubPlan
from dos_server.core.requests.stamps import decode_history, decode_witnesses
from dos_server.memory.host import MemoryHost, MemoryPorts
from dos_server.memory.network import MemoryNetwork
from tests.sim.engine.disk import SimDisk
from tests.sim.oracles.store import Bench
from tests.sim.store.server import ReportedSizes
from tests.support.group_log import log_bytes_of, removals_in

PORT = 9999
SLOWEST_S = 2.0


class CuttingDisk(SimDisk):
    """The first tier's disk, which can lose its power during a call. Here the call fails with an error, which
    has no effect, because the server has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cut: Callable[[], None] = lambda: None

    def _called(self, method: str, what: str) -> None:
        if self.cut_in is not None and self.cut_in <= 1 and not self.off:
            self.cut_in = None
            self.on_cut()
            raise OSError(errno.EIO, "the power failed", what)
        super()._called(method, what)


class Image(NamedTuple):
    """A copy of a disk, the sizes that its server had reported, and the number of its newest stamp."""

    root: Any
    reported: ReportedSizes
    newest_stamp: int


class Machine:
    """One host. `reported`: the size of each object that its server reported as synced. `gone`: it is lost,
    and does not start again. `records`: the store records that it received. `acknowledged`: how many appends
    to directories of users it acknowledged."""

    def __init__(
        self,
        network: MemoryNetwork,
        name: str,
        rng: Random,
        note: Callable[[str, str], None],
        bench: Bench,
        *,
        with_log: bool = False,
    ) -> None:
        self.network = network
        self.name = name
        self.rng = rng
        self.slowness = 1.0
        self.was_full = False
        self.wiped = False
        self.gone = False
        self.records: list[StoreRecord] = []
        self.acknowledged = 0
        self.reported = ReportedSizes()
        self.removing: set[tuple[str, str]] = set()
        self.damaged: dict[str, None] = {}
        self._with_log, self._starts, self._log_choice = with_log, 0, repr(rng.getstate()).encode()
        self.disk = CuttingDisk()
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
        """Draw how long a disk call takes, sometimes long, and at which moment of it the disk is touched."""
        typical = min(self._sync_s * self.slowness * self.rng.lognormvariate(0.0, 0.7), SLOWEST_S)
        before = typical * self.rng.random()
        return before, typical - before

    async def start(self, nursery: trio.Nursery) -> None:
        """Start a server on the content of the disk. If that fails, the caller tries again later."""
        if self.up or self.gone:
            return
        await self.host.wait_ended()
        if self.up:  # another task has started it meanwhile
            return
        self._starts += 1
        log_bytes = log_bytes_of(self._log_choice, self._starts) if self._with_log else 0
        try:
            self.host.start(nursery, self._scrub, log_bytes=log_bytes)
        except (CorruptDataError, OSError) as error:
            self._note(self.name, f"cannot start: {error}")
            return
        server = self.host.server
        assert server is not None
        send, send_acks = server._perform[v.Send], server._perform[v.SendAcks]
        core = server._core

        def recording_send(effect: v.Send) -> Any:
            self._record_reported(core, effect.session, effect.message)
            return send(effect)

        def recording_acks(effect: v.SendAcks) -> Any:
            for session, ack in effect.acks:
                self._record_reported(core, session, ack)
            return send_acks(effect)

        server._perform[v.Send], server._perform[v.SendAcks] = recording_send, recording_acks
        self._watch_removals(server._perform)
        self._watch_records(server._perform)
        self._note(self.name, "is up")

    def _watch_removals(self, perform: dict[type, Any]) -> None:
        """Record removals: from the request on, an object may be gone, also after a crash."""
        self.removing.clear()

        def watched(perform_it: Callable[[Any], Any], effect: v.Effect) -> Any:
            for key in removals_in(effect):
                self.removing.add(key)
                self.reported.remove_requested(key)
            return perform_it(effect)

        for kind in (v.RemoveObject, v.WriteLog):
            perform[kind] = partial(watched, perform[kind])

    def _watch_records(self, perform: dict[type, Any]) -> None:
        """Note the store records that it stores."""
        store = perform[v.WriteStoreRecord]

        def watched(effect: v.WriteStoreRecord) -> Any:
            self.records.append(decode_store_record(effect.record))
            return store(effect)

        perform[v.WriteStoreRecord] = watched

    @property
    def identity(self) -> bytes:
        """The identity on its disk; NO_ID if no server has used it."""
        kept = self._file("identity")
        return decode_identity(kept, "") if kept is not None else NO_ID

    def kept_record(self) -> StoreRecord | None:
        """Return the store record on its disk."""
        kept = self._file("store")
        return decode_store_record(kept) if kept is not None else None

    def _record_reported(self, core: Any, session: int, message: m.Message) -> None:
        """Record the sizes that a message reports as synced."""
        if isinstance(message, m.DurabilityAck):
            infos: tuple[tuple[str, int], ...] = ((message.name, message.synced),)
        elif isinstance(message, m.DirectoryOpened):
            infos = tuple((info.name, info.synced) for info in message.entries if not info.corrupt)
        else:
            return
        directory = core._tables.sessions[session].directory
        if directory is None:  # its connection has ended, so the message is dropped
            return
        self.acknowledged += isinstance(message, m.DurabilityAck) and directory != DIRECTORY
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

    def image(self, *, running: bool = False) -> Image:
        """Return a copy of the disk, as programs see it; `running`: a snapshot of what is on the platters."""
        history = self._file("stamps")
        newest = decode_history(history).newest.number if history is not None else 0
        root = self.disk.platters() if running else deepcopy(self.disk.root)
        return Image(root, deepcopy(self.reported), newest)

    def put_back(self, image: Image) -> None:
        """Restore the disk from the copy, with the sizes reported then."""
        self.disk.root, self.reported = image.root, image.reported
        self._note(self.name, f"has its disk restored from stamp {image.newest_stamp}")

    def exchange_disks(self, other: "Machine") -> None:
        """Attach the disk of each of two stopped machines to the other one."""
        self.disk, other.disk = other.disk, self.disk
        self.reported, other.reported = other.reported, self.reported
        for one in (self, other):
            one.disk.on_cut, one.host.disk = one.power_cut, one.disk
        self._note(self.name, f"exchanges disks with {other.name}")

    def is_member_with(self, other: "Machine") -> bool:
        """Return whether the store record on its disk contains both machines."""
        kept = self._file("store")
        ids = {decode_identity(one, "") for one in (self._file("identity"), other._file("identity")) if one}
        return kept is not None and ids <= {one.server_id for one in decode_store_record(kept).members}

    def newest_stamp_known(self, other: "Machine") -> int:
        """Return the number of the newest stamp of another machine that its disk has; 0 if none."""
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
        """Cut the power of this machine."""
        if self.host.without_power:
            return
        self.disk.cut_in = None
        self.host.power_cut(self.rng)
        self._note(self.name, "lost its power")
        self._bench.power_cut(self)
