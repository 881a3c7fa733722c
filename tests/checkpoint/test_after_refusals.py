"""A request of a region is refused, given up or fails once. Then time runs past every time-out, and the next
good request is carried out.
"""

from collections.abc import Callable
from typing import Any

import pytest

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointWanted,
    LinkDown,
    NotifyObservers,
    PauseWanted,
    ReplaceWanted,
    ResetWanted,
    RestoreWanted,
    SavepointWanted,
    ScaleWanted,
    WorkerEnded,
)
from checkpoint.core.links.messages import CopiedAhead, CopyAhead, Counters, Paused, Restored
from checkpoint.core.region import RegionState, ReplaceSettled, RestoreSettled, SavepointSettled, ScaleSettled
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.test_replacing_workers import successor, switch
from tests.checkpoint.test_rescaling_region import commit, copied, paused, reopened
from tests.support.census import census

Region = CoordinatorHarness


def outcomes(region: Region, kind: type) -> list[Any]:
    return [one.event for one in region.take(NotifyObservers) if isinstance(one.event, kind)]


def restarted(region: Region, step: int = 5) -> None:
    """The manifest is opened again, and all workers start from its last checkpoint."""
    reopened(region)
    for worker in list(region.core.run.roster):
        if worker.link is None:
            region.join(worker.index, attempt=worker.attempt)
    for worker in list(region.core.run.roster):
        region.receive(worker.index, Restored, last_step=step)
    assert region.state is RegionState.RUNNING


def step(region: Region) -> int:
    return region.core.run.last_step + 3


def scaled(region: Region) -> None:
    region.play(ScaleWanted(3))
    region.join(2, attempt=region.core.run.roster[2].attempt)
    copied(region, 3)
    last, at = region.core.run.last_number, step(region)
    paused(region, 2, checkpoint=last + 1, step=at)
    reopened(region)
    for worker in range(3):
        region.receive(worker, Restored, last_step=at)
    region.take()
    commit(region, 3, checkpoint=last + 2, step=at)
    (outcome,) = outcomes(region, ScaleSettled)
    assert (outcome.workers, outcome.error) == (3, "")


def replaced(region: Region) -> None:
    region.take()
    region.play(ReplaceWanted((1,)))
    attempt = region.core.run.roster.coming[0].attempt
    switch(region, 1, successor(region, 1, attempt), region.core.run.last_number + 1, step(region))
    (outcome,) = outcomes(region, ReplaceSettled)
    assert (outcome.replaced, outcome.error) == ((1,), "")


def restored(region: Region) -> None:
    region.take()
    region.play(RestoreWanted("checkpoint:1"))
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))
    (outcome,) = outcomes(region, RestoreSettled)
    assert (outcome.checkpoint, outcome.error) == (1, "")


def saved(region: Region) -> None:
    region.take()
    region.play(SavepointWanted("good"))
    commit(region, 2, region.core.run.last_number + 1, step(region))
    (outcome,) = outcomes(region, SavepointSettled)
    assert (outcome.name, outcome.error) == ("good", "")


def checkpointed(region: Region) -> None:
    before = region.core.run.last_number
    region.commit(before + 1, step(region))
    assert region.core.run.last_number == before + 1


def stands_still(region: Region) -> None:
    region.play(PauseWanted(on=True))
    for worker in range(2):
        region.receive(worker, Paused, pause=region.core.checkpoints.pause, step=5, counters=Counters(step=5))
    assert region.state is RegionState.PAUSED


def a_cancelled_scale(region: Region) -> None:
    region.play(ScaleWanted(3), ScaleWanted(None))


def a_scale_whose_worker_is_lost_while_it_copies(region: Region) -> None:
    region.play(ScaleWanted(3))
    attempt = region.core.run.roster[2].attempt
    region.join(2, attempt=attempt)
    region.play(LinkDown(region.links[2], "gone"), WorkerEnded(2, attempt, "killed"))


def a_scale_that_cannot_copy(region: Region) -> None:
    region.play(ScaleWanted(3))
    region.join(2, attempt=region.core.run.roster[2].attempt)
    fields = {"copied_bytes": 0, "total_bytes": 0, "error": "s1 is down"}
    region.receive(2, CopiedAhead, incarnation=0, epoch=0, **fields)


def a_scale_that_a_reset_ends(region: Region) -> None:
    region.play(ScaleWanted(3), ResetWanted())
    restarted(region)


def a_scale_that_is_impossible(region: Region) -> None:
    region.play(ScaleWanted(0))


