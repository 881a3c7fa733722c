"""A server process on a machine: the real core and storage, with a shell on virtual time.

What the real shell does in threads takes virtual time here. A sync touches the disk when it begins and is
reported when it ends, so it does not cover bytes that are written meanwhile. Effects are performed in order.
"""

import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dos_client.core.window import tag_of
from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_protocol.frames import Frame
from dos_protocol.limits import KIB
from dos_protocol.messages import Opcode
from dos_protocol.store_record import decode_store_record
from dos_server.core import vocabulary as v
from dos_server.core.requests.version0_wire import LENGTH_BYTES, Inlet
from dos_server.core.server_core import ServerCore
from dos_server.limits import log_slots, space_check_seconds
from dos_server.storage import Storage
from tests.sim.engine.disk import PowerCutError
from tests.sim.engine.environment import Process
from tests.sim.engine.network import Wire
from tests.sim.visitors import LOOSE
from tests.support.core_harness import joined
from tests.support.group_log import log_bytes_of

if TYPE_CHECKING:
    from tests.sim.store.machine import Machine


class ReportedSizes(dict[tuple[str, str], int]):
    """The reported size of each object by (directory, name), on its current disk."""

    def __init__(self) -> None:
        super().__init__()
        self._removed: dict[tuple[str, str], int] = {}

    def remove_requested(self, key: tuple[str, str]) -> None:
        """Record a request to remove that object: from now on the machine need not have it."""
        if key in self:
            self._removed[key] = self.pop(key)

    def ever(self) -> dict[tuple[str, str], int]:
        """Return all sizes ever reported, including those of objects to be removed."""
        return {key: synced for key, synced in (self._removed | self).items() if synced}

    def clear(self) -> None:
        super().clear()
        self._removed.clear()


# --- a session --------------------------------------------------------------------------------------------


_APPEND: Final = int(Opcode.APPEND)
_SIZES: Final = re.compile(rb"(\d+)\t(\d+)")


class ServerSession:
    """One connection. In version 0 the received items are `bytes`; b'' means that no more follow."""

    def __init__(self, server: "Server", number: int, wire: Wire) -> None:
        self.server = server
        self.number = number
        self.wire = wire
        self.inbox: deque[Frame] = deque()
        self.refused: set[int] = set()
        """Requests answered with an error."""
        self._inlet: Inlet | None = None
        self._over = False
        self._directory = ""
        self._request: list[str] = []
        """The last request of version 0: command and arguments."""
        self._replies = bytearray()

    @property
    def is_served(self) -> bool:
        """Return whether the server still serves it."""
        return self.server.alive and self.number in self.server.sessions

    @property
    def waits(self) -> bool:
        """Return whether there is data that the core has not accepted yet."""
        return bool(self.inbox) or (self._inlet is not None and bool(self._inlet.buffered or self._over))

    def received(self, item: Frame | bytes) -> None:
        if isinstance(item, bytes):
            self._inlet = self._inlet or Inlet(64 * KIB)
            self._inlet.receive(item)
            self._over |= not item
        else:
            self.inbox.append(item)
        self.server.drain(self)

    def ended(self) -> None:
        self.server.session_ended(self.number)

    def take(self) -> bool:
        """Pass to the core what it accepts now. Return whether that was anything."""
        return self._take_bytes(self._inlet) if self._inlet is not None else self._take_frames()

    def _take_frames(self) -> bool:
        server, took = self.server, False
        while self.inbox and self.is_served and server.core.may_read(self.number):
            frame = self.inbox.popleft()
            directory = server.core._tables.sessions[self.number].directory
            server.machine.bench.request_received(server.machine, self.number, directory, frame)
            self.refused.discard(frame.request_id)
            server.feed(v.Received(self.number, frame))
            if directory == LOOSE and frame.opcode == _APPEND and frame.request_id not in self.refused:
                append = m.decode(frame)
                assert isinstance(append, m.Append), "the opcode is that of APPEND"
                self._appended(append)
            took = True
        return took

    def _appended(self, append: m.Append) -> None:
        """An append was not refused; or the power failed during it."""
        file, data = self.server.machine.loose[append.name], bytes(append.payload)
        if self.is_served:
            file.appended(self, append.expected_size, append.prefix_digest, data)
        elif append.expected_size == len(file.content):
            file.streamed(data)

    # Version 0

    def _take_bytes(self, inlet: Inlet) -> bool:
        server, took = self.server, False
        while self.is_served and server.core.may_read(self.number):
            if server.core.is_streaming(self.number):
                if not inlet.buffered:
                    break
                data = inlet.take()
                if self._directory == LOOSE:
                    server.machine.loose[self._request[1]].streamed(bytes(data))
                server.feed(v.Streamed(self.number, data))
            elif (body := inlet.next_request()) is not None:
                self._remember(body)
                server.feed(v.Requested(self.number, body))
            else:
                break
            took = True
        if self._over and not inlet.buffered and self.is_served:
            self._over = False
            server.feed(v.HalfClosed(self.number))
        return took

    def _remember(self, body: bytes) -> None:
        text = body.decode("ascii")
        self._request = [text[:1], *text[1:].split("\t")]
        if self._request[0] == "u":
            self._directory = self._request[1]
        elif self._request[0] == "d" and self._directory == LOOSE:
            self.server.machine.loose.removal_requested(self._request[1])

    def send_bytes(self, data: bytes) -> None:
        """Send bytes of the core, and record each whole reply."""
        self.wire.send(data, dialler=False)
        self._replies += data
        while len(self._replies) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._replies[:LENGTH_BYTES], "big")
            if len(self._replies) < end:
                return
            body = bytes(self._replies[LENGTH_BYTES:end])
            del self._replies[:end]
            self._replied(body)

    def _replied(self, body: bytes) -> None:
        command, *arguments = self._request
        sometimes = self.server.env.sometimes
        sometimes[f"version 0: {command}{' refused' if body.startswith(b'ERROR') else ''}"] += 1
        if body.startswith(b"ERROR") or self._directory != LOOSE:
            return
        loose, sizes = self.server.machine.loose, _SIZES.fullmatch(body)
        if command == "a" and body == b"ok":
            loose[arguments[0]].begins(self, int(arguments[1]))
        elif command in "as" and sizes is not None:
            loose[arguments[0]].reported(int(sizes[1]), int(sizes[2]))
        elif command == "g":
            loose[arguments[0]].returned(max(int(arguments[1]), 0), body)
        elif command == "l":
            for line in body.decode("ascii").splitlines():
                name, size, _ = line.split("\t")
                loose[name].listed(int(size))


