"""Another number of workers, or other processes for them, as the coordinator decides it; and what a request
that is refused or given up leaves.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from checkpoint import limits
from checkpoint.cli.arguments import change_text
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    AskForRegion,
    CancelWorker,
    CheckpointAppended,
    CheckpointWanted,
    CoordinatorTick,
    HandOverAnswered,
    HandOverWanted,
    LastCheckpointRead,
    LaunchWorker,
    LinkDown,
    ManifestLost,
    ManifestOpened,
    MessageRefused,
    NotifyObservers,
    OpenManifest,
    PauseWanted,
    ReadLastCheckpoint,
    ReplaceWanted,
    ResetWanted,
    RestoreWanted,
    SavepointWanted,
    ScaleWanted,
    StopWanted,
    StoreWaiting,
    WorkerEnded,
)
from checkpoint.core.links.messages import (
    Committed,
    CopiedAhead,
    CopyAhead,
    Counters,
    Failed,
    Pause,
    Paused,
    Progress,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Stop,
)
from checkpoint.core.progress import as_json
from checkpoint.core.records.lines import restored
from checkpoint.core.records.manifest import BatchNote, Checkpoint, ReplacedGraph
from checkpoint.core.region import (
    AutoScale,
    AutoScaleStatus,
    HandOverSettled,
    RegionState,
    ReplaceSettled,
    RestoreSettled,
    SavepointSettled,
    ScaleDecided,
    ScaleSettled,
)
from checkpoint.core.verbs import CommandRegion, QueueRead
from checkpoint.errors import NotHandedOverError
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import notes
from tests.checkpoint.request_harness import HandlerHarness, in_state
from tests.support.census import census


def settled(region: CoordinatorHarness) -> list[ScaleSettled]:
    return region.events(ScaleSettled)


def paused(region: CoordinatorHarness, workers: int, checkpoint: int, step: int) -> None:
    """All workers carry out the pause order that is in force; the checkpoint that follows is committed."""
    for worker in range(workers):
        region.receive(
            worker,
            Paused,
            pause=region.core.checkpoints.pause,
            step=step - 1,
            counters=Counters(step=step - 1),
        )
    commit(region, workers, checkpoint, step)


def copied(region: CoordinatorHarness, workers: int) -> None:
    """All workers of the new layout have prepared. One that has only joined reports in no incarnation."""
    for worker in range(workers):
        number = 0 if worker >= len(region.core.run.roster) else region.epoch
        fields = {"copied_bytes": 7, "total_bytes": 7, "done": True, "incarnation": number, "epoch": number}
        region.receive(worker, CopiedAhead, **fields)


def commit(region: CoordinatorHarness, workers: int, checkpoint: int, step: int) -> Checkpoint:
    for worker in range(workers):
        region.vote(worker, checkpoint, step)
    (append,) = [one for one in region.out if isinstance(one, AppendCheckpoint)][-1:]
    region.play(CheckpointAppended(append.checkpoint))
    return append.checkpoint


def reopened(region: CoordinatorHarness) -> None:
    """The manifest is opened again with its last checkpoint."""
    last = region.core.run.last_checkpoint
    assert last is not None
    region.epoch += 1
    region.play(ManifestOpened(region.epoch, last, (last,)))


def switched(workers: int = 3, **fields: object) -> CoordinatorHarness:
    """Two workers are to become three; all stand still, and the new layout is ordered."""
    region = CoordinatorHarness(**fields).run()
    region.commit(1, step=5)
    region.play(ScaleWanted(workers))
    for worker in range(2, workers):
        region.join(worker)
    copied(region, workers)
    paused(region, 2, checkpoint=2, step=8)
    assert region.take(OpenManifest)
    reopened(region)
    return region


def of_two_only_one() -> CoordinatorHarness:
    """One of two workers has left, and its process has not ended."""
    region = CoordinatorHarness(2).run()
    region.commit(1, step=5)
    region.play(ScaleWanted(1))
    copied(region, 1)
    paused(region, 2, checkpoint=2, step=8)
    reopened(region)
    region.receive(0, Restored, last_step=8)
    commit(region, 1, checkpoint=3, step=8)
    return region


def test_new_workers_join_first_then_the_region_pauses_then_all_restore_vote_and_start() -> None:
    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    region.take()
    region.play(ScaleWanted(3))
    assert region.take(LaunchWorker) == [LaunchWorker(2, 1)]
    assert region.core.status().scaling.phase == "launching workers"
    assert region.state is RegionState.RUNNING
    region.join(2)
    orders = [order for _, order in region.sent(CopyAhead, Pause)]
    assert [(order.worker, order.checkpoint, order.restore.number) for order in orders] == [
        (worker, 1, 1) for worker in range(3)
    ]
    assert orders[0].layout.workers == (0, 1, 2)
    region.receive(0, CopiedAhead, copied_bytes=5, total_bytes=20)
    status = region.core.status().scaling
    assert (status.phase, status.copied_bytes, status.total_bytes) == ("copying state", 5, 20)
    assert region.sent(Pause) == []
    copied(region, 3)
    assert [link for link, _ in region.sent(Pause)] == [100, 101], "only those that run"
    assert region.core.status().scaling.phase == "pausing"
    paused(region, 2, checkpoint=2, step=8)
    assert len(region.take(OpenManifest)) == 1
    reopened(region)
    orders = [order for _, order in region.sent(Restore)]
    assert [(order.worker, order.moves, len(order.peers)) for order in orders] == [
        (worker, True, 3) for worker in range(3)
    ]
    for worker in range(3):
        region.receive(worker, Restored, last_step=9)
    assert region.sent(Start) == [], "its layout is not committed"
    checkpoint = commit(region, 3, checkpoint=3, step=8)
    assert (checkpoint.step, checkpoint.layout, len(checkpoint.workers)) == (8, orders[0].layout, 3)
    starts = region.sent(Start, Committed)
    assert [type(order) for _, order in starts] == [Committed] * 3 + [Start] * 3
    assert starts[-1][1].replay_until_step == 8, "what is recorded above belongs to the former layout"
    assert region.state is RegionState.RUNNING
    assert region.core.status().scaling is None
    assert region.core.checkpoints.pause == 0
    assert not region.core.status().resets


def test_workers_that_leave_end_and_their_output_is_kept_in_the_checkpoints() -> None:
    region = CoordinatorHarness(3).run()
    region.commit(1, step=5)
    region.play(ScaleWanted(1))
    copied(region, 1)
    paused(region, 3, checkpoint=2, step=8)
    region.take()
    reopened(region)
    assert [link for link, _ in region.sent(Stop)] == [101, 102]
    region.receive(0, Restored, last_step=8)
    assert commit(region, 1, checkpoint=3, step=8).layout.workers == (0,)
    region.play(WorkerEnded(1, 1, None), WorkerEnded(2, 1, "killed"))
    assert region.take(LaunchWorker) == []
    assert region.state is RegionState.RUNNING
    region.play(StopWanted())
    assert region.take(CancelWorker) == []


def test_a_region_ends_only_when_workers_that_left_have_ended_too() -> None:
    region = of_two_only_one()
    region.play(StopWanted(), WorkerEnded(0, 1, None))
    assert region.state is RegionState.STOPPING
    region.play(WorkerEnded(1, 1, None))
    assert region.state is RegionState.STOPPED


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (0, "a region has 1 to 4096 workers, got 0"),
        (5000, "a region has 1 to 4096 workers, got 5000"),
        (None, "no change of the number of workers is under way"),
    ],
)
def test_what_is_impossible_is_refused_and_changes_nothing(wanted: int | None, why: str) -> None:
    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    region.play(ScaleWanted(wanted))
    assert settled(region) == [ScaleSettled(wanted, 2, why)]
    assert region.core.changes.change is None


def test_a_region_that_does_not_run_or_goes_already_or_has_no_rule_is_not_scaled() -> None:
    region = CoordinatorHarness()
    region.play(ScaleWanted(3))
    assert "does not run now" in settled(region)[0].error
    region.run()
    region.play(ScaleWanted(2))
    assert settled(region) == [ScaleSettled(2, 2)], "it has that number"
    region.play(ScaleWanted(3), ScaleWanted(4))
    assert settled(region) == [
        ScaleSettled(4, 2, "the region is already going to 3 workers: wait, or cancel that first")
    ]
    kept = CoordinatorHarness(keeps_workers="'own' has no rule").run()
    kept.play(ScaleWanted(3))
    assert settled(kept) == [ScaleSettled(3, 2, "'own' has no rule")]


def test_a_region_that_ends_or_has_no_checkpoints_is_not_scaled() -> None:
    def refused(region: CoordinatorHarness, why: str) -> None:
        region.take()
        region.play(ScaleWanted(3))
        (outcome,) = settled(region)
        assert why in outcome.error
        assert not outcome.given_up
        assert region.take(LaunchWorker) == []
        assert region.core.changes.change is None

    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    region.play(ResetWanted())
    refused(region, "the region does not run now: try again when it does")
    restoring = CoordinatorHarness().run()
    restoring.commit(1, step=5)
    restoring.play(RestoreWanted("checkpoint:1"))
    refused(restoring, "the region does not run now: try again when it does")
    stopping = CoordinatorHarness().run()
    stopping.play(StopWanted())
    refused(stopping, "the region does not run now")
    failing = CoordinatorHarness().run()
    failing.receive(0, Failed, kind="operator", message="it cannot", operator="own")
    refused(failing, "the region does not run now")
    done = CoordinatorHarness().run()
    done.core.checkpoints._final_committed = True
    refused(done, "the region has processed all of its input")
    without = CoordinatorHarness(without_checkpoints=True).run()
    refused(without, "the region has no checkpoints: run it again instead")


def given_up(region: CoordinatorHarness, why: str) -> None:
    (outcome,) = settled(region)
    assert outcome.given_up
    assert why in outcome.error
    assert outcome.workers == 2
    assert region.core.changes.change is None
    assert len(region.core.run.roster) == 2


def test_a_change_is_given_up_by_request_by_a_lost_worker_a_reset_a_stop_and_by_time() -> None:
    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    for end, why in (
        ((ScaleWanted(None),), "cancelled"),
        ((WorkerEnded(2, 2, "no slot"),), "worker 2 was lost: no slot"),
        ((ResetWanted(),), "a reset was requested"),
    ):
        region.take()
        region.play(ScaleWanted(3))
        region.play(*end)
        given_up(region, why)
        assert not region.core.checkpoints.pause
    reopened(region)
    for worker in range(2):
        region.receive(worker, Restored, last_step=5)
    region.take()
    region.play(ScaleWanted(3))
    region.tick(region.spec.start_timeout_s + 2)
    given_up(region, "worker 2 did not join within")
    region.play(ScaleWanted(3))
    region.join(2, attempt=region.core.run.roster[2].attempt)
    region.receive(2, CopiedAhead, incarnation=0, epoch=0, copied_bytes=0, total_bytes=0, error="s1 is down")
    given_up(region, "worker 2 cannot prepare: s1 is down")
    region.play(ScaleWanted(3), CheckpointWanted(), StopWanted())
    given_up(region, "being stopped")


def test_a_reset_before_the_commit_leaves_the_former_layout() -> None:
    region = switched()
    region.take()
    region.play(LinkDown(102, "gone"), WorkerEnded(2, 1, "killed"))
    reopened(region)
    given_up(region, "worker 2 was lost")
    orders = [order for _, order in region.sent(Restore)]
    assert [(order.worker, order.moves, order.checkpoint) for order in orders] == []
    for worker in range(2):
        assert region.core.run.roster[worker].link is not None


def test_a_commit_that_was_in_doubt_counts_if_the_manifest_has_it() -> None:
    region = switched()
    for worker in range(3):
        region.receive(worker, Restored, last_step=8)
    for worker in range(3):
        region.vote(worker, 3, step=8)
    (append,) = region.take(AppendCheckpoint)
    region.play(LinkDown(102, "gone"))
    region.epoch += 1
    region.play(ManifestOpened(region.epoch, append.checkpoint, (append.checkpoint,)))
    assert settled(region)[0].error == ""
    assert len(region.core.run.roster) == 3
    assert region.core.run.layout == append.checkpoint.layout


def test_it_is_too_late_to_cancel_once_the_new_layout_is_ordered() -> None:
    region = switched()
    region.take()
    region.play(ScaleWanted(None))
    assert settled(region) == [ScaleSettled(None, 3, "it is too late: the new layout is being committed")]


def test_a_region_that_a_user_pauses_meanwhile_is_paused_afterwards() -> None:
    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    region.play(ScaleWanted(3), PauseWanted(on=True))
    assert region.sent(Pause) == [], "it pauses for the change anyway"
    region.join(2)
    copied(region, 3)
    paused(region, 2, checkpoint=2, step=8)
    reopened(region)
    for worker in range(3):
        region.receive(worker, Restored, last_step=8)
    region.take()
    commit(region, 3, checkpoint=3, step=8)
    assert [order.pause for _, order in region.sent(Pause)] == [region.core.checkpoints.pause] * 3
    assert region.core.checkpoints.pause > 0


def checkpoint_of(workers: int, **fields: object) -> Checkpoint:
    checkpoint = CoordinatorHarness(workers).run().commit(1, step=5)
    return msgspec.structs.replace(checkpoint, **fields)


@pytest.mark.parametrize(
    ("asked", "declared", "workers"),
    [(2, 0, 3), (3, 0, 3), (None, 0, 3), (2, 2, 3), (None, 2, 3), (3, 2, 3), (4, 2, 4)],
)
def test_a_program_changes_the_number_only_if_it_asks_for_another_than_before(
    asked: int | None, declared: int, workers: int
) -> None:
    """The last checkpoint has three workers; `declared`: what the program before had asked for."""
    region = CoordinatorHarness(2)
    region.core.run.spec = replace(region.spec, workers=asked)
    expected = workers if asked is None or asked in (3, declared) else asked
    region.opened(checkpoint_of(3, declared=declared))
    assert len(region.core.run.roster) == expected
    assert region.core.run.layout_changes == (expected != 3)
    assert region.core.run.declared == (asked if asked == expected else declared or 3)


def test_a_region_without_a_checkpoint_commits_one_before_it_is_scaled() -> None:
    region = CoordinatorHarness().run()
    region.play(ScaleWanted(3))
    region.join(2)
    orders = region.sent(RequestCheckpoint, CopyAhead)
    assert [type(order) for _, order in orders] == [RequestCheckpoint, RequestCheckpoint]
    commit(region, 2, checkpoint=1, step=1)
    assert len(region.sent(CopyAhead)) == 3


def test_a_worker_that_left_and_hangs_is_cancelled() -> None:
    region = of_two_only_one()
    region.take()
    region.tick(limits.stop_grace_s + 2)
    assert region.take(CancelWorker) == [CancelWorker(1, 1)]
    region.play(ScaleWanted(2))
    assert region.take(CancelWorker, LaunchWorker) == [CancelWorker(1, 1), LaunchWorker(1, 2)]


def test_a_worker_that_comes_back_keeps_what_a_savepoint_needs_of_it() -> None:
    """It is in the savepoint's layout, and not in that of the last checkpoint."""
    three = CoordinatorHarness(3).run().commit(1, step=5)
    floors = {"state": (1, 64), "steps": (1, 0)}
    parts = {one: msgspec.structs.replace(part, floors=floors) for one, part in three.workers.items()}
    three = msgspec.structs.replace(three, workers=parts)
    one = CoordinatorHarness(1).run().commit(1, step=9)
    one = msgspec.structs.replace(one, number=2, savepoints={"before": 1}, retained=(1, 2))
    region = CoordinatorHarness(3)
    region.epoch = 2
    region.play(ManifestOpened(2, one, (three, one)))
    for worker in range(3):
        region.join(worker)
    orders = {order.worker: order for _, order in region.sent(Restore)}
    assert orders[2].floors == floors


