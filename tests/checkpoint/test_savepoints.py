"""Savepoints and retention: which checkpoints stay restorable until a person drops them, what of their
chains, and the notes of savepoints.
"""

import itertools
import re

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.lines import recorded_again, restored, savepoint_problem
from checkpoint.core.records.manifest import (
    NO_NOTE,
    SavepointNote,
    WorkerCheckpoint,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    floors_of,
    gaps_of,
    keep,
    retained_with,
    savepoint_name_problem,
    steps_kept_after,
    unneeded_of,
)
from checkpoint.core.region import RegionState, SavepointSettled
from checkpoint.core.requests import encode_record
from checkpoint.core.verbs import RegionNotified
from checkpoint.errors import ManifestError
from journal import Op, Record
from journal.core.chain import Position, below, below_or_within, segment_name
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import a_checkpoint, worker_checkpoint
from tests.checkpoint.request_harness import WALL, HandlerHarness, a_request, in_state
from tests.checkpoint.savepoint_model import SavepointModel, note_of


def settled(region):
    """Return the reports about savepoints since the effects were last taken."""
    return region.events(SavepointSettled)


def carried(region, number, step):
    """A checkpoint that is under way, voted and acknowledged."""
    region.votes(number, step)
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
    assert (last.savepoints, last.retained) == ({}, (7, 8))
    assert settled(region) == [SavepointSettled("good", 2)]


def test_a_wish_that_comes_while_votes_are_collected_is_in_that_checkpoint() -> None:
    region = with_checkpoints(2)
    region.play(CheckpointWanted(), SavepointWanted("good"))
    assert carried(region, 3, 3).savepoints == {"good": 2}


def test_a_wish_that_comes_while_a_checkpoint_is_appended_waits_for_the_next_one() -> None:
    region = with_checkpoints(2)
    region.play(CheckpointWanted())
    region.votes(3, 3)
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
    region.votes(4, 4)
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
        (SavepointWanted("nobody", on=False), r"'nobody' does not exist; existing: 'held' \(checkpoint 2\)"),
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


