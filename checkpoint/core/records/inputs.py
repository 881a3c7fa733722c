"""Input handles: their names, the records of a producer's chain, which of them count, and who gives rows
their time.

Pure: values and decisions. `input_log.py` writes the chain that holds the records, `input_reading.py` reads
it.

Theory (distributed-dbsp, "Input" and base requirements):

1. Any number of producers write batches to an input handle, each into a directory of its own, which it
   claims. So only one process at a time acts as a producer, and a superseded one can record nothing more.
2. A producer numbers its batches 1, 2, ... A batch with an older number was recorded before and is
   discarded. The next number is appended. A later number would leave a gap and is refused.
3. A batch of any size is written in parts. It counts as a whole, once its last part is recorded. A producer
   that died in a batch leaves parts that do not count; the same batch then begins again with part 0.
4. A *position* in an input is the size of the producer's chain just after a part. The chain is never rolled
   back, so a size denotes one history. Every part carries the digest of all counting parts before it, so a
   reader that continues from a position detects other content.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import msgspec

from checkpoint import limits
from checkpoint.errors import EntryRefusedError
from dos_protocol.digests import digest64
from dos_protocol.errors import MALFORMED_JSON, BadNameError, CorruptDataError, LocalProtocolError
from dos_protocol.names import check_name
from journal import Op, Record

INPUT_CHAIN: Final = "input"
CLOSED_CHAIN: Final = "closed"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PRODUCER: Final = re.compile(rf"(?P<application>.+)\.in\.(?P<handle>{_NAME.pattern})\.{_NAME.pattern}")


def check_input_name(what: str, name: str) -> str:
    """Return `name`, or raise BadNameError. It has no dots, so that a directory's name can be split."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadNameError(
            f"the name of {what} consists of letters, digits, '_' and '-' and begins with a letter or"
            f" digit, got {name!r}",
            remedy="choose another name; dots are reserved for the names of its directories",
        )
    return name


def input_directory(application: str, handle: str) -> str:
    """Return the directory that records that a handle is closed, a prefix of those of its producers. Raises
    BadNameError.
    """
    return check_name(f"{application}.in.{check_input_name('an input handle', handle)}")


def producer_directory(application: str, handle: str, producer: str) -> str:
    """Return the directory that a producer claims. Raises BadNameError."""
    return check_name(f"{input_directory(application, handle)}.{check_input_name('a producer', producer)}")


def producers_among(directories: Iterable[str], application: str, handle: str) -> list[str]:
    """Return the sorted producers of a handle, found among names of directories."""
    prefix = input_directory(application, handle) + "."
    names = [name.removeprefix(prefix) for name in directories if name.startswith(prefix)]
    return sorted(name for name in names if _NAME.fullmatch(name))


def handles_among(directories: Iterable[str]) -> list[tuple[str, str]]:
    """Return the sorted (application, handle) of all handles with a producer among directories."""
    found = filter(None, map(_PRODUCER.fullmatch, directories))
    return sorted({(match["application"], match["handle"]) for match in found})


class InputPart(NamedTuple):
    """One part of a batch, as recorded."""

    batch: int
    part: int
    last: bool
    rows: int
    before: int
    """The digest of all counting parts before this one."""
    time_ms: int
    data: bytes
    mark: bytes = b""
    """The producer's own bytes, returned when it resumes. Only the last part of a batch has them."""
    time_us: int = 0
    """The time that an entry point gave the rows, in microseconds since 1970; 0: none."""
    late: bytes = b""
    """Rows that an entry point found late. No other rows have this: they are only for readers that ask."""

    @property
    def digest(self) -> int:
        """The digest of everything up to the end of this part."""
        digest = digest64(self.data, self.before)
        return digest64(self.late, digest) if self.late else digest


class OriginMark(NamedTuple):
    """A promise about one origin, in its chain: all later rows have times above `mark`, in microseconds since
    1970. `batch` to `note` repeat the state after the last complete batch.
    """

    mark: int
    version: int
    """Of the origin list, as its writer knew it: the number of origins."""
    origin: int
    """The number of the origin in that list, from 1."""
    last_time: int
    """The largest time that rows of this origin were given."""
    batch: int = 0
    before: int = 0
    """The digest of all counting parts before it."""
    time_ms: int = 0
    note: bytes = b""
    """The producer's own mark of the last batch."""


