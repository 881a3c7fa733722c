"""The oracle: a run by names. It knows no uids, chains, claims or records, only what users wanted, and which
rows each step read. Every retained checkpoint, every reader and every destination is compared with it.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from checkpoint.core.records.backups import needed_chains
from checkpoint.core.records.outputs import output_chain
from tests.sim.history import ViolationError
from tests.sim.upgrading.durable import SPLITS, Region, Shown, as_rows
from tests.sim.upgrading.edits import Edit
from tests.sim.upgrading.graphs import (
    Graph,
    Row,
    State,
    copied,
    empty_state,
    run_step,
    sinks_of,
    sources_of,
)
from tests.sim.upgrading.rules import Record, operators_of


def wrong(text: str) -> ViolationError:
    return ViolationError("upgrading", text)


@dataclass
class Snapshot:
    """What the ideal run has at a checkpoint. Outputs have a number of their own, which no name changes."""

    graph: Graph
    state: State
    positions: dict[str, dict[str, int]]
    shown: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)
    """Output -> (step, rows), of outputs that are removed, too."""
    outputs: dict[str, int] = field(default_factory=dict)
    """Sink -> its output."""

    def copy(self) -> "Snapshot":
        return Snapshot(
            self.graph,
            copied(self.state),
            {name: dict(splits) for name, splits in self.positions.items()},
            {output: list(shown) for output, shown in self.shown.items()},
            dict(self.outputs),
        )


class Ideal:
    """The ideal run of one region, and its readers. first: the snapshot from which a fork begins."""

    def __init__(self, region: Region, first: Snapshot | None = None) -> None:
        self.region = region
        self.first = first
        self.snapshots: dict[int, Snapshot] = {}
        self.uids: dict[int, str] = {}
        self.changes: list[int] = []
        self.read: dict[int, Counter[Shown]] = {}
        self.seen: Counter[str] = Counter()
        region.on_append = self.observe

    @property
    def last(self) -> Snapshot:
        assert self.region.last is not None
        return self.snapshots[self.region.last.number]

    def observe(self, record: Record, program: Any) -> None:
        """Follow a record at the moment at which it is acknowledged."""
        self.seen[record.kind] += 1
        snapshot = self._snapshot(record, program)
        if record.checkpoint.operators != operators_of(snapshot.graph):
            raise wrong(f"record {record.number} has a graph that nobody wants")
        self.snapshots[record.number] = snapshot
        self._check_savepoints()
        kept = [record] if record.kind == "vote" else self.region.kept
        for one in kept:
            self.check(one)
        self.read_all()

    def _snapshot(self, record: Record, program: Any) -> Snapshot:
        checkpoint = record.checkpoint
        if record.kind == "fork":
            assert self.first is not None
            return self.first
        if record.kind == "back":
            return self.snapshots[checkpoint.voted_as].copy()
        if not checkpoint.parent:
            return self._begun(record, program.graph)
        parent = self.region.history[-2]
        before = self.snapshots[parent.number].copy()
        if record.kind == "rows":
            return before
        if record.kind == "graph":
            return self._changed(before, record, parent, program)
        self._follow(before, record, parent)
        return before

    def _begun(self, record: Record, graph: Graph) -> Snapshot:
        positions = {name: dict.fromkeys(SPLITS, 0) for name in sources_of(graph)}
        snapshot = Snapshot(graph, empty_state(graph), positions)
        for name in sinks_of(graph):
            self._begin_output(snapshot, name, record)
        return snapshot

    def _begin_output(self, snapshot: Snapshot, name: str, record: Record) -> None:
        output = len(self.uids) + 1
        self.uids[output] = record.uids[name]
        snapshot.outputs[name], snapshot.shown[output] = output, []

    def _changed(self, before: Snapshot, record: Record, parent: Record, program: Any) -> Snapshot:
        """Return what a change of the graph makes of a snapshot."""
        edit: Edit | None = program.edit
        same = parent.checkpoint.operators == operators_of(program.graph) and not parent.checkpoint.in_origin
        if edit is None or same:
            raise wrong(f"record {record.number} changes a graph, and nobody asked for it")
        if edit.refuse:
            raise wrong(f"accepted: {edit.refuse}")
        if operators_of(edit.base) != parent.checkpoint.operators:
            raise wrong(f"record {record.number} undoes a change that its author has not seen")
        if edit.boot and self.region.voted_as(parent.checkpoint) != program.options.bootstrap_of:
            raise wrong("rows that were made of another checkpoint are in the state")
        self.changes.append(parent.number)
        after = Snapshot(edit.graph, empty_state(edit.graph), {}, before.shown)
        fresh = edit.fresh | (set(sinks_of(edit.graph)) if parent.checkpoint.in_origin else set())
        for name in edit.graph:
            was = edit.was.get(name, name)
            if name in fresh or was not in before.graph:
                self._begin(after, name, record, program)
                continue
            if name in after.state:
                after.state[name] = before.state[was]
            if was in before.positions:
                after.positions[name] = before.positions[was]
            if was in before.outputs:
                after.outputs[name] = before.outputs[was]
        for name, rows in edit.boot.items():
            after.state[name][""].update(rows)
        return after

    def _begin(self, after: Snapshot, name: str, record: Record, program: Any) -> None:
        if name in sinks_of(after.graph):
            self._begin_output(after, name, record)
        elif name in sources_of(after.graph):
            after.positions[name] = self._positions(record, record.uids[name])
            if program.options.begins.get(name) == "latest":
                place = after.graph[name].detail
                for split, at in after.positions[name].items():
                    if at < program.ends[place, split]:
                        raise wrong(f"{name} begins at {at}, before its end")

    def _follow(self, snapshot: Snapshot, record: Record, parent: Record) -> None:
        """Make the steps that the record has, of the rows that workers have recorded."""
        steps = self.region.steps
        for step in range(parent.checkpoint.step + 1, record.checkpoint.step + 1):
            batches: dict[str, list[Row]] = {}
            recorded = [dict(steps[worker]).get(step, {}) for worker in record.checkpoint.workers]
            for name in sources_of(snapshot.graph):
                uid, rows = record.uids[name], list[Row]()
                for split in SPLITS:
                    found = [of[uid][split] for of in recorded if split in of.get(uid, {})]
                    if len(found) != 1 or found[0][0] != snapshot.positions[name][split]:
                        raise wrong(f"step {step} read {found} of {name}, not {snapshot.positions[name]}")
                    begin, end = found[0]
                    rows += self.region.store.inputs[snapshot.graph[name].detail, split][begin:end]
                    snapshot.positions[name][split] = end
                batches[name] = rows
            for name, made in run_step(snapshot.graph, snapshot.state, batches).items():
                if made:
                    snapshot.shown[snapshot.outputs[name]].append((step, as_rows(made)))

    # --- comparisons --------------------------------------------------------------------------------------

    def _positions(self, record: Record, uid: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for part in record.checkpoint.workers.values():
            found.update({split: at.position for split, at in part.sources.get(uid, {}).items()})
        return found

    def check(self, record: Record) -> None:
        """Compare a retained checkpoint."""
        snapshot, number = self.snapshots[record.number], record.number
        state, names = empty_state(snapshot.graph), record.names
        for uid, table, key, value in self.region.entries(record.checkpoint):
            rows = state.get(names.get(uid, ""), {}).get(table)
            if rows is None:
                continue
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        if state != snapshot.state:
            differ = [name for name in state if state[name] != snapshot.state[name]]
            raise wrong(f"checkpoint {number} does not have the state of {differ}")
        for name, expected in snapshot.positions.items():
            at = self._positions(record, record.uids[name])
            if at != expected:
                raise wrong(f"checkpoint {number} has {name} at {at}, not {expected}")
            for split, position in at.items():
                if position < self.region.store.trimmed[snapshot.graph[name].detail, split]:
                    raise wrong(f"input {name}/{split} of retained checkpoint {number} is trimmed")

    def _check_savepoints(self) -> None:
        kept = {record.number for record in self.region.kept}
        if lost := set(self.changes[-3:]) - kept:
            raise wrong(f"checkpoints {sorted(lost)} before the last changes are not retained")

    def read_all(self) -> None:
        """Let readers of all logs read on. What they have read stays, or is taken back with a line."""
        region = self.region
        for output, uid in self.uids.items():
            if region.modes.get(uid) not in ("step", "cut", "tx"):
                continue
            had = self.read.get(output, Counter())
            now = Counter(region.visible(uid))
            kept = Counter({one: n for one, n in had.items() if not region.is_taken_back(one)})
            if gone := kept - now:
                raise wrong(f"readers of {uid} have rows that nobody took back: {next(iter(gone))}")
            self.read[output] = now

    def check_outputs(self) -> None:
        """Compare what each output has in the end, after a checkpoint of all steps."""
        region, last = self.region, self.region.last
        assert last is not None
        self.read_all()
        for output, uid in self.uids.items():
            if region.modes.get(uid, "mail") == "mail":
                continue
            expected = self.last.shown.get(output)
            if expected is None and uid not in last.taken_back and region.modes[uid] != "tx":
                raise wrong(f"readers of {uid} wait for ever: no record states that it was taken back")
            made: dict[int, list[Any]] = {}
            for shown in region.visible(uid):
                made.setdefault(shown.step, []).extend(shown.rows)
            found = [(step, tuple(sorted(rows))) for step, rows in sorted(made.items()) if rows]
            if found != (expected or []):
                raise wrong(f"output {uid} ({region.modes[uid]}) differs: {found} instead of {expected}")
        self._check_sent()
        if left := [key for key in region.staged if key[0] not in last.names]:
            raise wrong(f"transactions {left} stay open")

    def _check_sent(self) -> None:
        """No row that stays is made again on another line."""
        lines: dict[tuple[str, int], set[int]] = {}
        published = [(uid, shown) for uid, all_ in self.region.published.items() for shown in all_]
        for uid, shown in [*self.region.sent, *published]:
            lines.setdefault((uid, shown.step), set()).add(shown.line)
        if again := [key for key, found in lines.items() if len(found) > 1]:
            raise wrong(f"{again} is shown again, and nobody allowed it")

    def check_held(self) -> None:
        """No input is held for a source that no retained checkpoint has."""
        known = {uid for record in self.region.kept for uid in record.names}
        store = self.region.store
        mine = [one for one in store.consumers if one.region == self.region.name]
        held = {one.uid for one in mine if any(store.need(one, split) is not None for split in SPLITS)}
        if left := sorted(held - known):
            raise wrong(f"input is held for {left}, which nobody reads")

    def check_backup(self, *, without: str) -> None:
        """A backup has every log that a reader may still read."""
        last = self.region.last
        assert last is not None
        if without == "backup-without-ended-logs":
            last = last.again(checkpoint=replace(last.checkpoint, ended={}))
        chains = {one.chain for one in needed_chains(last.checkpoint, self.region.name)}
        for output, shown in self.last.shown.items():
            uid = self.uids[output]
            if shown and self.region.modes.get(uid) in ("step", "cut") and output_chain(uid) not in chains:
                raise wrong(f"a backup lacks {uid}, which has rows that were not read")
