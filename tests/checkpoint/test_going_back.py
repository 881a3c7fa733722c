"""A region goes back to an older checkpoint, on request or because the last one is damaged: what the
coordinator decides, without I/O.
"""

from typing import Any

import msgspec
import pytest

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointsExamined,
    CheckpointWanted,
    ExaminationWaits,
    ExamineCheckpoints,
    ManifestLost,
    ManifestOpened,
    OpenManifest,
    PauseWanted,
    RestoreWanted,
    ScaleWanted,
)
from checkpoint.core.graph_change import DeclaredState, OperatorNote
from checkpoint.core.links.messages import Failed, RequestCheckpoint, Restore, Restored, Start
from checkpoint.core.records.lines import find_target, restored, taken_back
from checkpoint.core.records.manifest import (
    ChainDamage,
    Checkpoint,
    CheckpointDamage,
    EndedLog,
    Examination,
    RetiredWorker,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from checkpoint.core.region import FellBack, RegionState, ResetReport, RestoreSettled
from checkpoint.errors import CheckpointDamagedError, ManifestError, RestoreRefusedError
from journal import Position
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import notes
from tests.checkpoint.test_taking_over import reports


def running(checkpoints: int = 3) -> CoordinatorHarness:
    """Checkpoint n is of step 5 * n."""
    region = CoordinatorHarness().run()
    for number in range(1, checkpoints + 1):
        region.commit(number, step=5 * number)
    region.take()
    return region


def appended(region: CoordinatorHarness) -> Checkpoint:
    (append,) = region.take(AppendCheckpoint)
    assert isinstance(append.checkpoint, Checkpoint)
    return append.checkpoint


def test_the_record_of_a_restore_is_committed_before_anything_else_happens() -> None:
    region = running()
    region.play(RestoreWanted("checkpoint:1"))
    record = appended(region)
    assert (record.number, record.parent, record.rolled_back_to, record.step) == (4, 3, 1, 5)
    assert (record.line, record.rewound, record.retained) == (1, True, (1, 2, 3, 4))
    assert record.workers == region.core.run.kept[0].workers
    region.play(CheckpointWanted())
    region.tick(10)
    assert region.take(OpenManifest, AppendCheckpoint) == []
    assert region.sent(Restore, RequestCheckpoint) == []
    region.play(CheckpointAppended(record))
    (settled,) = reports(region, RestoreSettled)
    assert (settled.checkpoint, settled.step, settled.error) == (1, 5, "")


def test_all_workers_vote_for_the_first_checkpoint_of_the_line_before_they_start() -> None:
    region = running()
    region.play(RestoreWanted("checkpoint:1"))
    record = appended(region)
    region.play(CheckpointAppended(record))
    region.opened(record)
    orders = region.sent(Restore)
    assert [(order.checkpoint, order.moves) for _, order in orders] == [(4, True)] * 2
    region.receive_from_all(Restored, last_step=15)  # recorded on the former line
    assert region.sent(Start) == []
    region.votes(5, step=5)
    first = appended(region)
    assert (first.number, first.line, first.rewound, first.rolled_back_to) == (5, 1, False, 0)
    region.play(CheckpointAppended(first))
    assert [order.replay_until_step for _, order in region.sent(Start)] == [5, 5], "nothing is replayed"
    assert region.state is RegionState.RUNNING
    report = region.core.rounds.resets[-1]
    assert isinstance(report, ResetReport)
    assert (report.reason, report.checkpoint) == ("it was restored to checkpoint 1", 5)
    assert region.core.rounds.attempts == 0


def test_a_checkpoint_under_way_is_given_up_and_its_votes_count_no_more() -> None:
    region = running()
    region.play(CheckpointWanted(), RestoreWanted("checkpoint:2"))
    assert appended(region).rolled_back_to == 2
    region.vote(0, 4, step=20)
    region.vote(1, 4, step=20)
    assert region.take(AppendCheckpoint) == []


def test_a_checkpoint_that_is_being_appended_comes_first() -> None:
    region = running()
    region.play(CheckpointWanted())
    region.votes(4, step=20)
    before = appended(region)
    region.play(RestoreWanted("checkpoint:2"))
    assert region.take(AppendCheckpoint) == []
    region.play(CheckpointAppended(before))
    record = appended(region)
    assert (record.number, record.rolled_back_to, record.parent) == (5, 2, 4)


@pytest.mark.parametrize("reached", [True, False])
def test_the_reopened_manifest_decides_whether_the_region_was_restored(*, reached: bool) -> None:
    region = running()
    region.play(RestoreWanted("checkpoint:1"))
    record = appended(region)
    before = region.core.run.last_checkpoint
    region.play(ManifestLost(region.core.run.incarnation, 99))
    region.play(CheckpointAppended(record))  # too late: the reset has begun
    assert reports(region, RestoreSettled) == []
    region.opened(record if reached else before)
    (settled,) = reports(region, RestoreSettled)
    assert (settled.checkpoint, bool(settled.error)) == ((1, False) if reached else (0, True))


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("checkpoint:9", "does not retain checkpoint '9'; retained: 1, 2, 3"),
        ("savepoint:x", "has no savepoint 'x'; it has none"),
        ("yesterday", "'yesterday' names no checkpoint: it must be savepoint:NAME, checkpoint:N, or a time"),
    ],
)
def test_a_checkpoint_that_does_not_exist_is_refused_and_nothing_changes(to: str, reason: str) -> None:
    region = running()
    region.play(RestoreWanted(to))
    (settled,) = reports(region, RestoreSettled)
    assert reason in settled.error
    region.play(CheckpointWanted())
    assert len(region.sent(RequestCheckpoint)) == 2, "checkpoints are requested as before"


