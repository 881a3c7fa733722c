"""Inputs are trimmed to what retained checkpoints of registered regions need, and not further."""

from typing import Any

import pytest
import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import change_register
from checkpoint.core.records.consumers import (
    Register,
    RetentionRule,
)
from checkpoint.core.records.manifest import SplitPosition
from checkpoint.errors import InputTrimmedError
from tests.checkpoint.trim_model import DIRECTORY, REGISTER, PatientHost, TrimModel
from tests.support.parts import with_long


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "input_segment_bytes_max", 200)


async def model_with(batches: int, *regions: str) -> TrimModel:
    model = TrimModel()
    await model.open()
    for name in regions:
        await model.region(name)
    for _ in range(batches):
        await model.send()
    return model


async def read_and_commit(model: TrimModel, name: str, pieces: int = 1_000, checkpoints: int = 1) -> None:
    region = await model.region(name)
    await region.read(pieces)
    for _ in range(checkpoints):
        await region.checkpoint()


# --- what is deleted, and what is not -----------------------------------------------------------------------


@pytest.mark.trio
async def test_an_input_without_a_consumer_is_not_trimmed() -> None:
    model = await model_with(20)
    await model.trim()
    assert model.segments()[0] == 0
    assert len(await model.read_from(SplitPosition(0))) == 20


# EVIDENCE-OF: P-6
@pytest.mark.trio
async def test_the_oldest_retained_checkpoint_of_the_slowest_region_decides() -> None:
    model = await model_with(20, "fast", "slow")
    await read_and_commit(model, "fast", checkpoints=3)
    await model.trim()
    assert model.segments()[0] == 0, "the other region has committed nothing: it needs everything"
    await read_and_commit(model, "slow", 10)
    await model.trim()
    await model.trim()
    assert 0 < model.segments()[0] < model.ends[9]
    first = model.segments()[0]
    await read_and_commit(model, "slow")
    await model.trim()
    await model.trim()
    assert model.segments()[0] == first, "the checkpoint at row 10 is retained still"
    await read_and_commit(model, "slow")
    await model.trim()
    await model.trim()
    assert first < model.segments()[0] < model.ends[-1]
    await model.check()


@pytest.mark.trio
async def test_a_savepoint_keeps_what_it_needs_and_its_end_frees_it() -> None:
    model = await model_with(4, "region")
    await read_and_commit(model, "region")
    region = await model.region("region")
    await region.savepoint("before")
    for _ in range(20):
        await model.send()
    await read_and_commit(model, "region", checkpoints=4)
    await model.trim()
    await model.trim()
    assert model.segments()[0] < model.ends[3]
    await model.check()
    await region.drop("before")
    await region.checkpoint()
    await model.trim()
    await model.trim()
    assert model.segments()[0] > model.ends[3]
    await model.check()


# EVIDENCE-OF: P-6
@pytest.mark.parametrize("checkpoints", with_long([240], [20_000]))
def test_sizes_and_numbers_of_objects_stay_flat_over_many_checkpoints(checkpoints: int) -> None:
    """Input, manifest and register: the second half of the run needs no more than the first one."""
    trio.run(soak, checkpoints)


async def soak(checkpoints: int) -> None:
    model = await model_with(0, "region", "other")
    most: list[dict[str, tuple[int, int]]] = [{}, {}]
    for number in range(checkpoints):
        await model.send()
        for name in ("region", "other"):
            await read_and_commit(model, name)
        if number % 20 == 5:  # what a person and a crash do now and then
            await (await model.region("region")).savepoint("now")
        elif number % 20 == 12:
            await (await model.region("region")).drop("now")
        elif number % 20 == 16:
            await model.open()
            await (await model.region("other")).open()
            await (await model.region("other")).register()
        await model.trim()
        if number >= checkpoints // 6:
            half = most[2 * number >= checkpoints]
            for directory in model.store.servers[0].objects:
                size, objects = half.get(directory, (0, 0))
                half[directory] = (
                    max(size, model.store.bytes_of(directory)),
                    max(objects, len(model.store.servers[0].objects[directory])),
                )
    assert most[0].keys() == most[1].keys()
    for directory, (size, objects) in most[1].items():
        assert size <= 1.25 * most[0][directory][0], directory
        assert objects <= 1.25 * most[0][directory][1] + 1, directory
    assert most[1][DIRECTORY][0] < 0.5 * model.log.end.size
    await model.check()


