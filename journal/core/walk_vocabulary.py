"""The phases, effects and events of a walk: data classes without logic."""

from dataclasses import dataclass
from enum import Enum, auto

from journal.core.chain import ChainState
from journal.core.scan import RecordBoundary, SegmentSurvey
from journal.core.segment import SegmentStart


class WalkPhase(Enum):
    """The phase of a walk: the table at the top of `walk.py`."""

    CHOOSING = auto()
    MEASURING = auto()
    FOLLOWING = auto()
    SETTLING = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class ReadStart:
    """Read the first record of a segment, and whether a snapshot begins right after it.

    members: tried in order, until one can serve the read.
    """

    segment: str
    length: int
    members: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SurveySegment:
    """Survey the first `length` bytes of a segment.

    within: also find the last record boundary at or below this length. lengths: also return the prefix digest
    at each of these.
    """

    segment: str
    length: int
    members: tuple[bytes, ...]
    within: int = 0
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FindSnapshot:
    """Find the end of the snapshot that begins a segment, within its first `length` bytes."""

    segment: str
    length: int
    members: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Sync the first `length` bytes, whose prefix digest is `digest`, on the quorum."""

    segment: str
    length: int
    digest: int


@dataclass(frozen=True, slots=True)
class WalkDone:
    """The walk is done."""

    state: ChainState


Effect = ReadStart | SurveySegment | FindSnapshot | Settle | WalkDone


@dataclass(frozen=True, slots=True)
class StartRead:
    """The answer to ReadStart.

    start: None if the first record is not whole in the copy that was read. end: the end of that record.
    snapshot_follows: whether the second record is a SNAPSHOT_BEGIN.
    """

    segment: str
    start: SegmentStart | None
    end: RecordBoundary = RecordBoundary()  # noqa: RUF009 - a NamedTuple is immutable
    snapshot_follows: bool = False


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The answer to SurveySegment."""

    segment: str
    survey: SegmentSurvey


@dataclass(frozen=True, slots=True)
class SnapshotFound:
    """The answer to FindSnapshot. end: the bytes up to the end of the finished snapshot; 0 if not
    finished.
    """

    segment: str
    end: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to Settle."""

    segment: str


Event = StartRead | Surveyed | SnapshotFound | Settled
