"""Appends: from the request to the durability ack, and the disk's reports about them.

Of the appends that were read at once, the checks that are the same for all are made once; per append only
size, digest and space are checked. The first one that fails a check is handled alone, before those after it.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from dos_protocol import messages as m
from dos_protocol.digests import Buffer
from dos_protocol.errors import ErrorCode
from dos_protocol.frames import Frame
from dos_protocol.limits import object_bytes_max
from dos_server.core import vocabulary as v
from dos_server.core.access import Right
from dos_server.core.directory_state import DirectoryState, Session
from dos_server.core.object_state import ObjectState, PendingAppend, refuses_append, refuses_session
from dos_server.core.requests.claims import Claims
from dos_server.core.requests.reads import Reads
from dos_server.core.tables import REFUSALS, Tables
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max, watermark_seconds_max

_bytes_of: Final = attrgetter("bytes")


class Appends:
    """Carries out APPEND and sends durability acks."""

    def __init__(self, tables: Tables, claims: Claims, reads: Reads) -> None:
        self._tables = tables
        self._claims = claims
        self._reads = reads
        self._acks: list[tuple[int, m.DurabilityAck]] = []

    def append(self, session: Session, request: m.Append, request_id: int) -> None:
        directory = self._tables.directory_of(session, request_id)
        if directory is None or not self._claims.may_write(session, directory, request_id):
            return
        state = directory.objects.get(request.name)
        if state is None:
            if not self._tables.accepts_name(session, request.name, request_id):
                return
            refusal = self._tables.refuses_object(directory)
            if refusal is not None:
                self._tables.refuse(session, refusal.code, refusal.message, request_id, refusal.actual)
                return
            state = self._tables.new_object(directory, request.name)
        refusal = refuses_append(state, request, session.number)
        ack_only = not len(request.payload) and (state.exists or state.tickets)
        if refusal is None and not ack_only:
            refusal = self._tables.reserve_space(state, len(request.payload))
        if refusal is not None:
            self._tables.refuse(session, refusal.code, refusal.message, request_id, refusal.actual)
            return
        directory.objects[request.name] = state
        session.wrote = True
        if ack_only:
            if not state.tickets and not state.needs_sync:  # also while it is filed
                self.send_ack(state, session)
            return
        self.accept(session, directory, state, request.payload, request_id)

    def accept(
        self, session: Session, directory: DirectoryState, state: ObjectState, data: Buffer, request_id: int
    ) -> None:
        state.accept(data, session.number, request_id)
        session.unsynced_bytes += len(data)
        session.unsynced_appends += 1
        self._tables.in_flight.appended(session.number, self._tables.now)
        self._tables.touched[state] = directory

    def batch_ended(self, event: v.BatchEnded | None = None) -> None:
        del event
        touched = self._tables.touched
        if touched:
            self._tables.touched = {}
            self._write_and_sync(touched)

    def _write_and_sync(self, touched: Mapping[ObjectState, DirectoryState]) -> None:
        """Order the writes and the syncs that are due."""
        effects, for_log = self._tables.effects, self._tables.log is not None
        # The epoch of the stored claim, not of a held claim whose file is not stored yet: after a crash the
        # extent would carry a higher epoch than the claim file, which counts as damage.
        writes = [
            write
            for state, directory in touched.items()
            if (write := state.next_write(directory.stored.epoch, for_log=for_log)) is not None
        ]
        if writes:
            effects.append(v.WriteMany(writes))
        effects += [sync for state in touched if (sync := state.next_sync()) is not None]

    def written(self, event: v.WrittenMany) -> None:
        """Handle the end of writes: start the next write and the sync of the object, or refuse or poison what
        failed.
        """
        tables, due = self._tables, dict[ObjectState, DirectoryState]()
        for write, failure in zip(event.writes, event.failures, strict=False):
            directory = tables.directories[write.directory]
            state = directory.objects[write.name]
            if state.poisoned:  # a sync failed during this write
                state.forget_write()
            elif failure is v.DiskFailure.NONE:
                self._wrote(directory, state)
                if state.unwritten_tickets or state.needs_direct_sync:
                    due[state] = directory
            elif failure is not v.DiskFailure.FAILED:
                self._undo_write(directory, state, failure)
            else:
                state.forget_write()
                self._poison(state)
            if directory.claimant is not None:
                self._claims.grant_if_ready(directory)
        self._write_and_sync(due)

    def _wrote(self, directory: DirectoryState, state: ObjectState) -> None:
        begin, batch = state.written, state.wrote()
        if not directory.exists:
            self._claims.now_exists(directory)
        log, data, now = self._tables.log, batch.data, self._tables.now
        if log is not None and data is not None and log.takes(state, begin, len(data), now):
            log.add_extents(state, batch.position, data)
        if state.tickets:
            self._tables.unacknowledged.setdefault(state, now + watermark_seconds_max)

    def _undo_write(self, directory: DirectoryState, state: ObjectState, failure: v.DiskFailure) -> None:
        refused = state.undo_write()
        self._tables.quotas.add(directory.name, -sum(map(_bytes_of, refused)), -(not state.exists))
        if not state.exists:
            del directory.objects[state.name]
        full = failure is v.DiskFailure.NO_SPACE
        why = "no space for" if full else "the server currently cannot write"
        self._refuse_tickets(refused, REFUSALS[failure], f"{why} {state.name}; nothing was written")

    def sync_begins(self, event: v.SyncBegins) -> None:
        state = self._tables.find(event.directory, event.name)
        if state is not None:
            state.sync_begins()

    def synced(self, event: v.Synced) -> None:
        """Handle the end of a sync: store the mark, then send durability acks, then start the next sync."""
        directory = self._tables.directories[event.directory]
        state = directory.objects[event.name]
        if state.poisoned:  # a write failed during this sync
            state.forget_sync()
        elif event.failure is v.DiskFailure.TEMPORARY:
            # Not attempted, so it may be retried. A sync that failed never is: the kernel forgets it.
            state.sync_covers = None
            self._tables.again(v.Sync(directory.name, state.name, not state.entry_durable))
        elif event.failure is v.DiskFailure.GONE:
            state.forget_sync()
            self.gone(state)
        elif event.failure is not v.DiskFailure.NONE:
            state.forget_sync()
            self._poison(state)
        else:
            settled = state.was_synced()
            if self._tables.log is not None:
                self._tables.log.filed((state.directory, state.name), state.filed)
            # The mark before the ack: a start takes missing bytes below the mark for damage, not a torn tail.
            self._tables.effects.append(v.SetMark(directory.name, state.mark))
            self._settled(directory, state, settled)
            self.send_acks()
            sync = state.next_sync()
            if sync is not None:
                self._tables.effects.append(sync)
        if state.after_filing is not None and not state.filing:
            order, state.after_filing = state.after_filing, None
            order()
        self._claims.grant_if_ready(directory)

    def logged(self, state: ObjectState, end: int) -> None:
        """Settle an object up to a size that a record has; `send_acks` follows the last one of the record."""
        directory = self._tables.directories[state.directory]
        if not state.poisoned:
            self._settled(directory, state, state.was_logged(end))
        if directory.claimant is not None:
            self._claims.grant_if_ready(directory)

    def gone(self, state: ObjectState) -> None:
        if state.poisoned:
            return
        state.filed = state.synced  # what was acknowledged and is lost: the mark must have it
        if self._tables.log is not None:
            # A replay could not bring back what was below the log's entries, so the log forgets them.
            self._tables.log.gone((state.directory, state.name))
        self._poison(state, needs_log=False)

    def _settled(
        self, directory: DirectoryState, state: ObjectState, settled: Sequence[PendingAppend]
    ) -> None:
        """Acknowledge appends that are on stable storage, and answer reads that waited for them."""
        if state.corrupt_from is not None:
            # A read found damage during the sync. No ack: a reported size counts for all bytes below it.
            self._tables.unacknowledged.pop(state, None)
            text = f"{state.name} is damaged from offset {state.corrupt_from} on"
            self._refuse_tickets(settled, ErrorCode.CORRUPT, text, state.corrupt_from)
        else:
            acknowledged = False
            if settled:
                # They are of one session: `refuses_session` lets no other one append while they wait.
                first, last = settled[0], settled[-1]
                session = self._release(first.session, last.end - first.end + first.bytes, len(settled))
                if session is not None and self.may_receive_acks(session, directory):
                    acknowledged = True
                    if session.version:  # version 0 reads the sizes from the object
                        ack = m.DurabilityAck(state.name, state.written, state.synced)
                        self._acks.append((session.number, ack))
            if acknowledged or not state.tickets:
                self._tables.unacknowledged.pop(state, None)
        self._reads.wake(state)

    def send_acks(self) -> None:
        """Send the acks of what was settled. Before anything else is done: a session that quits gets them."""
        if self._acks:
            self._tables.effects.append(v.SendAcks(self._acks))
            self._acks = []

    def may_receive_acks(self, session: Session, directory: DirectoryState) -> bool:
        """Return whether the session may receive durability acks of the directory."""
        if session.directory != directory.name:  # also of a session that is closed
            return False
        # From a held claim on, an older writer gets no ack: its taker-over has read sizes that lack these
        # bytes (R3).
        return directory.holder is session or not directory.claimed

    def send_ack(self, state: ObjectState, session: Session) -> None:
        self._tables.unacknowledged.pop(state, None)
        self._tables.send(session, m.DurabilityAck(state.name, state.written, state.synced))

    def _release(self, number: int, count_bytes: int, count: int) -> Session | None:
        """Uncount settled or refused appends of the session. Return it, or None if it has ended."""
        session = self._tables.sessions.get(number)
        if session is not None:
            session.unsynced_bytes -= count_bytes
            session.unsynced_appends -= count
            if session.leaving:
                self._tables.settled.append(session)
        return session

    def _refuse_tickets(
        self, tickets: Iterable[PendingAppend], code: ErrorCode, text: str, actual: int = 0
    ) -> None:
        for ticket in tickets:
            session = self._release(ticket.session, ticket.bytes, 1)
            if session is not None:
                self._tables.refuse(session, code, text, ticket.request_id, actual)

    def _poison(self, state: ObjectState, *, needs_log: bool = True) -> None:
        if needs_log and not state.is_filed:
            # Only a restart replays what the log has and the file lacks.
            text = f"a write or sync of {state.directory}/{state.name} failed, and the log has bytes of it"
            self._tables.effects.append(v.Halt(text))
        accepted = state.accepted
        tickets = state.poison()
        self._tables.quotas.add(state.directory, state.accepted - accepted)
        self._tables.effects.append(v.SetMark(state.directory, state.mark))
        self._tables.unacknowledged.pop(state, None)
        text = f"{state.name} is poisoned: a write or sync of it failed"
        self._refuse_tickets(tickets, ErrorCode.POISONED, text, state.synced)
        self._reads.end_waiting(state, ErrorCode.POISONED, text)

    def tick(self) -> None:
        tables = self._tables
        for state in [state for state, due in tables.unacknowledged.items() if due <= tables.now]:
            del tables.unacknowledged[state]
            if state.corrupt_from is not None:
                continue
            session = tables.sessions.get(state.tickets[-1].session) if state.tickets else None
            directory = tables.directories.get(state.directory)
            if session is not None and directory is not None and self.may_receive_acks(session, directory):
                self.send_ack(state, session)


# --- The appends of a read ---------------------------------------------------------------------------------


_SIZE_AND_DIGEST: Final = struct.Struct(">QQ")
_NAME_AT: Final = _SIZE_AND_DIGEST.size
"""Offset of the name's length in the meta of an APPEND, as `dos_protocol.messages` lays it out."""


