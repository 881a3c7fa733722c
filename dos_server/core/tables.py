"""The tables that all parts of the core share, and the queue of effects.

Lookup, answering, refusing and closing belong here. No request is decided here.
"""

from typing import Final, NamedTuple

from dos_protocol import limits as wire
from dos_protocol import messages as m
from dos_protocol.errors import CLOSING, VERDICTS, Blame, ErrorCode
from dos_protocol.messages import SessionEvent
from dos_protocol.names import is_name
from dos_protocol.store_record import StoreRecord, decode_store_record
from dos_server.core import scrub_reads
from dos_server.core import vocabulary as v
from dos_server.core.access import Tokens
from dos_server.core.attempts import Seldom
from dos_server.core.directory_state import DirectoryState, LoadState
from dos_server.core.files.extent import fresh_root
from dos_server.core.in_flight import InFlight
from dos_server.core.logged import GroupLog
from dos_server.core.name_table import NameTable
from dos_server.core.object_state import ObjectState
from dos_server.core.pending import AppendRefusal
from dos_server.core.quotas import Quotas
from dos_server.core.recovery_scan import RecoveredObject
from dos_server.core.repair import RepairInProgress
from dos_server.core.session import Session
from dos_server.core.space import DiskSpace, cost
from dos_server.core.waiting import WaitingReads
from dos_server.limits import (
    again_seconds,
    directories_loaded_max,
    new_directory_bytes,
    objects_in_use_max,
    objects_loaded_max,
    openings_max,
)

REFUSALS: Final = {
    v.DiskFailure.NO_SPACE: ErrorCode.NO_SPACE,
    v.DiskFailure.TEMPORARY: ErrorCode.BUSY,
    v.DiskFailure.FAILED: ErrorCode.POISONED,
}
"""The error code for a request that the disk did not carry out."""


class RequestTarget(NamedTuple):
    """The object that a request names, and its directory."""

    directory: DirectoryState
    state: ObjectState


