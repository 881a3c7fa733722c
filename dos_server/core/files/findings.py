"""The texts of what an offline check of a data directory finds: expected, found, meaning, and what to do.

The letter of a finding is that of the row of `recovery` that a start would log.
"""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from dos_server.core.files.records import Entry, ObjectMark, torn_name
from dos_server.core.files.recovery import RecoveredObject, RecoveryDecision
from dos_server.core.files.scan import DamagedExtentError


class Severity(Enum):
    """The severity of a finding. Only DAMAGED and UNCHECKED are faults."""

    DAMAGED = "CORRUPT"
    """Bytes that were stored are missing or changed."""
    TORN = "TORN"
    """The end of a write that a crash interrupted. None of it was acknowledged; the next start cuts it."""
    UNCHECKED = "NOT CHECKED"
    """It could not be read, for a reason that says nothing about the stored bytes."""
    NOTE = "note"
    """Nothing is wrong."""


@dataclass(frozen=True)
class Finding:
    """One finding. `place`: DIRECTORY/OBJECT, or a file below the data directory. `offset`: logical,
    everything below it is good. `position`: in the file. `case`: the row of the start's table.
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
        return {**asdict(self), "verdict": self.verdict.name.lower()}


REPAIR: Final = "repair it from the other servers of the store while all of them run: dos store repair URL"
REPLACE: Final = (
    "replace this server: dos store replace URL; if it is in no store, restore the file from a backup"
)
_NEXT_START: Final = "nothing: the next start does this"

_CASE_TEXTS: Final = {
    "B": ("the end of the file, or an extent", "only zeros", "a crash interrupted a write before its bytes"),
    "C": ("an extent", "part of one, or one with sectors of zeros", "a crash interrupted a write"),
    "D": (
        "an extent as it was written",
        "one whose bytes do not match its digest",
        "bit rot, which no crash causes",
    ),
    "E": (
        "the extent that follows here",
        "a valid one of another offset, or of another chain",
        "a block of another place or time",
    ),
    "F": ("an extent of a version known here", "one of a newer version", "a newer server wrote it"),
    "G": ("bytes that were synced", "the end of the file", "synced bytes are missing: the file was cut off"),
    "H": ("bytes that were synced", "only zeros", "synced bytes are missing: they were zeroed"),
    "I": (
        "bytes that were synced",
        "part of an extent",
        "synced bytes are torn: the disk lied or lost them",
    ),
    "P": (
        "nothing after the size in its mark",
        "more bytes",
        "a sync failed: bytes after it may not be on the disk",
    ),
    "Q": (
        "an extent as it was written",
        "one whose bytes do not match its digest",
        "bit rot, and also a failed sync",
    ),
    "R": ("an object without a flag", "a mark with the flag damaged", "the server found it damaged before"),
}


def of_object(place: str, found: RecoveredObject, file_bytes: int, mark: ObjectMark | None) -> Finding | None:
    """Return what the start's decision means; None if there is nothing to report about the object."""
    cut_bytes = file_bytes - found.file_bytes
    if found.decision is RecoveryDecision.KEEP or (not found.corrupt and not cut_bytes):
        return None
    expected, what, means = _CASE_TEXTS[found.letter]
    if mark is not None and found.letter in "GHI" and mark.synced > found.size:
        expected = f"{mark.synced} synced bytes, according to its mark"
    if found.corrupt:
        todo = "serve it with a server of that version" if found.letter == "F" else REPAIR
        means += f". It is CORRUPT from offset {found.size} on: the server only serves bytes below that"
        return Finding(
            Severity.DAMAGED, place, expected, what, means, todo, found.size, found.file_bytes, found.letter
        )
    copy = ""
    if found.decision is RecoveryDecision.COPY_CUT:
        copy = f" and keeps a copy in {torn_name(place.partition('/')[2], found.file_bytes)}"
    means = f"{means}. None of it was acknowledged: the next start cuts {cut_bytes} bytes{copy}"
    todo = f"{_NEXT_START}; --repair does it now"
    return Finding(
        Severity.TORN, place, expected, what, means, todo, found.size, found.file_bytes, found.letter
    )


def one_line(finding: Finding) -> str:
    position_text = (
        finding.place if finding.position is None else f"{finding.place}, byte {finding.position} of its file"
    )
    case = f" (case {finding.case})" if finding.case else ""
    return f"{position_text}: expected {finding.expected}, found {finding.found}: {finding.means}{case}"


