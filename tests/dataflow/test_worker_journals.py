"""The state and steps chains of a worker, on the in-memory store that obeys the real one's rules."""

from contextlib import aclosing
from typing import Any

import pytest

from checkpoint import NO_MARK, Mark, Restore
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import Checkpoint
from dataflow.core.schedule import NO_CHECKPOINT, Barrier
from dataflow.worker.journals import Journals
from dataflow.worker.messages import CheckpointTaken, StageEnded
from tests.checkpoint.manifest_samples import a_checkpoint
from tests.journal.memory_store import MemoryStore


def order_of(incarnation: int, checkpoint: Checkpoint | None, **fields: Any) -> Restore:
    number = 0 if checkpoint is None else checkpoint.number
    return Restore(
        job="r",
        incarnation=incarnation,
        **{"epoch": incarnation, **fields},
        checkpoint=number,
        worker=0,
        restore=checkpoint,
        peers=(),
        layout=even_layout(1),
    )


def taken(number: int, step: int) -> CheckpointTaken:
    return CheckpointTaken(1, step, Barrier(number), (), None, {}, {}, {}, {})


@pytest.mark.trio
async def test_the_first_checkpoint_of_a_layout_voids_the_divisions_of_the_former_one() -> None:
    memory, checkpoint = MemoryStore(), None
    left = []
    for incarnation, steps, number in ((1, (1, 2), 1), (2, (), 2), (3, (), 3)):
        journals = await Journals.open(
            memory.claim(incarnation), order_of(incarnation, checkpoint), generation=1
        )
        async with aclosing(journals):
            left.append(journals.last_step)
            for step in steps:
                journals.record(StageEnded(incarnation, step, (), 0, {}))
            vote = await journals.prepare(taken(number, 2))
            for step in (3, 4) if steps else ():  # above the checkpoint: the next layout does not replay them
                journals.record(StageEnded(incarnation, step, (), 0, {}))
            await journals.division_synced(4 if steps else 2)
        checkpoint = a_checkpoint(number=number, step=2, workers={0: vote}, layout=even_layout(1))
    assert left == [0, 4, 2]


# --- the marks of local recovery ----------------------------------------------------------------------

FIRST = 65536
"""The incarnation in which the steps below are recorded. Terms of it are 1 and 2 above."""
MARKS = [NO_MARK, Mark(1, final=False, incarnation=FIRST), Mark(2, final=True, incarnation=FIRST)]


def local(incarnation: int, term: int, *, takes_over: bool) -> Restore:
    return order_of(incarnation, None, epoch=term, terms=(term,), takes_over=takes_over)


async def recorded(memory: MemoryStore, order: Restore, first_step: int = 1) -> None:
    """Record three steps; the second one requests checkpoint 1, the third one the final checkpoint 2."""
    journals = await Journals.open(memory.claim(order.epoch), order, generation=1)
    async with aclosing(journals):
        for step, barrier in enumerate((NO_CHECKPOINT, Barrier(1), Barrier(2, final=True)), first_step):
            journals.record(StageEnded(order.epoch, step, {}, 0, {}, barrier=barrier))
        journals.record(StageEnded(order.epoch, first_step, {}, 0, None, stage=1, barrier=Barrier(1)))
        await journals.division_synced(first_step + 2)


async def marks_found(memory: MemoryStore, order: Restore) -> list[Mark]:
    """The marks with which the steps are replayed by this order."""
    journals = await Journals.open(memory.claim(order.epoch), order, generation=1)
    async with aclosing(journals):
        divisions = journals.divisions(journals.last_step)
    assert [division.step for division in divisions] == [*range(1, len(divisions) + 1)]
    return [division.mark for division in divisions]


@pytest.mark.trio
async def test_a_worker_that_is_taken_over_makes_its_steps_again_with_their_marks() -> None:
    memory = MemoryStore()
    await recorded(memory, local(FIRST, FIRST, takes_over=False))
    for term in (FIRST + 1, FIRST + 2):
        assert await marks_found(memory, local(FIRST, term, takes_over=True)) == MARKS


@pytest.mark.trio
async def test_steps_that_are_recorded_after_a_take_over_have_marks_of_the_incarnation_too() -> None:
    memory = MemoryStore()
    await recorded(memory, local(FIRST, FIRST, takes_over=False))
    await recorded(memory, local(FIRST, FIRST + 1, takes_over=True), first_step=4)
    assert await marks_found(memory, local(FIRST, FIRST + 2, takes_over=True)) == [*MARKS, *MARKS]


@pytest.mark.trio
@pytest.mark.parametrize(
    "order",
    [
        local(2 * FIRST, 2 * FIRST, takes_over=False),
        local(2 * FIRST, 2 * FIRST + 1, takes_over=True),
        local(FIRST, FIRST + 1, takes_over=False),
        order_of(2 * FIRST, None),
    ],
    ids=["a reset", "a take-over after a reset", "no take-over", "global recovery"],
)
async def test_otherwise_marks_do_not_count(order: Restore) -> None:
    """The checkpoints that they request were given up, and their numbers are used again."""
    memory = MemoryStore()
    await recorded(memory, local(FIRST, FIRST, takes_over=False))
    assert await marks_found(memory, order) == [NO_MARK] * 3


@pytest.mark.trio
async def test_with_global_recovery_no_marks_are_recorded() -> None:
    memory = MemoryStore()
    await recorded(memory, order_of(FIRST, None))
    assert await marks_found(memory, local(FIRST, FIRST + 1, takes_over=True)) == [NO_MARK] * 3
