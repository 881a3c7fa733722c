"""Regions of real shells that live through more than losses, while everything fails: they go back, are
forked, edited, backed up, trimmed, damaged, get other workers or processes, or recover locally.

A life is a set of traits of the runs' regions. No run may violate a promise, what the life is about must be
seen, and each of its planted bugs must be found. Bugs that few runs show are hunted in the first tier, whose
runs cost a fifth (`tests/sim/test_region_lives.py`).
"""

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace as replaced

from checkpoint.core.coordination import checkpoints
from checkpoint.core.coordination import run as region_run
from checkpoint.core.coordination.checkpoints import Checkpoints, PendingCheckpoint
from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.coordination.workers import Roster, Worker
from checkpoint.core.records import backups as rules
from checkpoint.core.records.backups import BackupRecord
from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.layout import TakenPart
from checkpoint.core.records.manifest import Checkpoint, floors_of
from checkpoint.core.region import SavepointSettled
from checkpoint.maintenance import backup, editing, forking
from dataflow.state.base import Share
from dataflow.worker import layout_change
from dataflow.worker.journals import Journals
from dataflow.worker.layout_change import CopiedState
from journal import ChainState
from tests.shells.region import users
from tests.shells.region.region import RUNS_WITH_ONE, ShellRegion
from tests.shells.run import run_seed
from tests.sim.planted_records import Planted, fork_with, restore_with, some_traits
from tests.sim.result import Result
from tests.support.parts import with_long

SEEDS: Final = range(RUNS_WITH_ONE, 40 * RUNS_WITH_ONE, RUNS_WITH_ONE)
"""Seeds whose runs have a region, for bugs that their recorded seed does not show any more."""


class Life(NamedTuple):
    """`traits`: attributes of the region in the run of a seed. `seeds`: runs without a planted bug, in which
    each event of `seen` is seen."""

    traits: Callable[[int], dict[str, bool | float]]
    seen: Sequence[str]
    seeds: Sequence[int] = (20, 30)


LIVES: Final[dict[str, Life]] = {
    # Every other region changes its workers too: a restore is refused meanwhile.
    "restoring": Life(
        lambda seed: {"goes_back": True, "scales": seed % 2 == 0, "makes_savepoints": True, "trims": True},
        ["a checkpoint is restored", "a worker stays in another line"],
    ),
    "forking": Life(
        lambda seed: {"forks": True, **some_traits(seed)},
        ["a region is forked", "the savepoint of a fork is dropped"],
        (10, 15),
    ),
    "scaling": Life(
        lambda _: {"scales": True, "makes_savepoints": True, "trims": True},
        [
            "a worker joins in another layout",
            "a worker stays in another layout",
            "state was copied ahead",
            "a savepoint is settled",
        ],
    ),
    "editing": Life(
        lambda seed: {"edits": True, **some_traits(seed)},
        ["a state is edited", "a worker stays in another line"],
        (30, 35),
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
        ["a backup is made", "a process that makes backups is killed", "a backup is restored"],
    ),
    "replacing": Life(
        lambda _: {"replaces": True}, ["workers are replaced", "a region was handed over"], (30, 35)
    ),
    "local_recovery": Life(
        lambda _: {"recovers_locally": True},
        ["a worker is taken over", "a worker runs on its host", "an exchange link is opened again"],
    ),
    "standing_by": Life(
        lambda seed: {"stands_by": True, "recovers_locally": seed % 4 == 0, "goes_back": seed % 4 == 2},
        ["a stand-by takes the place of its worker", "state was copied ahead"],
    ),
    "input_trimming": Life(lambda _: {"trims": True}, ["trimmed"]),
    "damaged_checkpoints": Life(lambda _: {"is_spoiled": True}, ["a region fell back"], (60, 65)),
}

SHORT: Final = ["forking", "local_recovery"]


def run(life: Life, seed: int) -> Result:
    with mock.patch.multiple(ShellRegion, **life.traits(seed)):
        return run_seed(seed)


@pytest.mark.parametrize("life", with_long(SHORT, [life for life in LIVES if life not in SHORT]))
def test_no_run_breaks_a_promise_and_what_the_life_is_about_is_seen(life: str) -> None:
    """Each row is in the output once; what is retained, forked or backed up has the state of its input."""
    # EVIDENCE-OF: P-6
    seen: Counter[str] = Counter()
    for seed in LIVES[life].seeds:
        result = run(LIVES[life], seed)
        assert not result.violation, f"seed {seed}: {result.violation}"
        seen += result.history.sometimes
    assert [event for event in LIVES[life].seen if not seen[event]] == []