def own(state: DeclaredState) -> dict[str, OperatorNote]:
    return {"own": OperatorNote(kind="map_state", state=state)}


def test_a_checkpoint_of_another_graph_is_refused_before_its_record() -> None:
    """As one is whose declared state is older, and has no migration."""
    older = CoordinatorHarness(operators=own(DeclaredState("n int64"))).run().commit(1, step=5)
    newer = own(DeclaredState("n int64, m int64", 2))
    last = msgspec.structs.replace(older, number=2, parent=1, retained=(1, 2), operators=newer)
    region = CoordinatorHarness(operators=newer)
    region.epoch = 2
    region.play(ManifestOpened(2, last, (older, last)))
    for worker in range(2):
        region.join(worker)
    region.receive_from_all(Restored, last_step=5)
    region.take()
    region.play(RestoreWanted("checkpoint:1"))
    (settled,) = reports(region, RestoreSettled)
    assert "operator 'own' declares state v2" in settled.error
    region.play(RestoreWanted("checkpoint:2"))
    assert appended(region).rolled_back_to == 2


def test_a_region_that_is_being_changed_or_does_not_run_is_not_restored() -> None:
    region = running()
    region.play(ScaleWanted(4), RestoreWanted("checkpoint:1"))
    assert "its workers are being changed" in reports(region, RestoreSettled)[0].error
    region = CoordinatorHarness()
    region.play(PauseWanted(on=True), RestoreWanted("checkpoint:1"))
    assert "the region starts, stops or is being reset" in reports(region, RestoreSettled)[0].error


def test_rows_that_come_again_must_be_confirmed() -> None:
    region = CoordinatorHarness(irrevocable={"mail": "its rows are visible at once"}).run()
    for number in (1, 2):
        region.commit(number, step=5 * number)
    region.take()
    region.play(RestoreWanted("checkpoint:1"))
    (settled,) = reports(region, RestoreSettled)
    assert "since checkpoint 1 stay and come again: 'mail': its rows are visible at once" in settled.error
    region.play(RestoreWanted("checkpoint:2"))
    assert appended(region).rolled_back_to == 2, "nothing was shown since"


def test_workers_that_the_checkpoint_does_not_know_lose_all_of_their_output() -> None:
    first, last = running().core.run.kept[0], running().core.run.kept[-1]
    part = msgspec.structs.replace(
        last.workers[0], sinks={"log": {"epoch": 1, "size": 9, "digest": 0}}, floors={"out-log": (1, 0)}
    )
    later = msgspec.structs.replace(last, workers={**last.workers, 2: part})
    has_log = msgspec.structs.replace(first, workers={**first.workers, 0: part})
    record = restored((has_log, later), has_log, 7)
    assert record.orphans == (2,)
    assert record.retired == {2: RetiredWorker(sinks={"log": {"epoch": 0, "size": 0, "digest": 0}})}


