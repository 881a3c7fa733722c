"""Regions in the second tier: what a quiet run does, what of a storm is seen, and that bugs are found."""

import pytest
import trio
import trio.testing

from tests.shells.region.process import Threads
from tests.shells.run import run_seed
from tests.sim.result import Result

QUIET, STORMY = 20, 40


def saw(result: Result, *what: str) -> bool:
    assert not result.violation
    return all(result.history.sometimes[one] for one in what)


def test_a_quiet_region_commits_checkpoints_finishes_and_finds_nothing_to_do_when_started_again() -> None:
    result = run_seed(QUIET, faults=[])
    assert saw(result, "event: CheckpointAppended", "voted", "sent: Committed")
    assert result.history.sometimes["end: FINISHED"] == 2
    assert result.history.sometimes["manifest opens"] == 2


def test_a_storm_resets_it_and_it_finishes_all_the_same() -> None:
    result = run_seed(STORMY)
    assert saw(result, "event: LinkDown", "end: FINISHED")
    assert result.history.sometimes["manifest opens"] > 2


@pytest.mark.parametrize("real", [True, False])
def test_who_is_cancelled_waits_for_his_thread_and_what_it_raises_is_raised(real: bool) -> None:
    """The contract of work in threads, as far as regions use it."""
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        return 10 // number

    async def run(number: int) -> int:
        if real:
            return await trio.to_thread.run_sync(work, number)
        return await Threads().run((0.01, 0.01), work, number)

    async def main() -> None:
        assert await run(5) == 2
        with pytest.raises(ZeroDivisionError):
            await run(0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await run(7)
        assert done == [5, 0], "it was cancelled before it began"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, 2)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert done == [5, 0, 2], "what was begun is done"

    trio.run(main)


@pytest.mark.trio
async def test_the_threads_of_a_process_that_was_killed_do_nothing_more() -> None:
    threads, done = Threads(), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run, (5.0, 5.0), done.append, 1)
        await trio.testing.wait_all_tasks_blocked()
        threads.end()
        nursery.cancel_scope.cancel()
    assert not done
