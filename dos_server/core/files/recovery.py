"""The decision table for an object file found at start-up.

A crash leaves, beyond the synced size, any mixture of whole extents, short extents, and sectors that were
never written and read as zeros. A crash never changes a synced byte, and never produces a nonzero byte that
was not written. Disk damage can do anything. The table distinguishes the two. Where it cannot, it decides
QUARANTINE: the object is reported CORRUPT and another member's copy decides.

The scan follows the headers and stops at logical offset x where the next extent is not whole. Four facts
result:

    remainder   what the file holds from there: nothing, only zeros, other bytes
    damage      the kind of damage, if the remainder holds other bytes:
                TORN       a crash can cause it: the file ends inside the extent, or a sector of it is zeros
                ROTTEN     the extent is complete and its digest is wrong
                MISPLACED  a valid header for another offset, or of another chain: its link does not match
                           the header before it, or, for the first one, the root in the mark
                UNKNOWN    a valid header of a newer version
    below       x is below the durable bound: the highest of the size in the object's mark and every
                `durable` in a valid header anywhere in the file, also after x
    poisoned    a sync failed before the restart: the page cache may hold bytes that are not on disk

    letter  remainder  damage     below  poisoned  decision
    A       nothing    -          no     no        KEEP        the usual end
    B       zeros      -          no     no        CUT         size written, data not: zeros are no header
    C       bytes      TORN       no     no        COPY_CUT    torn tail, none of it ever acknowledged
    D       bytes      ROTTEN     any    no        QUARANTINE  a flipped bit: no crash causes it
    E       bytes      MISPLACED  any    any       QUARANTINE  a block of another place or time
    F       bytes      UNKNOWN    any    any       QUARANTINE  from a newer server: cannot be judged here
    G       nothing    -          yes    any       QUARANTINE  acknowledged bytes are missing: cut off
    H       zeros      -          yes    any       QUARANTINE  acknowledged bytes are missing: zeroed
    I       bytes      TORN       yes    any       QUARANTINE  acknowledged bytes are torn: the disk lied
    P       any        not E, F   no     yes       COPY_CUT    back to the mark, which precedes every ack
    Q       bytes      ROTTEN     yes    yes       QUARANTINE  as D
    R       the mark says that the object was found damaged before: QUARANTINE, whatever the table says.
            Otherwise a second fault could make the first one look like a crash.
    N       a tail is to be copied aside and cut, but there is no space for the copy: QUARANTINE until
            there is space; then the object is judged again (`requests.repairs`)

`decide` is the table, `recover` collects the facts, the shell carries out the decision. A test
enumerates every combination of facts and requires exactly one row.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from dos_protocol.digests import PrefixDigest
from dos_protocol.limits import KIB
from dos_server.core.files.extent import MAGIC, HeaderFault, decode_header, steps_in
from dos_server.core.files.records import ObjectMark
from dos_server.core.files.scan import (
    CONTENT_WINDOW_BYTES,
    DamagedExtentError,
    LocatedExtent,
    ReadAt,
    ReadWindow,
    SparseIndex,
    locate,
    payload_of,
    prefix_fold,
)
from dos_server.limits import extent_header_bytes


class Remainder(Enum):
    NOTHING = "nothing"
    ZEROS = "zeros"
    BYTES = "bytes"


class TailDamage(Enum):
    NONE = "none"
    TORN = "torn"
    ROTTEN = "rotten"
    MISPLACED = "misplaced"
    UNKNOWN = "unknown version"


class RecoveryDecision(Enum):
    KEEP = "keep"
    CUT = "cut"
    COPY_CUT = "copy aside, then cut"
    QUARANTINE = "quarantine"


class ExtentFacts(NamedTuple):
    remainder: Remainder
    damage: TailDamage
    below: bool
    poisoned: bool


class RecoveryCase(NamedTuple):
    """One row of the table, with the set of values it covers in each column."""

    letter: str
    remainders: frozenset[Remainder]
    damages: frozenset[TailDamage]
    below: frozenset[bool]
    poisoned: frozenset[bool]
    decision: RecoveryDecision


def _case(
    letter: str,
    remainders: set[Remainder],
    damages: set[TailDamage],
    below: set[bool],
    poisoned: set[bool],
    decision: RecoveryDecision,
) -> RecoveryCase:
    return RecoveryCase(
        letter, frozenset(remainders), frozenset(damages), frozenset(below), frozenset(poisoned), decision
    )


_NO, _YES, _ANY = {False}, {True}, {False, True}
_NOTHING, _ZEROS, _BYTES = {Remainder.NOTHING}, {Remainder.ZEROS}, {Remainder.BYTES}

CASES: Final = (
    _case("A", _NOTHING, {TailDamage.NONE}, _NO, _NO, RecoveryDecision.KEEP),
    _case("B", _ZEROS, {TailDamage.NONE}, _NO, _NO, RecoveryDecision.CUT),
    _case("C", _BYTES, {TailDamage.TORN}, _NO, _NO, RecoveryDecision.COPY_CUT),
    _case("D", _BYTES, {TailDamage.ROTTEN}, _ANY, _NO, RecoveryDecision.QUARANTINE),
    _case("E", _BYTES, {TailDamage.MISPLACED}, _ANY, _ANY, RecoveryDecision.QUARANTINE),
    _case("F", _BYTES, {TailDamage.UNKNOWN}, _ANY, _ANY, RecoveryDecision.QUARANTINE),
    _case("G", _NOTHING, {TailDamage.NONE}, _YES, _ANY, RecoveryDecision.QUARANTINE),
    _case("H", _ZEROS, {TailDamage.NONE}, _YES, _ANY, RecoveryDecision.QUARANTINE),
    _case("I", _BYTES, {TailDamage.TORN}, _YES, _ANY, RecoveryDecision.QUARANTINE),
    _case("P", _NOTHING | _ZEROS, {TailDamage.NONE}, _NO, _YES, RecoveryDecision.COPY_CUT),
    _case("P", _BYTES, {TailDamage.TORN, TailDamage.ROTTEN}, _NO, _YES, RecoveryDecision.COPY_CUT),
    _case("Q", _BYTES, {TailDamage.ROTTEN}, _YES, _YES, RecoveryDecision.QUARANTINE),
)


def decide(facts: ExtentFacts) -> RecoveryCase:
    """Return the one row that matches the facts. A test enumerates all combinations."""
    matches = [
        case
        for case in CASES
        if facts.remainder in case.remainders
        and facts.damage in case.damages
        and facts.below in case.below
        and facts.poisoned in case.poisoned
    ]
    assert len(matches) == 1, f"{len(matches)} rows for {facts}"
    return matches[0]


NO_SPACE_LETTER: Final = "N"
"""The letter of an object whose torn tail waits for space."""

ROTTEN_CASE: Final = next(case for case in CASES if case.letter == "D")
"""For damage found after the scan, while the prefix digest is resumed."""


# --- The facts ---------------------------------------------------------------------------------------------


SECTOR_BYTES: Final = 512
_HEADER_WINDOW_BYTES: Final = 16 * KIB


@dataclass
class RecoveredObject:
    """An object as its file shows it, and what to do with it.

    `size`: logical bytes that are good; with `corrupt`, damage begins there. `file_bytes`: where to cut.
    `fold`: the prefix digest at `size`. `letter`, `decision`: the row of the table. `durable`: the largest
    size that may have been synced at any time. `uncut_bytes`: of a tail that is left for lack of space.
    `link`: of the next extent, None if unknown. `epoch_max`: the highest epoch of its extents.
    """

    size: int
    file_bytes: int
    fold: PrefixDigest
    index: SparseIndex
    letter: str
    decision: RecoveryDecision
    durable: int = 0
    uncut_bytes: int = 0
    root: int = 0
    link: int | None = None
    epoch_max: int = 0

    @property
    def corrupt(self) -> bool:
        return self.decision is RecoveryDecision.QUARANTINE

    def uncut(self, file_bytes: int) -> "RecoveredObject":
        """Return the object with its tail left in place for lack of space. `file_bytes`: the file's size with
        the tail.
        """
        tail = file_bytes - self.file_bytes
        return replace(self, letter=NO_SPACE_LETTER, decision=RecoveryDecision.QUARANTINE, uncut_bytes=tail)


def lost(durable: int = 0) -> RecoveredObject:
    """Return an object whose file is missing or cannot be opened: none of its bytes are good here."""
    return RecoveredObject(0, 0, PrefixDigest(), SparseIndex(), "G", RecoveryDecision.QUARANTINE, durable)


def recover(read: ReadAt, file_bytes: int, seed: int, mark: ObjectMark | None) -> RecoveredObject:
    """Read a file and decide what to do with it. Payloads below the durable bound are not read; GET verifies
    those.
    """
    scan = _Scan(read, file_bytes, seed, mark)
    scan.headers()
    scan.payloads()
    case = decide(scan.facts())
    if case.letter == "P":
        scan.back_to_mark()
    while True:
        try:
            fold = prefix_fold(read, seed, scan.index.fold_starts(scan.size), scan.size)
        except DamagedExtentError as damage:
            # Below the durable bound, or verified before: no crash explains it, so it is not cut.
            scan.stop_at_damage(damage.offset)
            case = ROTTEN_CASE
        else:
            durable = max(scan.durable, scan.reach)
            return RecoveredObject(
                scan.size,
                scan.position,
                fold,
                scan.index,
                case.letter,
                case.decision,
                durable,
                root=scan.root,
                link=scan.link,
                epoch_max=scan.epoch_max,
            )


def judge(read: ReadAt, file_bytes: int, seed: int, mark: ObjectMark | None) -> RecoveredObject:
    """Return what a start makes of a file and its mark. Row R precedes all others and changes no fact."""
    found = recover(read, file_bytes, seed, mark)
    if mark is not None and mark.damaged and not found.corrupt:
        return replace(found, letter="R", decision=RecoveryDecision.QUARANTINE)
    return found


class _Stop(NamedTuple):
    size: int
    position: int
    link: int | None


class _Unsure(NamedTuple):
    """An extent whose payload may never have been synced: its beginning, and its logical end."""

    begins: _Stop
    end: int


class _Scan:
    """The walk over one file and the facts it collects. Invariants: `size` and `position` are the end of what
    is known to be good; `reach` is the highest end of any extent whose header is valid.
    """

    def __init__(self, read: ReadAt, file_bytes: int, seed: int, mark: ObjectMark | None) -> None:
        self.read = read
        self.file_bytes = file_bytes
        self.seed = seed
        self.mark = mark or ObjectMark("", 0)
        self.index = SparseIndex()
        self.size = 0
        self.position = 0
        self.durable = self.mark.synced
        self.reach = 0
        self.epoch_max = 0
        self.root = self.mark.root
        self.link = self.root or None
        self.at_mark = _Stop(0, 0, self.link) if self.mark.synced == 0 else None
        self.foreign_chain = False
        self.unsure: deque[_Unsure] = deque()
        self.damaged_payload: LocatedExtent | None = None

    def headers(self) -> None:
        """Walk the headers to the end of the chain. Drop extents from `unsure` that turn out durable."""
        while self.position < self.file_bytes:
            follows = self._follow(self.read(self.position, _HEADER_WINDOW_BYTES))
            # A later header knows these bytes to be durable: no crash has torn them, and GET verifies them.
            while self.unsure and self.unsure[0].end <= self.durable:
                self.unsure.popleft()
            if not follows:
                return

    def _follow(self, data: bytes) -> bool:
        index, mark, unsure = self.index, self.mark.synced, self.unsure
        position, size, link, durable = self.position, self.size, self.link, self.durable
        keeps_from, foreign_chain, follows = index.keeps_from, False, False
        for count, own_link, offset, epoch, header_durable, _, next_link in steps_in(data, self.seed):
            after = position + extent_header_bytes + count
            follows = False
            if offset != size:
                break
            if link is not None and link != own_link:
                foreign_chain = True
                break
            if after > self.file_bytes:  # a torn end: its header promises bytes that the file lacks
                break
            if not self.root:
                self.root = own_link
            if size >= keeps_from:
                index.add(size, position, own_link)
                keeps_from = index.keeps_from
            if header_durable > durable:
                durable = header_durable
            if epoch > self.epoch_max:
                self.epoch_max = epoch
            end = size + count
            if end > durable:
                unsure.append(_Unsure(_Stop(size, position, own_link), end))
            position, size, link, follows = after, end, next_link, True
            if size == mark:
                self.at_mark = _Stop(size, position, link)
        self.position, self.size, self.link, self.durable = position, size, link, durable
        self.reach = max(self.reach, size)
        if foreign_chain:
            self._leave_chain()
        return follows

    def _leave_chain(self) -> None:
        self.foreign_chain = True
        # Without a root in the mark, the extents before it may not belong to the object either.
        if not self.mark.root:
            self.root = self.epoch_max = 0
            self._stop(_Stop(0, 0, None))
            self.unsure.clear()

    def payloads(self) -> None:
        # Only these may lack sectors. Unverified, they would be reported as synced, and a take-over would
        # count bytes that no disk has.
        window = ReadWindow(self.read, CONTENT_WINDOW_BYTES)
        for begins, _ in self.unsure:
            located = locate(window, self.seed, begins.position)
            if not isinstance(located, LocatedExtent):  # the disk returned other bytes than before
                self._stop(begins)
                return
            if payload_of(window, located) is None:
                self.damaged_payload = located
                self._stop(begins)
                return

    def _stop(self, stop: "_Stop") -> None:
        self.size, self.position, self.link = stop
        self.index.cut(self.size)

    def back_to_mark(self) -> None:
        """Move the end back to the size in the mark: after a failed sync nothing beyond it is reliable."""
        if self.at_mark is not None and self.mark.synced <= self.size:
            self._stop(self.at_mark)

    def stop_at_damage(self, offset: int) -> None:
        """Move the end back to the extent that holds `offset`, where the digest found damage."""
        position = self.index.find(offset).position
        window = ReadWindow(self.read, _HEADER_WINDOW_BYTES)
        while True:
            located = locate(window, self.seed, position)
            if not isinstance(located, LocatedExtent):
                self._stop(_Stop(0, 0, None))
                return
            if located.header.end > offset:
                self._stop(_Stop(located.header.offset, position, located.header.link))
                return
            position = located.after

    def facts(self) -> ExtentFacts:
        remainder = self._remainder()
        damage = self._damage() if remainder is Remainder.BYTES else TailDamage.NONE
        if remainder is Remainder.BYTES:
            self.durable = max(self.durable, self._durable_after())
        return ExtentFacts(remainder, damage, below=self.size < self.durable, poisoned=self.mark.poisoned)

    def _remainder(self) -> Remainder:
        if self.position == self.file_bytes:
            return Remainder.NOTHING
        for _, chunk in self._chunks(self.position):
            if chunk.count(0) != len(chunk):
                return Remainder.BYTES
        return Remainder.ZEROS

    def _damage(self) -> TailDamage:
        start = self.position
        if self.foreign_chain:
            return TailDamage.MISPLACED
        if self.damaged_payload is not None:
            start += extent_header_bytes
            return self._torn_or_rotten(start, start + self.damaged_payload.header.payload_bytes)
        head = self.read(start, extent_header_bytes)
        if len(head) < extent_header_bytes:
            return TailDamage.TORN
        header = decode_header(head, self.seed)
        if header is HeaderFault.FORMAT:
            return TailDamage.UNKNOWN
        if header is HeaderFault.DIGEST:
            return self._torn_or_rotten(start, start + extent_header_bytes)
        return TailDamage.MISPLACED if header.offset != self.size else TailDamage.TORN

    def _torn_or_rotten(self, start: int, end: int) -> TailDamage:
        """Return TORN if the part of [start, end) in some sector is all zeros; ROTTEN otherwise."""
        data = self.read(start, end - start)
        edge = start
        while edge < start + len(data):
            next_edge = min(edge - edge % SECTOR_BYTES + SECTOR_BYTES, start + len(data))
            if not any(data[edge - start : next_edge - start]):
                return TailDamage.TORN
            edge = next_edge
        return TailDamage.ROTTEN

    def _durable_after(self) -> int:
        """Return the highest `durable` in valid headers of this object after the damage, at any position."""
        # An extent that knew the damaged bytes to be durable proves that they were acknowledged: to cut them
        # as a torn tail would lose them without an error.
        highest = 0
        needle = MAGIC + b"\x01"
        for _, chunk in self._chunks(self.position + 1, overlap=extent_header_bytes - 1):
            start = chunk.find(needle)
            while 0 <= start <= len(chunk) - extent_header_bytes:
                header = decode_header(chunk, self.seed, start)
                if not isinstance(header, HeaderFault):
                    highest = max(highest, header.durable)
                    self.reach = max(self.reach, header.end)
                start = chunk.find(needle, start + 1)
        return highest

    def _chunks(self, position: int, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the rest of the file in chunks. They overlap, so that no header is missed at a boundary."""
        while position < self.file_bytes:
            chunk = self.read(position, CONTENT_WINDOW_BYTES + overlap)
            if not chunk:
                return
            yield position, chunk
            position += CONTENT_WINDOW_BYTES
