"""Move retained steps from memory to the disk, as Arrow files.

A file is mapped into memory and its name is removed at once: its pages can leave memory at any time, and the
space on the disk is free as soon as the steps are purged, or the process ends, however it ends.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from checkpoint import ChannelFrame, FrameType
from dataflow.core.retained_steps import Sent

_SCHEMA: Final = pa.schema(
    [
        ("entry", pa.int32()),
        ("peer", pa.int32()),
        ("type", pa.uint8()),
        ("sender", pa.uint16()),
        ("job", pa.uint64()),
        ("sender_epoch", pa.uint64()),
        ("step", pa.uint64()),
        ("checkpoint", pa.uint64()),
        ("seq", pa.uint32()),
        ("channel", pa.uint32()),
        ("flags", pa.uint16()),
        ("payload", pa.large_binary()),
    ]
)


def spilled(entries: Sequence[Sent], folder: str) -> list[Sent]:
    """Return the entries with payloads on the disk, in a directory; '': that for temporary files.

    It blocks; entries are not changed. Raises OSError: nothing remains on the disk.
    """
    rows = [
        (index, peer, *frame[:-1], bytes(frame.payload))
        for index, entry in enumerate(entries)
        for peer, frames in entry.frames.items()
        for frame in frames
    ]
    columns = [
        pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix="dos-retained-", suffix=".arrow", dir=folder or None) as file:
        with pa.ipc.new_file(file, _SCHEMA) as writer:
            writer.write_batch(batch)
        file.flush()
        stored = pa.ipc.open_file(pa.memory_map(file.name)).get_batch(0)
    return _entries(entries, stored)


def _entries(entries: Sequence[Sent], stored: pa.RecordBatch) -> list[Sent]:
    numbers = [stored.column(index).to_pylist() for index in range(len(_SCHEMA) - 1)]
    # Slices of the mapped file: a scalar of a binary column would be a copy in memory.
    _, offsets, values = stored.column(len(_SCHEMA) - 1).buffers()
    ends = memoryview(offsets).cast("b").cast("q")
    payloads = memoryview(values).cast("B") if values is not None else memoryview(b"")
    found: list[dict[int, list[ChannelFrame]]] = [{peer: [] for peer in one.frames} for one in entries]
    for row, (index, peer, kind, *fields) in enumerate(zip(*numbers, strict=True)):
        head = ChannelFrame(FrameType(kind), *fields)
        found[index][peer].append(head._replace(payload=payloads[ends[row] : ends[row + 1]]))
    return [
        Sent(entry.step, {peer: tuple(frames) for peer, frames in one.items()})
        for entry, one in zip(entries, found, strict=True)
    ]
