"""Sources whose input lies in the store: a split is what one writer wrote there, read ahead by the link
thread.

Rules of this file: which pieces a step takes, and the proof that a replay takes the same. The circuit thread
waits for no network: what is not there yet is read in a later step. Who reads ahead, and from where, is
`dataflow/worker/prefetching.py`'s.

A position in a split is where its last piece ended, with the digest of everything up to there. Within a step
the splits come one after the other and none comes twice, so that the division alone (split, from, to; in
order) says in which order the rows came: a replay gives them in the same. The next step begins with the next
split: no busy writer holds up the others. Where event time is taken from the rows, each turn is that of the
split whose watermark is least (`turns.py`).
"""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from checkpoint.core.inputs import InputPiece
from checkpoint.core.manifest import SplitPosition
from dataflow.core.event_time import SourceTime
from dataflow.errors import InputChangedError, InputReadError
from dataflow.operators.base import OperatorContext
from dataflow.schema import schema_text
from dataflow.sources.base import (
    BatchPiece,
    Division,
    Positions,
    SourceBatch,
    SourceReader,
    SourceSpec,
    SplitDivision,
)
from dataflow.sources.prefetch_buffer import PrefetchBuffer
from dataflow.sources.round_robin import RoundRobin
from dos_client import Store
from dos_protocol.digests import digest64


class Follower(Protocol):
    """Reads one split on from a position."""

    @property
    def seen(self) -> int:
        """The position up to which it was read."""
        ...

    def poll(self) -> AsyncGenerator[InputPiece]:
        """What has come since; ends."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Until there may be more, at most so long."""
        ...

    def close(self) -> None:
        """Wait for nothing any more. On the trio run of the waits."""
        ...


class PrefetchOrigin(Protocol):
    """Something in the store that has splits. All methods may raise QuorumUnavailableError."""

    async def splits(self) -> list[str]:
        """Those that are there by now."""
        ...

    async def ends(self) -> dict[str, int] | None:
        """Split -> the position at its end, if no more will ever come; else None."""
        ...

    def follower(self, split: str, at: int, digest: int) -> Follower:
        """(0, 0) is the beginning of a split."""
        ...

    async def present(self) -> Mapping[str, Follower]:
        """For each split that is there by now one that stands at its end."""
        ...


class PrefetchedSource(SourceSpec):
    """The description of a source that is fed from the store."""

    runs_outside: ClassVar[bool] = True
    what: ClassVar[str]
    """What a split is, for people."""
    schema: pa.Schema

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return self.schema

    def open(self, context: OperatorContext) -> "PrefetchedReader":
        return PrefetchedReader(self.schema, f"{self.what} {context.operator!r}")

    @abstractmethod
    def origin(self, store: Store, application: str) -> "PrefetchOrigin":
        """Where it is read from."""

    @abstractmethod
    def owner(self, split: str, workers: int) -> int:
        """The worker that reads a split: every worker knows it of every split, also of one that comes
        later.
        """


def owner_by_name(split: str, workers: int) -> int:
    """Spreads splits whose names say nothing."""
    return digest64(split.encode()) % workers


