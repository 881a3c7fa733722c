"""The last checkpoint is damaged: what the coordinator decides, without I/O."""

from typing import Any

import msgspec
import pytest

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointsExamined,
    ExaminationWaits,
    ExamineCheckpoints,
    ManifestLost,
    ManifestOpened,
    OpenManifest,
)
from checkpoint.core.links.messages import Failed, Restore, Restored
from checkpoint.core.records.manifest import ChainDamage, Checkpoint, CheckpointDamage, Examination
from checkpoint.core.region import FellBack, RegionState
from checkpoint.errors import CheckpointDamagedError
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.test_taking_over import reports

LOST = ChainDamage(1, "state", "3:140", "state.3.0 ends at 12")


def damage(*numbers: int) -> tuple[CheckpointDamage, ...]:
    return tuple(CheckpointDamage(number, (LOST,)) for number in numbers)


def suspicious(region: CoordinatorHarness, kept: tuple[Checkpoint, ...]) -> ExamineCheckpoints:
    """A worker reports damage in its restore; the region opens its manifest again."""
    region.receive(1, Failed, kind="store", damaged=True, message="chain state names 99 bytes")
    region.tick(10)  # after several attempts in a row, the manifest is opened with a delay
    assert region.take(OpenManifest)
    region.epoch += 1
    region.play(ManifestOpened(region.epoch, kept[-1], kept))
    orders = region.take(ExamineCheckpoints, AppendCheckpoint)
    assert region.sent(Restore) == [], "nobody is ordered before the checkpoints are read"
    (order,) = orders
    assert isinstance(order, ExamineCheckpoints)
    assert (order.incarnation, order.kept) == (region.epoch, kept)
    return order


def restoring(**fields: Any) -> tuple[CoordinatorHarness, tuple[Checkpoint, ...]]:
    """A region with checkpoints 1 to 3, of steps 5, 10 and 15, that is reset."""
    region = CoordinatorHarness(**fields).run()
    for number in (1, 2, 3):
        region.commit(number, step=5 * number)
    region.take()
    return region, region.core.run.kept


def end(region: CoordinatorHarness) -> CheckpointDamagedError:
    outcome = region.core.run.outcome
    assert outcome is not None
    assert outcome.state is RegionState.FAILED
    assert isinstance(outcome.error, CheckpointDamagedError)
    return outcome.error


def test_a_region_does_not_fall_back_to_a_checkpoint_of_another_graph() -> None:
    region, kept = restoring(on_damaged="previous")
    kept = (kept[0], msgspec.structs.replace(kept[1], operators={"sum": "sum"}), kept[2])
    order = suspicious(region, kept)
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3), 2)))
    assert region.take(AppendCheckpoint) == []
    error = end(region)
    assert "checkpoint 2 is whole, but" in str(error)
    assert "operator 'sum' is in the stored state and not in this graph" in str(error)


def test_by_default_a_region_with_a_damaged_checkpoint_fails_with_what_is_damaged_and_what_is_whole() -> None:
    region, kept = restoring()
    order = suspicious(region, kept)
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3), 2)))
    assert region.take(AppendCheckpoint) == []
    error = end(region)
    assert "checkpoint 3 is damaged: chain state of worker 1 up to position 3:140: state.3.0 ends" in str(
        error
    )
    for remedy in ("dos store repair", "--to checkpoint:2 --stopped", 'on_damaged="previous"'):
        assert remedy in error.remedy
    assert region.core.rounds.attempts == 0


def test_with_previous_the_newest_whole_checkpoint_is_recorded_before_anybody_is_ordered_to_it() -> None:
    region, kept = restoring(on_damaged="previous")
    order = suspicious(region, kept)
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3, 2), 1)))
    (append,) = region.take(AppendCheckpoint)
    record = append.checkpoint
    assert (record.number, record.rolled_back_to, record.rewound, record.line) == (4, 1, True, 1)
    assert record.retained == (1, 2, 3, 4), "nothing is released, also not what is damaged"
    region.tick(3)
    assert region.sent(Restore) == []
    assert reports(region, FellBack) == []
    region.play(CheckpointAppended(record))
    (fell_back,) = reports(region, FellBack)
    assert (fell_back.last, fell_back.checkpoint, fell_back.last_step, fell_back.step) == (3, 1, 15, 5)
    for text in ("from checkpoint 3 to checkpoint 1", "chain state of worker 1", "10 steps no longer count"):
        assert text in str(fell_back)
        assert text in region.core.status().fell_back
    region.opened(record)
    assert [order.restore for _, order in region.sent(Restore)] == [record, record]
    region.receive_from_all(Restored, last_step=5)
    for worker in (0, 1):
        region.vote(worker, 5, step=5)
    (first,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(first.checkpoint))
    assert region.state is RegionState.RUNNING
    assert region.core.rounds.attempts == 0


@pytest.mark.parametrize("on_damaged", ["fail", "previous"])
def test_while_members_are_missing_the_region_waits_and_says_for_what(on_damaged: str) -> None:
    region, kept = restoring(on_damaged=on_damaged)
    order = suspicious(region, kept)
    region.play(ExaminationWaits(order.incarnation, "m2:1 may have what is missing"))
    region.tick(1_000)
    assert region.take(AppendCheckpoint) == []
    assert region.sent(Restore) == []
    assert region.core.run.outcome is None, "however long it takes"
    assert "cannot be read yet: m2:1 may have what is missing" in region.core.status().reason