class Bug(NamedTuple):
    """`seed`: a run that shows it, until the code changes."""

    life: str
    plant: Callable[[], Planted]
    seed: int


BUGS: list[Bug] = []


def planted(life: str, seed: int) -> Callable[[Callable[[], Planted]], Callable[[], Planted]]:
    """Register a planted bug of a life."""

    def registered(plant: Callable[[], Planted]) -> Callable[[], Planted]:
        BUGS.append(Bug(life, plant, seed))
        return plant

    return registered


# --- restoring --------------------------------------------------------------------------------------------


@planted("restoring", 35)
def its_savepoints_are_those_of_then() -> Planted:
    return restore_with(savepoints=lambda _, __, target: target.savepoints)()


@planted("restoring", 20)
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


@planted("restoring", 25)
def inputs_continue_where_they_are() -> Planted:
    def workers(record: Checkpoint, kept: Sequence[Checkpoint], _: Checkpoint) -> dict[int, Any]:
        now = kept[-1].workers
        return {
            worker: replaced(part, sources=now[worker].sources if worker in now else part.sources)
            for worker, part in record.workers.items()
        }

    return restore_with(workers=workers)()


# --- forking ----------------------------------------------------------------------------------------------


@planted("forking", 30)
def the_first_checkpoint_has_only_changes() -> Planted:
    return mock.patch.object(Journals, "_is_whole", return_value=False)


@planted("forking", 35)
def the_savepoint_is_made_after_the_fork() -> Planted:
    """What only the forked checkpoint needs is released meanwhile."""
    original = Checkpoints.on_savepoint_wanted

    def wanted(self: Checkpoints, event: SavepointWanted, now: float) -> None:
        if event.note.fork:
            self._run.report(SavepointSettled(event.name, event.checkpoint))
        else:
            original(self, event, now)

    return mock.patch.object(Checkpoints, "on_savepoint_wanted", wanted)


@planted("forking", 20)
def its_output_continues_that_of_the_original() -> Planted:
    return fork_with(forking, workers=lambda _, source: source.workers)()


# --- scaling ----------------------------------------------------------------------------------------------


@planted("scaling", 20)
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


@planted("scaling", 20)
def a_range_is_owned_twice() -> Planted:
    return mock.patch.object(Share, "owns", lambda _, hashes: np.ones(len(hashes), np.bool_))


@planted("scaling", 20)
def a_part_is_not_read_to_its_end() -> Planted:
    original = CopiedState._taken_over

    async def taken_over(self: CopiedState, *args: Any) -> AsyncGenerator[Any]:
        found = [block async for block in original(self, *args)]
        for block in found[:-1]:
            yield block

    return mock.patch.object(CopiedState, "_taken_over", taken_over)


@planted("scaling", 20)
def the_tail_after_the_copy_is_not_read() -> Planted:
    async def nothing(*_: Any, **__: Any) -> AsyncGenerator[Any]:
        for block in ():
            yield block

    return mock.patch.object(layout_change, "blocks_between", nothing)


@planted("scaling", 20)
def sources_begin_anew() -> Planted:
    return mock.patch.object(layout_change, "dealt_sources", return_value={})


@planted("scaling", 20)
def splits_are_dealt_to_the_former_number() -> Planted:
    original = layout_change.dealt_sources

    def dealt(plan: Any, of_workers: Any, share: Share) -> Any:
        return original(plan, of_workers, replace(share, workers=len(of_workers)))

    return mock.patch.object(layout_change, "dealt_sources", dealt)


@planted("scaling", 20)
def output_of_former_workers_is_forgotten() -> Planted:
    return mock.patch.object(checkpoints, "_retired", return_value={})


@planted("scaling", 20)
def chains_are_released_before_they_are_taken_over() -> Planted:
    def floors(kept: Any, worker: int) -> Any:
        found = floors_of(kept, worker)
        return {**found, "state": (kept[-1].incarnation + 1, 0)} if kept else found

    return mock.patch.object(region_run, "floors_of", floors)


@planted("scaling", 20)
def the_former_layout_is_stored() -> Planted:
    original = PendingCheckpoint.build

    def build(self: PendingCheckpoint, parent: Any, layout: Any, *args: Any, **fields: Any) -> Any:
        return original(self, parent, layout if parent is None else parent.layout, *args, **fields)

    return mock.patch.object(PendingCheckpoint, "build", build)


