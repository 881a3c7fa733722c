"""The base classes of sources: splits that can be replayed from a position and are assigned to workers.

A *split* is one independently replayable piece of an input, for example one file in one pass. A *division*
records the input of a step: for each split that was read, the range of positions. Given the same division,
`replay` returns the same rows or fails.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkpoint import OriginMark, SplitPosition
from dataflow.core.event_time import UNKNOWN, SourceTime, Watermark
from dataflow.core.plan import OperatorKind
from dataflow.errors import OperatorError, SchemaError
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, ReplicaProblem
from dos_protocol.digests import digest64

Positions: TypeAlias = dict[str, SplitPosition]

DONE_SPLITS: Final = ""
"""The key under which a checkpoint stores how many splits are fully read: `position` is their number,
`digest` that of their names. So its size does not grow with the number of files read.
"""


def own_positions(positions: "Sequence[Positions]", owns: Callable[[str], bool]) -> Positions:
    """Return the positions of the splits that a worker owns, from those of all workers."""
    return {split: at for of_worker in positions for split, at in of_worker.items() if owns(split)}


def owner_by_name(split: str, workers: int) -> int:
    """Return the owner of a split by the hash of its name."""
    return digest64(split.encode()) % workers


class SplitDivision(NamedTuple):
    """The range of one split that one step read. `digest` covers everything up to `end`."""

    begin: int
    end: int
    digest: int
    done: int = 0
    """1: the split was at its end; what is appended to it later is not read in this pass."""


SourceDivision: TypeAlias = dict[str, SplitDivision]
"""Split -> the range that one step read of it, in the order of reading. The part of one source."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Rows and their origin."""

    batch: pa.RecordBatch
    pieces: "tuple[BatchPiece, ...]"
    bytes_read: int
    data: bytes = b""
    """The input bytes of the rows, for sources that need them to describe the position of a row."""
    begins: "npt.NDArray[np.int64] | None" = None
    """Where each row begins in its file, for formats: its byte, or its number."""
    unit: str = "byte"
    bad: Sequence[pa.RecordBatch] = ()
    """Records of the input that are no rows, for the side output of the source."""
    ends_unit: bool = True
    """Whether the last row ends a unit of its split. Rows within a unit are not ordered by time."""
    marks: "tuple[tuple[str, OriginMark], ...]" = ()
    """Marks of entry points that were read with these rows, with the split of each."""

    @property
    def split(self) -> str:
        """The split of the rows, for a reader that reads by time: its batches have rows of one split each."""
        return self.pieces[0].split if self.pieces else ""


@dataclass(frozen=True, slots=True)
class BatchPiece:
    """Bytes `begin` to `end` of `split` are `data[at:...]` of a batch, or its rows from `at` on without
    `data`.
    """

    split: str
    begin: int
    end: int
    at: int


