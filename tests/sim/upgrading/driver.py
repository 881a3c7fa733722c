"""A driver with its workers, from its start to its end. Between two messages others act: each `yield` is a
point where it may be killed, stand still, or be superseded.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from msgspec import to_builtins
from msgspec.structs import replace

from checkpoint.core.coordination.checkpoints import PendingCheckpoint
from checkpoint.core.graph_change import Operators
from checkpoint.core.links.messages import Vote
from checkpoint.core.records.layout import even_layout, rebalanced
from checkpoint.core.records.lines import (
    edited,
    find_target,
    recorded_again,
    refuse_republishing,
    repeated,
    replaced_graphs,
    restored,
)
from checkpoint.core.records.manifest import (
    Checkpoint,
    Edit,
    SplitPosition,
    WorkerCheckpoint,
    retained_with,
)
from checkpoint.errors import RestoreRefusedError
from journal import ORIGIN
from journal.core.chain import Position
from tests.sim.history import ViolationError
from tests.sim.upgrading.durable import SPLITS, Entry, FencedError, Ranges, Region, Shown, as_rows
from tests.sim.upgrading.graphs import (
    SINKS,
    Graph,
    Row,
    State,
    copied,
    empty_state,
    run_step,
    shows_steps,
    sinks_of,
    sources_of,
    tables,
)
from tests.sim.upgrading.rules import (
    Change,
    Options,
    Record,
    RefusedError,
    born_of,
    decide,
    irrevocable_of,
    operators_of,
)

RETAIN: Final = 2
UPGRADES_KEPT: Final = 3
CLAIMS_MAX: Final = 4
"""After so many lost claims a newcomer gives up."""
Points = Iterator[str]


@dataclass
class Program:
    """What is started. edit: what its author expects of the change, for the oracle."""

    graph: Graph
    options: Options = field(default_factory=Options)
    workers: int | None = None
    edit: Any = None
    ends: dict[tuple[str, str], int] = field(default_factory=dict)
    """Where inputs ended when it was started last, for the oracle."""


class Driver:
    """One process. `ended`: why it ended, "" while it runs; `todo`: what it is asked for."""

    def __init__(self, region: Region, program: Program, rng: Random, *, without: str, asks: bool) -> None:
        self.region = region
        self.program = program
        self.graph = program.graph
        self._operators = operators_of(program.graph)
        self.rng = rng
        self.without = without
        self.asks = asks
        """Workers are asked for their last shown step, instead of records that state whether it is quiet."""
        self.todo: deque[tuple[str, Any]] = deque()
        self.ended = ""
        self.refused: RefusedError | RestoreRefusedError | None = None
        self.changed = False
        self.runs = False
        """It has started, and waits for something to do."""
        self.epoch = 0
        self.asked_to_pause: Driver | None = None
        self._handed_over = False
        self._claims = 0
        self._change: Change | None = None
        self._seen = ""
        """The graph that the region had when this one was compared first."""
        self._prepared: dict[tuple[str, int], list[Shown]] = {}
        """(sink, worker) -> rows for its next transaction."""
        self._points = self._life()

    def advance(self) -> str:
        """Run to the next point; "" if it has ended."""
        if self.ended:
            return ""
        try:
            return next(self._points)
        except StopIteration:
            return ""

    def kill(self) -> None:
        self.ended = self.ended or "killed"
        self._points.close()

    # --- its life -----------------------------------------------------------------------------------------

    def _life(self) -> Points:
        try:
            while True:
                try:
                    yield from self._start()
                    yield from self._work()
                    return
                except FencedError:
                    yield from self._superseded()
                    if self.ended:
                        return
        except (RefusedError, RestoreRefusedError) as why:
            self.refused, self.ended = why, "refused"

    def _superseded(self) -> Points:
        """End; or claim again: the other has no segment, or was lent the region and commits nothing."""
        region, self.runs = self.region, False
        self._claims += 1
        if self._handed_over and self.without != "superseded-driver-ends":
            self._handed_over = False
            newcomer, patience = self.asked_to_pause, 40
            self.asked_to_pause = None
            while newcomer is not None and not newcomer.ended and not self._is_replaced and patience:
                patience -= 1
                yield "waits for the newcomer"
            if self._is_replaced:
                self.ended = "handed over"
        elif region.opened > self.epoch:
            self.ended = "fenced"
        elif self._claims > CLAIMS_MAX and not self.changed:
            self.ended = "taken"

    @property
    def _is_replaced(self) -> bool:
        last = self.region.last
        return last is not None and last.checkpoint.operators != self._operators

    def _start(self) -> Points:
        region = self.region
        self.program.ends = {place: len(rows) for place, rows in region.store.inputs.items()}
        if self.without != "check-after-claim" or self._seen:
            self._look()
        yield "compared"
        if self.program.options.hand_over and not self._claims:
            yield from self._take_over_from_another()
        if self._change is not None and self._bootstrapped(self._change):
            yield from self._add_rows()
        region.claimed += 1
        self.epoch = region.claimed
        yield "claimed"
        late = self.without in ("check-after-claim", "decided-after-the-segment")
        if not late and self.without != "not-decided-under-the-claim":
            self._decide_again()
        yield "decided"
        self._check_claim()
        region.opened = self.epoch
        yield "opened"
        if late:
            self._decide_again()
        yield from self._begin()
        self.runs = True

    def _check_claim(self) -> None:
        if self.region.claimed != self.epoch:
            raise FencedError("manifest")

    def _look(self) -> None:
        """Compare before anything is claimed."""
        region = self.region
        self._change = None
        if region.last is None:
            return
        self._seen = self._seen or region.last.fingerprint
        self._refuse_if_stale(region.last)
        self._change = self._fits(region.last, quiet=not self.program.options.hand_over)

    def _decide_again(self, *, adds: bool = False) -> None:
        """adds: rows are to be added to the last record now."""
        last = self.region.last
        if last is None:
            self._change = None
            return
        self._refuse_if_stale(last)
        self._change = self._fits(last)
        if not adds:
            self._refuse_without_rows(last)

    def _bootstrapped(self, change: Change) -> dict[str, str]:
        """Return operator that is new and begins with rows -> its uid."""
        if self.without == "bootstrap-after-commit":
            return {}
        return {name: change.uids[name] for name in self.program.options.bootstrap if name in change.new}

    def _refuse_without_rows(self, last: Record) -> None:
        if self._change is None or self.without == "bootstrap-of-another-checkpoint":
            return
        edit = last.checkpoint.edit
        given = set(() if edit is None else edit.bootstraps) & set(self._change.uids.values())
        if given != set(self._bootstrapped(self._change).values()):
            raise RefusedError("bootstrap", "its rows are not in the last record")

    def _add_rows(self) -> Points:
        """Record the rows with which operators begin, beside the state of the last record."""
        region = self.region
        region.claimed += 1
        self.epoch = region.claimed
        yield "claimed to add rows"
        self._decide_again(adds=True)
        last = region.last
        assert last is not None
        assert self._change is not None
        is_quiet = last.checkpoint.is_quiet
        if self.asks and not last.checkpoint.rewound:
            yield from self._hold_all(last.checkpoint)
            is_quiet = self._last_step(last.checkpoint) <= last.checkpoint.step
        if not is_quiet and self.without != "no-quiet-check":
            raise RefusedError("not quiet")  # its record takes nothing back
        self._check_claim()
        region.opened = self.epoch
        # Under the uids with which the operators come after the record, which has the next number.
        before = last.again(checkpoint=replace(last.checkpoint, number=last.number + 1, parent=last.number))
        uids = {
            name: f"{born_of(before, region.name, self.without)}{name}"
            for name in self._bootstrapped(self._change)
        }
        parts = {}
        for worker, part in last.checkpoint.workers.items():
            self._claim_worker(worker)
            region.chains[worker].open(self.epoch, part.state)
            mine = [
                Entry(uid, "", key, value)
                for name, uid in uids.items()
                for key, value in self.program.options.bootstrap[name].items()
                if key % len(last.checkpoint.workers) == worker
            ]
            region.chains[worker].append(self.epoch, mine)
            parts[worker] = replace(part, state=region.chains[worker].end(self.epoch))
            yield f"added rows {worker}"
        edit = Edit(bootstraps=tuple(sorted(uids.values())), made_of=self.program.options.bootstrap_of)
        record = edited(region.checkpoints, last.checkpoint, self.epoch, parts, edit)
        self._append(Record(record, last.uids, last.upgrades, "rows"))
        yield "added rows"

    def _refuse_if_stale(self, last: Record) -> None:
        """Another graph has begun since this one was compared: its author has not seen that."""
        if self._seen and last.fingerprint != self._seen and last.checkpoint.operators != self._operators:
            raise RefusedError("stale")

    def _fits(self, last: Record, *, quiet: bool = True) -> Change | None:
        target = self._target()
        kept = [one for one in self.region.kept if one.number <= target.number]
        change = decide(kept, self.graph, self.program.options, region=self.region.name, without=self.without)
        back = target is not last
        if change is not None and quiet and not back and not self.asks:
            self._refuse_unless_quiet(last, is_quiet=last.checkpoint.is_quiet)
        return change

    def _target(self) -> Record:
        """Return the newest retained record that can be read, and that the graph fits."""
        last = self.region.last
        assert last is not None
        readable = [one for one in self.region.kept if one.checkpoint.voted_as not in self.region.damaged]
        if last in readable or not readable:
            return last
        why = "damaged"
        for record in reversed(readable):
            if not self._may_fall_back(record, last):
                continue
            kept = [one for one in self.region.kept if one.number <= record.number]
            try:
                find_target(self.region.checkpoints, f"checkpoint:{record.number}", region=self.region.name)
                change = decide(
                    kept, self.graph, self.program.options, region=self.region.name, without=self.without
                )
            except (RefusedError, RestoreRefusedError):
                continue
            # The record that goes back has the number of another uid.
            if change is None or not self._bootstrapped(change):
                return record
            why = "bootstrap"
        raise RefusedError(why)

    def _may_fall_back(self, record: Record, last: Record) -> bool:
        """Whether the options of this program are for the graph of an older record: that of the last record,
        or the one from which it made the last change. Below another change, a name may be another operator.
        """
        if (record.checkpoint.operators, record.uids) == (last.checkpoint.operators, last.uids):
            return True
        if self.without == "falls-back-below-changes":
            return True
        is_last_change = last.checkpoint.operators == self._operators and bool(last.upgrades)
        return is_last_change and record.number >= last.upgrades[-1]

    def _refuse_unless_quiet(self, last: Record, *, is_quiet: bool) -> None:
        if is_quiet or self.without == "no-quiet-check":
            return
        if not self.program.options.take_back:
            raise RefusedError("not quiet")
        mail = [uid for uid, kind in last.checkpoint.irrevocable.items() if kind == "mail"]
        if mail and self.without != "take-back-shows-again":
            raise RefusedError("shown for good", ", ".join(mail))

    def _take_over_from_another(self) -> Points:
        """All is tried; now the other driver pauses, and has a checkpoint after which nothing is shown."""
        other: Driver | None = self.region.driver
        if other is None or other.ended or other is self:
            return
        other.asked_to_pause = self
        patience = 60
        while other.asked_to_pause is self and not other._handed_over and not other.ended and patience:
            patience -= 1
            yield "asked for a pause"
        if not other._handed_over and not other.ended and self.without != "claims-without-lease":
            other.asked_to_pause = None
            raise RefusedError("no lease")

    # --- from the claim to the first step -----------------------------------------------------------------

    def _begin(self) -> Points:
        region, without = self.region, self.without
        if region.last is None:
            yield from self._begin_anew()
            return
        target, last = self._target(), region.last
        if target is not last:
            self._append(self._back_to(target, self._operators))
            yield "went back"
            if without != "not-decided-under-the-claim":
                self._change = self._fits(region.last)
                self._refuse_without_rows(region.last)
        change, last = self._change, region.last
        self._check_claim()  # so nobody has appended a record since it was decided
        yield from self._hold_all(last.checkpoint)
        is_quiet = last.checkpoint.is_quiet
        if self.asks and not (last.checkpoint.rewound or last.checkpoint.in_origin):
            is_quiet = self._last_step(last.checkpoint) <= last.checkpoint.step
        if change is not None:
            if self.asks:
                self._refuse_unless_quiet(last, is_quiet=is_quiet)
            yield from self._complete_removed(last, change)
            if not is_quiet and without != "no-quiet-check":
                self._append(self._taken_back(last))
                yield "took back"
                last = region.last
                is_quiet = True
        yield from self._restore(last, change, is_quiet=is_quiet)

    def _begin_anew(self) -> Points:
        region = self.region
        self._set_layout(None, is_quiet=True)
        self.uids = {name: name for name in self.graph}
        self.state = empty_state(self.graph)
        self.stored = copied(self.state)
        self.step, self.line = 0, 0
        self._prepared = {}
        for worker in range(self.workers):
            self._claim_worker(worker)
            region.chains[worker].open(self.epoch, ORIGIN)
            region.steps[worker].clear()
        self._open_outputs(None, back=True)
        self.positions = {
            uid: dict(region.store.register(region.name, self.graph[name].detail, uid).begins)
            for name, uid in self._sources()
        }
        yield from self._commit()

    def _set_layout(self, last: Checkpoint | None, *, is_quiet: bool) -> None:
        asked = self.program.workers
        if last is None:
            self.layout = even_layout(asked or 2)
        else:
            replays = shows_steps(self.graph) and not is_quiet
            wanted = len(last.workers) if replays or asked is None else asked
            self.layout = (
                last.layout if wanted == len(last.layout.workers) else rebalanced(last.layout, range(wanted))
            )
        self.workers = len(self.layout.workers)

    def _hold_all(self, checkpoint: Checkpoint) -> Points:
        """Claim the chains of all workers of the checkpoint, those that leave too."""
        for worker in checkpoint.workers:
            self._claim_worker(worker)
            yield f"holds worker {worker}"

    def _claim_worker(self, worker: int) -> None:
        if self.region.epochs[worker] > self.epoch:
            raise FencedError(f"worker {worker}")
        self.region.epochs[worker] = self.epoch

    def _last_step(self, checkpoint: Checkpoint) -> int:
        """Return the last step that all workers have recorded: none is shown before."""
        workers = set(checkpoint.workers)
        if self.without == "quiet-asks-new-workers":
            workers = set(range(self.program.workers or len(workers)))
        steps = self.region.steps
        return min(
            max([step for step, _ in steps[worker]], default=0) if steps[worker] else checkpoint.step
            for worker in workers
        )

    def _complete_removed(self, last: Record, change: Change) -> Points:
        """Show what the checkpoint has of outside sinks that are removed, and abort the rest."""
        region, number = self.region, self.region.voted_as(last.checkpoint)
        lost = {key[0] for key in region.staged} - set(last.uids.values())
        uids = [last.uids[name] for name in change.gone if region.modes.get(last.uids[name]) == "tx"]
        fenced = self.without != "completes-unfenced"
        for uid in [*uids, *sorted(lost)]:
            yield f"completes {uid}"
            if self.without == "removed-sink-leaves-transactions":
                kept = {key: rows for key, rows in region.staged.items() if key[0] == uid and key[1] > number}
                region.complete(uid, self.epoch, number, fenced=fenced)
                region.staged.update(kept)
            elif self.without == "removed-sink-of-staying-workers":
                staying = range(self.program.workers or len(last.checkpoint.workers))
                left = {
                    key: rows
                    for key, rows in region.staged.items()
                    if key[0] == uid and key[2] not in staying
                }
                for key in left:
                    del region.staged[key]
                region.complete(uid, self.epoch, number, fenced=fenced)
                region.staged.update(left)
            elif self.without == "removed-sink-not-completed":
                region.complete(uid, self.epoch, 0, fenced=fenced)
            else:
                region.complete(uid, self.epoch, number, fenced=fenced)

    def _restore(self, last: Record, change: Change | None, *, is_quiet: bool) -> Points:
        region, checkpoint = self.region, last.checkpoint
        self._set_layout(checkpoint, is_quiet=is_quiet or change is not None)
        self.uids = self._uids_of(last, change)
        self.step, self.line = checkpoint.step, checkpoint.line
        self._prepared = {}
        self.state = self._read(last, change)
        moved = checkpoint.in_origin or self.layout != checkpoint.layout
        self.stored = empty_state(self.graph) if moved else copied(self.state)
        for worker in {*checkpoint.workers, *range(self.workers)}:
            self._claim_worker(worker)
        for worker in range(self.workers):
            at = ORIGIN if moved else checkpoint.workers[worker].state
            region.chains[worker].open(self.epoch, at)
        self.positions = self._read_positions(last, change)
        moves = change is not None or checkpoint.begins(self.layout) or self._renews(checkpoint, is_quiet)
        self._open_outputs(last, back=moves)
        yield "restored"
        if self.without == "steps-before-commit" and change is not None:
            yield from self._make_steps(2)
        if moves:
            yield from self._commit_beginning(last, change)
        if self.without == "bootstrap-twice" and change is None:
            self._bootstrap(self.graph)
        if not moves or self.without == "replay-old-steps":
            yield from self._replay(checkpoint)

    def _renews(self, checkpoint: Checkpoint, is_quiet: bool) -> bool:
        """Whether a record is due that states that steps are shown."""
        if self.asks or self.without == "quiet-is-not-renewed":
            return False
        return shows_steps(self.graph) and is_quiet

    def _uids_of(self, last: Record, change: Change | None) -> dict[str, str]:
        if change is not None:
            uids = dict(change.uids)
            if self.without == "rename-moves-log":
                uids |= {
                    name: f"{name}-{last.number}" for name in change.was if self.graph[name].kind in SINKS
                }
            return uids
        if self.without == "map-of-present-graph" and last.kind == "back":
            newest = self.region.history[self.region.history.index(last) - 1].uids
            return {name: newest.get(name, uid) for name, uid in last.uids.items()}
        return dict(last.uids)

    def _read(self, last: Record, change: Change | None) -> State:
        """Return the state that the checkpoint has of these operators."""
        names = {uid: name for name, uid in self.uids.items()}
        state = empty_state(self.graph)
        for uid, table, key, value in self.region.entries(last.checkpoint):
            name = names.get(uid)
            if name is None or table not in state.get(name, {}):
                continue
            moved = change is not None and name in change.was
            if self.without == "rename-without-watermarks" and moved and table == "~time":
                continue
            if value is None:
                state[name][table].pop(key, None)
            else:
                state[name][table][key] = value
        return state

    def _read_positions(self, last: Record, change: Change | None) -> dict[str, dict[str, int]]:
        region, store = self.region, self.region.store
        found: dict[str, dict[str, int]] = {}
        for part in last.checkpoint.workers.values():
            for uid, splits in part.sources.items():
                found.setdefault(uid, {}).update({split: at.position for split, at in splits.items()})
        positions = {}
        for name, uid in self._sources():
            place = self.graph[name].detail
            late = self.without == "register-late" and change is not None and name in change.new
            forgotten = self.without == "rename-without-positions" and change and name in change.was
            if late:
                begins = {split: store.trimmed[place, split] for split in SPLITS}
            else:
                begins = store.register(region.name, place, uid).begins
            comes = change is not None and name in change.new and self.without != "begins-ignored"
            if self.program.options.begins.get(name) == "latest" and (comes or self._begins_again(change)):
                positions[uid] = {split: len(store.inputs[place, split]) for split in SPLITS}
                continue
            positions[uid] = dict(begins if forgotten or uid not in found else found[uid])
        return positions

    def _begins_again(self, change: Change | None) -> bool:
        return self.without == "begins-again" and change is None

    def _open_outputs(self, last: Record | None, *, back: bool) -> None:
        """Open logs at their positions in the checkpoint, and publish what it has of outside sinks."""
        region = self.region
        outputs = {} if last is None else last.checkpoint.outputs()
        for name in sinks_of(self.graph):
            uid, mode = self.uids[name], self.graph[name].kind
            region.modes[uid] = mode
            if mode == "tx":
                number = 0
                if last is not None:
                    by_number = self.without == "published-by-number"
                    number = last.number if by_number else region.voted_as(last.checkpoint)
                region.complete(uid, self.epoch, number)
            if mode not in ("step", "cut"):
                continue
            for worker in {*range(self.workers), *outputs}:
                size = int(outputs[worker].sinks.get(uid, {}).get("size", 0)) if worker in outputs else 0
                if mode == "cut" or back:
                    del region.logs[uid, worker][size:]

    # --- the checkpoint with which a graph, a layout or a line begins -----------------------------------

    def _commit_beginning(self, last: Record, change: Change | None) -> Points:
        region, step = self.region, last.checkpoint.step
        late = self.without == "void-after-commit" and change is not None
        if self.without != "replay-old-steps" and not late:
            yield from self._void(last.checkpoint, step)
        if change is not None:
            if self.without == "drop-deletes-now":
                for chain in region.chains.values():
                    chain.delete(last.uids[name] for name in change.gone)
            if self.without == "deregister-early":
                region.store.deregister(region.name, [last.uids[name] for name in change.gone])
        yield from self._commit(change)
        if self.without == "bootstrap-after-commit" and change is not None:
            self._bootstrap(change.new)
        if late:
            yield from self._void(last.checkpoint, step)

    def _void(self, checkpoint: Checkpoint, step: int) -> Points:
        """Make recorded steps after a checkpoint void, of each of its workers."""
        for worker in checkpoint.workers:
            self._hold(worker)
            recorded = self.region.steps[worker]
            recorded[:] = [one for one in recorded if one[0] <= step]
            yield f"voided worker {worker}"

    def _bootstrap(self, names: Any) -> None:
        for name, rows in self.program.options.bootstrap.items():
            if name in names and "" in tables(self.graph, name):
                table = self.state[name][""]
                for key, value in rows.items():
                    table[key] = table.get(key, 0) + value

    # --- records ------------------------------------------------------------------------------------------

    def _append(self, record: Record) -> None:
        self.region.append(self.epoch, record, self.program)

    def _commit(self, change: Change | None = None, *, quiet: bool = False) -> Points:
        """Have all workers vote, append the record, and publish."""
        region, parent = self.region, self.region.last
        number = parent.number + 1 if parent else 1
        states_it = quiet and not self.asks
        pending = PendingCheckpoint(number, self.epoch, self.workers, False, 0.0, quiet=states_it)
        changes = self._changes()
        for worker in range(self.workers):
            self._hold(worker)
            region.chains[worker].append(self.epoch, changes.get(worker, ()))
            for name in sinks_of(self.graph):
                if rows := self._prepared.pop((name, worker), None):
                    region.staged[self.uids[name], number, worker] = tuple(rows)
            refusal = pending.vote(self._vote(number, worker))
            assert refusal is None, refusal
            yield f"voted {worker}"
        self._append(self._record(pending, parent, change))
        self.changed = self.changed or change is not None
        self.stored = copied(self.state)
        yield "committed"
        for name in sinks_of(self.graph):
            if self.graph[name].kind == "tx":
                region.complete(self.uids[name], self.epoch, number)
                yield f"published {name}"
        self._release()

    def _vote(self, number: int, worker: int) -> Vote:
        region = self.region
        logs = [self.uids[name] for name in sinks_of(self.graph) if self.graph[name].kind in ("step", "cut")]
        positions = WorkerCheckpoint(
            state=region.chains[worker].end(self.epoch),
            steps=Position(self.epoch, 1, 0),
            sources={
                uid: {
                    split: SplitPosition(at)
                    for split, at in splits.items()
                    if int(split) % self.workers == worker
                }
                for uid, splits in self.positions.items()
            },
            sinks={uid: to_builtins(Position(self.epoch, len(region.logs[uid, worker]), 0)) for uid in logs},
            floors={f"out-{uid}": (1, 0) for uid in logs},
        )
        return Vote(
            job=region.name,
            incarnation=self.epoch,
            checkpoint=number,
            worker=worker,
            epoch=self.epoch,
            step=self.step,
            positions=positions,
        )

    def _record(self, pending: PendingCheckpoint, parent: Record | None, change: Change | None) -> Record:
        region, number = self.region, pending.number
        savepoints = dict(parent.checkpoint.savepoints) if parent else {}
        upgrades = parent.upgrades if parent else ()
        if change is not None and parent is not None:
            upgrades = (*upgrades, parent.number)[-(1 if self.without == "one-upgrade-savepoint" else 3) :]
            savepoints = {name: at for name, at in savepoints.items() if not name.startswith("upgrade-")}
            savepoints |= {f"upgrade-{at}": at for at in upgrades}
        retained = retained_with(region.checkpoints, number, RETAIN, set(savepoints.values()))
        checkpoint = pending.build(
            parent.checkpoint if parent else None,
            self.layout,
            self._operators,
            {name: uid for name, uid in self.uids.items() if uid != name},
            retained,
            savepoints,
            0,
            {},
            irrevocable_of(self.graph),
            shows_steps=shows_steps(self.graph),
            replaced=replaced_graphs(parent.checkpoint, self._operators) if parent else {},
        )
        if self.without == "irrevocable-of-present-sinks":
            checkpoint = replace(checkpoint, former_sinks={})
        return Record(
            self._without_ends(checkpoint, parent),
            dict(self.uids),
            upgrades,
            "graph" if change is not None else "vote",
        )

    def _without_ends(self, checkpoint: Checkpoint, parent: Record | None) -> Checkpoint:
        """Return a vote without what an omission does not state of removed logs."""
        new = checkpoint.ended.keys() - (parent.checkpoint.ended.keys() if parent else set())
        ended = dict(checkpoint.ended)
        if self.without == "removed-log-has-no-end":
            ended = {uid: log for uid, log in ended.items() if uid not in new}
        elif self.without == "ends-of-staying-workers":
            for uid in new:
                leaving = ended[uid].ends.keys() - checkpoint.workers.keys()
                ends, floors = dict(ended[uid].ends), dict(ended[uid].floors)
                for worker in leaving:
                    del ends[worker], floors[worker]
                ended[uid] = replace(ended[uid], ends=ends, floors=floors)
        return replace(checkpoint, ended=ended)

    def _back_to(self, target: Record, graph: Operators | None = None) -> Record:
        """Return the record that restores a retained one: identities, ended logs and graph are its own."""
        region, last = self.region, self.region.last
        assert last is not None
        checkpoint = restored(region.checkpoints, target.checkpoint, self.epoch, graph=graph)
        ended = checkpoint.ended
        if self.without == "rewind-forgets-new-logs":
            ended = {uid: log for uid, log in ended.items() if log.ends}
        elif self.without == "restore-keeps-ended-logs":
            ended = last.checkpoint.ended
        return Record(replace(checkpoint, ended=ended), target.uids, last.upgrades, "back")

    def _taken_back(self, last: Record) -> Record:
        """Return the last record again, on a new line: readers know that later steps are taken back."""
        if self.without != "take-back-without-line":
            return self._back_to(last)
        kept = (*(one.number for one in self.region.kept), last.number + 1)
        checkpoint = repeated(last.checkpoint, last.checkpoint, self.epoch, retained=kept)
        return last.again(checkpoint=checkpoint, kind="back")

    def _release(self) -> None:
        """Trim inputs."""
        self.region.store.trim()

    # --- steps --------------------------------------------------------------------------------------------

    def _sources(self) -> list[tuple[str, str]]:
        return [(name, self.uids[name]) for name in sources_of(self.graph)]

    def _hold(self, worker: int) -> None:
        """Raises FencedError if another incarnation has the worker's chains."""
        if self.region.epochs[worker] != self.epoch:
            raise FencedError(f"worker {worker}")

    def _changes(self) -> dict[int, list[Entry]]:
        """Return worker -> what its state has gained and lost since the last checkpoint."""
        found: dict[int, list[Entry]] = {}
        for name, by_table in self.state.items():
            for table, rows in by_table.items():
                before = self.stored[name][table]
                for key in sorted({*rows, *before}):
                    if rows.get(key) != before.get(key):
                        entry = Entry(self.uids[name], table, key, rows.get(key))
                        found.setdefault(key % self.workers, []).append(entry)
        return found

    def _make_steps(self, steps: int) -> Points:
        region, store = self.region, self.region.store
        for _ in range(steps):
            step, ranges = self.step + 1, Ranges()
            for name, uid in self._sources():
                place = self.graph[name].detail
                if self.without == "register-late":
                    store.register(region.name, place, uid)
                ranges[uid] = {}
                for split, at in self.positions[uid].items():
                    end = min(len(store.inputs[place, split]), at + self.rng.randint(0, 2))
                    ranges[uid][split] = (at, end)
            for worker in range(self.workers):
                self._hold(worker)
                mine = {
                    uid: {split: one for split, one in splits.items() if int(split) % self.workers == worker}
                    for uid, splits in ranges.items()
                }
                recorded = region.steps[worker]
                recorded[:] = [*(one for one in recorded if one[0] < step), (step, mine)]
                yield f"recorded {worker}"
            yield from self._make(step, ranges)

    def _replay(self, checkpoint: Checkpoint) -> Points:
        """Make the steps again that all workers have recorded."""
        steps = self.region.steps
        recorded = {worker: dict(steps[worker]) for worker in checkpoint.workers}
        last = min(max(one, default=0) for one in recorded.values())
        for step in range(checkpoint.step + 1, last + 1):
            ranges: Ranges = {uid: {} for uid in self.positions}
            for of_worker in recorded.values():
                for uid, splits in of_worker.get(step, {}).items():
                    if uid in ranges:
                        ranges[uid].update(splits)
            yield from self._make(step, ranges, again=True)

    def _batches(self, ranges: Ranges) -> dict[str, list[Row]]:
        store, batches = self.region.store, {}
        for name, uid in self._sources():
            place, rows = self.graph[name].detail, []
            for split, (begin, end) in sorted(ranges[uid].items()):
                if begin < end and begin < store.trimmed[place, split]:
                    raise ViolationError("upgrading", f"input {place}/{split} is trimmed behind {begin}")
                rows += store.inputs[place, split][begin:end]
            batches[name] = rows
        return batches

    def _make(self, step: int, ranges: Ranges, *, again: bool = False) -> Points:
        made = run_step(self.graph, self.state, self._batches(ranges))
        for _, uid in self._sources():
            self.positions[uid].update({split: end for split, (_, end) in ranges[uid].items()})
        self.step = step
        for worker in range(self.workers):
            for name, rows in made.items():
                mine = [row for row in rows if row["k"] % self.workers == worker]
                self._show(name, worker, Shown(step, self.line, as_rows(mine)), again=again)
            yield f"showed {worker}"

    def _show(self, name: str, worker: int, shown: Shown, *, again: bool) -> None:
        region, uid, mode = self.region, self.uids[name], self.graph[name].kind
        if mode == "tx":
            if shown.rows:
                self._prepared.setdefault((name, worker), []).append(shown)
            return
        self._hold(worker)
        if mode == "mail":
            if shown.rows and not again:  # at most once: what was lost with a process is not sent
                region.sent.append((uid, shown))
            return
        log = region.logs[uid, worker]
        for known in log:
            if (known.step, known.line) == (shown.step, shown.line) and mode == "step":
                if known.rows != shown.rows:
                    raise ViolationError("upgrading", f"step {shown.step} of {uid} was shown with other rows")
                return
        log.append(shown)

    # --- what it is asked for -----------------------------------------------------------------------------

    def _work(self) -> Points:
        while True:
            if self.asked_to_pause is not None and not self._handed_over:
                yield from self._lend()
                continue
            if not self.todo:
                yield "idle"
                continue
            what, argument = self.todo.popleft()
            if what == "stop":
                yield from self._stop()
                return
            if what == "restore":
                self._restore_older(argument)
                return
            if what == "steps":
                yield from self._make_steps(argument)
            elif what == "checkpoint":
                yield from self._commit()
            elif what == "savepoint":
                self._savepoint(argument)
                yield "made a savepoint"
            elif what == "lose":
                self._recover(argument)
                yield "recovered"

    def _stop(self) -> Points:
        """Pause all workers, and commit what they have made."""
        if self.without == "stop-does-not-pause":
            yield from self._commit()
            yield from self._make_steps(self.rng.randint(0, 2))
        elif self.without == "quiet-without-pause":
            yield from self._commit(quiet=True)
            yield from self._make_steps(1)
        else:
            yield from self._commit(quiet=True)
        self.ended = "stopped"

    def _lend(self) -> Points:
        """Pause for a newcomer until it has the region, or the lease ends."""
        newcomer = self.asked_to_pause
        yield from self._commit(quiet=True)
        self._handed_over = True
        patience = self.rng.choice((3, 60))
        while patience and newcomer is not None and not newcomer.ended:
            patience -= 1
            self._check_claim()
            yield "paused for a newcomer"
        self._check_claim()
        self.asked_to_pause, self._handed_over = None, False
        if not self.asks and shows_steps(self.graph):
            yield from self._commit()  # from here on steps are shown after the last record

    def _restore_older(self, number: int) -> None:
        region = self.region
        last = region.last
        assert last is not None
        try:
            target = find_target(region.checkpoints, f"checkpoint:{number}", region=region.name)
            refuse_republishing(last.checkpoint, target)
        except RestoreRefusedError as why:
            self.refused, self.ended = why, "refused"
            return
        self._append(self._back_to(next(one for one in region.kept if one.checkpoint is target)))
        self.ended = "restored"

    def _savepoint(self, name: str) -> None:
        last = self.region.last
        assert last is not None
        kept = tuple(self.region.checkpoints)
        savepoints = {**last.checkpoint.savepoints, name: last.number}
        checkpoint = recorded_again(kept, self.epoch, savepoints)
        self._append(last.again(checkpoint=checkpoint, kind="again"))

    def _recover(self, worker: int) -> None:
        """Make the state of one worker again, from the last checkpoint and the recorded steps."""
        region, last = self.region, self.region.last
        assert last is not None
        worker %= self.workers
        state = self._read(last, None)
        for step in range(last.checkpoint.step + 1, self.step + 1):
            ranges: Ranges = {uid: {} for uid in self.positions}
            for one in range(self.workers):
                for uid, splits in dict(region.steps[one])[step].items():
                    ranges[uid].update(splits)
            run_step(self.graph, state, self._batches(ranges))
        for name, by_table in state.items():
            for table, rows in by_table.items():
                mine = self.state[name][table]
                for key in [key for key in mine if key % self.workers == worker]:
                    del mine[key]
                mine.update({key: value for key, value in rows.items() if key % self.workers == worker})
