"""Other processes for the workers of a running region, as the coordinator decides it."""

from typing import Any

import pytest

from checkpoint.core.coordination.vocabulary import (
    CancelWorker,
    LaunchWorker,
    LinkDown,
    ManifestOpened,
    NotifyObservers,
    OpenManifest,
    PauseWanted,
    ReplaceWanted,
    ResetWanted,
    ScaleWanted,
    WorkerEnded,
)
from checkpoint.core.links.messages import CopyAhead, Counters, Pause, Paused, Restore, Restored, Start, Stop
from checkpoint.core.records.lines import restored
from checkpoint.core.region import RegionState, ReplaceSettled, ScaleSettled
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.test_rescaling_region import paused, reopened


def settled(region: CoordinatorHarness, kind: type = ReplaceSettled) -> list[Any]:
    return [one.event for one in region.take(NotifyObservers) if isinstance(one.event, kind)]


def asked(*workers: int) -> CoordinatorHarness:
    """Two workers run, and another process is requested for some; none: for both."""
    region = CoordinatorHarness(2).run()
    region.commit(1, step=5)
    region.take()
    region.play(ReplaceWanted(workers))
    return region


def successor(region: CoordinatorHarness, worker: int, attempt: int = 2, **fields: Any) -> int:
    """The successor of a worker joins. Return its link; the predecessor keeps its own until the switch."""
    links = dict(region.links)
    region.join(worker, attempt=attempt, **fields)
    joined, region.links = region.links[worker], links
    return joined


def switch(region: CoordinatorHarness, worker: int, link: int, checkpoint: int, step: int) -> None:
    """The region stands still and is opened again; the successor restores and starts with the others."""
    paused(region, 2, checkpoint=checkpoint, step=step)
    assert region.take(OpenManifest)
    reopened(region)
    region.links[worker] = link
    region.receive_from_all(Restored, last_step=step)


def test_the_successor_joins_then_all_restore_and_it_takes_the_place_of_its_predecessor() -> None:
    region = asked(1)
    predecessor = region.links[1]
    assert region.take(LaunchWorker) == [LaunchWorker(1, 2, beside=True)]
    assert region.core.status().scaling.replaces == 1
    link = successor(region, 1, host="other")
    sent = [order for _, order in region.sent(CopyAhead, Pause)]
    assert {type(order) for order in sent} == {Pause}, "nothing is copied: its journals have its state"
    paused(region, 2, checkpoint=2, step=8)
    assert region.core.status().scaling.phase == "moving state"
    reopened(region)
    orders = region.take()
    assert [one.link for one in orders if isinstance(getattr(one, "message", None), Stop)] == [predecessor]
    restores = [one for one in orders if isinstance(getattr(one, "message", None), Restore)]
    assert [one.link for one in restores] == [region.links[0], link]
    assert {one.message.checkpoint for one in restores} == {2}
    region.links[1] = link
    region.receive_from_all(Restored, last_step=8)
    assert region.state is RegionState.RUNNING
    assert [order for _, order in region.sent(Start, Pause) if isinstance(order, Pause)] == []
    assert region.core.status().workers[1].host == "other"
    assert region.core.status().workers[1].attempt == 2
    assert region.core.status().scaling is None


def test_workers_are_replaced_one_after_the_other_and_the_end_is_reported_once() -> None:
    region = asked()
    switch(region, 0, successor(region, 0), checkpoint=2, step=8)
    found = region.take()
    assert [one for one in found if isinstance(one, LaunchWorker)] == [LaunchWorker(1, 2, beside=True)]
    assert not any(
        isinstance(one, NotifyObservers) and isinstance(one.event, ReplaceSettled) for one in found
    )
    region.play(ReplaceWanted((0,), "another"))
    (refused,) = settled(region)
    assert (refused.error, refused.by) == (
        "worker 1 is being replaced: wait, or cancel that first",
        "another",
    )
    region.now += 2.0
    switch(region, 1, successor(region, 1), checkpoint=3, step=11)
    (done,) = settled(region)
    assert (done.workers, done.replaced, done.error, done.seconds) == ((0, 1), (0, 1), "", 2.0)


