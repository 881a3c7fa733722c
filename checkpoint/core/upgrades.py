"""What a program would change in the regions of its application, without starting it (`dos region upgrade`).
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from checkpoint.core.applications import check_application
from checkpoint.core.graph_change import (
    AT_ITS_END,
    NO_OPTIONS,
    GraphChange,
    GraphOptions,
    OperatorNote,
    Operators,
    compare,
    fingerprint,
    how_removed,
)
from checkpoint.core.records.lines import compared_with
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import (
    RegionSpec,
    check_continues,
    check_names,
    rows_to_add,
    when_handed_over,
)
from checkpoint.errors import GraphChangeRefusedError, ManifestError


@dataclass(frozen=True, slots=True)
class RegionUpgrade:
    """What one region would continue from, and what its graph changes."""

    region: str
    last: Checkpoint | None
    """None: it has none, and begins anew."""
    present: Operators
    change: GraphChange
    problem: str
    """Why it cannot begin, apart from `change.refused`; empty if there is no other reason."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Uid of a source -> the bytes of its input that the checkpoint has not read, if that is known."""

    @property
    def fits(self) -> bool:
        return not (self.change.refused or self.problem)

    def as_json(self) -> dict[str, Any]:
        last = self.last
        return {
            "name": self.region,
            "fits": self.fits,
            "checkpoint": None if last is None else last.number,
            "step": None if last is None else last.step,
            "stepsShownAfter": last is not None and not last.is_quiet,
            "stateBytes": 0 if last is None else _state_bytes(last),
            "graphBefore": None if last is None else fingerprint(last.operators),
            "graph": fingerprint(self.present),
            "changes": {
                row: [
                    {"operator": name, "kind": self._kind(name, row)}
                    | ({"begins": "latest"} if name in self.change.latest else {})
                    | self._unread(name, row)
                    for name in names
                ]
                for row, names in self._rows().items()
            },
            "renamed": dict(self.change.renamed),
            "lateMicroseconds": self.late_us,
            "options": self.options,
            "refused": [{"operator": name, "why": why} for name, why in self.change.refused],
            "problem": self.problem,
        }

    def __str__(self) -> str:
        last, now = self.last, fingerprint(self.present)
        if last is None:
            lines = [f"{self.region}: no checkpoint, it begins anew; graph {now}"]
        else:
            shown = "nothing is" if last.is_quiet else "steps may be"
            at = f"{self.region}: checkpoint {last.number}, step {last.step}, {shown} shown after it"
            graphs = f"graph {fingerprint(last.operators)} -> {now}"
            lines = [f"{at}; state of {_state_bytes(last):,} bytes; {graphs}"]
        rows = {
            row: ", ".join(self._described(name, row) for name in names)
            for row, names in self._rows().items()
        }
        rows["removed"] = ", ".join(map(self._described_before, self.change.removed))
        former = {new: old for old, new in self.change.renamed}
        rows["renamed"] = ", ".join(f"{former[new]} -> {self._described(new, 'renamed')}" for new in former)
        refused = [f"{name}: {why}" for name, why in self.change.refused]
        refused += [self.problem] if self.problem else []
        lines += [f"{row:<8} {text or '-'}" for row, text in rows.items()]
        lines += [f"refused  {text}" for text in refused or ["-"]]
        if options := self.options:
            lines.append(f"To permit it: {options}")
        if last is not None and not last.is_quiet and last.operators != self.present:
            lines.append(
                "Steps may be shown that no checkpoint has: stop the region first, or hand it over while it"
                " runs (hand_over=True)."
            )
        return "\n".join(lines)

    @property
    def options(self) -> str:
        """The options of `run` with which what is refused would be permitted, as far as options permit it."""
        if self.last is None:
            return ""
        present = self.present
        gone = [
            name for name, _ in self.change.refused if name not in present and name in self.last.operators
        ]
        renamed: dict[str, str] = {}
        for old in gone:  # the one new operator that could continue its state
            like = [
                name
                for name in self.change.new
                if name in present and present[name].meaning == self.last.operators[old].meaning
            ]
            if len(like) == 1 and like[0] not in renamed.values():
                renamed[old] = like[0]
        permitted = self.change.permitted_by
        kept = {result.partition(":")[0] for _, result in permitted}
        names = [name for name, _ in self.change.refused if name not in {*renamed, *kept}]
        stored = {name: note for name in names if (note := self.last.operators.get(name))}
        pairs = [f'"{old}": "{new}"' for old, new in renamed.items()]
        given = [f"renamed={{{', '.join(pairs)}}}"] if renamed else []
        drop = [name for name, note in stored.items() if note.has_state]
        drop += [result for option, result in permitted if option == "drop_state"]
        new = [result for option, result in permitted if option == "new_aggregates"]
        for option, listed in (("drop_state", drop), ("new_aggregates", new)):
            if listed:
                texts = ", ".join(f'"{name}"' for name in listed)
                given.append(f"{option}=({texts},)")
        # Also of those that are removed: a dry run has no specifications.
        stored |= {name: self.last.operators[name] for name in self.change.removed}
        if removed := {name: how for name, note in stored.items() if (how := how_removed(note))}:
            texts = ", ".join(f'"{name}": {how}' for name, how in removed.items())
            given.append(f"removed={{{texts}}}")
        if self.change.bootstrapped:
            texts = ", ".join(f'"{name}": rows' for name in self.change.bootstrapped)
            given.append(f'bootstrap=("checkpoint:{self.last.number}", {{{texts}}})')
        if self.change.latest:
            texts = ", ".join(f'"{name}": "latest"' for name in self.change.latest)
            given.append(f"begins={{{texts}}}")
        return ", ".join(given)

    @property
    def late_us(self) -> dict[str, int]:
        """New source -> the time up to which its rows come too late for operators that are kept, in
        microseconds since 1970; without those of which none do.
        """
        found = {}
        kept = {name: self.present[name] for name in self.change.kept}
        clocks = {name: note for name, note in kept.items() if note.kind == "event_time"}
        for source in [name for name in self.change.new if self._kind(name, "new") == "source"]:
            beside = {one for note in kept.values() if source in _above(note) for one in _above(note)}
            marks = [self._reached(name) for name, note in clocks.items() if beside & _above(note)]
            if reached := min(filter(None, marks), default=0):
                found[source] = reached
        return found

    def _reached(self, clock: str) -> int:
        """Return how far the splits of an `event_time` are in the checkpoint, in microseconds; 0: unknown."""
        uid = self.change.uids.get(clock, clock)
        parts = () if self.last is None else self.last.workers.values()
        # Counted from the lowest time that there is: `CircuitTime.positions`. Others have promised nothing.
        marks = [at.position - 2**63 for part in parts for at in part.sources.get(uid, {}).values()]
        return min((one for one in marks if abs(one) < _TIME_MAX_US), default=0)

    def _rows(self) -> dict[str, tuple[str, ...]]:
        """Return kind of change -> operators, by their names in the new graph if it has them."""
        change = self.change
        moved = {new for _, new in change.renamed}
        return {
            "kept": tuple(name for name in change.kept if name not in moved),
            "renamed": tuple(new for _, new in change.renamed),
            "new": change.new,
            "gone": change.gone,
            "dropped": change.dropped,
            "removed": change.removed,
        }

    def _kind(self, name: str, row: str) -> str:
        """Return the kind of an operator, or what makes a result."""
        graphs = (self.present, {} if self.last is None else self.last.operators)
        operator, _, result = name.partition(":")
        ordered = graphs[::-1] if row == "dropped" else graphs  # there may be another one of its name
        notes = [graph[operator] for graph in ordered if operator in graph]
        made = [one.made_by for note in notes for one in note.results if one.name == result]
        return made[0] if made else notes[0].kind

    def _described(self, name: str, row: str) -> str:
        text, note = self._kind(name, row), self.present.get(name)
        if note is not None and not note.is_stateless and note.detail:
            text += f", {note.detail}"
        parts = () if self.last is None else self.last.workers.values()
        uid = self.change.uids.get(name, name)
        if splits := sum(len(part.sources.get(uid, ())) for part in parts):
            text += f", {splits} splits"
        if name in self.change.latest:
            text += f"; {AT_ITS_END}"
        if name in self.change.bootstrapped:
            text += "; bootstrap"
        return f"{name} ({text})"

    def _unread(self, name: str, row: str) -> dict[str, int]:
        """Return how much of a removed source is unread, for programs."""
        known = row == "removed" and self.last is not None and self.last.uid_of(name) in self.unread
        return {"unreadBytes": self.unread[self.last.uid_of(name)]} if known and self.last else {}

    def _described_before(self, name: str) -> str:
        """Describe an operator as it is in the checkpoint."""
        assert self.last is not None
        note = self.last.operators[name]
        text = ", ".join(filter(None, [note.kind, note.detail]))
        if unread := self._unread(name, "removed"):
            text += f"; {unread['unreadBytes']:,} bytes unread"
        return f"{name} ({text})"


