"""The coordinator of a region: it starts its workers, commits checkpoints, resets after losses, waits for its
store and ends. The test plays the workers, the manifest and the launcher (`coordinator_harness.py`).
"""

import pytest

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.coordination.coordinator import VISIBLE_STATES
from checkpoint.core.coordination.run import PHASES, CoordinatorPhase
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CancelWorker,
    CheckpointAppended,
    CheckpointWanted,
    CloseLink,
    ControlReceived,
    CoordinatorTick,
    End,
    LaunchWorker,
    LinkDown,
    ManifestLost,
    ManifestSuperseded,
    ManifestTaken,
    ManifestUnreadable,
    MessageRefused,
    OpenManifest,
    ResetWanted,
    ScaleWanted,
    SendControl,
    StopWanted,
    StoreWaiting,
    WorkerEnded,
)
from checkpoint.core.coordination.workers import WORKERS, WorkerState
from checkpoint.core.links.messages import (
    VERSIONS,
    Committed,
    CompanionReport,
    Counters,
    Failed,
    Finished,
    Heartbeat,
    Join,
    Pause,
    Paused,
    Progress,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Stop,
    Vote,
    WantsCheckpoint,
)
from checkpoint.core.progress import status_json, under_way_text
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.core.region import CheckpointCommitted, RegionState, ResetReport
from checkpoint.errors import ManifestError, RegionFailedError, RegionFencedError
from checkpoint.limits import reset_forgiven_s
from dos_protocol.errors import LocalProtocolError
from journal.core.chain import Position
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import notes
from tests.checkpoint.region_model import spec

# --- start ------------------------------------------------------------------------------------------------


def test_no_order_goes_out_before_the_manifest_start_is_acknowledged() -> None:
    # EVIDENCE-OF: P-4
    region = CoordinatorHarness()
    assert region.take(OpenManifest) == [OpenManifest(above=0, held=0)]
    region.join(0)
    region.join(1)
    assert region.sent(Restore, Start, RequestCheckpoint, Committed) == []
    assert region.state is RegionState.STARTING
    region.opened(epoch=7)
    orders = region.sent(Restore)
    assert [(link, order.incarnation, order.restore) for link, order in orders] == [
        (100, 7, None),
        (101, 7, None),
    ]
    assert [(peer.host, peer.port) for peer in orders[0][1].peers] == [("h", 1), ("h", 2)]


def test_workers_are_launched_while_the_manifest_is_opened() -> None:
    assert CoordinatorHarness().take(LaunchWorker) == [LaunchWorker(0, 1), LaunchWorker(1, 1)]


def test_all_start_together_and_replay_what_all_have_on_record() -> None:
    region = CoordinatorHarness()
    region.opened()
    region.join(0)
    region.join(1)
    region.take()
    region.receive(0, Restored, last_step=9)
    assert region.sent(Start) == []
    region.receive(1, Restored, last_step=7)
    assert [order.replay_until_step for _, order in region.sent(Start)] == [7, 7]


def test_two_coordinators_that_start_together_wait_a_random_doubling_time() -> None:
    region = CoordinatorHarness()
    region.take()
    waits = []
    for _ in range(8):
        region.play(ManifestSuperseded(5, 0.5))
        assert region.take(OpenManifest) == []
        waits.append(round(region.core.run.timers._due["open"] - region.now, 6))
        region.now = region.core.run.timers._due["open"]
        region.play(CoordinatorTick(region.now))
        assert len(region.take(OpenManifest)) == 1
    assert waits[:3] == [0.05, 0.1, 0.2]
    assert waits[-1] == 2.5