def test_the_next_replacement_waits_for_its_successor_also_if_the_one_before_ended_in_a_reset() -> None:
    """The first successor has taken its place, and is lost in the incarnation of the switch."""
    region = asked()
    link = successor(region, 0)
    paused(region, 2, checkpoint=2, step=8)
    reopened(region)
    region.play(LinkDown(link, "gone"), WorkerEnded(0, 2, "killed"))
    reopened(region)
    region.join(0, attempt=3)
    region.receive_from_all(Restored, last_step=8)
    assert region.state is RegionState.RUNNING
    assert settled(region) == [], "worker 1 has no successor yet"
    assert region.core.status().scaling.replaces == 1
    switch(region, 1, successor(region, 1), checkpoint=3, step=11)
    (done,) = settled(region)
    assert (done.replaced, done.error) == ((0, 1), "")


def test_a_replacement_is_not_done_if_the_region_goes_back_before_its_switch() -> None:
    region = asked(1)
    successor(region, 1)
    paused(region, 2, checkpoint=2, step=8)
    last = region.core.run.last_checkpoint
    assert last is not None
    record = restored((last,), last, region.epoch)
    region.epoch += 1
    region.play(ManifestOpened(region.epoch, record, (last, record)))
    (event,) = settled(region)
    assert event.replaced == ()
    assert event.error


def test_a_successor_that_ends_before_the_switch_changes_nothing() -> None:
    """As one does whose version is refused when it connects."""
    region = asked()
    region.play(WorkerEnded(0, 2, "the peer refused the link: it speaks version 9"))
    (event,) = settled(region)
    assert (event.replaced, event.error) == (
        (),
        "worker 0 was lost: the peer refused the link: it speaks version 9",
    )
    assert region.state is RegionState.RUNNING
    assert region.core.status().workers[0].attempt == 1
    assert region.core.status().scaling is None
    checkpoint = region.commit(2, step=9)
    assert checkpoint.incarnation == region.epoch, "the same incarnation continues"


def test_a_worker_that_is_lost_meanwhile_gives_the_replacement_up_and_gets_an_unused_attempt() -> None:
    region = asked(1)
    link = successor(region, 1)
    region.take()
    region.die(1)
    region.opened(region.core.run.last_checkpoint)
    effects = region.take()
    stops = [one.link for one in effects if isinstance(getattr(one, "message", None), Stop)]
    assert stops == [link], "the successor"
    assert [one for one in effects if isinstance(one, LaunchWorker)] == [LaunchWorker(1, 3)]
    events = [one.event for one in effects if isinstance(one, NotifyObservers)]
    (event,) = [one for one in events if isinstance(one, ReplaceSettled)]
    assert event.replaced == ()
    assert "worker 1 was lost" in event.error
    region.play(WorkerEnded(1, 2, None))
    region.join(1, attempt=3)
    assert len(region.sent(Restore)) == 2


def test_a_predecessor_that_does_not_end_is_cancelled_and_its_end_changes_nothing() -> None:
    region = asked(1)
    switch(region, 1, successor(region, 1), checkpoint=2, step=8)
    region.take()
    region.tick(15)
    assert region.take(CancelWorker) == [CancelWorker(1, 1)]
    region.play(WorkerEnded(1, 1, "killed by signal 9"))
    assert region.state is RegionState.RUNNING
    assert region.take(OpenManifest) == []
    region.die(1, attempt=2)
    region.opened(region.core.run.last_checkpoint)
    assert region.take(LaunchWorker) == [LaunchWorker(1, 3)]


def test_a_successor_that_is_lost_during_the_switch_is_launched_again() -> None:
    region = asked(1)
    link = successor(region, 1)
    paused(region, 2, checkpoint=2, step=8)
    region.play(LinkDown(link, "reset by peer"), WorkerEnded(1, 2, "killed by signal 9"))
    reopened(region)
    assert region.take(LaunchWorker)[1:] == [LaunchWorker(1, 3, beside=True)]
    region.join(1, attempt=3)
    region.receive_from_all(Restored, last_step=8)
    assert region.state is RegionState.RUNNING
    (event,) = settled(region)
    assert event.replaced == (1,), "its predecessor is gone, and another process runs"


def test_a_replacement_is_cancelled_as_any_change_of_the_workers() -> None:
    region = asked()
    link = successor(region, 0)
    region.play(ScaleWanted(None))
    events = [one.event for one in region.out if isinstance(one, NotifyObservers)]
    assert ScaleSettled(None, 2, given_up=True) in events
    assert [one.error for one in events if isinstance(one, ReplaceSettled)] == ["it was cancelled"]
    assert [one for one, _ in region.sent(Stop)] == [link]
    region.play(ReplaceWanted((0,)))
    assert region.take(LaunchWorker) == [LaunchWorker(0, 3, beside=True)], "it can begin again"