class InputEnds(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of a closed handle: producer -> the position at which its input ends."""

    producers: dict[str, int]


# | op | ints | strings |
# |---|---|---|
# | INPUT, one part | [batch, part, 1 if it is the last, rows, digest before, wall clock ms] | [data, mark] |
# | INPUT, recorded by an entry point | the same, [..., time of its rows] | [data, mark, late rows] |
# | INPUT_CLOSED, closes the handle | [wall clock ms] | [JSON of InputEnds] |
# | INPUT_MARK | [mark, version, origin, last time, batch, digest before, wall clock ms] | [mark of batch] |
#
# INPUT_MARK lies between batches. It repeats the number, the digest and the producer's mark of the last
# batch, so no reader needs what precedes it.
class InputRecord(NamedTuple):
    """The arguments of the journal record of a part, whose op is INPUT."""

    ints: tuple[int, ...]
    strings: tuple[bytes, ...]


_ends_decoder: "msgspec.json.Decoder[InputEnds]" = msgspec.json.Decoder(InputEnds)


def encode_part(part: InputPart) -> InputRecord:
    """Return the record of a part."""
    ints = (part.batch, part.part, int(part.last), part.rows, part.before, part.time_ms)
    if part.time_us or part.late:
        return InputRecord((*ints, part.time_us), (part.data, part.mark, part.late))
    return InputRecord(ints, (part.data, part.mark))


def decode_part(ints: Iterable[int], strings: Sequence[bytes], *, where: str, at: int) -> InputPart:
    """Return the part in the record that ends at byte `at` of the chain `where`. Raises CorruptDataError."""
    numbers = tuple(ints)
    if (len(numbers), len(strings)) not in ((6, 2), (7, 3)):
        raise CorruptDataError(
            where, at, "a part of 6 ints and 2 strings, or 7 and 3", f"{len(numbers)} and {len(strings)}"
        )
    batch, part, last, rows, before, time_ms = numbers[:6]
    if batch < 1 or last not in (0, 1):
        raise CorruptDataError(where, at, "a batch from 1, and 0 or 1 for its last part", str(numbers))
    found = InputPart(batch, part, bool(last), rows, before, time_ms, strings[0], strings[1])
    return found if len(numbers) == 6 else found._replace(time_us=numbers[6], late=strings[2])


def encode_mark(mark: OriginMark) -> InputRecord:
    """Return the arguments of the record of a mark, whose op is INPUT_MARK."""
    return InputRecord(tuple(mark[:-1]), (mark.note,))


def decode_mark(ints: Iterable[int], strings: Sequence[bytes], *, where: str, at: int) -> OriginMark:
    """Return the mark in the record that ends at byte `at` of the chain `where`. Raises CorruptDataError."""
    numbers = tuple(ints)
    if len(numbers) != 7 or len(strings) != 1 or not 1 <= numbers[2] <= numbers[1]:
        raise CorruptDataError(
            where,
            at,
            "a mark of 7 ints and 1 string, of an origin in its list",
            f"{numbers} and {len(strings)} strings",
        )
    return OriginMark(*numbers, strings[0])


def decode_input(record: Record, *, where: str, at: int) -> InputPart | OriginMark | None:
    """Return the part or mark in a record of a producer's chain; None for another kind. Raises
    CorruptDataError.
    """
    if record.op is Op.INPUT:
        return decode_part(record.ints, record.strings, where=where, at=at)
    if record.op is Op.INPUT_MARK:
        return decode_mark(record.ints, record.strings, where=where, at=at)
    return None


def encode_ends(ends: InputEnds) -> bytes:
    """Return the JSON of the ends of a handle."""
    return msgspec.json.encode(ends)


def decode_ends(strings: Sequence[bytes], *, where: str, at: int) -> InputEnds:
    """Return the ends in a record INPUT_CLOSED. Raises CorruptDataError."""
    try:
        return _ends_decoder.decode(strings[0])
    except (IndexError, *MALFORMED_JSON) as error:
        raise CorruptDataError(where, at, "the JSON of a closed input", str(error)) from error


class InputPiece(NamedTuple):
    """A part that counts, with its range of bytes in the producer's chain."""

    split: str
    """The producer."""
    begin: int
    end: int
    digest: int
    """The digest of everything up to `end`."""
    rows: int
    data: bytes
    last: bool = True
    """Whether it ends its batch. The rows within one batch are in no order of event time."""
    line: int = 0
    """Of an output log: the line of history. A piece of a later line may begin below the piece before it."""
    mark: OriginMark | None = None
    """A mark of an entry point. Such a piece has no rows."""
    late: bytes = b""
    """The rows that an entry point found late."""
    epoch: int = 0
    """Of an output log: the epoch of the segment that holds it, as in a position of the chain."""


def piece_of(split: str, part: InputPart, begin: int, end: int) -> InputPiece:
    """Return a part as a piece at `begin` to `end` of its chain."""
    return InputPiece(split, begin, end, part.digest, part.rows, part.data, part.last, late=part.late)


class BatchNotKept(NamedTuple):
    """A complete batch that was too large for memory: read it again, from `begin` to `end`. before: the
    digest there.
    """

    begin: int
    before: int
    end: int


class InputSequence:
    """The fold that decides which parts of a producer's chain count. Add every INPUT record after `at`.

    digest: of everything before `at`; None: unknown, the next batch that begins is the first to count.
    bytes_max: `add` returns BatchNotKept above it. where: the chain, for errors. `end` and `digest` are those
    of the last part returned.
    """

    def __init__(
        self,
        split: str,
        *,
        at: int = 0,
        digest: int | None = 0,
        bytes_max: int = limits.input_pending_bytes_max,
        where: str = "",
    ) -> None:
        self.end = at
        self.digest = digest or 0
        self._anywhere = digest is None
        self.batch = 0
        """The number of the last complete batch. 0: none, or unknown because reading began at a position."""
        self.mark = b""
        self.batches = 0
        """The number of complete batches seen."""
        self.newest_mark: OriginMark | None = None
        """Of an entry point's chain: the newest mark seen."""
        self.last_time = 0
        """The largest time that an entry point gave to rows of complete batches; 0: none."""
        self._split = split
        self._where = where
        self._bytes_max = bytes_max
        self._batch_known = at == 0
        self._pending: list[InputPiece] = []
        self._pending_bytes = 0
        self._begin = at
        """Where the incomplete batch begins."""
        self._count = 0
        """The number of its parts so far."""
        self._pending_batch = 0
        """Its number."""
        self._running = self.digest

    def add(self, part: InputPart | OriginMark, begin: int, end: int) -> list[InputPiece] | BatchNotKept:
        """Take the next record; return the parts that count because of it. Raises CorruptDataError if it
        cannot follow.
        """
        if isinstance(part, OriginMark):
            return self._add_mark(part, begin, end)
        if self._anywhere:
            if part.part:
                return []  # the rest of a batch that began before `at`
            self._anywhere, self.digest = False, part.before
        if part.part == 0 and (not self._batch_known or part.batch == self.batch + 1):
            self._drop(begin)  # the producer died in this batch and begins it again
        if not self._batch_known:
            self._batch_known, self.batch = True, part.batch - 1
            self._count = part.part  # a position lies within a complete batch, or at its end
        self._check(part, end)
        if not self._count:
            self._begin = begin
        self._pending_batch, self._count = part.batch, part.part + 1
        self._running = part.digest
        self._hold(piece_of(self._split, part, begin, end))
        if not part.last:
            return []
        return self._complete(part, end)

    def _add_mark(self, mark: OriginMark, begin: int, end: int) -> list[InputPiece]:
        if self._anywhere or not self._batch_known:
            self._anywhere, self._batch_known = False, True
            self.batch, self.digest = mark.batch, mark.before
        if (mark.batch, mark.before) != (self.batch, self.digest):
            text = "a mark after batch {} and digest {:016x}"
            expected, found = text.format(self.batch, self.digest), text.format(mark.batch, mark.before)
            raise CorruptDataError(self._where, end, expected, found)
        self._drop(end)
        self.mark, self.end, self.newest_mark = mark.note, end, mark
        self.last_time = max(self.last_time, mark.last_time)
        return [InputPiece(self._split, begin, end, self.digest, 0, b"", mark=mark)]

    def _check(self, part: InputPart, end: int) -> None:
        wanted = (self.batch + 1, self._count, self._running)
        found = (part.batch, part.part, part.before)
        if found != wanted:
            text = "batch {}, part {}, after digest {:016x}"
            raise CorruptDataError(self._where, end, text.format(*wanted), text.format(*found))

    def _drop(self, begin: int) -> None:
        self._pending, self._pending_bytes, self._count = [], 0, 0
        self._running, self._begin = self.digest, begin

    def _hold(self, piece: InputPiece) -> None:
        self._pending_bytes += len(piece.data)
        self._pending.append(piece)
        if self._pending_bytes > self._bytes_max:
            self._pending = []

    def _complete(self, part: InputPart, end: int) -> list[InputPiece] | BatchNotKept:
        pending, size = self._pending, self._pending_bytes
        again = BatchNotKept(self._begin, self.digest, end)
        self.batches += 1
        self.last_time = max(self.last_time, part.time_us)
        self.batch, self.mark, self.end, self.digest = part.batch, part.mark, end, part.digest
        self._drop(end)
        return again if size > self._bytes_max else pending


class BatchDecision(Enum):
    """The decision about a batch that a producer sends."""

    DISCARD = auto()
    """It is recorded, or on its way."""
    APPEND = auto()


def judge_batch(number: int, last: int) -> BatchDecision:
    """Return what to do with batch `number` after `last`. Raises LocalProtocolError for a gap."""
    if number < 1:
        raise LocalProtocolError(f"batch numbers begin at 1, got {number}")
    if number > last + 1:
        raise LocalProtocolError(
            f"batch {number} cannot follow batch {last}: numbers have no gaps",
            remedy="read the number of the last batch (`last`) and continue with the next one",
        )
    return BatchDecision.APPEND if number == last + 1 else BatchDecision.DISCARD


# *Entry points* give rows their time (design 6.5; replication-transparency IV-F). `dataflow/entry/` serves
# producers, and `dataflow/core/event_time.py` (`InputMarks`) combines the marks for a reader. All times are
# microseconds since 1970, unless their names end with `_s`; those are seconds of a clock that is never set.
#
# 1. An *origin* is a producer name. Its chain is in the entry store, and the entry point that serves it now
#    holds the claim of the chain. So at most one process gives its rows their times, and what it gave is in
#    the chain before any reader sees it. Nobody gives a recorded row another time.
# 2. A *mark* of an origin promises that all its later rows have larger times. Marks are records of the chain,
#    so every reader finds the same rows between the same marks.
# 3. Origins are numbered in the order of their registration and are never removed, so the *version* of the
#    origin list is the number of origins. Each mark carries the version that its writer knows.
# 4. A reader takes the newest version of any mark that it has read. Its input mark is the least mark of the
#    origins up to that number, and does not advance while one of them has no mark. A new origin therefore
#    begins only after every older one has a mark with the new version, and above all these marks: a reader
#    that does not know it yet has only marks of older versions, which are lower.
class EntrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all entry points of a handle share. The first one records it.

    time: the column with the time of a row. lateness_us: None: the entry point fills this column; otherwise
    producers send it, and a row at or below the last mark is late. marks_every_us: marks are the multiples of
    this, minus 1, so that a window that ends at one closes.
    """

    time: str = "at"
    lateness_us: int | None = None
    marks_every_us: int = limits.entry_marks_every_us


class EntryOrigins(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a handle that entry points serve, and its origins in the order of their numbers."""

    settings: EntrySettings
    origins: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        return len(self.origins)

    def number(self, origin: str) -> int:
        """Return the number of an origin, from 1; 0 if it is not registered."""
        return self.origins.index(origin) + 1 if origin in self.origins else 0

    def with_origin(self, origin: str) -> "EntryOrigins":
        """Return the list with this origin. Raises BadNameError, EntryRefusedError if there are too many."""
        if origin in self.origins:
            return self
        if len(self.origins) >= limits.entry_origins_max:
            raise EntryRefusedError(
                f"a handle has at most {limits.entry_origins_max} producer names, and {origin!r} would be one"
                " more",
                remedy="use a name again: a name that was used once is marked for ever",
            )
        return msgspec.structs.replace(self, origins=(*self.origins, check_input_name("a producer", origin)))


def checked_settings(known: EntryOrigins | None, settings: EntrySettings | None) -> EntryOrigins:
    """Return what is recorded, or is to be recorded first. None accepts it. Raises EntryRefusedError if they
    differ.
    """
    if known is None:
        return EntryOrigins(settings=settings or EntrySettings())
    if settings is not None and settings != known.settings:
        raise EntryRefusedError(
            f"this handle is served with {known.settings}, not {settings}",
            remedy="leave the options out to use the recorded ones, or use another handle",
        )
    return known


# Every older origin must have a mark whose version includes the new one (rule 4): a reader that does not know
# it could close a window before its rows.
def floor_of_new_origin(number: int, others: Mapping[int, OriginMark]) -> int | None:
    """Return the time above which a new origin begins; None if it has to wait. others: number -> the newest
    mark of each other origin, as far as known.
    """
    floor = 0
    for older in range(1, number):
        newest = others.get(older)
        if newest is None or newest.version < number:
            return None
        floor = max(floor, newest.mark)
    return floor


class OriginTime:
    """The time of one origin, while its chain is claimed. recorded: the newest mark in the chain, None: call
    `begin` first. last_time: the largest time of its recorded rows.
    """

    def __init__(
        self, settings: EntrySettings, number: int, recorded: OriginMark | None, last_time: int = 0
    ) -> None:
        self._settings = settings
        self.number = number
        self.version = number if recorded is None else recorded.version
        """The newest version of the origin list that is known here."""
        self.begun = recorded is not None
        self.mark = 0 if recorded is None else recorded.mark
        """All later rows have times above it."""
        self.last_time = last_time

    def begin(self, floor: int) -> None:
        """Let a new origin begin above `floor`, from `floor_of_new_origin`."""
        self.mark, self.begun = max(self.mark, floor), True

    def stamp(self, now: int) -> int:
        """Return the time of the rows of a batch, above all times and marks before it."""
        self.last_time = max(now, self.last_time + 1, self.mark + 1)
        return self.last_time

    def is_late(self, times: Any) -> Any:
        """Return whether a time, or each of an array of times, is late: promised not to come."""
        return times <= self.mark

    def next_mark(self, now: int, *, version: int, restated: bool = False) -> OriginMark | None:
        """Return the mark that is due, None if none is. restated: also one that is not higher."""
        every = self._settings.marks_every_us
        due = (now - (self._settings.lateness_us or 0)) // every * every - 1
        self.version = max(self.version, version)
        if due <= self.mark and not restated:
            return None
        self.mark = max(self.mark, due)
        return OriginMark(self.mark, self.version, self.number, self.last_time)


class _Measured(NamedTuple):
    """The clock of a peer, relative to the clock that is never set here: at `at_s`, within `error_us`."""

    offset_us: float
    error_us: float
    at_s: float


class ClockError(NamedTuple):
    """How far this clock is from a peer's: at most `bound_us`."""

    offset_us: int
    bound_us: int


class ClockCheck:
    """Compares this machine's clock with the clocks of peers, by round trips.

    It is *good* if it is within the limit of a majority of all clocks, itself included: a single clock that
    is wrong then stops itself, and no other. A measurement loses precision by `entry_clock_drift`.
    """

    def __init__(self, peers: Iterable[str], error_max_us: int) -> None:
        self._peers = frozenset(peers)
        self._error_max_us = error_max_us
        self._measured: dict[str, _Measured] = {}

    def measured(self, peer: str, *, sent_s: float, received_s: float, peer_us: int) -> None:
        """Note an answer of a peer: its clock when it answered, and when it was asked and heard here."""
        middle_s, error_us = (sent_s + received_s) / 2, (received_s - sent_s) / 2 * 1e6
        found = _Measured(peer_us - middle_s * 1e6, error_us, received_s)
        known = self._measured.get(peer)
        if known is not None and found.error_us > (uncertain := self._uncertain_us(known, received_s)):
            apart = abs(found.offset_us - known.offset_us)
            if apart <= found.error_us + uncertain:  # otherwise one of the two clocks was set
                return
        self._measured[peer] = found

    def _uncertain_us(self, one: _Measured, now_s: float) -> float:
        return one.error_us + (now_s - one.at_s) * limits.entry_clock_drift * 1e6

    def errors(self, now_us: int, now_s: float) -> dict[str, ClockError]:
        """Return peer -> the error of this clock against it, for each that was measured."""
        found = {}
        for peer, one in self._measured.items():
            offset = now_us - (one.offset_us + now_s * 1e6)
            bound = math.ceil(abs(offset) + self._uncertain_us(one, now_s))
            found[peer] = ClockError(round(offset), bound)
        return found

    def is_good(self, now_us: int, now_s: float) -> bool:
        """Return whether this clock may give times."""
        errors = self.errors(now_us, now_s).values()
        near = 1 + sum(one.bound_us <= self._error_max_us for one in errors)
        return 2 * near > 1 + len(self._peers)


def may_stamp(now_us: int, marks: Mapping[str, int], origins: Iterable[str]) -> bool:
    """Return whether this clock is at most the horizon ahead of the least of the marks: this bounds what
    readers hold.
    """
    known = [marks[origin] for origin in origins if origin in marks]
    return not known or now_us <= min(known) + limits.entry_horizon_us


class AttendedOrigins:
    """Finds origins that nobody marks: their chains do not grow."""

    def __init__(self) -> None:
        self._grew: dict[str, tuple[int, float]] = {}
        """Origin -> the size of its chain, and since when."""

    def saw(self, origin: str, size: int, now_s: float) -> None:
        """Note the size of a chain, committed or not."""
        if self._grew.get(origin, (-1, 0.0))[0] != size:
            self._grew[origin] = size, now_s

    def forget(self, origin: str) -> None:
        """Begin anew for an origin: another entry point serves it."""
        self._grew.pop(origin, None)

    def unattended(self, now_s: float) -> list[str]:
        """Return the origins whose chains did not grow for `entry_unattended_s`, sorted."""
        limit_s = limits.entry_unattended_s
        return sorted(origin for origin, (_, at_s) in self._grew.items() if now_s - at_s >= limit_s)
