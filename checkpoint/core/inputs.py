"""Input handles: what a record of a producer's chain holds, which records count, and where things are.

Rules of this file: values and decisions. The chain that holds the records is written by `input_log.py` and
read by `input_reading.py`.

Theory (distributed-dbsp, "Input" and base requirements). Any number of producers write batches to an input
handle, each into a directory of its own, which it claims: so one process at a time is a producer, and a
superseded one can record nothing more. Batches are numbered by the producer, 1, 2, ...: an older number was
recorded before and is discarded, the next is appended, a later one would leave a hole and is refused.

A batch of any size is written in parts. It counts as a whole: when its last part is there. A producer that
died in the middle leaves parts that do not count; the same batch then begins anew with part 0.

A *position* in an input is the size of the producer's chain just past a part. The chain is never rolled
back, so a size is on one line. Every part carries the digest of all parts that count before it: a reader
that goes on from a position sees whether it goes on with what it has read.

One part: op INPUT, ints = [batch, part, 1 if it is the last, rows, digest before, wall clock ms],
strings = [data, mark]. One INPUT_CLOSED closes the handle: ints = [wall clock ms], strings = [JSON of
InputEnds].
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from checkpoint import limits
from dos_protocol.digests import digest64
from dos_protocol.errors import BadNameError, CorruptDataError, LocalProtocolError
from dos_protocol.names import check_name

INPUT_CHAIN: Final = "input"
CLOSED_CHAIN: Final = "closed"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def check_input_name(what: str, name: str) -> str:
    """The same name, or BadNameError: names of handles and producers have no dots, so that a directory's name
    tells which is which.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadNameError(
            f"{what} is named by letters, digits, '_' and '-', beginning with one of the first two: {name!r}",
            remedy="choose another name; dots are kept for the names of its directories",
        )
    return name


def input_directory(application: str, handle: str) -> str:
    """Where it is written that a handle is closed; with a dot, the prefix of its producers' directories."""
    return check_name(f"{application}.in.{check_input_name('an input handle', handle)}")


def producer_directory(application: str, handle: str, producer: str) -> str:
    """The directory that a producer claims. Raises BadNameError."""
    return check_name(f"{input_directory(application, handle)}.{check_input_name('a producer', producer)}")


def producers_among(directories: Iterable[str], application: str, handle: str) -> list[str]:
    """The producers of a handle, from the names of directories that begin as theirs do."""
    prefix = input_directory(application, handle) + "."
    names = [name.removeprefix(prefix) for name in directories if name.startswith(prefix)]
    return sorted(name for name in names if _NAME.fullmatch(name))


class InputPart(NamedTuple):
    """A part of a batch. `before`: digest of all parts that count before it; `mark`: what the producer
    wanted to find again when it asks where it ended, in the last part only.
    """

    batch: int
    part: int
    last: bool
    rows: int
    before: int
    time_ms: int
    data: bytes
    mark: bytes = b""

    @property
    def digest(self) -> int:
        """Of everything up to the end of this part."""
        return digest64(self.data, self.before)


class InputEnds(msgspec.Struct, frozen=True, kw_only=True):
    """A closed handle: of each producer, the position at which its input ends."""

    producers: dict[str, int]


class InputRecord(NamedTuple):
    """The arguments of the journal record of a part; op is INPUT."""

    ints: tuple[int, int, int, int, int, int]
    strings: tuple[bytes, bytes]


_ends_decoder: "msgspec.json.Decoder[InputEnds]" = msgspec.json.Decoder(InputEnds)


def encode_part(part: InputPart) -> InputRecord:
    """The record of a part."""
    ints = (part.batch, part.part, int(part.last), part.rows, part.before, part.time_ms)
    return InputRecord(ints, (part.data, part.mark))


def decode_part(ints: Iterable[int], strings: Sequence[bytes], *, where: str, at: int) -> InputPart:
    """The part in a record that ends at `at` of the chain of `where`. Raises CorruptDataError: it passed its
    checksum, so its writer was wrong.
    """
    numbers = tuple(ints)
    if len(numbers) != 6 or len(strings) != 2:
        raise CorruptDataError(
            where, at, "a part of 6 ints and 2 strings", f"{len(numbers)} and {len(strings)}"
        )
    batch, part, last, rows, before, time_ms = numbers
    if batch < 1 or last not in (0, 1):
        raise CorruptDataError(where, at, "a batch from 1, and 0 or 1 for its last part", str(numbers))
    return InputPart(batch, part, bool(last), rows, before, time_ms, strings[0], strings[1])


