"""The input of a region: splits of rows, the same for every incarnation, and the source that reads them.

A model of a source with the interface of `dataflow.sources.base`. The rows of each read are drawn at random,
so only a recorded division makes a replay exact. As in a real source, a replay of other rows than were read
is refused. The input does not grow.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

import pyarrow as pa

from checkpoint.core.records.manifest import SplitPosition
from dataflow.errors import InputChangedError, InputReadError
from dataflow.operators.base import OperatorContext
from dataflow.sources import base
from dos_protocol.digests import digest64
from tests.sim.history import ViolationError

SCHEMA: Final = pa.schema([("word", pa.string()), ("id", pa.int64())])
_WORDS: Final = 11

Row = tuple[str, int]


class Input:
    """The rows of a run, by split, at most `rows` in each. Each row has a unique id."""

    def __init__(self, rng: Random, splits: int, rows: int) -> None:
        self.splits: dict[str, list[Row]] = {}
        self.trimmed: dict[str, int] = {}
        """Split -> the position below which it was deleted."""
        self._digests: dict[str, list[int]] = {}
        number = 0
        for split in range(splits):
            taken: list[Row] = []
            for _ in range(rng.randint(rows // 2, rows)):
                number += 1
                taken.append((f"w{min(rng.randrange(_WORDS), rng.randrange(_WORDS))}", number))
            self.splits[f"s{split}"] = taken
            digests = [0]
            for word, row in taken:
                digests.append(digest64(f"{digests[-1]} {word} {row}".encode()))
            self._digests[f"s{split}"] = digests

    def of_worker(self, worker: int, workers: int) -> list[str]:
        return [name for index, name in enumerate(self.splits) if index % workers == worker]

    def digest(self, split: str, position: int) -> int:
        """Return the digest of the first rows of a split."""
        return self._digests[split][position]

    def trim(self, split: str, position: int) -> None:
        """Delete the rows below a position. Reading them again is a violation."""
        self.trimmed[split] = max(self.trimmed.get(split, 0), position)

    def check_there(self, split: str, position: int, who: str) -> None:
        """Raise ViolationError if the row at a position was deleted."""
        if position < self.trimmed.get(split, 0):
            raise ViolationError(
                "O7", f"{who} needs {split} from {position} on, it is trimmed to {self.trimmed[split]}"
            )

    def upto(self, positions: Mapping[str, int]) -> list[Row]:
        """Return all rows below these positions."""
        return [row for split, position in positions.items() for row in self.splits[split][:position]]

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.splits.values() for row in rows]


class RegionSource(base.SourceSpec):
    """The description of the source. `rng_of`: returns the random stream of a reader. `broken`: whether
    reading fails now, as for an invalid row. `readers`: the newest reader of each worker, for the nemesis."""

    def __init__(
        self,
        given: Input,
        rng_of: Callable[[int], Random],
        broken: Callable[[], bool],
        readers: "dict[int, Reader] | None" = None,
    ) -> None:
        self.given = given
        self.rng_of = rng_of
        self.broken = broken
        self.readers = {} if readers is None else readers

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return SCHEMA

    def redeal(self, positions: Sequence[base.Positions], worker: int, workers: int) -> base.Positions:
        return base.own_positions(positions, self.given.of_worker(worker, workers).__contains__)

    def open(self, context: OperatorContext) -> "Reader":
        reader = self.readers[context.worker] = Reader(
            self.given,
            self.given.of_worker(context.worker, context.workers),
            self.rng_of(context.worker),
            self.broken,
        )
        return reader


class Reader(base.SourceReader):
    """Reads the splits of one worker in a random order. A row counts as one byte."""

    def __init__(self, given: Input, splits: list[str], rng: Random, broken: Callable[[], bool]) -> None:
        self._given = given
        self._broken = broken
        self._rng = rng
        self._at = dict.fromkeys(splits, 0)
        self._began: dict[str, int] = {}

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        for split in self._at:
            at = positions.get(split, SplitPosition(0))
            self._given.check_there(split, at.position, "a restore")
            self._check(split, at.position, at.digest)
            self._at[split] = at.position

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        if self._broken():
            raise InputReadError("a row cannot be read")
        waiting = [split for split in self._at if self._left(split)]
        if not waiting:
            return None
        split = self._rng.choice(waiting)
        count = self._rng.randint(1, min(bytes_max, self._left(split)))
        return self._take(split, self._at[split], self._at[split] + count)

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        batches = []
        for split, part in division.items():
            if split not in self._at or part.begin != self._at[split]:
                raise InputChangedError(split, part.begin, "a division that continues", f"one at {self._at}")
            self._check(split, part.end, part.digest)
            if part.end > part.begin:
                batches.append(self._take(split, part.begin, part.end))
        return batches

    def take_division(self) -> base.SourceDivision:
        taken = {
            split: base.SplitDivision(
                begin, self._at[split], self._given.digest(split, self._at[split]), int(not self._left(split))
            )
            for split, begin in self._began.items()
        }
        self._began.clear()
        return taken

    def positions(self) -> base.Positions:
        return {
            split: SplitPosition(at, self._given.digest(split, at), not self._left(split))
            for split, at in self._at.items()
        }

    @property
    def exhausted(self) -> bool:
        return not self.rows_left

    @property
    def rows_left(self) -> int:
        """Return the number of unread rows of all its splits."""
        return sum(map(self._left, self._at))

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        begins = [piece.at for piece in source.pieces]
        piece = source.pieces[max(bisect_right(begins, row or 0) - 1, 0)]
        return f"split {piece.split}, row {piece.begin + (row or 0)}"

    def _left(self, split: str) -> int:
        return len(self._given.splits[split]) - self._at[split]

    def _take(self, split: str, begin: int, end: int) -> base.SourceBatch:
        rows = self._given.splits[split][begin:end]
        self._began.setdefault(split, begin)
        self._at[split] = end
        words, ids = [word for word, _ in rows], [number for _, number in rows]
        batch = pa.record_batch([pa.array(words, pa.string()), pa.array(ids, pa.int64())], schema=SCHEMA)
        return base.SourceBatch(batch, (base.BatchPiece(split, begin, end, 0),), len(rows))

    def _check(self, split: str, position: int, digest: int) -> None:
        known = self._given.digest(split, position) if position else 0
        if digest != known:
            raise InputChangedError(split, position, f"digest {known:x}", f"{digest:x}")
