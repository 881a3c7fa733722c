"""What an offline look at a data directory may find, in words: expected, found, what it means, what to do.

What a file is was decided before, by the table of `recovery` and by `verify`; here it only gets its words. So
there is no second opinion: the letter of a finding is that of the row that a start would log.

Rules of this file: facts in, findings out. Where the facts come from is `dos_server.offline.checking`'s.
"""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from dos_server.core.layout import Entry, torn_name
from dos_server.core.records import ObjectMark
from dos_server.core.recovery import RecoveryDecision
from dos_server.core.recovery_scan import RecoveredObject
from dos_server.core.scan import DamagedExtentError


class Severity(Enum):
    """How bad it is. Only DAMAGED and UNCHECKED are bad."""

    DAMAGED = "CORRUPT"
    """Bytes that were stored are not there, or others are."""
    TORN = "TORN"
    """The end of a write that a crash cut short. None of it was acknowledged; the next start cuts it."""
    UNCHECKED = "NOT CHECKED"
    """It could not be read, and not because the disk gave it wrong."""
    NOTE = "note"
    """Nothing is wrong."""


@dataclass(frozen=True)
class Finding:
    """One thing found. `place`: DIRECTORY/OBJECT, or a file below the data directory.

    `offset`: logical, everything below it is good, None where that says nothing; `position`: in the file;
    `case`: the row of the start's table, empty where none applies.
    """

    verdict: Severity
    place: str
    expected: str
    found: str
    means: str
    todo: str
    offset: int | None = None
    position: int | None = None
    case: str = ""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "verdict": self.verdict.name.lower()}


REPAIR: Final = "mend it from the other servers of the store, with all running: dos store repair URL"
REPLACE: Final = "replace this server: dos store replace URL; alone, restore the file from a backup"
_NEXT_START: Final = "nothing: the next start does that"

_CASES: Final = {
    "B": ("the end of the file, or an extent", "only zeros", "a write that a crash left without its bytes"),
    "C": ("an extent", "the part of one, or one with sectors of zeros", "a write that a crash cut short"),
    "D": (
        "an extent as it was written",
        "one whose bytes do not match its digest",
        "no crash does that: rot",
    ),
    "E": (
        "the extent that comes here",
        "a good one of another offset, or of another chain",
        "a block of another place or time",
    ),
    "F": ("an extent of a version known here", "one of a newer version", "a newer server wrote it"),
    "G": ("bytes that were synced", "the end of the file", "synced bytes are gone: the file was cut off"),
    "H": ("bytes that were synced", "only zeros", "synced bytes are gone: they were zeroed"),
    "I": (
        "bytes that were synced",
        "the part of an extent",
        "synced bytes are torn: the disk lied, or lost them",
    ),
    "P": (
        "nothing after what its mark vouches for",
        "more",
        "a sync failed: what came after it may be on no disk",
    ),
    "Q": (
        "an extent as it was written",
        "one whose bytes do not match its digest",
        "rot, besides a failed sync",
    ),
    "R": ("an object without a flag", "a mark that says damaged", "the server found it damaged before"),
}


def of_object(place: str, found: RecoveredObject, file_bytes: int, mark: ObjectMark | None) -> Finding | None:
    """What the start's decision means; None when there is nothing to say of the object."""
    cut_bytes = file_bytes - found.file_bytes
    if found.decision is RecoveryDecision.KEEP or (not found.corrupt and not cut_bytes):
        return None
    expected, what, means = _CASES[found.letter]
    if mark is not None and found.letter in "GHI" and mark.synced > found.size:
        expected = f"{mark.synced} bytes that were synced, as its mark says"
    if found.corrupt:
        todo = "serve it with a server of that version" if found.letter == "F" else REPAIR
        means += f". It is CORRUPT from {found.size} on: the server gives only what is below"
        return Finding(
            Severity.DAMAGED, place, expected, what, means, todo, found.size, found.file_bytes, found.letter
        )
    copy = ""
    if found.decision is RecoveryDecision.COPY_CUT:
        copy = f", a copy in {torn_name(place.partition('/')[2], found.file_bytes)}"
    means = f"{means}. None of it was acknowledged: the next start cuts {cut_bytes} bytes{copy}"
    todo = f"{_NEXT_START}; or --repair does it now"
    return Finding(
        Severity.TORN, place, expected, what, means, todo, found.size, found.file_bytes, found.letter
    )


