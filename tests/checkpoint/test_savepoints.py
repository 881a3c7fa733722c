"""Savepoints: which checkpoints stay restorable until a person drops them."""

import re

import msgspec
import pytest

from checkpoint import limits
from checkpoint.chains.manifest_log import checkpoint_record, checkpoints_in
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointWanted,
    ManifestLost,
    ManifestOpened,
    NotifyObservers,
    SavepointWanted,
)
from checkpoint.core.links.messages import RequestCheckpoint, Restored
from checkpoint.core.records.lines import savepoint_problem
from checkpoint.core.records.manifest import (
    SavepointNote,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    savepoint_name_problem,
)
from checkpoint.core.region import RegionState, SavepointSettled
from checkpoint.core.requests import RegionNotified
from checkpoint.errors import ManifestError
from journal import Op, Position, Record
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import a_checkpoint
from tests.checkpoint.request_harness import WALL, HandlerHarness, in_state


def settled(region):
    """Return the reports about savepoints since the effects were last taken."""
    return [one.event for one in region.take(NotifyObservers) if isinstance(one.event, SavepointSettled)]


def carried(region, number, step):
    """A checkpoint that is under way, voted and acknowledged."""
    for worker in range(region.spec.workers):
        region.vote(worker, number, step)
    (append,) = region.take(AppendCheckpoint)
    region.play(CheckpointAppended(append.checkpoint))
    return append.checkpoint


def with_checkpoints(count, **fields):
    region = CoordinatorHarness(retain=2, **fields).run()
    for number in range(1, count + 1):
        region.commit(number, step=number)
    region.take()
    return region


def test_a_savepoint_is_retained_by_all_that_follow_until_it_is_let_go() -> None:
    # EVIDENCE-OF: P-6
    region = with_checkpoints(3)
    region.play(SavepointWanted("good", 2))
    (one, *_) = region.sent(RequestCheckpoint)
    assert one[1].checkpoint == 4, "a pin is the record of a checkpoint"
    assert carried(region, 4, 4).savepoints == {"good": 2}
    assert settled(region) == [SavepointSettled("good", 2)]
    for number in (5, 6, 7):
        assert region.commit(number, step=number).retained == (2, number - 1, number)
    region.play(SavepointWanted("good", on=False))
    region.take()
    last = carried(region, 8, 8)
    assert (last.savepoints, last.retained, last.version) == ({}, (7, 8), 2)
    assert settled(region) == [SavepointSettled("good", 2)]


def test_a_wish_that_comes_while_votes_are_collected_is_in_that_checkpoint() -> None:
    region = with_checkpoints(2)
    region.play(CheckpointWanted(), SavepointWanted("good"))
    assert carried(region, 3, 3).savepoints == {"good": 2}


def test_a_wish_that_comes_while_a_checkpoint_is_appended_waits_for_the_next_one() -> None:
    region = with_checkpoints(2)
    region.play(CheckpointWanted())
    for worker in range(2):
        region.vote(worker, 3, 3)
    (out,) = region.take(AppendCheckpoint)
    region.play(SavepointWanted("late", 2), SavepointWanted("too-late", 1))
    assert settled(region) == [SavepointSettled("too-late", 0, "checkpoint 1 is not retained; retained: 2")]
    region.play(CheckpointAppended(out.checkpoint))
    assert [message.checkpoint for _, message in region.sent(RequestCheckpoint)] == [4, 4]
    assert carried(region, 4, 4).retained == (2, 3, 4)


def test_a_savepoint_survives_its_driver() -> None:
    region = with_checkpoints(3)
    region.play(SavepointWanted("good", 3))
    region.take()
    last = carried(region, 4, 4)
    other = CoordinatorHarness(retain=2)
    other.epoch = 7
    other.play(ManifestOpened(8, last, region.core.run.kept))
    other.epoch = 8
    for worker in range(2):
        other.join(worker)
    other.receive_from_all(Restored, last_step=4)
    assert other.core.status().savepoints == {"good": 3}
    for number in (5, 6, 7):
        assert other.commit(number, step=number).retained == (3, number - 1, number)


