"""Make everything durable that a checkpoint refers to, before the vote for it."""

import msgspec
import trio

from checkpoint import WorkerCheckpoint
from checkpoint.runtime import runtime
from dataflow.sinks.base import SinkWriter
from dataflow.worker.directories import Directories
from dataflow.worker.failures import naming
from dataflow.worker.journals import Journals
from dataflow.worker.messages import CheckpointTaken
from dataflow.worker.outputs import Outputs
from dataflow.worker.pulse import RunningOperator


async def made_durable(
    taken: CheckpointTaken,
    journals: Journals,
    outputs: Outputs,
    directories: Directories,
    running: RunningOperator,
) -> WorkerCheckpoint:
    """Return the positions to vote, once all that they refer to is on stable storage or on the quorum.
    running: where the sinks are noted whose code runs.

    Raises FencedError, and what the sinks raise.
    """
    async with trio.open_nursery() as nursery:
        for name, writer in taken.writers.items():
            nursery.start_soon(synced, name, writer, running)
        positions = await journals.prepare(taken)
        shown = await outputs.synced(taken.step, taken.sinks)
        files = await directories.synced(taken.barrier.checkpoint)
    return msgspec.structs.replace(
        positions,
        sinks={**taken.voted(running), **shown},
        directories=files.positions,
        floors={**positions.floors, **files.floors, **outputs.floors()},
    )


async def synced(name: str, writer: SinkWriter, running: RunningOperator) -> None:
    """Sync one sink. Raises OperatorError, and what has a rule of its own."""
    with naming(name, "a checkpoint"), running.making_durable(name):
        await runtime().in_thread(writer.sync)  # fsync may block