def test_where_an_attempt_takes_long_the_wait_is_long_beside_it() -> None:
    """On paths of a second each attempt takes some: waits of at most five would meet the others' attempts
    again and again. What an attempt waited for the store beforehand counts no more than its patience."""
    region = CoordinatorHarness()
    region.take()
    waits = []
    for _ in range(4):
        region.play(ManifestSuperseded(5, 1.0, attempt_s=6.0))
        waits.append(round(region.core.run.timers._due["open"] - region.now, 6))
        region.now = region.core.run.timers._due["open"]
        region.play(CoordinatorTick(region.now))
        region.take()
    assert waits == [12.1, 24.2, 29.0, 29.0]
    region.play(ManifestSuperseded(5, 1.0, attempt_s=600.0))
    assert region.core.run.timers._due["open"] - region.now == pytest.approx(45.0)


def test_workers_that_do_not_come_fail_the_start_by_name() -> None:
    region = CoordinatorHarness(start_timeout_s=20.0)
    region.opened()
    region.join(0)
    region.tick(21)
    assert "worker 1 did not join within 20 s" in region.core.run.reason
    assert region.state is RegionState.STOPPING
    assert [message.kind for _, message in region.sent(Stop)] == ["failed"]
    assert isinstance(region.core.run.outcome.error, RegionFailedError)


def test_a_stranger_a_wrong_worker_and_an_old_attempt_are_turned_away() -> None:
    region = CoordinatorHarness().run()
    region.join(5, link=1)
    region.join(1, attempt=1, link=2)
    region.play(ControlReceived(3, Progress(job="region", worker=0, counters=Counters())))
    region.play(
        ControlReceived(
            100,
            Join(
                job="other",
                worker=0,
                attempt=1,
                pid=1,
                host="",
                exchange_host="",
                exchange_port=1,
                speaks=VERSIONS,
            ),
        )
    )
    effects = region.take(SendControl, CloseLink, MessageRefused)
    assert [e.message.kind for e in effects if isinstance(e, SendControl)] == ["refused", "superseded"]
    assert [e.link for e in effects if isinstance(e, CloseLink)] == [1, 2]
    names = [e.refusal.name for e in effects if isinstance(e, MessageRefused)]
    assert names == ["UNKNOWN_WORKER", "STALE_ATTEMPT", "UNKNOWN_WORKER", "WRONG_JOB"]
    assert region.state is RegionState.RUNNING


def test_an_attempt_that_was_replaced_cannot_join() -> None:
    region = CoordinatorHarness()
    region.opened()
    region.play(WorkerEnded(0, 1, "no slot"))
    assert region.take(LaunchWorker)[-1] == LaunchWorker(0, 2)
    region.join(0, attempt=1)
    assert [message.kind for _, message in region.sent(Stop)] == ["superseded"]
    region.join(0, attempt=2)
    assert region.core.run.roster[0].state is WorkerState.JOINED


def test_heartbeats_go_to_every_linked_worker_each_second() -> None:
    region = CoordinatorHarness().run()
    region.tick(3)
    assert [link for link, _ in region.sent(Heartbeat)] == [100, 101] * 3


def test_the_tables_have_a_row_for_every_state_and_every_state_can_be_reached() -> None:
    assert set(PHASES) == set(CoordinatorPhase)
    assert set(WORKERS) == set(WorkerState)
    assert {state for row in PHASES.values() for state in row.values()} == set(CoordinatorPhase) - {
        CoordinatorPhase.NEW
    }
    assert {state for row in WORKERS.values() for state in row.values()} == set(WorkerState) - {
        WorkerState.ABSENT
    }
    assert set(VISIBLE_STATES) == set(CoordinatorPhase) - {CoordinatorPhase.ENDED}


# --- checkpoints ------------------------------------------------------------------------------------------


