"""Another copy of an object takes the place of the one in use: repairs, and torn tails judged again.

A complete new copy is received into a file of its own, which no reader sees and which counts for nothing. The
object stays what it is, including damaged, until the new copy has the announced digest and is on stable
storage. Then the two change places in one step. So at no moment, and after no crash, can a copy that lost its
tail be taken for a sound one that is merely short (docs/decisions/0012). A writer of the directory learns of
it from FENCED with its own epoch.

A torn tail whose copy found no space (row N of `files.recovery`) is judged again when there is space. Until
then the object is CORRUPT from there on: the tail may not be cut before a copy of it is on stable storage.
Only the space for the copy counts, not the reserve, which a start would use, too.
"""

from dataclasses import dataclass
from functools import partial

from dos_protocol import messages as m
from dos_protocol.digests import Buffer
from dos_protocol.errors import ErrorCode
from dos_protocol.limits import object_bytes_max
from dos_protocol.names import NO_ID
from dos_server.core import vocabulary as v
from dos_server.core.access import RequestRefusal
from dos_server.core.directory_state import DirectoryState, Session
from dos_server.core.object_state import ObjectState, RepairInProgress
from dos_server.core.requests.claims import Claims
from dos_server.core.requests.reads import Reads
from dos_server.core.tables import REFUSALS, Tables, cost
from dos_server.limits import (
    repairs_max,
    tail_tries_seconds_max,
    tail_tries_seconds_min,
)

# --- Repairs -----------------------------------------------------------------------------------------------


