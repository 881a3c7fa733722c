"""Warm stand-bys, as the coordinator decides it: when they start and load, and whose place they take."""

from typing import Any

import pytest

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    CancelWorker,
    CloseLink,
    ControlReceived,
    LaunchWorker,
    LinkDown,
    MessageRefused,
    ResetWanted,
    StopWanted,
    WorkerEnded,
)
from checkpoint.core.coordination.workers import WorkerState
from checkpoint.core.links.messages import (
    CompanionReport,
    CopiedAhead,
    CopyAhead,
    Failed,
    Restore,
    Restored,
    Stop,
)
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import RegionState, WorkerLost
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.region_model import spec

STANDBY = 2
"""The attempt of each stand-by: the first one is the worker."""


def link_of(worker: int, attempt: int = STANDBY) -> int:
    return 100 * attempt + worker


def running(recovery: str = "global", workers: int = 2, **fields: Any) -> CoordinatorHarness:
    """A region that runs after checkpoint 1, whose stand-bys are launched."""
    region = CoordinatorHarness(workers, warm_standby=True, recovery=recovery, **fields)
    region.opened(epoch=limits.terms_per_incarnation)
    for worker in range(workers):
        region.join(worker)
    region.receive_from_all(Restored, last_step=0)
    region.take()
    region.commit(1)
    return region


def joined(region: CoordinatorHarness, worker: int, attempt: int = STANDBY) -> None:
    """A stand-by joins. The links of the workers stay those of the harness."""
    link = region.links[worker]
    region.join(worker, attempt)
    region.links[worker] = link


def copied(region: CoordinatorHarness, worker: int, checkpoint: int = 1, **fields: Any) -> None:
    fields = {"copied_bytes": 1, "total_bytes": 1, "done": True, **fields}
    region.receive(worker, CopiedAhead, link=link_of(worker), checkpoint=checkpoint, **fields)


def with_state(recovery: str = "global", workers: int = 2, **fields: Any) -> CoordinatorHarness:
    """The stand-bys of all workers have loaded checkpoint 1."""
    region = running(recovery, workers, **fields)
    for worker in range(workers):
        joined(region, worker)
        copied(region, worker)
    region.take()
    return region


def standbys(region: CoordinatorHarness) -> list[int | None]:
    return [worker.warm_standby for worker in region.core.status().workers]


def reopened(region: CoordinatorHarness) -> Checkpoint:
    last = region.core.run.last_checkpoint
    assert last is not None
    region.opened(last, region.epoch + limits.terms_per_incarnation)
    return last


# --- their start, and what they load ------------------------------------------------------------------------


def test_they_are_launched_beside_their_workers_after_the_first_commit() -> None:
    region = running()
    assert region.take(LaunchWorker) == [LaunchWorker(worker, STANDBY, True) for worker in range(2)]


def test_without_a_commit_they_are_launched_after_a_time() -> None:
    """A region without input commits nothing."""
    region = with_state()
    region.die(0)
    last = reopened(region)
    for worker in range(2):
        region.links[worker] = link_of(worker)
    region.receive_from_all(Restored, last_step=5)
    assert (region.state, last.number) == (RegionState.RUNNING, 1)
    region.tick(limits.standby_after_s - 1)
    assert region.take(LaunchWorker) == []
    region.tick(2)
    assert {one.worker for one in region.take(LaunchWorker)} == {0, 1}


def test_without_the_option_there_are_none() -> None:
    region = CoordinatorHarness(2).run()
    region.commit(1)
    region.tick(2 * limits.standby_after_s)
    assert region.take(LaunchWorker) == []