def test_a_checkpoint_commits_only_by_the_acknowledged_append_after_every_vote() -> None:
    # EVIDENCE-OF: P-6
    region = CoordinatorHarness().run()
    region.progress(0, step=3)
    region.tick(1)
    assert region.requested() == [1, 1]
    region.vote(0, 1)
    assert region.take(AppendCheckpoint, SendControl) == []
    region.vote(1, 1)
    (append,) = region.take()
    assert isinstance(append, AppendCheckpoint)
    checkpoint = append.checkpoint
    assert (
        checkpoint.number,
        checkpoint.step,
        checkpoint.incarnation,
        checkpoint.parent,
        sorted(checkpoint.workers),
    ) == (1, 5, 1, 0, [0, 1])
    assert region.core.status().last_checkpoint == 0
    region.play(CheckpointAppended(checkpoint))
    assert [(order.checkpoint, order.step) for _, order in region.sent(Committed)] == [(1, 5), (1, 5)]
    assert region.core.status().last_checkpoint == 1


def test_checkpoints_follow_one_another_never_two_at_a_time() -> None:
    region = CoordinatorHarness().run()
    region.progress(0, step=3)
    region.tick(1)
    region.tick(3)
    assert region.requested() == [1, 1]
    region.progress(0, step=9)
    region.votes(1, step=5)
    (append,) = region.take(AppendCheckpoint)
    region.tick(2)
    region.play(CheckpointWanted())
    assert region.sent(RequestCheckpoint) == []
    region.play(CheckpointAppended(append.checkpoint))
    assert region.requested() == [2, 2]  # the time had come meanwhile


def test_an_idle_region_makes_no_checkpoints_but_a_user_can_have_one() -> None:
    region = CoordinatorHarness().run()
    region.tick(10)
    assert region.sent(RequestCheckpoint) == []
    region.play(CheckpointWanted())
    assert region.requested() == [1, 1]


def test_a_checkpoint_wanted_while_one_is_under_way_follows_it() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    assert region.requested() == [1, 1]
    for _ in range(3):
        region.play(CheckpointWanted())
    for checkpoint in (1, 2):
        region.votes(checkpoint, step=5)
        region.appended()
        expected = [2, 2] if checkpoint == 1 else []  # nothing is new, and one is enough for all requests
        assert region.requested() == expected


def test_a_wanted_checkpoint_follows_a_reset() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    assert region.requested() == [1, 1]
    region.die(1)
    region.opened()
    region.join(1, attempt=2)
    region.receive_from_all(Restored, last_step=0, incarnation=2)
    region.take()
    region.tick(1)
    assert [(order.checkpoint, order.incarnation) for _, order in region.sent(RequestCheckpoint)] == [
        (1, 2),
        (1, 2),
    ]


def test_where_operators_trigger_checkpoints_time_does_not_and_each_place_gets_one() -> None:
    region = CoordinatorHarness(trigger="operator").run()
    region.progress(0, step=3)
    region.tick(5)
    assert region.sent(RequestCheckpoint) == []
    region.receive(0, WantsCheckpoint, step=3)
    assert region.requested() == [1, 1]
    region.receive(1, WantsCheckpoint, step=6)
    assert region.sent(RequestCheckpoint) == [], "one at a time"
    region.votes(1, step=5)
    region.appended()
    assert region.requested() == [2, 2], "checkpoint 1 does not hold step 6"
    region.votes(2, step=7)
    region.appended()
    region.tick(5)
    assert region.sent(RequestCheckpoint) == []


def test_where_time_triggers_checkpoints_operators_may_request_more() -> None:
    region = CoordinatorHarness(checkpoint_interval_s=100.0).run()
    region.progress(0, step=1)
    assert region.sent(RequestCheckpoint) == []
    region.receive(0, WantsCheckpoint, step=3)
    region.tick(5)
    assert region.requested() == [1, 1]


