"""Another number of workers, as the coordinator decides it: at a start, while the region runs, given up."""

from dataclasses import replace

import msgspec
import pytest

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CancelWorker,
    CheckpointAppended,
    CheckpointWanted,
    LaunchWorker,
    LinkDown,
    ManifestOpened,
    NotifyObservers,
    OpenManifest,
    PauseWanted,
    ResetWanted,
    RestoreWanted,
    ScaleWanted,
    StopWanted,
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
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Stop,
)
from checkpoint.core.records.manifest import Checkpoint, in_its_version
from checkpoint.core.region import RegionState, ScaleSettled
from tests.checkpoint.coordinator_harness import CoordinatorHarness


def settled(region: CoordinatorHarness) -> list[ScaleSettled]:
    return [one.event for one in region.take(NotifyObservers) if isinstance(one.event, ScaleSettled)]


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
    return in_its_version(msgspec.structs.replace(checkpoint, **fields))


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
    one = msgspec.structs.replace(one, number=2, savepoints={"before": 1}, retained=(1, 2), version=3)
    region = CoordinatorHarness(3)
    region.epoch = 2
    region.play(ManifestOpened(2, one, (three, one)))
    for worker in range(3):
        region.join(worker)
    orders = {order.worker: order for _, order in region.sent(Restore)}
    assert orders[2].floors == floors