def test_a_checkpoint_that_reads_whole_after_all_is_restored_and_doubts_do_not_repeat_for_ever() -> None:
    region, kept = restoring(on_damaged="previous", max_consecutive_reset_attempts=2)
    for attempt in range(3):
        order = suspicious(region, kept)
        region.play(CheckpointsExamined(order.incarnation, Examination((), 3)))
        assert [sent.restore for _, sent in region.sent(Restore)] == [kept[-1]] * 2
        assert region.core.rounds.attempts == attempt
    region.receive(1, Failed, kind="store", damaged=True, message="again")
    assert region.core.run.outcome is not None
    assert "no checkpoint was committed after 2 consecutive resets" in region.core.run.outcome.reason


def test_if_no_checkpoint_reads_whole_the_region_fails_with_all_of_them() -> None:
    region, kept = restoring(on_damaged="previous")
    order = suspicious(region, kept)
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3, 2, 1), 0)))
    error = end(region)
    assert all(f"checkpoint {number} is damaged" in str(error) for number in (1, 2, 3))
    assert "no retained checkpoint reads whole" in error.remedy


def test_rows_that_would_come_again_stop_the_fall_back_unless_that_is_allowed() -> None:
    sinks = {"mail": "its rows are visible at once"}
    region, kept = restoring(on_damaged="previous", irrevocable=sinks)
    order = suspicious(region, kept)
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3), 2)))
    error = end(region)
    assert "checkpoint 2 is whole, but rows that these sinks have shown since" in str(error)
    assert "'mail': its rows are visible at once" in str(error)
    assert "allow_republish=True" in error.remedy
    region, kept = restoring(on_damaged="previous", irrevocable=sinks, allow_republish=True)
    order = suspicious(region, kept)
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3), 2)))
    (append,) = region.take(AppendCheckpoint)
    assert append.checkpoint.rolled_back_to == 2


def test_an_examination_of_an_older_incarnation_decides_nothing() -> None:
    region, kept = restoring(on_damaged="previous")
    order = suspicious(region, kept)
    region.play(ManifestLost(region.epoch, 77))
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3), 2)))
    assert region.take(AppendCheckpoint) == []
    region.epoch = 90
    region.play(ManifestOpened(90, kept[-1], kept))
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3), 2)))
    (again,) = region.take(ExamineCheckpoints, AppendCheckpoint)
    assert isinstance(again, ExamineCheckpoints), "it is still suspected"
    assert again.incarnation == 90


@pytest.mark.parametrize("reached", [True, False])
def test_the_reopened_manifest_decides_whether_the_region_fell_back(*, reached: bool) -> None:
    region, kept = restoring(on_damaged="previous")
    order = suspicious(region, kept)
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3), 2)))
    (append,) = region.take(AppendCheckpoint)
    region.play(ManifestLost(region.epoch, 77))
    region.play(CheckpointAppended(append.checkpoint))  # too late
    assert reports(region, FellBack) == []
    region.epoch = 90
    kept = (*kept, append.checkpoint) if reached else kept
    region.play(ManifestOpened(90, kept[-1], kept))
    events = region.take()
    assert sum(isinstance(getattr(one, "event", None), FellBack) for one in events) == reached
    assert sum(isinstance(getattr(one, "message", None), Restore) for one in events) == 2
    assert bool(region.core.status().fell_back) == reached


def test_a_program_that_was_restored_by_its_request_does_not_go_back_again_after_a_fall_back() -> None:
    region, kept = restoring(on_damaged="previous")
    line = msgspec.structs.replace(kept[-1], line=1, rewinds=(), version=7)
    rewinds = ({"line": 1, "to": 1, "step": 5, "by": "savepoint:good"},)
    line = msgspec.structs.replace(
        line, rewinds=msgspec.convert(rewinds, type(line).__annotations__["rewinds"])
    )
    kept = (*kept[:-1], line)
    order = suspicious(region, kept)
    region.play(CheckpointsExamined(order.incarnation, Examination(damage(3), 3)))
    (append,) = region.take(AppendCheckpoint)
    assert append.checkpoint.rewinds[-1].by == "savepoint:good"


def test_damage_that_is_reported_after_a_peers_report_is_not_forgotten() -> None:
    region, kept = restoring()
    region.receive(0, Failed, kind="peer", peer=1, message="the link to worker 1 broke")
    region.receive(1, Failed, kind="store", damaged=True, message="chain state names 99 bytes")
    region.epoch += 1
    region.play(ManifestOpened(region.epoch, kept[-1], kept))
    assert region.take(ExamineCheckpoints)


def test_workers_may_join_while_the_checkpoints_are_read() -> None:
    region, kept = restoring()
    region.receive(1, Failed, kind="store", damaged=True, message="lost")
    region.die(0)
    region.tick(3)
    region.epoch += 1
    region.play(ManifestOpened(region.epoch, kept[-1], kept))
    region.tick(3)
    region.join(0, attempt=2)
    assert region.sent(Restore) == []
    region.play(CheckpointsExamined(region.epoch, Examination((), 3)))
    assert len(region.sent(Restore)) == 2
