"""The history of a store: what was changed, by whom, when and why. Pure: no I/O.

Each run that changes the store writes an object of its own (`core.json_log`): one entry before the change,
and one after it. A run that does not end has no second entry.

While a run works, it also appends *beats*. They have no content. Other runs see that the object grows, and do
not take over.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from dos_client.core.json_log import JsonLog

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


CHANGES: Final = JsonLog("history.", Change)


def merge(entries: Iterable[Change]) -> list[Change]:
    """Return one entry per change: the last one, or the first one if the change has no second entry."""
    merged: list[Change] = []
    for entry in entries:
        if merged and entry.outcome and not merged[-1].outcome and entry.same_change(merged[-1]):
            merged[-1] = replace(entry, at=merged[-1].at)
        else:
            merged.append(entry)
    return merged
