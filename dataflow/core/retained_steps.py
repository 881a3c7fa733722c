"""The steps that a worker retains for its peers until a checkpoint covers them. Pure: frames and numbers.

With local recovery, a peer that is taken over, or whose link broke, gets again what it has not used. DADSTORM
calls this the delivery table (section 5.2). It is also the queue of everything that is to be sent: each peer
has a place in it.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from checkpoint import ChannelFrame, FrameType
from dataflow.errors import StepsMissingError

Frames = tuple[ChannelFrame, ...]


class RowsRecord(NamedTuple):
    """The rows that one worker sends another one in one step on one channel, in a size that does not depend
    on them: their number, and the sum of their hashes modulo 2^64. DADSTORM: a shared tuple record.
    """

    rows: int
    hashes: int


Records = Mapping[tuple[int, int], RowsRecord]
"""(channel, step) -> what was used of it."""


class Held(NamedTuple):
    """What a worker has used of a peer: the last step of each channel, and the records that it kept."""

    used: Mapping[int, int]
    records: Records


class Sent(NamedTuple):
    """The frames that a stage of a step sends to each peer."""

    step: int
    frames: Mapping[int, Frames]


class RetainedSteps:
    """The retained steps of one worker in one term. `after`: the step of the checkpoint it began at."""

    def __init__(self, after: int) -> None:
        self.purged = after
        """Nothing up to this step is retained."""
        self.bytes = 0
        """Of the payloads of all retained frames."""
        self.bytes_in_memory = 0
        """Of those that are not on the disk."""
        self.memory_begin = 0
        """The place of the first entry that is in memory."""
        self.begin = 0
        """The place of the first entry that is retained."""
        self._kept: deque[Sent] = deque()

    @property
    def end(self) -> int:
        """The place after the last entry."""
        return self.begin + len(self._kept)

    def add(self, sent: Sent) -> None:
        """Retain what a stage sends, after everything added before."""
        self._kept.append(sent)
        size = _size(sent)
        self.bytes += size
        self.bytes_in_memory += size

    def purge(self, step: int) -> None:
        """Forget the steps up to this one: a committed checkpoint covers them. An entry that follows one of a
        later step is forgotten with that.
        """
        self.purged = max(self.purged, step)
        while self._kept and self._kept[0].step <= self.purged:
            size = _size(self._kept.popleft())
            self.bytes -= size
            self.begin += 1
            if self.begin > self.memory_begin:
                self.memory_begin = self.begin
                self.bytes_in_memory -= size

    def after(self, place: int) -> Iterator[Sent]:
        """Yield the entries from this place on."""
        for index in range(max(place - self.begin, 0), len(self._kept)):
            yield self._kept[index]

    def to_spill(self, until: int, size: int) -> list[Sent]:
        """Return the oldest entries in memory, below a place and of about this size; nothing if they are
        smaller.
        """
        found: list[Sent] = []
        left = size
        for index in range(self.memory_begin - self.begin, until - self.begin):
            if left <= 0:
                break
            found.append(self._kept[index])
            left -= _size(self._kept[index])
        return found if left <= 0 else []

    def spilled(self, place: int, entries: Sequence[Sent]) -> None:
        """Replace entries in memory, from a place on, by the same ones on the disk."""
        for index, entry in enumerate(entries, place):
            if index >= self.begin:
                self._kept[index - self.begin] = entry
                self.bytes_in_memory -= _size(entry)
        self.memory_begin = max(self.begin, place + len(entries))

    def check_complete(self, held: Held) -> None:
        """Raise StepsMissingError if a peer that has used only this needs steps that are purged."""
        first = min(held.used.values(), default=self.purged)
        if first < self.purged:
            raise StepsMissingError(
                f"it needs the steps after {first}, and those up to {self.purged} are not retained any more"
            )


def unused(sent: Sent, peer: int, held: Held) -> Frames:
    """Return the frames of an entry for a peer, without the channels on which it has used that step."""
    frames = sent.frames.get(peer, ())
    return tuple(frame for frame in frames if sent.step > held.used.get(frame.channel, 0))


def without_rows(frames: Frames) -> Frames:
    """Return the frames without rows, numbered anew. At-most-once sends rows only once."""
    numbers: dict[int, int] = {}
    found = []
    for frame in frames:
        if frame.type is not FrameType.DATA:
            seq = numbers.get(frame.channel, 0)
            numbers[frame.channel] = seq + 1
            found.append(frame._replace(seq=seq))
    return tuple(found)


def _size(sent: Sent) -> int:
    return sum(len(frame.payload) for frames in sent.frames.values() for frame in frames)