# --- other processes --------------------------------------------------------------------------------------


def replaced_events(region: CoordinatorHarness, kind: type = ReplaceSettled) -> list[Any]:
    return region.events(kind)


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
    (refused,) = replaced_events(region)
    assert (refused.error, refused.by) == (
        "worker 1 is being replaced: wait, or cancel that first",
        "another",
    )
    region.now += 2.0
    switch(region, 1, successor(region, 1), checkpoint=3, step=11)
    (done,) = replaced_events(region)
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
    assert replaced_events(region) == [], "worker 1 has no successor yet"
    assert region.core.status().scaling.replaces == 1
    switch(region, 1, successor(region, 1), checkpoint=3, step=11)
    (done,) = replaced_events(region)
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
    (event,) = replaced_events(region)
    assert event.replaced == ()
    assert event.error


def test_a_successor_that_ends_before_the_switch_changes_nothing() -> None:
    """As one does whose version is refused when it connects."""
    region = asked()
    region.play(WorkerEnded(0, 2, "the peer refused the link: it speaks version 9"))
    (event,) = replaced_events(region)
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
    (event,) = replaced_events(region)
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
    assert [one.replaced for one in replaced_events(region)] == [(1,)]


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
    assert [(one.error, one.replaced) for one in replaced_events(region)] == [(why, ())]
    region.play(ResetWanted())
    region.play(ReplaceWanted())
    assert [one.error for one in replaced_events(region)] == [
        "the region does not run now: try again when it does"
    ]
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
    (event,) = replaced_events(region)
    assert event.error == (
        "worker 1 was lost: worker 1 on other speaks versions 3 to 4 of the messages between workers, and"
        " worker 0 on h versions 1 to 2: install a version on one of these hosts that fits the other"
    )
    assert region.state is RegionState.RUNNING


