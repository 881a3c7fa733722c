"""Waiting until a chain has grown, instead of asking again and again.

Rules of this file: when to look, never what there is. That members have more bytes does not say that these
are committed: only the follower's look does.
"""

import trio

from journal.following import ChainFollower
from journal.ports import GrowingPort, GrowthPort


class ChainWatch:
    """Tells when there may be more for a follower to give. Made on a trio run; `close` it in the same."""

    def __init__(self, store: GrowingPort, follower: ChainFollower) -> None:
        self._store = store
        self._follower = follower
        self._segment = ""
        self._growth: GrowthPort | None = None
        self._told = 0
        """So much of the segment members have, as they said when the last wait ended."""

    async def wait(self, timeout_s: float) -> None:
        """Until members have more of the newest segment than was given, and than they told before; or the
        time is up, which is how late a segment that was begun meanwhile may be noticed.
        """
        frontier = self._follower.frontier
        if frontier is None:
            await trio.sleep(timeout_s)
            return
        segment, given = frontier
        if segment != self._segment or self._growth is None:
            self.close()
            self._segment, self._told = segment, given
            self._growth = self._store.growth(self._follower.directory, segment, given)
            self._growth.__enter__()
        with trio.move_on_after(timeout_s):
            self._told = await self._growth.beyond(max(given, self._told))

    def close(self) -> None:
        """Ask members nothing more."""
        if self._growth is not None:
            self._growth.__exit__(None, None, None)
            self._growth = None
