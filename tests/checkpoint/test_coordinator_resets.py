"""The coordinator resets the region after failures of workers, and counts the attempts."""

from checkpoint.core.coordination.vocabulary import (
    CancelWorker,
    CheckpointWanted,
    CoordinatorTick,
    End,
    LaunchWorker,
    LinkDown,
    MessageRefused,
    NotifyObservers,
    OpenManifest,
    ResetWanted,
    SendControl,
    WorkerEnded,
)
from checkpoint.core.coordination.workers import WorkerState
from checkpoint.core.links.messages import (
    CompanionReport,
    Counters,
    Failed,
    Progress,
    Restore,
    Restored,
    Start,
)
from checkpoint.core.region import RegionState, ResetReport
from checkpoint.errors import RegionFailedError
from tests.checkpoint.coordinator_harness import CoordinatorHarness


def test_a_reset_takes_the_manifest_first_and_orders_after() -> None:
    # EVIDENCE-OF: P-4, P-6
    region = CoordinatorHarness().run()
    checkpoint = region.commit()
    region.take()
    region.play(LinkDown(100, "reset by peer"))
    effects = region.take()
    assert [e for e in effects if isinstance(e, OpenManifest)] == [OpenManifest(above=0, held=1)]
    assert not any(isinstance(e, SendControl | CancelWorker | LaunchWorker) for e in effects)
    region.opened(checkpoint)
    assert region.take(CancelWorker, LaunchWorker) == [CancelWorker(0, 1), LaunchWorker(0, 2)]
    region.join(0, attempt=2)
    orders = region.sent(Restore)
    assert [(order.incarnation, order.checkpoint, order.restore) for _, order in orders] == [
        (2, 1, checkpoint),
        (2, 1, checkpoint),
    ]


def test_a_worker_known_dead_is_launched_again_at_once() -> None:
    region = CoordinatorHarness().run()
    region.die(0)
    assert region.take(LaunchWorker, CancelWorker) == [LaunchWorker(0, 2)]


def test_a_hung_worker_is_fenced_first_then_cancelled() -> None:
    region = CoordinatorHarness().run()
    region.tick(10, silent=(1,))
    assert region.state is RegionState.RUNNING
    region.tick(1, silent=(1,))
    effects = region.take()
    assert any(isinstance(e, OpenManifest) for e in effects)
    assert not any(isinstance(e, CancelWorker) for e in effects)
    assert "nothing was received from it for" in region.core.run.reason
    region.opened()
    assert region.take(CancelWorker, LaunchWorker) == [CancelWorker(1, 1), LaunchWorker(1, 2)]


def test_time_in_which_the_own_loop_was_late_counts_against_nobody() -> None:
    region = CoordinatorHarness().run()
    region.tick(5)
    region.now += 60.0
    region.play(CoordinatorTick(region.now - 59.0))
    assert region.state is RegionState.RUNNING
    assert region.take(OpenManifest) == []


def test_two_workers_lost_at_one_time_are_one_attempt() -> None:
    region = CoordinatorHarness(max_consecutive_reset_attempts=1).run()
    region.die(0)
    region.die(1)
    assert region.core.status().reset_attempts == 1
    region.opened()
    region.join(0, 2)
    region.join(1, 2)
    region.receive_from_all(Restored, last_step=0, replayed_bytes=10)
    assert region.state is RegionState.RUNNING
    (report,) = [e.event for e in region.take(NotifyObservers) if isinstance(e.event, ResetReport)]
    assert (report.worker, report.bytes, report.incarnation) == (0, 20, 2)
    assert report.reason.startswith("worker 0 was lost: its control link is gone")