# --- a hand-over to another driver -----------------------------------------------------------------


def prepared(region: CoordinatorHarness, seen: Checkpoint | None) -> None:
    """All workers have joined: they open their operators and load the state of this checkpoint."""
    region.play(LastCheckpointRead(seen))
    if seen is not None:
        loads = {"incarnation": 0, "epoch": 0, "checkpoint": seen.number, "copied_bytes": 9, "total_bytes": 9}
        for worker in range(len(region.core.run.roster)):
            region.receive(worker, CopiedAhead, done=True, **loads)
        region.play(LastCheckpointRead(seen))
    assert len(region.take(AskForRegion)) == 1


def test_a_driver_takes_a_region_over_when_its_workers_are_ready_and_not_before() -> None:
    """They have opened their operators and loaded the state, and what followed if that took long."""
    before = CoordinatorHarness(3).run()
    seen = before.commit(1, step=5)
    region = CoordinatorHarness(hand_over=True, seen=seen, workers=None)
    assert [one.worker for one in region.out if isinstance(one, LaunchWorker)] == [0, 1, 2]
    region.join(0)
    region.join(1)
    assert region.take(OpenManifest, ReadLastCheckpoint) == []
    assert region.core.status().reason == "its workers join before it takes the region over"
    region.join(2)
    assert len(region.take(ReadLastCheckpoint)) == 1
    region.play(LastCheckpointRead(seen))
    orders = [order for _, order in region.sent(CopyAhead)]
    assert [(one.worker, one.checkpoint, one.opens, one.creates) for one in orders] == [
        (worker, 1, True, False) for worker in range(3)
    ]
    loads = {"incarnation": 0, "epoch": 0, "checkpoint": 1, "total_bytes": 4_000_000}
    region.receive(0, CopiedAhead, copied_bytes=1_000_000, **loads)
    assert "load the state of checkpoint 1: 1.0 of 4.0 MB" in region.core.status().reason
    region.now += limits.load_again_s
    for worker in range(3):
        assert region.take(ReadLastCheckpoint, AskForRegion) == []
        region.receive(worker, CopiedAhead, copied_bytes=4_000_000, done=True, **loads)
    newer = before.commit(2, step=9)
    assert len(region.take(ReadLastCheckpoint)) == 1
    region.play(LastCheckpointRead(newer))
    assert [order.checkpoint for _, order in region.sent(CopyAhead)] == [2, 2, 2], "that took long"
    for worker in range(3):
        assert region.take(AskForRegion) == []
        region.receive(worker, CopiedAhead, copied_bytes=1, done=True, **(loads | {"checkpoint": 2}))
    newest = before.commit(3, step=11)
    region.play(LastCheckpointRead(newest))
    assert len(region.take(AskForRegion)) == 1, "so little is loaded while it pauses"
    assert region.core.status().reason == "the driver that runs the region pauses it"
    region.play(HandOverAnswered())
    assert len(region.take(OpenManifest)) == 1
    region.opened(newest, epoch=before.epoch + 1)
    assert [order.checkpoint for _, order in region.sent(Restore)] == [3, 3, 3]