def test_a_record_whose_savepoints_are_invalid_is_refused() -> None:
    checkpoint = a_checkpoint(retained=(2, 4, 5), savepoints={"good": 2})
    encoded = encode_checkpoint(checkpoint)
    assert decode_checkpoint(*encoded) == checkpoint
    check_checkpoint(checkpoint)
    for change, text in [
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
        a_checkpoint(number=n, parent=n - 1, step=n, retained=(2, n - 1, n), savepoints=savepoints)
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
        SavepointWanted("old", on=False),
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
    region.votes(3, 3)
    (create,) = region.take(AppendCheckpoint)
    region.play(SavepointWanted("good", on=False))
    assert settled(region) == [], "the checkpoint that is appended still creates it"
    region.play(CheckpointAppended(create.checkpoint))
    assert [message.checkpoint for _, message in region.sent(RequestCheckpoint)] == [4, 4]
    region.votes(4, 4)
    (drop,) = region.take(AppendCheckpoint)
    assert drop.checkpoint.savepoints == {}
    region.play(SavepointWanted("good", 3))
    assert settled(region) == []
    region.play(CheckpointAppended(drop.checkpoint))
    region.take()
    assert carried(region, 5, 5).savepoints == {"good": 3}
    assert settled(region) == [SavepointSettled("good", 3)]


def test_names_of_the_projects_own_savepoints_are_refused_to_people_and_read_from_records() -> None:
    for name in ("move-0a1b", "fork-70a1b2c3", "backup-deadbeef", "upgrade-0a1b2c3d"):
        assert (
            f"for the savepoints that forks, backups, moves and changes of the graph make, got {name!r}"
            in (savepoint_name_problem(name))
        )
        check_checkpoint(a_checkpoint(retained=(2, 4, 5), savepoints={name: 2}))
        assert savepoint_problem(name, 2, {}, {2}) == "", "the project makes them itself"
        assert savepoint_name_problem(f"my-{name}") == ""
    for name in ("move-", "backup-of-may", "fork", "before-the-move-7", "backup-2026", "backup-20260131a"):
        assert savepoint_name_problem(name) == ""


# --- notes ------------------------------------------------------------------------------------------------


def note(why, by="ann@host"):
    return SavepointNote(by=by, wall_time_ms=7, why=why)


def test_a_note_is_carried_on_with_its_savepoint_through_resets_and_drivers_and_dropped_with_it() -> None:
    region = with_checkpoints(3)
    region.play(SavepointWanted("good", 2, note=note("before")), SavepointWanted("other", 3))
    region.play(SavepointWanted("good", 2, note=note("put again")))
    assert carried(region, 4, 4).notes == {"good": note("before"), "other": NO_NOTE}
    assert region.commit(5, step=5).notes["good"] == note("before")
    reopened(region, region.core.run.kept)
    assert region.commit(6, step=6).notes["good"] == note("before")

    last = region.core.run.last_checkpoint
    (row, kept) = (decode_checkpoint(*encode_checkpoint(last)), region.core.run.kept)
    assert row.notes == last.notes
    again = recorded_again(kept, 30, {"good": 2, "new": 6}, {"new": note("new"), "gone": note("gone")})
    assert again.notes == {"good": note("before"), "new": note("new")}
    back = restored(kept, kept[0], 30)
    assert kept[0].notes == {}
    assert (back.savepoints, back.notes) == (last.savepoints, last.notes)

    region.play(SavepointWanted("good", on=False, note=note("not kept")))
    region.take()
    last = carried(region, 7, 7)
    assert (last.savepoints, last.notes) == ({"other": 3}, {"other": NO_NOTE})
    assert region.commit(8, step=8).notes.keys() == {"other"}


@pytest.mark.trio
async def test_a_note_survives_snapshots_of_the_manifest_and_drivers() -> None:
    model = SavepointModel(2)
    await model.crash()
    await model.driver.checkpoint({"a": 1})
    await model.driver.savepoint("a", 0, {})
    before = await model.records()
    for number in range(20):
        await model.driver.checkpoint({"a": number})
    await model.crash()
    await model.driver.checkpoint({"b": 1})
    assert not set(before[1:]) & set(await model.records()), "only snapshots are left"
    assert (await model.check())[-1].notes == {"a": note_of("a", 1)}


def test_a_savepoint_that_is_made_again_elsewhere_has_its_new_note() -> None:
    region = with_checkpoints(3)
    region.play(SavepointWanted("good", 2, note=note("of two")))
    region.take()
    carried(region, 4, 4)
    region.play(SavepointWanted("good", on=False), SavepointWanted("good", 4, note=note("of four")))
    region.take()
    last = carried(region, 5, 5)
    assert (last.savepoints, last.notes) == ({"good": 4}, {"good": note("of four")})


def reopened(region, kept):
    """The manifest is lost and opened again with these checkpoints; all workers are reset."""
    region.play(ManifestLost(region.epoch, region.epoch + 1))
    region.epoch += 2
    region.play(ManifestOpened(region.epoch, kept[-1], kept))
    region.receive_from_all(Restored, last_step=kept[-1].step)


class NotedRegion:
    """A region, and what was requested of its savepoints."""

    def __init__(self):
        self.region = with_checkpoints(2)
        self.wanted, self.notes, self.records = {}, {}, []

    def settle(self, effects):
        for one in effects:
            if isinstance(one, AppendCheckpoint):
                self.check(one.checkpoint)
            elif isinstance(one, NotifyObservers) and getattr(one.event, "error", ""):
                # It is refused, or its checkpoint was released before another one carried the savepoint.
                self.wanted = dict(self.region.core.checkpoints.savepoints)

    def check(self, checkpoint):
        assert decode_checkpoint(*encode_checkpoint(checkpoint)) == checkpoint
        assert checkpoint.notes.keys() == checkpoint.savepoints.keys()
        for name, held in checkpoint.savepoints.items():
            assert checkpoint.notes[name] in self.notes[name, held]

    def request(self, name, on, back):
        core = self.region.core
        before, kept = core.checkpoints.savepoints, [checkpoint.number for checkpoint in core.run.kept]
        one = note(f"{name} {len(self.records)}")
        self.records.append(one)
        checkpoint = kept[max(0, len(kept) - 1 - back)] if on else 0
        if on and name not in before:
            self.notes.setdefault((name, checkpoint), []).append(one)
        self.region.play(SavepointWanted(name, checkpoint, on, one))
        if on:
            self.wanted.setdefault(name, checkpoint)
        else:
            self.wanted.pop(name, None)

    def vote(self):
        pending = self.region.core.checkpoints.pending
        if pending is not None and not pending.appended:
            for worker in range(2):
                self.region.vote(worker, pending.number, pending.number)

    def play(self, kind, name, back):
        kept, appending = self.region.core.run.kept, self.region.core.checkpoints.appending
        if kind in ("savepoint", "drop_savepoint"):
            self.request(name, kind == "savepoint", back)
        elif kind == "checkpoint":
            self.region.play(CheckpointWanted())
        elif kind == "vote":
            self.vote()
        elif kind == "ack" and appending is not None:
            self.region.play(CheckpointAppended(appending))
        elif kind == "reset" and appending is not None:
            found = keep(kept, appending) if back else kept
            reopened(self.region, found)
        self.settle(self.region.take())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "savepoint",
                    "savepoint",
                    "drop_savepoint",
                    "checkpoint",
                    "vote",
                    "vote",
                    "ack",
                    "ack",
                    "reset",
                ]
            ),
            st.sampled_from("ab"),
            st.integers(0, 2),
        ),
        max_size=25,
    )
)
def test_in_any_order_a_note_exists_for_savepoints_in_force_alone_and_each_request_is_carried_out(
    history,
) -> None:
    model = NotedRegion()
    for one in history:
        model.play(*one)
    for kind in ("checkpoint", "vote", "ack", "checkpoint", "vote", "ack", "checkpoint", "vote", "ack"):
        model.play(kind, "a", 0)
    state = model.region.core.checkpoints
    assert (state._savepoint_changes, state._savepoint_notes) == ({}, {})
    assert state.held_savepoints == model.wanted


