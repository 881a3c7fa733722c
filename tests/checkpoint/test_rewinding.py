"""A running region goes back to an older checkpoint: what the coordinator decides, without I/O."""

from dataclasses import replace

import msgspec
import pytest

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointWanted,
    ManifestLost,
    OpenManifest,
    PauseWanted,
    RestoreWanted,
    ScaleWanted,
)
from checkpoint.core.links.messages import RequestCheckpoint, Restore, Restored, Start
from checkpoint.core.records.lines import find_target, republished, restored, taken_back
from checkpoint.core.records.manifest import (
    LINES_VERSION,
    Checkpoint,
    RetiredWorker,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from checkpoint.core.region import RegionState, ResetReport, RestoreSettled
from checkpoint.errors import ManifestError, RestoreRefusedError
from tests.checkpoint.coordinator_harness import CoordinatorHarness
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
    assert (record.line, record.rewound, record.version, record.retained) == (
        1,
        True,
        LINES_VERSION,
        (1, 2, 3, 4),
    )
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
    for worker in (0, 1):
        region.vote(worker, 5, step=5)
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
    for worker in (0, 1):
        region.vote(worker, 4, step=20)
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


def test_a_checkpoint_of_another_graph_is_refused_before_its_record() -> None:
    """As one is whose declared state is older, and has no migration."""
    region = CoordinatorHarness(operators={"own": "map_state state (n int64)"}).run()
    region.commit(1, step=5)
    newer = {"own": "map_state state v2 (n int64, m int64)"}
    region.core.run.spec = replace(region.spec, operators=newer, older_operators={})
    region.commit(2, step=9)
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
    last = region.core.run.kept[-1]
    unknown = msgspec.structs.replace(last, irrevocable=msgspec.UNSET)
    assert republished(unknown, region.core.run.kept[0]) == {}, "it has no sink"


def test_workers_that_the_checkpoint_does_not_know_lose_all_of_their_output() -> None:
    first, last = running().core.run.kept[0], running().core.run.kept[-1]
    part = msgspec.structs.replace(
        last.workers[0], sinks={"log": {"epoch": 1, "size": 9, "digest": 0}}, floors={"out-log": (1, 0)}
    )
    later = msgspec.structs.replace(last, workers={**last.workers, 2: part})
    record = restored((first, later), first, 7)
    assert record.orphans == (2,)
    assert record.retired == {2: RetiredWorker(sinks={"log": {"epoch": 0, "size": 0, "digest": 0}})}


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
        {"version": LINES_VERSION - 1},
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
