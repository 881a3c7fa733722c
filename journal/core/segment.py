"""Segments: their names, and the record each begins with.

Rules of this file: one segment at a time. How segments hang together is `chain.py`'s. The name is only a
label: it sorts, and it must agree with the start record, but the chain is what the back pointers in the
start records reach (R6).

    name   CHAIN.<epoch, 16 hex>.<base, 16 hex>
    start  Op.SEGMENT_START, ints=[], strings=[JSON of SegmentStart], the first record of every segment

A start is valid if and only if (1) its record is whole and valid, (2) its op is SEGMENT_START and its one
string is the JSON of a SegmentStart, (3) chain, epoch and base agree with the name, (4) it has a
predecessor, or none and base 0, (5) the predecessor's name is a segment of the same chain that lies before
it in (epoch, base), (6) the predecessor's base plus its final length is the base, and (7) what it releases
is below a segment that lies before it in (epoch, base). (5) makes every walk end.
"""

from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from dos_protocol.errors import BadNameError, LocalProtocolError
from dos_protocol.limits import u64_max
from dos_protocol.names import SEGMENT_NAME, check_name
from journal.core.errors import ChainError
from journal.core.position import NO_FLOOR, ORIGIN, Position
from journal.core.record import Record
from journal.limits import chain_name_bytes_max
from journal.ops import Op


class SegmentName(NamedTuple):
    """A segment's name, taken apart."""

    chain: str
    epoch: int
    base: int

    @property
    def order(self) -> tuple[int, int]:
        """What a head is chosen by: the epoch, then the base (R5)."""
        return self.epoch, self.base

    def __str__(self) -> str:
        return f"{self.chain}.{self.epoch:016x}.{self.base:016x}"


def check_chain_name(chain: str) -> str:
    """The same name, or BadNameError: a chain's name leaves room for epoch and base, and is not itself a
    segment's.
    """
    check_name(chain)
    if len(chain) > chain_name_bytes_max:
        raise BadNameError(f"a chain's name has at most {chain_name_bytes_max} characters: {len(chain)}")
    if SEGMENT_NAME.fullmatch(chain):
        raise BadNameError(f"a chain's name must not look like a segment's: {chain}")
    return chain


def segment_name(chain: str, epoch: int, base: int) -> str:
    """The name of a segment. Raises BadNameError, LocalProtocolError."""
    check_chain_name(chain)
    if not 0 < epoch <= u64_max or not 0 <= base <= u64_max:
        raise LocalProtocolError(f"a segment has an epoch from 1 and a base from 0, 64 bits: {epoch}, {base}")
    return str(SegmentName(chain, epoch, base))


@lru_cache(maxsize=1024)
def parse_segment_name(name: str) -> SegmentName | None:
    """The parts of a segment's name; None for any other object's."""
    match = SEGMENT_NAME.fullmatch(name)
    if match is None or len(match["chain"]) > chain_name_bytes_max:
        return None
    return SegmentName(match["chain"], int(match["epoch"], 16), int(match["base"], 16))


class Predecessor(msgspec.Struct, frozen=True):
    """What a segment stands on: the first `length` bytes of that object, whose prefix digest there is
    `digest`.
    """

    name: str
    length: int
    digest: int


class SegmentStart(msgspec.Struct, frozen=True):
    """The first record of a segment.

    generation: of the store record under which it was opened. writer: the claim's writer id, 32 hex digits.
    pipelined: whether records may be sent before the ones before them are acknowledged; without it every
    record proves its predecessor (R9), which is what a reader of a manifest relies on (R10). released: where
    the owner of a chain lets its oldest part go: segments of the chain below this one, (epoch, base), may be
    deleted once this start is acknowledged (R14), and are for nobody to read. Readers ignore fields that they
    do not know.
    """

    chain: str
    epoch: int
    base: int
    predecessor: Predecessor | None
    generation: int
    writer: str
    pipelined: bool = True
    released: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET

    @property
    def name(self) -> str:
        return str(SegmentName(self.chain, self.epoch, self.base))

    @property
    def stands_on(self) -> Position:
        """The end of the history below this segment; ORIGIN if there is none."""
        below = self.predecessor and parse_segment_name(self.predecessor.name)
        if not self.predecessor or not below:
            return ORIGIN
        return Position(below.epoch, self.base, self.predecessor.digest)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(SegmentStart)


def start_record(start: SegmentStart) -> Record:
    """The record of a start."""
    return Record(Op.SEGMENT_START, strings=(_encoder.encode(start),))


def parse_start(record: Record, name: str) -> SegmentStart:
    """The start that the first record of object `name` holds. Raises ChainError, naming the rule that it
    breaks.
    """
    start = start_of(record, name)
    if start.name != name:
        raise ChainError(name, 0, "the start record of this segment", f"that of {start.name}"[:200])
    return start


def start_of(record: Record, where: str) -> SegmentStart:
    """The start that a record holds, wherever it lies: all rules but the one about the object's name."""
    if record.op is not Op.SEGMENT_START or record.ints or len(record.strings) != 1:
        raise ChainError(where, 0, "a SEGMENT_START record with one string", f"{record.op.name}")
    try:
        start = _decoder.decode(record.strings[0])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ChainError(where, 0, "the JSON of a segment start", f"{error}") from error
    _check_predecessor(start, where)
    if start.released and not NO_FLOOR < start.released < (start.epoch, start.base):
        raise ChainError(where, 0, "a release of segments below an earlier one", f"below {start.released}")
    return start


def _check_predecessor(start: SegmentStart, name: str) -> None:
    if start.predecessor is None:
        if start.base:
            raise ChainError(name, 0, f"a predecessor below base {start.base}", "none")
        return
    below = parse_segment_name(start.predecessor.name)
    if below is None or below.chain != start.chain:
        expected = f"a predecessor in chain {start.chain}"
        raise ChainError(name, 0, expected, start.predecessor.name[:200])
    if below.order >= (start.epoch, start.base):
        raise ChainError(name, 0, "a predecessor of an earlier epoch or base", start.predecessor.name)
    if start.predecessor.length <= 0 or below.base + start.predecessor.length != start.base:
        found = f"{below.base} + {start.predecessor.length}"
        raise ChainError(name, 0, f"a predecessor that ends at base {start.base}", found)
