"""Input handles: their names, the records of a producer's chain, and which of the records count.

Pure: values and decisions. `input_log.py` writes the chain that holds the records, `input_reading.py` reads
it.

Theory (distributed-dbsp, "Input" and base requirements):

1. Any number of producers write batches to an input handle, each into a directory of its own, which it
   claims. So only one process at a time acts as a producer, and a superseded one can record nothing more.
2. A producer numbers its batches 1, 2, ... A batch with an older number was recorded before and is discarded.
   The next number is appended. A later number would leave a gap and is refused.
3. A batch of any size is written in parts. It counts as a whole, once its last part is recorded. A producer
   that died in a batch leaves parts that do not count; the same batch then begins again with part 0.
4. A *position* in an input is the size of the producer's chain just after a part. The chain is never rolled
   back, so a size denotes one history. Every part carries the digest of all counting parts before it, so a
   reader that continues from a position detects other content.

Records:

| op | ints | strings |
|---|---|---|
| INPUT, one part | [batch, part, 1 if it is the last, rows, digest before, wall clock ms] | [data, mark] |
| INPUT, recorded by an entry point | the same, [..., time of its rows] | [data, mark, late rows] |
| INPUT_CLOSED, closes the handle | [wall clock ms] | [JSON of InputEnds] |
| INPUT_MARK | [mark, version, origin, last time, batch, digest before, wall clock ms] | [mark of the batch] |

`core/entry.py` has the meaning of the records of entry points. INPUT_MARK lies between batches. It repeats
the number, the digest and the producer's mark of the last batch, so no reader needs what precedes it.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from checkpoint import limits
from dos_protocol.digests import digest64
from dos_protocol.errors import MALFORMED_JSON, BadNameError, CorruptDataError, LocalProtocolError
from dos_protocol.names import check_name
from journal import Op, Record

INPUT_CHAIN: Final = "input"
CLOSED_CHAIN: Final = "closed"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PRODUCER: Final = re.compile(rf"(?P<application>.+)\.in\.(?P<handle>{_NAME.pattern})\.{_NAME.pattern}")


def check_input_name(what: str, name: str) -> str:
    """Return `name`, or raise BadNameError if it is invalid.

    Names of handles and producers have no dots, so that a directory's name can be split into them.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadNameError(
            f"the name of {what} consists of letters, digits, '_' and '-' and begins with a letter or"
            f" digit, got {name!r}",
            remedy="choose another name; dots are reserved for the names of its directories",
        )
    return name


def input_directory(application: str, handle: str) -> str:
    """Return the directory that records that a handle is closed.

    Followed by a dot, it is the prefix of the directories of its producers. Raises BadNameError.
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
    """Return the sorted (application, handle) of all handles with a producer, found among names of
    directories.
    """
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
    """A promise of an entry point about one origin, in its chain: all later rows have times above `mark`.

    Times are microseconds since 1970. `batch` to `note` repeat the state after the last complete batch.
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
    """Return the part in the record that ends at byte `at` of the chain `where`.

    Raises CorruptDataError for an invalid one: it passed its checksum, so its writer had a bug.
    """
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
    """Return the part or the mark in a record of a producer's chain that ends at byte `at`; None for a record
    of another kind. Raises CorruptDataError.
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
    """A complete batch that was too large to keep in memory: read it again, from `begin` to `end`.

    `before` is the digest of everything before `begin`. The range contains nothing but this batch.
    """

    begin: int
    before: int
    end: int


class InputSequence:
    """The fold that decides which parts of a producer's chain count. Add every INPUT record after `at`.

    - `digest`: of everything before `at`. None: unknown; the next batch that begins is the first to count.
    - `bytes_max`: a batch above this size is not kept in memory; `add` returns BatchNotKept for it.
    - `where`: the name of the chain, for errors.

    Invariant: `end` and `digest` are those of the last part returned; the parts held back follow it.
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
        """Take the next record, at `begin` to `end`. Return the parts that count because of it, in order.

        A mark is a piece without rows. Raises CorruptDataError if the record cannot follow the ones before
        it.
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
    """Return what to do with batch `number` if `last` was the last one sent.

    Raises LocalProtocolError if it would leave a gap.
    """
    if number < 1:
        raise LocalProtocolError(f"batch numbers begin at 1, got {number}")
    if number > last + 1:
        raise LocalProtocolError(
            f"batch {number} cannot follow batch {last}: numbers have no gaps",
            remedy="read the number of the last batch (`last`) and continue with the next one",
        )
    return BatchDecision.APPEND if number == last + 1 else BatchDecision.DISCARD
