"""The tables that all parts of the core share, the queue of effects, and the accounts that requests are
checked against: bytes in flight, waiting reads, space. No request is decided here.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from dos_protocol import limits as wire
from dos_protocol import messages as m
from dos_protocol.digests import Buffer
from dos_protocol.errors import CLOSING, VERDICTS, Blame, ErrorCode
from dos_protocol.messages import Get, SessionEvent
from dos_protocol.names import is_name
from dos_protocol.store_record import StoreRecord, decode_store_record
from dos_server.core import vocabulary as v
from dos_server.core.access import RequestRefusal, Tokens
from dos_server.core.directory_state import DirectoryState, LoadState, NameTable, Session
from dos_server.core.files.extent import fresh_root
from dos_server.core.files.recovery import RecoveredObject
from dos_server.core.group_log import GroupLog
from dos_server.core.object_state import ObjectState, RepairInProgress
from dos_server.core.quotas import Quotas
from dos_server.limits import (
    again_seconds,
    directories_loaded_max,
    extent_header_bytes,
    in_flight_bytes_max,
    in_flight_share_bytes_min,
    in_flight_shared_bytes_max,
    new_directory_bytes,
    new_file_bytes,
    objects_in_use_max,
    objects_loaded_max,
    openings_max,
    reserve_bytes_default,
    reserve_fraction_max,
    resume_fraction,
    waiting_of_one_min,
    waiting_total_max,
)

_LATELY_S: Final = 1.0


class InFlight:
    """The sessions that have appended lately, those that did it longest ago first."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}

    def appended(self, session: int, now: float) -> None:
        at = self._at
        at.pop(session, None)
        at[session] = now
        while at[first := next(iter(at))] < now - _LATELY_S:
            del at[first]

    @property
    def bytes_max(self) -> int:
        count = len(self._at)
        if count <= 1:
            return in_flight_bytes_max
        return max(in_flight_shared_bytes_max // count, in_flight_share_bytes_min)


# --- Waiting reads -----------------------------------------------------------------------------------------


Key = TypeVar("Key")


class WaitingRead(NamedTuple):
    """A GET that waits at the end of the object until more bytes are synced or its deadline passes."""

    state: ObjectState
    session: int
    request_id: int
    get: Get
    deadline: float


class WaitingReads:
    def __init__(self) -> None:
        self._waiters: dict[int, WaitingRead] = {}
        self._of_session: dict[int, set[int]] = {}
        self._of_object: dict[ObjectState, set[int]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._last = 0
        self.woken: deque[WaitingRead] = deque()

    def __len__(self) -> int:
        return len(self._waiters) + len(self.woken)

    def has_room(self, session: int) -> bool:
        """Return whether another GET of the session may wait. Each session may always have a few."""
        return len(self) < waiting_total_max or len(self._of_session.get(session, ())) < waiting_of_one_min

    def add(self, waiter: WaitingRead) -> None:
        self._last += 1
        number = self._last
        self._waiters[number] = waiter
        self._of_session.setdefault(waiter.session, set()).add(number)
        self._of_object.setdefault(waiter.state, set()).add(number)
        waiter.state.waiters += 1
        heapq.heappush(self._deadlines, (waiter.deadline, number))

    def take_of_object(self, state: ObjectState) -> list[WaitingRead]:
        return self._take(self._of_object.get(state, ()))

    def take_of_session(self, session: int) -> list[WaitingRead]:
        return self._take(self._of_session.get(session, ()))

    def take_due(self, now: float) -> list[WaitingRead]:
        numbers = []
        while self._deadlines and self._deadlines[0][0] <= now:
            numbers.append(heapq.heappop(self._deadlines)[1])
        return self._take(numbers)

    def _take(self, numbers: Iterable[int]) -> list[WaitingRead]:
        taken = []
        for number in sorted(numbers):
            waiter = self._waiters.pop(number, None)
            if waiter is not None:
                taken.append(waiter)
                waiter.state.waiters -= 1
                _drop(self._of_session, waiter.session, number)
                _drop(self._of_object, waiter.state, number)
        if len(self._deadlines) > 2 * len(self._waiters) + 64:  # most are of GETs already taken
            self._deadlines = [(one.deadline, number) for number, one in self._waiters.items()]
            heapq.heapify(self._deadlines)
        return taken


def _drop(numbers: dict[Key, set[int]], key: Key, number: int) -> None:
    numbers[key].discard(number)
    if not numbers[key]:
        del numbers[key]


# --- Space on the disk -------------------------------------------------------------------------------------


def reserve_of(total_bytes: int) -> int:
    """Return the default reserve, in bytes, for a file system of that size."""
    return min(reserve_bytes_default, total_bytes // reserve_fraction_max)


def cost(payload_bytes: int, *, new_file: bool) -> int:
    """Return about how much disk space a payload takes, with headers or a new file's first block."""
    return payload_bytes + (new_file_bytes if new_file else extent_header_bytes)


_ENOUGH: Final = 1 << 62


class DiskSpace:
    """The free space above the reserve. Before the first measurement, and if the size is unknown, everything
    fits.
    """

    def __init__(self, reserve_bytes: int | None = None) -> None:
        self.refusing = False
        self.room_bytes = _ENOUGH
        self._configured_reserve = reserve_bytes
        self._reserve = 0
        self._wanted = 0
        self._since = 0.0

    def seen(self, free_bytes: int, total_bytes: int, room_before: int, now: float) -> str | None:
        """Apply a measurement that began when `room_bytes` was `room_before`. Returns a line for the log when
        appends begin or cease to be refused.
        """
        if total_bytes <= 0:
            self.room_bytes = _ENOUGH
        else:
            configured = self._configured_reserve
            self._reserve = reserve_of(total_bytes) if configured is None else configured
            self.room_bytes += free_bytes - self._reserve - room_before
        if not self.refusing:
            return self._begin_refusing(0, now) if self.room_bytes <= 0 else None
        if self.room_bytes <= max(self._wanted, self._reserve // resume_fraction):
            return None
        self.refusing, self._wanted = False, 0
        return (
            f"appends are accepted again after {now - self._since:.0f} s: {free_bytes} bytes are free,"
            f" {self._reserve} of them the reserve"
        )

    def has_room(self, count: int) -> bool:
        return count < self.room_bytes and not self.refusing

    def take(self, count: int) -> bool:
        if self.refusing or count >= self.room_bytes:
            return False
        self.room_bytes -= count
        return True

    def spend(self, count: int) -> None:
        self.room_bytes -= count

    def ran_out(self, count: int, now: float) -> str | None:
        """Refuse appends until `count` bytes fit. Returns a log line if they were not refused before."""
        if self.refusing:
            self._wanted = max(self._wanted, count)
            return None
        return self._begin_refusing(count, now)

    def refusal(self, what: str) -> RequestRefusal:
        return RequestRefusal(
            ErrorCode.NO_SPACE,
            f"no space for {what} above the reserve of {self._reserve} bytes; nothing was written",
        )

    def _begin_refusing(self, count: int, now: float) -> str:
        self.refusing, self._wanted, self._since = True, count, now
        return (
            f"appends are refused: about {max(self.room_bytes, 0)} bytes are free above the reserve of"
            f" {self._reserve} bytes, which is kept for claims, removals and restarts; free space on the disk"
        )


# --- The tables --------------------------------------------------------------------------------------------


REFUSALS: Final = {
    v.DiskFailure.NO_SPACE: ErrorCode.NO_SPACE,
    v.DiskFailure.TEMPORARY: ErrorCode.BUSY,
    v.DiskFailure.FAILED: ErrorCode.POISONED,
}
"""The error code for a request that the disk did not carry out."""


_SELDOM_S: Final = 60.0
_SELDOM_LINES_MAX: Final = 1_024


class Seldom:
    """What is to be logged at most once a minute: a client that is refused asks again and again."""

    def __init__(self) -> None:
        self._at_s: dict[tuple[str, str], float] = {}
        self._left_out: dict[tuple[str, str], int] = {}

    def line(self, host: str, text: str, now_s: float) -> str:
        what = host, text
        if now_s - self._at_s.get(what, -_SELDOM_S) < _SELDOM_S:
            self._left_out[what] = self._left_out.get(what, 0) + 1
            return ""
        self._at_s.pop(what, None)
        self._at_s[what] = now_s
        count = self._left_out.pop(what, 0)
        if len(self._at_s) > _SELDOM_LINES_MAX:
            oldest = next(iter(self._at_s))  # what was logged longest ago
            del self._at_s[oldest]
            self._left_out.pop(oldest, None)
        return f"{text} ({count} times more since the last such line)" if count else text


class RequestTarget(NamedTuple):
    directory: DirectoryState
    state: ObjectState


class Tables:
    """The shared state of one server core.

    `touched`: objects with accepted appends that are not yet passed to the disk. `unacknowledged`: objects
    with written bytes that no durability ack has reported, and when one is due. `openings`: CWDs that wait
    for a directory to load. `opened`, `settled`: sessions whose CWD was answered, or that may now quit.
    `untranslated`: messages to version 0 sessions. `object_version`: of new objects, above that of every
    removed one. `damaged_names`: directories known to hold a damaged object. `later`: effects to retry, with
    their times.
    """

    def __init__(
        self,
        server_id: bytes,
        incarnation_id: bytes,
        record: bytes,
        tokens: Tokens,
        directory_names: set[str],
        damaged_names: set[str],
        reserve_bytes: int | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.server_id = server_id
        self._incarnation_id, self._roots = incarnation_id, 0
        self.tokens = tokens
        self.record_bytes = record
        self.record: StoreRecord | None = decode_store_record(record) if record else None
        self.directory_names = NameTable(directory_names)
        self.sessions: dict[int, Session] = {}
        self.directories: dict[str, DirectoryState] = {}
        self.effects: list[v.Effect] = []
        self.touched: dict[ObjectState, DirectoryState] = {}
        self.unacknowledged: dict[ObjectState, float] = {}
        self.waiting = WaitingReads()
        self.openings = self.claims_stored = 0
        self.opened: list[Session] = []
        self.settled: list[Session] = []
        self.repairs: dict[int, RepairInProgress] = {}
        self.untranslated: list[tuple[Session, m.Message, Sequence[Buffer]]] = []
        self.object_version = 0
        self.space = DiskSpace(reserve_bytes)
        self.quotas = quotas or Quotas()
        self.in_flight = InFlight()
        self.scrubbed: str | None = None
        self.damaged_names = damaged_names
        self.later: list[tuple[float, v.Effect]] = []
        self.now = 0.0
        self._seldom = Seldom()
        self.log: GroupLog | None = None

    def send(
        self, session: Session, message: m.Message, request_id: int = 0, rest: Sequence[Buffer] = ()
    ) -> None:
        if session.closed:
            return
        if session.version == 0:
            self.untranslated.append((session, message, rest))
        else:
            self.effects.append(v.Send(session.number, message, request_id, rest))

    def again(self, effect: v.Effect) -> None:
        """Retry an effect after a delay. Only for effects whose failure has a temporary cause."""
        self.later.append((self.now + again_seconds, effect))

    def tick(self) -> None:
        due = [effect for at, effect in self.later if at <= self.now]
        if due:
            self.later = [one for one in self.later if one[0] > self.now]
            self.effects += due

    def refuse(self, session: Session, code: ErrorCode, text: str, request_id: int, actual: int = 0) -> None:
        verdict = VERDICTS[code]
        record = self.record_bytes if verdict.blame is Blame.STORE else b""
        text = text[: wire.text_bytes_max // 4]
        self.send(session, m.Error(int(code), text, verdict.remedy, actual, record), request_id)
        if code in CLOSING:
            self.effects.append(v.LogReason(session.number, text))
            self.close(session)

    def forbid(self, session: Session, reason: str, request_id: int) -> None:
        self.audit_seldom(session, f"refused: {reason}")
        self.refuse(session, ErrorCode.FORBIDDEN, reason, request_id)

    def close(self, session: Session) -> None:
        """End the session. Its connection closes after everything sent before has left."""
        if not session.closed:
            self.detach(session)
            self.effects.append(v.CloseSession(session.number))

    def detach(self, session: Session) -> None:
        """Remove the session from every table. Requests accepted from it are still carried out."""
        self.leave_directory(session)
        if session.opening is not None:
            target = self.directories.get(session.opening)
            if target is not None:
                self.openings -= target.forget_opening(session)
            self.quotas.move(session.opening, None)
            session.opening = None
        self.waiting.take_of_session(session.number)
        session.deferred.clear()
        self.end_stream(session)
        session.move(SessionEvent.ENDED)

    def leave_directory(self, session: Session) -> None:
        directory = self.directories.get(session.directory) if session.directory else None
        if directory is not None:
            directory.leave(session)
        self.quotas.move(session.directory, None)
        self.drop_repair(session.number)
        session.directory = None
        session.wrote = False

    def end_stream(self, session: Session) -> None:
        if session.stream is not None:
            session.stream.appender = None
            session.stream = None

    def drop_repair(self, session: int) -> None:
        repair = self.repairs.get(session)
        if repair is None:
            return
        if repair.busy:
            repair.orphan = True
        else:
            del self.repairs[session]
            self.effects.append(v.DropRepair(session, repair.directory, repair.name, repair.number))

    def directory_of(self, session: Session, request_id: int) -> DirectoryState | None:
        directory = self.directories.get(session.directory) if session.directory else None
        if directory is None:
            self.refuse(session, ErrorCode.NOT_READY, "no directory is open: send CWD first", request_id)
        return directory

    def target(self, session: Session, name: str, request_id: int) -> RequestTarget | None:
        directory = self.directory_of(session, request_id)
        if directory is None or not self.accepts_name(session, name, request_id):
            return None
        state = directory.objects.get(name)
        if state is None or not state.exists:
            text = f"no object {name} in {directory.name}"
            self.refuse(session, ErrorCode.NOT_FOUND, text, request_id)
            return None
        return RequestTarget(directory, state)

    def new_object(self, directory: DirectoryState, name: str) -> ObjectState:
        """Return an object that does not exist yet. It counts after it is in its directory's table."""
        return ObjectState(directory.name, name, fresh_root=self.fresh_root(), version=self.object_version)

    def recovered_object(
        self, directory: str, name: str, found: RecoveredObject, version: int
    ) -> ObjectState:
        return ObjectState(directory, name, fresh_root=self.fresh_root(), found=found, version=version)

    def fresh_root(self) -> int:
        self._roots += 1
        return fresh_root(self._incarnation_id, self._roots)

    def find(self, directory_name: str, name: str) -> ObjectState | None:
        directory = self.directories.get(directory_name)
        return directory.objects.get(name) if directory else None

    def accepts_name(self, session: Session, name: str, request_id: int) -> bool:
        if is_name(name):
            return True
        text = f"invalid name {name[:40]!a}, {len(name)} characters long"
        self.refuse(session, ErrorCode.BAD_NAME, text, request_id)
        return False

    def reserve_space(self, state: ObjectState, count: int) -> RequestRefusal | None:
        """Reserve space for that many more bytes, and count them; or return which limit refuses them."""
        directory = self.directories[state.directory]
        new = state.name not in directory.objects
        refusal = self.quotas.refuses(state.directory, count, new)
        if refusal is None and not directory.exists:
            refusal = self.reserve_directory(directory)
        if refusal is not None:
            return refusal
        wanted = cost(count, new_file=not state.exists)
        if self.space.take(wanted):
            self.quotas.add(state.directory, count, new)
            return None
        self.warn(self.space.ran_out(wanted, self.now))
        return self.space.refusal(state.name)

    def reserve_directory(self, directory: DirectoryState) -> RequestRefusal | None:
        refusal = self.quotas.refuses_directory(directory.name)
        if refusal is not None:
            return refusal
        # The reserve is for directories that exist: their claims must not fail because others make more.
        if not self.space.take(new_directory_bytes):
            self.warn(self.space.ran_out(new_directory_bytes, self.now))
            return self.space.refusal(f"the new directory {directory.name}")
        self.quotas.count_directory(directory.name, exists=True)
        return None

    def audit(self, session: Session, action: str) -> None:
        self.effects.append(v.Audit(session.number, session.access.name, action))

    def audit_seldom(self, session: Session, action: str) -> None:
        """Log an action at most once a minute for each host, with the number of those left out."""
        if line := self._seldom.line(session.host, action, self.now):
            self.audit(session, line)

    def warn(self, text: str | None) -> None:
        if text is not None:
            self.effects.append(v.LogNotice(text))

    def answerable(self, number: int, *, read: bool = False) -> Session | None:
        session = self.sessions.get(number)
        if session is not None:
            # Also of a session that is leaving: it ends when its last request is answered.
            session.pending -= 1
            session.reading -= read
            if session.leaving:
                self.settled.append(session)
        return session

    @property
    def objects(self) -> int:
        return sum(len(one.objects) for one in self.directories.values())

    @property
    def _loading(self) -> int:
        return sum(
            one.loading is LoadState.LOADING and one.name in self.directory_names
            for one in self.directories.values()
        )

    @property
    def _objects_max_to_load(self) -> int:
        return objects_in_use_max - (1 + self._loading) * wire.entries_max

    @property
    def opens_many(self) -> bool:
        """Whether a further CWD should wait for the directories that are being loaded."""
        # All CWDs that wait for a directory are answered in one event, so their number bounds the memory for
        # answers. And a directory that does not fit beside full ones fits when their sizes are known.
        return self.openings >= openings_max or (
            self._loading > 0 and self.objects > self._objects_max_to_load
        )

    def refuses_directory(self, name: str) -> RequestRefusal | None:
        """Return why another directory, which may be full, does not fit in memory, without idle ones; None if
        it does.
        """
        objects_max = self._objects_max_to_load
        self.forget_idle(objects_max)
        if self.objects <= objects_max:
            return None
        text = f"{name} cannot be opened: directories in use hold {self.objects} objects, and it may hold"
        return RequestRefusal(ErrorCode.BUSY, f"{text} {wire.entries_max}; the limit is {objects_in_use_max}")

    def refuses_object(self, directory: DirectoryState) -> RequestRefusal | None:
        if len(directory.objects) >= wire.entries_max:
            text = f"a directory holds at most {wire.entries_max} objects"
            return RequestRefusal(ErrorCode.NO_SPACE, text, wire.entries_max)
        if self.objects >= objects_in_use_max:
            text = f"directories in use hold {objects_in_use_max} objects, which is the limit"
            return RequestRefusal(ErrorCode.BUSY, text, objects_in_use_max)
        return None

    def forget_idle(self, objects_max: int = objects_loaded_max) -> None:
        """Drop idle directories from memory, oldest first, while the limits are exceeded."""
        directories = self.directories
        total = self.objects
        for directory in list(directories.values()):
            if len(directories) <= directories_loaded_max and total <= objects_max:
                return
            if self.is_idle(directory) and directory.name != self.scrubbed:
                total -= len(directory.objects)
                self.forget(directory)

    def has_damage(self, name: str) -> bool:
        directory = self.directories.get(name)
        if directory is None or directory.loading is LoadState.LOADING:
            return name in self.damaged_names
        return directory.loading is LoadState.BROKEN or any(one.damaged for one in directory.objects.values())

    def is_idle(self, directory: DirectoryState) -> bool:
        return directory.idle and all(repair.directory != directory.name for repair in self.repairs.values())

    def forget(self, directory: DirectoryState) -> None:
        if self.has_damage(directory.name):
            self.damaged_names.add(directory.name)
        else:
            self.damaged_names.discard(directory.name)
        for state in directory.objects.values():
            self.unacknowledged.pop(state, None)
        del self.directories[directory.name]
        self.effects.append(v.ForgetDirectory(directory.name))
