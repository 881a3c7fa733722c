"""Regions that live through more than losses, in many simulated runs in which everything fails: they go back,
are forked, edited, backed up, trimmed, damaged, get other workers or processes, or recover locally.

A life is a set of traits of the runs' regions. No run may violate a promise, what the life is about must be
seen, and each of its planted bugs must be found.
"""

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace as replaced

from checkpoint import limits
from checkpoint.chains import whole_checkpoints
from checkpoint.chains.manifest_log import retained_checkpoints
from checkpoint.core.coordination import checkpoints
from checkpoint.core.coordination import run as region_run
from checkpoint.core.coordination.checkpoints import Checkpoints, PendingCheckpoint
from checkpoint.core.coordination.coordinator import Coordinator, ManifestClaim
from checkpoint.core.coordination.rounds import Gathering, TakeOvers
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.coordination.vocabulary import CheckpointAppended, ManifestOpened, SavepointWanted
from checkpoint.core.coordination.workers import Roster, Worker
from checkpoint.core.links.barrier import Alignment
from checkpoint.core.links.frames import FrameType
from checkpoint.core.records import backups as rules
from checkpoint.core.records.backups import BackupRecord
from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.divisions import NO_MARK, Division
from checkpoint.core.records.layout import TakenPart
from checkpoint.core.records.lines import forked, needs_original
from checkpoint.core.records.manifest import Checkpoint, Examination, ForkOrigin, floors_of
from checkpoint.core.region import SavepointSettled
from checkpoint.maintenance import backup, editing
from dataflow.core.peer_links import Held, PeerLinks, Records, Sent
from dataflow.state.base import Share
from dataflow.worker import layout_change
from dataflow.worker.circuit import Circuit
from dataflow.worker.circuit_thread import CircuitIncarnation, StepInput
from dataflow.worker.journals import Journals
from dataflow.worker.layout_change import CopiedState
from journal import ChainState
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.regions import region as region_module
from tests.sim.regions import users
from tests.sim.regions.links import ResumedLinks
from tests.sim.regions.region import Region, has_region
from tests.sim.result import Result
from tests.sim.run import run_seed

SEEDS: Final = [seed for seed in range(1, 1_200) if has_region(RandomStreams(seed))]
"""Seeds whose runs have a region."""
MANY: Final = [24, 52, 56, 82]
"""Seeds whose regions commit early, so that there are many backups. `SEEDS` has all, and takes minutes."""
Planted: TypeAlias = contextlib.AbstractContextManager[Any]


class Life(NamedTuple):
    """`traits`: attributes of `Region` in the run of a seed. `seeds`: runs without a planted bug; each
    event of `above` is seen in them more often than that, each of `exactly` so often. `hunted`: the runs
    for planted bugs that name no seeds. `sound`: seeds that a bug names are also run without it.
    """

    traits: Callable[[int], dict[str, bool | float]]
    seeds: Sequence[int]
    above: Mapping[str, float]
    exactly: Mapping[str, int] = {}
    hunted: Sequence[int] = SEEDS
    sound: bool = False


