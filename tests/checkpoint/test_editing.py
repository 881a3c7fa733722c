"""Edits of a region that no driver runs: what is recorded, who starts meanwhile, and a crash at each step."""

from itertools import count

import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from checkpoint import limits
from checkpoint.core.links.messages import RequestCheckpoint
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.lines import edit_target, edited, first_record, restored
from checkpoint.core.records.manifest import (
    Edit,
    ForkOrigin,
    WorkerCheckpoint,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from checkpoint.core.region import coordinator_directory
from checkpoint.errors import EditRefusedError, RegionFencedError, RestoreRefusedError, SavepointRefusedError
from checkpoint.maintenance.editing import FirstPart, begin_region, edit_stopped
from checkpoint.maintenance.stopped_region import restore_stopped, savepoint_stopped
from journal import Position
from tests.checkpoint.manifest_samples import a_checkpoint
from tests.checkpoint.savepoint_model import REGION, WORKER, Host, SavepointModel, raced
from tests.checkpoint.test_savepoint_model import with_checkpoints
from tests.checkpoint.test_state_store import block

EDIT = Edit(by="ann@host", wall_time_ms=7, why="a word was wrong", tables={"one": {"changed": 1}})


def writing(change):
    """What an edit writes: the changed rows, for whichever checkpoint it is asked."""

    async def rows_for(checkpoint):
        await trio.lowlevel.checkpoint()
        return {0: [("one", data) for data in block(change)]}, EDIT

    return rows_for


async def edit(model, change, **options):
    """Edit, and note what the new checkpoint holds."""
    record = await edit_stopped(Host(model.store), REGION, writing(change), **options)
    note(model, record, change)
    return record


async def held(model):
    """The state of the last checkpoint, as it is stored."""
    return await model.restored((await model.kept())[-1])


async def begins(model):
    """A driver starts. After an edit, its worker votes for the first checkpoint of the line at once."""
    await model.crash()
    core = model.driver.core.run
    last = core.last_checkpoint
    if last.rewound:
        common = {"job": REGION, "incarnation": core.incarnation, "epoch": core.incarnation}
        await model.driver.checkpoint({}, ordered=[RequestCheckpoint(**common, checkpoint=last.number + 1)])


def note(model, record, change):
    target = record.rolled_back_to
    model.rows[record.number] = {**model.rows[target], **change}


@pytest.mark.trio
async def test_an_edit_is_a_new_line_whose_state_has_other_rows_and_all_that_is_retained_stays() -> None:
    model = await with_checkpoints(3)
    *_, before = kept = await model.kept()
    record = await edit(model, {"a": 70, "b": 1}, savepoint="before")
    last = (await model.kept())[-1]
    assert replace(last, driver="") == record
    assert (last.number, last.parent, last.rolled_back_to, last.line, last.rewound) == (4, 3, 3, 1, True)
    assert last.retained == (*(checkpoint.number for checkpoint in kept), 4)
    assert last.workers[0].steps == before.workers[0].steps
    assert last.workers[0].state.epoch == last.incarnation > before.incarnation
    assert (last.edit, last.rewinds[-1].edited) == (EDIT, "ann@host")
    assert (last.savepoints, last.notes["before"].by) == ({"before": 3}, "ann@host")
    await begins(model)
    assert await held(model) == {"a": 70, "b": 1}, "the next driver begins with it"
    for number in range(6, 9):
        await model.driver.checkpoint({"c": number})
    assert [checkpoint.number for checkpoint in await model.kept()] == [3, 7, 8]
    assert await held(model) == {"a": 70, "b": 1, "c": 8}
    assert model.driver.core.run.last_checkpoint.edit is None, "later ones are no edits"
    assert model.driver.core.run.last_checkpoint.rewinds[-1].edited == "ann@host"


@pytest.mark.trio
async def test_an_edit_can_be_taken_back_and_an_older_checkpoint_can_be_edited() -> None:
    model = await with_checkpoints(3)
    await edit(model, {"a": 70})
    record = await restore_stopped(Host(model.store), REGION, "checkpoint:3")
    model.rows[record.number] = model.rows[3]
    assert (record.line, record.edit, record.rewinds[-1].edited) == (2, None, "")
    await begins(model)
    assert await held(model) == {"a": 3}
    await model.driver.checkpoint({"b": 1})
    record = await edit(model, {"z": 9, "a": None}, to="checkpoint:6", allow_republish=True)
    assert (record.rolled_back_to, record.line) == (6, 3)
    await begins(model)
    assert await held(model) == {"z": 9}
    await model.driver.checkpoint({"b": 2})
    assert await held(model) == {"z": 9, "b": 2}


@pytest.mark.trio
async def test_a_savepoint_of_an_edited_region_holds_the_edited_state() -> None:
    model = await with_checkpoints(3)
    record = await edit(model, {"a": 70})
    number = await savepoint_stopped(Host(model.store), REGION, "edited", 0, on=True)
    assert (number, record.rolled_back_to) == (record.number, 3)
    again = (await model.kept())[-1]
    assert (again.rolled_back_to, again.edit, again.workers) == (record.number, None, record.workers)
    model.rows[again.number] = model.rows[record.number]
    back = await restore_stopped(Host(model.store), REGION, "savepoint:edited")
    assert (back.rolled_back_to, back.rewinds[-1].to, back.edit) == (record.number, record.number, None)
    model.rows[back.number] = model.rows[record.number]
    await begins(model)
    assert await held(model) == {"a": 70}


@pytest.mark.trio
async def test_what_is_refused_under_the_claim_leaves_no_segment() -> None:
    """Otherwise the driver that it has interrupted would end, and nobody would run the region."""
    model = await with_checkpoints(3)

    async def objects():
        return (await model.store.inspect(coordinator_directory(REGION))).answers

    before = await objects()

    def decide(last):
        raise EditRefusedError(f"of checkpoint {last.number}")

    with pytest.raises(EditRefusedError, match="of checkpoint 3"):
        await edit(model, {"a": 1}, decide=decide)
    assert await objects() == before


@pytest.mark.trio
async def test_what_is_refused_changes_nothing() -> None:
    model = await with_checkpoints(3)
    before = await model.kept()
    with pytest.raises(RestoreRefusedError, match="does not retain checkpoint '1'; retained: 2, 3"):
        await edit(model, {"a": 1}, to="checkpoint:1")
    with pytest.raises(SavepointRefusedError, match="a savepoint's name has"):
        await edit(model, {"a": 1}, savepoint="a b")
    assert await model.kept() == before
    with pytest.raises(RestoreRefusedError, match="has committed no checkpoint"):
        edit_target((), "", region=REGION)


class CrashError(Exception):
    """The process dies here."""


class Crashing(Host):
    """The process dies just before call number `left` of the store."""

    def __init__(self, store, left):
        super().__init__(store)
        self.left = left

    def step(self):
        if self.left == 0:
            raise CrashError
        self.left -= 1

    async def inspect(self, directory):
        self.step()
        return await super().inspect(directory)

    async def claim(self, directory, epoch, patience_s=0.0):
        self.step()
        claim = await super().claim(directory, epoch, patience_s)
        return CrashingClaim(claim, self)

    def wall_time_ms(self):
        self.step()
        return super().wall_time_ms()


class CrashingClaim:
    """A claim, or an object of it; each call that changes something or waits for it is a step."""

    def __init__(self, claim, host):
        self._claim, self._host = claim, host

    def open_object(self, *arguments, **options):
        return CrashingClaim(self._claim.open_object(*arguments, **options), self._host)

    def __getattr__(self, name):
        if name in ("append", "settle", "wait_synced", "collect"):
            self._host.step()
        return getattr(self._claim, name)


@pytest.mark.trio
async def test_a_crash_at_any_step_leaves_the_region_as_it_was_until_the_record_counts() -> None:
    # EVIDENCE-OF: P-6
    crashes = 0
    for left in count():
        model = await with_checkpoints(3)
        host = Crashing(model.store, left)
        try:
            record = await edit_stopped(host, REGION, writing({"a": 70, "b": 1}))
        except CrashError:
            record, crashes = None, crashes + 1
        model.rows[4] = {"a": 70, "b": 1}
        await begins(model)
        has_edit = model.driver.core.run.last_checkpoint.line == 1
        assert has_edit or record is None, "what was acknowledged counts"
        assert await held(model) == ({"a": 70, "b": 1} if has_edit else {"a": 3})
        for number in range(3):
            await model.driver.checkpoint({"c": number})
        await model.check()
        if record is not None:
            break
    assert crashes > 5, "it has many steps"


@pytest.mark.trio
@pytest.mark.parametrize("members", [0, 1, 2])
async def test_a_driver_that_starts_meanwhile_has_the_whole_edit_or_nothing_of_it(members) -> None:
    """The record has reached so many of three members when the driver claims."""
    model = await with_checkpoints(2)

    async def begin():
        model.rows[3] = {"a": 70}
        await begins(model)

    await raced(model, members, lambda host: edit_stopped(host, REGION, writing({"a": 70})), begin)
    has_edit = model.driver.core.run.last_checkpoint.line == 1
    assert await held(model) == ({"a": 70} if has_edit else {"a": 2})
    assert has_edit or members < 2, "what was acknowledged holds"
    for number in range(4):
        await model.driver.checkpoint({"b": number})
    await model.check()


class HeldRows(Host):
    """The rows of the edit wait to be carried to members; the start of their segment does not."""

    async def claim(self, directory, epoch, patience_s=0.0):
        claim = await super().claim(directory, epoch, patience_s)
        if directory == WORKER:
            self.own = claim
            open_object = claim.open_object

            def opened(*arguments, **options):
                made = open_object(*arguments, **options)
                append = made.append

                def held_from_the_second_on(data):
                    claim.held = made.size > 0
                    return append(data)

                made.append = held_from_the_second_on
                return made

            claim.open_object = opened
        return claim


@pytest.mark.trio
async def test_the_record_waits_until_its_rows_are_on_the_quorum() -> None:
    model = await with_checkpoints(2)
    host, records = HeldRows(model.store), []

    async def run_edit():
        records.append(await edit_stopped(host, REGION, writing({"a": 70})))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_edit)
        await wait_all_tasks_blocked()
        host.own.deliver(1)
        await wait_all_tasks_blocked()
        assert (await model.kept())[-1].number == 2, "one member has them"
        host.own.deliver(2)
    assert [record.number for record in records] == [3]
    assert await held(model) == {"a": 70}