def encode_ends(ends: InputEnds) -> bytes:
    """The JSON of a closed handle."""
    return msgspec.json.encode(ends)


def decode_ends(strings: Sequence[bytes], *, where: str, at: int) -> InputEnds:
    """The ends in a record INPUT_CLOSED. Raises CorruptDataError."""
    try:
        return _ends_decoder.decode(strings[0])
    except (IndexError, msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise CorruptDataError(where, at, "the JSON of a closed input", str(error)) from error


class InputPiece(NamedTuple):
    """A part that counts, and the bytes of its producer's chain that it stands for."""

    split: str
    """The producer."""
    begin: int
    end: int
    digest: int
    """Of everything up to `end`."""
    rows: int
    data: bytes
    last: bool = True
    """Whether it ends its batch: the rows of one batch are in no order of time."""


class BatchNotKept(NamedTuple):
    """A batch that was not kept in memory is whole: read it again, from `begin`, where the digest of all
    before is `before`, to `end`. There is nothing else in between.
    """

    begin: int
    before: int
    end: int


class InputSequence:
    """Which parts of a chain count, and in which order. Feed it every INPUT record behind `at`. digest None:
    what is before is not known, and the next batch that begins is the first.

    Invariants: `end` and `digest` are those of the last part given out; the parts held back follow them.
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
        """The last whole batch; 0: none, or not known since the reader began in the middle."""
        self.mark = b""
        self.batches = 0
        """Whole batches seen."""
        self._split = split
        self._where = where
        self._bytes_max = bytes_max
        self._known = at == 0
        self._held: list[InputPiece] = []
        self._held_bytes = 0
        self._begin = at
        """Where the batch that is not whole yet begins."""
        self._count = 0
        """Parts of it so far."""
        self._of = 0
        """Its number."""
        self._running = self.digest

    def add(self, part: InputPart, begin: int, end: int) -> list[InputPiece] | BatchNotKept:
        """The next record, which lies from `begin` to `end`. The parts that count by it, in order.

        Raises CorruptDataError when it cannot follow those before it.
        """
        if self._anywhere:
            if part.part:
                return []  # the rest of a batch that began before
            self._anywhere, self.digest = False, part.before
        if part.part == 0 and (not self._known or part.batch == self.batch + 1):
            self._drop(begin)  # its producer may have died in this batch, and began it anew
        if not self._known:
            self._known, self.batch = True, part.batch - 1
            self._count = part.part  # a position lies within a whole batch, or at its end
        self._check(part, end)
        if not self._count:
            self._begin = begin
        self._of, self._count = part.batch, part.part + 1
        self._running = part.digest
        self._hold(InputPiece(self._split, begin, end, part.digest, part.rows, part.data, part.last))
        if not part.last:
            return []
        return self._whole(part, end)

    def _check(self, part: InputPart, end: int) -> None:
        wanted = (self.batch + 1, self._count, self._running)
        found = (part.batch, part.part, part.before)
        if found != wanted:
            text = "batch {}, part {}, after digest {:016x}"
            raise CorruptDataError(self._where, end, text.format(*wanted), text.format(*found))

    def _drop(self, begin: int) -> None:
        self._held, self._held_bytes, self._count = [], 0, 0
        self._running, self._begin = self.digest, begin

    def _hold(self, piece: InputPiece) -> None:
        self._held_bytes += len(piece.data)
        self._held.append(piece)
        if self._held_bytes > self._bytes_max:
            self._held = []

    def _whole(self, part: InputPart, end: int) -> list[InputPiece] | BatchNotKept:
        held, size = self._held, self._held_bytes
        again = BatchNotKept(self._begin, self.digest, end)
        self.batches += 1
        self.batch, self.mark, self.end, self.digest = part.batch, part.mark, end, part.digest
        self._drop(end)
        return again if size > self._bytes_max else held


class BatchDecision(Enum):
    """What becomes of a batch that a producer sends."""

    DISCARD = auto()
    """It is recorded, or on its way."""
    APPEND = auto()


def judge_batch(number: int, last: int) -> BatchDecision:
    """A batch of that number, when `last` was sent last. Raises LocalProtocolError for one that leaves a
    hole.
    """
    if number < 1:
        raise LocalProtocolError(f"batches are numbered from 1, not {number}")
    if number > last + 1:
        raise LocalProtocolError(
            f"batch {number} cannot come after batch {last}",
            remedy="ask where the input ended (`last`) and go on behind that",
        )
    return BatchDecision.APPEND if number == last + 1 else BatchDecision.DISCARD