def test_one_loads_each_checkpoint_that_is_committed_when_it_has_loaded_the_one_before() -> None:
    region = running()
    region.take()
    joined(region, 1)
    [(link, order)] = region.sent(CopyAhead)
    assert (link, order.worker, order.checkpoint) == (link_of(1), 1, 1)
    assert (order.creates, order.opens, order.layout) == (False, True, region.core.run.layout)
    assert standbys(region) == [None, None]
    region.commit(2)
    assert region.sent(CopyAhead) == [], "it loads checkpoint 1"
    copied(region, 1)
    assert standbys(region) == [None, 1]
    region.tick(limits.standby_load_s + 1)
    [(link, order)] = region.sent(CopyAhead)
    assert (link, order.checkpoint) == (link_of(1), 2)
    assert standbys(region) == [None, 1], "it has not loaded checkpoint 2 yet"
    copied(region, 1, 2)
    assert standbys(region) == [None, 2]
    region.tick(limits.standby_load_s + 1)
    assert region.sent(CopyAhead) == [], "nothing was committed since"


def test_a_report_about_another_checkpoint_is_refused() -> None:
    region = running()
    joined(region, 1)
    region.take()
    copied(region, 1, 7)
    (refused,) = region.take(MessageRefused)
    assert (refused.link, refused.refusal.name) == (link_of(1), "STALE_CHECKPOINT")
    assert standbys(region) == [None, None]


def test_a_load_that_fails_is_tried_again_with_the_next_checkpoint() -> None:
    region = running()
    joined(region, 1)
    copied(region, 1, done=False, error="the scratch disk is full")
    assert standbys(region) == [None, None]
    region.tick(limits.standby_load_s + 1)
    region.take()
    region.commit(2)
    assert [order.checkpoint for _, order in region.sent(CopyAhead)] == [2]


def test_the_loss_of_a_stand_by_costs_nothing_but_another_one() -> None:
    region = with_state()
    region.play(LinkDown(link_of(1), "reset by peer"), WorkerEnded(1, STANDBY, "killed by signal 9"))
    assert (region.state, standbys(region)) == (RegionState.RUNNING, [1, None])
    region.tick(1)
    assert region.take(LaunchWorker) == [LaunchWorker(1, STANDBY + 1, True)]


def test_a_silent_stand_by_is_replaced() -> None:
    region = with_state()
    region.tick(region.spec.suspect_after_s + 2, silent=[link_of(1)])
    assert CancelWorker(1, STANDBY) in region.take(CancelWorker)
    assert region.state is RegionState.RUNNING


def test_a_region_ends_when_its_stand_bys_have_ended_too() -> None:
    region = with_state()
    region.play(StopWanted())
    region.tick(limits.stop_checkpoint_timeout_s + 1)
    assert {link for link, _ in region.sent(Stop)} >= {link_of(0), link_of(1)}
    for worker in range(2):
        region.play(WorkerEnded(worker, 1, None))
    assert not region.core.run.ended
    for worker in range(2):
        region.play(WorkerEnded(worker, STANDBY, None))
    assert region.core.run.ended


# --- whose place they take ----------------------------------------------------------------------------------


def test_with_global_recovery_the_stand_bys_of_all_workers_restore() -> None:
    """A worker that was not lost is beyond the checkpoint: it would have to read all of its state."""
    region = with_state()
    region.die(0)
    reopened(region)
    effects = region.out
    assert CancelWorker(1, 1) in effects
    assert CloseLink(link_of(1, 1)) in effects
    assert not any(isinstance(one, LaunchWorker) for one in effects)
    assert [link for link, _ in region.sent(Restore)] == [link_of(0), link_of(1)]
    assert standbys(region) == [None, None]


def test_the_loss_that_a_peer_reports_first_is_reported_itself() -> None:
    """Not before the region may begin again does a stand-by take the place of a worker that seems to live."""
    region = with_state()
    region.receive(1, Failed, kind="peer", message="worker 0 is lost")
    region.die(0)
    assert [event.worker for event in region.events(WorkerLost)] == [0]
    reopened(region)
    assert [link for link, _ in region.sent(Restore)] == [link_of(0), link_of(1)]


