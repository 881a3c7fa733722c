"""What a worker sends at the end of a stage: frames for its peers, and its own share, which stays. Circuit
thread only.

Rules of this file: batches and marks to frames, in order; nothing is decided, and no link is known.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from checkpoint.core.barrier import Alignment
from checkpoint.core.channel_frames import Frame, FrameFlag, FrameType
from checkpoint.core.messages import job_digest
from dataflow.circuit import Circuit, Sends
from dataflow.core.event_time import Mark, encode_mark
from dataflow.core.plan import StagePlan
from dataflow.core.schedule import CutMark
from dataflow.exchange import encode_batch, frames_of
from dataflow.worker_identity import Identity

Item: TypeAlias = "tuple[int, pa.RecordBatch | bytes | bytearray | memoryview | Mark]"
"""(sender, batch): one's own as it is, a peer's as it came, decoded when its step runs; or (sender, mark)."""


class Sending:
    """Of one incarnation. `aligned`: where its own share goes, by channel."""

    def __init__(
        self,
        circuit: Circuit,
        identity: Identity,
        incarnation: int,
        stages: Sequence[StagePlan],
        aligned: Mapping[int, Alignment[Item]],
    ) -> None:
        self._circuit = circuit
        self._me = identity
        self._number = incarnation
        self._job = job_digest(identity.region)
        self._stages = stages
        self._aligned = aligned

    def end_step(self, stage: int, step: int, sends: Sends, mark: CutMark) -> Mapping[int, tuple[Frame, ...]]:
        """End the step on the channels of a stage: one's own share at once, frames for the peers."""
        frames: dict[int, list[Frame]] = {w: [] for w in range(self._me.workers) if w != self._me.worker}
        for channel in self._stages[stage].sends:
            parts = sends.get(channel, [[] for _ in range(self._me.workers)])
            time = [self._circuit.time.to_send(step, channel)] if self._circuit.time.flows else []
            self._keep(channel, step, [*parts[self._me.worker], *time], mark)
            for worker, queue in frames.items():
                queue += self._frames(channel, step, parts[worker], time, mark)
        return {worker: tuple(queue) for worker, queue in frames.items()}

    def _keep(self, channel: int, step: int, items: "Sequence[pa.RecordBatch | Mark]", mark: CutMark) -> None:
        me, alignment = self._me.worker, self._aligned[channel]
        for seq, item in enumerate(items):
            alignment.data(me, step, seq, (me, item))
        alignment.step_end(me, step, len(items), cut=mark.cut, final=mark.final)

    def _frames(
        self,
        channel: int,
        step: int,
        batches: Sequence[pa.RecordBatch],
        time: Sequence[Mark],
        mark: CutMark,
    ) -> list[Frame]:
        me, job, number = self._me.worker, self._job, self._number
        pieces = [(FrameType.DATA, encode_batch(piece)) for batch in batches for piece in frames_of(batch)]
        pieces += [(FrameType.PUNCTUATION, memoryview(encode_mark(one))) for one in time]
        frames = [
            Frame(kind, me, job, number, step, seq=seq, channel=channel, payload=piece)
            for seq, (kind, piece) in enumerate(pieces)
        ]
        flags = FrameFlag.FINAL if mark.final else 0
        seq = len(pieces)
        frames.append(
            Frame(FrameType.STEP_END, me, job, number, step, mark.cut, seq, channel=channel, flags=flags)
        )
        return frames
