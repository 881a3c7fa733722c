"""Replay the records of one span in order, each with its position, up to an explicit stop. Pure: no I/O.

The chain determines the spans, the shell supplies their bytes, and the caller applies the records. `fold`
applies them, so that a stop has the same meaning everywhere.

A replay returns the start record of the span, then its records. It omits the records of an unfinished
snapshot: its writer died, and the spans below hold the state that it copied. At the end of the span, length
and digest must match those of the chain. If this check fails, discard all records that were returned before
it.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from dos_protocol.digests import PrefixDigest
from journal.core.chain import SegmentSpan
from journal.core.decoder import Decoded, RecordDecoder
from journal.core.errors import ChainError, StopNotFoundError
from journal.core.position import Position
from journal.core.record import Record
from journal.core.scan import SnapshotTracker
from journal.core.segment import parse_start
from journal.ops import Op

State = TypeVar("State")
Step = tuple[Position, Record]
"""(the position just past the record, the record)"""
_SNAPSHOT_BEGINS_AS: Final = 2
"""The number of the only record in a segment that may be a SNAPSHOT_BEGIN (`SnapshotTracker`)."""


class SpanReplay:
    """The replay of one span. Feed it exactly `span.length` bytes, then call `finish`. Buffers one record.

    stopped: whether the span was shortened to end at a stop.

    Raises CorruptRecordError, UnknownRecordError, ChainError. If the span ends inside a record, `finish`
    raises StopNotFoundError if `stopped`, otherwise TornRecordError.
    """

    def __init__(self, span: SegmentSpan, *, stopped: bool = False) -> None:
        self._span = span
        self._stopped = stopped
        self._epoch = span.end.epoch
        self._decoder = RecordDecoder(where=span.name)
        self._tracker = SnapshotTracker(span.name)
        self._digest = PrefixDigest()
        self._at = 0
        self._records = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[Step]:
        """Feed the next bytes of the span and return the records that are complete."""
        view, offset = memoryview(data), self._digest.size
        digest, epoch, base = self._digest, self._epoch, self._span.base
        out: list[Step] = []
        for end, record in self._decoded(data):
            digest.update(view[digest.size - offset : end - offset])
            out.append((Position(epoch, base + end, digest.value), record))
        digest.update(view[digest.size - offset :])
        return out

    def feed_plain(self, data: bytes) -> list[Decoded]:
        """Feed the next bytes and return the records, each with the logical offset just past it.

        Faster than `feed`, because the digest of a position costs as much as the rest of the replay. Use it
        if no position within the chain is needed.
        """
        base, decoded = self._span.base, self._decoded(data)
        self._digest.update(data)
        return [(base + end, record) for end, record in decoded] if base else decoded

    def _decoded(self, data: bytes) -> list[Decoded]:
        """Return the complete records, after the check of their order, without those of an unfinished
        snapshot.
        """
        decoded = self._decoder.feed(data)
        if decoded and not self._at:
            parse_start(decoded[0][1], self._span.name)
        self._tracker.take_all(self._at, decoded)
        self._at = self._decoder.offset
        before, self._records = self._records, self._records + len(decoded)
        if before < _SNAPSHOT_BEGINS_AS and not self._span.snapshot_end:
            for number, (_, record) in enumerate(decoded[: _SNAPSHOT_BEGINS_AS - before]):
                if record.op is Op.SNAPSHOT_BEGIN:
                    self._skipping = True
                    return decoded[:number]
        return [] if self._skipping else decoded

    def finish(self) -> None:
        """End the span: check its length and digest against those of the chain."""
        span = self._span
        if self._digest.size != span.length:
            raise ChainError(
                span.name, self._digest.size, f"{span.length} bytes, as the chain says", "the end"
            )
        torn = self._decoder.finish()
        if self._digest.value != span.digest:
            expected, found = f"prefix digest {span.digest:016x}", f"{self._digest.value:016x}"
            raise ChainError(span.name, span.length, expected, found, "nothing read of this span may be used")
        if torn is not None and self._stopped:
            raise StopNotFoundError(
                f"position {span.end} lies inside the record that begins at {span.base + torn.offset}"
            ) from torn
        if torn is not None:
            raise torn


def fold(
    steps: Iterable[Step], state: State, apply: Callable[[State, Record], State], stop: Position | None = None
) -> State:
    """Apply each record in order up to `stop` (None: the end), and return the final state.

    Raises StopNotFoundError if no record ends at `stop`.
    """
    if stop is not None and stop.size == 0:
        return state
    for position, record in steps:
        if stop is not None and (position.size > stop.size):
            break
        state = apply(state, record)
        if position == stop:
            return state
    if stop is not None:
        raise StopNotFoundError(f"no record ends at position {stop}")
    return state