@pytest.mark.trio
async def test_a_driver_that_takes_the_worker_over_first_is_named_and_nothing_is_recorded() -> None:
    model = await with_checkpoints(2)

    class Late(Host):
        async def claim(self, directory, epoch, patience_s=0.0):
            if directory == WORKER:
                await model.crash()
            return await super().claim(directory, epoch, patience_s)

    with pytest.raises(RegionFencedError, match="took region 'region' over before its state was changed"):
        await edit_stopped(Late(model.store), REGION, writing({"a": 70}))
    assert await held(model) == {"a": 2}
    await model.driver.checkpoint({"b": 1})
    await model.check()


@pytest.mark.trio
async def test_a_region_whose_worker_was_taken_over_in_a_term_is_edited_above_all_terms() -> None:
    model, terms = await with_checkpoints(2), limits.terms_per_incarnation
    await Host(model.store).claim(coordinator_directory(REGION), terms)
    await Host(model.store).claim(WORKER, terms + 7)
    record = await edit(model, {"a": 70})
    assert record.incarnation == record.workers[0].state.epoch == 2 * terms
    await begins(model)
    assert await held(model) == {"a": 70}


async def begin(host, rows):
    part = FirstPart({}, [("one", data) for data in block(rows)])
    operators = {"one": "count"}
    return await begin_region(
        host,
        REGION,
        {0: part},
        layout=even_layout(1),
        operators={},
        irrevocable=operators,
        edit=EDIT,
    )


