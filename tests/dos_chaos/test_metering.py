"""The writers of a run stay in its budget of disk space, and spread it over its time. On a virtual clock."""

import pytest
import trio
from trio.testing import MockClock

from dos_chaos.core.report import Measures
from dos_chaos.story import HELD_BACK_BYTES, BudgetMeter
from dos_protocol.limits import MIB

pytestmark = pytest.mark.trio
LIMIT = 100 * MIB
RECORD = 10_000


class Disks:
    """Disks that take `factor` bytes for each byte of payload. Of 3 copies, `visible` are there by now, and
    after the first 4 MiB of payload `later`.
    """

    def __init__(self, factor: float, visible: int = 3, later: int | None = None) -> None:
        self.factor = factor
        self.visible = visible
        self.later = visible if later is None else later
        self.meter: BudgetMeter | None = None

    async def used(self) -> int:
        assert self.meter is not None
        visible = self.visible if self.meter.payload_bytes < 4 * MIB else self.later
        return int(self.meter.payload_bytes * visible * self.factor)


async def full() -> int:
    return LIMIT


async def written(disks: Disks, seconds: float, window: float) -> list[int]:
    """Append as fast as the meter allows for `window` seconds; the payload bytes after each second."""
    meter = BudgetMeter(Measures(), limit_bytes=LIMIT, copies=3, seconds=seconds, used=disks.used)
    disks.meter = meter
    meter.begin()
    seen: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.run)
        with trio.move_on_after(window):
            while True:
                await meter.wait_ready()
                meter.appended(RECORD)
                if len(seen) < int(meter.now):
                    seen.append(meter.payload_bytes)
        nursery.cancel_scope.cancel()
    return seen


@pytest.mark.parametrize(
    "disks", [Disks(1.1), Disks(2.0), Disks(1.1, visible=2), Disks(2.0, later=2), Disks(0.0)]
)
async def test_the_budget_is_not_exceeded_and_lasts_to_the_end(
    disks: Disks, autojump_clock: MockClock
) -> None:
    """Disks that need more than expected, a member that is down and filled later, disks not visible."""
    seen = await written(disks, 60.0, 80.0)
    assert disks.meter is not None
    assert disks.meter.payload_bytes * 3 * max(disks.factor, 1.0) <= LIMIT - HELD_BACK_BYTES + MIB
    assert seen[-1] > 0.7 * LIMIT / 3 / max(disks.factor, 1.15), "most of the budget is used"
    assert seen[29] < 0.75 * seen[-1], "it is not used up in the first half"


async def test_nothing_is_appended_before_the_run_begins(autojump_clock: MockClock) -> None:
    meter = BudgetMeter(Measures(), limit_bytes=LIMIT, copies=3, seconds=10.0, used=full)
    assert not meter.ready()
    meter.begin()
    assert meter.ready()


async def test_a_full_budget_stops_the_writers_and_the_rest_serves_the_end(autojump_clock: MockClock) -> None:
    meter = BudgetMeter(Measures(), limit_bytes=LIMIT, copies=3, seconds=10.0, used=full)
    meter.begin()
    meter.appended(MIB)
    await meter.measure()
    assert meter.stopped_by_budget
    with trio.move_on_after(30.0) as scope:
        await meter.wait_ready()
    assert scope.cancelled_caught
    meter.release_rest()
    with trio.fail_after(1.0):
        await meter.wait_ready()
