"""The same tuples by step, as the workers of a region exchange them (docs/decisions/0233): one state machine
for each worker.

Pure: `StepWorker` receives frames and returns the frames to send. Every worker has all operators and reads
its share of the input. The tuples of a step go to the worker that an operator assigns to them, on one
channel for each operator. For each (sender, receiver, channel, step) there are a DATA frame, unless it is
empty, and a STEP_END; for each (sender, receiver, step) there is a DURABLE.

A frame that a worker sends to itself is DURABLE only: the caller appends it to the worker's chain, syncs
the chain, and then calls `handle` with it. No operator runs a step before the chains of all workers have
it. Sent frames are retained. With at-most-once there is no chain, no DURABLE, and nothing is retained.

The take-over of a worker is not implemented here; `tests/models/local_recovery.py` models it. Checkpoints,
which purge the retained frames, are left out: their number depends on time and not on tuples or steps.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from dadstorm_tuples import NodeName

from checkpoint.core.links.frames import ChannelFrame, FrameType
from dataflow.core.regions import Delivery

AHEAD: Final = 2
"""How many steps a worker divides before it has run them."""
_ROW: Final = struct.Struct(">QI")
"""A tuple in DATA: id 8, bytes of the tuple 4."""

StepRow = tuple[int, bytes]
StepOutput = list[tuple[NodeName, ChannelFrame]]


def packed(rows: Sequence[StepRow]) -> bytes:
    """Return the payload of a DATA frame."""
    return b"".join(_ROW.pack(ident, len(content)) + content for ident, content in rows)


def unpacked(payload: bytes) -> Iterator[StepRow]:
    """Yield the tuples of a DATA frame."""
    start = 0
    while start < len(payload):
        ident, size = _ROW.unpack_from(payload, start)
        start += _ROW.size + size
        yield ident, payload[start - size : start]


def label_of_frame(frame: ChannelFrame) -> str:
    """Return the name under which a frame is counted."""
    return frame.type.name


class StepWorker:
    """One of `workers` workers of `operators` operators. `steps`: the tuples that it reads in each step."""

    def __init__(
        self,
        me: NodeName,
        workers: int,
        operators: int,
        delivery: Delivery,
        steps: Sequence[Sequence[StepRow]],
    ) -> None:
        self.me = me
        self.delivered: list[int] = []
        """The ids of the tuples that left the last operator here."""
        self.dead: set[NodeName] = set()
        self.retained: list[ChannelFrame] = []
        self._workers = [NodeName(me.operator, index) for index in range(workers)]
        self._durable = delivery != "at-most-once"
        self._steps = steps
        self._divided = 0
        self._ran = [0] * operators
        """How many steps each operator has run."""
        self._durable_steps = dict.fromkeys(self._workers, 0)
        self._rows: defaultdict[tuple[int, int], list[StepRow]] = defaultdict(list)
        self._ended: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._out: StepOutput = []

    @property
    def idle(self) -> bool:
        """Whether all steps are done."""
        return self._ran[-1] == len(self._steps)

    def start(self) -> StepOutput:
        """Divide the first steps."""
        return self._run_all()

    def handle(self, sender: NodeName, frame: ChannelFrame) -> StepOutput:
        """Return the frames to send after one from `sender`. Frames of one sender come in order."""
        if frame.type is FrameType.DATA:
            self._rows[frame.step, frame.channel] += unpacked(bytes(frame.payload))
        elif frame.type is FrameType.STEP_END:
            self._ended[frame.step, frame.channel] += 1
        else:
            self._durable_steps[sender] = frame.step + 1
            if sender == self.me:
                self._out += [(other, frame) for other in self._workers if other != self.me]
        return self._run_all()

    def down(self, node: NodeName) -> StepOutput:
        """Note that a worker was lost: it is not replaced here, so the others wait for ever unless done."""
        self.dead.add(node)
        return []

    def _run_all(self) -> StepOutput:
        """Divide and run all steps that can be, and return the frames."""
        while self._divide() or any(map(self._run_next, range(len(self._ran)))):
            pass
        out, self._out = self._out, []
        return out

    def _divide(self) -> bool:
        """Read and send the next step, if it is not too far ahead. Return whether it was."""
        step = self._divided
        if step >= min(len(self._steps), self._ran[-1] + AHEAD):
            return False
        self._divided += 1
        if self._durable:
            self._out.append((self.me, self._frame(FrameType.DURABLE, step)))
        self._send(step, 0, self._steps[step])
        return True

    def _run_next(self, channel: int) -> bool:
        """Run the next step of an operator, if all of its tuples are here. Return whether it ran."""
        step = self._ran[channel]
        if self._ended[step, channel] < len(self._workers) or not self._all_have(step):
            return False
        del self._ended[step, channel]
        rows = sorted(self._rows.pop((step, channel), []))
        self._ran[channel] += 1
        if channel + 1 < len(self._ran):
            self._send(step, channel + 1, rows)
        else:
            self.delivered += [ident for ident, _ in rows]
        return True

    def _all_have(self, step: int) -> bool:
        return not self._durable or min(self._durable_steps.values()) > step

    def _send(self, step: int, channel: int, rows: Sequence[StepRow]) -> None:
        """Send the tuples of a step to the workers that process them, and the end of the step to all."""
        count = len(self._workers)
        parts: defaultdict[int, list[StepRow]] = defaultdict(list)
        for row in rows:
            parts[row[0] // count ** (channel + 1) % count].append(row)
        for other in self._workers:
            part = parts[other.replica]
            if other == self.me:
                self._rows[step, channel] += part
                self._ended[step, channel] += 1
                continue
            frames = [self._frame(FrameType.DATA, step, channel, packed(part))] if part else []
            frames.append(self._frame(FrameType.STEP_END, step, channel, seq=len(frames)))
            self._out += [(other, frame) for frame in frames]
            if self._durable:
                self.retained += frames

    def _frame(
        self, kind: FrameType, step: int, channel: int = 0, payload: bytes = b"", seq: int = 0
    ) -> ChannelFrame:
        return ChannelFrame(
            kind, sender=self.me.replica, step=step, channel=channel, seq=seq, payload=payload
        )