def test_a_process_that_has_not_prepared_takes_nothing_over() -> None:
    """It came in place of one that had. The others need only what they have not loaded."""
    seen = CoordinatorHarness(2).run().commit(1, step=5)
    for asked in (False, True):
        region = CoordinatorHarness(hand_over=True, seen=seen)
        region.join(0)
        region.join(1)
        loads = {"incarnation": 0, "epoch": 0, "checkpoint": 1, "copied_bytes": 9, "total_bytes": 9}
        region.play(LastCheckpointRead(seen))
        region.receive(0, CopiedAhead, done=True, **loads)
        if asked:
            region.receive(1, CopiedAhead, done=True, **loads)
            region.play(LastCheckpointRead(seen))
        region.play(LinkDown(region.links[1], "closed"), WorkerEnded(1, 1, "killed"))
        region.take()
        region.tick(5)
        region.join(1, attempt=2)
        if asked:
            region.play(HandOverAnswered())
        assert region.take(OpenManifest, AskForRegion) == []
        prepared(region, seen)
        region.play(HandOverAnswered())
        assert len(region.take(OpenManifest)) == 1


@pytest.mark.parametrize("hangs", [False, True])
def test_a_driver_whose_operators_cannot_be_opened_takes_nothing_over(*, hangs: bool) -> None:
    seen = CoordinatorHarness(2).run().commit(1, step=5)
    region = CoordinatorHarness(hand_over=True, seen=seen, start_timeout_s=20.0)
    region.join(0)
    region.join(1)
    region.play(LastCheckpointRead(seen))
    of = {"incarnation": 0, "epoch": 0, "checkpoint": 1, "copied_bytes": 0, "total_bytes": 0}
    region.receive(0, CopiedAhead, done=True, **of)
    if hangs:
        region.tick(21)
    else:
        region.receive(1, CopiedAhead, error="operator 'score': there is no model", **of)
    assert region.take(OpenManifest, AskForRegion) == []
    assert region.core.run.outcome is not None
    assert region.core.run.outcome.state is RegionState.FAILED
    text = "did not open its operators" if hangs else "there is no model"
    assert "worker 1" in region.core.run.reason
    assert text in region.core.run.reason
    assert "the region runs on under its driver" in str(region.core.run.outcome.error)