def test_a_reset_names_the_place_its_time_went() -> None:
    """One after the other, so that the sum is the whole; of the workers the slowest one counts."""
    region = CoordinatorHarness().run()
    region.die(1)
    region.now += 1.0
    region.opened()
    region.now += 2.0
    region.join(1, 2)
    region.now += 4.0
    quick, slow = {"claim": 0.25, "load": 0.25}, {"claim": 0.5, "load": 3.0}
    region.receive(0, Restored, last_step=0, seconds=0.5, phases_s=quick)
    region.receive(1, Restored, last_step=0, seconds=3.5, phases_s=slow)
    (report,) = [e.event for e in region.take(NotifyObservers) if isinstance(e.event, ResetReport)]
    assert report.phases_s == {"manifest": 1.0, "gather": 2.0, "claim": 0.5, "load": 3.0, "start": 0.5}
    assert report.seconds == sum(report.phases_s.values())


def reset_after_death(region, attempt):
    """Worker 1 dies in this attempt, and all are restored with its next one."""
    region.die(1, attempt)
    region.opened(region.core.run.last_checkpoint)
    region.tick(1)
    region.join(1, attempt + 1)
    region.receive_from_all(Restored, last_step=0)


def test_attempts_run_out_clearly_and_a_committed_checkpoint_forgives_them() -> None:
    # EVIDENCE-OF: P-10
    region = CoordinatorHarness(max_consecutive_reset_attempts=2).run()
    reset_after_death(region, attempt=1)
    reset_after_death(region, attempt=2)
    assert region.core.status().reset_attempts == 2
    region.commit()
    assert region.core.status().reset_attempts == 0
    reset_after_death(region, attempt=3)
    reset_after_death(region, attempt=4)
    region.take()
    region.die(1, attempt=5)
    assert "no checkpoint was committed after 2 consecutive resets" in region.core.run.reason
    assert "worker 1" in region.core.run.reason
    assert region.take(OpenManifest, LaunchWorker) == []


