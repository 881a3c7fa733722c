"""The coordinator ends a region: at the end of its input, or on request."""

import pytest

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CancelWorker,
    CheckpointAppended,
    CheckpointWanted,
    CoordinatorTick,
    End,
    LaunchWorker,
    OpenManifest,
    ScaleWanted,
    SendControl,
    StopWanted,
    WorkerEnded,
)
from checkpoint.core.links.messages import (
    Committed,
    Counters,
    Finished,
    Pause,
    Paused,
    RequestCheckpoint,
    Restore,
    Restored,
    Stop,
)
from checkpoint.core.region import RegionState
from tests.checkpoint.coordinator_harness import CoordinatorHarness


def test_exhausted_sources_lead_to_one_final_checkpoint_and_the_end() -> None:
    region = CoordinatorHarness().run()
    region.progress(0, step=4, exhausted=True)
    assert region.sent(RequestCheckpoint) == []
    region.progress(1, step=4, exhausted=True)
    assert [(order.checkpoint, order.final) for _, order in region.sent(RequestCheckpoint)] == [
        (1, True),
        (1, True),
    ]
    for worker in (0, 1):
        region.vote(worker, 1)
    (append,) = region.take(AppendCheckpoint)
    assert append.checkpoint.final
    region.play(CheckpointAppended(append.checkpoint))
    assert [order.final for _, order in region.sent(Committed)] == [True, True]
    region.receive(0, Finished)
    region.die(0)  # gone early, with all its work done
    assert region.take(OpenManifest) == []
    region.receive(1, Finished)
    assert [message.kind for _, message in region.sent(Stop)] == ["finished"]
    region.play(WorkerEnded(1, 1, None))
    assert [end.state for end in region.take(End)] == [RegionState.FINISHED]
    assert region.core.deadline() is None


def test_a_worker_lost_before_it_published_the_final_checkpoint_is_restored_to_it() -> None:
    region = CoordinatorHarness().run()
    for worker in (0, 1):
        region.progress(worker, step=4, exhausted=True)
    for worker in (0, 1):
        region.vote(worker, 1)
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))
    region.receive(0, Finished)
    region.die(0)
    region.die(1)
    region.opened(append.checkpoint)
    assert region.take(LaunchWorker) == [LaunchWorker(0, 2), LaunchWorker(1, 2)]
    region.join(0, 2)
    region.join(1, 2)
    assert [order.restore.final for _, order in region.sent(Restore)] == [True, True]
    region.receive_from_all(Restored, last_step=5)
    region.take()
    region.receive(0, Finished)  # of this incarnation nothing is committed: it cannot have published
    assert [effect.refusal.name for effect in region.take()] == ["UNEXPECTED"]
    for worker in (0, 1):
        region.progress(worker, step=5, exhausted=True)
    assert [(order.checkpoint, order.final) for _, order in region.sent(RequestCheckpoint)] == [
        (2, True),
        (2, True),
    ]


def test_stop_takes_a_last_checkpoint_if_there_is_anything_to_checkpoint() -> None:
    region = CoordinatorHarness().run()
    region.progress(0, step=4)
    region.play(StopWanted())
    assert region.state is RegionState.STOPPING
    for worker in (0, 1):
        region.receive(worker, Paused, pause=1, step=4, counters=Counters(step=4))
    assert [order.checkpoint for _, order in region.sent(RequestCheckpoint)] == [1, 1]
    for worker in (0, 1):
        region.vote(worker, 1, 4)
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))
    effects = region.take(SendControl)
    assert [type(e.message).__name__ for e in effects] == ["Committed", "Committed", "Stop", "Stop"]
    region.play(WorkerEnded(0, 1, None), WorkerEnded(1, 1, None))
    assert [end.state for end in region.take(End)] == [RegionState.STOPPED]


@pytest.mark.parametrize("change", [None, ScaleWanted(3)])
def test_a_region_stops_after_a_checkpoint_of_its_last_step(
    change: ScaleWanted | None,
) -> None:
    """What heartbeats have not reported yet counts too, and a checkpoint that covers less is not the last."""
    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    region.play(*[change] if change else [], StopWanted())
    assert [order.pause for _, order in region.sent(Pause)] == [1, 1]
    assert region.state is RegionState.STOPPING
    region.receive(0, Paused, pause=1, step=8, counters=Counters(step=8))
    assert region.sent(RequestCheckpoint) == []
    region.receive(1, Paused, pause=1, step=7, counters=Counters(step=7))
    for checkpoint, step in ((2, 7), (3, 9)):
        assert {order.checkpoint for _, order in region.sent(RequestCheckpoint)} == {checkpoint}
        for worker in (0, 1):
            region.vote(worker, checkpoint, step)
        (append,) = region.out[-1:]
        assert region.state is RegionState.STOPPING
        region.out.clear()
        region.play(CheckpointAppended(append.checkpoint))
    assert region.core.run.outcome.state is RegionState.STOPPED
    assert region.core.run.reason == "stopped"


def test_a_region_that_made_no_step_stops_when_it_stands_still_and_never_waits_for_ever() -> None:
    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    region.play(StopWanted())
    for worker in (0, 1):
        region.receive(worker, Paused, pause=1, step=5, counters=Counters(step=5))
    assert region.core.run.outcome.state is RegionState.STOPPED
    region = CoordinatorHarness().run()
    region.play(StopWanted())
    region.tick(31)
    assert region.core.run.reason == "stopped without a last checkpoint: it took too long"


def test_stop_of_a_starting_region_or_one_without_checkpoints_is_immediate() -> None:
    idle = CoordinatorHarness(without_checkpoints=True).run()
    idle.play(StopWanted())
    assert [message.kind for _, message in idle.sent(Stop)] == ["stopped", "stopped"]
    starting = CoordinatorHarness()
    starting.take()
    starting.play(StopWanted())
    assert starting.take(CancelWorker) == [CancelWorker(0, 1), CancelWorker(1, 1)]
    starting.opened()
    assert starting.sent(Restore) == []


def test_stop_does_not_wait_for_ever_neither_for_a_checkpoint_nor_for_workers() -> None:
    region = CoordinatorHarness().run()
    region.progress(0, step=4)
    region.play(StopWanted())
    region.tick(31)
    assert region.core.run.reason == "stopped without a last checkpoint: it took too long"
    region.take()
    region.tick(11)
    assert region.take(CancelWorker) == [CancelWorker(0, 1), CancelWorker(1, 1)]
    region.tick(11)
    assert [end.state for end in region.take(End)] == [RegionState.STOPPED]
    region.play(StopWanted(), CheckpointWanted(), CoordinatorTick(region.now))
    assert region.take() == []
