"""Sources whose input is in the store: each split is what one writer wrote, read ahead by the link thread.

The circuit thread never waits for the network: what has not arrived yet is read in a later step. A position
is the end of a split's last piece, with the digest of everything before. Within a step each split is read at
most once, one after the other, so the division determines the order of the rows; the next step starts with
the next split, so that a busy writer does not delay the others.
"""

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, Final, NamedTuple, Protocol

import pyarrow as pa

from checkpoint import InputPiece, SplitPosition
from dataflow import limits
from dataflow.core.event_time import InputMarks, SourceTime, is_time
from dataflow.errors import InputChangedError, InputReadError, SchemaError, UserFault
from dataflow.operators.base import OperatorContext
from dataflow.schema import schema_text
from dataflow.sources import base
from dataflow.sources.base import RoundRobin
from dataflow.values.columns import concatenated
from dataflow.values.schema_fit import Misfit, SchemaFit, fit_of
from dos_client import Store


class PrefetchBuffer:
    """The prefetched input of one source in one incarnation: pieces by split. The link thread adds them and
    waits for room; the circuit thread takes them and never waits. woken: called by the link thread when the
    circuit may have work. roomy: called by the circuit thread when there is room again.
    """

    def __init__(
        self, *, woken: Callable[[], None] = lambda: None, roomy: Callable[[], None] = lambda: None
    ) -> None:
        self.counters: Mapping[str, int] = {}
        """What the link thread has reported of the source."""
        self._reported = False
        self._woken = woken
        self._roomy = roomy
        self._lock = threading.Lock()
        self._pieces: dict[str, deque[InputPiece]] = {}
        self._bytes: dict[str, int] = {}
        self._total = 0
        self._count = 0
        self._wanted: dict[str, int] = {}
        """Split -> position: a replay needs all input up to there before it can continue."""
        self._complete = False
        self._known: set[str] | None = None
        """Splits of this worker that may still have input; None: not listed yet."""
        self._caught_up: set[str] = set()
        """Those of them that had nothing more when they were polled last."""
        self._resting: set[str] = set()
        """Those of them of which nothing is expected now: they hold no watermark back."""
        self._beyond: dict[str, int] = {}
        """Split -> bytes that did not fit into the buffer, when they were last measured."""

    # --- the link thread ------------------------------------------------------------------------------------

    def has_room(self, split: str) -> bool:
        """Whether to add more of this split. One piece, and all that a replay needs, is always allowed."""
        with self._lock:
            waiting = self._pieces.get(split)
            if not waiting or waiting[-1].end < self._wanted.get(split, 0):
                return True
            return self._bytes[split] < limits.feed_split_bytes_max and self._total < limits.feed_bytes_max

    def put(self, piece: InputPiece) -> None:
        with self._lock:
            self._pieces.setdefault(piece.split, deque()).append(piece)
            self._bytes[piece.split] = self._bytes.get(piece.split, 0) + len(piece.data)
            self._total += len(piece.data)
            self._count += 1
        self._woken()

    def known(self, splits: Iterable[str]) -> None:
        """Add listed splits. Call it before any piece of them is added."""
        with self._lock:
            self._known = {*(self._known or ()), *splits}

    def polled(self, split: str, *, caught_up: bool, rests: bool = False) -> None:
        """Note that a split was polled, and whether all its current input is here. rests: nothing more is
        expected.
        """
        with self._lock:
            news = caught_up and split not in self._caught_up
            (self._caught_up.add if caught_up else self._caught_up.discard)(split)
            if caught_up:
                self._beyond.pop(split, None)
            (self._resting.add if rests else self._resting.discard)(split)
        if news:
            self._woken()

    def measured(self, split: str, beyond: int) -> None:
        """Note how many bytes of a split follow those in the buffer."""
        with self._lock:
            self._beyond[split] = beyond

    def at_end(self, split: str) -> None:
        """Note that all of a split is in the buffer and no more will follow."""
        with self._lock:
            (self._known or set()).discard(split)

    def complete(self) -> None:
        """Note that all splits are at their end."""
        with self._lock:
            self._complete = True
        self._woken()

    def report(self, counters: Mapping[str, int]) -> None:
        self.counters, self._reported = counters, True
        self._woken()

    # --- the circuit ----------------------------------------------------------------------------------------

    def take_report(self) -> bool:
        """Return whether the counters were replaced since the last call."""
        reported, self._reported = self._reported, False
        return reported

    def splits(self) -> list[str]:
        """Return the names of the splits with pieces, sorted."""
        with self._lock:
            return sorted(split for split, pieces in self._pieces.items() if pieces)

    @property
    def has_any(self) -> bool:
        with self._lock:
            return self._count > 0

    @property
    def backlog_bytes(self) -> int | None:
        """The input that was not taken, as far as it was measured; None before the splits were listed."""
        with self._lock:
            return None if self._known is None else self._total + sum(self._beyond.values())

    @property
    def is_over(self) -> bool:
        """Whether everything was taken and nothing more will follow."""
        with self._lock:
            return self._complete and not self._count

    def time_now(self) -> SourceTime:
        """Return which splits hold the watermark back, including those without any recorded row."""
        with self._lock:
            waiting = {split for split, pieces in self._pieces.items() if pieces}
            known = (self._known or set()) - self._resting
            quiet = (known & self._caught_up) - waiting
            behind = waiting | (known - self._caught_up)
            over = self._complete and not self._count
            return SourceTime(over, self._known is not None, behind=behind, caught_up=quiet)

    def reaches(self, split: str, position: int) -> bool:
        """Whether all of a split up to a position is here; if not, it is fetched regardless of room."""
        with self._lock:
            waiting = self._pieces.get(split)
            if waiting and waiting[-1].end >= position:
                return True
            self._wanted[split] = position
        self._roomy()
        return False

    def goes_back(self, split: str, *, to: int | None = None, below: int = 0) -> bool:
        """Whether the next piece of a split is of a line of history above 0, and begins at or below a
        position.
        """
        with self._lock:
            waiting = self._pieces.get(split)
            if not waiting or not waiting[0].line:
                return False
            begin = waiting[0].begin
            return begin < below if to is None else begin == to

    def take(self, split: str) -> InputPiece | None:
        """Return the next piece of a split, None if there is none currently."""
        with self._lock:
            waiting = self._pieces.get(split)
            if not waiting:
                return None
            piece = waiting.popleft()
            self._bytes[split] -= len(piece.data)
            self._total -= len(piece.data)
            self._count -= 1
        self._roomy()
        return piece