def test_a_driver_that_reads_another_graph_before_it_asks_takes_nothing_over() -> None:
    """It would fit, but it was compared with the graph before."""
    seen = CoordinatorHarness(2).run().commit(1, step=5)
    region = CoordinatorHarness(hand_over=True, seen=seen)
    region.join(0)
    region.join(1)
    operators = seen.operators | notes(cheap="filter")
    region.play(LastCheckpointRead(msgspec.structs.replace(seen, operators=operators)))
    assert region.take(CopyAhead, AskForRegion) == []
    assert "began this graph while this program started" in region.core.run.reason


def heir_of_another_graph(before):
    """A driver whose graph has another count, and whose workers have prepared with the last checkpoint."""
    seen = before.core.run.last_checkpoint
    region = CoordinatorHarness(hand_over=True, seen=seen, operators=notes(count="count", more="count"))
    region.join(0)
    region.join(1)
    region.play(LastCheckpointRead(seen))
    (uids,) = {tuple(order.uids.items()) for _, order in region.sent(CopyAhead)}
    prepared(region, seen)
    region.play(HandOverAnswered())
    return region, dict(uids)


def test_what_is_opened_before_a_hand_over_is_stored_under_the_uids_with_which_it_was_opened() -> None:
    """Also if that driver is reset before its first checkpoint is committed."""
    before = CoordinatorHarness(2).run()
    before.commit(1, step=5)
    region, uids = heir_of_another_graph(before)
    last = before.commit(2, step=9)
    for epoch in (7, 8):
        region.epoch = epoch
        region.play(ManifestOpened(epoch, last, (last,)))
        assert [order.uids for _, order in region.sent(Restore)] == [uids] * 2
        if epoch == 7:
            region.receive(0, Failed, kind="peer", message="its peer is gone")
            region.take()
    region.receive_from_all(Restored, last_step=9)
    region.votes(3, step=9)
    assert region.appended().uids == uids
    assert set(uids) == {"more"}


def test_a_driver_is_refused_if_its_uids_may_have_been_given_to_what_came_and_went() -> None:
    before = CoordinatorHarness(2).run()
    before.commit(1, step=5)
    region, _ = heir_of_another_graph(before)
    last = before.commit(2, step=9)
    replaced = {"0123456789abcdef": ReplacedGraph(2)}
    region.opened(msgspec.structs.replace(last, replaced=replaced), epoch=7)
    assert region.sent(Restore) == []
    assert "began this graph while this program started" in region.core.run.reason


def test_workers_that_a_hand_over_adds_join_and_prepare_before_the_pause() -> None:
    """Also of a region that shows steps: it is lent after a checkpoint after which it shows none."""
    seen = msgspec.structs.replace(CoordinatorHarness(2).run().commit(1, step=5), shows_on=True)
    region = CoordinatorHarness(3, hand_over=True, seen=seen, shows_steps=True)
    assert [one.worker for one in region.out if isinstance(one, LaunchWorker)] == [0, 1, 2]
    for worker in range(3):
        region.join(worker)
    region.play(LastCheckpointRead(seen))
    assert [len(order.layout.workers) for _, order in region.sent(CopyAhead)] == [3, 3, 3]


@pytest.mark.parametrize("shown", [False, True])
def test_a_hand_over_begins_with_a_checkpoint_by_which_the_former_driver_knows_it(*, shown: bool) -> None:
    """Also of the same graph, without input. Not if the former driver died: steps may be shown."""
    seen = msgspec.structs.replace(CoordinatorHarness(2).run().commit(1, step=5), shows_on=shown)
    region = CoordinatorHarness(hand_over=True, seen=seen, shows_steps=shown)
    region.join(0)
    region.join(1)
    prepared(region, seen)
    region.play(HandOverAnswered())
    region.opened(seen, epoch=7)
    assert [order.moves for _, order in region.sent(Restore)] == [not shown] * 2
    region.receive_from_all(Restored, last_step=7)
    if not shown:
        assert region.sent(Start) == []
        region.votes(2, step=5)
        region.appended()
    assert [order.replay_until_step for _, order in region.sent(Start)] == [7 if shown else 5] * 2


