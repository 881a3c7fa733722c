"""Lost workers are taken over while the others continue, and everything fails."""

from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from checkpoint import limits
from checkpoint.core.coordination.checkpoints import PendingCheckpoint
from checkpoint.core.coordination.rounds import TakeOvers
from checkpoint.core.links.barrier import Alignment
from checkpoint.core.links.frames import FrameType
from checkpoint.core.records.divisions import NO_MARK, Division
from dataflow.core.peer_links import Held, PeerLinks, Records, Sent
from dataflow.worker.circuit_thread import CircuitIncarnation, StepInput
from dataflow.worker.journals import Journals
from tests.sim.region_runs import SEEDS, Planted, seen_in
from tests.sim.regions.region import Region
from tests.sim.regions.resumed_links import ResumedLinks
from tests.sim.run import run_seed

RUNS = 25


@pytest.fixture(autouse=True)
def _recovers_locally() -> Iterator[None]:
    with mock.patch.object(Region, "recovers_locally", new=True):
        yield


def test_rows_survive_the_loss_of_workers_that_are_taken_over() -> None:
    seen = seen_in(run_seed, SEEDS[:RUNS])
    assert seen["a worker is taken over"] > RUNS / 2
    assert seen["an exchange link is opened again"] > RUNS
    assert seen["coordinator: RUNNING to OPENING"] > 0, "a second loss resets the region"


def a_step_runs_before_its_divisions_are_durable() -> Planted:
    return mock.patch.object(CircuitIncarnation, "_waits_for_durable", return_value=False)


def what_was_not_used_is_kept() -> Planted:
    return mock.patch.object(Alignment, "restart", lambda self, sender: self.step - 1)


def steps_are_purged_when_a_checkpoint_is_voted() -> Planted:
    """The worker that takes over begins at the one before."""
    original = ResumedLinks.announce

    def announce(self: ResumedLinks, kind: FrameType, step: int) -> None:
        original(self, kind, step)
        self.purge(step)

    return mock.patch.object(ResumedLinks, "announce", announce)


def marks_are_not_in_the_chain() -> Planted:
    return mock.patch.object(Journals, "_mark_of", return_value=NO_MARK)


def marks_of_former_incarnations_count() -> Planted:
    """A checkpoint that was given up gets its number again."""
    return mock.patch.object(Journals, "_marks", lambda self, divisions: tuple(divisions))


def the_vote_of_a_lost_worker_counts() -> Planted:
    def taken_over(self: PendingCheckpoint, worker: int, term: int) -> None:
        self.terms[worker] = term

    return mock.patch.object(PendingCheckpoint, "taken_over", taken_over)


def an_append_is_not_settled_first() -> Planted:
    """The worker begins at a checkpoint whose successor is committed at that moment."""
    return mock.patch.object(TakeOvers, "_is_settled", return_value=True)


def a_take_over_has_the_term_of_the_incarnation() -> Planted:
    return mock.patch.object(TakeOvers, "_next_term", lambda self: self._run.incarnation)


def steps_that_are_made_again_are_not_retained() -> Planted:
    """A second worker that is taken over needs them too."""
    original = PeerLinks.add

    def add(self: PeerLinks, sent: Sent, records: Records, *, produces: bool) -> None:
        again = self.term % limits.terms_per_incarnation and sent.step <= self.peers_at
        original(self, Sent(sent.step, {}) if again else sent, records, produces=produces)

    return mock.patch.object(PeerLinks, "add", add)


def a_worker_states_one_step_too_many() -> Planted:
    original = CircuitIncarnation.peer_restarts

    def peer_restarts(self: CircuitIncarnation, peer: int) -> Held:
        held = original(self, peer)
        return held._replace(used={channel: step + 1 for channel, step in held.used.items()})

    return mock.patch.object(CircuitIncarnation, "peer_restarts", peer_restarts)


def retained_steps_are_sent_without_a_limit() -> Planted:
    return mock.patch("dataflow.core.peer_links.steps_ahead", 1_000_000)


def a_step_is_made_again_with_other_rows() -> Planted:
    original = StepInput.replay

    def replay(self: StepInput, step: int, recorded: Division, *, dropped: bool = False) -> None:
        original(self, step, recorded, dropped=step % 3 == 0)

    return mock.patch.object(StepInput, "replay", replay)


BUGS = [
    a_step_runs_before_its_divisions_are_durable,
    what_was_not_used_is_kept,
    steps_are_purged_when_a_checkpoint_is_voted,
    marks_are_not_in_the_chain,
    marks_of_former_incarnations_count,
    the_vote_of_a_lost_worker_counts,
    an_append_is_not_settled_first,
    a_take_over_has_the_term_of_the_incarnation,
    steps_that_are_made_again_are_not_retained,
    a_worker_states_one_step_too_many,
    retained_steps_are_sent_without_a_limit,
    a_step_is_made_again_with_other_rows,
]


RARE = {
    "a_step_runs_before_its_divisions_are_durable": [4335],
    "an_append_is_not_settled_first": [1251],
    "marks_are_not_in_the_chain": [1112],
    "marks_of_former_incarnations_count": [244],
}
"""Bugs that few runs find -> the seeds of such runs."""


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bugs_are_found(bug: Callable[[], Planted]) -> None:
    seeds = RARE.get(bug.__name__, SEEDS[:RUNS])
    assert not any(run_seed(seed).violation for seed in seeds if bug.__name__ in RARE), "without the bug"
    with bug():
        assert any(run_seed(seed).violation for seed in seeds), "found in none of the runs"
