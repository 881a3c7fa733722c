"""The stamps of this server's disk, and the stamps of other members that this server witnesses.

Two small files, each replaced whole. The stamps are numbered from the first one on without a gap. *Missing*:
a stamp that another member witnessed and this disk lacks. If there is one, the disk is permanently an older
copy of itself.

The second half of a stamp's id is a MAC with the key of the disk, so clients cannot invent a stamp that the
disk lacks (docs/decisions/0258). *Proven*: no newer copy of this disk has another key. Until then a stamp
that the disk lacks counts against it whatever its MAC is: a newer copy may have made it.
"""

import hashlib
import hmac
import struct
from collections import deque
from typing import Final, NamedTuple

from dos_protocol import messages as m
from dos_protocol.errors import VERDICTS, CorruptDataError, ErrorCode
from dos_protocol.limits import id_bytes
from dos_protocol.names import NO_ID, id_text
from dos_protocol.sealed import RESERVED, SealedField, SealedLayout
from dos_protocol.store_record import NO_STAMP, DiskStamp, decode_witnessed, encode_witnessed
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import Session
from dos_server.core.files.records import STAMPS, WITNESSED
from dos_server.core.tables import REFUSALS, Tables
from dos_server.limits import stamp_seconds, stamps_kept_max

_HINT: Final = "replace the server: it is unknown whether its disk is current"
STAMPS_LAYOUT: Final = SealedLayout(
    "stamps",
    b"\xd0\x48",
    SealedField("proven", "B", 1, "0 or 1"),
    SealedField("key", "16s", note="secret, of the MACs"),
    SealedField("missing number", "Q", note="0: none"),
    SealedField("missing id", "16s"),
    SealedField("number of the first", "Q"),
    SealedField("count", "H"),
    rest="that many ids of 16 bytes with consecutive numbers",
    remedy=_HINT,
)
WITNESSED_LAYOUT: Final = SealedLayout(
    "witnessed", b"\xd0\x57", RESERVED, rest="entries as in WELCOME", remedy=_HINT
)
_NUMBER: Final = struct.Struct(">Q")
_KEY_BYTES: Final = 16
_MAC_BYTES: Final = id_bytes // 2
NO_KEY: Final = NO_ID
NO_STAMPS: Final = "the history of this disk begins anew, and a member that knows a stamp of it refuses it"
"""What it means if a member of a store has neither file."""


class StampFiles(NamedTuple):
    stamps: bytes = b""
    witnessed: bytes = b""


NO_FILES: Final = StampFiles()


class History(NamedTuple):
    """The stamps of a disk, at most the latest `stamps_kept_max`. `first`: the number of the oldest.
    `missing`, `proven`: see above. `key`: of the MACs; NO_KEY: a disk that is new.
    """

    first: int = 1
    ids: tuple[bytes, ...] = ()
    missing: DiskStamp = NO_STAMP
    key: bytes = NO_KEY
    proven: bool = False

    @property
    def newest(self) -> DiskStamp:
        return DiskStamp(self.first + len(self.ids) - 1, self.ids[-1]) if self.ids else NO_STAMP

    def keyed(self, fresh: bytes, *, is_new: bool) -> "History":
        """Return the history with a key, made from 16 random bytes if it has none. is_new: no other copy of
        the disk exists.
        """
        if self.key != NO_KEY:
            return self
        key = hashlib.blake2b(fresh, digest_size=_KEY_BYTES, person=b"dos stamp key").digest()
        return self._replace(key=key, proven=is_new)

    def made(self, server_id: bytes, fresh: bytes) -> "History":
        """Return the history with one more stamp: a random half, of 16 random bytes, and its MAC."""
        half = hashlib.blake2b(fresh, digest_size=id_bytes - _MAC_BYTES, person=b"dos stamp id").digest()
        number = self.first + len(self.ids)
        return self.grown(half + self._mac(server_id, number, half))

    def _mac(self, server_id: bytes, number: int, half: bytes) -> bytes:
        # With the number: otherwise a client could announce the id of a stamp that it knows under a number
        # that the disk has not reached.
        told = server_id + _NUMBER.pack(number) + half
        return hashlib.blake2b(told, digest_size=_MAC_BYTES, key=self.key, person=b"dos stamp mac").digest()

    def has_made(self, server_id: bytes, stamp: DiskStamp) -> bool:
        """Return whether this key made the stamp, on this disk or on another copy of it."""
        half, mac = stamp.stamp_id[:-_MAC_BYTES], stamp.stamp_id[-_MAC_BYTES:]
        return self.key != NO_KEY and hmac.compare_digest(mac, self._mac(server_id, stamp.number, half))

    def grown(self, stamp_id: bytes) -> "History":
        ids = (*self.ids, stamp_id)[-stamps_kept_max:]
        return self._replace(first=self.first + len(self.ids) + 1 - len(ids), ids=ids)

    def lacks(self, stamp: DiskStamp) -> bool:
        """Return whether the disk never had that stamp. False if it is older than all that are kept."""
        if stamp.number < self.first:
            return False
        index = stamp.number - self.first
        return index >= len(self.ids) or self.ids[index] != stamp.stamp_id