@pytest.mark.trio
async def test_restarts_without_batches_leave_the_number_of_the_last_batch_and_few_segments() -> None:
    model = await model_with(3, "region")
    await read_and_commit(model, "region", checkpoints=3)
    for _ in range(10):
        await model.open()
        await model.trim()
    await model.check()
    await model.send()
    await read_and_commit(model, "region", checkpoints=3)
    await model.trim()
    await model.trim()
    assert len(model.segments()) < 6
    await model.open()
    await model.check()


@pytest.mark.trio
async def test_a_region_that_registers_between_release_and_deletion_loses_nothing() -> None:
    model = await model_with(20, "first")
    await read_and_commit(model, "first", checkpoints=3)
    assert await model.trim_step(), "released, and nothing deleted yet"
    await model.region("second")
    assert model.segments()[0] == 0
    await model.trim()
    assert model.segments()[0] == 0
    await model.check()
    await model.open()  # the next producer finds the release, and reads the register, too
    await model.trim()
    assert model.segments()[0] == 0
    await model.check()
    for name in ("first", "second"):
        await read_and_commit(model, name, checkpoints=3)
    await model.trim()
    await model.trim()
    assert model.segments()[0] > 0
    await model.check()


@pytest.mark.trio
async def test_a_producer_that_dies_between_release_and_deletion_is_continued_by_the_next() -> None:
    model = await model_with(20, "region")
    await read_and_commit(model, "region", checkpoints=3)
    assert await model.trim_step()
    await model.open()
    assert model.segments()[0] == 0
    await model.trim_step()
    assert model.segments()[0] > 0
    await model.check()


@pytest.mark.trio
async def test_a_member_that_was_unavailable_is_trimmed_when_it_is_back() -> None:
    model = await model_with(20, "region")
    away = model.store.servers[2]
    await read_and_commit(model, "region", checkpoints=3)
    away.up = False
    await model.trim()
    assert "input.0000000000000001.0000000000000000" in away.objects[DIRECTORY]
    away.up = True
    model.log._claim.join(away)
    assert model.segments()[0] > 0
    await model.check()


# --- limits -------------------------------------------------------------------------------------------------


async def rule(model: TrimModel, **limit: Any) -> None:
    await change_register(
        PatientHost(model.store),
        REGISTER,
        lambda register: Register(
            consumers=register.consumers, rule=RetentionRule(set_by="ops@host", set_ms=1, **limit)
        ),
    )


@pytest.mark.trio
async def test_a_limit_of_size_deletes_without_consumers_and_a_reader_below_it_gets_the_reason() -> None:
    model = await model_with(20)
    await rule(model, bytes_max=300)
    await model.trim()
    await model.trim()
    first = model.segments()[0]
    assert 0 < first <= model.log.end.size - 300
    with pytest.raises(InputTrimmedError) as raised:
        await model.read_from(SplitPosition(0))
    said = str(raised.value)
    assert f"the bytes from 0 to {first} of producer 'till' of input 'orders' of 'shop' were trimmed" in said
    assert "the retention rule is at most 300 bytes, set by ops@host" in said
    assert 'begin="retained"' in said
    found = await model.read_from(SplitPosition(0), from_retained=True)
    assert found == model.rows[-len(found) :]
    assert len(found) >= 2


@pytest.mark.trio
async def test_a_limit_of_age_deletes_old_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TrimModel()
    monkeypatch.setattr("checkpoint.chains.input_log.wall_time_ms", lambda: model.now_ms)
    await model.open()
    await rule(model, age_max_s=10.0)
    for _ in range(20):
        model.now_ms += 1_000
        await model.send()
    await model.trim()
    await model.trim()
    found = await model.read_from(SplitPosition(0), from_retained=True)
    assert 10 <= len(found) < 14
    model.now_ms += 1_000_000
    await model.trim()
    await model.trim()
    assert 0 < len(await model.read_from(SplitPosition(0), from_retained=True)) < 4, "the last segment stays"
    planner = model.log._trimmer._planner
    assert len(planner._times) <= len(model.segments()), "the times of deleted segments are forgotten"
    await model.open()