def without_savepoints(kept: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    return [
        checkpoint for checkpoint in kept if checkpoint.number not in kept[-1].savepoints.values()
    ] or kept


@planted("scaling", 20)
def floors_ignore_savepoints() -> Planted:
    def floors(kept: Sequence[Checkpoint], worker: int) -> Any:
        return floors_of(without_savepoints(kept), worker)

    return mock.patch.multiple(checkpoints, floors_of=floors)


@planted("scaling", 20)
def savepoints_are_dropped_by_another_layout() -> Planted:
    original = PendingCheckpoint.build

    def build(self: PendingCheckpoint, parent: Any, layout: Any, *args: Any, **fields: Any) -> Any:
        checkpoint = original(self, parent, layout, *args, **fields)
        return (
            checkpoint if parent is None or parent.layout == layout else replaced(checkpoint, savepoints={})
        )

    return mock.patch.object(PendingCheckpoint, "build", build)


@planted("scaling", 20)
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


@planted("editing", 45)
def it_counts_for_the_checkpoint_that_was_edited() -> Planted:
    """A restore to it is a restore to that checkpoint."""
    return mock.patch.object(
        Checkpoint, "voted_as", property(lambda self: self.rolled_back_to or self.number)
    )


@planted("editing", 25)
def its_state_is_that_of_the_edited_checkpoint() -> Planted:
    return edit_with(workers=lambda _, target: target.workers)()


# --- backups ----------------------------------------------------------------------------------------------


@planted("backups", 20)
def only_sealed_segments_are_copied() -> Planted:
    original = backup.inspect_chain_at

    async def sealed(*args: Any, **more: Any) -> ChainState:
        state = await original(*args, **more)
        return replaced(state, segments=state.segments[:-1])

    return mock.patch.object(backup, "inspect_chain_at", sealed)


@planted("backups", 35)
def the_pieces_of_older_backups_are_deleted() -> Planted:
    original = rules.unneeded_pieces

    def unneeded(listed: Any, record: BackupRecord, retained: Any) -> list[str]:
        del retained
        return original(listed, replaced(record, retained=(record.number,)), [record])

    return mock.patch.object(backup, "unneeded_pieces", unneeded)


@planted("backups", 20)
def only_the_newest_segment_is_copied() -> Planted:
    """The floor of a chain is where its newest segment begins, whatever a replay needs."""
    original = backup.needed_chains

    def needed(checkpoint: Checkpoint, region: str) -> list[rules.NeededChain]:
        return [one._replace(floor=one.at.size) for one in original(checkpoint, region)]

    return mock.patch.object(backup, "needed_chains", needed)


# --- standing by ------------------------------------------------------------------------------------------


@planted("standing_by", 20)
def what_was_committed_after_a_stand_by_has_loaded_is_not_restored() -> Planted:
    async def none(*_: Any) -> list[Any]:
        return []

    return mock.patch.object(layout_change, "blocks_since", none)


# --- replacing --------------------------------------------------------------------------------------------


@planted("replacing", 25)
def the_pause_of_a_switch_is_not_lifted() -> Planted:
    original = Checkpoints.order_pause

    def order(self: Checkpoints, *, on: bool) -> None:
        if on:
            original(self, on=on)

    return mock.patch.object(Checkpoints, "order_pause", order)


@planted("replacing", 20)
def a_successor_gets_the_number_of_an_attempt_that_runs() -> Planted:
    """A launcher and a coordinator know attempts by their numbers."""
    original = Roster.launch

    def launch(self: Roster, worker: Worker, *args: Any) -> int:
        with mock.patch.dict(self._attempts, {worker.index: worker.attempt}):
            return original(self, worker, *args)

    return mock.patch.object(Roster, "launch", launch)


# --- damaged checkpoints ----------------------------------------------------------------------------------


def found(life: Life, seed: int) -> str:
    """Return the violation or the crash of a run, or ""."""
    try:
        return run(life, seed).violation
    except Exception as error:  # a bug may break anything
        return f"crash: {type(error).__name__}: {error}"


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.life}-{bug.plant.__name__}")
def test_a_planted_bug_is_found(bug: Bug) -> None:
    with bug.plant():
        assert any(found(LIVES[bug.life], seed) for seed in (bug.seed, *SEEDS))