def in_one_line(finding: Finding) -> str:
    """Return a finding as one line of text: where, what was expected and found, what that means."""
    where = (
        finding.place if finding.position is None else f"{finding.place}, byte {finding.position} of its file"
    )
    case = f" (case {finding.case})" if finding.case else ""
    return f"{where}: expected {finding.expected}, found {finding.found}: {finding.means}{case}"


def logged(place: str, found: RecoveredObject, file_bytes: int) -> str:
    """What a start writes in its log of an object that it cannot just keep."""
    expected, what, means = _CASES[found.letter]
    seen = f"expected {expected}, found {what}: {means} (case {found.letter})"
    where = f"object {place}, byte {found.file_bytes} of {file_bytes} in its file: {seen}"
    if found.corrupt:
        return f"{where}. It is CORRUPT from {found.size} on; {REPAIR}"
    cut_bytes = file_bytes - found.file_bytes
    if not cut_bytes:
        nothing = f"Nothing is to be cut off: it ends at {found.size}"
        return f"object {place}: {means} (case {found.letter}). {nothing}"
    aside = ", which are copied aside," if found.decision is RecoveryDecision.COPY_CUT else ""
    return (
        f"{where}. None of it was acknowledged: {cut_bytes} bytes{aside} are cut off, it ends at {found.size}"
    )


def of_rot(place: str, damage: DamagedExtentError) -> Finding:
    """Stored bytes that no start reads, and that are not good."""
    means = f"rot, or a block of another time. A read or the scrub makes it CORRUPT from {damage.offset} on"
    return Finding(
        Severity.DAMAGED, place, damage.expected, damage.what, means, REPAIR, damage.offset, damage.position
    )


def of_lost(place: str, mark: ObjectMark | None, why: str) -> Finding:
    """An object whose file is gone, or cannot be read: row G from 0 on, as a start has it."""
    synced = f"{mark.synced} bytes, as its mark says" if mark is not None else "an object's file"
    means = "the object is lost here: CORRUPT from 0 on"
    return Finding(Severity.DAMAGED, place, synced, why, means, REPAIR, 0, None, "G")


def of_poisoned(place: str) -> Finding:
    """A mark that says that a sync failed, where nothing is to be cut."""
    means = "a sync of it failed. The next start goes by the mark, which vouches for all that is there"
    return Finding(Severity.NOTE, place, "no flag", "a mark that says poisoned", means, _NEXT_START, case="P")


def of_removed(place: str, *, there: bool) -> Finding:
    """A removal that has begun."""
    found = "its file" if there else "a mark that says removed"
    means = "a removal that a crash interrupted: the next start goes on with it"
    return Finding(Severity.NOTE, place, "nothing", found, means, _NEXT_START)


def of_mark(place: str, position: int) -> Finding:
    """256 bytes that are neither a mark nor zeros."""
    means = (
        "which object that was of, nobody knows: a start takes it for no mark, and would take a lost end of"
        " the object for one that was never written"
    )
    todo = "compare the copies before this server counts: dos store verify URL"
    return Finding(Severity.DAMAGED, place, "a mark, or zeros", "other bytes", means, todo, position=position)


def of_record(place: str, expected: str, found: str, means: str) -> Finding:
    """Identity or store record: what the server must not go on without."""
    return Finding(Severity.DAMAGED, place, expected, found, means, REPLACE)


def of_claim(place: str, expected: str, found: str) -> Finding:
    """A claim that cannot be read, or that is older than an extent."""
    means = "which epoch was held is not known: the server fences nobody, and no client can use the directory"
    todo = "replace this server: dos store replace URL; alone, with all writers stopped: --raise-claims"
    return Finding(Severity.DAMAGED, place, expected, found, means, todo)


def of_entry(place: str, entry: Entry) -> Finding:
    """A leftover, or a file that is nobody's."""
    return Finding(Severity.NOTE, place, "nothing", "a file beside the objects", entry.value, "nothing")


def of_unreadable(place: str, why: str) -> Finding:
    """It may be sound."""
    means = "whether it is good is not known"
    return Finding(
        Severity.UNCHECKED, place, "a file to read", why, means, "run it as the user of the server"
    )