class Repairs:
    def __init__(self, tables: Tables, claims: Claims, reads: Reads) -> None:
        self._tables = tables
        self._claims = claims
        self._reads = reads
        self._last_copy = 0

    def repair(self, session: Session, request: m.RepairChunk, request_id: int) -> None:
        tables = self._tables
        if session.store_id == NO_ID:
            text = "REPAIR requires a session of a store: name the store in HELLO"
            tables.refuse(session, ErrorCode.NOT_READY, text, request_id)
            return
        directory = tables.directory_of(session, request_id)
        if directory is None or not tables.accepts_name(session, request.name, request_id):
            return
        state = directory.objects.get(request.name)
        if _is_already_complete(state, request):
            tables.drop_repair(session.number)
            tables.send(session, m.RepairAck(request.name, request.goal_size, done=True), request_id)
            return
        refusal = self._find_or_begin(session, directory, state, request)
        if refusal is not None:
            tables.refuse(session, refusal.code, refusal.message, request_id, refusal.actual)
            return
        self._receive(session, directory, request, request_id)

    def _find_or_begin(
        self, session: Session, directory: DirectoryState, state: ObjectState | None, request: m.RepairChunk
    ) -> RequestRefusal | None:
        """Find or begin the new copy that the request continues, or return why the request is refused."""
        tables, current = self._tables, self._tables.repairs.get(session.number)
        if current is not None and current.busy:
            return RequestRefusal(ErrorCode.BUSY, f"the previous bytes of {current.name} are not written yet")
        refusal = refuses(state, request)
        if refusal is not None:
            tables.drop_repair(session.number)
            return refusal
        if request.offset == 0:
            tables.drop_repair(session.number)
            if len(tables.repairs) >= repairs_max:
                return RequestRefusal(
                    ErrorCode.BUSY,
                    f"{repairs_max} objects are being repaired, which is the limit",
                    repairs_max,
                )
            full = tables.refuses_object(directory) if state is None else None
            if full is not None:
                return full
            if not tables.space.has_room(cost(request.goal_size, new_file=True)):
                return tables.space.refusal(f"a new copy of {request.name} of {request.goal_size} bytes")
            old = (state.synced, state.synced_digest) if state is not None else (0, 0)
            self._last_copy += 1
            current = tables.repairs[session.number] = RepairInProgress(
                directory.name, request, old, self._last_copy, tables.fresh_root()
            )
        size = current.size if current is not None and current.same_as(request) else 0
        if request.offset != size or request.offset + len(request.payload) > request.goal_size:
            text = (
                f"{len(request.payload)} bytes at {request.offset} of a new copy of {request.goal_size},"
                f" of which {size} are there"
            )
            tables.drop_repair(session.number)
            return RequestRefusal(ErrorCode.SIZE_MISMATCH, text, size)
        return None

    def _receive(
        self, session: Session, directory: DirectoryState, request: m.RepairChunk, request_id: int
    ) -> None:
        repair = self._tables.repairs[session.number]
        repair.request_id = request_id
        if not len(request.payload) and not repair.complete:
            self._tables.send(session, m.RepairAck(repair.name, repair.size, done=False), request_id)
            return
        create, position = repair.position == 0, repair.position
        buffers: list[Buffer] = [
            # Copied: the receive buffer is reused before they are written. The stored epoch, as for appends.
            bytes(one)
            for one in repair.extents_for(request.payload, directory.stored.epoch)
        ]
        repair.busy = True
        session.pending += 1
        self._tables.space.spend(sum(map(len, buffers)))
        self._tables.effects.append(
            v.WriteRepair(
                session.number, repair.directory, repair.name, repair.number, position, buffers, create
            )
        )

    def written(self, effect: v.WriteRepair, failure: v.DiskFailure) -> None:
        repair = self._tables.repairs[effect.session]
        repair.busy = False
        session = self._tables.answerable(effect.session)
        if repair.orphan or session is None or session.closed:
            self._tables.drop_repair(effect.session)
            if session is not None:
                text = f"the session has left {repair.directory}: the new copy of {repair.name} was dropped"
                self._tables.refuse(session, ErrorCode.NOT_READY, text, repair.request_id)
        elif failure is not v.DiskFailure.NONE:
            text = f"the new copy of {repair.name} could not be written: {failure.value}"
            self._abort(session, repair, RequestRefusal(REFUSALS[failure], text))
        elif not repair.complete:
            self._tables.send(session, m.RepairAck(repair.name, repair.size, done=False), repair.request_id)
        else:
            self._install(session, repair)

    def _install(self, session: Session, repair: RepairInProgress) -> None:
        directory = self._tables.directories[repair.directory]
        state = directory.objects.get(repair.name)
        refusal = refuses(state, repair.request) or _disagrees(repair)
        if refusal is not None:
            self._abort(session, repair, refusal)
            return
        if state is None:
            state = directory.objects[repair.name] = self._tables.new_object(directory, repair.name)
            self._tables.quotas.add(directory.name, 0, 1)
        state.repairing = repair.busy = True
        session.pending += 1
        self._exchange_when_filed(session.number, repair, state)

    def _exchange_when_filed(self, number: int, repair: RepairInProgress, state: ObjectState) -> None:
        # The old copy is filed first: the record of the exchange voids entries that its file may lack.
        sync = None if state.is_filed else state.filing_sync()
        if sync is not None:
            self._tables.effects.append(sync)
        if state.filing:  # also if the group log files the object now, which may not reach its newest bytes
            state.after_filing = partial(self._exchange_when_filed, number, repair, state)
        else:
            self._exchange(number, repair, state)

    def _exchange(self, number: int, repair: RepairInProgress, state: ObjectState) -> None:
        install = v.InstallRepair(
            number,
            repair.directory,
            repair.name,
            repair.number,
            state.exists,
            state.durable,
            state.poisoned,
            state.corrupt_from is not None,
            state.damaged or not repair.agrees,
            repair.request.goal_size,
        )
        log = self._tables.log
        if log is None or not log.holds((repair.directory, repair.name)):
            self._tables.effects.append(install)
        elif not log.replace(state, repair.root, repair.size, lambda: self._tables.effects.append(install)):
            state.repairing = repair.busy = False
            if not state.exists:
                del self._tables.directories[repair.directory].objects[repair.name]
                self._tables.quotas.add(repair.directory, 0, -1)
            text = f"{repair.name} was not repaired: the group log has no room now"
            session = self._tables.answerable(number)
            if session is not None:
                self._abort(session, repair, RequestRefusal(ErrorCode.BUSY, text))
            else:
                self._tables.drop_repair(number)

    def _abort(self, session: Session, repair: RepairInProgress, refusal: RequestRefusal) -> None:
        self._tables.drop_repair(session.number)
        self._tables.refuse(session, refusal.code, refusal.message, repair.request_id, refusal.actual)

    def installed(self, event: v.RepairInstalled) -> None:
        tables = self._tables
        repair = tables.repairs.pop(event.session)
        directory = tables.directories[event.directory]
        old = directory.objects[event.name]
        old.repairing = False
        session = tables.answerable(event.session)
        if event.found is None:
            # Which of the two copies has the name is unknown: nothing is acknowledged of either.
            old.poison()
            text = f"the new copy of {event.name} could not be put in its place: restart the server"
            self._reads.end_waiting(old, ErrorCode.POISONED, text)
            if session is not None:
                tables.refuse(session, ErrorCode.POISONED, text, repair.request_id)
        else:
            if tables.log is not None:
                tables.log.gone((event.directory, event.name))
            directory.objects[event.name] = tables.recovered_object(
                event.directory, event.name, event.found, old.version + 1
            )
            tables.quotas.add(directory.name, event.found.size - old.accepted)
            self._claims.now_exists(directory)
            text = f"{event.name} was repaired: claim {directory.name} again and compare its size and digest"
            self._claims.end_writers(directory, text, directory.claim.epoch, session)
            tables.unacknowledged.pop(old, None)
            self._reads.wake(old)
            if session is not None:
                tables.audit(session, f"repaired {directory.name}/{event.name}, {event.found.size} bytes")
                tables.send(session, m.RepairAck(event.name, event.found.size, done=True), repair.request_id)
        self._claims.grant_if_ready(directory)