def encode_history(history: History) -> bytes:
    first, ids, missing, key, proven = history
    return STAMPS_LAYOUT.seal(proven, key, *missing, first, len(ids), rest=b"".join(ids))


def decode_history(data: bytes) -> History:
    values, rest = STAMPS_LAYOUT.open(data, STAMPS)
    proven, key, number, stamp_id, first, count = values
    if not first or len(rest) != count * id_bytes:
        raise STAMPS_LAYOUT.damage(STAMPS, 0, "a history of whole stamps", f"{len(data)} bytes")
    ids = tuple(rest[start : start + id_bytes] for start in range(0, len(rest), id_bytes))
    return History(first, ids, DiskStamp(number, stamp_id), key, bool(proven))


def history_of(stamps: bytes | None, witnessed: bytes | None) -> History:
    """Return the history that the two files show. None: the file is missing. Raises CorruptDataError."""
    if stamps is not None:
        return decode_history(stamps)
    # A disk gets `stamps` before `witnessed`, so one that has only `witnessed` has lost it.
    if witnessed is not None:
        raise CorruptDataError(STAMPS, 0, f"the stamps of this disk, beside {WITNESSED}", "no file", _HINT)
    return History()


def encode_witnesses(witnessed: dict[bytes, DiskStamp]) -> bytes:
    return WITNESSED_LAYOUT.seal(rest=encode_witnessed(witnessed))


def decode_witnesses(data: bytes) -> dict[bytes, DiskStamp]:
    rest = WITNESSED_LAYOUT.open(data, WITNESSED).rest
    try:
        return decode_witnessed(rest)
    except ValueError as error:
        raise WITNESSED_LAYOUT.damage(WITNESSED, 0, "whole entries", str(error)) from error


