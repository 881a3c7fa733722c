"""What differs between two graphs, and whether one can continue from the state of the other. Pure.

A checkpoint stores an `OperatorNote` for each operator of its graph. `compare` is the one decision about two
graphs: for a start, a restore, a fork, an edit, a fall back and a trial. It knows no names of chains, and no
user code: a function may change, and the state stays.

| operator | between two graphs |
|---|---|
| stateless: a function, a filter, a union, an exchange | comes, goes, is renamed, has another input |
| of a state, or a clock (`event_time`) | stays, by name: kind, keys, details, stored columns, states |
| a source, a sink | stays, by name: its details and columns |
| a declared state | may have another version, for which the graph has a migration |

For each input, the sources above an operator are its *lineage*. Columns do not tell whose rows made a state,
so a state whose input has no source in common with what it was made of is refused, and so are exchanged
inputs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from checkpoint.errors import GraphChangeRefusedError
from dos_protocol.digests import digest64

STATELESS: Final = frozenset({"map", "flat_map", "filter", "union", "key_by", "broadcast", "side"})
"""The kinds of operators of which a checkpoint has nothing. Of any other kind it may have something."""

_WORDS_BESIDE: Final = 3
"""How many equal words are shown beside those in which two descriptions differ."""


class DeclaredState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns of a state that the user declared, as text with names and types.

    >>> str(DeclaredState("n int64")), str(DeclaredState("n int64", 2, ttl=True))
    ('state (n int64)', 'state v2 (n int64) ttl')
    """

    columns: str
    version: int = 1
    ttl: bool = False

    def __str__(self) -> str:
        version = "" if self.version == 1 else f"v{self.version} "
        return f"state {version}({self.columns}){' ttl' if self.ttl else ''}"


class OperatorNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a checkpoint stores of one operator of its graph. `str` is its description for people."""

    kind: str
    inputs: tuple[str, ...] = ()
    lineage: tuple[tuple[str, ...], ...] = ()
    """For each input, the sources above it, sorted."""
    stored: tuple[str, ...] = ()
    """For each input, its columns on which the stored data depends, and whether its rows are changes."""
    detail: str = ""
    """What else changes the meaning of its state: keys, window, place."""
    state: DeclaredState | None = None
    takes: tuple[DeclaredState, ...] = ()
    """Other declared states that it takes over, through its migrations."""
    gives: str = ""
    """The columns of its output, empty for a sink."""

    @property
    def is_stateless(self) -> bool:
        return self.kind in STATELESS

    @property
    def meaning(self) -> str:
        """What two operators must have in common so that one has a use for the state of the other."""
        stores = [f"of ({columns})" for columns in self.stored]
        gives = [f"gives ({self.gives})"] if self.kind == "source" else []
        return " ".join(filter(None, [self.kind, *stores, self.detail, *gives]))

    @property
    def text_of_state(self) -> str:
        """Its details, its declared state and its output, for people."""
        state = "" if self.state is None else str(self.state)
        gives = f"gives ({self.gives})" if self.gives else ""
        return " ".join(filter(None, [self.detail, state, gives]))

    def __str__(self) -> str:
        return f"{self.kind} from ({', '.join(self.inputs)}) {self.text_of_state}".rstrip()


Operators = Mapping[str, OperatorNote]
"""Operator -> its note, of one graph."""


def fingerprint(operators: Operators) -> str:
    """Return 16 hex digits that differ for two graphs that differ: xxh3-64 of the JSON of their notes."""
    return f"{digest64(msgspec.json.encode(sorted(operators.items()))):016x}"


@dataclass(frozen=True, slots=True)
class GraphChange:
    """What differs between the graph of a checkpoint and another one. Names are sorted."""

    kept: tuple[str, ...]
    """Operators whose state, positions or output continue."""
    new: tuple[str, ...]
    gone: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    """(operator, why the graph cannot continue from the checkpoint)."""

    def __str__(self) -> str:
        rows = (("kept", self.kept), ("new", self.new), ("gone", self.gone))
        refused = [f"refused  {name}: {why}" for name, why in self.refused] or ["refused  -"]
        return "\n".join([*(f"{what:<8} {', '.join(names) or '-'}" for what, names in rows), *refused])


def compare(
    stored: Operators,
    present: Operators,
    *,
    dropped: Collection[str] = (),
    added: Collection[str] = (),
    outputs_begin: bool = False,
) -> GraphChange:
    """Return what a graph changes with which a region continues from a checkpoint of another graph.

    dropped, added: operators whose end or beginning was requested by name. outputs_begin: no output
    continues, so a sink may have another place.
    """
    lasting = {name for name, note in stored.items() if not note.is_stateless and name not in dropped}
    wanted = {name for name, note in present.items() if not note.is_stateless and name not in added}
    refused = {}
    for name in lasting | wanted:
        if name not in wanted:
            refused[name] = "is in the stored state and not in this graph"
        elif name not in lasting:
            refused[name] = "is in this graph and not in the stored state"
        elif why := _why_not(stored[name], present[name], outputs_begin=outputs_begin):
            refused[name] = why
    return GraphChange(
        kept=tuple(sorted((lasting & wanted) - refused.keys())),
        new=tuple(sorted(present.keys() - stored.keys())),
        gone=tuple(sorted(stored.keys() - present.keys())),
        refused=tuple(sorted(refused.items())),
    )


def _why_not(old: OperatorNote, new: OperatorNote, *, outputs_begin: bool) -> str:
    """Return why an operator cannot continue what another graph stored for its name, empty if it can."""
    if outputs_begin and old.kind == new.kind == "sink":
        old, new = (msgspec.structs.replace(one, detail="") for one in (old, new))
    if old.meaning != new.meaning or (old.state is None) != (new.state is None):
        return _difference(_words(old), _words(new))
    if old.state is not None and new.state is not None and old.state not in (new.state, *new.takes):
        return _why_not_state(old.state, new.state)
    return _why_not_inputs(old, new)


def _words(note: OperatorNote) -> list[str]:
    return f"{note.meaning}{'' if note.state is None else f' {note.state}'}".split(" ")


def _why_not_state(old: DeclaredState, new: DeclaredState) -> str:
    difference = f"declares {new}, but the checkpoint holds {old}"
    if old.version > new.version:
        return f"{difference}: run a graph that declares version {old.version}"
    version = max(new.version, old.version + 1)
    return (
        f"{difference}: give it state_version={version} and Migration({old.version}, state, function), where"
        " state has the columns of the checkpoint"
    )


def _why_not_inputs(old: OperatorNote, new: OperatorNote) -> str:
    """Return why the rows of an operator would be others than those that made its state."""
    was, now = old.lineage, new.lineage
    assert len(was) == len(now) or not new.stored, "stored columns are of each input"
    for port, above in enumerate(now[: len(was)]):
        if not set(above) & set(was[port]):
            return (
                f"reads {_listed(above)}, and its state was made of {_listed(was[port])}: rows of other"
                " sources do not continue it"
            )
        others = [one for index, one in enumerate(was) if index != port]
        # Which of two inputs is which: by their sources; if these do not tell, by the operators just above.
        if above in others and above != was[port]:
            return f"its inputs are exchanged: it reads {_listed(above)} where it read {_listed(was[port])}"
        if above in others and old.inputs != new.inputs:
            return (
                f"its inputs were {_listed(old.inputs)} and are {_listed(new.inputs)}, of the same sources:"
                " which continues which cannot be decided"
            )
    if len(was) != len(now):
        return f"had {len(was)} inputs and has {len(now)}"
    return ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def check_compatible(change: GraphChange, *, region: str, checkpoint: int) -> None:
    """Raise GraphChangeRefusedError, which names each operator that does not fit; nothing was started."""
    if change.refused:
        lines = "; ".join(f"operator {name!r} {why}" for name, why in change.refused)
        raise GraphChangeRefusedError(
            f"checkpoint {checkpoint} of region {region!r} was made by another graph: {lines}",
            operators=tuple(name for name, _ in change.refused),
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