def test_the_first_step_after_a_pause_is_checkpoint_at_once() -> None:
    region = CoordinatorHarness().run()
    region.tick(10)
    region.take()
    region.progress(0, step=1)
    assert region.requested() == [1, 1]
    region.votes(1, step=2)
    region.appended()
    region.progress(0, step=3)
    assert region.sent(RequestCheckpoint) == []  # its time has not come yet


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"checkpoint": 1, "epoch": 3}, "STALE_INCARNATION"),
        ({"checkpoint": 1, "epoch": 5}, "FUTURE_INCARNATION"),
        ({"checkpoint": 2}, "STALE_CHECKPOINT"),
    ],
)
def test_a_vote_of_another_life_or_number_is_refused_by_name(fields, name) -> None:
    # EVIDENCE-OF: P-4
    region = CoordinatorHarness()
    region.epoch = 3
    region.run()
    assert region.epoch == 4
    region.play(CheckpointWanted())
    region.take()
    region.vote(0, **fields)
    region.vote(1, 1)
    effects = region.take()
    assert [effect.refusal.name for effect in effects] == [name]
    region.vote(0, 1)
    assert len(region.take(AppendCheckpoint)) == 1


def test_a_vote_whose_positions_are_of_another_epoch_is_refused() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.take()
    positions = WorkerCheckpoint(state=Position(9, 1, 1), steps=Position(1, 1, 1))
    region.receive(0, Vote, checkpoint=1, step=5, positions=positions)
    region.vote(1, 1)
    assert [effect.refusal.name for effect in region.take()] == ["STALE_INCARNATION"]


def test_a_vote_of_an_earlier_incarnation_does_not_complete_the_same_number_in_this_one() -> None:
    # EVIDENCE-OF: P-6
    # worker 0 voted for checkpoint 1 in incarnation 1, worker 1 died before it did; checkpoint 1 is asked
    # for again
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.vote(0, 1, epoch=1)
    region.die(1)
    region.opened()
    region.join(1, attempt=2)
    region.receive_from_all(Restored, last_step=0)
    region.play(CheckpointWanted())
    region.take()
    region.vote(1, 1)
    region.vote(0, 1, epoch=1)  # once more, late
    assert region.take(AppendCheckpoint) == []
    region.vote(0, 1)
    (append,) = region.take(AppendCheckpoint)
    assert {part.state.epoch for part in append.checkpoint.workers.values()} == {2}


def test_a_worker_votes_once() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.take()
    region.vote(0, 1, step=5)
    region.vote(0, 1, step=6)
    assert [effect.refusal.name for effect in region.take()] == ["UNEXPECTED"]


def test_votes_for_different_steps_make_no_checkpoint_and_stop_the_region() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.vote(0, 1, step=5)
    region.vote(1, 1, step=6)
    assert region.take(AppendCheckpoint) == []
    assert "different steps: {0: 5, 1: 6}" in region.core.run.reason


def died_during_append():
    """A region whose worker 1 died while checkpoint 1 was appended to the manifest, and that append."""
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.votes(1)
    (append,) = region.take(AppendCheckpoint)
    region.die(1)
    return region, append


def test_an_acknowledgement_of_an_earlier_incarnation_commits_nothing() -> None:
    region, append = died_during_append()
    region.play(CheckpointAppended(append.checkpoint))
    assert region.sent(Committed) == []
    region.opened()
    region.join(1, attempt=2)
    region.receive_from_all(Restored, last_step=0)
    region.play(CheckpointWanted())
    region.votes(1)
    region.play(CheckpointAppended(append.checkpoint))  # of incarnation 1, while the same number is out in 2
    assert region.sent(Committed) == []
    assert region.core.status().last_checkpoint == 0


def test_a_checkpoint_in_doubt_that_is_in_the_manifest_is_restored_and_forgives() -> None:
    # EVIDENCE-OF: P-6
    region, append = died_during_append()
    region.take()
    region.opened(append.checkpoint)
    assert region.events(CheckpointCommitted) != []
    assert region.core.status().reset_attempts == 0
    region.join(1, attempt=2)
    assert [order.restore for _, order in region.sent(Restore)] == [append.checkpoint, append.checkpoint]
    region.receive_from_all(Restored, last_step=5)
    region.play(CheckpointWanted())
    assert region.requested() == [2, 2]


