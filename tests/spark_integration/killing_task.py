"""A task that ends its own process at one step of a batch: for tests of `through`.

The process is Spark's Python worker. It ends once at each step, which a file remembers.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from spark_integration import batches

STEPS: Final = (
    "has asked",
    "has sent a part of its rows",
    "has sent all its rows, and offers nothing",
    "has offered them",
    "knows that its batch is recorded",
    "has given a part of the output",
    "has given all of it",
)
FOLDER: Final = "DOS_TEST_KILLS"
"""Environment variable: where a file names the step at which the next task ends."""


def ends_at(step: str) -> None:
    """End the process if it is this step's turn."""
    turn = Path(os.environ[FOLDER]) / "turn"
    if turn.exists() and turn.read_text() == step:
        turn.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class KillingCarrier(batches.Carrier):
    """A Carrier whose process ends."""

    async def _asked(self, batch: Any) -> Any:
        link = await super()._asked(batch)
        ends_at(STEPS[0])
        return link

    async def _send_share(self, peer: Any, share: Any, dealt: Any) -> None:
        async def watched() -> Any:
            async for frame in dealt:
                yield frame
                ends_at(STEPS[1])

        await super()._send_share(peer, share, watched())

    async def _all_hold(self, *given: Any) -> bool:
        held = await super()._all_hold(*given)
        ends_at(STEPS[2])
        return held

    async def _send_all(self, *given: Any) -> None:
        await super()._send_all(*given)
        ends_at(STEPS[3])

    async def _read(self, recorded: Any, give: Any) -> None:
        ends_at(STEPS[4])

        async def watched(batch: pa.RecordBatch) -> None:
            await give(batch)
            ends_at(STEPS[5])

        await super()._read(recorded, watched)

    def through(self, *given: Any) -> Iterator[pa.RecordBatch]:
        yield from super().through(*given)
        ends_at(STEPS[6])


class KillingTask(batches.CarryingTask):
    """A CarryingTask with such a carrier."""

    __slots__ = ()

    def __call__(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batches.Carrier = KillingCarrier  # type: ignore[misc]  # in a process of Spark's alone
        return super().__call__(given)