def test_a_log_that_only_later_checkpoints_have_is_taken_back_and_one_that_ended_later_continues() -> None:
    first, last = running().core.run.kept[0], running().core.run.kept[-1]

    def with_log(checkpoint: Checkpoint, log: str, **fields: Any) -> Checkpoint:
        at = {"epoch": 1, "size": 9, "digest": 0}
        part = msgspec.structs.replace(checkpoint.workers[0], sinks={log: at}, floors={f"out-{log}": (1, 0)})
        return msgspec.structs.replace(checkpoint, workers={**checkpoint.workers, 0: part}, **fields)

    ended = EndedLog(sink="old", checkpoint=2, ends={0: Position(1, 9, 0)}, floors={0: (1, 0)})
    earlier = EndedLog(sink="was", checkpoint=1, ends={0: Position(1, 4, 0)}, floors={0: (1, 0)})
    target = with_log(first, "old", ended={"was": earlier})
    later = with_log(last, "new", ended={"was": earlier, "old": ended})
    record = restored((target, later), target, 7)
    assert record.ended == {"was": earlier, "new": EndedLog(sink="new", checkpoint=record.number)}
    assert record.rewinds[-1].outputs == {0: {"old": 9, "was": 4}}
    check_checkpoint(record)
    # Another restore, to the checkpoint that has both: nothing is lost of either.
    assert restored((target, later, record), later, 8).ended == later.ended


def test_a_checkpoint_whose_output_was_taken_back_is_refused() -> None:
    kept = running().core.run.kept
    back = restored(kept, kept[0], 7)
    assert taken_back(back, 0, kept[1].step) is not None
    with pytest.raises(RestoreRefusedError, match="the output of checkpoint 2 after step 5 was taken back"):
        find_target((*kept, back), "checkpoint:2", region="r")
    assert find_target((*kept, back), "checkpoint:1", region="r") is kept[0]


def test_a_time_is_that_of_the_newest_checkpoint_that_is_not_later_and_not_taken_back() -> None:
    kept = [
        msgspec.structs.replace(checkpoint, wall_time_ms=1_000 * checkpoint.number)
        for checkpoint in running().core.run.kept
    ]
    assert [find_target(kept, f"time:{ms}", region="r").number for ms in (1_000, 2_999, 99_000)] == [1, 2, 3]
    with pytest.raises(RestoreRefusedError, match="no checkpoint that is as old as that time; the oldest"):
        find_target(kept, "time:999", region="r")
    back = msgspec.structs.replace(restored(kept, kept[0], 7), wall_time_ms=9_000)
    assert [find_target((*kept, back), f"time:{ms}", region="r").number for ms in (3_000, 9_000)] == [1, 4]


def test_the_record_is_read_again_and_what_contradicts_itself_is_refused() -> None:
    kept = running().core.run.kept
    record = restored(kept, kept[0], 7)
    encoded = encode_checkpoint(record)
    assert decode_checkpoint(encoded.flags, encoded.ints, encoded.text) == record
    check_checkpoint(record, before=kept[-1])
    wrong = (
        {"line": 2},
        {"rewinds": ()},
        {"rolled_back_to": 0},
        {"orphans": (0,)},
    )
    for fields in wrong:
        with pytest.raises(ManifestError):
            check_checkpoint(msgspec.structs.replace(record, **fields), before=kept[-1])
    with pytest.raises(ManifestError, match="it is of line 1, and checkpoint 3 of line 0"):
        check_checkpoint(msgspec.structs.replace(record, rewound=False, orphans=()), before=kept[-1])


# --- the last checkpoint is damaged -----------------------------------------------------------------------


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
    kept = (kept[0], msgspec.structs.replace(kept[1], operators=notes(sum="sum")), kept[2])
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
    region.votes(5, step=5)
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
    line = msgspec.structs.replace(kept[-1], line=1, rewinds=())
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