@pytest.mark.trio
async def test_a_region_begins_with_a_given_state_also_after_a_crash_at_any_step() -> None:
    for left in count():
        model, done = SavepointModel(2), False
        try:
            record, done = await begin(Crashing(model.store, left), {"a": 1, "b": 2}), True
        except CrashError:
            try:
                record = await begin(Host(model.store), {"a": 1, "b": 2})
            except EditRefusedError:  # the record was appended, and nobody learned that it is on the quorum
                record = (await model.kept())[-1]
        assert (record.number, record.step, record.retained, record.edit) == (1, 0, (1,), EDIT)
        model.rows[1] = {"a": 1, "b": 2}
        await model.crash()
        assert await held(model) == {"a": 1, "b": 2}
        await model.driver.checkpoint({"b": None})
        assert [checkpoint.number for checkpoint in await model.check()] == [1, 2]
        with pytest.raises(EditRefusedError, match="region 'region' exists: it has committed checkpoint 2"):
            await begin(Host(model.store), {"a": 1})
        if done:
            break
    assert left > 5, "it has many steps"


def test_an_edit_keeps_a_request_of_the_program_and_refuses_a_fork_without_a_state_of_its_own() -> None:
    last = a_checkpoint(retained=(5,))
    requested = edited((last,), last, 9, {}, EDIT)
    assert requested.rewinds[-1].by == ""
    part = WorkerCheckpoint(state=Position(9, 700, 1), steps=last.workers[0].steps)
    again = edited((last, requested), requested, 11, {0: part}, EDIT)
    check_checkpoint(again, before=requested)
    assert (again.workers[0], again.rolled_back_to, again.line) == (part, 6, 2)
    assert decode_checkpoint(*encode_checkpoint(again)) == again
    origin = ForkOrigin(region="o", checkpoint=5, step=1, savepoint="fork-1", application="o")
    fork = a_checkpoint(origin=origin, in_origin=True)
    with pytest.raises(EditRefusedError, match=r"still in the chains of region 'o'.*run 'f' until its first"):
        edit_target((fork,), "", region="f")


def test_a_program_that_went_back_does_not_go_back_again_after_an_edit() -> None:
    """Otherwise `run(restore=...)`, started again, would undo the edit."""
    last = a_checkpoint(retained=(5,))
    back = restored((last,), last, 9, by="savepoint:good")
    assert edited((last, back), back, 11, {}, EDIT).rewinds[-1].by == "savepoint:good"


def test_a_region_that_begins_with_a_given_state_has_it_as_checkpoint_1() -> None:
    part = WorkerCheckpoint(state=Position(1, 100, 1), steps=Position(1, 50, 1))
    checkpoint = first_record({0: part}, 1, layout=even_layout(1), operators={}, irrevocable={}, edit=EDIT)
    check_checkpoint(checkpoint)
    assert (checkpoint.number, checkpoint.step) == (1, 0)