LIVES: Final[dict[str, Life]] = {
    # Every other region changes its workers too: a restore is refused meanwhile.
    "restoring": Life(
        lambda seed: {"goes_back": True, "scales": seed % 2 == 0, "makes_savepoints": True, "trims": True},
        SEEDS[:18],
        {"a checkpoint is restored": 18 / 3, "a worker stays in another line": 18 / 2},
    ),
    "forking": Life(
        lambda seed: {"forks": True, **_sometimes(seed)},
        SEEDS[:14],
        {"a region is forked": 14 / 3, "the savepoint of a fork is dropped": 14 / 6},
    ),
    "scaling": Life(
        lambda _: {"scales": True, "makes_savepoints": True, "trims": True},
        SEEDS[:20],
        {
            "a worker joins in another layout": 20 / 4,
            "a worker stays in another layout": 20 / 4,
            "state was copied ahead": 20 / 4,
            "a savepoint is settled": 20,
        },
    ),
    "editing": Life(
        lambda seed: {"edits": True, **_sometimes(seed)},
        SEEDS[:14],
        {"a state is edited": 14 / 3, "a worker stays in another line": 14 / 2},
    ),
    "backups": Life(
        lambda seed: {
            "backs_up": True,
            "finishing_pace": 0.4,
            "forks": seed % 3 == 0,
            "goes_back": seed % 3 == 1,
            "edits": seed % 3 == 2,
            "scales": seed % 2 == 0,
            "makes_savepoints": seed % 2 == 1,
            "trims": True,
        },
        MANY,
        {"a backup is made": 12, "a process that makes backups is killed": 12},
        {"a backup is restored": 8},
    ),
    "replacing": Life(
        lambda _: {"replaces": True},
        SEEDS[:25],
        {"workers are replaced": 25 / 8, "a region was handed over": 25 / 8},
        hunted=SEEDS[:25],
    ),
    "local_recovery": Life(
        lambda _: {"recovers_locally": True},
        SEEDS[:25],
        # a second loss resets the region
        {
            "a worker is taken over": 25 / 2,
            "an exchange link is opened again": 25,
            "coordinator: RUNNING to OPENING": 0,
        },
        hunted=SEEDS[:25],
        sound=True,
    ),
    "input_trimming": Life(lambda _: {"trims": True}, SEEDS[:8], {"trimmed": 10 * 8}, hunted=SEEDS[:8]),
    # regions of which most fall back
    "damaged_checkpoints": Life(
        lambda _: {"is_spoiled": True}, [1, 15, 56, 68, 127], {"a region fell back": 1}, sound=True
    ),
}


def _sometimes(seed: int) -> dict[str, bool | float]:
    return {
        "goes_back": seed % 3 == 0,
        "scales": seed % 2 == 0,
        "makes_savepoints": seed % 3 == 0,
        "trims": True,
    }


def run(life: Life, seed: int) -> Result:
    with mock.patch.multiple(Region, **life.traits(seed)):
        return run_seed(seed)


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_no_run_breaks_a_promise_and_what_the_life_is_about_is_seen(life: Life) -> None:
    """Each row is in the output once; what is retained, forked or backed up has the state of its input."""
    # EVIDENCE-OF: P-6
    seen: Counter[str] = Counter()
    for seed in life.seeds:
        result = run(life, seed)
        assert not result.violation, f"seed {seed}: {result.violation}"
        seen += result.history.sometimes
    assert {event: count for event, count in life.above.items() if seen[event] <= count} == {}
    assert {event: seen[event] for event in life.exactly} == life.exactly


class Bug(NamedTuple):
    """`seeds`: runs that show it, if few do."""

    life: str
    plant: Callable[[], Planted]
    seeds: Sequence[int] | None


BUGS: list[Bug] = []


def planted(
    life: str, seeds: Sequence[int] | None = None
) -> Callable[[Callable[[], Planted]], Callable[[], Planted]]:
    """Register a planted bug of a life."""

    def registered(plant: Callable[[], Planted]) -> Callable[[], Planted]:
        BUGS.append(Bug(life, plant, seeds))
        return plant

    return registered


# --- restoring --------------------------------------------------------------------------------------------


def restore_with(**fields: Any) -> Callable[[], Planted]:
    """The record of a restore has other fields."""
    original = checkpoints.restored

    def restored(kept: Sequence[Checkpoint], target: Checkpoint, *args: Any, **more: Any) -> Checkpoint:
        record = original(kept, target, *args, **more)
        return replaced(record, **{name: make(record, kept, target) for name, make in fields.items()})

    return lambda: mock.patch.object(checkpoints, "restored", restored)


@planted("restoring", [82])
def its_savepoints_are_those_of_then() -> Planted:
    return restore_with(savepoints=lambda _, __, target: target.savepoints)()


@planted("restoring")
def what_came_after_is_released() -> Planted:
    def retained(record: Checkpoint, kept: Sequence[Checkpoint], target: Checkpoint) -> tuple[int, ...]:
        return (
            *(checkpoint.number for checkpoint in kept if checkpoint.number <= target.number),
            record.number,
        )

    return restore_with(retained=retained)()


@planted("restoring")
def all_below_the_last_checkpoint_is_deleted() -> Planted:
    """Also what lies between the positions of two retained checkpoints and the floors of the next."""
    stack = contextlib.ExitStack()
    for module in (checkpoints, region_run):
        gaps = mock.patch.object(
            module,
            "gaps_of",
            lambda kept, worker: {
                chain: (((0, 0), floor),) for chain, floor in floors_of(kept[-1:], worker).items()
            },
        )
        stack.enter_context(gaps)
    return stack


