"""Notes of savepoints: who made them, when and why; carried on with the savepoint, and dropped with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointWanted,
    ManifestLost,
    ManifestOpened,
    NotifyObservers,
    SavepointWanted,
)
from checkpoint.core.links.messages import Restored
from checkpoint.core.records.lines import recorded_again, restored
from checkpoint.core.records.manifest import (
    NO_NOTE,
    SavepointNote,
    decode_checkpoint,
    encode_checkpoint,
    keep,
)
from checkpoint.core.requests import encode_record
from tests.checkpoint.request_harness import a_request
from tests.checkpoint.savepoint_model import SavepointModel, note_of
from tests.checkpoint.test_savepoints import carried, settled, with_checkpoints


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
