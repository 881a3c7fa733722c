"""The graph's fingerprint: state made by one graph is never handed to another in silence.

`operators` maps each operator's name to its canonical description (kind, input names, key columns, schema):
whatever changes the meaning of its state. The manifest carries both the fingerprint and the descriptions,
so that a mismatch can name the operators that differ. The description never contains user code: fixing a
bug in a function keeps the state.
"""

from collections.abc import Mapping

import msgspec

from checkpoint.errors import FingerprintMismatchError
from dos_protocol.digests import digest64


def fingerprint(operators: Mapping[str, str]) -> str:
    """16 hex digits: xxh3-64 of the JSON list of [name, description], sorted by name."""
    text = msgspec.json.encode(sorted([name, text] for name, text in operators.items()))
    return f"{digest64(text):016x}"


def differing_operators(stored: Mapping[str, str], present: Mapping[str, str]) -> list[tuple[str, str]]:
    """(operator, what differs), in order of the names."""
    reasons: list[tuple[str, str]] = []
    for name in sorted(stored.keys() | present.keys()):
        if name not in present:
            reasons.append((name, "is in the stored state and not in this graph"))
        elif name not in stored:
            reasons.append((name, "is in this graph and not in the stored state"))
        elif stored[name] != present[name]:
            reasons.append((name, f"was {stored[name]}, is {present[name]}"))
    return reasons


def check_fingerprint(
    stored: Mapping[str, str], present: Mapping[str, str], *, region: str, cut: int
) -> None:
    """Raises FingerprintMismatchError naming each operator that differs; nothing was started."""
    reasons = differing_operators(stored, present)
    if not reasons:
        return
    lines = "; ".join(f"operator {name!r} {reason}" for name, reason in reasons)
    raise FingerprintMismatchError(
        f"cut {cut} of region {region!r} was made by another graph: {lines}",
        operators=tuple(name for name, _ in reasons),
    )
