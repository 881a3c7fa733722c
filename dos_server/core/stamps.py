"""The stamps of this server's disk, and the stamps of other members that this server witnesses.

Two small files, each replaced whole (temporary file, fsync, rename, fsync of the folder).

`stamps`, written before a start serves, and before a later stamp is reported to any client:

    magic 2 = D0 48 | version u8 = 1 | reserved u8 = 0 | missing number u64 | missing id 16 |
    first number u64 | count u16 | then per stamp: id 16 | xxh3-64 over everything before

The stamps are numbered from the first one on without a gap. *Missing*: a stamp that another member witnessed
and this disk lacks; number 0: none. If there is one, the disk is permanently an older copy of itself.

`witnessed`, written before WITNESSED is answered:

    magic 2 = D0 57 | version u8 = 1 | reserved u8 = 0 | entries as in WELCOME |
    xxh3-64 over everything before

This part answers STAMP and WITNESS, and refuses sessions if the disk went back in time. A stamp must be on
stable storage before it is reported: otherwise a crash could make a current disk look like one that went
back.
"""

import struct
from collections import deque
from typing import Final, NamedTuple

from dos_protocol import messages as m
from dos_protocol.digests import digest64
from dos_protocol.errors import VERDICTS, CorruptDataError, ErrorCode
from dos_protocol.limits import id_bytes
from dos_protocol.names import NO_ID, id_text
from dos_protocol.stamps import NO_STAMP, DiskStamp, decode_witnessed, encode_witnessed
from dos_server.core import vocabulary as v
from dos_server.core.layout import STAMPS, WITNESSED
from dos_server.core.session import Session
from dos_server.core.tables import REFUSALS, Tables
from dos_server.limits import stamp_seconds, stamps_kept_max

_STAMPS_MAGIC: Final = b"\xd0\x48"
_WITNESSED_MAGIC: Final = b"\xd0\x57"
_HEAD: Final = struct.Struct(">2sBB")
_HISTORY: Final = struct.Struct(f">Q{id_bytes}sQH")
_DIGEST: Final = struct.Struct(">Q")
_HINT: Final = "replace the server: it is unknown whether its disk is current"


class StampFiles(NamedTuple):
    """The contents of the two files, empty if a file is missing. Without stamps the server reports none."""

    stamps: bytes = b""
    witnessed: bytes = b""


NO_FILES: Final = StampFiles()


class History(NamedTuple):
    """The stamps of a disk, at most the latest `stamps_kept_max`.

    `first`: the number of the oldest. `missing`: a stamp that another member witnessed and the disk lacks.
    """

    first: int = 1
    ids: tuple[bytes, ...] = ()
    missing: DiskStamp = NO_STAMP

    @property
    def newest(self) -> DiskStamp:
        """The latest stamp."""
        return DiskStamp(self.first + len(self.ids) - 1, self.ids[-1]) if self.ids else NO_STAMP

    def grown(self, stamp_id: bytes) -> "History":
        """Return the history with one more stamp."""
        ids = (*self.ids, stamp_id)[-stamps_kept_max:]
        return self._replace(first=self.first + len(self.ids) + 1 - len(ids), ids=ids)

    def lacks(self, stamp: DiskStamp) -> bool:
        """Return whether the disk never had that stamp. False if it is older than all that are kept."""
        if stamp.number < self.first:
            return False
        index = stamp.number - self.first
        return index >= len(self.ids) or self.ids[index] != stamp.stamp_id


def encode_history(history: History) -> bytes:
    """Return the contents of the file `stamps`."""
    body = _HEAD.pack(_STAMPS_MAGIC, 1, 0)
    body += _HISTORY.pack(*history.missing, history.first, len(history.ids)) + b"".join(history.ids)
    return body + _DIGEST.pack(digest64(body))


def decode_history(data: bytes) -> History:
    """Return the history in the file. Raises CorruptDataError for anything but one whole history."""
    body = _body(data, _STAMPS_MAGIC, STAMPS)
    ids = body[_HISTORY.size :]
    if len(body) >= _HISTORY.size:
        number, stamp_id, first, count = _HISTORY.unpack_from(body)
        if first and len(ids) == count * id_bytes:
            parts = tuple(ids[start : start + id_bytes] for start in range(0, len(ids), id_bytes))
            return History(first, parts, DiskStamp(number, stamp_id))
    raise CorruptDataError(STAMPS, 0, "a history of whole stamps", f"{len(data)} bytes", _HINT)


