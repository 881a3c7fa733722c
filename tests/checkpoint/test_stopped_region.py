"""Pins of a region that no driver runs: what is refused, and who starts or lives meanwhile."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointWanted,
    ManifestLost,
    ManifestTaken,
    OpenManifest,
)
from checkpoint.core.links.messages import RequestCheckpoint
from checkpoint.core.records.lines import recorded_again
from checkpoint.core.records.manifest import SavepointNote, decode_checkpoint, encode_checkpoint
from checkpoint.errors import RegionFencedError, SavepointRefusedError
from checkpoint.maintenance.stopped_region import savepoint_stopped
from tests.checkpoint.manifest_samples import a_checkpoint
from tests.checkpoint.savepoint_model import REGION, Host, SavepointModel, note_of


async def with_checkpoints(count, retain=2):
    model = SavepointModel(retain)
    await model.crash()
    for number in range(1, count + 1):
        await model.driver.checkpoint({"a": number})
    return model


@pytest.mark.trio
async def test_the_last_checkpoint_is_recorded_once_more_and_the_region_continues_from_it() -> None:
    model = await with_checkpoints(3)
    note = note_of("end", 0)
    assert await savepoint_stopped(Host(model.store), REGION, "end", 0, on=True, note=note) == 3
    *_, before, last = await model.kept()
    assert (last.number, last.parent, last.rolled_back_to, last.step) == (4, 3, 3, before.step)
    assert (last.workers, last.final, last.savepoints) == (before.workers, False, {"end": 3})
    assert last.retained == (2, 3, 4)
    assert last.incarnation > before.incarnation
    assert await savepoint_stopped(Host(model.store), REGION, "end", 0, on=True) == 3, (
        "the last one is three again"
    )
    assert (await model.kept())[-1] == last
    model.rows[4] = model.rows[3]
    await model.crash()
    for number in range(5, 9):
        await model.driver.checkpoint({"b": number})
    assert [checkpoint.number for checkpoint in await model.check()] == [3, 7, 8], (
        "three has its pin, four goes with its time"
    )
    assert await savepoint_stopped(Host(model.store), REGION, "end", 0, on=False) == 3
    assert [checkpoint.number for checkpoint in await model.kept()] == [3, 7, 8, 9], (
        "who drives it next releases"
    )
    model.rows[9] = model.rows[8]
    await model.crash()
    await model.driver.checkpoint({"c": 1})
    assert [checkpoint.number for checkpoint in await model.check()] == [9, 10]


@pytest.mark.trio
@pytest.mark.parametrize(
    ("savepoint", "checkpoint", "on", "why"),
    [
        ("new", 1, True, "checkpoint 1 is not retained; retained: 2, 3, 4"),
        ("new", 9, True, "checkpoint 9 is not retained"),
        ("good", 2, True, "savepoint 'good' holds checkpoint 3: drop it first"),
        ("a b", 3, True, "a savepoint's name has"),
        ("new", 0, False, r"savepoint 'new' does not exist; existing: 'good' \(checkpoint 3\)"),
    ],
)
async def test_what_cannot_be_pinned_is_refused_and_nothing_is_recorded(
    savepoint, checkpoint, on, why
) -> None:
    model = await with_checkpoints(3)
    assert await savepoint_stopped(Host(model.store), REGION, "good", 3, on=True) == 3
    before = await model.kept()
    with pytest.raises(SavepointRefusedError, match=why):
        await savepoint_stopped(Host(model.store), REGION, savepoint, checkpoint, on=on)
    assert await savepoint_stopped(Host(model.store), REGION, "good", 3, on=True) == 3, "it is pinned already"
    too_long = SavepointNote(why="x" * 501)
    with pytest.raises(SavepointRefusedError, match="at most 500 characters, got 501"):
        await savepoint_stopped(Host(model.store), REGION, "new", 0, on=True, note=too_long)
    assert await model.kept() == before


@pytest.mark.trio
async def test_a_region_without_a_checkpoint_has_none_to_pin() -> None:
    model = SavepointModel(2)
    await model.crash()
    with pytest.raises(SavepointRefusedError, match="has committed no checkpoint"):
        await savepoint_stopped(Host(model.store), REGION, "end", 0, on=True)


@pytest.mark.trio
async def test_a_driver_that_is_alive_after_all_commits_nothing_more_and_ends() -> None:
    model = await with_checkpoints(2)
    driver = model.driver
    await savepoint_stopped(Host(model.store), REGION, "end", 0, on=True)
    (order,) = [e for e in driver.play(CheckpointWanted()) if isinstance(e, RequestCheckpoint)]
    kept = await model.kept()
    late = recorded_again(kept[:-1], driver.core.run.incarnation, {})
    assert late.number == order.checkpoint == kept[-1].number, "two records of one number"
    await driver.log.append(AppendCheckpoint(late))
    assert isinstance(driver.events[-1], ManifestLost)
    await driver.log.open(OpenManifest(above=0, held=driver.core.run.incarnation))
    assert isinstance(driver.events[-1], ManifestTaken), "it is fenced"
    assert await model.kept() == kept


class Slow(Host):
    """The record of the pin waits to be carried to members."""

    async def claim(self, directory, epoch, patience_s=0.0):
        self.own = await super().claim(directory, epoch, patience_s)
        return self.own

    def wall_time_ms(self):
        """Called when a record is about to be appended."""
        self.own.held = True
        return super().wall_time_ms()


@pytest.mark.trio
@pytest.mark.parametrize("members", [0, 1, 2])
async def test_a_driver_that_starts_meanwhile_has_the_savepoint_or_never_will(members) -> None:
    """The record has reached so many of three members when the driver claims."""
    # EVIDENCE-OF: P-6
    model = await with_checkpoints(2)
    host, ended = Slow(model.store), []

    async def savepoint():
        try:
            note = note_of("end", 0)
            ended.append(await savepoint_stopped(host, REGION, "end", 0, on=True, note=note))
        except RegionFencedError as error:
            ended.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(savepoint)
        await wait_all_tasks_blocked()
        for member in range(1, members + 1):
            host.own.deliver(member)
        await wait_all_tasks_blocked()
        assert (ended == [2]) == (members == 2), "it is acknowledged by two"
        model.rows[3] = model.rows[2]
        await model.crash()
        if members < 2:
            host.own.deliver(3)
    counts = "end" in model.driver.core.checkpoints.savepoints
    assert ended == [2] if members == 2 else isinstance(ended[0], RegionFencedError)
    assert counts or members < 2, "what was acknowledged holds"
    for number in range(4):
        await model.driver.checkpoint({"b": number})
    numbers = [checkpoint.number for checkpoint in await model.check()]
    assert (2 in numbers) == counts
    assert (await model.kept())[-1].savepoints == ({"end": 2} if counts else {})


def test_a_final_checkpoint_stays_final_and_a_checkpoint_once_more_says_whose_it_is() -> None:
    last = a_checkpoint(final=True, retained=(5,))
    again = recorded_again((last,), 9, {"end": 5})
    twice = recorded_again((last, again), 11, {})
    assert (again.final, again.rolled_back_to, twice.rolled_back_to) == (True, 5, 5)
    assert (again.retained, twice.retained) == ((5, 6), (5, 6, 7))
    for checkpoint in (again, twice):
        record = encode_checkpoint(checkpoint)
        assert decode_checkpoint(*record) == checkpoint