def test_the_status_says_what_a_checkpoint_that_is_under_way_waits_for() -> None:
    region = CoordinatorHarness(workers=5).run()
    assert region.core.status().under_way is None
    region.play(CheckpointWanted())
    region.progress(0, step=4, operator="enrich")
    region.progress(1, step=5)
    region.progress(2, step=5, waiting_for_store=True, waiting_reason="h2:1 is unavailable")
    region.progress(3, step=5, lag_bytes=70)
    region.progress(4, step=3)
    region.vote(1, 1)
    region.tick(2)
    under_way = region.core.status().under_way
    assert under_way is not None
    assert (under_way.checkpoint, under_way.seconds) == (1, 2)
    assert under_way.waits_for == {
        0: "it runs operator 'enrich', after step 4 of 5",
        2: "it waits for a quorum of the store: h2:1 is unavailable",
        3: "70 bytes of it are not synced, after step 5 of 5",
        4: "it waits for rows of other workers, after step 3 of 5",
    }
    assert str(region.core.status()).startswith(
        "WAITING_FOR_STORE, 5 workers, no checkpoint yet; worker 2 waits for"
    )
    votes = "; the next checkpoint waits for worker 0: it runs operator 'enrich', after step 4 of 5"
    assert str(region.core.status()).endswith(f"{votes}, and for 3 more")
    shown = status_json(region.core.status())["underWay"]
    assert under_way_text(shown).startswith("checkpoint 1 has waited 2.0 s for the vote of worker 0: it runs")
    for worker in (0, 2, 3, 4):
        region.vote(worker, 1)
    committing = status_json(region.core.status())["underWay"]
    assert under_way_text(committing) == "checkpoint 1 is being committed"
    region.appended()
    assert region.core.status().under_way is None


# --- resets -----------------------------------------------------------------------------------------------


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
    (report,) = region.events(ResetReport)
    assert (report.worker, report.bytes, report.incarnation) == (0, 20, 2)
    assert report.reason == "worker 0 was lost: killed by signal 9", "not that its link is gone"


def test_the_cause_of_a_loss_counts_also_if_the_launcher_names_it_after_the_next_launch() -> None:
    region = CoordinatorHarness().run()
    region.play(LinkDown(region.links[1], "closed"))
    region.opened()
    assert region.take(LaunchWorker) == [LaunchWorker(1, 2)]
    region.play(WorkerEnded(1, 2 - 1, "killed by signal 9"))
    assert region.core.run.reason == "worker 1 was lost: killed by signal 9"
    region.play(WorkerEnded(0, 0, "of a former attempt"))
    region.join(1, 2)
    region.receive_from_all(Restored, last_step=0)
    (report,) = region.events(ResetReport)
    assert report.reason == "worker 1 was lost: killed by signal 9"
    region.play(WorkerEnded(1, 1, "too late"))
    assert region.core.run.reason == ""


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
    (report,) = region.events(ResetReport)
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
    (report,) = region.events(ResetReport)
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


# --- companions ----------------------------------------------------------------------------------


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


def test_the_launchers_cause_counts_also_if_it_comes_before_the_link_is_gone() -> None:
    region = CoordinatorHarness().run()
    says(region, 0)
    region.play(WorkerEnded(0, 1, "its process 7 ended with signal 11"))
    region.play(LinkDown(100, "reset by peer"))
    says(region, 0, operator="", ended=True)
    assert region.core.run.reason.startswith("worker 0 was lost: its process 7 ended with signal 11")


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


# --- the store, and newer drivers -------------------------------------------------------------------------


def test_without_a_quorum_the_region_waits_kills_nobody_and_spends_nothing() -> None:
    # EVIDENCE-OF: P-10
    region = CoordinatorHarness(drain_timeout_s=30.0).run()
    region.play(CheckpointWanted())
    region.take()
    region.progress(0, waiting_for_store=True)
    region.play(StoreWaiting("2 of 3 members cannot be reached"))
    assert region.state is RegionState.WAITING_FOR_STORE
    region.tick(600)
    assert region.take(OpenManifest, CancelWorker, LaunchWorker) == []
    assert region.core.status().reset_attempts == 0
    region.progress(0, waiting_for_store=False)
    region.play(StoreWaiting(""))
    assert region.state is RegionState.RUNNING
    region.tick(29)
    assert region.state is RegionState.RUNNING
    region.votes(1)
    assert len(region.take(AppendCheckpoint)) == 1


