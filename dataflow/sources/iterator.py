"""Rows of a user's iterator that can start at a position.

Within a step each split is read at most once, one after the other, so that the division determines the order
of the rows; its digest is over the rows as JSON, so it does not depend on batches. The next step starts with
the next split.
"""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from checkpoint import SplitPosition
from dataflow.core.event_time import SourceTime
from dataflow.errors import InputChangedError, InputListChangedError, OperatorError, SchemaError, UserFault
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.schema import parse_schema
from dataflow.sources import base
from dataflow.sources.base import RoundRobin, begin_bytes
from dataflow.values.python_rows import FAULTS, batch_of_rows
from dos_protocol.digests import digest64
from dos_protocol.errors import encodable, text_of

PositionedRows: TypeAlias = "Iterable[tuple[int, Mapping[str, Any]] | None]"
"""(position after the row, row), or None: there is no row at present."""

_encode: Final = msgspec.json.Encoder(enc_hook=repr).encode


@dataclass(frozen=True, slots=True, init=False)
class IteratorSource(base.SourceSpec):
    """Reads the rows that `rows(split, position)` yields: a pair (position after the row, row) for each row
    after `position`; 0 is the beginning. Positions are increasing integers; rows are dicts with the declared
    columns. None instead of a pair means that there is no row at present; the iterator is called again after
    `poll_s` seconds. The split ends when the iterator ends.

        IteratorSource(lambda split, at: ((n + 1, {"n": n}) for n in range(at, 9)), "n bigint")

    After a failure `rows` is called with the position of the last checkpoint and must yield the same rows
    again up to where it was: a different row stops the region. splits: names of independently readable
    pieces, assigned to the workers in turn; a later version of the program may append others. Raises
    SchemaError.
    """

    rows: Callable[[str, int], PositionedRows]
    schema: pa.Schema
    splits: tuple[str, ...]
    poll_s: float

    def __init__(
        self,
        rows: Callable[[str, int], PositionedRows],
        schema: "str | pa.Schema",
        *,
        splits: Sequence[str] = ("rows",),
        poll_s: float = 0.5,
    ) -> None:
        if not callable(rows):
            raise SchemaError(f"an IteratorSource needs a function of a split and a position, not {rows!r}")
        if isinstance(splits, str) or not splits or "" in splits or len(set(splits)) != len(splits):
            raise SchemaError(f"splits must be a list of different names, not {splits!r}")
        if bad := [name for name in splits if encodable(name) != name]:
            raise SchemaError(f"the name of a split must be text that UTF-8 can encode, not {bad[0]!r}")
        if not poll_s > 0:
            raise SchemaError(f"poll_s must be a number of seconds above 0, not {poll_s!r}")
        set_fields(self, rows=rows, schema=parse_schema(schema), splits=tuple(splits), poll_s=poll_s)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return self.schema

    def detail(self) -> str:
        return "IteratorSource"

    def redeal(self, positions: Sequence[base.Positions], worker: int, workers: int) -> base.Positions:
        for of_worker in positions:
            _check_splits(of_worker, self.splits, "the program")
        return base.own_positions(positions, self.splits[worker::workers].__contains__)

    def open(self, context: OperatorContext) -> "IteratorReader":
        return IteratorReader(self, context.operator, self.splits[context.worker :: context.workers])


def _check_splits(begun: Iterable[str], splits: Sequence[str], owner: str) -> None:
    """Raise InputListChangedError if a split that was read is not among those of `owner`."""
    # Its rows would be missing, or read again from their beginning by another worker.
    if missing := sorted(set(begun).difference(splits)):
        raise InputListChangedError(
            f"split {missing[0]!r} was read before the checkpoint, and is no longer one of {owner}, which has"
            f" {', '.join(map(repr, splits)) or 'none'}",
            remedy="keep splits= in its order and append new splits at its end; the iterator of a split that"
            " is not to be read any more may end at once",
        )


