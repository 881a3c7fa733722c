"""The users of a region: a reader of its outputs, and a client that sends requests through the store.

As in `tests.shells.clients`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from checkpoint.errors import NoAnswerError
from checkpoint.requests.client import RequestClient
from dataflow.errors import NoOutputError
from dataflow.outputs import StepRows
from dos_client import open_store
from dos_protocol.errors import DosError
from tests.shells.region.audit import read_all
from tests.shells.region.output import of_step
from tests.shells.region.process import RegionProcess
from tests.sim.history import ViolationError

if TYPE_CHECKING:
    from tests.shells.region.region import ShellRegion


class Viewer(RegionProcess):
    """Reads the output logs now and then: each read must begin with what the previous one returned."""

    kind = "viewer"

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region, name)
        self.read: dict[str, list[tuple[int, list[list[str]]]]] = {}

    async def work(self) -> None:
        region = self.region
        logs = [sink for sink, kind in region.kinds.items() if kind != "file"]
        while not region.finished:
            await self.sleep(5.0)
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    for sink in logs:
                        steps = await read_all(store, region.spec.name, sink)
                        self._compare(sink, steps)
            except NoOutputError:
                region.saw("viewer: nothing yet")
            except DosError as error:
                region.saw(f"viewer: {type(error).__name__}")

    def _compare(self, sink: str, steps: Sequence[StepRows]) -> None:
        """Check O3 of outputs. Raises ViolationError."""
        workers = range(self.region.spec.workers)
        found = [(step.step, [row for worker in workers for row in of_step(step, worker)]) for step in steps]
        known = self.read.setdefault(sink, [])
        if found[: len(known)] != known:
            different = next((one for one, other in zip(known, found, strict=False) if one != other), None)
            raise ViolationError(
                "O3", f"output {sink} had {different} and no longer has it; {len(found)} steps"
            )
        if len(found) > len(known):
            self.region.saw("viewer saw more")
        self.read[sink] = found


class Requester(RegionProcess):
    """Requests the status, a checkpoint or a reset now and then, as `dos region` does."""

    kind = "requester"

    async def work(self) -> None:
        while not self.region.finished:
            await self.sleep(2.0)
            what = self.rng.choice(["status", "status", "checkpoint", "reset"])
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    reply = await RequestClient(store, self.region.spec.name).send(
                        what, patience_s=3.0, wait_s=5.0
                    )
                    self.region.saw(f"requester: {what} {reply.answer.verdict}")
            except NoAnswerError:
                self.region.saw("requester: no answer")
            except DosError as error:
                self.region.saw(f"requester: {type(error).__name__}")
            await trio.sleep(0.5)
