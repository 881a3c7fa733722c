"""Wait until a chain has grown, instead of polling it.

A wait only returns when polling may be useful. More bytes on the members are not yet committed records: only
the follower decides that.
"""

import trio

from journal.following import ChainFollower
from journal.ports import GrowingPort, GrowthPort


class ChainWatch:
    """A wait for new bytes of the chain that a follower reads. Create and `close` it in the same trio run."""

    def __init__(self, store: GrowingPort, follower: ChainFollower) -> None:
        self._store = store
        self._follower = follower
        self._segment = ""
        self._growth: GrowthPort | None = None
        self._reported = 0
        """The size of the segment that the members reported when the last wait ended."""

    async def wait(self, timeout_s: float) -> None:
        """Wait until a quorum holds more of the newest segment than the follower has returned.

        Also more than the previous wait reported, so that uncommitted bytes do not end every wait at once.
        Returns after `timeout_s` in any case. That bounds how late a new segment is noticed.
        """
        frontier = self._follower.frontier
        if frontier is None:
            await trio.sleep(timeout_s)
            return
        segment, given = frontier
        if segment != self._segment or self._growth is None:
            self.close()
            self._segment, self._reported = segment, given
            self._growth = self._store.growth(self._follower.directory, segment, given)
            self._growth.__enter__()
        with trio.move_on_after(timeout_s):
            self._reported = await self._growth.beyond(max(given, self._reported))

    def close(self) -> None:
        """Stop watching the members."""
        if self._growth is not None:
            self._growth.__exit__(None, None, None)
            self._growth = None
