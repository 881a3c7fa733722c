"""Read what a worker receives for a stage: batches and watermarks of its peers, and its own.

It runs on the circuit thread. It converts frames to batches and watermarks; it makes no decisions.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from checkpoint import ChannelFrame
from checkpoint.errors import StepOrderError
from dataflow.core.event_time import Watermark, decode_watermark
from dataflow.worker.partitioning import decode_batch

Item: TypeAlias = "tuple[int, pa.RecordBatch | bytes | bytearray | memoryview | Watermark]"
"""(sender, batch) or (sender, watermark). The worker's own batch is kept as it is; a peer's is decoded later,
when its step runs.
"""


def decoded(items: Sequence[Item], schema: Callable[[], pa.Schema]) -> list[tuple[int, pa.RecordBatch]]:
    """Return (sender, batch) of a step, without watermarks. schema: of the channel, if it carries batches.

    Raises StepOrderError.
    """
    return [
        (sender, item if isinstance(item, pa.RecordBatch) else _decode(sender, item, schema()))
        for sender, item in items
        if not isinstance(item, Watermark)
    ]


def _decode(sender: int, payload: "bytes | bytearray | memoryview", schema: pa.Schema) -> pa.RecordBatch:
    try:
        return decode_batch(payload, schema)
    except ValueError as error:
        raise StepOrderError(f"from worker {sender}: {error}") from error


def watermark_of(frame: ChannelFrame) -> Watermark:
    """Return the watermark in a PUNCTUATION frame. Raises StepOrderError."""
    try:
        return decode_watermark(frame.payload)
    except ValueError as error:
        raise StepOrderError(f"from worker {frame.sender}: {error}") from error
