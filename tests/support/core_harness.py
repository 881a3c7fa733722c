"""The real core and the real storage on the fake disk, one event at a time, in an order that the test
chooses.

No trio, no threads, no clock: what would run in a thread waits in `pending` until `finish`. A sync touches
the disk when it is requested and is reported when it is finished: the worst case, in which nothing written
meanwhile is covered.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from dos_protocol import messages as m
from dos_protocol.digests import Buffer
from dos_protocol.frames import Frame
from dos_server.core import vocabulary as v
from dos_server.core.access import Tokens
from dos_server.core.quotas import Quota, Quotas
from dos_server.core.requests.scrub import NO_SCRUB, ScrubPlan
from dos_server.core.server_core import ServerCore
from dos_server.storage import Storage
from tests.support.fake_disk import FakeDisk

SERVER_ID = bytes(range(1, 17))
_LIVES = itertools.count()


def joined(message: m.Message, rest: Sequence[Buffer]) -> m.Message:
    """The message of a `Send` with its whole payload."""
    if not rest:
        return message
    assert isinstance(message, m.Data), message
    return msgspec.structs.replace(message, payload=b"".join((message.payload, *rest)))


class Harness:
    """A server that the test drives.

    `heard[session]`: (request id, message) in the order sent; `bytes_heard[session]`: what a session of
    version 0 was sent; `notes`, `told`: what only the log receives, `warnings`: the bad ones of it.
    `slow_writes`: they run in threads, as those of a shell whose disk takes its time.
    `scrub_due`: the time of the scrub's next read, None: it does not wait for one.
    `slot_bytes`: the size of a slot of the group log, 0: there is no log.
    `reloads`: it begins with other tokens and without quotas, and gets its own by a reload of the files.
    """

    reloads = False

    def __init__(
        self,
        disk: FakeDisk | None = None,
        *,
        token: bytes = b"",
        tokens: Tokens | None = None,
        version0: bool = True,
        reserve_bytes: int | None = None,
        scrub: ScrubPlan = NO_SCRUB,
        slot_bytes: int = 0,
        quotas: tuple[Quota, ...] | None = None,
    ) -> None:
        self.slot_bytes = slot_bytes
        self.disk = disk or FakeDisk()
        self.quotas = quotas
        self.tokens = tokens or (Tokens.single(token) if token else None)
        self.version0 = version0
        self.scrub = scrub
        self.slow_writes = False
        self.bytes_heard: dict[int, bytearray] = {}
        self.reserve_bytes = reserve_bytes
        self.notes: list[tuple[int, str]] = []
        self.warnings: list[str] = []
        self.heard: dict[int, list[tuple[int, m.Message]]] = {}
        self.closed: set[int] = set()
        self.pending: list[tuple[v.Effect, Callable[[], v.Event | None]]] = []
        self.scrub_due: float | None = None
        self.told: list[str] = []
        self.audited: list[v.Audit] = []
        self.now = 0.0
        self._sessions = 0
        self._requests = 0
        self.start()

    def start(self) -> None:
        """Start (again) on what the disk has."""
        self.storage = Storage(self.disk)
        server_id, record, _ = self.storage.start(SERVER_ID)
        log = None
        if self.slot_bytes:
            log = self.storage.start_log(SERVER_ID, self.slot_bytes)
        else:
            self.storage.replay_log()
        names = self.storage.directory_names()  # a replay may have made some
        life = b"life %d" % next(_LIVES)
        self.core = ServerCore(
            server_id=server_id,
            incarnation_id=life,
            record=record,
            tokens=Tokens.single(b"another one") if self.reloads and self.tokens else self.tokens,
            directory_names=names,
            damaged_names=self.storage.damaged_among(names),
            version0=self.version0,
            reserve_bytes=self.reserve_bytes,
            scrub=self.scrub,
            stamps=self.storage.add_stamp(life.ljust(16, b".")),
            log=log,
            quotas=None
            if self.quotas is None
            else Quotas(() if self.reloads else self.quotas, self.storage.usage_among(names)),
        )
        self.pending.clear()
        self.scrub_due = 0.0 if self.scrub.bytes_per_s else None
        self.closed |= set(self.heard)
        if self.reloads and self.tokens:
            self.event(v.TokensChanged(self.tokens))
            self.audited.clear()
        if self.reloads and self.quotas is not None:
            self.event(v.QuotasChanged(self.quotas))

    def restart(self) -> None:
        """The server is killed, and started again."""
        self.disk.kill()
        self.start()

    def lose_power(self, rng: random.Random) -> None:
        """The power is cut, and the server started again."""
        self.disk.power_cut(rng)
        self.start()

    def event(self, event: v.Event) -> None:
        """Pass an event to the core and perform its effects."""
        events = deque([event])
        while events:
            for effect in self.core.handle(events.popleft(), self.now):
                answer = self._perform(effect)
                if answer is not None:
                    events.append(answer)
            if not events and self.core.log_is_due:
                events.append(v.LogDue())

    def _perform(self, effect: v.Effect) -> v.Event | None:
        if isinstance(effect, v.SendAcks):
            for session, ack in effect.acks:
                self._hear(session, ack)
            return None
        if isinstance(effect, v.ScrubLater):
            self.scrub_due = self.now + effect.seconds
            return None
        if isinstance(effect, v.ScrubNow):
            self.scrub_due = self.now if self.scrub_due is not None else None
            return None
        if isinstance(effect, v.LogNotice):
            self.told.append(effect.text)
            self.warnings += [effect.text] * effect.bad
            return None
        if isinstance(effect, v.Audit):
            self.audited.append(effect)
            return None
        if isinstance(effect, v.ScrubRead):
            self.pending.append((effect, self._look_then_report(effect)))
            return None
        if isinstance(effect, v.WriteLog):
            self.pending.append((effect, lambda: self.storage.append_log(effect)))
            return None
        return self._perform_for_clients(effect)

    def _perform_for_clients(self, effect: v.Effect) -> v.Event | None:
        storage = self.storage
        match effect:
            case v.Send(session, message, request_id, rest):
                self._hear(session, joined(message, rest), request_id)
            case v.CloseSession(session):
                self.closed.add(session)
            case v.WriteMany(writes):
                return self._write(writes)
            case v.SetMark(directory, mark):
                storage.set_mark(directory, mark)
            case v.ForgetDirectory(directory):
                storage.forget(directory)
            case v.DropRepair():
                storage.drop_repair(effect)
            case v.SendBytes(session, data):
                if session not in self.closed:
                    self.bytes_heard[session] += data
            case v.LogReason(session, text):
                self.notes.append((session, text))
            case v.Sync(directory, name):
                self.core.handle(v.SyncBegins(directory, name), self.now)
                report = v.Synced(directory, name, storage.sync(effect))
                self.pending.append((effect, lambda: report))
            case _:
                self.pending.append((effect, partial(storage.perform, effect)))
        return None

    def _hear(self, session: int, message: m.Message, request_id: int = 0) -> None:
        if session not in self.closed:
            self.heard[session].append((request_id, m.decode(m.encode(message, request_id))))

    def _write(self, writes: Sequence[v.Write]) -> v.Event | None:
        if not self.slow_writes:
            return v.WrittenMany(writes, [self.storage.write(one) for one in writes])
        for one in writes:
            copied = one._replace(buffers=[bytes(each) for each in one.buffers])
            self.pending.append((copied, partial(self._write_one, copied)))
        return None

    def _write_one(self, write: v.Write) -> v.Event:
        return v.WrittenMany([write], [self.storage.write(write)])

    def _look_then_report(self, effect: v.ScrubRead) -> Callable[[], v.Event | None]:
        """A late read of the scrub: its result is reported when it is finished a second time."""

        def work() -> None:
            looked = self.storage.scrub_read(effect, lambda: self.now)
            self.pending.append((effect, lambda: looked))

        return work

    def scrub_on(self, *, busy: bool = False) -> None:
        """Let the scrub read, if it waits for that."""
        if self.scrub_due is not None:
            self.now, self.scrub_due = max(self.now, self.scrub_due), None
            self.event(v.ScrubDue(busy))

    def finish(self, index: int = 0) -> None:
        """One thing that runs in a thread ends."""
        _, work = self.pending.pop(index)
        event = work()
        if event is not None:
            self.event(event)

    def settle(self) -> None:
        """Everything that runs in threads ends, in order."""
        while self.pending:
            self.finish()

    def connect(self, hello: m.Hello | None = None, host: str = "") -> int:
        """A new session, welcomed unless the HELLO is wrong."""
        self._sessions += 1
        self.heard[self._sessions] = []
        self.event(v.Connected(self._sessions, host))
        self.send(self._sessions, hello or m.Hello())
        return self._sessions

    def connect0(self, directory: str = "") -> int:
        """A new session of version 0, in a directory if one is given."""
        self._sessions += 1
        self.heard[self._sessions], self.bytes_heard[self._sessions] = [], bytearray()
        self.event(v.Connected(self._sessions))
        if directory:
            assert self.ask0(self._sessions, f"u{directory}") == b"ok"
        return self._sessions

    def request(self, session: int, body: str | bytes) -> None:
        """A request of version 0."""
        self.event(v.Requested(session, body.encode() if isinstance(body, str) else body))

    def stream(self, session: int, data: bytes) -> None:
        """Bytes that a session of version 0 appends, in a buffer that is used again afterwards."""
        buffer = bytearray(data)
        self.event(v.Streamed(session, memoryview(buffer)))
        buffer[:] = bytes(len(buffer))

    def replies(self, session: int) -> list[bytes]:
        """Return the bodies of the complete frames that a session of version 0 received since the last
        call."""
        data, bodies = self.bytes_heard[session], []
        while len(data) >= 4 and len(data) >= 4 + (count := int.from_bytes(data[:4], "big")):
            bodies.append(bytes(data[4 : 4 + count]))
            del data[: 4 + count]
        return bodies

    def ask0(self, session: int, body: str | bytes) -> bytes | None:
        """A request of version 0, settled; its reply, None when there is none."""
        self.request(session, body)
        self.settle()
        replies = self.replies(session)
        assert len(replies) <= 1, replies
        return replies[0] if replies else None

    def send(self, session: int, message: m.Message, *, ends_batch: bool = True) -> int:
        """Send a request; its answer is in `heard`."""
        self._requests += 1
        frame = m.encode(message, self._requests)
        self.event(v.Received(session, Frame(*frame)))
        if ends_batch:
            self.event(v.BatchEnded())
        return self._requests

    def ask(self, session: int, message: m.Message) -> Any:
        """A request, settled; its answer."""
        request_id = self.send(session, message)
        self.settle()
        return self.answer(session, request_id)

    def ask_now(self, session: int, message: m.Message) -> Any:
        """Send a request whose answer needs no thread, while other work may be pending."""
        return self.answer(session, self.send(session, message))

    def answer(self, session: int, request_id: int) -> Any:
        """The answer to a request; None if there is none yet."""
        return next((message for number, message in self.heard[session] if number == request_id), None)

    def unasked(self, session: int, kind: type[Any]) -> list[Any]:
        """Messages of a kind that answer no request."""
        return [one for number, one in self.heard[session] if number == 0 and isinstance(one, kind)]

    def look_at_space(self) -> None:
        """The shell does this now and then."""
        before = self.core.room_bytes
        self.event(v.SpaceSeen(*self.storage.free_space(), before))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.event(v.Tick())

    def half_close(self, session: int) -> None:
        """The peer sends no more."""
        self.event(v.HalfClosed(session))

    def end(self, session: int) -> None:
        """The connection has ended."""
        self.closed.add(session)
        self.event(v.ConnectionEnded(session))
