"""Removing objects.

From the request to the disk's answer the object accepts no appends and answers no reads; a claim of the
directory waits. A crash leaves the whole object or nothing (`dos_server.marks`). A damaged object can be
removed.

In a store, only the directory's writer may remove an object: a session of that store, at its generation, that
holds the claim when the request is carried out. A removed copy cannot be distinguished from one that never
existed, so the writer removes only what an acknowledged release names (R14, docs/decisions/0110).
"""

from typing import NamedTuple

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_protocol.messages import SessionState
from dos_protocol.names import id_text
from dos_server.core import vocabulary as v
from dos_server.core.access import RequestRefusal
from dos_server.core.directory_state import DirectoryState, Session
from dos_server.core.object_state import ObjectState
from dos_server.core.requests.claims import Claims
from dos_server.core.requests.reads import Reads
from dos_server.core.tables import Tables


class RemovalOutcome(NamedTuple):
    session: Session | None
    request_id: int
    refusal: RequestRefusal | None


class Removals:
    def __init__(self, tables: Tables, claims: Claims, reads: Reads) -> None:
        self._tables = tables
        self._claims = claims
        self._reads = reads

    def delete(self, session: Session, request: m.Delete, request_id: int) -> None:
        tables = self._tables
        directory = tables.directory_of(session, request_id)
        if directory is None or not tables.accepts_name(session, request.name, request_id):
            return
        refusal = self._refuses_session(session, directory)
        if refusal is None:
            if not self._claims.may_write(session, directory, request_id):
                return
            state = directory.objects.get(request.name)
            if state is None:
                refusal = RequestRefusal(ErrorCode.NOT_FOUND, f"no object {request.name} in {directory.name}")
            else:
                refusal = self.remove(session, directory, state, request_id)
        if refusal is not None:
            tables.refuse(session, refusal.code, refusal.message, request_id, refusal.actual)

    def answer(self, outcome: RemovalOutcome, name: str) -> None:
        session, request_id, refusal = outcome
        if session is None:
            return
        if refusal is None:
            self._tables.send(session, m.Deleted(name), request_id)
        else:
            self._tables.refuse(session, refusal.code, refusal.message, request_id, refusal.actual)

    def remove(
        self, session: Session, directory: DirectoryState, state: ObjectState, request_id: int
    ) -> RequestRefusal | None:
        """Order the removal, whose outcome `removed` returns; or return why it is refused."""
        refusal = self._refuses_session(session, directory) or _refuses(state)
        if refusal is None:
            refusal = self._order(state, session.number, request_id)
        if refusal is None:
            state.removing = True
            session.pending += 1
        return refusal

    def _order(self, state: ObjectState, session: int, request_id: int) -> RequestRefusal | None:
        """Order the removal, after a record of it if the group log has entries of the object."""
        log = self._tables.log

        def order() -> None:
            self._tables.effects.append(_remove(state, session, request_id))

        def order_when_filed() -> None:
            if state.filing:
                state.after_filing = order
            else:
                order()

        # Entries that are replayed after the file is gone would bring back an object that was removed.
        if log is None or not log.holds((state.directory, state.name)):
            order_when_filed()
            return None
        if log.remove(state, order_when_filed):
            return None
        return RequestRefusal(ErrorCode.BUSY, f"{state.name} was not removed: the group log has no room now")

    def removed(self, event: v.Removed) -> RemovalOutcome | None:
        tables = self._tables
        directory = tables.directories[event.directory]
        state = directory.objects[event.name]
        if event.ending is v.Removal.LATER:
            tables.again(_remove(state, event.session, event.request_id))
            return None
        state.removing = False
        refusal = None
        if event.ending is v.Removal.GONE:
            del directory.objects[event.name]
            tables.quotas.add(directory.name, -state.accepted, -1)
            if tables.log is not None:
                tables.log.gone((event.directory, event.name))
            # a new object of this name gets a higher version, so that a late read of the old one is refused
            tables.object_version = max(tables.object_version, state.version) + 1
            tables.unacknowledged.pop(state, None)
            self._reads.end_waiting(state, ErrorCode.NOT_FOUND, f"{event.name} was removed", 0)
        elif event.ending is v.Removal.NOT_NOW:
            refusal = RequestRefusal(ErrorCode.BUSY, f"{event.name} was not removed: {event.ending.value}")
        elif event.ending is v.Removal.INTACT:
            refusal = RequestRefusal(
                ErrorCode.POISONED, f"the disk failed; {event.name} is unchanged", state.synced
            )
        else:
            state.poison()
            text = (
                f"{event.name} is poisoned: only a restart of the server can determine whether it was removed"
            )
            refusal = RequestRefusal(ErrorCode.POISONED, text, state.synced)
            self._reads.end_waiting(state, ErrorCode.POISONED, text)
        self._claims.grant_if_ready(directory)
        return RemovalOutcome(tables.answerable(event.session), event.request_id, refusal)

    def _refuses_session(self, session: Session, directory: DirectoryState) -> RequestRefusal | None:
        """Return why a server in a store refuses a removal by this session; None if it is allowed."""
        record = self._tables.record
        if record is None:
            return None
        text = f"this server is in store {id_text(record.store_id)}: its copies may count"
        if (session.store_id, session.generation) != (record.store_id, record.generation):
            return RequestRefusal(
                ErrorCode.UNSUPPORTED, f"{text}, and only a session of the store may remove one"
            )
        if directory.holder is not session and session.state is not SessionState.SUPERSEDED:
            text = f"{text}, and only the writer that claimed {directory.name} may remove one"
            return RequestRefusal(ErrorCode.NOT_CLAIMED, text, directory.claim.epoch)
        return None


def _remove(state: ObjectState, session: int, request_id: int) -> v.RemoveObject:
    damaged = state.corrupt_from is not None
    return v.RemoveObject(session, request_id, state.directory, state.name, state.durable, damaged)


def _refuses(state: ObjectState) -> RequestRefusal | None:
    if state.changing is not None:
        return RequestRefusal(ErrorCode.BUSY, state.changing)
    if state.being_appended or not state.settled_or_filing:
        return RequestRefusal(ErrorCode.BEING_APPENDED, f"{state.name} is being appended", state.accepted)
    # Only a restart can tell what of it is on the disk.
    if state.poisoned:
        text = f"{state.name} is poisoned: a write or sync of it failed"
        return RequestRefusal(ErrorCode.POISONED, text, state.synced)
    return None