_BEGIN: Final = ("first", "retained")


class Follower(Protocol):
    """Reads one split from a position on."""

    @property
    def seen(self) -> int:
        """The position up to which it was read."""
        ...

    def poll(self) -> AsyncGenerator[InputPiece]:
        """Yield the pieces that have arrived since the last call, then end."""
        ...

    async def end(self) -> int:
        """Return the position up to which there is input now, at least as far as `poll` would yield."""
        ...

    async def rests(self) -> bool:
        """Return whether nothing is expected of the split until it has input again."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Wait until there may be more, at most `timeout_s` seconds."""
        ...

    def close(self) -> None:
        """End all waits. Must be called in the trio run of the waits."""
        ...


class Reading(NamedTuple):
    """Who reads: the source `name` of a region of an application. In a fork, those of its original."""

    application: str
    region: str = ""
    name: str = ""
    is_fork: bool = False


class PrefetchOrigin(Protocol):
    """Something in the store that has splits. All methods may raise QuorumUnavailableError."""

    async def register(self, region: str, source: str) -> None:
        """Register a source of a region as a consumer, durably. Called before it is read."""
        ...

    async def splits(self) -> list[str]:
        """Return the splits that exist now."""
        ...

    async def ends(self) -> dict[str, int] | None:
        """Return split -> its end position if no more input will come; otherwise None."""
        ...

    def follower(self, split: str, at: SplitPosition) -> Follower:
        """Return a follower that starts at a position."""
        ...

    async def latest(self) -> Mapping[str, SplitPosition]:
        """Return the end of each split that has one now, as positions of a checkpoint."""
        ...

    async def present(self) -> Mapping[str, Follower]:
        """Return for each existing split a follower at its end."""
        ...


class PrefetchedSource(base.SourceSpec):
    """The description of a source that is fed from the store."""

    runs_outside: ClassVar[bool] = True
    what: ClassVar[str]
    """What a split is, for messages."""
    store_url: ClassVar[str] = ""
    """The store that it is read from; "": the store of the region."""
    schema: pa.Schema

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return self.schema

    def open(self, context: OperatorContext) -> "PrefetchedReader":
        return PrefetchedReader(self.schema, f"{self.what} {context.operator!r}")

    def why_endless(self) -> str:
        return ""

    def redeal(self, positions: Sequence[base.Positions], worker: int, workers: int) -> base.Positions:
        return base.own_positions(positions, lambda split: self.owner(split, workers) == worker)

    @abstractmethod
    def origin(self, store: Store, reader: "Reading") -> "PrefetchOrigin":
        """Return where it is read from."""

    @abstractmethod
    def owner(self, split: str, workers: int) -> int:
        """Return the worker that reads a split, the same everywhere, also of splits that appear later."""


