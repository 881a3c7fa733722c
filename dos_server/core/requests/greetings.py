"""Requests about the session and the store: HELLO, CONFIGURE, PING. Objects are not known here.

A host that sends several wrong tokens is answered later and later, which keeps a program that tries, or that
is configured wrongly, from using up the server and its log. Right tokens are never delayed.
"""

from typing import Final, NamedTuple

from msgspec import structs

from dos_protocol import limits as wire
from dos_protocol import messages as m
from dos_protocol.errors import CorruptDataError, ErrorCode
from dos_protocol.messages import SessionEvent, SessionState
from dos_protocol.names import NO_ID, id_text
from dos_protocol.store_record import StoreRecord, decode_store_record, encode_witnessed
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import Session
from dos_server.core.requests.stamps import Stamps
from dos_server.core.tables import Tables
from dos_server.limits import in_flight_bytes_max

_FREE: Final = 3
"""So many wrong tokens are answered at once."""
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 2.0
"""Shorter than the time that a client may take for its HELLO, and than what clients wait for an answer: they
shall know the reason."""
_FORGOTTEN_S: Final = 60.0
_HOSTS_MAX: Final = 1_024


class HeldRefusal(NamedTuple):
    at_s: float
    session: int
    request_id: int


class Attempts:
    """The wrong tokens of each host in the last minute, and the refusals that wait: one at most of each
    connection.
    """

    def __init__(self) -> None:
        self._failed: dict[str, tuple[int, float]] = {}
        """Host -> how many, and when the last one was."""
        self._held: dict[int, HeldRefusal] = {}
        """By the number of the session."""

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def failed(self, host: str, now_s: float) -> float | None:
        """Note a wrong token. Return when it is to be refused; None: at once."""
        before, at_s = self._failed.pop(host, (0, now_s))
        count = 1 if now_s - at_s > _FORGOTTEN_S else before + 1
        self._failed[host] = count, now_s
        if len(self._failed) > _HOSTS_MAX:
            del self._failed[next(iter(self._failed))]  # the one that failed longest ago
        if count <= _FREE:
            return None
        return now_s + min(_FIRST_S * 2.0 ** min(count - _FREE - 1, 10), _LONGEST_S)

    def hold(self, refusal: HeldRefusal) -> None:
        self._held[refusal.session] = refusal

    def ended(self, session: int) -> None:
        self._held.pop(session, None)

    def due(self, now_s: float) -> list[HeldRefusal]:
        due = [one for one in self._held.values() if one.at_s <= now_s]
        for one in due:
            del self._held[one.session]
        return due


