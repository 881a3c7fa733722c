"""Version 0, and appends without a claim: what is reported as synced, locks, the origin of content."""

from functools import partial
from typing import Any

from dos_protocol.messages import Append
from dos_server.core import object_state
from dos_server.core.object_state import ObjectState
from dos_server.core.requests import appends, version0
from dos_server.core.requests import version0_wire as wire
from dos_server.core.requests.version0 import V0Streams
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.visitors.visitors import has_visitors

of_visitors = partial(bug, where=has_visitors)


@of_visitors("version 0: SYNCED is what is synced")
def version_0_reports_written_as_synced() -> list[Patch]:
    def send_status(self: V0Streams, one: Any) -> None:
        written = one.target.written
        one.reported, one.status_at, one.status_due = (written, one.target.synced), self._tables.now, False
        self._answers.send(one, wire.reply(f"{written}\t{written}".encode("ascii")))

    return [(V0Streams, "_send_status", send_status)]


@of_visitors("version 0: a stream has its file locked")
def streams_lock_nothing() -> list[Patch]:
    original = object_state.refuses_session

    def refuses_session(state: ObjectState, session: int) -> Any:
        others, state.appender = state.appender, None
        try:
            return original(state, state.tickets[-1].session if state.tickets else session)
        finally:
            state.appender = others

    return [(one, "refuses_session", refuses_session) for one in (object_state, appends, version0)]


@of_visitors("row 40, P-3: the size alone decides whose content it is")
def prefix_digests_are_not_compared() -> list[Patch]:
    def refuses(state: ObjectState, append: Append, session: int) -> Any:
        alike = Append(append.name, append.expected_size, state.fold.value, append.payload)
        return object_state.refuses_append(state, alike, session)

    return [(appends, "refuses_append", refuses)]
