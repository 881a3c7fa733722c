"""The decision about a graph and a checkpoint, the options of a program, and the rules that can be left out.

`decide` is the model's part of `compare`: names, options and identities. Whether one operator continues the
state of another is decided by the real `checkpoint.core.graph_change.compare`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final

from msgspec.structs import replace

from checkpoint.core.graph_change import OperatorNote, compare, fingerprint
from checkpoint.core.records.manifest import Checkpoint
from dos_protocol.digests import digest64
from tests.sim.upgrading.graphs import IRREVOCABLE, Graph, Op, notes, sinks_of, sources_of, tables

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
    "void-after-commit": "recorded steps of the old graph become void after the commit",
    "ports-not-compared": "exchanged inputs are accepted",
    "lineage-not-compared": "state continues with rows of other sources",
    "consumer-never-removed": "a removed source stays a consumer after its last checkpoint is released",
    "removed-sink-leaves-transactions": "transactions of a removed sink that no checkpoint has stay open",
    "completes-unfenced": "a driver that was superseded completes removed sinks",
    "removed-log-has-no-end": "records do not state where the log of a removed sink ends",
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
    bootstrap: dict[str, dict[int, int]] = field(default_factory=dict)
    bootstrap_of: int = 0
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
    ended: dict[str, dict[int, int]] = field(default_factory=dict)
    """Log of a removed sink -> worker -> its end."""
    replaced: tuple[str, ...] = ()
    """Graphs that were replaced."""
    taken_back: frozenset[str] = frozenset()
    """Logs that this line does not have: later checkpoints than its target began them."""
    upgrades: tuple[int, ...] = ()
    """The checkpoints of savepoints that changes left, newest last."""
    kind: str = "vote"
    """vote, graph (a graph begins), back (a restore), fork."""

    def again(self, **changes: Any) -> "Record":
        """Return this record with changes."""
        return dataclasses.replace(self, **changes)

    @property
    def number(self) -> int:
        return self.checkpoint.number

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


def irrevocable_of(graph: Graph, uids: Mapping[str, str]) -> dict[str, str]:
    return {uids[name]: graph[name].kind for name in sinks_of(graph) if graph[name].kind in IRREVOCABLE}


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
    if fingerprint(present) in last.replaced and not options.graph_back and without != "old-program-accepted":
        raise RefusedError("replaced")
    made_of = options.bootstrap_of
    if made_of and made_of != last.checkpoint.voted_as and without != "bootstrap-of-another-checkpoint":
        raise RefusedError("bootstrap", f"made of {made_of}, this is {last.checkpoint.voted_as}")
    was = _renamed(last.checkpoint.operators, graph, options)
    stored = _by_present_name(last, was)
    given_up = _given_up(last, graph, options, was, without)
    begins = {name for name in present if name not in stored or name in given_up}
    uids = {
        name: _uid(last, name, region, without) if name in begins else last.uids[was.get(name, name)]
        for name in present
    }
    seen, shown = _blind(stored, _with_lineage(present, uids), without)
    found = compare(seen, shown, dropped=given_up, added=begins)
    if found.refused:
        raise RefusedError("unfit", "; ".join(f"{name} {why}" for name, why in found.refused))
    kept_names = {was.get(name, name) for name in present if name not in begins}
    gone = tuple(sorted(last.uids.keys() - kept_names))
    return Change(uids, tuple(sorted(begins)), gone, was)


def _applied_again(last: Record, graph: Graph, options: Options, region: str) -> Change | None:
    again = [name for name in options.drop_state if name in graph and tables(graph, name)]
    if not again:
        return None
    uids = {**last.uids, **{name: _uid(last, name, region, "") for name in again}}
    return Change(uids, tuple(again), tuple(again), {})


def _renamed(stored: Operators, graph: Graph, options: Options) -> dict[str, str]:
    """Return new name -> old name."""
    was = {}
    for old, new in options.renamed.items():
        if old not in stored and new in stored:
            continue  # done before
        if old not in stored or old in graph or new in stored or new not in graph:
            raise RefusedError("renamed", f"{old} -> {new}")
        was[new] = old
    return was


def _by_present_name(last: Record, was: Mapping[str, str]) -> dict[str, OperatorNote]:
    """Return the stored notes under the names that their operators have now, lineage by uid."""
    now = {old: new for new, old in was.items()}
    stored = _with_lineage(last.checkpoint.operators, last.uids)
    return {
        now.get(name, name): replace(note, inputs=tuple(now.get(one, one) for one in note.inputs))
        for name, note in stored.items()
    }


def _with_lineage(operators: Operators, uids: Mapping[str, str]) -> dict[str, OperatorNote]:
    return {
        name: replace(note, lineage=tuple(tuple(sorted(uids[one] for one in port)) for port in note.lineage))
        for name, note in operators.items()
    }


def _given_up(last: Record, graph: Graph, options: Options, was: Mapping[str, str], without: str) -> set[str]:
    """Return the stored operators, by present name, whose end was requested."""
    named = {*options.drop_state, *options.removed}
    if last.checkpoint.in_origin:  # all sinks of a fork begin
        named |= {name for name, note in last.checkpoint.operators.items() if note.kind == "sink"}
    if without == "unnamed-state-dropped":
        named |= last.checkpoint.operators.keys() - graph.keys() - set(was.values())
    return named - set(was)


def _uid(last: Record, name: str, region: str, without: str) -> str:
    if without == "uid-reused":
        return name
    # With the region: forks inherit chains, and number their own checkpoints from 1.
    of = f"{last.number}" if without == "uid-without-region" else f"{region} {last.number}"
    return f"_{digest64(of.encode()) & 0xFFFFFFFF:08x}.{name}"


def _blind(
    stored: dict[str, OperatorNote], present: dict[str, OperatorNote], without: str
) -> tuple[dict[str, OperatorNote], dict[str, OperatorNote]]:
    """Return both without what an omission does not compare."""
    if without not in ("no-state-schema", "key-not-compared", "kind-not-compared", *_OF_INPUTS):
        return stored, present
    blinded = dict(present)
    for name, old in stored.items():
        if name not in present or old.is_stateless or old.kind == "source":
            continue
        new = present[name]
        if old.kind == "sink" and without != "lineage-not-compared":
            continue
        fields: dict[str, Any] = {}
        if without == "kind-not-compared" and not new.is_stateless:
            fields = {"kind": old.kind, "stored": old.stored, "detail": old.detail, "lineage": old.lineage}
        elif without == "no-state-schema" and old.kind in ("window", "join"):
            fields = {"stored": old.stored}
        elif without == "key-not-compared":
            fields = {
                "detail": old.detail,
                "stored": old.stored if new.kind in ("count", "sum") else new.stored,
            }
        elif without in _OF_INPUTS and _is_exchange(old, new) == (without == "ports-not-compared"):
            fields = {"lineage": old.lineage, "inputs": old.inputs}
        blinded[name] = replace(new, **fields)
    return stored, blinded


_OF_INPUTS: Final = ("ports-not-compared", "lineage-not-compared")


def _is_exchange(old: OperatorNote, new: OperatorNote) -> bool:
    return len(old.lineage) == 2 and old.lineage[::-1] == new.lineage and old.lineage != new.lineage