# --- the server -------------------------------------------------------------------------------------------


TICK_S = 0.05
BATCH_S = 0.000_05


class Server(Process):
    """One incarnation of a server process."""

    def __init__(self, machine: "Machine") -> None:
        super().__init__(machine.env, machine.name)
        self.machine = machine
        machine.starts += 1
        self.storage = Storage(machine.disk)
        server_id, record, names = self.storage.start(machine.fresh_id)
        log = None
        if self.env.with_log and (log_bytes := log_bytes_of(machine.fresh_id, machine.starts)):
            log = self.storage.start_log(machine.fresh_id, log_bytes // log_slots)
        else:
            self.storage.replay_log()
        names = self.storage.directory_names()  # a replay may have made some
        self.core = ServerCore(
            server_id=server_id,
            incarnation_id=b"%s, boot %d" % (machine.fresh_id, machine.starts),
            record=record,
            directory_names=names,
            damaged_names=self.storage.damaged_among(names),
            scrub=machine.scrub,
            stamps=self.storage.add_stamp(machine.fresh_stamp()),
            log=log,
        )
        self.scrub = self.core._on_event[v.ScrubDue].__self__  # type: ignore[attr-defined]
        self.sessions: dict[int, ServerSession] = {}
        self._ticking = False
        self.space_checks, self.log_is_gone = 0, False
        """`log_is_gone`: a person has removed its log; until it notices, it reports what is on no disk."""
        self.soon(self._check_space)
        if machine.scrub.bytes_per_s:
            self.after(machine.scrub.first_seconds, lambda: self.feed(v.ScrubDue(busy=False)))

    @property
    def without_power(self) -> bool:
        return self.machine.without_power

    def accept(self, wire: Wire) -> ServerSession:
        """Accept a connection."""
        self.machine.last_session += 1
        session = ServerSession(self, self.machine.last_session, wire)
        self.sessions[session.number] = session
        self.do(self.feed, v.Connected(session.number))
        return session

    def drain(self, session: ServerSession) -> None:
        """Pass what arrived on a connection to the core, as far as the core accepts it now."""
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
        """The peer ended the connection."""
        if self.sessions.pop(number, None) is not None:
            self.feed(v.ConnectionEnded(number))

    def feed(self, event: v.Event) -> None:
        """Pass an event to the core and perform its effects. The power may fail during that."""
        if not self.alive:
            return
        events = [event]
        try:
            for due in events:  # which grow meanwhile
                for effect in self.core.handle(due, self.now):
                    answer = self._perform(effect)
                    if answer is not None:
                        events.append(answer)
                    if not self.alive:
                        return
                if self.core.log_is_due and due is events[-1]:
                    events.append(v.LogDue())
        except PowerCutError:
            self.machine.power_cut()
            return
        if self.core.wants_tick() and not self._ticking:
            self._ticking = True
            self.after(TICK_S, self._tick)

    def _check_space(self) -> None:
        before = self.core.room_bytes
        try:
            free, gone = self.storage.free_space(), self.storage.why_gone()
            lost = [] if gone else self.storage.missing_directories()
        except PowerCutError:
            self.machine.power_cut()
            return
        self.feed(v.SpaceSeen(*free, before))
        self.space_checks += 1
        if gone:
            self.machine.halt(gone)
            return
        if lost:
            self.feed(v.DirectoriesLost(tuple(lost)))
        self.after(space_check_seconds, self._check_space)

    def _tick(self) -> None:
        self._ticking = False
        self.feed(v.Tick())

    def _perform(self, effect: v.Effect) -> v.Event | None:
        match effect:  # the frequent ones first, and without attribute patterns, which are slow
            case v.Send() | v.SendAcks() | v.SendBytes() | v.CloseSession():
                self._answer(effect)
            case v.WriteMany():
                return v.WrittenMany(effect.writes, [self.storage.write(one) for one in effect.writes])
            case v.Sync():
                self._at_disk(self.machine.speed.other_s, self._begin_sync, effect)
            case v.WriteLog():
                self.machine.note_effect(effect)
                self._at_disk(self.machine.speed.sync_s, self._append_log, effect)
            case v.Halt():
                self.machine.halt(effect.reason)
            case v.SetMark():
                self.storage.set_mark(*effect)
            case v.ForgetDirectory(directory):
                self.storage.forget(directory)
            case v.DropRepair():
                self.storage.drop_repair(effect)
            case v.LogReason() | v.Audit() | v.LogNotice():
                pass
            case v.ScrubLater(seconds):
                self.after(seconds, self.feed, v.ScrubDue(busy=False))
            case v.ScrubRead():
                inspection = partial(self.storage.scrub_read, effect, lambda: self.now)
                self._at_disk(self.machine.speed.other_s, self._report, inspection)
            case _:
                self.machine.note_effect(effect)
                work = partial(self.storage.perform, effect)
                self._at_disk(self.machine.speed.other_s, self._report, work)
        return None

    def _answer(self, effect: v.Send | v.SendAcks | v.SendBytes | v.CloseSession) -> None:
        match effect:
            case v.Send(session, message, request_id, rest):
                self._send(session, joined(message, rest), request_id)
            case v.SendAcks(acks):
                for session, ack in acks:
                    self._send(session, ack, 0)
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
        self._record_reported(session, message)
        if isinstance(message, m.Error):
            self.env.sometimes[f"answer: {ErrorCode(message.code).name}"] += 1
            there.refused.add(request_id)
            if tag_of(request_id) is not None:
                self.machine.bench.append_refused(self.machine, session, request_id, message.code)
        there.wire.send(m.encode(message, request_id), dialler=False)

    def _record_reported(self, session: int, message: m.Message) -> None:
        """Record the sizes that a message reports as synced."""
        if isinstance(message, m.DurabilityAck):
            infos = [(message.name, message.synced)]
        elif isinstance(message, m.DirectoryOpened):
            infos = [(info.name, info.synced) for info in message.entries if not info.corrupt]
        else:
            return
        directory, reported = self.core._tables.sessions[session].directory or "", self.machine.reported
        if self.log_is_gone:
            return
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
        if isinstance(event, v.EffectDone) and event == (event.effect, v.DiskFailure.NONE):
            record = getattr(event.effect, "record", None)
            self.machine.records += [decode_store_record(record)] if record else []
        if isinstance(event, v.Removed):
            self.machine.removing.discard((event.directory, event.name))
        if isinstance(event, v.RepairInstalled) and event.found is not None:
            self.machine.repaired(event.directory, event.name, event.found.size)
        self.feed(event)

    def _count(self, event: v.Event) -> None:
        """Count the rows of the table of recovery that were applied."""
        if isinstance(event, v.DirectoryLoaded):
            for found in event.objects.values():
                self.env.sometimes[f"start: case {found.letter}"] += 1
        elif isinstance(event, v.ObjectLoaded) and event.found is not None:
            self.env.sometimes[f"start: case {event.found.letter}"] += 1

    def _append_log(self, effect: v.WriteLog) -> None:
        try:
            synced = self.storage.append_log(effect)
        except PowerCutError:
            self.machine.power_cut()
            return
        except OSError as error:
            self.machine.halt(f"the log: {error}")
            return
        self.feed(synced)

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
        """Make the call after the disk's time for it; if the disk hangs, when it continues."""
        machine = self.machine
        delay_s = typical_s * machine.slowness * machine.rng.lognormvariate(0.0, 0.7)
        self.after(delay_s, self._unless_it_hangs, work, args)

    def _unless_it_hangs(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.machine.hangs:
            self.machine.hanging.append(partial(self.do, work, *args))
        else:
            work(*args)
