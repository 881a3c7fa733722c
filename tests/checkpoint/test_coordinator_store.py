"""The coordinator waits for its store, is fenced by a newer driver, or cannot restore what it finds there."""

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CancelWorker,
    CheckpointWanted,
    CoordinatorTick,
    End,
    LaunchWorker,
    ManifestLost,
    ManifestTaken,
    ManifestUnreadable,
    OpenManifest,
    StopWanted,
    StoreWaiting,
    WorkerEnded,
)
from checkpoint.core.links.messages import (
    Counters,
    Failed,
    Progress,
    Restore,
    Stop,
)
from checkpoint.core.region import RegionState
from checkpoint.errors import ManifestError, RegionFencedError
from tests.checkpoint.coordinator_harness import CoordinatorHarness


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
    for worker in (0, 1):
        region.vote(worker, 1)
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
    for worker in (0, 1):
        region.vote(worker, 1)
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
    other = CoordinatorHarness(operators={"count": "count(word binary)"})
    other.opened(checkpoint)
    assert "operator 'count' was count(word string), is count(word binary)" in other.core.run.reason
    assert other.sent(Restore) == []
    smaller = CoordinatorHarness(1, keeps_workers="'own' has no rule for it (declare one)")
    smaller.opened(checkpoint)
    assert (
        "it was made by 2 workers, the region has 1 worker: 'own' has no rule for it (declare one)"
        in smaller.core.run.reason
    )
    assert smaller.sent(Restore) == []