@planted("restoring")
def inputs_continue_where_they_are() -> Planted:
    def workers(record: Checkpoint, kept: Sequence[Checkpoint], _: Checkpoint) -> dict[int, Any]:
        now = kept[-1].workers
        return {
            worker: replaced(part, sources=now[worker].sources if worker in now else part.sources)
            for worker, part in record.workers.items()
        }

    return restore_with(workers=workers)()


@planted("restoring")
def a_checkpoint_is_requested_meanwhile() -> Planted:
    """One append can follow the other, and take the number of the restore."""

    def can_checkpoint(self: Checkpoints) -> bool:
        return self._run.phase is CoordinatorPhase.RUNNING and self.pending is None

    return mock.patch.object(Checkpoints, "can_checkpoint", property(can_checkpoint))


@planted("restoring")
def it_counts_before_the_commit() -> Planted:
    """The workers are reset to the restored checkpoint while its record is on its way."""
    original = Coordinator.handle

    def handle(self: Coordinator, event: Any, now: float) -> Any:
        effects = original(self, event, now)
        if (record := self.checkpoints.appending) is not None and record.rewound:
            effects += original(self, CheckpointAppended(record), now)
        return effects

    return mock.patch.object(Coordinator, "handle", handle)


# --- forking ----------------------------------------------------------------------------------------------


@planted("forking", [243])
def the_first_checkpoint_has_only_changes() -> Planted:
    return mock.patch.object(Journals, "_is_whole", return_value=False)


@planted("forking", [239])
def the_savepoint_is_dropped_as_soon_as_the_fork_exists() -> Planted:
    async def needs(store: Any, region: str, savepoint: str, note: Any) -> bool | None:
        kept = await retained_checkpoints(store, note.fork)
        return False if needs_original(kept, region, savepoint) is not None else None

    return mock.patch.object(users, "fork_needs", needs)


@planted("forking")
def the_savepoint_is_made_after_the_fork() -> Planted:
    """What only the forked checkpoint needs is released meanwhile."""
    original = Checkpoints.on_savepoint_wanted

    def wanted(self: Checkpoints, event: SavepointWanted, now: float) -> None:
        if event.note.fork:
            self._run.report(SavepointSettled(event.name, event.checkpoint))
        else:
            original(self, event, now)

    return mock.patch.object(Checkpoints, "on_savepoint_wanted", wanted)


def fork_with(**fields: Callable[[Checkpoint, Checkpoint], Any]) -> Callable[[], Planted]:
    """The first record of a fork has other fields."""

    def other(source: Checkpoint, origin: ForkOrigin, incarnation: int) -> Checkpoint:
        record = forked(source, origin, incarnation)
        return replaced(record, **{name: make(record, source) for name, make in fields.items()})

    return lambda: mock.patch.object(users, "forked", other)


@planted("forking", [82])
def its_output_continues_that_of_the_original() -> Planted:
    return fork_with(workers=lambda _, source: source.workers)()


@planted("forking", [243])
def it_starts_without_a_checkpoint_of_its_own() -> Planted:
    return mock.patch.object(Checkpoint, "begins", lambda self, layout: self.rewound or self.layout != layout)


@planted("forking", [381])
def a_restore_to_its_first_checkpoint_reads_its_own_journals() -> Planted:
    original = checkpoints.restored

    def restored(*args: Any, **more: Any) -> Checkpoint:
        return replaced(original(*args, **more), in_origin=False)

    return mock.patch.object(checkpoints, "restored", restored)


@planted("forking", [312])
def its_input_is_trimmed_as_if_it_did_not_exist() -> Planted:
    async def retained(store: Any, region: str) -> Any:
        return () if region == users.FORK else await retained_checkpoints(store, region)

    return mock.patch.object(users, "retained_checkpoints", retained)


@planted("forking")
def its_input_begins_anew() -> Planted:
    return fork_with(
        workers=lambda record, _: {
            worker: replaced(part, sources={}) for worker, part in record.workers.items()
        }
    )()


# --- scaling ----------------------------------------------------------------------------------------------


@planted("scaling")
def a_range_is_lost() -> Planted:
    original = layout_change.state_parts

    def parts(*args: Any, **more: Any) -> dict[int, tuple[TakenPart, ...]]:
        found = original(*args, **more)
        return {
            worker: tuple(
                part if part.worker == worker else part._replace(ranges=part.ranges[:-1]) for part in taken
            )
            for worker, taken in found.items()
        }

    return mock.patch.object(layout_change, "state_parts", parts)


