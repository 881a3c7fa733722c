"""Reading: GET with waiting, STAT, LIST; and the disk's answers to reads."""

from collections.abc import Iterable

from dos_protocol import limits as wire
from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.core.access import RequestRefusal
from dos_server.core.directory_state import Session
from dos_server.core.files.scan import ExtentStart
from dos_server.core.object_state import ObjectState
from dos_server.core.tables import Tables, WaitingRead
from dos_server.limits import list_entries_max, reads_queued_of_one_max, woken_of_event_max


class Reads:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def get(self, session: Session, request: m.Get, request_id: int) -> None:
        target = self._tables.target(session, request.name, request_id)
        if target is not None:
            self._get(session, target.state, request, request_id)

    def _get(
        self,
        session: Session,
        state: ObjectState,
        request: m.Get,
        request_id: int,
        deadline: float | None = None,
    ) -> None:
        if state.changing is not None:
            self._tables.refuse(session, ErrorCode.BUSY, state.changing, request_id)
            return
        # Only durable bytes: a power cut could take back others after the reader has acted on them (P-2).
        good_size = state.synced if state.corrupt_from is None else min(state.synced, state.corrupt_from)
        if state.corrupt_from is not None and request.offset >= good_size:
            text = f"{state.name} is damaged from offset {good_size} on"
            self._tables.refuse(session, ErrorCode.CORRUPT, text, request_id, good_size)
        elif request.offset > good_size:
            text = f"offset {request.offset} is beyond the {good_size} durable bytes of {state.name}"
            self._tables.refuse(session, ErrorCode.PAST_END, text, request_id, good_size)
        elif request.offset < good_size and request.max_bytes:
            self._read(session, state, request, request_id, good_size)
        elif (
            request.offset == good_size
            and request.wait_ms
            and request.max_bytes
            and not state.poisoned
            and self._tables.waiting.has_room(session.number)
        ):
            if deadline is None:
                deadline = self._tables.now + min(request.wait_ms, wire.get_wait_ms_max) / 1000
            session.pending += 1
            self._tables.waiting.add(WaitingRead(state, session.number, request_id, request, deadline))
        else:
            self._tables.send(session, m.Data(state.name, request.offset, state.synced, b""), request_id)

    def _read(
        self, session: Session, state: ObjectState, request: m.Get, request_id: int, good_size: int
    ) -> None:
        session.pending += 1
        session.reading += 1
        count = min(request.max_bytes, wire.payload_bytes_max, good_size - request.offset)
        extent = state.index.find(request.offset)
        end = request.offset + count
        self._tables.effects.append(
            v.ReadData(
                session.number,
                request_id,
                state.directory,
                state.name,
                extent,
                request.offset,
                end,
                state.version,
            )
        )

    def got_data(self, event: v.GotData) -> None:
        read = event.read
        session = self._tables.answerable(read.session, read=True)
        damaged_at = event.damaged_at
        # A file that was exchanged during the read says nothing about the copy in use: it must not be
        # quarantined.
        refusal = self._changed_meanwhile(read, damaged=damaged_at is not None) or _missed(event)
        if damaged_at is not None and refusal is None:
            self.quarantine(read.directory, read.name, damaged_at)
        if session is None:
            return
        if refusal is not None:
            self._tables.refuse(session, refusal.code, refusal.message, read.request_id)
        elif damaged_at is not None:
            text = f"{read.name} is damaged from offset {damaged_at} on"
            self._tables.refuse(session, ErrorCode.CORRUPT, text, read.request_id, damaged_at)
        else:
            state = self._tables.find(read.directory, read.name)
            synced = state.synced if state else read.end
            if state is not None and event.after is not None and state.version == read.version:
                state.index.remember(event.after)
            self._tables.send(
                session, m.Data(read.name, read.start, synced, b""), read.request_id, event.parts
            )

    def extent_of(self, read: v.ReadData) -> ExtentStart:
        """Return where a read begins to walk. Reads that ended since its request may have come closer."""
        state = self._tables.find(read.directory, read.name)
        if state is None or state.version != read.version:
            return read.extent
        return state.index.find(read.start)

    def _changed_meanwhile(self, read: v.ReadData | v.ReadDigest, *, damaged: bool) -> RequestRefusal | None:
        """Return a refusal if the file that was read is no longer the object's or was changing."""
        directory = self._tables.directories.get(read.directory)
        if directory is None:
            return None
        state = directory.objects.get(read.name)
        if state is None:
            return RequestRefusal(ErrorCode.NOT_FOUND, f"{read.name} was removed during the read")
        if state.version != read.version or (damaged and state.changing is not None):
            return RequestRefusal(ErrorCode.BUSY, f"{read.name} was changed during the read")
        return None

    def quarantine(self, directory_name: str, name: str, offset: int) -> None:
        """Record damage found in good bytes, also in the mark. The copy does not count until it is
        repaired.
        """
        state = self._tables.find(directory_name, name)
        if state is not None:
            # In the mark, too: a restart may read the file well again, and would count the copy (row R).
            if state.corrupt_from is None or (state.uncut_bytes and not state.tail_damaged):
                self._tables.effects.append(v.SetMark(directory_name, state.mark._replace(damaged=True)))
            state.tail_damaged = True
            state.corrupt_from = min(offset, state.corrupt_from if state.corrupt_from is not None else offset)
            text = f"{name} is damaged from offset {state.corrupt_from} on"
            self.end_waiting(state, ErrorCode.CORRUPT, text, state.corrupt_from)

    def wake(self, state: ObjectState) -> None:
        if not state.waiters:
            return
        waiters = self._tables.waiting.take_of_object(state)
        if waiters:
            now = self._tables.find(state.directory, state.name) or state
            self._tables.waiting.woken += [waiter._replace(state=now) for waiter in waiters]
            self._answer_woken()

    def _answer_woken(self) -> None:
        """Answer a bounded number of woken GETs. Skip sessions that have the maximum of reads in progress."""
        tables, woken = self._tables, self._tables.waiting.woken
        for _ in range(min(len(woken), woken_of_event_max)):
            waiter = woken.popleft()
            session = tables.sessions.get(waiter.session)
            if session is not None and session.reading >= reads_queued_of_one_max:
                woken.append(waiter)
                continue
            session = tables.answerable(waiter.session)
            if session is None:
                continue
            state = waiter.state
            directory = tables.directories.get(state.directory)
            if directory is not None and directory.objects.get(state.name) is not state:
                refusal = RequestRefusal(ErrorCode.BUSY, f"{state.name} was changed during the wait")
                if state.name not in directory.objects:
                    refusal = RequestRefusal(ErrorCode.NOT_FOUND, f"{state.name} was removed")
                tables.refuse(session, refusal.code, refusal.message, waiter.request_id)
            else:
                self._get(session, state, waiter.get, waiter.request_id, waiter.deadline)

    def end_waiting(self, state: ObjectState, code: ErrorCode, text: str, actual: int | None = None) -> None:
        """Refuse the GETs that wait on the object: no more bytes will come. `actual`: None means the synced
        size.
        """
        for waiter in self._tables.waiting.take_of_object(state):
            session = self._tables.answerable(waiter.session)
            if session is not None:
                actual_size = state.synced if actual is None else actual
                self._tables.refuse(session, code, text, waiter.request_id, actual_size)

    def tick(self) -> None:
        self._answer_empty(self._tables.waiting.take_due(self._tables.now))
        self._answer_woken()

    def _answer_empty(self, waiters: Iterable[WaitingRead]) -> None:
        for waiter in waiters:
            session = self._tables.answerable(waiter.session)
            if session is not None:
                data = m.Data(waiter.state.name, waiter.get.offset, waiter.state.synced, b"")
                self._tables.send(session, data, waiter.request_id)

    def stop_waiting(self, session: Session) -> None:
        self._answer_empty(self._tables.waiting.take_of_session(session.number))

    def stat(self, session: Session, request: m.Stat, request_id: int) -> None:
        target = self._tables.target(session, request.name, request_id)
        if target is None:
            return
        state = target.state
        at, info = request.digest_at, state.info()
        if at != m.NO_DIGEST and state.changing is not None:
            self._tables.refuse(session, ErrorCode.BUSY, state.changing, request_id)
        elif at == m.NO_DIGEST:
            self._tables.send(session, m.StatResult(info, at, 0), request_id)
        elif at == state.synced and state.corrupt_from is None:
            self._tables.send(session, m.StatResult(info, at, state.synced_digest), request_id)
        elif state.corrupt_from is not None and at > state.corrupt_from:
            text = f"{state.name} is damaged from offset {state.corrupt_from} on"
            self._tables.refuse(session, ErrorCode.CORRUPT, text, request_id, state.corrupt_from)
        elif at > state.synced:
            text = f"digest at {at} is beyond the {state.synced} durable bytes of {state.name}"
            self._tables.refuse(session, ErrorCode.PAST_END, text, request_id, state.synced)
        else:
            session.pending += 1
            session.reading += 1
            extents = state.index.fold_starts(at)
            self._tables.effects.append(
                v.ReadDigest(
                    session.number, request_id, state.directory, state.name, extents, at, state.version
                )
            )

    def got_digest(self, event: v.GotDigest) -> None:
        read = event.read
        session = self._tables.answerable(read.session, read=True)
        refusal = self._changed_meanwhile(read, damaged=event.damaged_at is not None) or _missed(event)
        if event.damaged_at is not None and refusal is None:
            self.quarantine(read.directory, read.name, event.damaged_at)
        state = self._tables.find(read.directory, read.name)
        if session is None:
            return
        if refusal is not None:
            self._tables.refuse(session, refusal.code, refusal.message, read.request_id)
        elif event.damaged_at is not None or state is None:
            text = f"{read.name} is damaged from offset {event.damaged_at} on"
            self._tables.refuse(session, ErrorCode.CORRUPT, text, read.request_id, event.damaged_at or 0)
        else:
            self._tables.send(session, m.StatResult(state.info(), read.size, event.digest), read.request_id)

    def list_entries(self, session: Session, request: m.List, request_id: int) -> None:
        tables, count = self._tables, min(request.entries_max, list_entries_max)
        if session.directory is not None:
            directory = tables.directory_of(session, request_id)
            if directory is None:
                return
            names, more = directory.objects.page(request.prefix, request.after, count)
            entries = tuple(directory.objects[name].info() for name in names)
        else:
            seen = None if session.access.grants is None else session.access.sees
            names, more = tables.directory_names.page(request.prefix, request.after, count, seen)
            entries = tuple(m.ObjectInfo(name, corrupt=tables.has_damage(name)) for name in names)
        tables.send(session, m.Listing(entries, more), request_id)


def _missed(event: v.GotData | v.GotDigest) -> RequestRefusal | None:
    """Return a refusal if nothing was read for a temporary reason, such as missing descriptors or memory."""
    if not event.missed:
        return None
    return RequestRefusal(ErrorCode.BUSY, f"{event.read.name} cannot be read now: {event.missed}")
