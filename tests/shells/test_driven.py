"""Regions of real shells that the micro-batches of a query drive, while everything fails: each row comes out
once, windows end as in a plain computation, and a repeated batch returns what it returned before.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest

from checkpoint.core.coordination.batches import _Open
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.link import Link
from dataflow.core.event_time import UNKNOWN
from dataflow.worker.circuit import CircuitTime
from dataflow.worker.link_thread import LinkIncarnation
from tests.shells.driven import DrivenRegion, Task, run_driven
from tests.sim.planted_records import Planted
from tests.sim.result import Result
from tests.support.parts import with_long

LIVES: dict[str, dict[str, bool]] = {
    "losses": {"pauses": False},
    "changes": {"scales": True, "makes_savepoints": True, "pauses": True},
}


SHORT = [("losses", 2), ("changes", 8)]
LONGER = [("losses", 3), ("changes", 3), ("changes", 4)]


def run(life: str, seed: int, **options: bool) -> Result:
    with mock.patch.multiple(DrivenRegion, **LIVES[life]):
        return run_driven(seed, **options)


@pytest.mark.parametrize("which", with_long(SHORT, LONGER))
def test_every_row_comes_out_once_whatever_fails(which: tuple[str, int]) -> None:
    life, seed = which
    result = run(life, seed)
    assert not result.violation, f"seed {seed}: {result.violation}"
    seen: Counter[str] = result.history.sometimes
    assert seen["a batch is offered"] > 7, "batches were sent again"
    assert seen["manifest opens"] > 1, "it was reset, or another driver took it over"


# --- planted bugs -----------------------------------------------------------------------------------------

BUGS: dict[str, tuple[Callable[[], Planted], str, int]] = {}
"""Name -> the bug, the life and the seed that show it."""


def planted(life: str, seed: int) -> Callable[[Callable[[], Planted]], Callable[[], Planted]]:
    def register(plant: Callable[[], Planted]) -> Callable[[], Planted]:
        BUGS[plant.__name__] = plant, life, seed
        return plant

    return register


@planted("changes", 2)
def a_checkpoint_in_the_middle_of_a_batch() -> Planted:
    true = Checkpoints.can_checkpoint.fget
    assert true is not None

    def wrong(self: Checkpoints) -> bool:
        held, self._run.batch_open = self._run.batch_open, False
        may = true(self)
        self._run.batch_open = held
        return bool(may)

    return mock.patch.object(Checkpoints, "can_checkpoint", property(wrong))


@planted("losses", 2)
def an_offer_that_overtakes_its_shares() -> Planted:
    return mock.patch.object(Task, "offers_early", new=True)


@planted("losses", 2)
def a_share_is_dropped_because_its_link_is_closed() -> Planted:
    true = LinkIncarnation.receive_shares

    async def wrong(self: LinkIncarnation, link: Link) -> None:
        before = set(self._shares._held)
        await true(self, link)
        for key in self._shares._held.keys() - before:
            del self._shares._held[key]

    return mock.patch.object(LinkIncarnation, "receive_shares", wrong)


@planted("losses", 2)
def the_watermark_moves_within_a_batch() -> Planted:
    true = CircuitTime._least

    def wrong(self: CircuitTime, step: int, name: str) -> int:
        return max(true(self, step, name), self.marks_of_batch().get(name, UNKNOWN))

    return mock.patch.object(CircuitTime, "_least", wrong)


@planted("losses", 3)
def a_share_without_rows_holds_the_watermark() -> Planted:
    true = _Open.combined

    def wrong(self: _Open, before: Any) -> dict[str, int]:
        return true(self, before) if all(self.marks.values()) else dict(before)

    return mock.patch.object(_Open, "combined", wrong)


@planted("changes", 3)
def the_checkpoint_of_a_batch_is_that_of_the_next_step_of_any_worker() -> Planted:
    true = Checkpoints.request_for_batch

    def wrong(self: Checkpoints, batch: Any, after_step: int, now: float) -> None:
        del after_step
        true(self, batch, -1, now)

    return mock.patch.object(Checkpoints, "request_for_batch", wrong)


LONG = [
    "a_share_without_rows_holds_the_watermark",
    "the_checkpoint_of_a_batch_is_that_of_the_next_step_of_any_worker",
]


@pytest.mark.parametrize("name", with_long([name for name in BUGS if name not in LONG], LONG))
def test_a_planted_bug_is_found(name: str) -> None:
    plant, life, recorded = BUGS[name]
    for seed in (recorded, *range(1, 40)):
        if seed % 5:
            with ExitStack() as stack:
                stack.enter_context(plant())
                if run(life, seed).violation:
                    return
    pytest.fail(f"{name} is not found")