def test_a_note_is_a_line_of_limited_length(monkeypatch) -> None:
    monkeypatch.setattr(limits, "savepoint_why_chars_max", 5)
    region = with_checkpoints(2)
    for why in ("123456", "a\nb", "\x1b[2J", "\udc80"):
        region.play(SavepointWanted("good", 2, note=note(why)))
        (report,) = settled(region)
        wrong = why.strip("ab[2J")
        assert report.error in (
            "a savepoint's note has at most 5 characters, got 6: shorten it",
            f"a savepoint's note is one line of printable characters, got {wrong!r}: leave it out",
        )
    assert region.core.checkpoints.savepoints == {}
    region.play(SavepointWanted("good", 2, note=note('ü"\\12')))
    assert carried(region, 3, 3).notes["good"].why == 'ü"\\12'


def test_the_longest_note_fits_into_a_request() -> None:
    for character in ("\U0001f600", '"'):
        why = character * limits.savepoint_why_chars_max
        encode_record(a_request(1, "savepoint", name="n" * 64, why=why, asked_by=f"{'u' * 256}@{'h' * 256}"))


# --- what is retained of the chains -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retained", "before", "text"),
    [
        ((3, 4, 5), (3, 4), None),
        ((), (4,), "its own"),
        ((4,), (4,), "its own"),
        ((4, 6), (4,), "its own"),
        ((5, 5), (4,), "expected rising numbers"),
        ((0, 5), (4,), "expected rising numbers"),
        ((2, 5), (3, 4), r"retains \[2\], which checkpoint 4 released"),
    ],
)
def test_what_is_released_is_never_retained_again(retained, before, text) -> None:
    # EVIDENCE-OF: P-6
    checkpoint, older = a_checkpoint(retained=retained), a_checkpoint(number=4, parent=3, retained=before)
    if text is None:
        check_checkpoint(checkpoint, before=older)
        return
    with pytest.raises(ManifestError, match=text):
        check_checkpoint(checkpoint, before=older)


floors = st.dictionaries(st.sampled_from(["state", "steps"]), st.tuples(st.integers(1, 4), st.integers(0, 9)))