def test_what_the_region_waits_for_is_told_with_the_time_and_the_bytes_that_wait() -> None:
    # EVIDENCE-OF: P-10
    region = CoordinatorHarness().run()
    assert (region.core.status().waiting_s, region.core.status().waiting_bytes) == (0, 0)
    region.progress(
        1, waiting_for_store=True, waiting_reason="h2:1 is unavailable: cannot connect", lag_bytes=700
    )
    region.tick(5)
    region.progress(0, lag_bytes=30)
    status = region.core.status()
    assert status.reason == "worker 1 waits for a quorum of the store: h2:1 is unavailable: cannot connect"
    assert (status.waiting_s, status.waiting_bytes) == (5, 700), "of those that wait"
    region.play(StoreWaiting("the manifest waits for the store: 2 members are needed"))
    assert region.core.status().reason == "the manifest waits for the store: 2 members are needed"
    assert region.core.status().waiting_s == 5, "it is one waiting"
    region.play(StoreWaiting(""))
    region.progress(1)
    assert (region.core.status().waiting_s, region.core.status().reason) == (0, "")


def test_a_worker_that_cannot_restore_for_want_of_the_store_spends_no_attempt() -> None:
    region = CoordinatorHarness(max_consecutive_reset_attempts=0).run()
    region.receive(0, Failed, kind="store", message="1 of 2 members needed answered")
    assert region.take(OpenManifest) == []
    region.tick(1)
    assert len(region.take(OpenManifest)) == 1
    assert not region.core.run.over


def test_stop_ends_a_region_that_waits_for_its_store() -> None:
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted(), StoreWaiting("2 of 3 members cannot be reached"))
    assert region.state is RegionState.WAITING_FOR_STORE
    region.play(StopWanted())
    assert region.state is RegionState.STOPPING
    region.tick(31)
    assert [message.kind for _, message in region.sent(Stop)] == ["stopped", "stopped"]


def test_attempts_in_a_row_are_spread_so_that_they_outlast_a_short_trouble() -> None:
    # EVIDENCE-OF: P-10
    region = CoordinatorHarness().run()
    waits = []
    for _ in range(5):
        region.receive(0, Failed, kind="peer", peer=1, message="worker 1 refused the connection")
        began = region.now
        while not region.take(OpenManifest):
            region.now = region.core.deadline()
            for worker in (0, 1):
                region.receive(worker, Progress, counters=Counters())
            region.play(CoordinatorTick(region.now))
        waits.append(round(region.now - began, 3))
        region.opened()
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0]


def test_a_newer_driver_fences_this_one() -> None:
    # EVIDENCE-OF: P-4
    region = CoordinatorHarness().run()
    region.play(CheckpointWanted())
    region.votes(1)
    region.take()
    region.play(ManifestLost(1, 9))
    assert region.take(OpenManifest) == [OpenManifest(above=0, held=1)]
    region.play(ManifestTaken(9))
    assert [message.kind for _, message in region.sent(Stop)] == ["fenced", "fenced"]
    region.play(WorkerEnded(0, 1, None), WorkerEnded(1, 1, None))
    (end,) = region.take(End)
    assert end.state is RegionState.FENCED
    assert isinstance(end.error, RegionFencedError)
    assert end.error.epoch_held == 9


