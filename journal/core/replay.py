"""Replay: a chain's records in order, each with its position, up to an explicit stop.

Rules of this file: it takes the bytes of one span and gives its records; which spans, and where their bytes
come from, is the chain's and the shell's. What records *do* is the caller's: replay is a fold, and `fold`
is here so that a stop means the same everywhere.

What comes out of a span: its start record, then the records, those of a snapshot that was begun and never
ended left out (its writer died; what it copied stands in the spans below). At the span's end its length and
digest must agree with what the chain says. Records handed out before that check fails must be thrown away.
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
"""The record of a segment that may begin a snapshot: no other one may (`SnapshotTracker`)."""


class SpanReplay:
    """Records of one span. Feed it exactly `span.length` bytes, then `finish`. Memory: one unfinished record.

    Raises CorruptRecordError, UnknownRecordError, ChainError; TornRecordError from `finish` if the span ends
    inside a record; StopNotFoundError instead if the span was cut at a stop that lies there.
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
        """The next bytes of the span; the records that are whole by now."""
        view, offset = memoryview(data), self._digest.size
        digest, epoch, base = self._digest, self._epoch, self._span.base
        out: list[Step] = []
        for end, record in self._decoded(data):
            digest.update(view[digest.size - offset : end - offset])
            out.append((Position(epoch, base + end, digest.value), record))
        digest.update(view[digest.size - offset :])
        return out

    def feed_plain(self, data: bytes) -> list[Decoded]:
        """The same records, each with the logical offset just past it and not its position, whose digest
        costs as much as all the rest: the fast way, for who goes back to none of them.
        """
        base, decoded = self._span.base, self._decoded(data)
        self._digest.update(data)
        return [(base + end, record) for end, record in decoded] if base else decoded

    def _decoded(self, data: bytes) -> list[Decoded]:
        """The records that are whole by now, each where it may stand, without those that are left out."""
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
        """All bytes of the span were fed: check what the chain says of them."""
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
    """Apply each record in order, to `stop` and no further; with None to the end.

    Raises StopNotFoundError if no record ends at `stop`; the state folded so far is not returned.
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