def lent(**fields):
    """A region that shows steps and is paused for another driver."""
    region = CoordinatorHarness(shows_steps=True, **fields).run()
    region.commit(1, step=5)
    region.play(HandOverWanted("ann"))
    pause = region.core.checkpoints.pause
    region.receive_from_all(Paused, pause=pause, step=7, counters=Counters(step=7))
    region.take()
    region.votes(2, step=8)
    assert region.appended().is_quiet
    assert region.events(HandOverSettled) == [HandOverSettled("ann", 2)]
    return region


def test_a_region_that_was_lent_states_that_steps_are_shown_before_it_continues() -> None:
    region = lent()
    region.tick(limits.lease_s + 1)
    orders = [type(order) for _, order in region.sent(Pause, RequestCheckpoint)]
    assert orders == [RequestCheckpoint] * 2, "before any worker takes input"
    region.votes(3, step=9)
    assert region.appended().shows_on
    assert [order.pause for _, order in region.sent(Pause)] == [0, 0]
    assert region.state is RegionState.RUNNING


def test_a_driver_that_has_lent_its_region_ends_its_workers_when_it_is_claimed() -> None:
    """The other one may wait for what they hold. They begin again if this driver takes the region back."""
    region = lent()
    region.play(ManifestLost(1, 2))
    assert [order.kind for _, order in region.sent(Stop)] == ["superseded"] * 2
    region.play(*(WorkerEnded(worker, 1, None) for worker in range(2)))
    region.tick(3)
    assert region.take(LaunchWorker) == []
    region.opened(region.core.run.last_checkpoint, epoch=3)
    region.tick(3)
    assert [one.worker for one in region.take(LaunchWorker)] == [0, 1]


def test_a_driver_that_finds_under_its_claim_that_another_one_has_committed_is_fenced() -> None:
    """It has waited for that checkpoint, which came just before it claimed the region again."""
    region = lent()
    region.play(ManifestLost(1, 2))
    last = region.core.run.last_checkpoint
    assert last is not None
    region.opened(msgspec.structs.replace(last, number=3, incarnation=2), epoch=3)
    assert region.core.run.outcome is not None
    assert region.core.run.outcome.state is RegionState.FENCED


def test_a_region_is_not_lent_where_that_is_impossible() -> None:
    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    region.play(ScaleWanted(3), HandOverWanted("ann"))
    (event,) = region.events(HandOverSettled)
    assert "the region is already going to 3 workers" in event.error
    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    region.play(ReplaceWanted((1,)), HandOverWanted("ann"))
    (event,) = region.events(HandOverSettled)
    assert "worker 1 is being replaced: wait, or cancel that first" in event.error
    region = CoordinatorHarness().run()
    last = region.commit(1, step=5)
    batch = BatchNote(query="q", number=3, time_us=0, rows=1)
    region.core.run.committed(msgspec.structs.replace(last, batch=batch))
    region.play(HandOverWanted("ann"))
    (event,) = region.events(HandOverSettled)
    assert "a query drives the region: stop the query" in event.error
    lent_region = lent()
    lent_region.play(ScaleWanted(3))
    assert "is being handed over" in lent_region.events(ScaleSettled)[0].error
    lent_region.play(HandOverWanted("bob"))
    assert [event.by for event in lent_region.events(HandOverSettled)] == ["ann", "bob"], (
        "it was started again"
    )
    lent_region.play(StopWanted())
    assert lent_region.core.run.outcome.state is RegionState.STOPPED


def test_the_status_shows_to_whom_a_region_is_handed_over() -> None:
    region = CoordinatorHarness(shows_steps=True).run()
    region.commit(1, step=5)
    region.play(HandOverWanted("1", "ann@h1"))
    text = change_text(as_json(region.core.status().scaling), 2)
    assert text == "handing over to the driver of ann@h1 for 0.0 s: pausing for it"
    pause = region.core.checkpoints.pause
    region.receive_from_all(Paused, pause=pause, step=7, counters=Counters(step=7))
    region.take()
    region.votes(2, step=8)
    region.appended()
    text = change_text(as_json(region.core.status().scaling), 2)
    assert text.endswith("lent, at most 30 s, until that driver claims it")


def test_a_driver_is_not_told_that_a_region_is_lent_before_nothing_is_shown_after_its_checkpoint() -> None:
    region = CoordinatorHarness(shows_steps=True).run()
    region.commit(1, step=5)
    region.play(PauseWanted(on=True))
    pause = region.core.checkpoints.pause
    region.receive_from_all(Paused, pause=pause, step=5, counters=Counters(step=5))
    assert region.state is RegionState.PAUSED
    region.play(HandOverWanted("ann"))
    assert region.events(HandOverSettled) == [], "the last checkpoint states that steps are shown after it"
    region.votes(2, step=6)
    region.appended()
    assert region.events(HandOverSettled) == [HandOverSettled("ann", 2)]
    region.tick(limits.lease_s + 1)
    assert region.state is RegionState.PAUSED, "a user has paused it"


def test_a_driver_that_is_refused_fails_and_claims_nothing() -> None:
    region = CoordinatorHarness(hand_over=True)
    region.join(0)
    region.join(1)
    prepared(region, None)
    region.play(HandOverAnswered(NotHandedOverError("it is being scaled")))
    assert region.take(OpenManifest) == []
    assert "it is being scaled" in region.core.run.reason


