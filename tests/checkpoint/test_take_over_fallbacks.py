"""What cannot be recovered by a take-over resets all workers, and the report names the reason."""

from collections.abc import Callable

import pytest

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointWanted,
    LaunchWorker,
    OpenManifest,
    ScaleWanted,
    WorkerEnded,
    WorkerHosted,
)
from checkpoint.core.coordination.workers import WorkerState
from checkpoint.core.links.messages import Failed, Restore, Restored, View
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.test_taking_over import (
    FIRST,
    KILLED,
    appended,
    joins,
    reset_of_all,
    restored,
    running,
    voted,
)

INSTEAD = "; all workers are reset: "


def killed(region: CoordinatorHarness, worker: int = 1) -> None:
    region.die(worker, region.core.run.roster[worker].attempt)


def of_a_graph_that_is_not_deterministic() -> CoordinatorHarness:
    return running(resets_because="operator 'words' is not deterministic")


def being_changed() -> CoordinatorHarness:
    region = running()
    region.play(ScaleWanted(4))
    region.take()
    return region


def another_one_being_taken_over() -> CoordinatorHarness:
    region = running()
    killed(region, 2)
    joins(region, 2)
    region.take()
    return region


def the_same_one_being_taken_over() -> CoordinatorHarness:
    region = running()
    killed(region)
    joins(region, 1)
    region.take()
    return region


def lost_before_without_a_checkpoint_since() -> CoordinatorHarness:
    region = the_same_one_being_taken_over()
    restored(region)
    region.take()
    return region


def at_its_end() -> CoordinatorHarness:
    """The final checkpoint is committed."""
    region = running()
    for worker in range(3):
        region.progress(worker, step=8, exhausted=True)
    for worker in range(3):
        voted(region, worker, FIRST, checkpoint=2, step=9)
    assert appended(region).final
    region.take()
    return region