@given(st.lists(floors, min_size=1, max_size=12), st.integers(2, 5))
def test_nothing_that_a_retained_checkpoint_needs_is_ever_garbage(given_floors, retain) -> None:
    # EVIDENCE-OF: P-6
    kept, every = (), {}
    for number, chains in enumerate(given_floors, 1):
        checkpoint = a_checkpoint(
            number=number,
            parent=number - 1,
            step=number,
            workers={0: worker_checkpoint(floors=chains)},
            retained=retained_with(kept, number, retain),
        )
        kept, every[number] = keep(kept, checkpoint), chains
        assert [one.number for one in kept] == list(checkpoint.retained) == sorted(every)[-retain:]
        garbage = below(floors_of(kept, 0))
        for chain, epoch, base in itertools.product(("state", "steps", "out-x"), range(1, 5), range(10)):
            needed = any((epoch, base) >= every[one.number].get(chain, (0, 0)) for one in kept)
            if garbage(segment_name(chain, epoch, base)):
                assert not needed
                assert chain != "out-x"
        assert not garbage("state")
        assert steps_kept_after(kept) == kept[-1].step


ORDER = st.tuples(st.integers(1, 4), st.integers(0, 9))


@given(st.lists(st.tuples(ORDER, ORDER).map(sorted), min_size=1, max_size=5))
@example([[(1, 0), (1, 0)], [(1, 2), (1, 2)], [(1, 1), (1, 1)]])  # the last one was restored
@settings(max_examples=400)
def test_exactly_what_lies_between_a_position_and_the_next_floor_is_a_gap(needs) -> None:
    """Of state, steps and files; an output log has other readers, and no gap."""
    # EVIDENCE-OF: P-6
    chains = ("state", "steps", "files-own", "out-x")
    kept = ()
    for number, (floor, end) in enumerate(needs, 1):
        at = Position(*end, 0)
        floors = dict.fromkeys(chains, floor)
        part = WorkerCheckpoint(floors=floors, state=at, steps=at, directories={"own": at})
        kept = (*kept, a_checkpoint(number=number, workers={0: part}))
    is_garbage, lowest, gaps = unneeded_of(kept, 0), floors_of(kept, 0), gaps_of(kept, 0)
    is_released = below_or_within({}, gaps)
    assert "out-x" not in gaps
    for epoch, base in itertools.product(range(1, 5), range(10)):
        *older, (last, _) = needs
        needed = (epoch, base) >= last or any(low <= (epoch, base) <= high for low, high in older)
        for chain in chains[:-1]:
            name = segment_name(chain, epoch, base)
            assert is_garbage(name) == (not needed)
            assert is_released(name) == (not needed and (epoch, base) > lowest[chain])
        assert not is_garbage(segment_name("out-x", epoch, base))


def test_of_a_worker_in_no_retained_checkpoint_state_and_files_are_not_needed() -> None:
    """If it comes back, it continues its steps and its output, and begins anew with the others."""
    chains = dict.fromkeys(("state", "steps", "files-own", "out-x"), (3, 9))
    kept = (a_checkpoint(workers={0: worker_checkpoint(floors=chains)}, layout=even_layout(1)),)
    assert floors_of(kept, 0) == chains
    assert floors_of(kept, 1) == {"files-own": (4, 0), "state": (4, 0)}
    assert floors_of((), 1) == {}


def test_a_retained_checkpoint_that_names_no_floors_keeps_every_segment() -> None:
    older = a_checkpoint(number=4, parent=3)
    newer = a_checkpoint(workers={0: worker_checkpoint(floors={"state": (3, 9)})})
    assert floors_of((older, newer), 0) == {}
    assert floors_of((newer,), 0) == {"state": (3, 9)}


@pytest.mark.parametrize("retained", [(), (4,)])
def test_a_record_that_does_not_retain_itself_releases_nothing(retained: tuple[int, ...]) -> None:
    older, newer = a_checkpoint(number=4, parent=3), a_checkpoint(retained=retained)
    with pytest.raises(ManifestError, match="it does not retain itself"):
        keep((older,), newer)
