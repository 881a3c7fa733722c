"""What a walk asks for and what it is told: its phases, effects and events. Nothing here does or decides."""

from dataclasses import dataclass
from enum import Enum, auto

from journal.core.chain import ChainState
from journal.core.scan import RecordBoundary, SegmentSurvey
from journal.core.segment import SegmentStart


class WalkPhase(Enum):
    """Where a walk is. See the head of this file."""

    CHOOSING = auto()
    MEASURING = auto()
    FOLLOWING = auto()
    SETTLING = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class ReadStart:
    """Read the first record of a segment, and whether a snapshot begins right after it, from the first
    member that can.
    """

    segment: str
    length: int
    members: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SurveySegment:
    """Survey the first `length` bytes of a segment; the last boundary at or below `within` is wanted too, and
    the prefix digests at `lengths`.
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
    """Make the first `length` bytes, whose prefix digest is `digest`, synced on the quorum."""

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
    """start: None if the first record is not whole in the copy read. end: of that record. snapshot_follows:
    the second record's header is there, and is a SNAPSHOT_BEGIN.
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
    """end: the bytes up to the finished snapshot's end; 0 if it is not finished."""

    segment: str
    end: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to Settle."""

    segment: str


Event = StartRead | Surveyed | SnapshotFound | Settled
