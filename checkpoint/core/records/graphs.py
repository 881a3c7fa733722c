"""Whether a graph can continue from the state of another one: fingerprints, and what a fork may change. Pure.

`operators` maps each operator's name to its canonical description: kind, input names, key columns, schema,
and everything else that changes the meaning of its state. The manifest stores the fingerprint and the
descriptions, so that an error can name the operators that differ. A description never contains user code:
fixing a bug in a function keeps the state.

State that the user declared is described as `state (COLUMNS)`, from its second version on as `state v2
(COLUMNS)`. A graph may take over state of older versions for which it has a migration (`older`).
`state_blocks.py` handles the version that a block of state itself states.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from checkpoint.core.records.manifest import Checkpoint
from checkpoint.errors import FingerprintMismatchError, ManifestError
from dos_protocol.digests import digest64

_DECLARED: Final = re.compile(r"(.*) state (?:v(\d+) )?\((.*?)\)((?: ttl)?(?: gives \(.*\))?)")


_WORDS_BESIDE: Final = 3
"""How many equal words are shown beside those in which two descriptions differ."""


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
        return _difference(stored.split(" "), present.split(" "))
    difference = f"declares {new}, but the checkpoint holds {old}"
    if old.version > new.version:
        return f"{difference}: run a graph that declares version {old.version}"
    version = max(new.version, old.version + 1)
    return (
        f"{difference}: give it state_version={version} and Migration({old.version}, state, function), where"
        " state has the columns of the checkpoint"
    )


def _difference(stored: Sequence[str], present: Sequence[str]) -> str:
    """Return two descriptions, of whose words those at the beginning and the end that are equal are left out,
    except the first one and some beside the difference.
    """
    lengths = range(min(len(stored), len(present)) + 1)
    begin = max(n for n in lengths if stored[:n] == present[:n])
    end = max(
        n
        for n in lengths
        if n + begin <= lengths[-1] and stored[len(stored) - n :] == present[len(present) - n :]
    )
    return "was {}, is {}".format(
        *(_shortened(words, begin, len(words) - end) for words in (stored, present))
    )


def _shortened(words: Sequence[str], begin: int, end: int) -> str:
    begin, end = max(begin - _WORDS_BESIDE, 0), min(end + _WORDS_BESIDE, len(words))
    first = [words[0], "..."] if begin > 1 else list(words[:begin])
    last = ["..."] if end < len(words) - 1 else list(words[end:])
    return " ".join([*first, *words[begin:end], *last])


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


def check_graph(
    checkpoint: Checkpoint,
    present: Mapping[str, str],
    *,
    region: str,
    older: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Raise FingerprintMismatchError unless a graph with these operators can continue from a checkpoint. The
    first graph of a fork may differ in operators that were named, and its sinks begin anew.
    """
    stored = checkpoint.operators
    if checkpoint.in_origin and checkpoint.origin is not None:
        stored = _in_fork(stored, checkpoint.origin.dropped)
        present = _in_fork(present, checkpoint.origin.added)
    check_fingerprint(stored, present, region=region, checkpoint=checkpoint.number, older=older)


def _in_fork(operators: Mapping[str, str], named: Collection[str]) -> dict[str, str]:
    """Return what counts of the descriptions of operators: of a sink, only what it reads."""
    return {
        name: text.partition(")")[0] if text.startswith("sink ") else text
        for name, text in operators.items()
        if name not in named
    }


def check_places(checkpoint: Checkpoint, unchecked: Mapping[str, str]) -> None:
    """Raise ManifestError if a sink of a fork may write where the original writes. unchecked: sink -> why
    that is not noticed.
    """
    if not checkpoint.in_origin or checkpoint.origin is None:
        return
    if doubtful := {sink: why for sink, why in unchecked.items() if sink not in checkpoint.origin.same_place}:
        listed = "; ".join(f"{sink!r}: {why}" for sink, why in doubtful.items())
        raise ManifestError(
            f"the region is a fork of {checkpoint.origin.region!r}, and these sinks may write to the same"
            f" place"
            f" unnoticed: {listed}",
            checkpoint=checkpoint.number,
            remedy="delete the fork, and fork again with --same-place SINK for each, if that is right",
        )


def check_log(checkpoint: Checkpoint | None, source: str, reads: str) -> None:
    """Raise ManifestError if a source of a fork reads the output of another region than in the original."""
    if checkpoint is None or checkpoint.origin is None:
        return
    expected = checkpoint.origin.logs.get(source, reads)
    if expected != reads:
        raise ManifestError(
            f"the region is a fork of {checkpoint.origin.region!r}, whose source {source!r} reads the"
            f" output of"
            f" region {expected!r}; here it reads that of {reads!r}, in which its position means nothing",
            checkpoint=checkpoint.number,
            remedy=f"read LogSource(..., region={expected!r}), in an application of its own",
        )
