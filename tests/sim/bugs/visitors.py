"""Version 0, and appends without a claim: what is reported as synced, locks, the origin of content."""

from functools import partial
from typing import Any

from dos_protocol.vocabulary import Append
from dos_server.core.object_state import ObjectState
from dos_server.core.version0 import wire
from dos_server.core.version0.streams import V0Streams
from tests.sim.bugs.catalogue import Patch, bug
from tests.sim.visitors.crowd import has_visitors

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
    original = ObjectState.refuses_session

    def refuses_session(self: ObjectState, session: int) -> Any:
        others, self.appender = self.appender, None
        try:
            return original(self, self.tickets[-1].session if self.tickets else session)
        finally:
            self.appender = others

    return [(ObjectState, "refuses_session", refuses_session)]


@of_visitors("row 40, P-3: the size alone decides whose content it is")
def prefix_digests_are_not_compared() -> list[Patch]:
    original = ObjectState.refuses

    def refuses(self: ObjectState, append: Append, session: int) -> Any:
        return original(
            self, Append(append.name, append.expected_size, self.fold.value, append.payload), session
        )

    return [(ObjectState, "refuses", refuses)]
