"""The server's claims and sizes: who may write, where, and what is reported."""

from typing import Any

from dos_protocol import messages as m
from dos_protocol.messages import Append
from dos_server.core import vocabulary as v
from dos_server.core.access import RequestRefusal
from dos_server.core.directory_state import DirectoryState, Session
from dos_server.core.object_state import ObjectState, refuses_append
from dos_server.core.requests import appends
from dos_server.core.requests.appends import Appends
from dos_server.core.requests.claims import Claims
from dos_server.core.server_core import ServerCore
from dos_server.core.tables import Tables
from dos_server.storage import Storage
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.store.machine import Machine


@bug("R2, row 18")
def claim_is_not_stored() -> list[Patch]:
    def store(self: Storage, effect: v.WriteClaim | v.FileClaim) -> v.EffectDone:
        return v.EffectDone(effect, v.DiskFailure.NONE)

    return [(Storage, "store_claim", store)]


@bug("R2")
def lower_epochs_may_claim() -> list[Patch]:
    return [(DirectoryState, "why_no_claim", lambda self, claim: "" if claim.epoch else "epoch 0")]


@bug("R2, row 18")
def fenced_sessions_may_append() -> list[Patch]:
    return [
        (Claims, "may_write", lambda self, session, directory, request_id: True),
        (Claims, "end_writers", lambda self, *args, **kwargs: None),
        (Appends, "may_receive_acks", lambda self, session, directory: not session.closed),
    ]


@bug("R3")
def older_sessions_receive_watermarks() -> list[Patch]:
    """Breaks both sentences of the rule. Each half alone is sufficient, as the models show."""

    def supersede(self: Claims, directory: DirectoryState, claim: Any, newcomer: Any) -> None:
        directory.holder = None

    ready = property(lambda self: self.claimant is not None and self.stored == self.claim)
    return [
        (Appends, "may_receive_acks", lambda self, session, directory: not session.closed),
        (Claims, "_supersede", supersede),
        (DirectoryState, "claim_ready", ready),
    ]


@bug("row 25: a lease instead of a fence")
def superseded_writers_have_two_seconds() -> list[Patch]:
    hold = DirectoryState.hold
    may_write = Claims.may_write

    def held(self: DirectoryState, claim: Any, claimant: Any) -> None:
        self.lease = claimant.session.number  # type: ignore[attr-defined]
        hold(self, claim, claimant)

    def end_writers(self: Claims, directory: DirectoryState, *args: Any) -> None:
        directory.lease_until = self._tables.now + 2.0  # type: ignore[attr-defined]

    def leased(self: Claims | Appends, session: Any, directory: DirectoryState) -> bool:
        return session.wrote and self._tables.now < getattr(directory, "lease_until", 0.0)

    def may_receive(self: Appends, session: Any, directory: DirectoryState) -> bool:
        return may_receive_acks(self, session, directory) or (
            not session.closed and leased(self, session, directory)
        )

    may_receive_acks = Appends.may_receive_acks
    return [
        (DirectoryState, "hold", held),
        (Claims, "end_writers", end_writers),
        (
            Claims,
            "may_write",
            lambda self, session, directory, request_id: (
                leased(self, session, directory) or may_write(self, session, directory, request_id)
            ),
        ),
        (Appends, "may_receive_acks", may_receive),
    ]


@bug("row 16")
def a_lost_client_leaves_the_size_of_the_file() -> list[Patch]:
    """Appends in flight are dropped with the session, and the size of the file counts as synced."""
    original = Tables.detach

    def detach(self: Tables, session: Session) -> None:
        directory = self.directories.get(session.directory) if session.directory else None
        for state in directory.objects.values() if directory is not None else ():
            if session.wrote and state.tickets and not state.poisoned:
                state.synced, state.synced_digest = state.written, state.written_fold.value
        original(self, session)

    return [(Tables, "detach", detach)]


@bug("row 28")
def the_server_reads_without_limit() -> list[Patch]:
    return [(ServerCore, "may_read", lambda self, session: True)]


@bug("P-9: an account that is not balanced")
def canceled_openings_stay_counted() -> list[Patch]:
    """Those of sessions that end while their directory is loaded: finally no large directory can be
    opened."""
    original = DirectoryState.forget_opening

    def forget_opening(self: DirectoryState, session: Any) -> int:
        original(self, session)
        return 0

    return [(DirectoryState, "forget_opening", forget_opening)]


@bug("R17: jumps of the epoch")
def any_epoch_may_be_claimed() -> list[Patch]:
    def may_claim(self: DirectoryState, claim: Any) -> bool:
        return claim.epoch > self.claim.epoch or claim == self.claim

    return [(DirectoryState, "may_claim", may_claim)]


@bug("P-8")
def refused_appends_are_written() -> list[Patch]:
    """A fenced writer is refused, but what it sent is written to the file."""
    original = Appends.append

    def append(self: Appends, session: Session, request: m.Append, request_id: int) -> None:
        directory = self._tables.directories.get(session.directory or "")
        state = directory.objects.get(request.name) if directory is not None else None
        fenced = directory is not None and directory.claimed and directory.holder is not session
        original(self, session, request, request_id)
        if (
            directory is not None
            and state is not None
            and fenced
            and not refuses_append(state, request, session.number)
        ):
            self.accept(session, directory, state, request.payload, request_id)

    return [(Appends, "append", append)]


@bug("O5: LIST")
def the_last_object_is_not_listed() -> list[Patch]:
    original = Tables.send

    def send(self: Tables, session: Session, message: m.Message, *more: Any, **named: Any) -> None:
        if isinstance(message, m.Listing) and session.directory is not None:
            message = m.Listing(message.entries[:-1], message.more)
        original(self, session, message, *more, **named)

    return [(Tables, "send", send)]


@bug("P-3")
def size_is_not_compared() -> list[Patch]:
    def refuses(state: ObjectState, append: Append, session: int) -> RequestRefusal | None:
        sized = Append(append.name, state.accepted, state.fold.value, append.payload)
        return refuses_append(state, sized, session)

    return [(appends, "refuses_append", refuses)]


@bug("row 21")
def wiped_server_counts() -> list[Patch]:
    original = Machine.lose_disk

    def lose_disk(self: Machine, fresh_id: bytes) -> None:
        record = self.disk.content("store")
        original(self, self.fresh_id)
        storage = Storage(self.disk)
        storage.start(self.fresh_id)
        storage.store_record(v.WriteStoreRecord(0, 0, record or b""))

    return [(Machine, "lose_disk", lose_disk)]