@planted("scaling", [476])
def a_range_is_owned_twice() -> Planted:
    return mock.patch.object(Share, "owns", lambda _, hashes: np.ones(len(hashes), np.bool_))


@planted("scaling")
def a_part_is_not_read_to_its_end() -> Planted:
    original = CopiedState._taken_over

    async def taken_over(self: CopiedState, *args: Any) -> AsyncGenerator[Any]:
        found = [block async for block in original(self, *args)]
        for block in found[:-1]:
            yield block

    return mock.patch.object(CopiedState, "_taken_over", taken_over)


@planted("scaling")
def the_tail_after_the_copy_is_not_read() -> Planted:
    async def nothing(*_: Any) -> AsyncGenerator[Any]:
        for block in ():
            yield block

    return mock.patch.object(layout_change, "blocks_between", nothing)


@planted("scaling")
def sources_begin_anew() -> Planted:
    return mock.patch.object(layout_change, "dealt_sources", return_value={})


@planted("scaling")
def splits_are_dealt_to_the_former_number() -> Planted:
    original = layout_change.dealt_sources

    def dealt(plan: Any, of_workers: Any, share: Share) -> Any:
        return original(plan, of_workers, replace(share, workers=len(of_workers)))

    return mock.patch.object(layout_change, "dealt_sources", dealt)


@planted("scaling", [83])
def workers_start_before_the_commit() -> Planted:
    on_restored, start_all = Gathering.on_restored, Gathering.start_all

    def at_once(self: Gathering, *args: Any) -> Any:
        with mock.patch.object(RegionRun, "layout_changes", new=False):
            return on_restored(self, *args)

    def once(self: Gathering, now: float) -> None:
        if self._run.phase is CoordinatorPhase.RESTORING:
            start_all(self, now)

    return mock.patch.multiple(Gathering, on_restored=at_once, start_all=once)


@planted("scaling")
def nobody_completes_the_output_of_a_worker_that_left() -> Planted:
    return mock.patch.object(Circuit, "complete_output")


@planted("scaling")
def output_of_former_workers_is_forgotten() -> Planted:
    return mock.patch.object(checkpoints, "_retired", return_value={})


@planted("scaling")
def chains_are_released_before_they_are_taken_over() -> Planted:
    def floors(kept: Any, worker: int) -> Any:
        found = floors_of(kept, worker)
        return {**found, "state": (kept[-1].incarnation + 1, 0)} if kept else found

    return mock.patch.object(region_run, "floors_of", floors)


@planted("scaling")
def the_former_layout_is_stored() -> Planted:
    original = PendingCheckpoint.build

    def build(self: PendingCheckpoint, parent: Any, layout: Any, *args: Any) -> Any:
        return original(self, parent, layout if parent is None else parent.layout, *args)

    return mock.patch.object(PendingCheckpoint, "build", build)