def test_a_worker_that_is_lost_while_the_region_is_asked_for_lets_it_be_asked_for_again() -> None:
    region = CoordinatorHarness(hand_over=True)
    region.join(0)
    region.join(1)
    prepared(region, None)
    region.play(LinkDown(region.links[1], "closed"), WorkerEnded(1, 1, "killed"), HandOverAnswered())
    assert region.take(OpenManifest) == []
    region.tick(5)
    region.join(1, attempt=2)
    prepared(region, None)
    region.play(HandOverAnswered())
    assert len(region.take(OpenManifest)) == 1


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
    region = CoordinatorHarness(hand_over=hand_over, seen=seen, operators=notes(sum="sum"))
    assert region.take(OpenManifest, LaunchWorker) == []
    assert region.state is RegionState.FAILED
    assert "count" in region.core.run.reason


def test_a_region_that_never_ran_starts_as_always() -> None:
    region = CoordinatorHarness(hand_over=True)
    region.join(0)
    region.join(1)
    prepared(region, None)
    region.play(HandOverAnswered())
    assert len(region.take(OpenManifest)) == 1


# --- pauses -----------------------------------------------------------------------------------------------


def committed(region: CoordinatorHarness, checkpoint: int, step: int) -> None:
    region.votes(checkpoint, step)
    region.appended()


def paused_at_4(region: CoordinatorHarness) -> CoordinatorHarness:
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
    assert region.requested() == [1, 1]
    assert region.state is RegionState.RUNNING
    committed(region, 1, step=5)
    assert region.state is RegionState.PAUSED
    assert region.sent(RequestCheckpoint) == []


def append_first_checkpoint(region):
    region.appended()


def assert_second_checkpoint_pauses(region, step):
    """Checkpoint 2 was requested of both workers; the region is paused_at_4 when it is committed."""
    assert region.requested() == [2, 2]
    committed(region, 2, step=step)
    assert region.state is RegionState.PAUSED


def test_where_a_checkpoint_came_before_a_step_that_was_made_another_one_follows() -> None:
    """Worker 1 was behind, and flagged its step 3; worker 0 had ended step 4 by then."""
    region = CoordinatorHarness().run()
    region.play(PauseWanted(on=True))
    region.receive(0, Paused, pause=1, step=4, counters=Counters(step=4))
    region.receive(1, Paused, pause=1, step=2, counters=Counters(step=2))
    region.take()
    region.votes(1, step=3)
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
    region = paused_at_4(CoordinatorHarness().run())
    region.tick(30)
    assert region.sent(RequestCheckpoint) == []
    region.play(CheckpointWanted())
    assert region.state is RegionState.PAUSED
    committed(region, 2, step=6)
    assert region.state is RegionState.PAUSED


def test_it_continues_when_it_is_told_to_and_an_answer_to_the_order_before_counts_for_nothing() -> None:
    region = paused_at_4(CoordinatorHarness().run())
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
    paused_at_4(region).play(PauseWanted(on=True))
    assert region.sent(Pause) == []
    assert region.state is RegionState.PAUSED


def test_after_a_reset_workers_are_notified_again_behind_their_start() -> None:
    region = paused_at_4(CoordinatorHarness().run())
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
    region = paused_at_4(CoordinatorHarness().run())
    region.play(StopWanted())
    assert region.sent(RequestCheckpoint) == []
    assert region.core.run.reason == "stopped"


# --- requested through the store -------------------------------------------------------------------------


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


# --- on its own -------------------------------------------------------------------------------------------


MB = 1_000_000
SPEC = AutoScale(1, 4, window=10.0, cool_down=20.0)


def started(**fields: object) -> CoordinatorHarness:
    region = CoordinatorHarness(**{"autoscale": SPEC, **fields}).run()
    region.commit(1, step=5)
    return region


def load(region: CoordinatorHarness, seconds: int, *, busy: float, grows: int = 0, **more: object) -> None:
    """Seconds pass. Each worker is busy for this share of them, reads 1 MB/s, and leaves `grows` MB/s."""
    for _ in range(seconds):
        region.now += 1.0
        for worker, link in list(region.core.run.roster.linked(coming=True)):
            c = worker.counters
            counters = Counters(
                **{
                    "bytes_in": c.bytes_in + MB,
                    "busy_s": c.busy_s + 1,  # with the fixed cost of steps, which does not count
                    "load_s": c.load_s + busy,
                    "backlog_bytes": max(0, c.backlog_bytes) + grows * MB,
                    **more,
                }
            )
            region.receive(worker.index, Progress, link=link, counters=counters)
        region.play(CoordinatorTick(region.now))


def decided(region: CoordinatorHarness) -> list[ScaleDecided]:
    return region.events(ScaleDecided)


def status(region: CoordinatorHarness) -> AutoScaleStatus:
    found = region.core.status().autoscale
    assert found is not None
    return found


def completed(region: CoordinatorHarness, before: int, after: int) -> None:
    """The change under way is made."""
    for worker in range(before, after):
        region.join(worker, attempt=region.core.run.roster[worker].attempt)
    copied(region, after)
    number = region.core.run.last_number
    paused(region, before, checkpoint=number + 1, step=8 + number)
    reopened(region)
    for worker in range(after):
        region.receive(worker, Restored, last_step=8 + number)
    commit(region, after, checkpoint=number + 2, step=8 + number)
    assert region.core.changes.change is None


