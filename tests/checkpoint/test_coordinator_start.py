"""The coordinator starts: the manifest is opened, workers are launched, join, and start together."""

import pytest

from checkpoint.core.coordination.coordinator import VISIBLE_STATES
from checkpoint.core.coordination.run import PHASES, CoordinatorPhase
from checkpoint.core.coordination.vocabulary import (
    CloseLink,
    ControlReceived,
    CoordinatorTick,
    LaunchWorker,
    ManifestSuperseded,
    MessageRefused,
    OpenManifest,
    SendControl,
    WorkerEnded,
)
from checkpoint.core.coordination.workers import WORKERS, WorkerState
from checkpoint.core.links.messages import (
    Committed,
    Counters,
    Heartbeat,
    Join,
    Progress,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Stop,
)
from checkpoint.core.region import RegionState
from checkpoint.errors import RegionFailedError
from tests.checkpoint.coordinator_harness import CoordinatorHarness


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
            100, Join(job="other", worker=0, attempt=1, pid=1, host="", exchange_host="", exchange_port=1)
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
