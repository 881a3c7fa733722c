"""What a worker reads ahead from the store for its sources, as `dataflow.worker.prefetching`.

The real buffers, followers and readers; only the task that polls is a shorter implementation. A simulated
input that is rows in memory needs none of it.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from checkpoint import WorkerCheckpoint
from checkpoint.core.records.manifest import SplitPosition
from dataflow.sources.prefetched import PrefetchBuffer, Reading
from dataflow.sources.stored import InputSource
from dataflow.worker.circuit_thread import Woken
from dos_client.errors import QuorumUnavailableError
from dos_protocol.errors import BrokenConnectionError

if TYPE_CHECKING:
    from tests.sim.regions.worker import Worker

_POLL_S = 0.9


class Feeds:
    """The feeds of one incarnation. `buffers`: by source, for the circuit."""

    def __init__(
        self, worker: "Worker", part: WorkerCheckpoint | None, incarnation: int, *, workers: int
    ) -> None:
        self._workers = workers
        self._worker = worker
        self._incarnation = incarnation
        specs = worker.region.plan_for(worker).specs
        self._sources = {name: one for name, one in specs.items() if isinstance(one, InputSource)}
        self._positions: Mapping[str, Mapping[str, SplitPosition]] = {} if part is None else part.sources
        self.buffers = {name: PrefetchBuffer(woken=self._woken) for name in self._sources}

    def _woken(self) -> None:
        self._worker.inbox.put(Woken())

    def each(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return the tasks that fill the buffers."""
        return [partial(self._fill, name, source) for name, source in self._sources.items()]

    async def _fill(self, name: str, source: InputSource) -> None:
        """Follow every split of this worker. The producers of a simulated input exist before its region."""
        worker, region, buffer = self._worker, self._worker.region, self.buffers[name]
        ours = [split for split in region.producers if source.owner(split, self._workers) == worker.index]
        buffer.known(ours)
        at = self._positions.get(name, {})
        stores = {split: region.store_for(worker) for split in ours}
        followers = {
            split: source.origin(stores[split], Reading(region.spec.name)).follower(
                split, at.get(split, SplitPosition(0))
            )
            for split in ours
        }
        try:
            while followers:
                for split, follower in followers.items():
                    try:
                        async with aclosing(follower.poll()) as pieces:
                            async for piece in pieces:
                                while not buffer.has_room(split):
                                    await worker.sleep(_POLL_S)
                                buffer.put(piece)
                        buffer.polled(split, caught_up=True)
                    except (QuorumUnavailableError, BrokenConnectionError):
                        buffer.polled(split, caught_up=False)
                await worker.sleep(_POLL_S)
        finally:
            for store in stores.values():
                store.close()
