"""Pausing a region, as its coordinator and its participants see it."""

import pytest

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointWanted,
    MessageRefused,
    PauseWanted,
    ResetWanted,
    StopWanted,
)
from checkpoint.core.links.messages import Counters, Pause, Paused, RequestCheckpoint, Restored
from checkpoint.core.region import RegionState
from checkpoint.core.requests import CommandRegion, QueueRead
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.request_harness import HandlerHarness, in_state


def committed(region: CoordinatorHarness, checkpoint: int, step: int) -> None:
    for worker in range(region.spec.workers):
        region.vote(worker, checkpoint, step)
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))


def paused(region: CoordinatorHarness) -> CoordinatorHarness:
    """Both workers stand at step 4, and checkpoint 1 is of step 5."""
    region.play(PauseWanted(on=True))
    region.receive_from_all(Paused, pause=region.core.checkpoints.pause, step=4, counters=Counters(step=4))
    committed(region, 1, step=5)
    assert region.state is RegionState.PAUSED
    region.take()
    return region


def test_all_are_notified_and_when_all_stand_a_checkpoint_is_asked_for_and_then_it_is_paused() -> None:
    region = CoordinatorHarness().run()
    region.play(PauseWanted(on=True))
    assert [order.pause for _, order in region.sent(Pause)] == [1, 1]
    region.receive(0, Paused, pause=1, step=4, counters=Counters(step=4))
    assert region.sent(RequestCheckpoint) == []
    region.receive(1, Paused, pause=1, step=3, counters=Counters(step=3))
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]
    assert region.state is RegionState.RUNNING
    committed(region, 1, step=5)
    assert region.state is RegionState.PAUSED
    assert region.sent(RequestCheckpoint) == []


def append_first_checkpoint(region):
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))


def assert_second_checkpoint_pauses(region, step):
    """Checkpoint 2 was requested of both workers; the region is paused when it is committed."""
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [2, 2]
    committed(region, 2, step=step)
    assert region.state is RegionState.PAUSED


def test_where_a_checkpoint_came_before_a_step_that_was_made_another_one_follows() -> None:
    """Worker 1 was behind, and flagged its step 3; worker 0 had ended step 4 by then."""
    region = CoordinatorHarness().run()
    region.play(PauseWanted(on=True))
    region.receive(0, Paused, pause=1, step=4, counters=Counters(step=4))
    region.receive(1, Paused, pause=1, step=2, counters=Counters(step=2))
    region.take()
    for worker in (0, 1):
        region.vote(worker, 1, step=3)
    append_first_checkpoint(region)
    assert region.state is RegionState.RUNNING, "what is of step 4 is in no checkpoint"
    assert_second_checkpoint_pauses(region, step=5)


def test_where_a_worker_flagged_one_step_more_than_the_checkpoint_is_of_another_one_follows() -> None:
    """The request for checkpoint 1 met worker 1 after step 4, which worker 0 had flagged: it began step 5
    for it.
    """
    region = CoordinatorHarness().run()
    region.play(PauseWanted(on=True))
    region.receive_from_all(Paused, pause=1, step=4, counters=Counters(step=4))
    region.take()
    region.vote(0, 1, step=4)
    region.vote(1, 1, step=4, produced=5)
    append_first_checkpoint(region)
    assert region.state is RegionState.RUNNING, "not all stand at the checkpoint's step"
    assert_second_checkpoint_pauses(region, step=6)


def test_a_region_that_has_taken_nothing_since_its_last_checkpoint_is_paused_without_another() -> None:
    region = CoordinatorHarness().run()
    region.play(PauseWanted(on=True))
    region.receive_from_all(Paused, pause=1, step=0, counters=Counters(step=0))
    assert region.state is RegionState.PAUSED
    assert region.sent(RequestCheckpoint) == []


def test_time_makes_no_checkpoints_while_it_is_paused_and_one_that_is_asked_for_changes_nothing() -> None:
    region = paused(CoordinatorHarness().run())
    region.tick(30)
    assert region.sent(RequestCheckpoint) == []
    region.play(CheckpointWanted())
    assert region.state is RegionState.PAUSED
    committed(region, 2, step=6)
    assert region.state is RegionState.PAUSED


def test_it_continues_when_it_is_told_to_and_an_answer_to_the_order_before_counts_for_nothing() -> None:
    region = paused(CoordinatorHarness().run())
    region.play(PauseWanted(on=False))
    assert [order.pause for _, order in region.sent(Pause)] == [0, 0]
    assert region.state is RegionState.RUNNING
    region.play(PauseWanted(on=True))
    assert [order.pause for _, order in region.sent(Pause)] == [2, 2]
    region.receive_from_all(Paused, pause=1, step=9, counters=Counters(step=9))
    assert len(region.take(MessageRefused)) == 2
    assert region.state is RegionState.RUNNING


def test_a_wish_that_is_in_force_changes_nothing() -> None:
    region = CoordinatorHarness().run()
    region.play(PauseWanted(on=False))
    assert region.sent(Pause) == []
    paused(region).play(PauseWanted(on=True))
    assert region.sent(Pause) == []
    assert region.state is RegionState.PAUSED


def test_after_a_reset_workers_are_notified_again_behind_their_start() -> None:
    region = paused(CoordinatorHarness().run())
    region.play(ResetWanted())
    assert region.state is RegionState.RESTORING
    region.opened(checkpoint=region.core.run.last_checkpoint)
    region.receive_from_all(Restored, last_step=5)
    commands = [type(message).__name__ for link, message in region.sent(object) if link == region.links[0]]
    assert commands[-2:] == ["Start", "Pause"]
    assert region.state is RegionState.RUNNING
    region.receive_from_all(Paused, pause=1, step=5, counters=Counters(step=5))
    assert region.state is RegionState.PAUSED


def test_a_wish_that_comes_before_it_runs_is_told_with_the_start() -> None:
    region = CoordinatorHarness()
    region.play(PauseWanted(on=True))
    assert region.sent(Pause) == []
    region.run_to_start()
    assert [order.pause for _, order in region.sent(Pause)] == [1, 1]


def test_a_paused_region_stops_without_another_checkpoint() -> None:
    region = paused(CoordinatorHarness().run())
    region.play(StopWanted())
    assert region.sent(RequestCheckpoint) == []
    assert region.core.run.reason == "stopped"


# --- requested through the store ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "on", "before", "after"),
    [
        ("pause", True, RegionState.RUNNING, RegionState.PAUSED),
        ("resume", False, RegionState.PAUSED, RegionState.RUNNING),
    ],
)
def test_a_request_is_done_when_the_region_is_seen_to_be_as_wished(what, on, before, after) -> None:
    handler = HandlerHarness()
    handler.status = in_state(before)
    handler.request(1, what)
    assert handler.commands() == [PauseWanted(on=on)]
    assert handler.handle(QueueRead()) == []
    handler.status = in_state(after)
    (answer,) = handler.handle(QueueRead())
    assert (answer.verdict, answer.result["state"]) == ("done", after.value)


def test_a_checkpoint_can_be_asked_for_while_it_is_paused() -> None:
    handler = HandlerHarness()
    handler.status = in_state(RegionState.PAUSED)
    handler.request(1, "checkpoint")
    assert handler.effects[-1] == CommandRegion(CheckpointWanted())