def test_a_manifest_that_cannot_be_read_fails_with_the_reason() -> None:
    region = CoordinatorHarness()
    error = ManifestError("its record does not decode", checkpoint=4)
    region.play(ManifestUnreadable(error))
    assert region.core.run.outcome.error is error


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_starts() -> None:
    region = CoordinatorHarness().run()
    checkpoint = region.commit()
    other = CoordinatorHarness(operators=notes(count="sum"))
    other.opened(checkpoint)
    assert "operator 'count' was count, is sum" in other.core.run.reason
    assert other.sent(Restore) == []
    smaller = CoordinatorHarness(1, keeps_workers="'own' has no rule for it (declare one)")
    smaller.opened(checkpoint)
    assert (
        "it was made by 2 workers, the region has 1 worker: 'own' has no rule for it (declare one)"
        in smaller.core.run.reason
    )
    assert smaller.sent(Restore) == []


# --- the end ----------------------------------------------------------------------------------------------


def test_exhausted_sources_lead_to_one_final_checkpoint_and_the_end() -> None:
    region = CoordinatorHarness().run()
    region.progress(0, step=4, exhausted=True)
    assert region.sent(RequestCheckpoint) == []
    region.progress(1, step=4, exhausted=True)
    assert [(order.checkpoint, order.final) for _, order in region.sent(RequestCheckpoint)] == [
        (1, True),
        (1, True),
    ]
    region.votes(1)
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
    region.votes(1)
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
    assert region.requested() == [1, 1]
    region.votes(1, 4)
    region.appended()
    effects = region.take(SendControl)
    assert [type(e.message).__name__ for e in effects] == ["Committed", "Committed", "Stop", "Stop"]
    region.play(WorkerEnded(0, 1, None), WorkerEnded(1, 1, None))
    assert [end.state for end in region.take(End)] == [RegionState.STOPPED]


@pytest.mark.parametrize("change", [None, ScaleWanted(3)])
def test_a_region_stops_after_a_checkpoint_of_its_last_step(change: ScaleWanted | None) -> None:
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
        region.votes(checkpoint, step)
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


# --- a region without checkpoints -------------------------------------------------------------------------


def region_without_checkpoints(**fields: object) -> CoordinatorHarness:
    return CoordinatorHarness(without_checkpoints=True, **fields).run()


def test_no_checkpoint_is_asked_for_by_time_by_hand_or_at_the_end() -> None:
    region = region_without_checkpoints(checkpoint_interval_s=1.0)
    for worker in (0, 1):
        region.progress(worker, step=7)
    region.tick(5)
    region.play(CheckpointWanted())
    assert region.sent(RequestCheckpoint) == []
    region.play(StopWanted())
    assert region.core.run.reason == "stopped"
    assert region.sent(RequestCheckpoint) == []


def test_it_is_finished_when_all_input_of_all_workers_is_processed() -> None:
    region = region_without_checkpoints()
    region.progress(0, step=7, exhausted=True)
    assert region.state is RegionState.RUNNING
    region.progress(1, step=7, exhausted=True)
    assert region.core.run.over
    assert region.core.run.reason == "all input is processed"
    assert region.sent(RequestCheckpoint) == []


def restarted(region: CoordinatorHarness, attempt: int) -> None:
    region.die(1, attempt)
    region.opened()
    region.tick(1)
    region.join(1, attempt + 1)
    region.receive_from_all(Restored, last_step=0)


@pytest.mark.parametrize("ran_s", [5, int(reset_forgiven_s) + 5])
def test_running_for_a_while_forgives_resets_as_a_checkpoint_does_elsewhere(ran_s: int) -> None:
    region = region_without_checkpoints(max_consecutive_reset_attempts=2)
    for attempt in (1, 2):
        restarted(region, attempt)
    assert region.core.status().reset_attempts == 2
    region.tick(ran_s)
    region.die(1, 3)
    assert region.core.run.over == (ran_s < reset_forgiven_s)


def test_who_asks_for_a_checkpoint_is_told_that_there_are_none() -> None:
    control = RegionControl(spec(2, without_checkpoints=True))
    for request in (control.checkpoint, control.pause):
        with pytest.raises(LocalProtocolError, match="any consistent region and has no checkpoints"):
            request()
