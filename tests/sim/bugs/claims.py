"""The server's claims and sizes: who may write, where, and what is told."""

from typing import Any

from dos_server.core import vocabulary as v
from dos_server.core.appends import Appends
from dos_server.core.claims import Claims
from dos_server.core.directory_state import DirectoryState
from dos_server.core.object_state import ObjectState
from dos_server.storage import Storage
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.store.server import Machine


@bug("R2, row 18")
def claim_is_not_stored() -> list[Patch]:
    return [(Storage, "store_claim", lambda self, directory, claim: v.Trouble.NONE)]


@bug("R2")
def lower_epochs_may_claim() -> list[Patch]:
    return [(DirectoryState, "may_claim", lambda self, claim: claim.epoch >= 1)]


@bug("R2, row 18")
def fenced_sessions_may_append() -> list[Patch]:
    return [
        (Claims, "may_write", lambda self, session, directory, request_id: True),
        (Claims, "end_writers", lambda self, *args, **kwargs: None),
        (Appends, "may_hear", lambda self, session, directory: not session.closed),
    ]


@bug("R3")
def older_sessions_hear_watermarks() -> list[Patch]:
    def supersede(self: Claims, directory: DirectoryState, claim: Any, newcomer: Any) -> None:
        directory.holder = None

    return [
        (Appends, "may_hear", lambda self, session, directory: not session.closed),
        (Claims, "_supersede", supersede),
    ]


@bug("P-3")
def size_is_not_compared() -> list[Patch]:
    original = ObjectState.refuses
    return [
        (
            ObjectState,
            "refuses",
            lambda self, append, session: original(
                self, type(append)(append.name, self.accepted, self.fold.value, append.payload), session
            ),
        )
    ]


@bug("row 21")
def wiped_server_counts() -> list[Patch]:
    original = Machine.lose_disk

    def lose_disk(self: Machine, fresh_id: bytes) -> None:
        record = self.disk.content("store")
        original(self, self.fresh_id)
        storage = Storage(self.disk)
        storage.start(self.fresh_id)
        storage.store_record(record or b"")

    return [(Machine, "lose_disk", lose_disk)]
