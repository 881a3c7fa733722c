"""What differs between two graphs, and whether one can continue from the state of the other. Pure.

A checkpoint stores an `OperatorNote` for each operator of its graph. `compare` is the one decision about two
graphs: for a start, a restore, a fork, an edit, a fall back and a trial. It knows no names of chains, and no
user code: a function may change, and the state stays.

| operator | between two graphs |
|---|---|
| stateless: a function, a filter, a union, an exchange | comes, goes, is renamed, has another input |
| a clock (`event_time`) | comes, without a watermark; goes; is kept as one of a state |
| of a state | comes, empty; is kept: kind, keys, details, stored columns, states; goes if it is named |
| a result of an aggregation | is kept: aggregate, column and type; comes, empty, and goes, if it is named |
| a source | comes, at its beginning or, if told, its end; is kept: details and columns; goes if it is named |
| a sink | comes, empty; is kept: its details and columns; goes if it is named |
| a log, an input | may have more columns that allow null: readers fit rows of other versions |
| a declared state | may have another version, for which the graph has a migration |

For each input, the sources above an operator are its *lineage*. Columns do not tell whose rows made a state,
so a state whose input has no source in common with what it was made of is refused, and so are exchanged
inputs.

What is stored of an operator is stored under its *uid*, which it keeps for life: its name in the first graph
of the region, or `_HEX-NAME` if it came later. HEX is of the checkpoint with which it came (`born_with`). So
an operator that comes never finds what another one of its name has left, and a rename moves nothing. The
same holds for each result of an aggregation, whose name here is OPERATOR:RESULT: a result that comes does not
find the columns that another one of its name has left in stored blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import msgspec

from checkpoint import limits
from checkpoint.errors import GraphChangeRefusedError
from dos_protocol.digests import digest64

STATELESS: Final = frozenset({"map", "flat_map", "filter", "union", "key_by", "broadcast", "side"})
"""The kinds of operators of which a checkpoint has nothing. Of any other kind it may have something."""

_WITH_COUNTERS: Final = frozenset({"key_by"})
"""Stateless kinds of which a checkpoint has counters, under their names."""

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


class ResultNote(msgspec.Struct, frozen=True):
    """What a checkpoint stores of one result of an aggregation."""

    name: str
    made_by: str
    """The aggregate, its column, and the type of that: another text is another result."""


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
    results: tuple[ResultNote, ...] = ()
    """Of an aggregation."""
    columns: tuple[str, ...] = ()
    """Of a source or a sink whose rows of other versions readers fit: each of its columns. Nullable ones may
    be added."""
    gives: str = ""
    """The columns of its output, empty for a sink."""
    removed_with: str = ""
    """The class of a sink that may have left rows outside of the store which only its specification can make
    visible or take back: without it, it is not removed. Empty for all others."""

    @property
    def is_stateless(self) -> bool:
        return self.kind in STATELESS

    @property
    def has_state(self) -> bool:
        """Whether it has state of its own, rather than a place in an input, output, or a clock."""
        return not self.is_stateless and self.kind not in ("source", "sink", "event_time")

    @property
    def meaning(self) -> str:
        """What two operators must have in common so that one has a use for the state of the other."""
        stores = [f"of ({columns})" for columns in self.stored]
        gives = [f"gives ({self.gives})"] if self.kind == "source" and not self.columns else []
        return " ".join(filter(None, [self.kind, *stores, self.detail, *gives]))

    @property
    def text_of_state(self) -> str:
        """Its details, its results, its declared state and its output, for people."""
        results = ", ".join(f"{one.name} {one.made_by}" for one in self.results)
        results = f"results ({results})" if results else ""
        state = "" if self.state is None else str(self.state)
        gives = f"gives ({self.gives})" if self.gives else ""
        return " ".join(filter(None, [self.detail, results, state, gives]))

    def __str__(self) -> str:
        return f"{self.kind} from ({', '.join(self.inputs)}) {self.text_of_state}".rstrip()


Operators = Mapping[str, OperatorNote]
"""Operator -> its note, of one graph."""


def fingerprint(operators: Operators) -> str:
    """Return 16 hex digits that differ for two graphs that differ: xxh3-64 of the JSON of their notes."""
    return f"{digest64(msgspec.json.encode(sorted(operators.items()))):016x}"


def stored_under(operators: Operators, uids: Mapping[str, str]) -> dict[str, str]:
    """Return operator -> its uid, of the operators of which a checkpoint may have something. uids: where the
    uid is not the name.
    """
    return {name: uids.get(name, name) for name, note in operators.items() if not note.is_stateless}


def result_name(operator: str, result: str) -> str:
    """Return the name of a result of an aggregation in options and in `Checkpoint.uids`."""
    return f"{operator}:{result}"  # no operator has a name with a colon


def result_uids(operator: str, uids: Mapping[str, str]) -> dict[str, str]:
    """Return result -> its uid, of the results of an operator whose uid is not their name."""
    begin = result_name(operator, "")
    return {name.removeprefix(begin): uid for name, uid in uids.items() if name.startswith(begin)}


def _change_after(region: str, checkpoint: int) -> str:
    # Of the region, too: a fork inherits uids, and numbers its checkpoints from 1.
    return f"{digest64(msgspec.json.encode([region, checkpoint])) >> 32:08x}"


def born_with(region: str, checkpoint: int) -> str:
    """Return the prefix of the uids of operators that come with the checkpoint after this one."""
    return f"_{_change_after(region, checkpoint)}-"


UPGRADE_PREFIX: Final = "upgrade-"

Begin: TypeAlias = Literal["first", "latest"]
"""Where a new source begins: at its first row, or at its end, with what is written from then on."""

AT_ITS_END: Final = "begins at its end"
"""Of a source, for people."""


def upgrade_savepoint(region: str, checkpoint: int) -> str:
    """Return the name of the savepoint of the checkpoint after which the graph changed."""
    return f"{UPGRADE_PREFIX}{_change_after(region, checkpoint)}"


class RemovedSink(Protocol):
    """The specification of a sink of which a graph has no use any more."""

    def detail(self) -> str:
        """Return its settings and its place, as `OperatorNote.detail` has them."""


_LISTS: Final = ("drop_state", "new_aggregates", "rewired", "removed_regions")
"""Options that are names."""

NOT_NULL: Final = " NOT NULL"
"""The end of a column in `OperatorNote.columns` that does not allow null."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What a program permits when its graph differs from that of the checkpoint. Names that do not matter for
    the difference are ignored, so the options may stay in the program.
    """

    drop_state: tuple[str, ...] = ()
    """Operators whose state may be dropped: those that the graph lacks, or whose state does not fit it. They
    begin anew. The state of one that fits is kept. OPERATOR:RESULT: the same of one result."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Name in the checkpoint -> name in the graph."""
    rewired: tuple[str, ...] = ()
    """Operators that may keep their state although its rows came from other sources."""
    graph_back: bool = False
    """The graph may be one that another one has replaced."""
    removed: Mapping[str, RemovedSink | None] = field(default_factory=dict)
    """Sources and sinks, by their names in the checkpoint, that the graph may lack, or have at another place
    -> the specification of one with `OperatorNote.removed_with`, None for all others."""
    begins: Mapping[str, Begin] = field(default_factory=dict)
    """Source -> where it begins if it is new; default: "first"."""
    removed_regions: tuple[str, ...] = ()
    """Regions of the application that no part of the program continues."""
    bootstrap_of: str = ""
    """The checkpoint of which the rows in `bootstrap` are made: "savepoint:NAME" or "checkpoint:N"."""
    bootstrap: Mapping[str, Any] = field(default_factory=dict)
    """Operator that is new -> the rows with which its state begins, or a function that returns them."""
    without_specs: bool = False
    """Nobody has the specifications in `removed`, because nothing starts: they are not compared."""
    new_aggregates: tuple[str, ...] = ()
    """OPERATOR:RESULT of results that may begin at the change, in an operator that keeps its state."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "GraphOptions":
        """Return the options among those of a program. Raises TypeError for one that has another form."""
        renamed = given.get("renamed") or {}
        lists = {option: given.get(option) or () for option in _LISTS}
        for option, names in lists.items():
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                of = "regions" if option == "removed_regions" else "operators"
                raise TypeError(f'{option} must be the names of {of}, ("a", "b"), got {names!r:.60}')
        if not isinstance(renamed, Mapping) or not all(isinstance(one, str) for one in renamed.values()):
            raise TypeError(f'renamed must be {{"old name": "new name"}}, got {renamed!r:.60}')
        if not isinstance(back := given.get("graph_back") or False, bool):
            raise TypeError(f"graph_back must be True or False, got {back!r:.60}")
        removed = given.get("removed") or {}
        if not isinstance(removed, Mapping) or not all(
            one is None or callable(getattr(one, "detail", None)) for one in removed.values()
        ):
            raise TypeError(
                'removed must be {"name": None}, or {"name": ParquetSink(...)} with the sink that is removed,'
                f" got {removed!r:.60}"
            )
        begins = given.get("begins") or {}
        if not isinstance(begins, Mapping) or not all(one in get_args(Begin) for one in begins.values()):
            words = " or ".join(map(repr, get_args(Begin)))
            raise TypeError(f'begins must be {{"source": where}}, where being {words}, got {begins!r:.60}')
        bootstrap: Any = given.get("bootstrap") or ("", {})
        is_pair = isinstance(bootstrap, tuple | list) and len(bootstrap) == len(("of", "rows"))
        if not (is_pair and isinstance(bootstrap[0], str) and isinstance(bootstrap[1], Mapping)):
            raise TypeError(
                'bootstrap must be ("savepoint:b", {"operator": rows}), with the checkpoint of which the rows'
                f" are made, got {bootstrap!r:.60}"
            )
        return cls(
            tuple(lists["drop_state"]),
            dict(renamed),
            tuple(lists["rewired"]),
            back,
            dict(removed),
            dict(begins),
            tuple(lists["removed_regions"]),
            bootstrap[0],
            dict(bootstrap[1]),
            bool(given.get("without_specs")),
            new_aggregates=tuple(lists["new_aggregates"]),
        )

    def check_names(self, operators: "Operators", endless: Mapping[str, str]) -> None:
        """Raise ValueError unless `begins` names sources of these operators that can begin so, and
        `bootstrap` operators with a state.

        endless: source -> why it cannot begin at its end.
        """
        for name in self.bootstrap:
            if name not in operators or not operators[name].has_state:
                known = _listed([one for one, note in operators.items() if note.has_state])
                raise ValueError(
                    f"bootstrap has {name!r}, which is no operator with a state of the graph; it has {known}"
                )
        for name, begin in self.begins.items():
            if name not in operators or operators[name].kind != "source":
                known = _listed([one for one, note in operators.items() if note.kind == "source"])
                raise ValueError(f"begins has {name!r}, which is no source of the graph; it has {known}")
            if begin == "latest" and name in endless:
                raise ValueError(
                    f"source {name!r} cannot begin at its end: {endless[name]}. Leave it out of begins, and"
                    " it begins at its first row"
                )


NO_OPTIONS: Final = GraphOptions()


@dataclass(frozen=True, slots=True)
class GraphChange:
    """What differs between the graph of a checkpoint and another one. Names are sorted. `renamed`, `new` and
    `dropped` also name results, as OPERATOR:RESULT, of aggregations that are kept.
    """

    kept: tuple[str, ...]
    """Operators whose state, positions or output continue, by their names in the new graph."""
    renamed: tuple[tuple[str, str], ...]
    """(name in the checkpoint, name in the graph) of those that are kept under another one."""
    new: tuple[str, ...]
    """Operators that begin without anything."""
    gone: tuple[str, ...]
    dropped: tuple[str, ...]
    """Operators of the checkpoint whose state is dropped."""
    removed: tuple[str, ...]
    """Sources and sinks of the checkpoint that end with it."""
    refused: tuple[tuple[str, str], ...]
    """(operator, why the graph cannot continue from the checkpoint)."""
    uids: Mapping[str, str] = field(default_factory=dict)
    """Operator of the new graph, or OPERATOR:RESULT -> its uid, if that is not its name."""
    permitted_by: tuple[tuple[str, str], ...] = ()
    """(option, OPERATOR:RESULT) with which results that are refused would be permitted."""
    latest: tuple[str, ...] = ()
    """New sources that begin at their end."""
    bootstrapped: Mapping[str, str] = field(default_factory=dict)
    """New operator whose state begins with rows that the program makes -> its uid."""

    def with_begin(self, name: str) -> str:
        """Return the name of a new operator, and how it begins if not as others do."""
        how = AT_ITS_END if name in self.latest else "bootstrap" if name in self.bootstrapped else ""
        return f"{name} ({how})" if how else name

    def __str__(self) -> str:
        renamed = [f"{old} -> {new}" for old, new in self.renamed]
        rows: tuple[tuple[str, Sequence[str]], ...] = (
            ("kept", self.kept),
            ("renamed", renamed),
            ("new", [self.with_begin(name) for name in self.new]),
            ("gone", self.gone),
            ("dropped", self.dropped),
            ("removed", self.removed),
        )
        refused = [f"refused  {name}: {why}" for name, why in self.refused] or ["refused  -"]
        return "\n".join([*(f"{what:<8} {', '.join(names) or '-'}" for what, names in rows), *refused])


def compare(
    stored: Operators,
    present: Operators,
    *,
    options: GraphOptions = NO_OPTIONS,
    uids: Mapping[str, str] = MappingProxyType({}),
    born: str = "_-",
    outputs_begin: bool = False,
    checkpoint: int = 0,
) -> GraphChange:
    """Return what a graph changes with which a region continues from a checkpoint of another graph.

    uids: operator of the checkpoint -> its uid, if that is not its name. born: the prefix of new uids
    (`born_with`). outputs_begin: no output continues, so a sink may have another place, and may be gone.
    checkpoint: its number, for texts.
    """
    if stored == present:  # then the options are not looked at: they were carried out before
        kept = tuple(sorted(stored_under(stored, uids)))
        return GraphChange(kept, (), (), (), (), (), (), dict(uids))
    return _Comparing(stored, present, options, uids, born, outputs_begin, checkpoint).change()


class _Comparing:
    """One comparison. `_was`: uids of operators of the checkpoint; `_now`: of those of the graph."""

    def __init__(
        self,
        stored: Operators,
        present: Operators,
        options: GraphOptions,
        uids: Mapping[str, str],
        born: str,
        outputs_begin: bool,
        checkpoint: int,
    ) -> None:
        self._stored, self._present, self._options = stored, present, options
        self._uids, self._was = uids, stored_under(stored, uids)
        self._born, self._outputs_begin, self._checkpoint = born, outputs_begin, checkpoint
        self._now: dict[str, str] = {}
        self._results: list[_ResultChange] = []
        self._permitted_by: list[tuple[str, str]] = []
        self._refused: dict[str, str] = {}
        self._former = self._names_before()

    def _names_before(self) -> dict[str, str]:
        """Return operator of the graph -> its name in the checkpoint, as far as it is in both."""
        wanted = stored_under(self._present, {})
        former = {name: name for name in wanted if name in self._was}
        for old, new in self._options.renamed.items():
            if old not in self._was:
                continue  # it was renamed before, or has nothing
            if old in wanted:
                why = (
                    f"is renamed to {new!r}, and this graph has it still: rename it in one start, and use its"
                )
                self._refused[old] = f"{why} name again in a later one"
            elif new not in wanted:
                self._refused[old] = (
                    f"is renamed to {new!r}, and this graph has no such operator with a state"
                )
            elif new in former:
                why = f"is renamed to {new!r}, which the checkpoint has, too: drop or rename that one in one"
                self._refused[old] = f"{why} start, and this one in a later one"
            else:
                former[new] = old
        return former

    def change(self) -> GraphChange:
        stored, present, refused = self._stored, self._present, self._refused
        wanted = stored_under(present, {})
        # Sources first: the lineage of the others is compared by their uids.
        for name in sorted(wanted, key=lambda name: (present[name].kind != "source", name)):
            self._decide(name)
        for old in self._was.keys() - set(self._former.values()) - refused.keys():
            self._check_gone(old)
        for name in sorted(set(self._now.values()) & present.keys()):
            if present[name].kind in _WITH_COUNTERS:
                self._refused[name] = "has the name under which a renamed operator is stored: rename it"
        kept = {name: old for name, old in self._former.items() if self._now[name] == self._was[old]}
        ended = self._was.keys() - set(kept.values()) - refused.keys()
        dropped = {old for old in ended if stored[old].has_state}
        removed = {
            old for old in ended if stored[old].kind in ("source", "sink") and not self._is_of_original(old)
        }
        fresh = present.keys() - stored.keys() - wanted.keys()
        fresh |= wanted.keys() - kept.keys() - refused.keys()
        renamed = [(old, name) for name, old in kept.items() if name != old]
        uids = {name: uid for name, uid in self._now.items() if uid != name}
        for one in self._results:
            renamed += one.renamed
            uids |= one.uids
        return GraphChange(
            kept=tuple(sorted(kept)),
            renamed=tuple(sorted(renamed)),
            new=tuple(sorted([*fresh, *(name for one in self._results for name in one.new)])),
            gone=tuple(sorted(stored.keys() - present.keys() - set(kept.values()) - dropped - removed)),
            dropped=tuple(sorted([*dropped, *(name for one in self._results for name in one.dropped)])),
            removed=tuple(sorted(removed)),
            refused=tuple(sorted(refused.items())),
            permitted_by=tuple(sorted(self._permitted_by)),
            uids=dict(sorted(uids.items())),
            latest=tuple(sorted(one for one in fresh if self._options.begins.get(one) == "latest")),
            bootstrapped={name: self._now[name] for name in sorted(fresh & self._options.bootstrap.keys())},
        )

    def _decide(self, name: str) -> None:
        """Give an operator the uid of the one in the checkpoint that it continues, or a new one."""
        old = self._former.get(name)
        why = "" if old is None else self._why_not(old, name)
        results: _ResultChange | None = None
        if old is not None and not why:
            results = self._compare_results(old, name)
            why = "; ".join(results.refused)
            if not why:
                self._now[name] = self._was[old]
                self._results.append(results)
                if name in self._options.bootstrap:
                    self._refused[name] = (
                        "keeps the state that it has, so it does not begin with the rows of bootstrap: leave"
                        " it out of that, or give it another name and drop this one"
                    )
                return
        self._now[name] = uid = f"{self._born}{name}"
        if old is not None and (refused := self._why_not_ended(old, why)):
            self._refused[name] = refused
            if results is not None and len(results.permitted_by) == len(results.refused):
                self._permitted_by += results.permitted_by
        elif uid in self._was.values():
            self._refused[name] = f"would be stored as {uid!r}, as another operator is: rename it"
        elif len(uid) > limits.operator_uid_chars_max:
            most = limits.operator_uid_chars_max - len(self._born)
            self._refused[name] = f"comes later, so its name has at most {most} characters: shorten it"

    def _compare_results(self, old: str, name: str) -> "_ResultChange":
        """Compare the results of an aggregation that is otherwise kept. By name: their order is free."""
        found, options = _ResultChange(), self._options
        stored = {one.name: one.made_by for one in self._stored[old].results}
        present = {one.name: one.made_by for one in self._present[name].results}
        former = self._former_results(old, name, found)
        uids = {one: self._uids.get(result_name(old, one), one) for one in stored}
        kept = {now: was for now, was in former.items() if stored[was] == present[now]}
        for now, made_by in present.items():
            # Another uid, also for a name that was there: old blocks have the values of that one.
            uid = uids[kept[now]] if now in kept else f"{self._born}{now}"
            if uid != now:
                found.uids[result_name(name, now)] = uid
            if now in kept:
                continue
            found.new.append(result_name(name, now))
            if uid in uids.values():
                found.refused.append(f"would store the result {now!r} as another one: rename it")
            elif now not in former and found.new[-1] not in options.new_aggregates:
                why = f"has the new result {now!r}, {made_by}, which would be of later rows only"
                found.refuse(why, "new_aggregates", found.new[-1])
        for was in sorted(stored.keys() - set(kept.values())):
            found.dropped.append(result_name(old, was))
            if found.dropped[-1] not in options.drop_state:
                other = [present[now] for now, one in former.items() if one == was]
                why = f"and has {other[0]}" if other else "which this graph lacks"
                found.refuse(f"had the result {was!r}, {stored[was]}, {why}", "drop_state", found.dropped[-1])
        return found

    def _former_results(self, old: str, name: str, found: "_ResultChange") -> dict[str, str]:
        """Return result of the graph -> its name in the checkpoint, as far as it is in both."""
        stored = {one.name for one in self._stored[old].results}
        present = {one.name for one in self._present[name].results}
        former = {one: one for one in present & stored}
        for was in sorted(stored):
            if (given := self._options.renamed.get(result_name(old, was))) is None:
                continue  # it was renamed before, or keeps its name
            now = given.removeprefix(result_name(name, ""))
            if was in present or now not in present or now in former or now == given:
                pair = f'renamed={{"{result_name(old, was)}": "{given}"}}'
                found.refused.append(f"has {pair}: of the same operator, one name goes and the other comes")
            else:
                former[now] = was
                found.renamed.append((result_name(old, was), given))
        return former

    def _may_drop(self, old: str) -> bool:
        return self._stored[old].has_state and old in self._options.drop_state

    def _check_gone(self, old: str) -> None:
        # In a fork, output is the original's: it is neither continued nor completed.
        if self._stored[old].kind == "event_time" or self._is_of_original(old):
            return
        if why := self._why_not_ended(old, "is in the stored state and not in this graph"):
            self._refused[old] = why

    def _is_of_original(self, old: str) -> bool:
        return self._outputs_begin and self._stored[old].kind == "sink"

    def _why_not_ended(self, old: str, why: str) -> str:
        """Return why what is stored of an operator may not end here, empty if it may. why: it does not
        continue.
        """
        if self._may_drop(old):
            return ""
        if old not in self._options.removed:
            return f"{why}. {self._to_begin_anew(old)}"
        return self._why_not_removed(old)

    def _why_not_removed(self, old: str) -> str:
        note, given = self._stored[old], self._options.removed[old]
        if note.kind not in ("source", "sink"):
            return f"is no source and no sink. {self._to_begin_anew(old)}"
        if not note.removed_with or self._options.without_specs:
            return ""
        if given is None:
            return (
                "may have rows outside of the store that only its specification makes visible:"
                f' removed={{"{old}": {how_removed(note)}}}, as the former program has it'
            )
        named = type(given).__name__
        if named != note.removed_with or given.detail() != note.detail:
            was, named = note.detail or note.removed_with, given.detail() or named
            return f"is {was}, and removed= has one that is {named}: give the sink that is removed"
        return ""

    def _to_begin_anew(self, old: str) -> str:
        """Return what to do about an operator whose stored data does not continue."""
        note = self._stored[old]
        if note.has_state:
            made = ""
            if self._checkpoint and old in self._present and self._present[old].has_state:
                rows = f'bootstrap=("checkpoint:{self._checkpoint}", {{"{old}": rows}})'
                read = f"read the state (dos-state, checkpoint {self._checkpoint} if it is the last one)"
                made = f". Or stop the region, {read}, transform it, and add {rows}"
            return f'To drop its state: drop_state=("{old}",){made}'
        how = how_removed(note)
        removed = f', or remove it: removed={{"{old}": {how}}}' if how else ""
        return f"Give it its former name and settings{removed}"

    def _why_not(self, was: str, name: str) -> str:
        """Return why an operator cannot continue what a checkpoint has of another one, empty if it can."""
        old, new = self._stored[was], self._present[name]
        if self._outputs_begin and old.kind == new.kind == "sink":
            old, new = (msgspec.structs.replace(one, detail="") for one in (old, new))
        if old.meaning != new.meaning or (old.state is None) != (new.state is None):
            return _difference(_words(old), _words(new))
        if old.state is not None and new.state is not None and old.state not in (new.state, *new.takes):
            return _why_not_state(old.state, new.state)
        return _why_not_columns(old, new) or self._why_not_inputs(old, new, name)

    def _why_not_inputs(self, old: OperatorNote, new: OperatorNote, name: str) -> str:
        """Return why the rows of an operator would be others than those that made its state."""
        was = [{self._was.get(source, source) for source in above} for above in old.lineage]
        now = [{self._now.get(source, source) for source in above} for above in new.lineage]
        assert len(was) == len(now) or not new.stored, "stored columns are of each input"
        for port, above in enumerate(now[: len(was)]):
            reads, made_of = _listed(new.lineage[port]), _listed(old.lineage[port])
            if not above & was[port] and name not in self._options.rewired:
                return (
                    f"reads {reads}, and its state was made of {made_of}: rows of other sources do not"
                    f' continue it. If these do: rewired=("{name}",)'
                )
            others = [one for index, one in enumerate(was) if index != port]
            # Which of two inputs is which: by their sources; if these do not tell, by the operators just
            # above.
            if above in others and above != was[port]:
                return f"its inputs are exchanged: it reads {reads} where it read {made_of}"
            if above in others and old.inputs != new.inputs:
                return (
                    f"its inputs were {_listed(old.inputs)} and are {_listed(new.inputs)}, of the same"
                    " sources: which continues which cannot be decided"
                )
        if len(was) != len(now):
            return f"had {len(was)} inputs and has {len(now)}"
        return ""


def how_removed(note: OperatorNote) -> str:
    """Return with what a source or sink is removed, as a program writes it; "" if it cannot be."""
    if note.kind not in ("source", "sink"):
        return ""
    return f"{note.removed_with}(...)" if note.removed_with else "None"


@dataclass(slots=True)
class _ResultChange:
    """What changes among the results of one aggregation. Names are OPERATOR:RESULT."""

    renamed: list[tuple[str, str]] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    permitted_by: list[tuple[str, str]] = field(default_factory=list)
    uids: dict[str, str] = field(default_factory=dict)

    def refuse(self, why: str, option: str, name: str) -> None:
        self.refused.append(f'{why}: {option}=("{name}",) permits it')
        self.permitted_by.append((option, name))


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


def _why_not_columns(old: OperatorNote, new: OperatorNote) -> str:
    """Return why rows with the new columns cannot follow those of the old ones, empty if they can."""
    was, now = ([one.removesuffix(NOT_NULL) for one in note.columns] for note in (old, new))
    missing = [one for one in was if one not in now]
    more = [one for one in new.columns if one.removesuffix(NOT_NULL) not in was]
    if not missing and not any(one.endswith(NOT_NULL) for one in more):
        return ""
    had, has = (", ".join(one) or "no others" for one in (missing, more))
    return f"had the columns ({had}), and has ({has}): only columns that allow null may be added"


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
