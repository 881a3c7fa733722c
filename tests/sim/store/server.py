"""A server: a machine with an address and a disk, and one incarnation of the server process after the other.

The core and the storage are the real ones. What the shell would do in threads happens here after a while of
virtual time: a sync touches the disk when it begins and is reported when it ends, so nothing written
meanwhile is covered.

It performs effects in order. `nemesis` decides its faults.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from dos_client.core.window import tag_of
from dos_protocol import messages as m
from dos_protocol.errors import CorruptDataError, ErrorCode
from dos_protocol.store_record import StoreRecord, decode_store_record, encode_store_record
from dos_server.core import scrub_reads
from dos_server.core import vocabulary as v
from dos_server.core.records import decode_marks
from dos_server.core.scrub import ScrubPlan
from dos_server.core.server import ServerCore
from dos_server.limits import space_look_seconds
from dos_server.storage import Storage
from tests.sim.engine.disk import PowerCutError, SimDisk
from tests.sim.engine.environment import Environment, Process
from tests.sim.engine.network import Network, Wire
from tests.sim.oracles.oracle import Bench
from tests.sim.store.reported_sizes import ReportedSizes
from tests.sim.store.server_session import ServerSession
from tests.sim.visitors import LOOSE
from tests.sim.visitors.files import LooseFiles
from tests.support.thread_work import thread_work

TICK_S = 0.05
BATCH_S = 0.000_05
RESTART_S = 1.0
"""After which a server that could not start is started again."""


@dataclass
class Speed:
    """How long things take on a machine, in seconds; a multiple of it, at random, each time."""

    sync_s: float = 0.002
    other_s: float = 0.000_3


class Server(Process):
    """One life of a server process."""

    def __init__(self, machine: "Machine") -> None:
        super().__init__(machine.env, machine.name)
        self.machine = machine
        machine.starts += 1
        self.storage = Storage(machine.disk)
        server_id, record, names = self.storage.start(machine.fresh_id)
        self.core = ServerCore(
            server_id=server_id,
            incarnation_id=b"%s, boot %d" % (machine.fresh_id, machine.starts),
            record=record,
            token=b"",
            directory_names=names,
            damaged_names=self.storage.damaged_among(names),
            scrub=machine.scrub,
            stamps=self.storage.give_stamp(machine.fresh_stamp()),
        )
        self.scrub = self.core._on_event[scrub_reads.ScrubDue].__self__  # type: ignore[attr-defined]
        self.sessions: dict[int, ServerSession] = {}
        self._ticking = False
        self.soon(self._check_space)
        if machine.scrub.bytes_per_s:
            self.after(machine.scrub.first_seconds, lambda: self.feed(scrub_reads.ScrubDue(busy=False)))

    @property
    def without_power(self) -> bool:
        return self.machine.without_power

    def accept(self, wire: Wire) -> ServerSession:
        """A connection comes in."""
        self.machine.last_session += 1
        session = ServerSession(self, self.machine.last_session, wire)
        self.sessions[session.number] = session
        self.do(self.feed, v.Connected(session.number))
        return session

    def drain(self, session: ServerSession) -> None:
        """Take what came on a connection, as far as the core takes it now."""
        took = session.take()
        self.machine.bench.served(self, session.number)
        if took and self.alive:
            self.after(BATCH_S * self.machine.rng.random(), self._end_batch)

    def _end_batch(self) -> None:
        self.feed(v.BatchEnded())
        for session in list(self.sessions.values()):
            if session.waits:
                self.drain(session)

    def session_ended(self, number: int) -> None:
        """The peer is gone."""
        if self.sessions.pop(number, None) is not None:
            self.feed(v.ConnectionEnded(number))

    def feed(self, event: v.Event) -> None:
        """Give the core an event, and do what it asks for. The power may go in the middle of it."""
        if not self.alive:
            return
        events = [event]
        try:
            for due in events:  # which grow meanwhile
                for effect in self.core.handle(due, self.now):
                    answer = self._perform(effect)
                    if answer is not None:
                        events.append(answer)
        except PowerCutError:
            self.machine.power_cut()
            return
        if self.core.wants_tick() and not self._ticking:
            self._ticking = True
            self.after(TICK_S, self._tick)

    def _check_space(self) -> None:
        before = self.core.room_bytes
        try:
            free = self.storage.free_space()
        except PowerCutError:
            self.machine.power_cut()
            return
        self.feed(v.SpaceSeen(*free, before))
        self.after(space_look_seconds, self._check_space)

    def _tick(self) -> None:
        self._ticking = False
        self.feed(v.Tick())

    def _perform(self, effect: v.Effect) -> v.Event | None:
        match effect:  # the frequent ones first, and these are not taken apart
            case v.Send() | v.SendBytes() | v.CloseSession():
                self._answer(effect)
            case v.Write():
                return v.Written(effect.directory, effect.name, self.storage.write(effect))
            case v.Sync():
                self._at_disk(self.machine.speed.other_s, self._begin_sync, effect)
            case v.SetMark():
                self.storage.set_mark(*effect)
            case v.ForgetDirectory(directory):
                self.storage.forget(directory)
            case v.DropRepair():
                self.storage.drop_repair(effect)
            case v.LogReason() | scrub_reads.LogNotice():
                pass
            case scrub_reads.ScrubLater(seconds):
                self.after(seconds, self.feed, scrub_reads.ScrubDue(busy=False))
            case scrub_reads.ScrubRead():
                inspection = partial(self.storage.inspect, effect, lambda: self.now)
                self._at_disk(self.machine.speed.other_s, self._report, inspection)
            case _:
                self.machine.notes(effect)
                work = thread_work(self.storage, effect)
                self._at_disk(self.machine.speed.other_s, self._report, work)
        return None

    def _answer(self, effect: v.Send | v.SendBytes | v.CloseSession) -> None:
        match effect:
            case v.Send(session, message, request_id):
                self._send(session, message, request_id)
            case v.SendBytes(session, data):
                if session in self.sessions:
                    self.sessions[session].send_bytes(bytes(data))
            case v.CloseSession(session):
                closing = self.sessions.pop(session, None)
                if closing is not None:
                    closing.wire.close(dialler=False)

    def _send(self, session: int, message: m.Message, request_id: int) -> None:
        there = self.sessions.get(session)
        if there is None:
            return
        self._remember(session, message)
        if isinstance(message, m.Error):
            self.env.sometimes[f"answer: {ErrorCode(message.code).name}"] += 1
            there.refused.add(request_id)
            if tag_of(request_id) is not None:
                self.machine.bench.append_refused(self.machine, session, request_id, message.code)
        there.wire.send(m.encode(message, request_id), dialler=False)

    def _remember(self, session: int, message: m.Message) -> None:
        """What this machine has promised to have on its platters."""
        if isinstance(message, m.DurabilityAck):
            infos = [(message.name, message.synced)]
        elif isinstance(message, m.DirectoryOpened):
            infos = [(info.name, info.synced) for info in message.entries if not info.corrupt]
        else:
            return
        directory, reported = self.core._tables.sessions[session].directory or "", self.machine.reported
        for name, synced in infos:
            if self.machine.reportable_max:
                self.machine.bench.acknowledged_bytes(self.machine, directory, name, synced)
            if (directory, name) in self.machine.reportable_max:
                continue
            if directory == LOOSE:
                self.machine.loose[name].reported(synced, synced)
            if (directory, name) in self.machine.removing:
                continue
            if synced >= reported.get((directory, name), 0):
                reported[directory, name] = synced

    def _report(self, work: Callable[[], v.Event]) -> None:
        try:
            event = work()
        except PowerCutError:
            self.machine.power_cut()
            return
        self._count(event)
        if isinstance(event, v.RecordStored) and event.trouble is v.DiskFailure.NONE:
            self.machine.records.append(decode_store_record(event.record))
        if isinstance(event, v.Removed):
            self.machine.removing.discard((event.directory, event.name))
        if isinstance(event, v.RepairInstalled) and event.found is not None:
            self.machine.repaired(event.directory, event.name, event.found.size)
        self.feed(event)

    def _count(self, event: v.Event) -> None:
        """By which rows of the table of recovery objects were judged."""
        if isinstance(event, v.DirectoryLoaded):
            for found in event.objects.values():
                self.env.sometimes[f"start: case {found.letter}"] += 1
        elif isinstance(event, v.ObjectLoaded) and event.found is not None:
            self.env.sometimes[f"start: case {event.found.letter}"] += 1

    def _begin_sync(self, effect: v.Sync) -> None:
        self.feed(v.SyncBegins(effect.directory, effect.name))
        if not self.alive:
            return
        try:
            trouble = self.storage.sync(effect)
        except PowerCutError:
            self.machine.power_cut()
            return
        report = v.Synced(effect.directory, effect.name, trouble)
        self._at_disk(self.machine.speed.sync_s, self.feed, report)

    def _at_disk(self, typical_s: float, work: Callable[..., None], *args: Any) -> None:
        """Do it when the disk has had its time for it; while the disk hangs, when it hangs no more."""
        machine = self.machine
        delay_s = typical_s * machine.slowness * machine.rng.lognormvariate(0.0, 0.7)
        self.after(delay_s, self._unless_it_hangs, work, args)

    def _unless_it_hangs(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.machine.hangs:
            self.machine.hanging.append(partial(self.do, work, *args))
        else:
            work(*args)


class Machine:
    """An address, a disk, and a server process. `life`: the process; `slowness`: how many times longer
    its disk takes; `hangs`: it does nothing at all. `damaged`: objects that the run itself has damaged, and
    whether their marks still prove what was reported of them: where a power cut took those, before the
    damage or after it, nothing can be missed."""

    server_class: Callable[["Machine"], Server] = Server

    def __init__(self, env: Environment, network: Network, name: str, rng: Random) -> None:
        self.env = env
        self.network = network
        self.name = name
        self.address = f"{name}:9999"
        self.rng = rng
        self._new_disk()
        self.speed = Speed()
        self.slowness = 1.0
        self.hangs = False
        self.hanging: list[Callable[[], None]] = []
        self.scrub = ScrubPlan(rng.choice([0, 1 << 20]), 1.0, rng.random())
        self.fresh_id = rng.randbytes(16)
        self.last_session = 0
        self.without_power = False
        self.wiped = False
        self.bench = Bench(())
        self.starts = 0
        self.tails_judged = 0
        self.reported = ReportedSizes()
        self.loose = LooseFiles(self)
        self.damaged: dict[str, bool] = {}
        self.removing: set[tuple[str, str]] = set()
        self.removed = 0
        self.had_errors = False
        self.doomed: bytes | None = None
        """Its data is not whole, and it gets an empty disk when it dies: with this identity."""
        self.reportable_max: dict[tuple[str, str], int] = {}
        """Of objects whose files were removed under it: what was written before that."""
        self.copies_repaired = 0
        self.records: list[StoreRecord] = []  # every store record that it ever kept
        self.server: Server | None = None

    def prepare(self, record: StoreRecord) -> None:
        """Make it a member of a store before the run begins."""
        storage = Storage(self.disk)
        storage.start(self.fresh_id)
        storage.store_record(encode_store_record(record))
        storage.stop()

    @property
    def identity(self) -> bytes:
        """Who the server on its disk is."""
        return self.fresh_id

    def fresh_stamp(self) -> bytes:
        """No other life of any machine has it. Not drawn: what chance gives to all else stays as it was."""
        return ((int.from_bytes(self.fresh_id) + self.starts) % (1 << 128)).to_bytes(16)

    def kept_record(self) -> StoreRecord | None:
        """The store record on its disk."""
        kept = self.disk.stable("store")
        return decode_store_record(kept) if kept else None

    def notes(self, effect: v.Effect) -> None:
        """What is asked of its disk. From here on an object being removed may go, with a crash too."""
        self.tails_judged += isinstance(effect, v.LoadObject)
        if isinstance(effect, v.RemoveObject):
            self.removing.add((effect.directory, effect.name))
            self.reported.remove_requested((effect.directory, effect.name))
            self.reportable_max.pop((effect.directory, effect.name), None)
            self.removed += 1

    def repaired(self, directory: str, name: str, size: int) -> None:
        """A new copy is in its place, which is all that it tells of from now on."""
        self.reported[directory, name] = size
        if directory == LOOSE:
            self.loose[name].cut_to(size)
        if self.damaged.pop(f"d/{directory}/{name}", None) is not None:
            self.copies_repaired += 1

    @property
    def up(self) -> bool:
        return self.server is not None and self.server.alive

    def start(self) -> None:
        """A new life, on what the disk has. A data directory that is not one whole server's starts none."""
        if self.up:
            return
        was_without_power, self.without_power = self.without_power, False
        if self.doomed is not None:
            self.lose_disk(self.doomed)
        self.removing.clear()
        try:
            self.server = self.server_class(self)
        except (CorruptDataError, OSError) as error:
            self._note(f"cannot start: {error}")
            self.disk.kill()
            self.env.sometimes["start: refused"] += 1
            self.env.after(RESTART_S, self.start)
            return
        except PowerCutError:
            self.power_cut()
            return
        self.network.listen(self.address, self.server, self.server.accept)
        self._note("is up")
        if was_without_power:
            self.network.power_back(self.address)

    def kill(self) -> None:
        """SIGKILL: what was written is in the cache and stays."""
        self._end(power=False)
        self.disk.cut_in = None
        self.disk.kill()
        self._note("was killed")

    def _new_disk(self) -> None:
        self.disk = SimDisk()
        self.disk.sometimes = self.env.sometimes

    def directory_is_removed(self, directory: str, fresh_id: bytes) -> None:
        """A person removes a directory under the running server; the machine is to lose its disk for that."""
        assert self.server is not None, "a server is at work"
        there = self.server.core._tables.directories.get(directory)
        if there is not None:
            self.reportable_max |= {(directory, name): state.written for name, state in there.objects.items()}
        for key in [key for key in self.reported if key[0] == directory]:
            del self.reported[key]
        self.disk.take_away(f"d/{directory}")
        self.doomed = fresh_id
        self.env.sometimes["disk: directory removed"] += 1
        self._note(f"has its directory {directory} removed")

    def lose_disk(self, fresh_id: bytes) -> None:
        """The disk is gone; the next start finds an empty one, and makes an identity of its own."""
        self._new_disk()
        self.doomed = None
        self.reportable_max.clear()
        self.wiped = True
        self.reported.clear()
        self.damaged.clear()
        self.fresh_id = fresh_id
        self._note("lost its disk")

    def put_back(self, record: StoreRecord) -> None:
        """The disk is one from a backup that was made when the machine had just become a member."""
        self._new_disk()
        self.reported.clear()
        self.damaged.clear()
        self.prepare(record)
        self._note("has the disk of its first day again")

    def go_on(self) -> None:
        """The disk hangs no more."""
        self.hangs, held, self.hanging = False, self.hanging, []
        for work in held:
            work()

    def power_cut(self) -> None:
        """What was not synced goes by chance."""
        self._end(power=True)
        self.without_power = True
        self.disk.cut_in = None
        self.disk.power_cut(self.rng)
        self.damaged = {path: vouched and self.vouched(path) for path, vouched in self.damaged.items()}
        self._note("lost its power")
        self.bench.power_cut(self)

    def vouched(self, path: str) -> bool:
        """Whether the mark of an object, as the next life finds it, proves everything that was reported of
        it.
        """
        _, directory, name = path.split("/")
        watermarks = decode_marks(self.disk.content(f"d/{directory}/.marks") or b"")
        vouched = max(
            (
                watermark.synced
                for watermark in watermarks
                if watermark is not None and watermark.name == name
            ),
            default=0,
        )
        return vouched >= self.reported.get((directory, name), 0)

    def _end(self, *, power: bool) -> None:
        if self.server is not None:
            self.server.kill()
            self.network.process_died(self.server, power=power)

    def _note(self, what: str) -> None:
        self.env.trace.note(self.env.now, self.name, what)
