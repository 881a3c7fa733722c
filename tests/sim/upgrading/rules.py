"""The decision about a graph and a checkpoint, the options of a program, and the rules that can be left out.

Names, uids and whether one operator continues the state of another are decided by the real
`checkpoint.core.graph_change.compare`; `decide` adds replaced graphs and `bootstrap`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final

from msgspec.structs import replace

from checkpoint.core.graph_change import GraphOptions, OperatorNote, born_with, compare, fingerprint
from checkpoint.core.records.manifest import Checkpoint
from tests.sim.upgrading.graphs import IRREVOCABLE, Graph, Op, Removed, notes, sinks_of, sources_of, tables

Operators = Mapping[str, OperatorNote]

OMISSIONS: Final[dict[str, str]] = {
    # Of the design.
    "replay-old-steps": "recorded steps of the old graph are not void, and the new one replays them",
    "no-quiet-check": "a graph begins although steps after the checkpoint may have been shown",
    "stop-does-not-pause": "a stop commits a checkpoint, and workers make steps until they end",
    "take-back-without-line": "shown steps are taken back, and no line of history tells it to readers",
    "uid-reused": "a name that was removed and comes again has the uid that it had",
    "rename-without-positions": "`renamed` moves state, and not positions of sources",
    "rename-without-watermarks": "`renamed` moves rows, and not watermarks",
    "rename-moves-log": "a sink that is renamed begins another log",
    "removed-sink-not-completed": "prepared rows of a removed sink are not published",
    "steps-before-commit": "steps run before the checkpoint that commits the graph",
    "old-program-accepted": "a graph that was replaced counts as a change",
    "options-applied-again": "options are evaluated although the graph equals the stored one",
    "no-state-schema": "columns of stored rows are not compared",
    "key-not-compared": "keys are not compared",
    "kind-not-compared": "kinds are not compared",
    "unnamed-state-dropped": "state that the graph lacks is dropped without its name",
    "register-late": "a new source is a consumer only after the commit of its graph",
    "deregister-early": "a removed source is no consumer from the commit on",
    "map-of-present-graph": "a restore continues with the uids of the newest graph",
    "drop-deletes-now": "dropped state is deleted at the commit, and not with its last checkpoint",
    "check-after-claim": "graphs are compared only after the claim, when its segment is open",
    "bootstrap-twice": "a start after the commit applies `bootstrap` again",
    "bootstrap-after-commit": "rows of `bootstrap` are added after the commit of the graph",
    "begins-again": "a source that began at its end begins there again after each reset",
    "begins-ignored": "a source that was to begin at its end begins at its first row",
    "void-after-commit": "recorded steps of the old graph become void after the commit",
    "ports-not-compared": "exchanged inputs are accepted",
    "lineage-not-compared": "state continues with rows of other sources",
    "consumer-never-removed": "a removed source stays a consumer after its last checkpoint is released",
    "removed-sink-leaves-transactions": "transactions of a removed sink that no checkpoint has stay open",
    "removed-sink-of-staying-workers": "nobody completes what workers that leave have of a removed sink",
    "removed-place-not-compared": "a sink is removed at another place than it has",
    "unnamed-sink-removed": "sources and sinks that the graph lacks are removed without their names",
    "completes-unfenced": "a driver that was superseded completes removed sinks",
    "removed-log-has-no-end": "records do not state where the log of a removed sink ends",
    "ends-of-staying-workers": "of a removed log, the ends of workers that leave are not stated",
    "restore-keeps-ended-logs": "a restore has the ended logs of the last record, instead of its target's",
    # Of its review, by number of the hole.
    "quiet-asks-new-workers": "1: the workers of the new layout are asked for the last shown step",
    "uid-without-region": "2: a uid has the number of a checkpoint, and not the region",
    "irrevocable-of-present-sinks": "3: records forget sinks that were removed and cannot take rows back",
    "take-back-shows-again": "3: shown steps are taken back although a sink cannot take them back",
    "not-decided-under-the-claim": "6: a newcomer does not compare again after its claim",
    "decided-after-the-segment": "6: a newcomer compares again after its segment is open",
    "superseded-driver-ends": "7: a driver that handed over does not claim again after the newcomer's death",
    "claims-without-lease": "7: a newcomer claims although the driver that runs has not paused for it",
    "rewind-forgets-new-logs": "8: the record of a restore does not name the logs that it takes back",
    "backup-without-ended-logs": "9: a backup has the logs of present sinks alone",
    "one-upgrade-savepoint": "10: a change drops the savepoint of the one before",
    "bootstrap-of-another-checkpoint": "14: rows made of one checkpoint are put into another",
    "falls-back-below-changes": "damage: a program goes back below a change that its options do not know",
    "published-by-number": "a record that repeats another one publishes what a failed vote of its number had",
    # Of what is built: records state whether steps after them are shown.
    "quiet-is-not-renewed": "a region that continues shows steps after a record that states none",
    "quiet-without-pause": "the checkpoint of a stop states that it is quiet before all have paused",
}
"""What is left out -> what is then the case. Each must be found."""


class RefusedError(Exception):
    """A program was refused. `why` is one word of the decision."""

    def __init__(self, why: str, text: str = "") -> None:
        super().__init__(f"{why}: {text}" if text else why)
        self.why = why


@dataclass
class Options:
    """What a user gives to a start with another graph. bootstrap_of: the checkpoint its rows are made of."""

    renamed: dict[str, str] = field(default_factory=dict)
    drop_state: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    places: dict[str, str] = field(default_factory=dict)
    """Removed sink -> its place, if it is given wrongly."""
    bootstrap: dict[str, dict[int, int]] = field(default_factory=dict)
    bootstrap_of: int = 0
    begins: dict[str, str] = field(default_factory=dict)
    take_back: bool = False
    graph_back: bool = False
    hand_over: bool = False


@dataclass(frozen=True)
class Change:
    """What a graph changes with which a region continues. gone: stored operators, by their names there."""

    uids: dict[str, str]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    was: dict[str, str]
    """Operator that is kept under another name -> its former one."""


@dataclass(frozen=True)
class Record:
    """A record of the manifest: what the product stores, and what it will store."""

    checkpoint: Checkpoint
    uids: dict[str, str]
    """Operator -> the name under which all of it is stored."""
    upgrades: tuple[int, ...] = ()
    """The checkpoints of savepoints that changes left, newest last."""
    kind: str = "vote"
    """vote, graph (a graph begins), back (a restore), fork, rows (those of a bootstrap are beside it)."""

    def again(self, **changes: Any) -> "Record":
        """Return this record with changes."""
        return dataclasses.replace(self, **changes)

    @property
    def number(self) -> int:
        return self.checkpoint.number

    @property
    def ended(self) -> set[str]:
        """Logs of removed sinks that can be read."""
        return {uid for uid, log in self.checkpoint.ended.items() if log.floors}

    @property
    def taken_back(self) -> set[str]:
        """Logs that this line does not have: later checkpoints than its target began them."""
        return self.checkpoint.ended.keys() - self.ended

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.checkpoint.operators)

    @cached_property
    def names(self) -> dict[str, str]:
        return {uid: name for name, uid in self.uids.items()}


def operators_of(graph: Graph) -> dict[str, OperatorNote]:
    """Return the notes of a graph, with its sources by name."""
    return _operators(frozenset(graph.items()))


@lru_cache(maxsize=256)
def _operators(items: frozenset[tuple[str, Op]]) -> dict[str, OperatorNote]:
    graph = dict(items)
    return notes(graph, {name: name for name in sources_of(graph)})


def irrevocable_of(graph: Graph) -> dict[str, str]:
    return {name: graph[name].kind for name in sinks_of(graph) if graph[name].kind in IRREVOCABLE}


def decide(
    kept: Sequence[Record], graph: Graph, options: Options, *, region: str, without: str
) -> Change | None:
    """Return what a graph changes with which a region continues from the last of these records, None if it is
    the same graph. Raises RefusedError.
    """
    last = kept[-1]
    present = operators_of(graph)
    if present == last.checkpoint.operators and not last.checkpoint.in_origin:
        return _applied_again(last, graph, options, region) if without == "options-applied-again" else None
    is_replaced = fingerprint(present) in last.checkpoint.replaced
    if is_replaced and not options.graph_back and without != "old-program-accepted":
        raise RefusedError("replaced")
    made_of, edit = options.bootstrap_of, last.checkpoint.edit
    same = {last.checkpoint.voted_as, edit.made_of if edit is not None else 0}
    if made_of and made_of not in same and without != "bootstrap-of-another-checkpoint":
        raise RefusedError("bootstrap", f"made of {made_of}, this is {last.checkpoint.voted_as}")
    stored = last.checkpoint.operators
    found = compare(
        stored,
        _blind(stored, present, options, without),
        options=GraphOptions(
            _dropped(stored, present, options, without),
            options.renamed,
            removed=_removed(stored, options, without),
        ),
        uids=last.checkpoint.uids,
        born=born_of(last, region, without),
        outputs_begin=last.checkpoint.in_origin,
    )
    if found.refused:
        raise RefusedError("unfit", "; ".join(f"{name} {why}" for name, why in found.refused))
    was = {new: old for old, new in found.renamed}
    begins = set(found.new)
    if last.checkpoint.in_origin:
        begins |= set(sinks_of(graph))
    kept_names = {was.get(name, name) for name in present if name not in begins}
    uids = {name: found.uids.get(name, name) for name in present}
    return Change(uids, tuple(sorted(begins)), tuple(sorted(last.uids.keys() - kept_names)), was)


def _applied_again(last: Record, graph: Graph, options: Options, region: str) -> Change | None:
    again = [name for name in options.drop_state if name in graph and tables(graph, name)]
    if not again:
        return None
    uids = {**last.uids, **{name: f"{born_of(last, region, '')}{name}" for name in again}}
    return Change(uids, tuple(again), tuple(again), {})


def born_of(last: Record, region: str, without: str) -> str:
    if without == "uid-reused":
        return ""
    # With the region: forks inherit chains, and number their own checkpoints from 1.
    return born_with("" if without == "uid-without-region" else region, last.number)


def _dropped(stored: Operators, present: Operators, options: Options, without: str) -> tuple[str, ...]:
    if without != "unnamed-state-dropped":
        return options.drop_state
    gone = stored.keys() - present.keys() - options.renamed.keys()
    return (*options.drop_state, *sorted(gone))


def _removed(stored: Operators, options: Options, without: str) -> dict[str, Removed | None]:
    places = {} if without == "removed-place-not-compared" else options.places
    names = [name for name in options.removed if name in stored]
    if without == "unnamed-sink-removed":
        names = [name for name, note in stored.items() if note.kind in ("source", "sink")]
    return {
        name: Removed(places.get(name, stored[name].detail)) if stored[name].removed_with else None
        for name in names
    }


def _blind(stored: Operators, present: Operators, options: Options, without: str) -> Operators:
    """Return the notes of a graph, without what an omission does not compare."""
    if without not in ("no-state-schema", "key-not-compared", "kind-not-compared", *_OF_INPUTS):
        return present
    blinded, former = dict(present), {new: old for old, new in options.renamed.items()}
    for name, new in present.items():
        old = stored.get(former.get(name, name))
        if old is None or old.is_stateless or old.kind == "source":
            continue
        if old.kind == "sink" and without != "lineage-not-compared":
            continue
        fields: dict[str, Any] = {}
        if without == "kind-not-compared" and not new.is_stateless:
            fields = {"kind": old.kind, "stored": old.stored, "detail": old.detail, "lineage": old.lineage}
        elif without == "no-state-schema" and old.kind in ("window", "join"):
            fields = {"stored": old.stored}
        elif without == "key-not-compared":
            stores_key = new.kind in ("count", "sum")
            fields = {"detail": old.detail, "stored": old.stored if stores_key else new.stored}
        elif without in _OF_INPUTS and _is_exchange(old, new) == (without == "ports-not-compared"):
            fields = {"lineage": old.lineage, "inputs": old.inputs}
        blinded[name] = replace(new, **fields)
    return blinded


_OF_INPUTS: Final = ("ports-not-compared", "lineage-not-compared")


def _is_exchange(old: OperatorNote, new: OperatorNote) -> bool:
    return len(old.lineage) == 2 and old.lineage[::-1] == new.lineage and old.lineage != new.lineage