@dataclass(slots=True)
class _OpenSplit:
    """The state of one split. Invariant: `ahead` is the row after `position`, if it is known."""

    name: str
    position: int = 0
    rows: "Iterator[tuple[int, Mapping[str, Any]] | None] | None" = None
    ahead: tuple[int, Mapping[str, Any]] | None = None
    over: bool = False
    poll_at_s: float = 0.0
    """When to call the iterator next, on the monotonic clock."""


@dataclass(slots=True)
class _Part:
    """The range that a step read of one split."""

    begin: int
    end: int
    digest: int = 0


@dataclass(slots=True)
class _StepRows:
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    pieces: list[base.BatchPiece] = field(default_factory=list)
    size: int = 0


class IteratorReader(base.SourceReader):
    """Reads a worker's splits in turns."""

    def __init__(
        self,
        spec: IteratorSource,
        operator: str,
        splits: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._operator = operator
        self._names = tuple(splits)
        self._clock = clock
        self._clear()

    # --- Position -------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._splits = {name: _OpenSplit(name) for name in self._names}
        self._parts: dict[str, _Part] = {}
        self._last = ""
        """The split that was read last."""
        self._turns = RoundRobin()

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        _check_splits(positions, self._names, "this worker")
        self._clear()
        for name, at in positions.items():
            self._splits[name].position = at.position

    def positions(self) -> base.Positions:
        return {name: SplitPosition(split.position) for name, split in self._splits.items() if split.position}

    @property
    def exhausted(self) -> bool:
        return all(split.over for split in self._splits.values())

    def time_now(self) -> SourceTime:
        left = [split for split in self._splits.values() if not split.over]
        behind = [split.name for split in left if split.rows is None or self._has_row(split)]
        left = [split for split in left if not split.over]  # that one is at its end may have been found now
        quiet = [split.name for split in left if split.name not in behind]
        return SourceTime(not left, behind=behind, caught_up=quiet)

    @property
    def has_input(self) -> bool:
        return any(self._has_row(split) for split in self._splits.values())

    @property
    def wakes_in(self) -> float | None:
        poll_times = [split.poll_at_s for split in self._splits.values() if not split.over]
        return max(0.0, min(poll_times) - self._clock()) if poll_times else None

    # --- The user's rows ------------------------------------------------------------------------------

    def _has_row(self, split: _OpenSplit, *, wait: bool = False) -> bool:
        """Return whether a row is available. wait: a replay knows that it exists. Raises OperatorError."""
        if split.ahead is not None or split.over:
            return split.ahead is not None
        while wait or self._clock() >= split.poll_at_s:
            try:
                if split.rows is None:
                    split.rows = iter(self._spec.rows(split.name, split.position))
                row = next(split.rows, split)
                if row is split:
                    split.over = True
                    return False
                if row is not None:
                    split.ahead = self._checked(split, row)
                    return True
            except FAULTS as error:
                raise self._fault(split, error) from error
            split.poll_at_s = self._clock() + self._spec.poll_s
            if wait:
                time.sleep(self._spec.poll_s)
        return False

    @staticmethod
    def _checked(split: _OpenSplit, yielded: Any) -> tuple[int, Mapping[str, Any]]:
        position, row = yielded
        if not isinstance(position, int) or position <= split.position:
            raise ValueError(
                f"it yielded position {position!r} after {split.position}; positions must increase"
            )
        return position, row

    def _fault(self, split: _OpenSplit, error: BaseException) -> OperatorError:
        position = f"split {split.name!r}, after position {split.position}"
        text = "".join(traceback.format_exception(error))
        return OperatorError(self._operator, position, text_of(error), traceback_text=text)

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        taken = _StepRows()
        if self.reached is not None:
            return self._read_by_time(taken, bytes_max)
        while taken.size < bytes_max and (split := self._next_split()) is not None:
            self._last = split.name
            self._take(split, taken, bytes_max=bytes_max)
        return self._batch(taken) if taken.rows else None

    def _read_by_time(self, taken: _StepRows, bytes_max: int) -> base.SourceBatch | None:
        assert self.reached is not None
        waiting = [name for name, split in self._splits.items() if self._has_row(split)]
        name = self._turns.next(waiting, self.reached)
        if name is None:
            return None
        split = self._splits[name]
        first = split.position == 0 and len(self._splits) > 1
        self._take(split, taken, bytes_max=min(bytes_max, begin_bytes) if first else bytes_max)
        return self._batch(taken)

    def _next_split(self) -> _OpenSplit | None:
        if self._last in self._parts and self._has_row(self._splits[self._last]):
            return self._splits[self._last]
        at = self._names.index(self._last) + 1 if self._last else 0
        for name in (*self._names[at:], *self._names[:at]):
            if name not in self._parts and self._has_row(self._splits[name]):
                return self._splits[name]
        return None

    def _take(
        self,
        split: _OpenSplit,
        taken: _StepRows,
        *,
        bytes_max: float = inf,
        end: float = inf,
        wait: bool = False,
    ) -> None:
        """Read available rows up to `bytes_max` bytes or position `end`."""
        part = self._parts.setdefault(split.name, _Part(split.position, split.position))
        begin, at = split.position, len(taken.rows)
        while taken.size < bytes_max and split.position < end and self._has_row(split, wait=wait):
            assert split.ahead is not None
            position, row = split.ahead
            try:
                data = _encode([row[name] for name in self._spec.schema.names])
            except FAULTS as error:  # a value may have a class, and so code, of the user
                raise self._fault(split, error) from error
            split.position, split.ahead = position, None
            part.end, part.digest = position, digest64(data, part.digest)
            taken.rows.append(row)
            taken.size += len(data)
        taken.pieces.append(base.BatchPiece(split.name, begin, split.position, at))

    def _batch(self, taken: _StepRows) -> base.SourceBatch:
        pieces = tuple(taken.pieces)
        try:
            batch = batch_of_rows(taken.rows, range(len(taken.rows)), self._spec.schema)
        except UserFault as fault:
            raise OperatorError(
                self._operator, _place(pieces, fault.row), str(fault), remedy=fault.remedy
            ) from fault
        except FAULTS as error:  # a value may have a class, and so code, of the user
            raise self._fault(self._splits[pieces[0].split], error) from error
        return base.SourceBatch(batch, pieces, taken.size)

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        _check_splits(division, self._names, "this worker")
        taken = _StepRows()
        batches = []
        for name, want in division.items():
            split = self._splits[name]
            if split.position != want.begin:
                raise InputChangedError(name, want.begin, f"a step from {want.begin}", f"{split.position}")
            self._last = name
            self._take(split, taken, end=want.end, wait=True)
            part = self._parts[name]
            if (part.end, part.digest) != (want.end, want.digest):
                expected = f"rows up to there with digest {want.digest:016x}"
                found = f"rows up to {part.end} with digest {part.digest:016x}"
                raise InputChangedError(name, want.end, expected, found)
            if self.reached is not None and taken.rows:
                batches.append(self._batch(taken))
                taken = _StepRows()
        return [*batches, self._batch(taken)] if taken.rows else batches

    def take_division(self) -> base.SourceDivision:
        parts, self._parts = self._parts, {}
        self._turns.step_over()
        return {name: base.SplitDivision(part.begin, part.end, part.digest) for name, part in parts.items()}

    # --- For display ----------------------------------------------------------------------------------

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        return _place(source.pieces, row)

    def counters(self) -> dict[str, int]:
        return {"splits_done": sum(split.over for split in self._splits.values())}


def _place(pieces: Sequence[base.BatchPiece], row: int | None) -> str:
    """Return where a row of a batch of these pieces was read; None: all of them."""
    if row is None:
        first, last = pieces[0], pieces[-1]
        return f"split {first.split!r}, from {first.begin}, to split {last.split!r}, {last.end}"
    piece = next(piece for piece in reversed(pieces) if piece.at <= row)
    return f"split {piece.split!r}, row {row - piece.at} of those from {piece.begin} to {piece.end}"