class PrefetchedReader(SourceReader):
    """A worker's splits, in turns."""

    def __init__(self, schema: pa.Schema, where: str) -> None:
        self._schema = schema
        self._where = where
        self._buffer = PrefetchBuffer()
        self.reset()

    def attach(self, buffer: PrefetchBuffer) -> None:
        """Read from here in this incarnation."""
        self._buffer = buffer

    def reset(self) -> None:
        self._at: Positions = {}
        self._division: Division = {}
        self._split = ""
        """The one that is being read."""
        self._turns = RoundRobin()

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self.reset()
        self._at = dict(positions)

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def has_input(self) -> bool:
        return self._buffer.has_any

    @property
    def is_idle(self) -> bool:
        return not self._at

    @property
    def exhausted(self) -> bool:
        return self._buffer.is_over

    def time_now(self) -> SourceTime:
        return self._buffer.time_now()

    def read(self, bytes_max: int) -> SourceBatch | None:
        pieces: list[InputPiece] = []
        rows: list[pa.RecordBatch] = []
        size = 0
        split = None if self.reached is None else self._turns.next(self._buffer.splits(), self.reached)
        if split is None and self.reached is not None:
            return None
        while size < bytes_max:
            piece = self._next_piece() if split is None else self._buffer.take(split)
            if piece is None:
                break
            self._note(piece)
            pieces.append(piece)
            found = self._rows_of(piece)
            rows += found
            size += max(len(piece.data), sum(one.nbytes for one in found))  # it may be packed
        return self._batch(pieces, rows) if pieces else None

    def _next_piece(self) -> InputPiece | None:
        if self._split in self._division and (piece := self._buffer.take(self._split)) is not None:
            return piece
        splits = self._buffer.splits()
        after = [
            split for split in splits if split > self._split
        ] + splits  # in turns, over the end of the list
        chosen = next((split for split in after if split not in self._division), None)
        if chosen is None:
            return None
        self._split = chosen
        return self._buffer.take(chosen)

    def _note(self, piece: InputPiece) -> None:
        at = self._at.get(piece.split, SplitPosition(0))
        begin = self._division[piece.split].begin if piece.split in self._division else at.position
        self._division[piece.split] = SplitDivision(begin, piece.end, piece.digest)
        self._at[piece.split] = SplitPosition(piece.end, piece.digest)

    def take_division(self) -> Division:
        division, self._division = self._division, {}
        self._turns.step_over()
        return division

    def positions(self) -> Positions:
        return dict(self._at)

    # --- replaying ------------------------------------------------------------------------------------------

    def can_replay(self, division: Division) -> bool:
        missing = [split for split, part in division.items() if not self._buffer.reaches(split, part.end)]
        return not missing

    def replay(self, division: Division) -> list[SourceBatch]:
        batches = []
        for split, part in division.items():
            at = self._at.get(split, SplitPosition(0)).position
            if at != part.begin:
                raise InputChangedError(self._of(split), part.begin, f"a step from {part.begin}", f"{at}")
            pieces = []
            while self._at.get(split, SplitPosition(0)).position < part.end:
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
            batches.append(self._batch(pieces, [rows for one in pieces for rows in self._rows_of(one)]))
        return batches

    # --- rows -----------------------------------------------------------------------------------------------

    def _batch(self, pieces: Sequence[InputPiece], found: Sequence[pa.RecordBatch]) -> SourceBatch:
        table = pa.Table.from_batches(found, self._schema).combine_chunks()
        rows = table.to_batches()
        batch = rows[0] if rows else pa.RecordBatch.from_pylist([], self._schema)
        where = tuple(BatchPiece(piece.split, piece.begin, piece.end, 0) for piece in pieces)
        size = sum(len(piece.data) for piece in pieces)
        return SourceBatch(batch, where, size, ends_unit=pieces[-1].last)

    def _rows_of(self, piece: InputPiece) -> list[pa.RecordBatch]:
        try:
            with pa.ipc.open_stream(piece.data) as reader:
                found = reader.schema
                batches = list(reader)
        except (pa.ArrowInvalid, OSError) as error:  # OSError: what was packed cannot be unpacked
            raise InputReadError(f"{self._at_piece(piece)} are no rows: {error}") from error
        if not found.equals(self._schema):
            raise InputReadError(
                f"{self._at_piece(piece)} have columns {schema_text(found)},"
                f" and {schema_text(self._schema)} are read",
                remedy="write and read with one schema; another one needs another handle",
            )
        return batches

    # --- for people -----------------------------------------------------------------------------------------

    def describe(self, source: SourceBatch, row: int | None) -> str:
        del row
        first, last = source.pieces[0], source.pieces[-1]
        if first.split == last.split:
            return f"{self._of(first.split)}, from {first.begin} to {last.end}"
        return f"{self._of(first.split)}, from {first.begin}, to {self._of(last.split)}, {last.end}"

    def counters(self) -> dict[str, int]:
        return {"splits": len(self._at)}

    def _of(self, split: str) -> str:
        return f"{self._where}, {split}"

    def _at_piece(self, piece: InputPiece) -> str:
        return f"the bytes from {piece.begin} to {piece.end} of {self._of(piece.split)}"
