"""The fingerprint of a graph, which prevents that one graph silently restores the state of another. Pure.

`operators` maps each operator's name to its canonical description: kind, input names, key columns, schema,
and everything else that changes the meaning of its state. The manifest stores the fingerprint and the
descriptions, so that an error can name the operators that differ. A description never contains user code:
fixing a bug in a function keeps the state.

State that the user declared is described as `state (COLUMNS)`, from its second version on as `state v2
(COLUMNS)`. A graph may take over state of older versions for which it has a migration (`older`).
`state_blocks.py` handles the version that a block of state itself states.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from checkpoint.errors import FingerprintMismatchError
from dos_protocol.digests import digest64

_DECLARED: Final = re.compile(r"(.*) state (?:v(\d+) )?\((.*?)\)((?: ttl)?(?: gives \(.*\))?)")


class _Declared(NamedTuple):
    version: int
    columns: str
    rest: tuple[str, str]

    def __str__(self) -> str:
        return declared_state(self.version, self.columns)


def declared_state(version: int, columns: str) -> str:
    """Return the description of a declared state; `columns` lists names and types.

    >>> declared_state(1, "n int64"), declared_state(2, "n int64")
    ('state (n int64)', 'state v2 (n int64)')
    """
    return f"state ({columns})" if version == 1 else f"state v{version} ({columns})"


def _declared(description: str) -> _Declared | None:
    found = _DECLARED.fullmatch(description)
    if found is None:
        return None
    return _Declared(int(found[2] or 1), found[3], (found[1], found[4]))


def _why(stored: str, present: str) -> str:
    """Return how two descriptions of one operator differ, with the remedy if only its declared state does."""
    old, new = _declared(stored), _declared(present)
    if old is None or new is None or old.rest != new.rest:
        return f"was {stored}, is {present}"
    difference = f"declares {new}, but the checkpoint holds {old}"
    if old.version > new.version:
        return f"{difference}: run a graph that declares version {old.version}"
    version = max(new.version, old.version + 1)
    return (
        f"{difference}: give it state_version={version} and Migration({old.version}, state, function), where"
        " state has the columns of the checkpoint"
    )


def fingerprint(operators: Mapping[str, str]) -> str:
    """Return 16 hex digits: xxh3-64 of the JSON list of [name, description], sorted by name."""
    text = msgspec.json.encode(sorted([name, text] for name, text in operators.items()))
    return f"{digest64(text):016x}"


def differing_operators(
    stored: Mapping[str, str],
    present: Mapping[str, str],
    older: "Mapping[str, Sequence[str]] | None" = None,
) -> list[tuple[str, str]]:
    """Return (operator, difference), sorted by name. `older`: other accepted descriptions."""
    takes = older or {}
    reasons: list[tuple[str, str]] = []
    for name in sorted(stored.keys() | present.keys()):
        if name not in present:
            reasons.append((name, "is in the stored state and not in this graph"))
        elif name not in stored:
            reasons.append((name, "is in this graph and not in the stored state"))
        elif stored[name] != present[name] and stored[name] not in takes.get(name, ()):
            reasons.append((name, _why(stored[name], present[name])))
    return reasons


def check_fingerprint(
    stored: Mapping[str, str],
    present: Mapping[str, str],
    *,
    region: str,
    checkpoint: int,
    older: "Mapping[str, Sequence[str]] | None" = None,
) -> None:
    """Raise FingerprintMismatchError, which names each operator that differs; nothing was started."""
    reasons = differing_operators(stored, present, older)
    if not reasons:
        return
    lines = "; ".join(f"operator {name!r} {reason}" for name, reason in reasons)
    raise FingerprintMismatchError(
        f"checkpoint {checkpoint} of region {region!r} was made by another graph: {lines}",
        operators=tuple(name for name, _ in reasons),
    )