_TIME_MAX_US: Final = 253_402_300_800_000_000
"""The end of the year 9999. Beyond it are watermarks that are no times."""


def _above(note: OperatorNote) -> set[str]:
    return {source for port in note.lineage for source in port}


def _state_bytes(checkpoint: Checkpoint) -> int:
    return sum(part.state.size for part in checkpoint.workers.values())


def plan_upgrade(
    spec: RegionSpec,
    regions: Mapping[str, Checkpoint],
    options: GraphOptions = NO_OPTIONS,
    unread: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> list[RegionUpgrade]:
    """Return what each region of an application would change. spec: one of them, with the others beside it.

    regions: as `check_application` takes them. options: of the program. unread: region ->
    `RegionUpgrade.unread`. Raises ValueError as `check_names`.
    """
    # The region may run: its driver would be asked to lend it, or stopped first.
    check_names([replace(one, graph_options=options) for one in (spec, *spec.beside)])
    lent = not options.bootstrap  # it excludes that
    all_of_it = [replace(one, hand_over=lent, graph_options=options) for one in (spec, *spec.beside)]
    found = [
        replace(_compared(one, regions.get(one.name)), unread=unread.get(one.name, {})) for one in all_of_it
    ]
    if all(one.fits for one in found):
        try:
            check_application(replace(all_of_it[0], beside=tuple(all_of_it[1:])), regions)
        except (ManifestError, GraphChangeRefusedError) as error:
            found[0] = replace(found[0], problem=f"{error}")
    return found


def _compared(spec: RegionSpec, last: Checkpoint | None) -> RegionUpgrade:
    if last is None:
        change = compare({}, spec.operators, options=spec.graph_options)
        return RegionUpgrade(spec.name, None, spec.operators, change, "")
    change = compared_with(last, spec.operators, region=spec.name, options=spec.graph_options)
    problem = ""
    if not change.refused:
        try:
            check_continues(spec, when_handed_over(spec, last), rows_to_add(spec, last).values())
        except (ManifestError, GraphChangeRefusedError) as error:
            problem = str(error)
    return RegionUpgrade(spec.name, last, spec.operators, change, problem)
