"""The log of what people forced on a store: entries and bytes. Pure: no I/O.

An entry is one line of JSON. Each run that forces something writes its own object, `overrides.<epoch, 16
hex>`, in the directory of the record log, under its claim of that directory. Entries are for people and for
`dos store status`. One decision depends on them: whether an interrupted recovery must be completed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dos_protocol.vocabulary import ObjectInfo

PREFIX: Final = "overrides."
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


def object_name(epoch: int) -> str:
    """Return the name of the object that the run with that epoch writes."""
    return f"{PREFIX}{epoch:016x}"


def names(answers: Mapping[bytes, Mapping[str, ObjectInfo]]) -> list[str]:
    """Return the log's objects that any member has, oldest first."""
    return sorted({name for objects in answers.values() for name in objects if name.startswith(PREFIX)})


def encode(entry: Override) -> bytes:
    """Encode an entry as a line."""
    return json.dumps({"version": 1, **asdict(entry)}, sort_keys=True).encode() + b"\n"


def decode(data: bytes) -> list[Override]:
    """Return the complete entries in the bytes. Lines that cannot be parsed are skipped."""
    entries = []
    for line in data.split(b"\n"):
        try:
            fields: dict[str, Any] = json.loads(line)
            del fields["version"]
            entries.append(Override(**fields))
        except (ValueError, TypeError, KeyError):
            continue
    return entries


def is_finished(entries: Iterable[Override], generation: int) -> bool:
    """Return whether the forced change of that generation was completed."""
    return any(entry.finished and entry.generation == generation for entry in entries)
