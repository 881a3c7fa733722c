"""Build what a worker sends at the end of a stage: frames for its peers, and its own share, which stays
local.

It runs on the circuit thread. It converts batches and watermarks to frames, in order; it makes no decisions
and knows no links.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from checkpoint import Alignment, ChannelFrame, FrameFlag, FrameType, job_digest
from dataflow.core.event_time import Watermark, encode_watermark
from dataflow.core.plan import StagePlan
from dataflow.core.retained_steps import Records
from dataflow.core.schedule import Barrier
from dataflow.worker.circuit import Circuit, Sends
from dataflow.worker.identity import Identity
from dataflow.worker.messages import RestoreCircuit
from dataflow.worker.partitioning import encode_batch, frames_of
from dataflow.worker.stage_input import Item
from dataflow.worker.used_rows import rows_record


class StageOutput:
    """The output of one incarnation. `aligned`: channel -> the alignment that gets the worker's own share."""

    def __init__(
        self,
        circuit: Circuit,
        identity: Identity,
        order: RestoreCircuit,
        stages: Sequence[StagePlan],
        aligned: Mapping[int, Alignment[Item]],
    ) -> None:
        self._circuit = circuit
        self._me = identity
        self._number = order.incarnation
        self._workers = len(order.layout.workers)
        self._local = order.local
        self._job = job_digest(identity.region)
        self._stages = stages
        self._aligned = aligned

    def end_step(
        self, stage: int, step: int, sends: Sends, barrier: Barrier
    ) -> Mapping[int, tuple[ChannelFrame, ...]]:
        """End the step on the channels of a stage: keep the own share, return the frames by peer."""
        frames: dict[int, list[ChannelFrame]] = {w: [] for w in range(self._workers) if w != self._me.worker}
        for channel in self._stages[stage].sends:
            parts = sends.get(channel, [[] for _ in range(self._workers)])
            time = [self._circuit.time.to_send(step, channel)] if self._circuit.time.flows else []
            self._keep(channel, step, [*parts[self._me.worker], *time], barrier)
            for worker, queue in frames.items():
                with self._circuit.calling(self._circuit.exchange(channel), f"the end of step {step}"):
                    queue += self._frames(channel, step, parts[worker], time, barrier)
        return {worker: tuple(queue) for worker, queue in frames.items()}

    def rows(self, stage: int, sends: Sends) -> Records:
        """Return (peer, channel) -> the rows that a stage sends, for local recovery; nothing without it."""
        if not self._local:
            return {}
        return {
            (peer, channel): rows_record(sends[channel][peer] if channel in sends else [])
            for channel in self._stages[stage].sends
            for peer in range(self._workers)
            if peer != self._me.worker
        }

    def _keep(
        self, channel: int, step: int, items: "Sequence[pa.RecordBatch | Watermark]", barrier: Barrier
    ) -> None:
        me, alignment = self._me.worker, self._aligned[channel]
        for seq, item in enumerate(items):
            alignment.data(me, step, seq, (me, item))
        alignment.step_end(me, step, len(items), checkpoint=barrier.checkpoint, final=barrier.final)

    def _frames(
        self,
        channel: int,
        step: int,
        batches: Sequence[pa.RecordBatch],
        time: Sequence[Watermark],
        barrier: Barrier,
    ) -> list[ChannelFrame]:
        me, job, number = self._me.worker, self._job, self._number
        pieces = [(FrameType.DATA, encode_batch(piece)) for batch in batches for piece in frames_of(batch)]
        pieces += [(FrameType.PUNCTUATION, memoryview(encode_watermark(one))) for one in time]
        frames = [
            ChannelFrame(kind, me, job, number, step, seq=seq, channel=channel, payload=piece)
            for seq, (kind, piece) in enumerate(pieces)
        ]
        flags = FrameFlag.FINAL if barrier.final else 0
        seq = len(pieces)
        frames.append(
            ChannelFrame(
                FrameType.STEP_END,
                me,
                job,
                number,
                step,
                barrier.checkpoint,
                seq,
                channel=channel,
                flags=flags,
            )
        )
        return frames