class Stamps:
    """Carries out STAMP and WITNESS. `history` and `witnessed` are as they are on stable storage."""

    def __init__(self, tables: Tables, incarnation_id: bytes, files: StampFiles) -> None:
        self._tables, self._incarnation_id = tables, incarnation_id
        self.history = decode_history(files.stamps) if files.stamps else History()
        self.witnessed = decode_witnesses(files.witnessed) if files.witnessed else {}
        self._stamped_at: float | None = None
        self._claims_stamped = 0
        """How many claims were stored when the newest stamp was ordered."""
        self._stamps_waiting: deque[tuple[int, m.Stamp, int]] = deque()
        self._storing: set[str] = set()
        self._verdict_waits = False
        self._member_being_stored = NO_ID
        self._waiting: deque[tuple[int, m.Witness, int]] = deque()

    def problem(self) -> str | None:
        """Return why no session of a store may begin here, if the disk went back in time; None otherwise."""
        missing = self.history.missing
        if not missing.number:
            return None
        return (
            f"the disk of server {id_text(self._tables.server_id)} went back in time: it lacks stamp"
            f" {missing.number} ({id_text(missing.stamp_id)}), which another member witnessed, and with it"
            " what was acknowledged since"
        )

    def stamp(self, session: Session, request: m.Stamp, request_id: int) -> None:
        """Compare the stamp with the history and answer the newest one; create a new one if that is old."""
        tables, announced = self._tables, DiskStamp(request.number, request.stamp_id)
        if session.store_id == NO_ID:
            tables.refuse(
                session,
                ErrorCode.UNSUPPORTED,
                "STAMP requires a session of a store: name the store in HELLO",
                request_id,
            )
        elif announced.number and self._went_back_before(session, announced):
            self._went_back(session, announced, request_id)
        elif STAMPS in self._storing and self._has_granted(announced):
            session.pending += 1
            self._stamps_waiting.append((session.number, request, request_id))
        elif self._is_due() or self._has_granted(announced):
            self._claims_stamped = tables.claims_stored
            unique = b"%s stamp %d" % (self._incarnation_id, self.history.newest.number)
            session.pending += 1
            self._stamped_at = tables.now
            grown = self.history.made(tables.server_id, unique)
            # On stable storage before it is reported: a crash could make a current disk look like one that
            # went back.
            self._store(session.number, request_id, STAMPS, encode_history(grown))
        else:
            tables.send(session, m.Stamped(*self.history.newest), request_id)

    def _went_back_before(self, session: Session, announced: DiskStamp) -> bool:
        history, server_id = self.history, self._tables.server_id
        is_ours = history.has_made(server_id, announced)
        if not history.lacks(announced):
            if is_ours and not history.proven:
                # Clients pass a stamp of this key on only after the disk had all stamps that others knew.
                self.history = history._replace(proven=True)
                self._store_verdict()
            return False
        if is_ours or not history.proven:
            return True
        # A lie of some client. The session may have it from another member, so it is served.
        self._tables.audit_seldom(session, "ignored: a stamp of this server that its disk never made")
        return False

    def _has_granted(self, announced: DiskStamp) -> bool:
        """Return whether a claim was stored since the newest stamp, and a client asks for a newer one."""
        # An older copy of the disk then lacks the stamp as it lacks the claim.
        return not announced.number and self._tables.claims_stored != self._claims_stamped

    def _is_due(self) -> bool:
        if self._stamped_at is None:
            self._stamped_at = self._tables.now  # the start has just created one
        late = self._tables.now - self._stamped_at >= stamp_seconds
        return late and STAMPS not in self._storing

    def _went_back(self, session: Session, announced: DiskStamp, request_id: int) -> None:
        """Record that the disk went back in time: no session of the store is served, even after a restart."""
        tables = self._tables
        self.history = self.history._replace(missing=announced)
        self._store_verdict()
        text = self.problem()
        assert text is not None
        remedy = VERDICTS[ErrorCode.ROLLED_BACK].remedy
        tables.warn(f"{text}. It no longer serves its store: {remedy}")
        tables.refuse(session, ErrorCode.ROLLED_BACK, text, request_id, announced.number)
        for other in list(tables.sessions.values()):
            if other.store_id != NO_ID and not other.closed:
                tables.refuse(other, ErrorCode.ROLLED_BACK, text, 0, announced.number)

    def witness(self, session: Session, request: m.Witness, request_id: int) -> None:
        """Keep another member's newest stamp, if `before` is the one kept until now."""
        tables, record = self._tables, self._tables.record
        if session.store_id == NO_ID or record is None or not record.names(request.server_id):
            text = f"server {id_text(request.server_id)} is not a member of this session's store"
            tables.refuse(session, ErrorCode.NOT_A_MEMBER, text, request_id)
            return
        if request.server_id == tables.server_id or not request.number:
            tables.refuse(
                session, ErrorCode.BAD_FRAME, "WITNESS requires a nonzero stamp of another server", request_id
            )
            return
        if WITNESSED in self._storing:
            session.pending += 1
            self._waiting.append((session.number, request, request_id))
            return
        if not self.history.ids:
            text = "the first stamp of this disk could not be stored, and no other is stored before it"
            tables.refuse(session, REFUSALS[v.DiskFailure.NO_SPACE], text, request_id)
            return
        held = self.witnessed.get(request.server_id, NO_STAMP)
        sent = DiskStamp(request.number, request.stamp_id)
        if held == sent or held != DiskStamp(request.before_number, request.before_id):
            tables.send(session, m.Witnessed(request.server_id, *held), request_id)
            return
        kept = {one: stamp for one, stamp in self.witnessed.items() if record.names(one)}
        session.pending += 1
        self._member_being_stored = request.server_id
        kept[request.server_id] = sent
        self._store(session.number, request_id, WITNESSED, encode_witnesses(kept))

    def _store_verdict(self) -> None:
        """Store what is known of the disk now. Two writes of one file must not run at once."""
        if STAMPS in self._storing:
            self._verdict_waits = True
        else:
            self._store(0, 0, STAMPS, encode_history(self.history))

    def _store(self, session: int, request_id: int, name: str, data: bytes) -> None:
        self._storing.add(name)
        self._tables.effects.append(v.WriteStamps(session, request_id, name, data))

    def stored(self, effect: v.WriteStamps, failure: v.DiskFailure) -> None:
        self._storing.discard(effect.name)
        if effect.name == WITNESSED:
            self._witnesses_stored(effect, failure)
            self._next_witness()
        else:
            self._history_stored(effect, failure)
            if self._verdict_waits:
                self._verdict_waits = False
                self._store_verdict()
            self._next_stamp()

    def _next_stamp(self) -> None:
        while self._stamps_waiting and STAMPS not in self._storing:
            number, request, request_id = self._stamps_waiting.popleft()
            session = self._tables.answerable(number)
            if session is not None and not session.closed:
                self.stamp(session, request, request_id)

    def _history_stored(self, effect: v.WriteStamps, failure: v.DiskFailure) -> None:
        session, known = self._tables.answerable(effect.session), self.history
        if failure is v.DiskFailure.NONE:
            self.history = decode_history(effect.data)._replace(missing=known.missing, proven=known.proven)
        if session is not None:  # if storing failed, the older stamp is still on stable storage
            self._tables.send(session, m.Stamped(*self.history.newest), effect.request_id)

    def _witnesses_stored(self, effect: v.WriteStamps, failure: v.DiskFailure) -> None:
        tables = self._tables
        session = tables.answerable(effect.session)
        if failure is v.DiskFailure.NONE:
            self.witnessed = decode_witnesses(effect.data)
            if session is not None:
                held = self.witnessed[self._member_being_stored]
                tables.send(session, m.Witnessed(self._member_being_stored, *held), effect.request_id)
        elif session is not None:
            text = f"the stamps of the other members could not be stored: {failure.value}"
            tables.refuse(session, REFUSALS[failure], text, effect.request_id)

    def _next_witness(self) -> None:
        while self._waiting and WITNESSED not in self._storing:
            number, request, request_id = self._waiting.popleft()
            session = self._tables.answerable(number)
            if session is not None and not session.closed:
                self.witness(session, request, request_id)