class Tables:
    """The shared state of one server core.

    `effects`: effects of the current event, in order. `touched`: objects with accepted appends that are not
    yet passed to the disk.
    `unacknowledged`: objects with written bytes that no durability ack has reported, and when one is due.
    `claims_stored`: number of claims that were stored.
    `openings`: number of CWDs that wait for a directory to load. `opened`, `settled`: sessions whose CWD was
    answered, or that may now quit.
    `untranslated`: messages to version 0 sessions that are not yet translated.
    `object_version`: version of objects created from now on, above that of every removed object.
    `scrubbed`: the directory that is being scrubbed.
    `damaged_names`: directories known to hold a damaged object, for directories that are not in memory.
    `later`: effects to retry, with their times. `log`: the group log, None without one.
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
        self.untranslated: list[tuple[Session, m.Message]] = []
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

    def send(self, session: Session, message: m.Message, request_id: int = 0) -> None:
        """Send a message to the session, unless it is closed."""
        if session.closed:
            return
        if session.version == 0:
            self.untranslated.append((session, message))
        else:
            self.effects.append(v.Send(session.number, message, request_id))

    def again(self, effect: v.Effect) -> None:
        """Retry an effect after a delay. Only for effects whose failure has a temporary cause."""
        self.later.append((self.now + again_seconds, effect))

    def tick(self) -> None:
        """Emit the retried effects that are due."""
        due = [effect for at, effect in self.later if at <= self.now]
        if due:
            self.later = [one for one in self.later if one[0] > self.now]
            self.effects += due

    def refuse(self, session: Session, code: ErrorCode, text: str, request_id: int, actual: int = 0) -> None:
        """Answer with an ERROR, and close the session if the code requires it."""
        verdict = VERDICTS[code]
        record = self.record_bytes if verdict.blame is Blame.STORE else b""
        text = text[: wire.text_bytes_max // 4]
        self.send(session, m.Error(int(code), text, verdict.remedy, actual, record), request_id)
        if code in CLOSING:
            self.effects.append(v.LogReason(session.number, text))
            self.close(session)

    def forbid(self, session: Session, reason: str, request_id: int) -> None:
        """Answer that the session's token does not grant a request."""
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
        """Remove the session from its directory, because it opens another one or has ended."""
        directory = self.directories.get(session.directory) if session.directory else None
        if directory is not None:
            directory.leave(session)
        self.quotas.move(session.directory, None)
        self.drop_repair(session.number)
        session.directory = None
        session.wrote = False

    def end_stream(self, session: Session) -> None:
        """Release the object that the version 0 session appends to."""
        if session.stream is not None:
            session.stream.appender = None
            session.stream = None

    def drop_repair(self, session: int) -> None:
        """Discard the new copy that the session sends, unless it is being installed."""
        repair = self.repairs.get(session)
        if repair is None:
            return
        if repair.busy:
            repair.orphan = True
        else:
            del self.repairs[session]
            self.effects.append(v.DropRepair(session, repair.directory, repair.name, repair.number))

    def directory_of(self, session: Session, request_id: int) -> DirectoryState | None:
        """Return the session's directory, or None after refusing with NOT_READY."""
        directory = self.directories.get(session.directory) if session.directory else None
        if directory is None:
            self.refuse(session, ErrorCode.NOT_READY, "no directory is open: send CWD first", request_id)
        return directory

    def target(self, session: Session, name: str, request_id: int) -> RequestTarget | None:
        """Return the object that the request names, or None after refusing."""
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
        """Return an object as it was found on the disk."""
        return ObjectState(directory, name, fresh_root=self.fresh_root(), found=found, version=version)

    def fresh_root(self) -> int:
        """Return a root that no object had before."""
        self._roots += 1
        return fresh_root(self._incarnation_id, self._roots)

    def find(self, directory_name: str, name: str) -> ObjectState | None:
        """Return the object if it is in memory."""
        directory = self.directories.get(directory_name)
        return directory.objects.get(name) if directory else None

    def accepts_name(self, session: Session, name: str, request_id: int) -> bool:
        """Return whether the name matches the grammar; refuse with BAD_NAME otherwise."""
        if is_name(name):
            return True
        text = f"invalid name {name[:40]!a}, {len(name)} characters long"
        self.refuse(session, ErrorCode.BAD_NAME, text, request_id)
        return False

    def reserve_space(self, state: ObjectState, count: int) -> AppendRefusal | None:
        """Reserve space for that many more bytes, and count them; or return which quota refuses them, or that
        there is none above the reserve.
        """
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

    def reserve_directory(self, directory: DirectoryState) -> AppendRefusal | None:
        """Reserve space for a directory that does not exist, and count it; or return what refuses it. The
        reserve is for directories that exist: their claims must not fail because others make more.
        """
        refusal = self.quotas.refuses_directory(directory.name)
        if refusal is not None:
            return refusal
        if not self.space.take(new_directory_bytes):
            self.warn(self.space.ran_out(new_directory_bytes, self.now))
            return self.space.refusal(f"the new directory {directory.name}")
        self.quotas.count_directory(directory.name, exists=True)
        return None

    def audit(self, session: Session, action: str) -> None:
        """Log what a session has changed or was refused, for an operator."""
        self.effects.append(v.Audit(session.number, session.access.name, action))

    def audit_seldom(self, session: Session, action: str) -> None:
        """Log an action at most once a minute for each host, with the number of those left out: a client may
        repeat it at once.
        """
        if line := self._seldom.line(session.host, action, self.now):
            self.audit(session, line)

    def warn(self, text: str | None) -> None:
        """Log the text, if there is one."""
        if text is not None:
            self.effects.append(scrub_reads.LogNotice(text))

    def answerable(self, number: int, *, read: bool = False) -> Session | None:
        """Return the session whose pending request is about to be answered, if it still exists."""
        session = self.sessions.get(number)
        if session is not None:
            session.pending -= 1
            session.reading -= read
            if session.leaving:
                self.settled.append(session)
        return session

    @property
    def objects(self) -> int:
        """The number of objects in memory."""
        return sum(len(one.objects) for one in self.directories.values())

    @property
    def _loading(self) -> int:
        """The number of directories that are being loaded and may have objects."""
        return sum(
            one.loading is LoadState.LOADING and one.name in self.directory_names
            for one in self.directories.values()
        )

    @property
    def _objects_max_to_load(self) -> int:
        """With how many objects in memory another directory fits, if all that are being loaded are full."""
        return objects_in_use_max - (1 + self._loading) * wire.entries_max

    @property
    def opens_many(self) -> bool:
        """Whether a further CWD should wait for the directories that are being loaded.

        All CWDs that wait for a directory are answered in one event, so their number bounds the memory for
        answers. And a directory that does not fit beside those, if they are full, fits when their sizes are
        known.
        """
        return self.openings >= openings_max or (
            self._loading > 0 and self.objects > self._objects_max_to_load
        )

    def refuses_directory(self, name: str) -> AppendRefusal | None:
        """Return why another directory, which may be full, does not fit in memory; None if it does.

        Idle directories are dropped from memory first.
        """
        objects_max = self._objects_max_to_load
        self.forget_idle(objects_max)
        if self.objects <= objects_max:
            return None
        text = f"{name} cannot be opened: directories in use hold {self.objects} objects, and it may hold"
        return AppendRefusal(ErrorCode.BUSY, f"{text} {wire.entries_max}; the limit is {objects_in_use_max}")

    def refuses_object(self, directory: DirectoryState) -> AppendRefusal | None:
        """Return why no further object can be created in the directory, or None."""
        if len(directory.objects) >= wire.entries_max:
            text = f"a directory holds at most {wire.entries_max} objects"
            return AppendRefusal(ErrorCode.NO_SPACE, text, wire.entries_max)
        if self.objects >= objects_in_use_max:
            text = f"directories in use hold {objects_in_use_max} objects, which is the limit"
            return AppendRefusal(ErrorCode.BUSY, text, objects_in_use_max)
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
        """Return whether a copy in the directory is known to be damaged or poisoned."""
        directory = self.directories.get(name)
        if directory is None or directory.loading is LoadState.LOADING:
            return name in self.damaged_names
        return directory.loading is LoadState.BROKEN or any(one.damaged for one in directory.objects.values())

    def is_idle(self, directory: DirectoryState) -> bool:
        """Return whether no session uses the directory and no new copy is being sent to it."""
        return directory.idle and all(repair.directory != directory.name for repair in self.repairs.values())

    def forget(self, directory: DirectoryState) -> None:
        """Drop the directory from memory. The next CWD loads it again."""
        if self.has_damage(directory.name):
            self.damaged_names.add(directory.name)
        else:
            self.damaged_names.discard(directory.name)
        for state in directory.objects.values():
            self.unacknowledged.pop(state, None)
        del self.directories[directory.name]
        self.effects.append(v.ForgetDirectory(directory.name))
