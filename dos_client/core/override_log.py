"""The log of what people forced on a store: entries and bytes. Pure: no I/O.

Each run that forces something writes an object of its own (`core.json_log`). Entries are for people and for
`dos store status`. One decision depends on them: whether an interrupted recovery must be completed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dos_client.core.json_log import JsonLog

OTHER_IS_GONE: Final = "other-is-gone"
ACCEPT_LOSS: Final = "accept-loss"


@dataclass(frozen=True, slots=True)
class Override:
    """One entry.

    - `what`: OTHER_IS_GONE or ACCEPT_LOSS.
    - `generation`: of the forced record.
    - `finished`: set in the second entry of a run, after all its work was done.
    - `kept`, `lost`: addresses with server ids.
    - `details`: what was truncated or repaired, one line each.
    """

    what: str
    at: str
    by: str
    generation: int
    generation_before: int
    kept: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    finished: bool = False
    details: list[str] = field(default_factory=list)


OVERRIDES: Final = JsonLog("overrides.", Override)


def is_finished(entries: Iterable[Override], generation: int) -> bool:
    """Return whether the forced change of that generation was completed."""
    return any(entry.finished and entry.generation == generation for entry in entries)
