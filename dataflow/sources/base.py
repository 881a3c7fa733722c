"""What every source is: splits that can be read again from a position, dealt to workers.

Rules of this file: types and two base classes. A *split* is one independently replayable piece of an input
(here: one file in one pass). A *division* is what a step took: for each split it read, from where to where.
Given the same division, `replay` gives the same rows, or fails; it never gives others.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, TypeAlias

import pyarrow as pa

from checkpoint.core.manifest import SplitPosition
from dataflow.core.event_time import SourceTime, Watermark
from dataflow.core.plan import OperatorKind
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec

Positions: TypeAlias = dict[str, SplitPosition]

DONE_SPLITS: Final = ""
"""The key under which a cut says how many of a worker's splits are read to their end: `position` is their
number and `digest` that of their names. So a cut does not grow with the number of files read.
"""


class SplitDivision(NamedTuple):
    """What one step took of one split. `digest` is that of everything up to `end`: a replay that reads other
    bytes fails.
    """

    begin: int
    end: int
    digest: int
    done: int = 0
    """1: the split was at its end; what is appended to it later is not read in this pass."""


Division: TypeAlias = dict[str, SplitDivision]
"""Split -> what one step took of it, in the order of reading: the part of one source."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Some rows and where they came from."""

    batch: pa.RecordBatch
    pieces: "tuple[BatchPiece, ...]"
    bytes_read: int
    data: bytes = b""
    """What the rows were made of, for a source that needs it to say where a row stands."""
    ends_unit: bool = True
    """Whether the last row ends a unit of its split: rows within a unit are in no order of time."""

    @property
    def split(self) -> str:
        """The split of the rows, where a reader reads by time: then a batch has rows of one split."""
        return self.pieces[0].split if self.pieces else ""


@dataclass(frozen=True, slots=True)
class BatchPiece:
    """Bytes `begin` to `end` of `split` are `data[at:...]` of a batch. Rows are counted only when someone
    asks.
    """

    split: str
    begin: int
    end: int
    at: int


class SourceReader(Operator):
    """A running source: the splits of one worker, and how far each is read."""

    reached: Callable[[str], Watermark] | None = None
    """Set where the graph takes event time from this source: the watermark of a split. Then a batch has rows
    of one split, and the split whose watermark is least is read next (`turns.py`).
    """

    @abstractmethod
    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        """Stand where a cut says; an empty mapping is the beginning. Checks that what was read is still
        there.

        Raises InputChangedError, InputListChangedError.
        """

    @abstractmethod
    def read(self, bytes_max: int) -> SourceBatch | None:
        """The next rows, about `bytes_max` bytes of input, or None: nothing more at the moment."""

    @abstractmethod
    def replay(self, division: Division) -> list[SourceBatch]:
        """Exactly the rows that a step took before. Raises InputChangedError."""

    @abstractmethod
    def take_division(self) -> Division:
        """What was read or replayed since the last call: the part of this source in the step's division."""

    @abstractmethod
    def positions(self) -> Positions:
        """How far everything is read, as a cut carries it."""

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether every split is read to its end."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing was ever read here. Event time asks for it where a step is replayed whose division
        does not hold the watermark: it was recorded by an older version.
        """
        return False

    def time_now(self) -> SourceTime:
        """Which splits hold event time back now. By default all that is not read may have any time."""
        return SourceTime(at_end=self.exhausted, is_known=False)

    @property
    def has_input(self) -> bool:
        """Whether there may be something to read now. A source that waits for others to write says no
        meanwhile: an idle region makes no steps.
        """
        return not self.exhausted and not self.wants_cut

    @property
    def wakes_in(self) -> float | None:
        """While it has no input: seconds until it is to be asked again, because nobody will say when there is
        some. None: somebody wakes the circuit.
        """
        return None

    def can_replay(self, division: Division) -> bool:
        """Whether `replay` has all it needs at hand. If not, it is being fetched, and the circuit is
        woken.
        """
        del division
        return True

    @property
    def wants_cut(self) -> bool:
        """Whether it has come to a place where it wants a cut, and gives nothing more until `cut_taken`. Only
        where the region has trigger="operator"; a replay comes to the same places.
        """
        return False

    def cut_taken(self) -> None:
        """A cut holds all that was read."""

    @abstractmethod
    def describe(self, source: SourceBatch, row: int | None) -> str:
        """Where a row of the batch (None: some row of it) stands in the input, in words."""


class SourceSpec(OperatorSpec):
    """The description of a source."""

    kind: ClassVar[OperatorKind] = OperatorKind.SOURCE
    can_trigger: ClassVar[bool] = False
    """Whether its readers ask for cuts where a region has trigger="operator"."""

    runs_outside: ClassVar[bool] = False
    """Whether it can begin at the present, outside of any consistent region."""

    @abstractmethod
    def open(self, context: OperatorContext) -> SourceReader:
        """A reader of this worker's splits, at the beginning."""
