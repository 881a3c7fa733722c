"""How many unsynced bytes a session may have, before the server stops reading from it. Pure.

A session that appends alone may have many, so that a stream never waits for a sync. Beside others it may
have its share of a smaller total: what one session has written and not synced delays the syncs of all others.
"""

from typing import Final

from dos_server.limits import in_flight_bytes_max, in_flight_share_bytes_min, in_flight_shared_bytes_max

_LATELY_S: Final = 1.0


class InFlight:
    """The sessions that have appended lately, those that did it longest ago first."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}

    def appended(self, session: int, now: float) -> None:
        """Note that a session appends."""
        at = self._at
        at.pop(session, None)
        at[session] = now
        while at[first := next(iter(at))] < now - _LATELY_S:
            del at[first]

    @property
    def bytes_max(self) -> int:
        """The limit for each session."""
        count = len(self._at)
        if count <= 1:
            return in_flight_bytes_max
        return max(in_flight_shared_bytes_max // count, in_flight_share_bytes_min)
