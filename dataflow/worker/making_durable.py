"""Make everything durable that a checkpoint refers to, before the vote for it."""

import msgspec
import trio

from checkpoint import WorkerCut
from checkpoint.runtime import runtime
from dataflow.sinks.base import SinkWriter
from dataflow.worker.directories import Directories
from dataflow.worker.failures import naming
from dataflow.worker.journals import Journals
from dataflow.worker.messages import CutTaken
from dataflow.worker.outputs import Outputs


async def made_durable(
    taken: CutTaken, journals: Journals, outputs: Outputs, directories: Directories
) -> WorkerCut:
    """Return the positions to vote, once all that they refer to is on stable storage or on the quorum.

    Raises FencedError, and what the sinks raise.
    """
    async with trio.open_nursery() as nursery:
        for name, writer in taken.writers.items():
            nursery.start_soon(_sync, name, writer)
        positions = await journals.prepare(taken)
        shown = await outputs.synced(taken.step, taken.sinks)
        files = await directories.synced(taken.barrier.cut)
    return msgspec.structs.replace(
        positions,
        sinks={**taken.voted(), **shown},
        directories=files.positions,
        floors={**positions.floors, **files.floors, **outputs.floors()},
    )


async def _sync(name: str, writer: SinkWriter) -> None:
    with naming(name, "a checkpoint"):
        await runtime().in_thread(writer.sync)  # fsync may block