def take_entries(tables: Tables, session: Session, frames: Sequence[Frame], start: int) -> int:
    """Accept APPEND frames of any objects from index `start` on. Return the index of the first that fails a
    check.
    """
    # A session that is closed or has not greeted is in none.
    directory = tables.directories.get(session.directory) if session.directory else None
    if directory is None:
        return start
    # As for a single append: a superseded writer must get no byte in (R2).
    if directory.holder is not session and directory.claimed:
        return start
    if not session.access.may(Right.APPEND, directory.name):
        return start
    number, objects, touched, space = session.number, directory.objects, tables.touched, tables.space
    room_bytes = tables.quotas.room_bytes(directory.name)
    accepted_bytes, costs, index, named = 0, 0, start, b""
    state: ObjectState | None = None
    for index in range(start, len(frames)):
        _, request_id, meta, data, _ = frames[index]
        if meta[_NAME_AT:] != named:
            named = meta[_NAME_AT:]
            if len(named) != 1 + named[0]:
                break
            state = objects.get(named[1:].decode("latin-1"))
            if state is not None and (not state.exists or refuses_session(state, number) is not None):
                state = None
        count = len(data)
        if state is None or not 0 < count <= extent_payload_bytes_max:
            break
        fold = state.fold
        size, digest = _SIZE_AND_DIGEST.unpack_from(meta)
        if size != fold.size or digest != fold.value or size + count > object_bytes_max:
            break
        cost = costs + count + extent_header_bytes
        if accepted_bytes + count > room_bytes or not space.has_room(cost):
            break
        state.accept(data, number, request_id)
        touched[state] = directory
        accepted_bytes, costs = accepted_bytes + count, cost
    else:
        index = len(frames)
    if index > start:
        space.take(costs)
        tables.quotas.add(directory.name, accepted_bytes)
        tables.quotas.spend(directory.name, index - start, tables.now)
        session.wrote = True
        tables.in_flight.appended(number, tables.now)
        session.unsynced_bytes += accepted_bytes
        session.unsynced_appends += index - start
    return index
