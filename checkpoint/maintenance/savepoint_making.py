"""Makes and drops savepoints of a region for the project itself: for forks and backups.

The driver of a running region is asked. If no driver runs the region, this process acts as one for a moment.
"""

from typing import Any, Protocol

from checkpoint import limits
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.manifest import SavepointNote
from checkpoint.errors import NoAnswerError, SavepointRefusedError
from checkpoint.maintenance.stopped_region import savepoint_stopped
from checkpoint.requests.client import RequestClient, requester
from checkpoint.runtime import wall_time_ms
from dos_client import Store


class SavepointMaker(Protocol):
    """Makes and drops savepoints of one region."""

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        """Make a savepoint of a checkpoint (0: the last one), and return its number. why, fork: for its note.

        Raises SavepointRefusedError, with nothing changed, and NoAnswerError.
        """
        ...

    async def drop(self, name: str) -> None:
        """Drop a savepoint. Raises as `make`."""
        ...


class RunningRegion:
    """Savepoints of a region whose driver answers requests."""

    def __init__(self, store: Store, region: str, patience_s: float = limits.request_patience_s) -> None:
        self._client = RequestClient(store, region)
        self._patience_s = patience_s

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        result = await self._ask("savepoint", name, checkpoint=checkpoint, why=why, fork=fork)
        return int(result["checkpoint"])

    async def drop(self, name: str) -> None:
        await self._ask("drop_savepoint", name)

    async def _ask(self, what: str, name: str, **fields: Any) -> dict[str, Any]:
        try:
            reply = await self._client.send(
                what, patience_s=self._patience_s, wait_s=limits.drain_timeout_s, name=name, **fields
            )
        except NoAnswerError as silence:
            raise NoAnswerError(
                f"savepoint {name}: {silence}",
                remedy="if the region does not run, pass --stopped (stopped=True)",
            ) from silence
        answer = reply.answer
        if answer.verdict != "done":
            raise SavepointRefusedError(
                f"the savepoint was {answer.verdict} by {answer.driver}: {answer.reason}"
            )
        return answer.result


class StoppedRegion:
    """Savepoints of a region that no driver runs. Fences a driver that runs after all."""

    def __init__(self, store: Store, region: str) -> None:
        self._host = StoreHost(store)
        self._region = region

    async def make(self, name: str, *, why: str, checkpoint: int = 0, fork: str = "") -> int:
        note = SavepointNote(by=requester(), wall_time_ms=wall_time_ms(), why=why, fork=fork)
        return await savepoint_stopped(self._host, self._region, name, checkpoint, on=True, note=note)

    async def drop(self, name: str) -> None:
        await savepoint_stopped(self._host, self._region, name, 0, on=False)


def maker_of(store: Store, region: str, *, stopped: bool, patience_s: float) -> SavepointMaker:
    """Return the maker of savepoints of a region, which runs or does not. patience_s: for a first answer."""
    return StoppedRegion(store, region) if stopped else RunningRegion(store, region, patience_s)
