"""Regions that live through more than losses, in many simulated runs in which everything fails: they go back,
are forked, trimmed, damaged, get other workers or processes, or recover locally.

`tests/shells/test_region_lives.py` has these and more with real shells. Here are the bugs that few runs show.

A life is a set of traits of the runs' regions. No run may violate a promise, what the life is about must be
seen, and each of its planted bugs must be found.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest import mock

import pytest
from msgspec.structs import replace as replaced

from checkpoint import limits
from checkpoint.chains import whole_checkpoints
from checkpoint.chains.manifest_log import retained_checkpoints
from checkpoint.core.coordination import checkpoints
from checkpoint.core.coordination.checkpoints import Checkpoints, PendingCheckpoint
from checkpoint.core.coordination.coordinator import Coordinator, ManifestClaim
from checkpoint.core.coordination.rounds import Gathering, TakeOvers
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.coordination.vocabulary import CheckpointAppended, ManifestOpened
from checkpoint.core.links.barrier import Alignment
from checkpoint.core.links.frames import FrameType
from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.divisions import Division
from checkpoint.core.records.lines import needs_original
from checkpoint.core.records.manifest import Checkpoint, Examination
from dataflow.core.peer_links import Held, PeerLinks, Records, Sent
from dataflow.worker.circuit import Circuit
from dataflow.worker.circuit_thread import CircuitIncarnation, StepInput
from dataflow.worker.journals import Journals
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.planted_records import Planted, fork_with, restore_with, some_traits
from tests.sim.regions import region as region_module
from tests.sim.regions import users
from tests.sim.regions.links import ResumedLinks
from tests.sim.regions.region import Region, has_region
from tests.sim.result import Result
from tests.sim.run import run_seed

SEEDS: Final = [seed for seed in range(1, 1_200) if has_region(RandomStreams(seed))]
"""Seeds whose runs have a region."""


class Life(NamedTuple):
    """`traits`: attributes of `Region` in the run of a seed. `seeds`: runs without a planted bug; each
    event of `above` is seen in them more often than that. `hunted`: the runs
    for planted bugs that name no seeds. `sound`: seeds that a bug names are also run without it.
    """

    traits: Callable[[int], dict[str, bool | float]]
    seeds: Sequence[int]
    above: Mapping[str, float]
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
        lambda seed: {"forks": True, **some_traits(seed)},
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
            "state is kept": 20 / 4,
            "a savepoint is settled": 20,
        },
    ),
    "replacing": Life(
        lambda _: {"replaces": True},
        SEEDS[:25],
        {"workers are replaced": 25 / 8, "a region was handed over": 25 / 8, "a region is lent": 25 / 8},
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
    "standing_by": Life(
        lambda seed: {"stands_by": True, "recovers_locally": seed % 2 == 0},
        SEEDS[:20],
        {"a stand-by takes the place of its worker": 20 / 5, "a worker is taken over": 20 / 10},
        hunted=SEEDS[:20],
        sound=True,
    ),
    "input_trimming": Life(lambda _: {"trims": True}, SEEDS[:8], {"trimmed": 10 * 8}, hunted=SEEDS[:8]),
    # regions of which most fall back
    "damaged_checkpoints": Life(
        lambda _: {"is_spoiled": True}, [1, 15, 56, 68, 127], {"a region fell back": 1}, sound=True
    ),
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


@planted("restoring")
def what_came_after_is_released() -> Planted:
    def retained(record: Checkpoint, kept: Sequence[Checkpoint], target: Checkpoint) -> tuple[int, ...]:
        return (
            *(checkpoint.number for checkpoint in kept if checkpoint.number <= target.number),
            record.number,
        )

    return restore_with(retained=retained)()


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


@planted("forking", [239])
def the_savepoint_is_dropped_as_soon_as_the_fork_exists() -> Planted:
    async def needs(store: Any, region: str, savepoint: str, note: Any) -> bool | None:
        kept = await retained_checkpoints(store, note.fork)
        return False if needs_original(kept, region, savepoint) is not None else None

    return mock.patch.object(users, "fork_needs", needs)


@planted("forking", [381])
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
        users,
        workers=lambda record, _: {
            worker: replaced(part, sources={}) for worker, part in record.workers.items()
        },
    )()


# --- scaling ----------------------------------------------------------------------------------------------


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


# --- replacing --------------------------------------------------------------------------------------------


@planted("replacing", [239])
def the_checkpoint_seen_before_the_claim_is_restored() -> Planted:
    """The other driver has committed further ones by the time it is fenced off."""
    original, seen = ManifestClaim.on_manifest_opened, {}
    may = ManifestClaim.may_begin

    def note(self: ManifestClaim, event: Any, now: float) -> bool:
        seen[id(self)] = event.seen
        return may(self, event, now)

    def opened(self: ManifestClaim, event: ManifestOpened, now: float) -> None:
        first = seen.pop(id(self), None)
        original(self, event if first is None else replace(event, last_checkpoint=first), now)

    return mock.patch.multiple(ManifestClaim, may_begin=note, on_manifest_opened=opened)


# --- local recovery ---------------------------------------------------------------------------------------


@planted("local_recovery", [4335])
def a_step_runs_before_its_divisions_are_durable() -> Planted:
    return mock.patch.object(CircuitIncarnation, "_waits_for_durable", return_value=False)


@planted("local_recovery")
def a_step_runs_before_the_state_is_restored() -> Planted:
    original = CircuitIncarnation._is_complete

    def is_complete(self: CircuitIncarnation, channel: int, step: int) -> bool:
        with mock.patch.object(self, "_is_loaded", new=True):
            return original(self, channel, step)

    return mock.patch.object(CircuitIncarnation, "_is_complete", is_complete)


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


@planted("local_recovery", [99])
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