def check_begin(begin: str) -> str:
    """Return `begin`, where a region without a checkpoint begins. Raises SchemaError for any other value."""
    if begin not in _BEGIN:
        raise SchemaError(f"begin must be {' or '.join(map(repr, _BEGIN))}, not {begin!r}")
    return begin


class PrefetchedReader(base.SourceReader):
    """Reads a worker's splits in turns."""

    def __init__(
        self, schema: pa.Schema, label: str, *, is_read_here: bool = True, late: bool = False
    ) -> None:
        """is_read_here: whether this worker may have splits. late: read the late rows only."""
        self._schema = schema
        self._label = label
        self._is_read_here = is_read_here
        self._late = late
        self._fit: tuple[pa.Schema, SchemaFit] | None = None
        """The last schema that was not this one, and how its rows fit."""
        self._buffer = PrefetchBuffer()
        self._clear()

    def attach(self, buffer: PrefetchBuffer) -> None:
        self._buffer = buffer

    def _clear(self) -> None:
        self._at: base.Positions = {}
        self._division: base.SourceDivision = {}
        self._split = ""
        """The split that is being read."""
        self._turns = RoundRobin()
        self._marks = InputMarks()

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self._clear()
        self._at = dict(positions)

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def has_input(self) -> bool:
        return self._buffer.has_any

    @property
    def backlog_bytes(self) -> int | None:
        return self._buffer.backlog_bytes

    @property
    def exhausted(self) -> bool:
        return self._buffer.is_over

    def time_now(self) -> SourceTime:
        return self._buffer.time_now()._replace(is_read_here=self._is_read_here)

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        pieces: list[InputPiece] = []
        rows: list[list[pa.RecordBatch]] = []
        size = 0
        split = None if self.reached is None else self._turns.next(self._buffer.splits(), self.reached)
        if split is None and self.reached is not None:
            return None
        while size < bytes_max:
            if split is None:
                piece = self._next_piece()
            else:
                piece = None if self._goes_back(split) else self._buffer.take(split)
            if piece is None:
                break
            self._note(piece)
            pieces.append(piece)
            batches = self._rows_of(piece)
            rows.append(batches)
            # the piece may be compressed, so its size says little about the rows
            size += max(len(piece.data), sum(one.nbytes for one in batches))
        return self._batch(pieces, rows) if pieces else None

    def _next_piece(self) -> InputPiece | None:
        if self._split in self._division and not self._goes_back(self._split):
            piece = self._buffer.take(self._split)
            if piece is not None:
                return piece
        splits = self._buffer.splits()
        after = [
            split for split in splits if split > self._split
        ] + splits  # round robin: start after the last split and wrap around
        chosen = next((split for split in after if split not in self._division), None)
        if chosen is None:
            return None
        self._split = chosen
        return self._buffer.take(chosen)

    def _goes_back(self, split: str) -> bool:
        """Whether the next piece of a split is of another line of history: the next step reads it."""
        return split in self._division and self._buffer.goes_back(split, below=self._at[split].position)

    def _note(self, piece: InputPiece) -> None:
        at = self._at.get(piece.split, SplitPosition(0))
        first = min(at.position, piece.begin)  # below: a line of history branched off there
        begin = self._division[piece.split].begin if piece.split in self._division else first
        self._division[piece.split] = base.SplitDivision(begin, piece.end, piece.digest)
        self._at[piece.split] = SplitPosition(piece.end, piece.digest, line=piece.line, epoch=piece.epoch)
        if (mark := piece.mark) is not None:
            self._marks.marked("", piece.split, mark.mark, origin=mark.origin, version=mark.version)

    def take_division(self) -> base.SourceDivision:
        division, self._division = self._division, {}
        self._turns.step_over()
        return division

    def positions(self) -> base.Positions:
        return dict(self._at)

    # --- replaying ------------------------------------------------------------------------------------------

    def can_replay(self, division: base.SourceDivision) -> bool:
        missing = [split for split, part in division.items() if not self._buffer.reaches(split, part.end)]
        return not missing

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        batches = []
        for split, part in division.items():
            at = self._at.get(split, SplitPosition(0)).position
            if at != part.begin and not self._buffer.goes_back(split, to=part.begin):
                raise InputChangedError(self._of(split), part.begin, f"a step from {part.begin}", f"{at}")
            pieces: list[InputPiece] = []
            while (pieces[-1].end if pieces else part.begin) < part.end:
                piece = self._buffer.take(split)
                if piece is None or piece.end > part.end:
                    found = "less" if piece is None else f"a piece that ends at {piece.end}"
                    raise InputChangedError(self._of(split), part.end, "a piece that ends there", found)
                self._note(piece)
                pieces.append(piece)
            found_digest = self._at[split].digest
            if found_digest != part.digest:
                expected = f"content with digest {part.digest:016x}"
                raise InputChangedError(self._of(split), part.end, expected, f"{found_digest:016x}")
            batches.append(self._batch(pieces, [self._rows_of(one) for one in pieces]))
        return batches

    # --- rows -----------------------------------------------------------------------------------------------

    def _batch(
        self, pieces: Sequence[InputPiece], by_piece: Sequence[Sequence[pa.RecordBatch]]
    ) -> base.SourceBatch:
        batches = [one for batches in by_piece for one in batches]
        ends = accumulate(sum(one.num_rows for one in batches) for batches in by_piece)
        try:
            batch = concatenated(batches, self._schema)
        except pa.ArrowInvalid as error:
            raise InputReadError(
                f"{self._at_piece(pieces[-1])} have, with what the step took before, over 2 GiB"
                f" of text or lists in one column: {error}",
                remedy="write fewer rows in each batch of the input",
            ) from error
        origins = tuple(
            base.BatchPiece(piece.split, piece.begin, piece.end, at)
            for piece, at in zip(pieces, (0, *ends), strict=False)
        )
        # a mark counts too: a size of 0 would end the step's reading
        size = sum(len(piece.data) or 1 for piece in pieces)
        marks = tuple((piece.split, piece.mark) for piece in pieces if piece.mark is not None)
        return base.SourceBatch(batch, origins, size, ends_unit=pieces[-1].last, marks=marks)

    def _rows_of(self, piece: InputPiece) -> list[pa.RecordBatch]:
        data = piece.late if self._late else piece.data
        if piece.mark is not None or (self._late and not data):
            return []
        try:
            with pa.ipc.open_stream(data) as reader:
                found = reader.schema
                batches = list(reader)
        except (pa.ArrowInvalid, OSError) as error:  # OSError: compressed data cannot be decompressed
            raise InputReadError(f"{self._at_piece(piece)} are not valid rows: {error}") from error
        return batches if found.equals(self._schema) else self._fitted(piece, found, batches)

    def _fitted(
        self, piece: InputPiece, found: pa.Schema, batches: Sequence[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """Return the rows of an older or a newer writer with the columns of this source. Only after the
        digest of the piece: a replay compares what is stored, and decides here as the first time.
        """
        if self._fit is None or not found.equals(self._fit[0]):
            fit = fit_of(self._schema, found)
            if isinstance(fit, Misfit):
                raise InputReadError(
                    f"{self._at_piece(piece)} have columns {schema_text(found)},"
                    f" expected {schema_text(self._schema)}: {fit}",
                    remedy=fit.remedy,
                )
            self._fit = found, fit
        try:
            return [self._fit[1].fitted(batch) for batch in batches]
        except UserFault as fault:
            raise InputReadError(
                f"{self._at_piece(piece)} are not rows of their own schema: {fault}",
                remedy="repair the program that wrote them; a producer of this package checks its rows",
            ) from fault

    # --- For display ----------------------------------------------------------------------------------

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        if row is not None:
            piece = next(piece for piece in reversed(source.pieces) if piece.at <= row)
            return f"{self._of(piece.split)}, row {row - piece.at} of those from {piece.begin} to {piece.end}"
        first, last = source.pieces[0], source.pieces[-1]
        if first.split == last.split:
            return f"{self._of(first.split)}, from {first.begin} to {last.end}"
        return f"{self._of(first.split)}, from {first.begin}, to {self._of(last.split)}, {last.end}"

    def take_report(self) -> bool:
        return self._buffer.take_report()

    def counters(self) -> dict[str, int]:
        mark = self._marks.of_source("", SourceTime()).watermark
        marked = {"mark_us": mark} if is_time(mark) else {}
        return {"splits": len(self._at), **marked, **self._buffer.counters}

    def _of(self, split: str) -> str:
        return f"{self._label}, {split}"

    def _at_piece(self, piece: InputPiece) -> str:
        return f"the bytes from {piece.begin} to {piece.end} of {self._of(piece.split)}"