@pytest.mark.parametrize(
    ("prepared", "reason"),
    [
        (of_a_graph_that_is_not_deterministic, f"{KILLED}{INSTEAD}operator 'words' is not deterministic"),
        (being_changed, f"{KILLED}{INSTEAD}the workers of the region are being changed"),
        (another_one_being_taken_over, f"{KILLED}{INSTEAD}worker 2 was being taken over"),
        (
            the_same_one_being_taken_over,
            f"{KILLED}{INSTEAD}it was lost before, and no checkpoint was committed since",
        ),
        (
            lost_before_without_a_checkpoint_since,
            f"{KILLED}{INSTEAD}it was lost before, and no checkpoint was committed since",
        ),
        (at_its_end, f"{KILLED}{INSTEAD}the region has processed all of its input"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_loss_resets_all_workers_and_the_reset_names_the_reason(
    prepared: Callable[[], CoordinatorHarness], reason: str
) -> None:
    region = prepared()
    killed(region)
    assert region.core.status().reason == reason
    report = reset_of_all(region)
    assert (report.worker, report.reason) == (1, reason)


def test_the_loss_of_the_only_worker_is_a_reset() -> None:
    region = running(workers=1)
    killed(region, 0)
    assert reset_of_all(region).reason == f"{KILLED.replace('1', '0')}{INSTEAD}it is the only worker"


def test_a_loss_before_all_have_started_is_a_reset() -> None:
    region = running()
    region.receive(0, Failed, kind="peer", peer=1, message="x")
    region.opened(region.core.run.last_checkpoint, epoch=2 * FIRST)
    region.receive(0, Restored, last_step=5)
    region.take()
    killed(region)
    assert region.core.status().reason == f"{KILLED}{INSTEAD}the region does not run"
    region.tick(1)  # the second reset in a row begins with a delay
    assert [order.step for order in region.take(OpenManifest)] == [FIRST]


def test_a_committed_checkpoint_lets_the_same_worker_be_taken_over_again() -> None:
    region = lost_before_without_a_checkpoint_since()
    region.play(CheckpointWanted())
    for worker, term in ((0, FIRST), (1, FIRST + 1), (2, FIRST)):
        voted(region, worker, term, checkpoint=2, step=9)
    appended(region)
    killed(region)
    assert region.take(OpenManifest) == []
    joins(region, 1, attempt=3)
    assert [order.epoch for _, order in region.sent(Restore)] == [FIRST + 2]


def test_a_process_that_ends_before_it_joins_is_a_second_loss() -> None:
    region = running()
    killed(region)
    region.take()
    region.play(WorkerEnded(1, 2, "ImportError: no module named x"))
    report = reset_of_all(region)
    assert report.reason == (
        f"worker 1 was lost: ImportError: no module named x{INSTEAD}it was lost before, and no checkpoint was"
        " committed since"
    )


@pytest.mark.parametrize("noted_after", [False, True], ids=["hosted", "hosted-after-the-loss"])
def test_a_worker_whose_host_is_lost_before_it_joined_gets_a_process_of_its_own(noted_after: bool) -> None:
    """Nobody reports its end: the launcher knows nothing of it, and it has no link."""
    region = running()
    killed(region)
    assert [(order.host, order.attempt) for order in region.take(LaunchWorker)] == [(0, 2)]
    hosted = WorkerHosted(1, 2, host=0)
    if noted_after:
        killed(region, 0)
        region.play(hosted)
    else:
        region.play(hosted)
        killed(region, 0)
    assert [order.step for order in region.take(OpenManifest)] == [FIRST]
    region.opened(region.core.run.last_checkpoint, epoch=region.epoch + FIRST)
    region.tick(1)
    launched = [order for order in region.take(LaunchWorker) if order.worker == 1]
    assert [(order.host, order.attempt) for order in launched] == [(None, 3)]


def test_a_region_whose_last_checkpoint_is_committed_meanwhile_is_reset() -> None:
    region = running()
    for worker in range(3):
        region.progress(worker, step=8, exhausted=True)
    for worker in range(3):
        voted(region, worker, FIRST, checkpoint=2, step=9)
    (append,) = region.take(AppendCheckpoint)
    killed(region)
    joins(region, 1)
    assert region.sent(Restore, View) == []
    region.play(CheckpointAppended(append.checkpoint))
    reason = f"{KILLED}{INSTEAD}meanwhile the region has processed all of its input"
    assert reset_of_all(region).reason == reason


def test_a_take_over_that_takes_too_long_is_given_up() -> None:
    region = running(reset_timeout_s=30.0)
    killed(region)
    region.tick(20)
    joins(region, 1)
    region.tick(9)
    assert region.take(OpenManifest) == []
    region.tick(2)
    report = reset_of_all(region)
    assert report.reason == f"{KILLED}; it was not taken over within reset_timeout 30 s"


def test_the_timer_of_a_take_over_ends_with_it() -> None:
    region = running(reset_timeout_s=30.0)
    killed(region)
    joins(region, 1)
    restored(region)
    region.take()
    region.tick(60)
    assert region.take(OpenManifest) == []


@pytest.mark.parametrize("kind", ["peer", "reset", "fenced"])
def test_a_failure_that_a_survivor_reports_meanwhile_resets_all(kind: str) -> None:
    region = running()
    killed(region)
    joins(region, 1)
    region.take()
    text = "it needs the steps after 5, and those up to 7 are not retained any more"
    region.receive(0, Failed, kind=kind, message=text)
    report = reset_of_all(region)
    assert report.reason.endswith(text)
    assert report.worker == 0


def test_a_survivor_that_fails_for_an_unknown_reason_is_a_second_loss() -> None:
    region = running()
    killed(region)
    joins(region, 1)
    region.take()
    region.receive(0, Failed, kind="internal", message="MemoryError", traceback="tb")
    report = reset_of_all(region)
    assert report.reason == f"worker 0 was lost: MemoryError{INSTEAD}worker 1 was being taken over"


def test_a_new_process_that_fails_is_a_second_loss_without_an_order_of_its_own() -> None:
    region = the_same_one_being_taken_over()
    region.receive(1, Failed, epoch=FIRST + 1, kind="internal", message="MemoryError")
    assert "it was lost before" in reset_of_all(region).reason


def test_terms_of_one_incarnation_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two terms fit between two incarnations of this test: the incarnation itself, and one more."""
    monkeypatch.setattr(limits, "terms_per_incarnation", 2)
    region = running()
    killed(region)
    joins(region, 1)
    restored(region)
    killed(region, 2)
    assert region.core.status().reason == (
        f"{KILLED.replace('1', '2')}{INSTEAD}workers were taken over too often since the last reset"
    )


def test_with_global_recovery_the_reason_is_the_loss_alone() -> None:
    region = CoordinatorHarness(3).run()
    killed(region)
    assert region.core.status().reason == KILLED
    assert region.core.run.roster[1].state is WorkerState.LAUNCHED
    assert region.take(LaunchWorker) == [LaunchWorker(1, 2)]