@pytest.mark.parametrize("found", ["with it", "without it", "released"])
def test_a_checkpoint_in_doubt_that_carried_a_wish_is_looked_for_in_the_manifest(found) -> None:
    region = with_checkpoints(3)
    region.play(SavepointWanted("good", 2))
    for worker in range(2):
        region.vote(worker, 4, 4)
    (out,) = region.take(AppendCheckpoint)
    kept = region.core.run.kept
    region.play(ManifestLost(1, 2))
    if found == "with it":
        region.play(ManifestOpened(3, out.checkpoint, (*kept, out.checkpoint)))
        assert settled(region) == [SavepointSettled("good", 2)]
    elif found == "without it":
        region.play(ManifestOpened(3, kept[-1], kept))
        assert settled(region) == []
        assert region.core.checkpoints.savepoints == {"good": 2}, "the next checkpoint carries it"
    else:
        region.play(ManifestOpened(3, kept[-1], kept[-1:]))
        assert settled(region) == [SavepointSettled("good", 0, "checkpoint 2 was released meanwhile")]
        assert region.core.checkpoints.savepoints == {}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (SavepointWanted("one", 1), "checkpoint 1 is not retained; retained: 2, 3"),
        (SavepointWanted("one", 9), "checkpoint 9 is not retained"),
        (SavepointWanted("held", 3), "savepoint 'held' holds checkpoint 2: drop it first"),
        (SavepointWanted("a b"), "a savepoint's name has 1 to 64 letters"),
        (
            SavepointWanted("nobody", on=False),
            r"'nobody' does not exist; existing: 'held' \(checkpoint 2\)",
        ),
    ],
)
def test_what_cannot_be_pinned_is_refused_with_the_reason_and_changes_nothing(event, text) -> None:
    region = with_checkpoints(3)
    region.play(SavepointWanted("held", 2))
    before = region.core.checkpoints.savepoints
    region.take()
    region.play(event)
    (report,) = settled(region)
    assert report.checkpoint == 0
    assert re.search(text, report.error)
    assert region.core.checkpoints.savepoints == before


def test_there_are_no_more_savepoints_than_there_is_room_for(monkeypatch) -> None:
    monkeypatch.setattr(limits, "savepoints_max", 2)
    region = with_checkpoints(2)
    region.play(SavepointWanted("a"), SavepointWanted("b"), SavepointWanted("c"))
    assert [one.error for one in settled(region)] == ["there are already 2 savepoints: drop one first"]


def test_a_checkpoint_with_savepoints_is_of_a_version_that_who_knows_no_savepoints_refuses() -> None:
    checkpoint = a_checkpoint(retained=(2, 4, 5), savepoints={"good": 2}, version=3)
    encoded = encode_checkpoint(checkpoint)
    assert decode_checkpoint(*encoded) == checkpoint
    check_checkpoint(checkpoint)
    for change, text in [
        ({"version": 2}, "version 2 does not allow"),
        ({"retained": (4, 5)}, "savepoint 'good' holds checkpoint 2, which it does not retain"),
        ({"savepoints": {"a b": 2}}, "a savepoint's name"),
        ({"savepoints": {f"p{n}": 2 for n in range(limits.savepoints_max + 1)}}, "the limit is 64"),
    ]:
        with pytest.raises(ManifestError, match=text):
            check_checkpoint(msgspec.structs.replace(checkpoint, **change))


@pytest.mark.trio
async def test_a_snapshot_of_the_manifest_may_leave_out_what_lay_between_a_savepoint_and_the_next() -> None:
    # EVIDENCE-OF: P-6
    savepoints = {"good": 2}
    savepoint = a_checkpoint(number=2, parent=1, step=2, retained=(1, 2))
    later = [
        a_checkpoint(number=n, parent=n - 1, step=n, retained=(2, n - 1, n), savepoints=savepoints, version=3)
        for n in (5, 6, 7)
    ]

    async def read(*records):
        async def given():
            for number, record in enumerate(records):
                yield (
                    Position(1, number, 0),
                    record if isinstance(record, Record) else checkpoint_record(record),
                )

        return [checkpoint.number async for checkpoint in checkpoints_in(given())]

    begin, end = Record(Op.SNAPSHOT_BEGIN), Record(Op.SNAPSHOT_END, ints=(3,))
    assert await read(begin, savepoint, *later[:2], end, later[2]) == [2, 5, 6, 7]
    with pytest.raises(ManifestError, match="its parent is checkpoint 4, the one before it is 2"):
        await read(savepoint, later[0])
    with pytest.raises(ManifestError, match="its parent is checkpoint 6, the one before it is 5"):
        await read(begin, savepoint, later[0], end, later[2])