def test_it_requests_what_the_load_needs_as_a_user_would_and_reports_why() -> None:
    region = started()
    region.take()
    load(region, 10, busy=0.95)
    assert region.take(LaunchWorker) == []
    assert status(region).wanted is None
    assert "being measured" in status(region).reason
    load(region, 15, busy=0.95)
    assert [(one.present, one.wanted) for one in decided(region)] == [(2, 3)]
    assert region.core.status().scaling.workers == 3
    assert status(region).reason == "the region is going to 3 workers"
    last = str(status(region).decided)
    assert last.startswith("autoscale from 2 to 3 workers: the load needs 3 workers; load 95% of 2 workers")
    completed(region, 2, 3)
    region.take()
    load(region, 1, busy=0.95)
    assert status(region).next_s == SPEC.cool_down, "the cool-down begins when the change is settled"
    load(region, 19, busy=0.95)
    assert decided(region) == []
    load(region, 5, busy=0.95)
    assert [(one.present, one.wanted) for one in decided(region)] == [(3, 4)]


def test_a_lower_load_lets_workers_leave() -> None:
    region = started()
    region.take()
    load(region, 40, busy=0.1)
    assert [(one.present, one.wanted) for one in decided(region)] == [(2, 1)]
    completed(region, 2, 1)
    assert len(region.core.run.roster) == 1


def test_a_paused_region_or_one_that_waits_for_its_store_is_not_measured() -> None:
    region = started()
    load(region, 15, busy=0.95)
    region.play(PauseWanted(on=True))
    load(region, 30, busy=0.95)
    assert status(region).reason == "the region is paused"
    region.play(PauseWanted(on=False), StoreWaiting("s1 is unavailable"))
    load(region, 30, busy=0.95)
    assert status(region).reason == "the region waits for its store: s1 is unavailable"
    region.play(StoreWaiting(""))
    load(region, 9, busy=0.95)
    assert "being measured" in status(region).reason
    assert region.core.changes.change is None
    load(region, 5, busy=0.95, exhausted=True)
    assert status(region).reason == "all input is read"


def test_a_change_that_is_given_up_is_tried_again_only_after_the_cool_down() -> None:
    region = started()
    load(region, 25, busy=0.95)
    assert region.core.changes.change is not None
    region.take()
    region.play(WorkerEnded(2, 1, "no slot"), WorkerEnded(2, 2, "no slot"))
    (outcome,) = settled(region)
    assert outcome.given_up
    load(region, 12, busy=0.95)
    assert "the last change failed: worker 2 was lost: no slot; the load needs 3 workers" in (
        status(region).reason
    )
    assert region.core.changes.change is None
    load(region, 15, busy=0.95)
    assert [one.wanted for one in decided(region)] == [3]


def test_a_user_changes_the_number_and_the_policy_continues_from_there_after_the_cool_down() -> None:
    region = started()
    load(region, 5, busy=0.6)
    region.play(ScaleWanted(4))
    completed(region, 2, 4)
    region.take()
    load(region, 30, busy=0.1)
    assert decided(region) == [], "the window after the cool-down is not over"
    load(region, 10, busy=0.1)
    assert [one.wanted for one in decided(region)] == [1]


def test_a_user_goes_beyond_the_limits_and_the_policy_returns_to_them() -> None:
    region = started()
    region.play(ScaleWanted(6))
    completed(region, 2, 6)
    region.take()
    load(region, 25, busy=0.6)
    assert [(one.present, one.wanted) for one in decided(region)] == [(6, 4)]


def test_a_reason_to_change_nothing_is_reported_once() -> None:
    region = started(autoscale=AutoScale(1, 2, window=10.0, cool_down=20.0))
    region.take()
    load(region, 60, busy=1.0, grows=1)
    (held,) = decided(region)
    assert str(held).startswith(
        "autoscale keeps 2 workers: the load needs more than the maximum of 2 workers"
    )


def test_a_region_without_it_has_no_timer_and_a_new_region_begins_within_the_limits() -> None:
    region = CoordinatorHarness().run()
    assert not region.core.run.timers.running("autoscale")
    assert region.core.status().autoscale is None
    for policy, workers in ((AutoScale(3, 5), 3), (AutoScale(1, 1), 1), (AutoScale(1, 8), 2)):
        assert replace(region.spec, workers=None, autoscale=policy).first_workers == workers
    assert replace(region.spec, workers=None).first_workers == limits.workers_default == 2


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"workers": 5}, "workers=5 is outside of autoscale, 1 to 4 workers"),
        ({"keeps_workers": "'own' has no rule for it: it keeps files"}, "'own' has no rule for it"),
        ({"without_checkpoints": True}, "autoscale needs checkpoints"),
    ],
)
def test_a_region_that_cannot_be_scaled_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        started(**fields)


def test_the_answer_to_a_request_is_not_that_of_the_policy() -> None:
    region = started()
    load(region, 25, busy=0.95)
    region.take()
    region.play(ScaleWanted(4))
    assert settled(region) == [
        ScaleSettled(4, 2, "the region is already going to 3 workers: wait, or cancel that first")
    ]


# --- after requests that failed ---------------------------------------------------------------------------


Region = CoordinatorHarness


def outcomes(region: Region, kind: type) -> list[Any]:
    return region.events(kind)


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


def goes_back(region: Region) -> None:
    region.take()
    region.play(RestoreWanted("checkpoint:1"))
    region.appended()
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
GOOD: list[Callable[[Region], None]] = [scaled, replaced, goes_back, saved, checkpointed, stands_still]


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