def encode_witnesses(witnessed: dict[bytes, DiskStamp]) -> bytes:
    """Return the contents of the file `witnessed`."""
    body = _HEAD.pack(_WITNESSED_MAGIC, 1, 0) + encode_witnessed(witnessed)
    return body + _DIGEST.pack(digest64(body))


def decode_witnesses(data: bytes) -> dict[bytes, DiskStamp]:
    """Return the stamps in the file, by server id. Raises CorruptDataError."""
    try:
        return decode_witnessed(_body(data, _WITNESSED_MAGIC, WITNESSED))
    except ValueError as error:
        raise CorruptDataError(WITNESSED, 0, "whole entries", str(error), _HINT) from error


def _body(data: bytes, magic: bytes, where: str) -> bytes:
    """Return the bytes between head and digest. Raises CorruptDataError."""
    body, end = data[: -_DIGEST.size], data[-_DIGEST.size :]
    if len(body) < _HEAD.size or _DIGEST.pack(digest64(body)) != end:
        raise CorruptDataError(where, 0, "bytes and their digest", f"{len(data)} others", _HINT)
    if body[: _HEAD.size] != _HEAD.pack(magic, 1, 0):
        raise CorruptDataError(where, 0, f"{where} version 1", body[:4].hex(), "use a newer release")
    return body[_HEAD.size :]


class Stamps:
    """Carries out STAMP and WITNESS. `history` and `witnessed` are as they are on stable storage."""

    def __init__(self, tables: Tables, incarnation_id: bytes, files: StampFiles) -> None:
        self._tables, self._incarnation_id = tables, incarnation_id
        self.history = decode_history(files.stamps) if files.stamps else History()
        self.witnessed = decode_witnesses(files.witnessed) if files.witnessed else {}
        self._stamped_at: float | None = None
        self._storing: set[str] = set()
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
        elif announced.number and self.history.lacks(announced):
            self._went_back(session, announced, request_id)
        elif self._is_due():
            unique = b"%s stamp %d" % (self._incarnation_id, self.history.newest.number)
            stamp_id = b"".join(_DIGEST.pack(digest64(unique, seed)) for seed in (1, 2))
            session.pending += 1
            self._stamped_at = tables.now
            self._store(session.number, request_id, STAMPS, encode_history(self.history.grown(stamp_id)))
        else:
            tables.send(session, m.Stamped(*self.history.newest), request_id)

    def _is_due(self) -> bool:
        """Return whether the newest stamp is old and no newer one is being stored."""
        if self._stamped_at is None:
            self._stamped_at = self._tables.now  # the start has just created one
        late = self._tables.now - self._stamped_at >= stamp_seconds
        return late and STAMPS not in self._storing

    def _went_back(self, session: Session, announced: DiskStamp, request_id: int) -> None:
        """Record that the disk went back in time: no session of the store is served, even after a restart."""
        tables = self._tables
        self.history = self.history._replace(missing=announced)
        self._store(session.number, request_id, STAMPS, encode_history(self.history))
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

    def _store(self, session: int, request_id: int, name: str, data: bytes) -> None:
        self._storing.add(name)
        self._tables.effects.append(v.WriteStamps(session, request_id, name, data))

    def stored(self, event: v.StampsStored) -> None:
        """Handle the end of WriteStamps."""
        self._storing.discard(event.name)
        if event.name == WITNESSED:
            self._witnesses_stored(event)
            self._next_witness()
        elif not decode_history(event.data).missing.number:
            self._history_stored(event)

    def _history_stored(self, event: v.StampsStored) -> None:
        session = self._tables.answerable(event.session)
        if event.failure is v.DiskFailure.NONE and not self.history.missing.number:
            self.history = decode_history(event.data)
        if session is not None:  # if storing failed, the older stamp is still on stable storage
            self._tables.send(session, m.Stamped(*self.history.newest), event.request_id)

    def _witnesses_stored(self, event: v.StampsStored) -> None:
        tables = self._tables
        session = tables.answerable(event.session)
        if event.failure is v.DiskFailure.NONE:
            self.witnessed = decode_witnesses(event.data)
            if session is not None:
                held = self.witnessed[self._member_being_stored]
                tables.send(session, m.Witnessed(self._member_being_stored, *held), event.request_id)
        elif session is not None:
            text = f"the stamps of the other members could not be stored: {event.failure.value}"
            tables.refuse(session, REFUSALS[event.failure], text, event.request_id)

    def _next_witness(self) -> None:
        """Carry out the WITNESS requests that waited for the file."""
        while self._waiting and WITNESSED not in self._storing:
            number, request, request_id = self._waiting.popleft()
            session = self._tables.answerable(number)
            if session is not None and not session.closed:
                self.witness(session, request, request_id)
