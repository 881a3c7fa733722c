"""The history of a store: what was changed, by whom, when and why. Pure: no I/O.

An entry is one line of JSON. Each run that changes the store writes its own object, `history.<epoch, 16
hex>`, in the directory of the record log, under its claim of that directory: one entry before the change, and
one after it. A run that does not end has no second entry.

While a run works, it also appends *beats*. They have no content. Other runs see that the object grows, and do
not take over.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from dos_protocol.vocabulary import ObjectInfo

PREFIX: Final = "history."
BEAT: Final = b"\n"


@dataclass(frozen=True, slots=True)
class Change:
    """One entry.

    - `what`: replace, add, move, repair, spare-add, spare-remove, recover.
    - `old`, `new`: addresses with server ids, or empty.
    - `why`: the reason; empty if a person requested it.
    - `automatic`: whether `dos store watch` decided it.
    - `generation`: of the store record, when the entry was written.
    - `outcome`: empty in the first entry of a change; then "done", or why it failed.
    """

    what: str
    at: str
    by: str
    generation: int
    old: str = ""
    new: str = ""
    why: str = ""
    automatic: bool = False
    outcome: str = ""

    def same_change(self, other: "Change") -> bool:
        """Return whether both entries are of one change."""
        return replace(self, at="", generation=0, outcome="") == replace(
            other, at="", generation=0, outcome=""
        )


def object_name(epoch: int) -> str:
    """Return the name of the object that the run with that epoch writes."""
    return f"{PREFIX}{epoch:016x}"


def names(answers: Mapping[bytes, Mapping[str, ObjectInfo]]) -> list[str]:
    """Return the log's objects that any member has, oldest first."""
    return sorted({name for objects in answers.values() for name in objects if name.startswith(PREFIX)})


def encode(change: Change) -> bytes:
    """Encode an entry as a line."""
    return json.dumps({"version": 1, **asdict(change)}, sort_keys=True).encode() + b"\n"


def decode(data: bytes) -> list[Change]:
    """Return the complete entries in the bytes. Lines that cannot be parsed are skipped."""
    entries = []
    for line in data.split(b"\n"):
        try:
            fields: dict[str, Any] = json.loads(line)
            del fields["version"]
            entries.append(Change(**fields))
        except (ValueError, TypeError, KeyError):
            continue
    return entries


def merge(entries: Iterable[Change]) -> list[Change]:
    """Return one entry per change: the last one, or the first one if the change has no second entry."""
    merged: list[Change] = []
    for entry in entries:
        if merged and entry.outcome and not merged[-1].outcome and entry.same_change(merged[-1]):
            merged[-1] = replace(entry, at=merged[-1].at)
        else:
            merged.append(entry)
    return merged
