"""Opening and claiming directories: CWD, and the disk's reports about it. A refused CWD changes nothing."""

from functools import partial

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_protocol.messages import SessionEvent, SessionState
from dos_protocol.names import id_text
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import Claimant, DirectoryState, LoadState, ObjectTable, Opening, Session
from dos_server.core.files.records import ClaimRecord
from dos_server.core.quotas import StoredUsage
from dos_server.core.tables import REFUSALS, Tables


class Claims:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._lost: set[str] = set()
        """Directories whose folders were removed under this server."""

    def change_directory(self, session: Session, request: m.ChangeDirectory, request_id: int) -> None:
        tables = self._tables
        if not tables.accepts_name(session, request.directory, request_id):
            return
        directory = tables.directories.get(request.directory)
        if directory is None and (refusal := tables.refuses_directory(request.directory)) is not None:
            tables.refuse(session, refusal.code, refusal.message, request_id, refusal.actual)
            return
        refusal = (
            None
            if session.access.is_operator
            else tables.quotas.refuses_session(request.directory, session.directory)
        )
        if refusal is not None:
            tables.refuse(session, refusal.code, refusal.message, request_id, refusal.actual)
            return
        session.opening = request.directory
        tables.quotas.move(None, request.directory)
        if directory is None:
            directory = tables.directories[request.directory] = DirectoryState(request.directory)
            tables.effects.append(v.LoadDirectory(request.directory))
        opening = Opening(session, request, request_id)
        if directory.loading is LoadState.LOADING:
            directory.opening.append(opening)
            tables.openings += 1
        else:
            self._open(directory, opening)

    def directory_loaded(self, event: v.DirectoryLoaded) -> None:
        directory = self._tables.directories[event.directory]
        if event.temporary:
            del self._tables.directories[event.directory]  # the next CWD loads it again
            self._tables.openings -= len(directory.opening)
            for opening in directory.opening:
                self._not_opened(opening, ErrorCode.BUSY, event.problem)
            return
        problem = event.problem
        if not problem and directory.name in self._lost:
            problem = _lost_text(directory.name)
        directory.loading = LoadState.BROKEN if problem else LoadState.READY
        # Refused as a whole if it is damaged: a member that may have lost an object must not report sizes
        # (R4).
        directory.problem = problem
        directory.exists = event.exists
        self._tables.quotas.count_directory(directory.name, exists=event.exists)
        directory.claim = directory.stored = directory.filed = event.claim
        version = self._tables.object_version
        directory.objects = ObjectTable(
            (name, self._tables.recovered_object(event.directory, name, found, version))
            for name, found in sorted(event.objects.items())
        )
        if not problem:
            objects = directory.objects.values()
            usage = StoredUsage(sum(one.accepted for one in objects), len(objects))
            self._tables.quotas.recount(directory.name, usage)
        openings, directory.opening = directory.opening, []
        self._tables.openings -= len(openings)
        for opening in openings:
            self._open(directory, opening)
        self._tables.forget_idle()

    def lost(self, event: v.DirectoriesLost) -> None:
        tables = self._tables
        for name in event.directories:
            self._lost.add(name)
            tables.damaged_names.add(name)
            directory, text = tables.directories.get(name), _lost_text(name)
            tables.warn(text)
            if directory is None or directory.loading is LoadState.LOADING:
                continue
            directory.loading, directory.problem = LoadState.BROKEN, text
            if directory.claimant is not None:
                claimant, directory.claimant = directory.claimant, None
                self._not_opened(claimant, ErrorCode.CORRUPT, text)
            for session in list(directory.sessions.values()):
                tables.refuse(session, ErrorCode.CORRUPT, text, 0)
                tables.close(session)

    def _open(self, directory: DirectoryState, opening: Opening) -> None:
        if directory.loading is LoadState.BROKEN:
            self._not_opened(opening, ErrorCode.CORRUPT, directory.problem)
        elif opening.request.claim:
            self._claim(directory, opening)
        else:
            self._opened(directory, opening, SessionEvent.OPENED)

    def _claim(self, directory: DirectoryState, opening: Opening) -> None:
        claim = ClaimRecord(opening.request.epoch, opening.request.writer_id)
        if refusal := directory.why_no_claim(claim):
            self._not_opened(opening, ErrorCode.FENCED, refusal, directory.claim.epoch)
            return
        if not directory.exists and (why := self._tables.reserve_directory(directory)) is not None:
            self._not_opened(opening, why.code, why.message, why.actual)
            return
        # Older writers receive no ack from here on, while the claim is still being stored: the sizes in its
        # answer must be at least as large as every ack (R3).
        self._supersede(directory, claim, opening.session)
        directory.hold(claim, opening)
        self._store(directory)
        self.grant_if_ready(directory)

    def _supersede(self, directory: DirectoryState, claim: ClaimRecord, newcomer: Session) -> None:
        """Send FENCED to every older writer of the directory. They receive no more durability acks (R3)."""
        text = f"epoch {claim.epoch} of {directory.name} was claimed by {id_text(claim.writer_id)}"
        older = directory.claimant
        if older is not None and older.session is not newcomer:
            self._not_opened(older, ErrorCode.FENCED, text, claim.epoch)
        self.end_writers(directory, text, claim.epoch, newcomer)

    def end_writers(
        self, directory: DirectoryState, text: str, epoch: int, newcomer: Session | None = None
    ) -> None:
        """Send FENCED with that epoch to every writer of the directory, except `newcomer`. They receive no
        more durability acks.
        """
        for other in list(directory.sessions.values()):
            if other is newcomer or other.state is SessionState.SUPERSEDED:
                continue
            if other.state is SessionState.CLAIMED or other.wrote:
                other.move(SessionEvent.SUPERSEDED)
                if directory.holder is other:
                    directory.holder = None
                self._tables.refuse(other, ErrorCode.FENCED, text, 0, epoch)

    def may_write(self, session: Session, directory: DirectoryState, request_id: int) -> bool:
        """Return whether the session may change objects of the directory; refuse the request otherwise."""
        # Checked when the request is carried out, not when it was sent: a claim may have come in between
        # (R2).
        if not directory.claimed or directory.holder is session:
            return True
        held = directory.claim
        if session.state is SessionState.SUPERSEDED:
            code, text = ErrorCode.FENCED, f"epoch {held.epoch} of {directory.name} is held by another writer"
        else:
            code, text = (
                ErrorCode.NOT_CLAIMED,
                f"{directory.name} is claimed by a writer, and this session holds no claim",
            )
        self._tables.refuse(session, code, text, request_id, held.epoch)
        return False

    def _not_opened(self, opening: Claimant, code: ErrorCode, text: str, actual: int = 0) -> None:
        self._tables.quotas.move(opening.session.opening, None)
        opening.session.opening = None
        self._tables.opened.append(opening.session)
        self._tables.refuse(opening.session, code, text, opening.request_id, actual)

    def _opened(self, directory: DirectoryState, opening: Claimant, event: SessionEvent) -> None:
        session = opening.session
        if session.directory != directory.name:
            self._tables.leave_directory(session)
        else:
            self._tables.quotas.move(session.opening, None)  # it is counted there already
        session.move(event)
        session.opening = None
        session.directory = directory.name
        session.wrote = False
        directory.enter(session, holds=event is SessionEvent.CLAIMED)
        self._tables.opened.append(session)
        claim = directory.claim
        entries = tuple(state.info() for state in directory.objects.values() if state.exists)
        answer = m.DirectoryOpened(claim.epoch, claim.writer_id, entries)
        self._tables.send(session, answer, opening.request_id)

    def _store(self, directory: DirectoryState) -> None:
        claim = directory.claim_to_store()
        if claim is None:
            return
        log = self._tables.log
        write = v.WriteClaim(directory.name, claim)
        if log is None or not log.claim(
            directory.name, claim, partial(self.claim_stored, write, v.DiskFailure.NONE)
        ):
            self._tables.effects.append(write)

    def written(self, effect: v.WriteClaim, failure: v.DiskFailure) -> None:
        if failure is v.DiskFailure.NONE:
            self._filed(effect.directory, effect.claim)
        self.claim_stored(effect, failure)

    def file(self, name: str) -> None:
        directory = self._tables.directories[name]
        if directory.loading is LoadState.BROKEN:  # it is refused at every start, whatever its claim is
            self._filed(name, directory.stored)
        elif not directory.filing and directory.storing is None:
            directory.filing = True
            self._tables.effects.append(v.FileClaim(name, directory.stored))

    def claim_filed(self, effect: v.FileClaim, failure: v.DiskFailure) -> None:
        self._tables.directories[effect.directory].filing = False
        if failure is v.DiskFailure.NONE:
            self._filed(effect.directory, effect.claim)

    def _filed(self, name: str, claim: ClaimRecord) -> None:
        directory = self._tables.directories[name]
        directory.filed = max(directory.filed, claim)
        if self._tables.log is not None:
            self._tables.log.filed((name, ""), claim.epoch)

    def claim_stored(self, effect: v.WriteClaim, failure: v.DiskFailure) -> None:
        directory = self._tables.directories[effect.directory]
        directory.storing = None
        if failure is v.DiskFailure.NONE:
            directory.stored = effect.claim
            self._tables.claims_stored += 1
            self.now_exists(directory)
        elif directory.claim == effect.claim:
            self._claim_failed(directory, failure)
            return
        self._store(directory)
        self.grant_if_ready(directory)

    def now_exists(self, directory: DirectoryState) -> None:
        directory.exists = True
        self._tables.quotas.count_directory(directory.name, exists=True)
        self._tables.directory_names.add(directory.name)

    def _claim_failed(self, directory: DirectoryState, failure: v.DiskFailure) -> None:
        self._tables.quotas.count_directory(directory.name, exists=directory.exists)
        claimant, directory.claimant = directory.claimant, None
        # The claim stays held, so the older writers stay fenced.
        if claimant is not None:
            text = f"the claim of {directory.name} could not be stored durably: {failure.value}"
            self._not_opened(claimant, REFUSALS[failure], text)

    def grant_if_ready(self, directory: DirectoryState) -> None:
        """Answer the claim after it is durable and everything accepted before it is settled (R2, R4)."""
        if directory.claimant is not None and directory.claim_ready:
            claimant, directory.claimant = directory.claimant, None
            self._opened(directory, claimant, SessionEvent.CLAIMED)


def _lost_text(name: str) -> str:
    return f"directory {name} was removed from the disk of this server while it ran"