def test_the_loss_of_a_worker_whose_companion_has_not_said_why_is_reported() -> None:
    region = with_state()
    report = CompanionReport(
        job="region", worker=0, attempt=1, operator="", waits="", seconds=0.0, sinks="", stopped=False
    )
    region.play(ControlReceived(999, report))
    region.receive(1, Failed, kind="peer", message="worker 0 is lost")
    region.play(LinkDown(link_of(0, 1), "reset by peer"))
    assert region.events(WorkerLost) == []
    reopened(region)
    assert [event.worker for event in region.events(WorkerLost)] == [0]
    assert "worker 0 was lost" in region.core.status().reason


def test_a_worker_whose_stand_by_is_lost_meanwhile_is_launched() -> None:
    region = with_state()
    region.die(0)
    region.play(LinkDown(link_of(0), "reset by peer"), WorkerEnded(0, STANDBY, "killed by signal 9"))
    region.take()
    reopened(region)
    launched = [(one.worker, one.beside) for one in region.take(LaunchWorker)]
    assert (0, False) in launched
    assert standbys(region) == [None, None]


def test_with_local_recovery_only_that_of_the_lost_worker_restores() -> None:
    region = with_state("local")
    region.die(0)
    assert not any(isinstance(one, LaunchWorker) for one in region.out)
    [(link, order)] = region.sent(Restore)
    assert (link, order.takes_over, order.worker) == (link_of(0), True, 0)
    assert (region.state, standbys(region)) == (RegionState.RUNNING, [None, 1])


@pytest.mark.parametrize("recovery", ["global", "local"])
def test_a_load_under_way_is_waited_for(recovery: str) -> None:
    region = with_state(recovery)
    region.commit(2)
    region.tick(limits.standby_load_s + 1)
    region.take()
    region.die(0)
    if recovery == "global":
        reopened(region)
        assert region.sent(Restore) == []
        copied(region, 1, 2)
    assert region.sent(Restore) == []
    copied(region, 0, 2)
    assert link_of(0) in [link for link, _ in region.sent(Restore)]


@pytest.mark.parametrize("recovery", ["global", "local"])
def test_a_load_that_takes_too_long_is_not_waited_for(recovery: str) -> None:
    region = with_state(recovery)
    region.commit(2)
    region.tick(limits.standby_load_s + 1)
    region.die(0)
    if recovery == "global":
        reopened(region)
    region.take()
    for worker in range(2):
        region.links[worker] = link_of(worker)
    region.tick(limits.standby_wait_s + 1)
    assert link_of(0) in [link for link, _ in region.sent(Restore)]


def test_a_stand_by_without_all_of_a_state_takes_no_place() -> None:
    region = running()
    joined(region, 0)
    copied(region, 0, done=False)
    region.take()
    region.die(0)
    reopened(region)
    assert region.take(LaunchWorker) == [LaunchWorker(0, STANDBY + 1, False)]


def test_a_planned_change_continues_with_what_its_workers_hold() -> None:
    region = with_state()
    region.core.run.changing = True
    region.play(ResetWanted())
    reopened(region)
    assert region.take(CancelWorker) == []
    assert standbys(region) == [1, 1]


def test_stand_bys_of_workers_that_leave_end() -> None:
    region = with_state()
    leaving = region.core.run.roster.resize(1)
    assert [(worker.index, worker.attempt) for worker in leaving] == [(1, 1), (1, STANDBY)]
    assert [one.index for one in region.core.run.roster.standing_by] == [0]
    assert all(worker.state is WorkerState.JOINED for worker in region.core.run.roster.standing_by)


def test_the_estimate_of_a_recovery_counts_no_launch_and_no_state_that_is_loaded() -> None:
    region = running()
    before = region.core.status().recovery
    for worker in range(2):
        joined(region, worker)
        copied(region, worker)
    after = region.core.status().recovery
    assert before is not None
    assert after is not None
    assert before.state_bytes > after.state_bytes == 0
    assert after.launch_s == 0


def test_operators_without_checkpoints_have_no_state_to_load() -> None:
    with pytest.raises(ValueError, match="warm_standby needs checkpoints"):
        spec(2, warm_standby=True, without_checkpoints=True)