def _is_already_complete(state: ObjectState | None, request: m.RepairChunk) -> bool:
    """Return whether the copy is already what it should become: an earlier answer was lost."""
    return (
        state is not None
        and state.exists
        and not state.damaged
        and state.appender is None
        and state.settled_or_filing
        and (state.synced, state.synced_digest) == (request.goal_size, request.goal_digest)
    )


def refuses(state: ObjectState | None, request: m.RepairChunk) -> RequestRefusal | None:
    size, digest = state.claimed_size if state is not None else (0, 0)
    if request.goal_size > object_bytes_max:
        return RequestRefusal(
            ErrorCode.NO_SPACE, f"an object holds at most {object_bytes_max} bytes", object_bytes_max
        )
    if state is not None and (not state.settled_or_filing or state.appender is not None):
        return RequestRefusal(ErrorCode.BEING_APPENDED, f"{request.name} is being written", state.accepted)
    # The old copy is not the one that the caller inspected: it may hold bytes that were acknowledged since.
    if request.old_size != size:
        text = f"{request.name} has {size} bytes here, not {request.old_size}"
        return RequestRefusal(ErrorCode.SIZE_MISMATCH, text, size)
    if request.old_digest != digest:
        text = f"{request.name} has digest {digest:016x} here, not {request.old_digest:016x}"
        return RequestRefusal(ErrorCode.DIGEST_MISMATCH, text, digest)
    # Bytes that were durable here may have been acknowledged.
    if state is not None and not request.overwrite and request.goal_size < state.durable:
        text = (
            f"{state.durable} bytes of {request.name} were durable here, the new copy has {request.goal_size}"
        )
        return RequestRefusal(ErrorCode.WOULD_LOSE, text, state.durable)
    return None


def _disagrees(repair: RepairInProgress) -> RequestRefusal | None:
    request = repair.request
    if not repair.digest_matches:
        text = f"the bytes sent for {repair.name} do not have the digest {request.goal_digest:016x}"
        return RequestRefusal(ErrorCode.DIGEST_MISMATCH, text)
    if not repair.agrees and not request.overwrite:
        text = f"the new copy of {repair.name} has other bytes below {request.old_size} than the old one"
        return RequestRefusal(ErrorCode.WOULD_LOSE, text, request.old_size)
    return None


# --- Torn tails --------------------------------------------------------------------------------------------


@dataclass
class _Tail:
    """An object with such a tail. Next attempt at `due` at the earliest, the following `wait_s` later."""

    state: ObjectState
    due: float
    wait_s: float = tail_tries_seconds_min


class Tails:
    def __init__(self, tables: Tables, claims: Claims) -> None:
        self._tables = tables
        self._claims = claims
        self._tails: dict[tuple[str, str], _Tail] = {}

    def directory_loaded(self, event: v.DirectoryLoaded) -> None:
        for name, found in sorted(event.objects.items()):
            state = self._tables.find(event.directory, name)
            if found.uncut_bytes and state is not None:
                self._tails[event.directory, name] = _Tail(state, self._tables.now)

    def space_seen(self, event: v.SpaceSeen) -> None:
        free_bytes = event.free_bytes
        for key, tail in list(self._tails.items()):
            state = tail.state
            if self._tables.find(*key) is not state:  # forgotten, repaired or removed
                del self._tails[key]
                continue
            wanted = cost(state.uncut_bytes, new_file=True)
            fits = free_bytes >= wanted or event.total_bytes <= 0
            if not fits or tail.due > self._tables.now or state.changing is not None or state.tail_damaged:
                continue
            free_bytes -= wanted
            # A user's quota is in no figure: if an attempt fails all the same, the next one follows after
            # twice the time.
            tail.due, tail.wait_s = (
                self._tables.now + tail.wait_s,
                min(tail.wait_s * 2, tail_tries_seconds_max),
            )
            state.judging = True
            self._tables.effects.append(v.LoadObject(*key))

    def object_loaded(self, event: v.ObjectLoaded) -> None:
        directory = self._tables.directories[event.directory]
        old = directory.objects[event.name]
        old.judging = False
        if event.found is not None and not event.found.uncut_bytes:
            del self._tails[event.directory, event.name]
            found = self._tables.recovered_object(directory.name, old.name, event.found, old.version + 1)
            self._replace(directory, old, found)
        self._claims.grant_if_ready(directory)

    def _replace(self, directory: DirectoryState, old: ObjectState, new: ObjectState) -> None:
        directory.objects[old.name] = new
        self._tables.quotas.add(directory.name, new.accepted - old.accepted)
        path = f"{directory.name}/{old.name}"
        if new.damaged:
            text = f"{path}: its torn tail was judged again; it is damaged from offset {new.corrupt_from} on"
            self._tables.effects.append(v.LogNotice(text))
            return
        text = f"{path}: recovered after space became free; {new.synced} bytes of it are in use again"
        self._tables.effects.append(v.LogNotice(text, bad=False))
        text = f"{old.name} is in use again: claim {directory.name} again and compare its size and digest"
        self._claims.end_writers(directory, text, directory.claim.epoch)