class SourceReader(Operator):
    """A running source: the splits of one worker and the position of each."""

    reached: Callable[[str], Watermark] | None = None
    """The watermark of a split, if the graph takes event time from this source; each batch then has rows of
    one split, and the split with the lowest watermark is read next (`RoundRobin`).
    """

    @abstractmethod
    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        """Move to the positions of a checkpoint (empty: the beginning), and verify that the input already
        read is unchanged. Raises InputChangedError, InputListChangedError.
        """

    @abstractmethod
    def read(self, bytes_max: int) -> SourceBatch | None:
        """Return the next rows, about `bytes_max` bytes of input, or None if there are none at present."""

    @abstractmethod
    def replay(self, division: SourceDivision) -> list[SourceBatch]:
        """Return exactly the rows that an earlier step read. Raises InputChangedError."""

    @abstractmethod
    def take_division(self) -> SourceDivision:
        """Return what was read or replayed since the last call: this source's part of the step's division."""

    @abstractmethod
    def positions(self) -> Positions:
        """Return the position of every split, as a checkpoint stores it."""

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether every split is fully read."""

    def time_now(self) -> SourceTime:
        """Return which splits currently hold event time back. Default: unread input may have any time."""
        return SourceTime(at_end=self.exhausted, is_known=False)

    @property
    def has_input(self) -> bool:
        """Whether there may be something to read now. False while a source waits for external writers."""
        return not self.exhausted and not self.wants_checkpoint

    @property
    def wakes_in(self) -> float | None:
        """Without input: seconds until the next check; None: the source wakes the circuit."""
        return None

    @property
    def backlog_bytes(self) -> int | None:
        """Input that is known and not read, in the unit of `SourceBatch.bytes_read`; None if not known.
        `AutoScale` adds workers for it. Asked at most once per second, between steps; must not wait.
        """
        return None

    def take_report(self) -> bool:
        """Return whether its counters have changed without a step, since the last call."""
        return False

    def can_replay(self, division: SourceDivision) -> bool:
        """Return whether `replay` has all of its input at hand. If not, the circuit is woken when it has
        arrived.
        """
        del division
        return True

    @property
    def wants_checkpoint(self) -> bool:
        """Whether it requests a checkpoint here, and returns no rows until `checkpoint_taken`, with
        trigger="operator". A replay stops at the same positions.
        """
        return False

    def checkpoint_taken(self) -> None:
        """Continue: a checkpoint contains all that was read."""

    @abstractmethod
    def describe(self, source: SourceBatch, row: int | None) -> str:
        """Describe the position in the input of a row of the batch (None: of any row)."""


class SourceSpec(OperatorSpec):
    """The description of a source."""

    kind: ClassVar[OperatorKind] = OperatorKind.SOURCE
    runs_outside: ClassVar[bool] = False
    """Whether it can start at the present position of its input, outside of a consistent region."""
    times_rise: ClassVar[bool] = False
    """Whether rows of a split come in the order of their times, so that the latest of them is a watermark."""

    def check_access(self) -> None:
        """Raise an error if the input cannot be read from anywhere, such as a bucket that does not exist;
        OSError if this machine cannot tell. The driver calls it before any worker starts. Default: nothing.
        """

    def why_endless(self) -> str:
        """Return why it cannot begin at its end (`begins=`), empty if it can. Default: it cannot."""
        return f"a {type(self).__name__} has no end that can be asked for"

    def check_moves(self, name: str) -> None:
        if type(self).redeal is SourceSpec.redeal:
            raise OperatorError(
                name,
                "another number of workers",
                f"{type(self).__name__} does not say how its splits are dealt to other workers",
                remedy="define redeal in its class, or keep the number of workers",
            )

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        """Return why replicas at several sites would read other rows. Default: they do."""
        del inputs
        return ReplicaProblem(
            f"is a {type(self).__name__}, and replicas at other sites would not read the same rows",
            "let a producer write the rows into an input handle, which InputSource reads at every site",
        )

    @abstractmethod
    def open(self, context: OperatorContext) -> SourceReader:
        """Return a reader of this worker's splits, at the beginning."""

    def redeal(self, positions: Sequence[Positions], worker: int, workers: int) -> Positions:
        """Return where worker number `worker` of `workers` continues, as `SourceReader.reset_to` takes it.
        positions: of the workers of another layout, in their order. Each split continues on exactly one
        worker. Raises SchemaError, the default, if that cannot be.
        """
        del positions, worker, workers
        raise SchemaError(
            f"{type(self).__name__} does not define how its splits are dealt to another number of workers;"
            " define redeal, or keep the number of workers"
        )


begin_bytes: Final = 4 * 1024
"""The number of bytes read first of a split if there are others: enough to learn its time."""


class RoundRobin:
    """The turns of one reader whose graph takes event time from its rows."""

    # The split with the lowest watermark is read next, those without a row first: a worker's splits stay
    # close together in event time, and few windows are open at a time. A split has one turn per step, because
    # a division holds one range per split, in the order of reading.
    def __init__(self) -> None:
        self._split = ""
        self._limit: Watermark = UNKNOWN
        """The lowest watermark of the other splits at the start of the turn."""
        self._had_turn: set[str] = set()

    def next(self, waiting: Collection[str], reached: Callable[[str], Watermark]) -> str | None:
        """Return the split to read next; None if each waiting split has had its turn in this step. A split
        without a watermark keeps its turn for one batch only.
        """
        if self._split in waiting and (len(waiting) == 1 or UNKNOWN < reached(self._split) <= self._limit):
            return self._split
        watermarks = {split: reached(split) for split in waiting}
        left = [split for split in waiting if split not in self._had_turn]
        if not left:
            return None
        self._split = min(left, key=watermarks.__getitem__)
        self._limit = min(
            (watermark for split, watermark in watermarks.items() if split != self._split), default=UNKNOWN
        )
        self._had_turn.add(self._split)
        return self._split

    def begin(self, split: str) -> None:
        """Start the turn of a split that is read for the first time."""
        self._split, self._limit = split, UNKNOWN
        self._had_turn.add(split)

    def step_over(self) -> None:
        """Start the next step."""
        self._had_turn.clear()
        self._split = ""


@dataclass(frozen=True, slots=True)
class BatchOrigin:
    """The origin of a batch in a circuit, up to the first exchange: for messages, and for its split's
    watermark. `exact`: its rows are the source's rows, one by one.
    """

    text: str
    reader: SourceReader | None = None
    source: SourceBatch | None = None
    exact: bool = False
    name: str = ""
    """The name of the source."""

    def describe(self, row: int | None) -> str:
        within = "" if row is None or self.exact else f", row {row} of the batch"
        if self.reader is None or self.source is None:
            return f"{self.text}{within}"
        return f"{self.text}, {self.reader.describe(self.source, row if self.exact else None)}{within}"

    def coarse(self) -> "BatchOrigin":
        """Return the origin of an operator's output: other rows of the same origin."""
        return replace(self, exact=False) if self.exact else self