def test_a_worker_that_cannot_start_is_tried_again_more_and_more_slowly_then_it_fails() -> None:
    region = CoordinatorHarness(max_consecutive_reset_attempts=5)
    region.opened()
    region.join(0)
    launched = []
    for attempt in range(1, 7):
        assert not region.core.run.over
        region.take()
        region.play(WorkerEnded(1, attempt, "ImportError: no module named x"))
        began = region.now
        while not region.core.run.over and region.core.run.roster[1].attempt == attempt:
            region.now = region.core.deadline()
            region.receive(0, Progress, counters=Counters())
            region.play(CoordinatorTick(region.now))
        launched.append(round(region.now - began, 3))
    assert launched[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert region.core.run.over
    assert "ImportError" in region.core.run.reason


def test_a_fenced_worker_lets_the_next_incarnation_go_above_what_it_met() -> None:
    region = CoordinatorHarness().run()
    region.receive(0, Failed, kind="fenced", message="its directory is claimed with epoch 41", epoch_held=41)
    assert region.take(OpenManifest) == [OpenManifest(above=41, held=1)]
    assert region.core.run.roster[0].state is WorkerState.JOINED


def test_a_broken_link_between_workers_resets_without_ending_anyone() -> None:
    region = CoordinatorHarness().run()
    region.receive(0, Failed, kind="peer", peer=1, message="worker 1 cannot be reached at h:2")
    region.opened()
    assert [order.incarnation for _, order in region.sent(Restore)] == [2, 2]
    assert region.take(CancelWorker, LaunchWorker) == []


def test_the_worker_that_was_lost_is_the_reason_not_the_one_that_noticed() -> None:
    region = CoordinatorHarness().run()
    region.receive(0, Failed, kind="peer", peer=1, message="its link to worker 1 broke")
    region.die(1)
    region.opened()
    region.join(1, attempt=2)
    region.receive_from_all(Restored, last_step=0)
    (report,) = [e.event for e in region.take(NotifyObservers) if isinstance(e.event, ResetReport)]
    assert report.worker == 1
    assert report.reason.startswith("worker 1 was lost")


def test_a_failure_of_a_life_that_is_over_changes_nothing() -> None:
    region = CoordinatorHarness().run()
    region.receive(0, Failed, kind="peer", message="x", incarnation=0)
    region.receive(0, Failed, kind="operator", message="x", incarnation=0)
    assert region.state is RegionState.RUNNING
    assert [e.refusal.name for e in region.take(MessageRefused)] == ["STALE_INCARNATION"] * 2


def test_a_report_restored_of_an_earlier_incarnation_starts_nobody() -> None:
    region = CoordinatorHarness().run()
    region.receive(0, Failed, kind="peer", message="x")
    region.opened()
    region.take()
    region.receive_from_all(Restored, last_step=0, incarnation=1)
    assert region.sent(Start) == []
    assert region.state is RegionState.RESTORING


def test_user_code_that_raises_stops_the_region_with_name_position_and_traceback() -> None:
    region = CoordinatorHarness().run()
    region.receive(
        0,
        Failed,
        kind="operator",
        operator="words",
        position="lines[3] byte 42",
        message="ValueError: x",
        traceback="tb",
    )
    error = region.core.run.outcome.error
    assert isinstance(error, RegionFailedError)
    assert "operator 'words' failed in worker 0 at lines[3] byte 42: ValueError: x" in str(error)
    assert error.traceback_text == "tb"
    region.play(WorkerEnded(0, 1, "signal 9"), WorkerEnded(1, 1, None))  # it was killed for that
    assert [(e.state, e.error) for e in region.take(End)] == [(RegionState.FAILED, error)]
    assert "operator 'words' failed" in region.core.status().workers[0].error


def test_a_failed_check_of_files_names_the_host_that_has_them() -> None:
    region = CoordinatorHarness().run()
    region.receive(1, Failed, kind="manifest", message="CorruptDataError: /out/part-w0001.tsv at byte 0")
    text = "a check failed in worker 1 on host h: CorruptDataError: /out/part-w0001.tsv at byte 0"
    assert region.core.run.reason == text


def test_user_code_that_reports_a_failure_resets_the_region_and_spends_an_attempt() -> None:
    region = CoordinatorHarness(max_consecutive_reset_attempts=1).run()
    failure = {"operator": "words", "position": "byte 42", "message": "away", "traceback": "tb"}
    region.receive(0, Failed, kind="reset", **failure)
    assert region.core.rounds.attempts == 1
    assert region.core.run.reason == "operator 'words' failed in worker 0 at byte 42: away"
    region.opened()
    assert [order.incarnation for _, order in region.sent(Restore)] == [2, 2]
    assert region.take(CancelWorker, LaunchWorker) == [], "nobody is ended"
    region.receive(0, Failed, kind="reset", incarnation=2, **failure)
    error = region.core.run.outcome.error
    assert isinstance(error, RegionFailedError)
    assert (
        "no checkpoint was committed after 1 consecutive resets; last reason: operator 'words' failed"
        in str(error)
    )
    assert error.traceback_text == "tb"


def test_a_worker_that_does_not_vote_in_time_is_lost_and_cancelled() -> None:
    region = CoordinatorHarness(drain_timeout_s=30.0).run()
    region.play(CheckpointWanted())
    region.vote(0, 1)
    region.tick(31)
    assert "worker 1 was lost: no vote for checkpoint 1 within drain_timeout 30 s" in region.core.run.reason
    region.opened()
    assert CancelWorker(1, 1) in region.take()
    assert region.core.run.roster[0].state is WorkerState.JOINED


def test_a_worker_that_does_not_restore_in_time_is_lost() -> None:
    region = CoordinatorHarness(reset_timeout_s=30.0)
    region.opened()
    region.join(0)
    region.join(1)
    region.receive(1, Restored, last_step=0)
    region.tick(31)
    assert "worker 0 was lost: it did not restore within reset_timeout 30 s" in region.core.run.reason


def test_a_reset_by_hand_spends_no_attempt() -> None:
    region = CoordinatorHarness(max_consecutive_reset_attempts=0).run()
    region.play(ResetWanted())
    assert region.take(OpenManifest) == [OpenManifest(above=0, held=1)]
    region.opened()
    region.receive_from_all(Restored, last_step=0)
    assert region.state is RegionState.RUNNING
    assert region.core.status().reset_attempts == 0


# --- companions -------------------------------------------------------------------------------------


def says(region: CoordinatorHarness, worker: int, **fields: object) -> None:
    region.receive(worker, CompanionReport, **{"attempt": 1, "operator": "regex", **fields})


def test_a_worker_whose_companion_says_that_it_lives_may_be_silent_for_drain_timeout() -> None:
    region = CoordinatorHarness(drain_timeout_s=60.0).run()
    for second in range(60):
        says(region, 1, seconds=float(second))
        region.tick(1, silent=(1,))
        assert region.state is RegionState.RUNNING
    status = region.core.status()
    assert status.reason == "worker 1: operator 'regex' has been in user code for 59 s"
    assert (status.workers[1].operator, status.workers[1].operator_s) == ("regex", 59.0)
    says(region, 1, seconds=60.0)
    region.tick(1, silent=(1,))
    assert (
        "operator 'regex' has been in user code for 60 s, above drain_timeout 60 s" in region.core.run.reason
    )


def test_a_stopped_worker_is_lost_although_its_companion_reports() -> None:
    region = CoordinatorHarness().run()
    for _ in range(11):
        says(region, 1, stopped=True)
        region.tick(1, silent=(1,))
    assert "its process is stopped, in operator 'regex'" in region.core.run.reason


def test_the_loss_of_a_worker_waits_for_what_its_companion_says_ran() -> None:
    region = CoordinatorHarness().run()
    says(region, 0)
    region.play(LinkDown(100, "reset by peer"))
    assert region.state is RegionState.RUNNING
    region.play(WorkerEnded(0, 1, "its process 7 ended with signal 11"))
    says(region, 0, ended=True, attempt=2)
    assert region.state is RegionState.RUNNING, "that was another process"
    says(region, 0, ended=True)
    assert region.state is RegionState.RESTORING
    text = "worker 0 was lost: its process 7 ended with signal 11; operator 'regex' was running"
    assert region.core.run.reason == text
    assert region.take(LaunchWorker) == [LaunchWorker(0, 2)]


def test_sinks_that_made_a_checkpoint_durable_when_the_process_ended_are_named() -> None:
    region = CoordinatorHarness().run()
    says(region, 0, operator="")
    says(region, 0, operator="", sinks="out, more", ended=True)
    region.play(WorkerEnded(0, 1, "its process 7 ended with signal 11"))
    text = "worker 0 was lost: its process 7 ended with signal 11; sink 'out, more' made a checkpoint durable"
    assert region.core.run.reason == text


def test_the_loss_of_a_worker_does_not_wait_long_for_a_companion_that_says_nothing() -> None:
    region = CoordinatorHarness().run()
    says(region, 0)
    region.play(LinkDown(100, "reset by peer"))
    region.now += 0.6
    region.play(CoordinatorTick(region.now))
    assert region.core.run.reason == "worker 0 was lost: its control link is gone: reset by peer"


def test_what_ran_is_in_the_reason_of_a_region_that_failed() -> None:
    region = CoordinatorHarness(max_consecutive_reset_attempts=0).run()
    says(region, 0)
    says(region, 0, ended=True)
    region.play(LinkDown(100, "reset by peer"))
    outcome = region.core.run.outcome
    assert outcome is not None
    assert outcome.state is RegionState.FAILED
    assert outcome.reason.endswith("reset by peer; operator 'regex' was running")


def test_a_manifest_that_ends_below_what_was_committed_is_not_restored() -> None:
    region = CoordinatorHarness().run()
    region.commit(1, step=5)
    older = region.core.run.last_checkpoint
    region.commit(2, step=9)
    region.play(ResetWanted())
    region.opened(older)
    assert "it is the last in the manifest, but checkpoint 2 was committed" in region.core.run.reason
