"""Shares of the batches of a query, between the tasks that send them and the circuit that reads one of them.

They are held outside of the circuit until the coordinator opens an attempt. Nothing of a share is durable:
until the checkpoint of the batch is committed, its task keeps the rows.
"""

import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from checkpoint import BatchShare, FrameType, OpenBatch, decode_share
from checkpoint.link import Link
from checkpoint.runtime import runtime
from dataflow import limits
from dataflow.state.scratch import of_scratch, scratch_directory
from dataflow.worker.partitioning import decode_batch
from dos_protocol.errors import RemoteProtocolError

Payload: TypeAlias = bytes | bytearray | memoryview
"""Of a DATA frame: an Arrow IPC stream of one batch."""


class HeldRows:
    """The rows of a share for one source: payloads in order, in memory or in an unlinked file. One thread
    adds all of them, then one takes them. scratch: as of `scratch_directory`.
    """

    def __init__(self, scratch: str = "") -> None:
        self._scratch = scratch
        self._payloads: deque[Payload | int] = deque()
        """A payload, or the size of one in the file."""
        self._file: Any = None
        self._reads = False
        self.memory_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._payloads)

    def keep(self, payload: Payload) -> None:
        """Add a payload in memory."""
        self._payloads.append(payload)
        self.memory_bytes += len(payload)

    def spill(self, payload: Payload) -> None:
        """Add a payload on the disk. Raises UserFault if that fails: the share is not whole then."""
        with of_scratch(self._scratch, "rows of a batch could not be written"):
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - it lives as long as this
                    dir=scratch_directory(self._scratch)
                )
                weakref.finalize(self, self._file.close)
            self._file.write(payload)
        self._payloads.append(len(payload))

    def take(self, schema: pa.Schema) -> tuple[pa.RecordBatch, int]:
        """See `ShareRows.take`."""
        payload = self._taken()
        return decode_batch(payload, schema), len(payload)

    def _taken(self) -> Payload:
        payload = self._payloads.popleft()
        if not isinstance(payload, int):
            self.memory_bytes -= len(payload)
            return payload
        with of_scratch(self._scratch, "rows of a batch could not be read"):
            if not self._reads:
                self._reads = True
                self._file.seek(0)
            data: bytes = self._file.read(payload)
            if len(data) != payload:
                raise OSError(f"{len(data)} of {payload} bytes are there")
        return data


HeldShare: TypeAlias = dict[str, HeldRows]
"""Source -> the rows of this worker's share of a batch."""


class HeldShares:
    """The shares that tasks have sent to this worker in one incarnation. inputs: the sources that they feed,
    by the channel of a DATA frame. scratch: as of `scratch_directory`.
    """

    def __init__(self, inputs: Sequence[str], scratch: str) -> None:
        self._inputs = inputs
        self._scratch = scratch
        self._held: dict[tuple[int, int, str], HeldShare] = {}
        """(number, time, attempt) -> the whole share."""
        self._in_memory: weakref.WeakSet[HeldRows] = weakref.WeakSet()
        """Also of shares that are being received, or read by the circuit."""

    async def receive(self, link: Link) -> BatchShare:
        """Receive a whole share. Raises LinkClosedError, BrokenConnectionError; ControlMessageError and
        RemoteProtocolError for what no task sends; UserFault if the disk fails.
        """
        share = decode_share(await link.receive())
        rows = {name: HeldRows(self._scratch) for name in self._inputs}
        self._in_memory.update(rows.values())
        received = 0
        while (frame := await link.receive()).type is FrameType.DATA:
            if frame.channel >= len(self._inputs):
                raise RemoteProtocolError(f"a share has rows of input {frame.channel} of {len(self._inputs)}")
            into = rows[self._inputs[frame.channel]]
            held = sum(one.memory_bytes for one in self._in_memory)
            if held + len(frame.payload) <= limits.share_memory_bytes_max:
                into.keep(frame.payload)
            else:
                await runtime().in_thread(into.spill, frame.payload)
            received += 1
        # A share that is taken for whole and is not would lose rows: the task keeps none after the record.
        if frame.type is not FrameType.STEP_END or frame.seq != received:
            raise RemoteProtocolError(f"a share of {received} frames ends with {frame.type.name} {frame.seq}")
        self._held[share.number, share.time_us, share.attempt] = rows
        return share

    def take(self, order: OpenBatch) -> HeldShare:
        """Return the share of the attempt that is opened, and drop all others."""
        # Not before: a share may be the one that is opened, also when the link of its task has ended.
        rows = self._held.pop((order.number, order.time_us, order.attempt), None)
        assert rows is not None, f"{order} was sent, and this worker has acknowledged no such share"
        self._held.clear()
        return rows