class Greetings:
    def __init__(self, tables: Tables, stamps: Stamps) -> None:
        self._tables, self._stamps = tables, stamps
        self._storing_record = False
        self._attempts = Attempts()

    def hello(self, session: Session, hello: m.Hello, request_id: int) -> None:
        tables = self._tables
        if session.state is not SessionState.NEW:
            tables.refuse(session, ErrorCode.BAD_FRAME, "HELLO was already received", request_id)
            return
        if hello.version != wire.PROTOCOL_VERSION:
            text = f"version {hello.version} is not supported; this server speaks {wire.PROTOCOL_VERSION}"
            tables.refuse(session, ErrorCode.BAD_VERSION, text, request_id)
            return
        access = tables.tokens.find(hello.token)
        if access is None:
            self._wrong_token(session, request_id)
            return
        session.access = access
        problem = self._hello_problem(hello)
        if problem is not None:
            tables.refuse(session, *problem, request_id)
            return
        session.store_id, session.generation = hello.store_id, hello.generation
        session.move(SessionEvent.WELCOMED)
        welcome = m.Welcome(
            wire.PROTOCOL_VERSION,
            tables.server_id,
            wire.payload_bytes_max,
            in_flight_bytes_max,
            wire.entries_max,
            tables.record_bytes,
            rolled_back=self.rolled_back,
            refuses_appends=tables.space.refusing,
        )
        if hello.store_id != NO_ID:
            number, stamp_id = self._stamps.history.newest
            witnessed = encode_witnessed(self._stamps.witnessed)
            welcome = structs.replace(welcome, stamp_number=number, stamp_id=stamp_id, witnessed=witnessed)
        tables.send(session, welcome, request_id)

    def _wrong_token(self, session: Session, request_id: int) -> None:
        self._tables.audit_seldom(session, "sent a token that is missing, wrong, expired or revoked")
        at = self._attempts.failed(session.host, self._tables.now)
        if at is None:
            self._refuse_token(session, request_id)
            return
        session.leaving = True  # nothing of it is executed any more
        session.pending += 1
        self._attempts.hold(HeldRefusal(at, session.number, request_id))

    def _refuse_token(self, session: Session, request_id: int) -> None:
        text = "the token is missing, wrong, expired or revoked"
        self._tables.refuse(session, ErrorCode.UNAUTHORISED, text, request_id)

    def ended(self, session: int) -> None:
        self._attempts.ended(session)

    @property
    def rolled_back(self) -> bool:
        return self._stamps.problem() is not None

    @property
    def wants_tick(self) -> bool:
        return self._attempts.holds

    def tick(self) -> None:
        for held in self._attempts.due(self._tables.now):
            session = self._tables.sessions.get(held.session)
            if session is not None:
                self._refuse_token(session, held.request_id)

    def tokens_changed(self, event: v.TokensChanged) -> None:
        """Continue with other tokens. Sessions whose token is gone end."""
        tables = self._tables
        before, names = tables.tokens.names, event.tokens.names
        for what, changed in (("added", names - before), ("removed", before - names)):
            for name in sorted(changed):
                tables.effects.append(v.Audit(0, name, f"{what} this token"))
        tables.tokens = event.tokens
        for session in [*tables.sessions.values()]:
            if session.closed or session.state is SessionState.NEW:
                continue
            access = event.tokens.renewed(session.access)
            if access is None:
                text = f"token {session.access.name!r} was revoked, or has expired"
                tables.refuse(session, ErrorCode.UNAUTHORISED, text, 0)
            else:
                session.access = access

    def _hello_problem(self, hello: m.Hello) -> tuple[ErrorCode, str] | None:
        tables, record = self._tables, self._tables.record
        if hello.store_id == NO_ID:
            return None
        # A server of another store, of another generation, or that is no member refuses: its answers would
        # not count.
        if record is None or record.store_id != hello.store_id:
            held = "no store" if record is None else id_text(record.store_id)
            return (
                ErrorCode.WRONG_STORE,
                f"store {id_text(hello.store_id)} was requested; this server belongs to {held}",
            )
        if record.generation != hello.generation:
            text = f"generation {hello.generation} was requested; this server has {record.generation}"
            return ErrorCode.STALE_GENERATION, text
        if not record.names(tables.server_id):
            return (
                ErrorCode.NOT_A_MEMBER,
                f"server {id_text(tables.server_id)} is not a member in the store record",
            )
        older = self._stamps.problem()
        return None if older is None else (ErrorCode.ROLLED_BACK, older)

    def configure(self, session: Session, request: m.Configure, request_id: int) -> None:
        tables = self._tables
        try:
            record = decode_store_record(request.store_record)
        except CorruptDataError as error:
            tables.refuse(session, ErrorCode.BAD_FRAME, str(error), request_id)
            return
        held = tables.record
        if held is None and not record.names(tables.server_id):
            text = f"server {id_text(tables.server_id)} is not a member in the offered store record"
            tables.refuse(session, ErrorCode.NOT_A_MEMBER, text, request_id)
        elif held is not None and held.store_id != record.store_id:
            text = f"this server is in store {id_text(held.store_id)}, not {id_text(record.store_id)}"
            tables.refuse(session, ErrorCode.WRONG_STORE, text, request_id)
        elif held is not None and request.store_record == tables.record_bytes:
            tables.send(session, m.Configured(record.generation), request_id)
        elif held is not None and held.generation >= record.generation:
            text = f"generation {record.generation} was offered; this server has {held.generation}"
            tables.refuse(session, ErrorCode.STALE_GENERATION, text, request_id)
        elif self._storing_record:  # two at once could reach the disk in the wrong order
            tables.refuse(session, ErrorCode.BUSY, "another store record is being stored", request_id)
        else:
            self._storing_record = True
            session.pending += 1
            tables.effects.append(v.WriteStoreRecord(session.number, request_id, request.store_record))

    def record_stored(self, effect: v.WriteStoreRecord, failure: v.DiskFailure) -> None:
        tables = self._tables
        self._storing_record = False
        session = tables.answerable(effect.session)
        if failure is not v.DiskFailure.NONE:
            if session is not None:
                text = f"the store record could not be stored durably: {failure.value}"
                code = ErrorCode.BUSY if failure is v.DiskFailure.TEMPORARY else ErrorCode.NO_SPACE
                tables.refuse(session, code, text, effect.request_id)
            return
        offered = decode_store_record(effect.record)
        if tables.record is None or offered.generation > tables.record.generation:
            # After the record is stored: a server that forgot a generation would count in an old quorum.
            tables.record, tables.record_bytes = offered, effect.record
            self._end_older_generations(offered)
        if session is not None:
            tables.audit(session, f"stored generation {offered.generation} of the store record")
            tables.send(session, m.Configured(offered.generation), effect.request_id)

    def _end_older_generations(self, record: StoreRecord) -> None:
        # Their quorums would count members that no longer count.
        for other in list(self._tables.sessions.values()):
            if other.store_id != NO_ID and not other.closed and other.generation < record.generation:
                text = f"this server now has generation {record.generation} of its store record"
                self._tables.refuse(other, ErrorCode.STALE_GENERATION, text, 0)

    def ping(self, session: Session, request: m.Ping, request_id: int) -> None:
        if len(request.payload) > wire.ping_bytes_max:
            text = f"a ping carries at most {wire.ping_bytes_max} bytes"
            self._tables.refuse(session, ErrorCode.TOO_LARGE, text, request_id, wire.ping_bytes_max)
        else:
            self._tables.send(session, m.Pong(bytes(request.payload)), request_id)
