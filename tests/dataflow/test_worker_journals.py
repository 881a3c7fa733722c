"""The state and steps chains of a worker, on the in-memory store that obeys the real one's rules."""

from contextlib import aclosing

import pytest

from checkpoint import Restore
from checkpoint.core.layout import even_layout
from checkpoint.core.manifest import Cut
from dataflow.core.schedule import Barrier
from dataflow.worker.journals import Journals
from dataflow.worker.messages import CutTaken, StageEnded
from tests.checkpoint.manifest_samples import a_cut
from tests.journal.memory_store import MemoryStore


def order_of(incarnation: int, cut: Cut | None) -> Restore:
    number = 0 if cut is None else cut.cut
    return Restore(
        job="r",
        incarnation=incarnation,
        epoch=incarnation,
        cut=number,
        worker=0,
        restore=cut,
        peers=(),
        layout=even_layout(1),
    )


def taken(number: int, step: int) -> CutTaken:
    return CutTaken(1, step, Barrier(number), (), None, {}, {}, {}, {})


@pytest.mark.trio
async def test_the_first_checkpoint_of_a_layout_voids_the_divisions_of_the_former_one() -> None:
    memory, cut = MemoryStore(), None
    left = []
    for incarnation, steps, number in ((1, (1, 2), 1), (2, (), 2), (3, (), 3)):
        journals = await Journals.open(memory.claim(incarnation), order_of(incarnation, cut), generation=1)
        async with aclosing(journals):
            left.append(journals.last_step)
            for step in steps:
                journals.record(StageEnded(incarnation, step, (), 0, {}))
            vote = await journals.prepare(taken(number, 2))
            for step in (3, 4) if steps else ():  # above the checkpoint: the next layout does not replay them
                journals.record(StageEnded(incarnation, step, (), 0, {}))
            await journals.division_synced(4 if steps else 2)
        cut = a_cut(cut=number, step=2, workers={0: vote}, layout=even_layout(1))
    assert left == [0, 4, 2]