def a_successor_that_is_lost(region: Region) -> None:
    region.play(ReplaceWanted((1,)))
    region.play(WorkerEnded(1, region.core.run.roster.coming[0].attempt, "no slot"))


def a_replacement_of_a_worker_that_is_not_there(region: Region) -> None:
    region.play(ReplaceWanted((7,)))


def a_restore_to_nothing(region: Region) -> None:
    region.play(RestoreWanted("savepoint:none"))


def a_restore_whose_record_a_reset_prevents(region: Region) -> None:
    region.play(RestoreWanted("checkpoint:1"), ResetWanted())
    restarted(region)


def a_savepoint_of_nothing(region: Region) -> None:
    region.play(SavepointWanted("good", 77))


def a_checkpoint_that_nobody_votes_for(region: Region) -> None:
    """The request outlives the reset."""
    region.play(CheckpointWanted(), LinkDown(region.links[1], "gone"), WorkerEnded(1, 1, "killed"))
    restarted(region)
    region.play(CheckpointWanted())
    commit(region, 2, checkpoint=2, step=5)


def a_pause_that_is_taken_back(region: Region) -> None:
    region.play(PauseWanted(on=True), PauseWanted(on=False))


FAILED: list[Callable[[Region], None]] = [
    a_cancelled_scale,
    a_scale_whose_worker_is_lost_while_it_copies,
    a_scale_that_cannot_copy,
    a_scale_that_a_reset_ends,
    a_scale_that_is_impossible,
    a_successor_that_is_lost,
    a_replacement_of_a_worker_that_is_not_there,
    a_restore_to_nothing,
    a_restore_whose_record_a_reset_prevents,
    a_savepoint_of_nothing,
    a_checkpoint_that_nobody_votes_for,
    a_pause_that_is_taken_back,
]
GOOD: list[Callable[[Region], None]] = [scaled, replaced, restored, saved, checkpointed, stands_still]


@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.__name__)
@pytest.mark.parametrize("failed", FAILED, ids=lambda failed: failed.__name__)
def test_after_a_request_that_failed_no_timer_acts_and_the_next_good_one_is_carried_out(
    failed: Callable[[Region], None], good: Callable[[Region], None]
) -> None:
    region = CoordinatorHarness(2).run()
    region.commit(1, step=5)
    failed(region)
    incarnation = region.core.run.incarnation
    spec = region.spec
    region.tick(2 + max(spec.start_timeout_s, spec.drain_timeout_s, spec.reset_timeout_s))
    assert region.state is RegionState.RUNNING
    assert region.core.run.incarnation == incarnation
    assert len(region.core.run.roster) == 2
    region.take()
    good(region)


def test_a_worker_that_joins_creates_its_journals_once_in_an_incarnation() -> None:
    """The attempt before may still hold the claim of its directory, and one epoch has one writer."""
    region = CoordinatorHarness().run()
    region.commit(1, step=5)

    def creates() -> list[tuple[int, bool]]:
        region.take()
        region.play(ScaleWanted(3))
        region.join(2, attempt=region.core.run.roster[2].attempt)
        orders = [order for _, order in region.sent(CopyAhead)]
        region.play(ScaleWanted(None))
        return [(order.worker, order.creates) for order in orders if order.worker == 2]

    assert [creates(), creates()] == [[(2, True)], [(2, False)]]
    region.play(ResetWanted())
    restarted(region)
    assert creates() == [(2, True)]


def a_scale_to_too_many(region: Region) -> None:
    region.play(ScaleWanted(100_000))


def a_cancellation_of_nothing(region: Region) -> None:
    region.play(ScaleWanted(None))


def an_end_of_no_pause(region: Region) -> None:
    region.play(PauseWanted(on=False))


REFUSED: list[Callable[[Region], None]] = [
    a_scale_that_is_impossible,
    a_scale_to_too_many,
    a_cancellation_of_nothing,
    a_replacement_of_a_worker_that_is_not_there,
    a_restore_to_nothing,
    a_savepoint_of_nothing,
    an_end_of_no_pause,
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.__name__)
def test_a_request_that_is_refused_records_nothing_sends_nothing_and_keeps_nothing(
    refused: Callable[[Region], None],
) -> None:
    region = CoordinatorHarness(2).run()
    region.commit(1, step=5)
    region.take()
    before = census([region.core])
    refused(region)
    effects = region.take()
    assert {type(effect) for effect in effects} <= {NotifyObservers}
    assert len(effects) <= 1, "one outcome, if it has one"
    assert census([region.core]) == before