def test_a_request_for_a_savepoint_is_done_with_the_checkpoint_that_carries_it_and_told_why_it_failed() -> (
    None
):
    handler = HandlerHarness()
    handler.request(1, "savepoint", name="good", checkpoint=4, why="before the move", asked_by="ann@host")
    handler.request(2, "savepoint", name="bad", checkpoint=1)
    handler.request(3, "drop_savepoint", name="old")
    good = SavepointNote(by="ann@host", wall_time_ms=WALL, why="before the move")
    nothing = SavepointNote(wall_time_ms=WALL)
    assert handler.commands() == [
        SavepointWanted("good", 4, note=good),
        SavepointWanted("bad", 1, note=nothing),
        SavepointWanted("old", on=False, note=nothing),
    ]
    handler.handle(RegionNotified(SavepointSettled("bad", 0, "checkpoint 1 is not retained; retained: 4, 5")))
    assert handler.answers(2)[-1] == ("failed", "checkpoint 1 is not retained; retained: 4, 5")
    (answer,) = handler.handle(RegionNotified(SavepointSettled("good", 4)))
    assert (answer.verdict, answer.result) == ("done", {"name": "good", "checkpoint": 4})
    handler.handle(RegionNotified(SavepointSettled("old", 3)))
    assert handler.answers(3)[-1] == ("done", "")


def test_a_region_that_is_being_stopped_savepoints_nothing() -> None:
    handler = HandlerHarness()
    handler.status = in_state(RegionState.STOPPING)
    handler.request(1, "savepoint", name="good")
    assert handler.answers(1) == [("refused", "the region is being stopped")]


def test_a_savepoint_that_exists_may_be_put_again_when_there_is_no_room_for_another() -> None:
    full = {f"p{number}": 2 for number in range(limits.savepoints_max)}
    assert savepoint_problem("p0", 2, full, {2}) == ""
    assert "already 64 savepoints" in savepoint_problem("new", 2, full, {2})
    full.pop("p0")
    assert savepoint_problem("new", 2, full, {2}) == ""


def test_a_request_waits_for_an_append_that_would_undo_it() -> None:
    # EVIDENCE-OF: P-6
    region = with_checkpoints(2)
    region.play(SavepointWanted("good", 2))
    for worker in range(2):
        region.vote(worker, 3, 3)
    (create,) = region.take(AppendCheckpoint)
    region.play(SavepointWanted("good", on=False))
    assert settled(region) == [], "the checkpoint that is appended still creates it"
    region.play(CheckpointAppended(create.checkpoint))
    assert [message.checkpoint for _, message in region.sent(RequestCheckpoint)] == [4, 4]
    for worker in range(2):
        region.vote(worker, 4, 4)
    (drop,) = region.take(AppendCheckpoint)
    assert drop.checkpoint.savepoints == {}
    region.play(SavepointWanted("good", 3))
    assert settled(region) == []
    region.play(CheckpointAppended(drop.checkpoint))
    region.take()
    assert carried(region, 5, 5).savepoints == {"good": 3}
    assert settled(region) == [SavepointSettled("good", 3)]


def test_names_of_the_projects_own_savepoints_are_refused_to_people_and_read_from_records() -> None:
    for name in ("move-0a1b", "fork-70a1b2c3", "backup-deadbeef"):
        assert f"are reserved for the savepoints that forks, backups and moves make, got {name!r}" in (
            savepoint_name_problem(name)
        )
        check_checkpoint(a_checkpoint(retained=(2, 4, 5), savepoints={name: 2}, version=3))
        assert savepoint_problem(name, 2, {}, {2}) == "", "the project makes them itself"
        assert savepoint_name_problem(f"my-{name}") == ""
    for name in ("move-", "backup-of-may", "fork", "before-the-move-7", "backup-2026", "backup-20260131a"):
        assert savepoint_name_problem(name) == ""