def test_a_region_that_a_user_has_paused_stays_paused() -> None:
    region = CoordinatorHarness(2).run()
    region.commit(1, step=5)
    region.play(PauseWanted(on=True))
    paused(region, 2, checkpoint=2, step=8)
    region.take()
    region.play(ReplaceWanted((1,)))
    link = successor(region, 1)
    region.tick(1)
    reopened(region)
    region.links[1] = link
    region.receive_from_all(Restored, last_step=8)
    region.receive_from_all(Paused, pause=region.core.checkpoints.pause, step=8, counters=Counters(step=8))
    assert region.state is RegionState.PAUSED
    assert [one.replaced for one in settled(region)] == [(1,)]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (ReplaceWanted((2,)), "the region has 2 workers, and no worker 2"),
        (ReplaceWanted((0, 7)), "the region has 2 workers, and no worker 7"),
    ],
)
def test_a_request_that_is_impossible_changes_nothing(event: ReplaceWanted, why: str) -> None:
    region = CoordinatorHarness(2).run()
    region.play(event)
    assert [(one.error, one.replaced) for one in settled(region)] == [(why, ())]
    region.play(ResetWanted())
    region.play(ReplaceWanted())
    assert [one.error for one in settled(region)] == ["the region does not run now: try again when it does"]
    assert region.take(LaunchWorker) == []


def test_a_successor_that_cannot_exchange_rows_with_the_others_is_refused_by_name() -> None:
    """The driver speaks with both, but they do not speak with each other."""
    region = CoordinatorHarness(2)
    region.opened()
    region.join(0, speaks=(1, 2))
    region.join(1, speaks=(2, 3))
    region.receive_from_all(Restored, last_step=0)
    region.commit(1, step=5)
    region.play(ReplaceWanted((1,)))
    region.take()
    successor(region, 1, speaks=(3, 4), host="other")
    (event,) = settled(region)
    assert event.error == (
        "worker 1 was lost: worker 1 on other speaks versions 3 to 4 of the messages between workers, and"
        " worker 0 on h versions 1 to 2: install a version on one of these hosts that fits the other"
    )
    assert region.state is RegionState.RUNNING


# --- a hand-over to another driver --------------------------------------------------------------------


def test_a_driver_takes_a_region_over_when_its_workers_have_joined_and_not_before() -> None:
    before = CoordinatorHarness(3).run()
    seen = before.commit(1, step=5)
    region = CoordinatorHarness(hand_over=True, seen=seen, workers=None)
    assert [one.worker for one in region.out if isinstance(one, LaunchWorker)] == [0, 1, 2]
    region.join(0)
    region.join(1)
    assert region.take(OpenManifest) == []
    assert region.core.status().reason == "its workers join before it takes the region over"
    region.join(2)
    assert len(region.take(OpenManifest)) == 1
    newer = before.commit(2, step=9)
    region.opened(newer, epoch=before.epoch + 1)
    assert [order.checkpoint for _, order in region.sent(Restore)] == [2, 2, 2]


def test_a_driver_whose_workers_do_not_join_takes_nothing_over() -> None:
    seen = CoordinatorHarness(2).run().commit(1, step=5)
    region = CoordinatorHarness(hand_over=True, seen=seen, start_timeout_s=20.0)
    region.join(0)
    region.tick(21)
    assert region.take(OpenManifest) == []
    assert "worker 1 did not join within 20 s" in region.core.run.reason


@pytest.mark.parametrize("hand_over", [True, False])
def test_a_driver_whose_program_does_not_fit_takes_nothing_over(*, hand_over: bool) -> None:
    seen = CoordinatorHarness(2).run().commit(1, step=5)
    region = CoordinatorHarness(hand_over=hand_over, seen=seen, operators={"sum": "sum(word string)"})
    assert region.take(OpenManifest, LaunchWorker) == []
    assert region.state is RegionState.FAILED
    assert "count" in region.core.run.reason


def test_a_region_that_never_ran_starts_as_always() -> None:
    region = CoordinatorHarness(hand_over=True)
    region.join(0)
    region.join(1)
    assert len(region.take(OpenManifest)) == 1
