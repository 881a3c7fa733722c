"""The stamps of this server's disk, and what it was told of those of the other members.

Two small files, replaced whole (temp, fsync, rename, fsync of the folder):

`stamps`, before a start serves, and before a later stamp is told to anyone:

    magic 2 = D0 48 | version u8 = 1 | reserved u8 = 0 | missing number u64 | missing id 16 |
    first number u64 | count u16 | then per stamp: id 16 | xxh3-64 over everything before

The numbers are those from the first on without a gap. *Missing*: a stamp that another member was told of and
that this disk lacks; number 0: none. With one, the disk is an older copy of itself, for good.

`witnessed`, before WITNESSED is answered:

    magic 2 = D0 57 | version u8 = 1 | reserved u8 = 0 | entries as in WELCOME | xxh3-64 over everything
    before

Rules of this file: what STAMP and WITNESS are answered, and who is turned away by a disk that went back. The
order matters in one place: a stamp is told only when it is on stable storage, or a crash would make an honest
disk look like one that went back.
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
_HINT: Final = "replace the server: whether its disk is the newest is not known"


class StampFiles(NamedTuple):
    """The files of a data directory, empty where there is none. Without stamps, a server gives none."""

    stamps: bytes = b""
    witnessed: bytes = b""


NO_FILES: Final = StampFiles()


class History(NamedTuple):
    """The stamps that a disk has, the latest `stamps_kept_max` of them. `first`: the number of the oldest;
    `missing`: see the module."""

    first: int = 1
    ids: tuple[bytes, ...] = ()
    missing: DiskStamp = NO_STAMP

    @property
    def newest(self) -> DiskStamp:
        return DiskStamp(self.first + len(self.ids) - 1, self.ids[-1]) if self.ids else NO_STAMP

    def grown(self, stamp_id: bytes) -> "History":
        """With one more stamp."""
        ids = (*self.ids, stamp_id)[-stamps_kept_max:]
        return self._replace(first=self.first + len(self.ids) + 1 - len(ids), ids=ids)

    def lacks(self, stamp: DiskStamp) -> bool:
        """Whether the disk never had that stamp. One older than all that are kept cannot be judged: no."""
        if stamp.number < self.first:
            return False
        index = stamp.number - self.first
        return index >= len(self.ids) or self.ids[index] != stamp.stamp_id


def encode_history(history: History) -> bytes:
    """The file `stamps`."""
    body = _HEAD.pack(_STAMPS_MAGIC, 1, 0)
    body += _HISTORY.pack(*history.missing, history.first, len(history.ids)) + b"".join(history.ids)
    return body + _DIGEST.pack(digest64(body))


def decode_history(data: bytes) -> History:
    """The history in the file. Raises CorruptDataError for anything but one whole history."""
    body = _body(data, _STAMPS_MAGIC, STAMPS)
    ids = body[_HISTORY.size :]
    if len(body) >= _HISTORY.size:
        number, stamp_id, first, count = _HISTORY.unpack_from(body)
        if first and len(ids) == count * id_bytes:
            parts = tuple(ids[start : start + id_bytes] for start in range(0, len(ids), id_bytes))
            return History(first, parts, DiskStamp(number, stamp_id))
    raise CorruptDataError(STAMPS, 0, "a history of whole stamps", f"{len(data)} bytes", _HINT)


def encode_witnesses(witnessed: dict[bytes, DiskStamp]) -> bytes:
    """The file `witnessed`."""
    body = _HEAD.pack(_WITNESSED_MAGIC, 1, 0) + encode_witnessed(witnessed)
    return body + _DIGEST.pack(digest64(body))


def decode_witnesses(data: bytes) -> dict[bytes, DiskStamp]:
    """What the file says. Raises CorruptDataError."""
    try:
        return decode_witnessed(_body(data, _WITNESSED_MAGIC, WITNESSED))
    except ValueError as error:
        raise CorruptDataError(WITNESSED, 0, "whole entries", str(error), _HINT) from error


def _body(data: bytes, magic: bytes, where: str) -> bytes:
    body, end = data[: -_DIGEST.size], data[-_DIGEST.size :]
    if len(body) < _HEAD.size or _DIGEST.pack(digest64(body)) != end:
        raise CorruptDataError(where, 0, "bytes and their digest", f"{len(data)} others", _HINT)
    if body[: _HEAD.size] != _HEAD.pack(magic, 1, 0):
        raise CorruptDataError(where, 0, f"{where} version 1", body[:4].hex(), "use a newer release")
    return body[_HEAD.size :]


class Stamps:
    """See the module. `history`, `witnessed`: as they are on stable storage."""

    def __init__(self, tables: Tables, life_id: bytes, files: StampFiles) -> None:
        self._tables, self._life_id = tables, life_id
        self.history = decode_history(files.stamps) if files.stamps else History()
        self.witnessed = decode_witnesses(files.witnessed) if files.witnessed else {}
        self._stamped_at: float | None = None
        self._storing: set[str] = set()
        self._keeping = NO_ID
        self._waiting: deque[tuple[int, m.Witness, int]] = deque()

    def problem(self) -> str | None:
        """Why no session of a store may begin here, if the disk went back in time."""
        missing = self.history.missing
        if not missing.number:
            return None
        return (
            f"the disk of server {id_text(self._tables.server_id)} went back in time: it lacks stamp"
            f" {missing.number} ({id_text(missing.stamp_id)}), which another member was told of, and with it"
            " what was acknowledged since"
        )

    def stamp(self, session: Session, request: m.Stamp, request_id: int) -> None:
        """Compare, and tell the newest stamp; a new one, if the newest is old."""
        tables, asked = self._tables, DiskStamp(request.number, request.stamp_id)
        if session.store_id == NO_ID:
            tables.refuse(session, ErrorCode.UNSUPPORTED, "only members of a store are compared", request_id)
        elif asked.number and self.history.lacks(asked):
            self._went_back(session, asked, request_id)
        elif self._is_due():
            unique = b"%s stamp %d" % (self._life_id, self.history.newest.number)
            stamp_id = b"".join(_DIGEST.pack(digest64(unique, seed)) for seed in (1, 2))
            session.pending += 1
            self._stamped_at = tables.now
            self._store(session.number, request_id, STAMPS, encode_history(self.history.grown(stamp_id)))
        else:
            tables.send(session, m.Stamped(*self.history.newest), request_id)

    def _is_due(self) -> bool:
        if self._stamped_at is None:
            self._stamped_at = self._tables.now  # the start has just given one
        late = self._tables.now - self._stamped_at >= stamp_seconds
        return late and STAMPS not in self._storing

    def _went_back(self, session: Session, asked: DiskStamp, request_id: int) -> None:
        """From now on, and after each start, no session of the store is served."""
        tables = self._tables
        self.history = self.history._replace(missing=asked)
        self._store(session.number, request_id, STAMPS, encode_history(self.history))
        text = self.problem()
        assert text is not None
        remedy = VERDICTS[ErrorCode.ROLLED_BACK].remedy
        tables.warn(f"{text}. It serves its store no more: {remedy}")
        tables.refuse(session, ErrorCode.ROLLED_BACK, text, request_id, asked.number)
        for other in list(tables.sessions.values()):
            if other.store_id != NO_ID and not other.closed:
                tables.refuse(other, ErrorCode.ROLLED_BACK, text, 0, asked.number)

    def witness(self, session: Session, request: m.Witness, request_id: int) -> None:
        """Keep another member's newest stamp, if what was known of it is what the client took it for."""
        tables, record = self._tables, self._tables.record
        if session.store_id == NO_ID or record is None or record.member(request.server_id) is None:
            text = f"server {id_text(request.server_id)} is no member of the store that this session is in"
            tables.refuse(session, ErrorCode.NOT_A_MEMBER, text, request_id)
            return
        if request.server_id == tables.server_id or not request.number:
            tables.refuse(session, ErrorCode.BAD_FRAME, "a stamp of another server is witnessed", request_id)
            return
        if WITNESSED in self._storing:
            session.pending += 1
            self._waiting.append((session.number, request, request_id))
            return
        held = self.witnessed.get(request.server_id, NO_STAMP)
        told = DiskStamp(request.number, request.stamp_id)
        if held == told or held != DiskStamp(request.before_number, request.before_id):
            tables.send(session, m.Witnessed(request.server_id, *held), request_id)
            return
        members = {one.server_id for one in record.members}
        kept = {one: stamp for one, stamp in self.witnessed.items() if one in members}
        session.pending += 1
        self._keeping = request.server_id
        kept[request.server_id] = told
        self._store(session.number, request_id, WITNESSED, encode_witnesses(kept))

    def _store(self, session: int, request_id: int, name: str, data: bytes) -> None:
        self._storing.add(name)
        self._tables.effects.append(v.WriteStamps(session, request_id, name, data))

    def stored(self, event: v.StampsStored) -> None:
        """A file is on stable storage, or it is as it was."""
        self._storing.discard(event.name)
        if event.name == WITNESSED:
            self._witnesses_stored(event)
            self._next_witness()
        elif not decode_history(event.data).missing.number:
            self._history_stored(event)

    def _history_stored(self, event: v.StampsStored) -> None:
        session = self._tables.answerable(event.session)
        if event.trouble is v.DiskFailure.NONE and not self.history.missing.number:
            self.history = decode_history(event.data)
        if session is not None:  # whether or not there is a new one: what is told is on stable storage
            self._tables.send(session, m.Stamped(*self.history.newest), event.request_id)

    def _witnesses_stored(self, event: v.StampsStored) -> None:
        tables = self._tables
        session = tables.answerable(event.session)
        if event.trouble is v.DiskFailure.NONE:
            self.witnessed = decode_witnesses(event.data)
            if session is not None:
                held = self.witnessed[self._keeping]
                tables.send(session, m.Witnessed(self._keeping, *held), event.request_id)
        elif session is not None:
            text = f"the other members' stamps cannot be kept: {event.trouble.value}"
            tables.refuse(session, REFUSALS[event.trouble], text, event.request_id)

    def _next_witness(self) -> None:
        while self._waiting and WITNESSED not in self._storing:
            number, request, request_id = self._waiting.popleft()
            session = self._tables.answerable(number)
            if session is not None and not session.closed:
                self.witness(session, request, request_id)
