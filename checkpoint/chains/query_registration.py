"""One run of a streaming query of another engine that is registered as a consumer: `begin` before the first
row is read, and `committed` after the engine committed. `core/registered_queries.py` has the reasons.
"""

from collections.abc import Mapping

from checkpoint import limits
from checkpoint.chains.consumer_register import change_register
from checkpoint.coordinator.manifest_host import ManifestHost
from checkpoint.core.consumers import Register, RegisterPlace, with_query
from checkpoint.core.registered_queries import (
    POSITIONS_PER_RETENTION,
    RegisteredQuery,
    check_session,
    continued_later,
    continued_query,
    new_query,
    published,
)


class QueryRegistration:
    """The registration of one process that runs a query. The methods are called by one task at a time.

    session: a random identity of this process. retain_s: how long a position is retained after a later one
    was published.
    """

    def __init__(
        self, host: ManifestHost, place: RegisterPlace, name: str, *, session: str, retain_s: float
    ) -> None:
        self._host, self._place, self._name = host, place, name
        self._session, self._retain_s = session, retain_s
        self.begun = False
        """Whether it is registered."""
        self._before: RegisteredQuery | None = None
        """What was registered under the name before."""
        self._published_at: float | None = None

    async def begin(
        self, start: Mapping[str, int] | None, lines: Mapping[str, int] = {}, *, again: bool = False
    ) -> None:
        """Register the query: acknowledged by the quorum when this returns. From then on, nothing that it
        needs is trimmed.

        start: split -> the offset at which it continues, from its checkpoint; None: it has none. lines: split
        -> the line of history of that offset. again: the session was registered before.

        Raises ConsumerRefusedError, with `again` ConsumerTakenError if another process has registered under
        the name since; waits while too few members answer.
        """
        now_ms = self._host.wall_time_ms()

        def change(register: Register) -> Register:
            self._before = known = register.queries.get(self._name)
            if again and known is not None:
                check_session(known, self._name, self._session)
            if start is None:
                query = new_query(known, self._name, self._session, now_ms)
            else:
                query = continued_query(known, self._session, start, now_ms, lines)
            return with_query(register, self._name, query)

        await change_register(self._host, self._place, change)
        self.begun = True

    async def continues(self, start: Mapping[str, int], lines: Mapping[str, int] = {}) -> None:
        """Register where the query continues, after `begin({})`, if only reading has shown that. It needs
        everything until then. Raises as `committed`.
        """
        now_ms = self._host.wall_time_ms()

        def change(register: Register) -> Register:
            known = register.queries.get(self._name)
            before, name, session = self._before, self._name, self._session
            query = continued_later(known, before, name, session, start, now_ms, lines)
            return with_query(register, self._name, query)

        await change_register(self._host, self._place, change)

    async def committed(self, splits: Mapping[str, int], lines: Mapping[str, int] = {}) -> bool:
        """Publish split -> the offset up to which the engine has durably committed everything. Does nothing
        if the last publication is too recent. Return whether it was published.

        Raises ConsumerRefusedError if another process registered under this name; waits while too few members
        answer.
        """
        now = self._host.now()
        pause_s = max(limits.query_publish_s, self._retain_s / POSITIONS_PER_RETENTION)
        if self._published_at is not None and now < self._published_at + pause_s:
            return False
        now_ms = self._host.wall_time_ms()

        def change(register: Register) -> Register:
            known = register.queries.get(self._name)
            query = published(known, self._name, self._session, splits, now_ms, self._retain_s, lines)
            return with_query(register, self._name, query)

        await change_register(self._host, self._place, change)
        self._published_at = now
        return True