def without_savepoints(kept: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    return [
        checkpoint for checkpoint in kept if checkpoint.number not in kept[-1].savepoints.values()
    ] or kept


@planted("scaling", [56])
def floors_ignore_savepoints() -> Planted:
    def floors(kept: Sequence[Checkpoint], worker: int) -> Any:
        return floors_of(without_savepoints(kept), worker)

    return mock.patch.multiple(checkpoints, floors_of=floors)


@planted("scaling", [83])
def savepoints_are_dropped_by_another_layout() -> Planted:
    original = PendingCheckpoint.build

    def build(self: PendingCheckpoint, parent: Any, layout: Any, *args: Any) -> Any:
        checkpoint = original(self, parent, layout, *args)
        return (
            checkpoint if parent is None or parent.layout == layout else replaced(checkpoint, savepoints={})
        )

    return mock.patch.object(PendingCheckpoint, "build", build)


@planted("scaling")
def input_is_trimmed_that_savepoints_need() -> Planted:
    return mock.patch.object(users, "need_of", lambda kept, *args: need_of(without_savepoints(kept), *args))


# --- editing ----------------------------------------------------------------------------------------------


def edit_with(**fields: Any) -> Callable[[], Planted]:
    """The record of an edit has other fields."""
    original = editing.edited

    def edited(kept: Any, target: Checkpoint, *args: Any, **more: Any) -> Checkpoint:
        record = original(kept, target, *args, **more)
        return replaced(record, **{name: make(record, target) for name, make in fields.items()})

    return lambda: mock.patch.object(editing, "edited", edited)


@planted("editing", [198])
def it_counts_for_the_checkpoint_that_was_edited() -> Planted:
    """A restore to it is a restore to that checkpoint."""
    return mock.patch.object(
        Checkpoint, "voted_as", property(lambda self: self.rolled_back_to or self.number)
    )


@planted("editing")
def its_state_is_that_of_the_edited_checkpoint() -> Planted:
    return edit_with(workers=lambda _, target: target.workers)()


# --- backups ----------------------------------------------------------------------------------------------


@planted("backups", [1])
def only_sealed_segments_are_copied() -> Planted:
    original = backup.inspect_chain_at

    async def sealed(*args: Any, **more: Any) -> ChainState:
        state = await original(*args, **more)
        return replaced(state, segments=state.segments[:-1])

    return mock.patch.object(backup, "inspect_chain_at", sealed)


@planted("backups", MANY)
def the_pieces_of_older_backups_are_deleted() -> Planted:
    original = rules.unneeded_pieces

    def unneeded(listed: Any, record: BackupRecord, retained: Any) -> list[str]:
        del retained
        return original(listed, replaced(record, retained=(record.number,)), [record])

    return mock.patch.object(backup, "unneeded_pieces", unneeded)


@planted("backups", SEEDS[:6])
def only_the_newest_segment_is_copied() -> Planted:
    """The floor of a chain is where its newest segment begins, whatever a replay needs."""
    original = backup.needed_chains

    def needed(checkpoint: Checkpoint, region: str) -> list[rules.NeededChain]:
        return [one._replace(floor=one.at.size) for one in original(checkpoint, region)]

    return mock.patch.object(backup, "needed_chains", needed)


# --- replacing --------------------------------------------------------------------------------------------


@planted("replacing", [239])
def the_checkpoint_seen_before_the_claim_is_restored() -> Planted:
    """The other driver has committed further ones by the time it is fenced off."""
    original, seen = ManifestClaim.on_manifest_opened, {}
    may = ManifestClaim.may_begin

    def note(self: ManifestClaim, checkpoint: Any, now: float) -> bool:
        seen[id(self)] = checkpoint
        return may(self, checkpoint, now)

    def opened(self: ManifestClaim, event: ManifestOpened, now: float) -> None:
        first = seen.pop(id(self), None)
        original(self, event if first is None else replace(event, last_checkpoint=first), now)

    return mock.patch.multiple(ManifestClaim, may_begin=note, on_manifest_opened=opened)


@planted("replacing", [82])
def the_pause_of_a_switch_is_not_lifted() -> Planted:
    original = Checkpoints.order_pause

    def order(self: Checkpoints, *, on: bool) -> None:
        if on:
            original(self, on=on)

    return mock.patch.object(Checkpoints, "order_pause", order)


@planted("replacing")
def a_successor_gets_the_number_of_an_attempt_that_runs() -> Planted:
    """A launcher and a coordinator know attempts by their numbers."""
    original = Roster.launch

    def launch(self: Roster, worker: Worker, *args: Any) -> int:
        with mock.patch.dict(self._attempts, {worker.index: worker.attempt}):
            return original(self, worker, *args)

    return mock.patch.object(Roster, "launch", launch)


# --- local recovery ---------------------------------------------------------------------------------------


@planted("local_recovery", [4335])
def a_step_runs_before_its_divisions_are_durable() -> Planted:
    return mock.patch.object(CircuitIncarnation, "_waits_for_durable", return_value=False)


@planted("local_recovery")
def what_was_not_used_is_kept() -> Planted:
    return mock.patch.object(Alignment, "restart", lambda self, sender: self.step - 1)


@planted("local_recovery")
def steps_are_purged_when_a_checkpoint_is_voted() -> Planted:
    """The worker that takes over begins at the one before."""
    original = ResumedLinks.announce

    def announce(self: ResumedLinks, kind: FrameType, step: int) -> None:
        original(self, kind, step)
        self.purge(step)

    return mock.patch.object(ResumedLinks, "announce", announce)


@planted("local_recovery", [1112])
def marks_are_not_in_the_chain() -> Planted:
    return mock.patch.object(Journals, "_mark_of", return_value=NO_MARK)


@planted("local_recovery", [244])
def marks_of_former_incarnations_count() -> Planted:
    """A checkpoint that was given up gets its number again."""
    return mock.patch.object(Journals, "_marks", lambda self, divisions: tuple(divisions))


@planted("local_recovery")
def the_vote_of_a_lost_worker_counts() -> Planted:
    def taken_over(self: PendingCheckpoint, worker: int, term: int) -> None:
        self.terms[worker] = term

    return mock.patch.object(PendingCheckpoint, "taken_over", taken_over)


@planted("local_recovery", [1251])
def an_append_is_not_settled_first() -> Planted:
    """The worker begins at a checkpoint whose successor is committed at that moment."""
    return mock.patch.object(TakeOvers, "_is_settled", return_value=True)


@planted("local_recovery")
def a_take_over_has_the_term_of_the_incarnation() -> Planted:
    return mock.patch.object(TakeOvers, "_next_term", lambda self: self._run.incarnation)


@planted("local_recovery")
def steps_that_are_made_again_are_not_retained() -> Planted:
    """A second worker that is taken over needs them too."""
    original = PeerLinks.add

    def add(self: PeerLinks, sent: Sent, records: Records, *, produces: bool) -> None:
        again = self.term % limits.terms_per_incarnation and sent.step <= self.peers_at
        original(self, Sent(sent.step, {}) if again else sent, records, produces=produces)

    return mock.patch.object(PeerLinks, "add", add)


@planted("local_recovery")
def a_worker_states_one_step_too_many() -> Planted:
    original = CircuitIncarnation.forget_unused

    def forget_unused(self: CircuitIncarnation, peer: int) -> Held:
        held = original(self, peer)
        return held._replace(used={channel: step + 1 for channel, step in held.used.items()})

    return mock.patch.object(CircuitIncarnation, "forget_unused", forget_unused)


@planted("local_recovery")
def retained_steps_are_sent_without_a_limit() -> Planted:
    return mock.patch("dataflow.core.peer_links.steps_ahead", 1_000_000)


@planted("local_recovery")
def a_step_is_made_again_with_other_rows() -> Planted:
    original = StepInput.replay

    def replay(self: StepInput, step: int, recorded: Division, *, dropped: bool = False) -> None:
        original(self, step, recorded, dropped=step % 3 == 0)

    return mock.patch.object(StepInput, "replay", replay)


# --- input trimming ---------------------------------------------------------------------------------------


@planted("input_trimming")
def latest_only() -> Planted:
    """Trims to the latest retained checkpoint."""
    return mock.patch.object(users, "need_of", lambda kept, *args: need_of(kept[-1:], *args))


@planted("input_trimming")
def votes() -> Planted:
    """Trims to the positions for which all workers have voted last, whether the checkpoint is committed or
    not.
    """

    class Voted(users.Trimmer):
        def needs(self, kept: Any, split: str) -> int:
            workers = self._region.spec.workers
            whole = [parts for parts in self._region.record.votes.values() if len(parts) == workers]
            voted = [part.sources["lines"] for parts in whole[-1:] for part in parts.values()]
            found = [splits[split].position for splits in voted if split in splits]
            return found[0] if found else super().needs(kept, split)

    return mock.patch.object(region_module, "Trimmer", Voted)


# --- damaged checkpoints ----------------------------------------------------------------------------------


@planted("damaged_checkpoints", [56])
def the_next_older_one_is_taken_without_reading_it() -> Planted:
    async def examine(store: Any, region: str, kept: Sequence[Checkpoint]) -> Examination:
        found = await original(store, region, kept)
        return Examination(found.damaged, kept[-2].number) if found.damaged else found

    original = whole_checkpoints.examine
    return mock.patch.object(whole_checkpoints, "examine", examine)


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.life}-{bug.plant.__name__}")
def test_a_planted_bug_is_found(bug: Bug) -> None:
    life = LIVES[bug.life]
    seeds = life.hunted if bug.seeds is None else bug.seeds
    if life.sound and bug.seeds is not None:
        assert not any(run(life, seed).violation for seed in seeds), "without the bug"
    with bug.plant():
        found = next((result for seed in seeds if (result := run(life, seed)).violation), None)
    assert found is not None
    print(found.seed, found.violation)
