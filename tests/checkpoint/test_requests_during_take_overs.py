"""What a region does about requests and timers while one of its workers is taken over."""

import pytest

from checkpoint.core.coordination.vocabulary import (
    CheckpointWanted,
    LaunchWorker,
    NotifyObservers,
    OpenManifest,
    PauseWanted,
    ReplaceWanted,
    ResetWanted,
    ScaleWanted,
    StopWanted,
    WorkerEnded,
)
from checkpoint.core.links.messages import Counters, Pause, Paused, Restore, Start, Stop
from checkpoint.core.region import RegionState, ReplaceSettled, ScaleSettled
from tests.checkpoint.test_taking_over import (
    FIRST,
    appended,
    joins,
    reset_of_all,
    restored,
    running,
    voted,
)


def test_the_drain_clock_stands_still_until_the_worker_is_back() -> None:
    region = running(drain_timeout_s=30.0)
    region.play(CheckpointWanted())
    for worker in (0, 2):
        voted(region, worker, FIRST, checkpoint=2, step=9)
    region.tick(20)
    region.die(1)
    region.tick(20)
    joins(region, 1)
    region.tick(20)
    restored(region)
    region.tick(29)
    assert region.take(OpenManifest) == []
    assert region.state is RegionState.RUNNING
    region.tick(2)
    report = reset_of_all(region)
    assert report.reason.startswith("worker 1 was lost: no vote for checkpoint 2 within drain_timeout 30 s")


def test_the_drain_clock_of_a_checkpoint_that_is_requested_meanwhile_begins_with_the_worker() -> None:
    """No step can end without it, so nobody could vote."""
    region = running(drain_timeout_s=30.0)
    region.die(1)
    region.play(CheckpointWanted())
    region.tick(40)
    assert region.take(OpenManifest) == []
    joins(region, 1)
    restored(region)
    region.tick(29)
    assert region.take(OpenManifest) == []
    region.tick(2)
    assert "no vote for checkpoint 2 within drain_timeout 30 s" in reset_of_all(region).reason


def test_a_pause_in_force_is_sent_to_the_new_process() -> None:
    region = running()
    region.play(PauseWanted(on=True))
    region.receive_from_all(Paused, pause=1, step=5, counters=Counters(step=5))
    assert region.state is RegionState.PAUSED
    region.die(1)
    assert region.state is RegionState.RUNNING, "it is not known whether the new process stands still"
    region.take()
    joins(region, 1)
    restored(region)
    orders = [(link, type(order)) for link, order in region.sent(Start, Pause)]
    assert orders == [(region.links[1], Start), (region.links[1], Pause)]
    region.receive(1, Paused, epoch=FIRST + 1, pause=1, step=5, counters=Counters(step=5))
    assert region.state is RegionState.PAUSED


@pytest.mark.parametrize(("orders", "expected"), [((True,), [1]), ((True, False), [])])
def test_the_new_process_gets_the_pause_order_that_is_in_force_when_it_starts(
    orders: tuple[bool, ...], expected: list[int]
) -> None:
    region = running()
    region.die(1)
    joins(region, 1)
    for on in orders:
        region.play(PauseWanted(on=on))
    region.take()
    restored(region)
    assert [order.pause for _, order in region.sent(Pause)] == expected


def test_a_stop_waits_for_the_new_process_and_its_vote() -> None:
    region = running()
    region.progress(0, step=8)
    region.die(1)
    region.take()
    region.play(StopWanted())
    assert region.state is RegionState.STOPPING
    joins(region, 1)
    restored(region)
    for worker, term in ((0, FIRST), (1, FIRST + 1), (2, FIRST)):
        region.receive(worker, Paused, epoch=term, pause=1, step=9, counters=Counters(step=9))
    for worker, term in ((0, FIRST), (1, FIRST + 1), (2, FIRST)):
        voted(region, worker, term, checkpoint=2, step=9)
    assert appended(region).number == 2
    assert [order.kind for _, order in region.sent(Stop)] == ["stopped"] * 3
    assert region.core.status().reason == "stopped"


def test_a_stop_during_a_take_over_that_takes_too_long_ends_without_the_last_checkpoint() -> None:
    region = running(reset_timeout_s=10.0)
    region.progress(0, step=8)
    region.die(1)
    region.play(StopWanted())
    region.tick(20)
    assert region.state is RegionState.STOPPING
    region.tick(11)
    region.play(*(WorkerEnded(worker, 1, None) for worker in (0, 2)), WorkerEnded(1, 2, None))
    assert region.state is RegionState.STOPPED
    assert "without a last checkpoint" in region.core.status().reason


def test_the_workers_cannot_be_changed_during_a_take_over() -> None:
    region = running()
    region.die(1)
    region.take()
    region.play(ScaleWanted(4), ReplaceWanted((0,)))
    effects = region.take()
    events = [one.event for one in effects if isinstance(one, NotifyObservers)]
    errors = [one.error for one in events if isinstance(one, ScaleSettled | ReplaceSettled)]
    assert errors == ["a worker is being taken over: try again when it runs"] * 2
    assert not [one for one in effects if isinstance(one, LaunchWorker)]
    joins(region, 1)
    restored(region)
    region.play(ScaleWanted(4))
    assert LaunchWorker(3, 1) in region.take()


def test_a_reset_by_hand_ends_a_take_over() -> None:
    region = running()
    region.die(1)
    joins(region, 1)
    region.take()
    region.play(ResetWanted())
    assert reset_of_all(region).reason == "a reset was requested"
    region.die(2)
    joins(region, 2)
    assert [order.epoch for _, order in region.sent(Restore)] == [2 * FIRST + 1], "terms begin again"
