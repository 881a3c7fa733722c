"""The names of segments, and the start record of each. Pure: no I/O.

This module handles one segment at a time; `chain.py` links them. The name is only a label: it sorts, and it
must agree with the start record, but the chain is what the back pointers in the start records reach (R6).

    name   CHAIN.<epoch, 16 hex>.<base, 16 hex>
    start  Op.SEGMENT_START, ints=[], strings=[JSON of SegmentStart], the first record of every segment

A start is valid if and only if

    (1) its record is whole and valid
    (2) its op is SEGMENT_START and its one string is the JSON of a SegmentStart
    (3) chain, epoch and base agree with the name
    (4) it has a predecessor, or none and base 0
    (5) the predecessor is a segment of the same chain, lower in (epoch, base)
    (6) the predecessor's base plus its final length is the base
    (7) the released floor, if any, is lower than the segment in (epoch, base)

Every walk ends because of (5).
"""

from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from dos_protocol.errors import MALFORMED_JSON, BadNameError, LocalProtocolError
from dos_protocol.limits import u64_max
from dos_protocol.names import SEGMENT_NAME, check_name
from journal.core.errors import ChainError
from journal.core.position import NO_FLOOR, ORIGIN, Position
from journal.core.record import Record
from journal.limits import chain_name_bytes_max
from journal.ops import Op


class SegmentName(NamedTuple):
    """A parsed segment name."""

    chain: str
    epoch: int
    base: int

    @property
    def order(self) -> tuple[int, int]:
        """The order in which a head is chosen: by epoch, then by base (R5)."""
        return self.epoch, self.base

    def __str__(self) -> str:
        return f"{self.chain}.{self.epoch:016x}.{self.base:016x}"


def check_chain_name(chain: str) -> str:
    """Return the name. Raises BadNameError if it is too long for a segment name or has the form of one."""
    check_name(chain)
    if len(chain) > chain_name_bytes_max:
        raise BadNameError(
            f"the name of a chain has at most {chain_name_bytes_max} characters, got {len(chain)}"
        )
    if SEGMENT_NAME.fullmatch(chain):
        raise BadNameError(f"the name of a chain must not look like that of a segment: {chain}")
    return chain


def segment_name(chain: str, epoch: int, base: int) -> str:
    """Return the name of a segment. Raises BadNameError, LocalProtocolError."""
    check_chain_name(chain)
    if not 0 < epoch <= u64_max or not 0 <= base <= u64_max:
        raise LocalProtocolError(
            f"a segment has an epoch from 1 and a base from 0, of 64 bits each, got {epoch} and {base}"
        )
    return str(SegmentName(chain, epoch, base))


@lru_cache(maxsize=1024)
def parse_segment_name(name: str) -> SegmentName | None:
    """Parse the name of a segment. Return None for any other object name."""
    match = SEGMENT_NAME.fullmatch(name)
    if match is None or len(match["chain"]) > chain_name_bytes_max:
        return None
    return SegmentName(match["chain"], int(match["epoch"], 16), int(match["base"], 16))


class Predecessor(msgspec.Struct, frozen=True):
    """The back pointer of a segment: the first `length` bytes of object `name`, with prefix digest
    `digest`.
    """

    name: str
    length: int
    digest: int


class SegmentStart(msgspec.Struct, frozen=True):
    """The content of the start record of a segment. Readers ignore unknown fields.

    generation: the generation of the store record under which the segment was opened.
    writer: the writer id of the claim, 32 hex digits.
    pipelined: whether a record may be sent before the earlier ones are acknowledged. If not, every record
        proves that its predecessor is committed (R9); readers of a manifest rely on this (R10).
    released: the floor (epoch, base) below which the owner released the segments of the chain. They may be
        deleted once this start is acknowledged (R14), and must not be read.
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
    def end_below(self) -> Position:
        """The end of the history below this segment; ORIGIN if there is none."""
        below = self.predecessor and parse_segment_name(self.predecessor.name)
        if not self.predecessor or not below:
            return ORIGIN
        return Position(below.epoch, self.base, self.predecessor.digest)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(SegmentStart)


def start_record(start: SegmentStart) -> Record:
    """Encode a start as a record."""
    return Record(Op.SEGMENT_START, strings=(_encoder.encode(start),))


def parse_start(record: Record, name: str) -> SegmentStart:
    """Return the start in the first record of object `name`. Raises ChainError, which names the
    broken rule.
    """
    start = start_of(record, name)
    if start.name != name:
        raise ChainError(name, 0, "the start record of this segment", f"that of {start.name}"[:200])
    return start


def start_of(record: Record, where: str) -> SegmentStart:
    """Return the start in a record. Checks all rules except that of the object's name. Raises ChainError."""
    if record.op is not Op.SEGMENT_START or record.ints or len(record.strings) != 1:
        raise ChainError(where, 0, "a SEGMENT_START record with one string", f"{record.op.name}")
    try:
        start = _decoder.decode(record.strings[0])
    except MALFORMED_JSON as error:
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