def logged(place: str, found: RecoveredObject, file_bytes: int) -> str:
    expected, what, means = _CASE_TEXTS[found.letter]
    seen = f"expected {expected}, found {what}: {means} (case {found.letter})"
    position_text = f"object {place}, byte {found.file_bytes} of {file_bytes} in its file: {seen}"
    if found.corrupt:
        return f"{position_text}. It is CORRUPT from offset {found.size} on; {REPAIR}"
    cut_bytes = file_bytes - found.file_bytes
    if not cut_bytes:
        nothing = f"Nothing needs to be cut off: it ends at {found.size}"
        return f"object {place}: {means} (case {found.letter}). {nothing}"
    copied = ", which are copied aside," if found.decision is RecoveryDecision.COPY_CUT else ""
    return (
        f"{position_text}. None of it was acknowledged: {cut_bytes} bytes{copied} are cut off;"
        f" it ends at {found.size}"
    )


def of_rot(place: str, damage: DamagedExtentError) -> Finding:
    means = f"bit rot or a stale block; a read or the scrub reports it CORRUPT from offset {damage.offset} on"
    return Finding(
        Severity.DAMAGED, place, damage.expected, damage.what, means, REPAIR, damage.offset, damage.position
    )


def of_lost(place: str, mark: ObjectMark | None, why: str) -> Finding:
    synced = f"{mark.synced} bytes, according to its mark" if mark is not None else "an object's file"
    means = "this server has lost the object: CORRUPT from offset 0 on"
    return Finding(Severity.DAMAGED, place, synced, why, means, REPAIR, 0, None, "G")


def of_poisoned(place: str) -> Finding:
    means = "a sync of it failed. The next start goes by the mark, which covers all bytes in the file"
    return Finding(
        Severity.NOTE, place, "no flag", "a mark with the flag poisoned", means, _NEXT_START, case="P"
    )


def of_removed(place: str, *, there: bool) -> Finding:
    found = "its file" if there else "a mark with the flag removed"
    means = "a crash interrupted a removal: the next start completes it"
    return Finding(Severity.NOTE, place, "nothing", found, means, _NEXT_START)


def of_mark(place: str, position: int) -> Finding:
    """Return the finding for 256 bytes that are neither a mark nor zeros: a start ignores them."""
    means = (
        "it is unknown which object the mark belonged to: a start ignores it, serves all that is there, and"
        " would take a lost end of the object for one that was never written"
    )
    todo = "compare the copies before this server counts: dos store verify URL"
    return Finding(Severity.NOTE, place, "a mark, or zeros", "other bytes", means, todo, position=position)


def of_register(place: str, position: int, means: str) -> Finding:
    """Return the finding for a damaged mark in the register. `means`: '' if each such directory still has its
    folder.
    """
    texts = "the mark of a directory, or zeros", "other bytes"
    if means:
        return Finding(Severity.DAMAGED, place, *texts, means, REPLACE, position=position)
    means = "every directory has its folder, so the next start registers it again"
    return Finding(Severity.NOTE, place, *texts, means, _NEXT_START, position=position)


def of_lost_directory(place: str, *, is_there: bool) -> Finding:
    """Return the finding for a registered directory whose folder is missing, or was at some time."""
    means = "the server has lost the directory, and which epoch it held: no client can use it"
    todo = (
        "replace this server: dos store replace URL; if it is in no store, stop all writers and run with"
        " --raise-claims, which accepts that its objects are gone"
    )
    found = "one that was missing at some time" if is_there else "none"
    return Finding(Severity.DAMAGED, place, "the folder of a directory", found, means, todo)


def of_record(place: str, expected: str, found: str, means: str) -> Finding:
    return Finding(Severity.DAMAGED, place, expected, found, means, REPLACE)


def of_claim(place: str, expected: str, found: str) -> Finding:
    means = "the held epoch is unknown: the server cannot fence writers, and no client can use the directory"
    todo = (
        "replace this server: dos store replace URL; if it is in no store, stop all writers and run with"
        " --raise-claims"
    )
    return Finding(Severity.DAMAGED, place, expected, found, means, todo)


def of_entry(place: str, entry: Entry) -> Finding:
    return Finding(Severity.NOTE, place, "nothing", "a file beside the objects", entry.value, "nothing")


def of_unreadable(place: str, why: str) -> Finding:
    means = "it is unknown whether it is good"
    return Finding(
        Severity.UNCHECKED, place, "a file to read", why, means, "run the check as the user of the server"
    )
