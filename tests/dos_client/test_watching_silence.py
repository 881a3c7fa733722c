"""Who watches a connection for silence sleeps until there is something to do."""

import itertools

import pytest
import trio
from trio.testing import MockClock

from dos_client import Claim, connect, open_connection, open_store, replace_member
from dos_client.limits import silence_broken_s, silence_ping_s
from dos_server.testing import memory_server, memory_store

STEPS_MAX = 5_000


def a_moment_from_which_the_silence_is_short_by_a_rounding() -> float:
    """(moment + silence) - moment is less than silence, and what is missing is nothing beside the moment."""
    for number in range(1, 1_000):
        moment = number / 7
        due = moment + silence_ping_s
        missing = silence_ping_s - (due - moment)
        if missing > 0 and due + missing == due:
            return moment
    raise AssertionError("there is one")


class Steps(trio.abc.Instrument):
    """Ends a run that goes round and round without its time going on."""

    def __init__(self) -> None:
        self.taken = 0
        self.scope = trio.CancelScope()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += 1
        if self.taken > STEPS_MAX:
            self.scope.cancel()


@pytest.mark.parametrize("begin", [0.0, a_moment_from_which_the_silence_is_short_by_a_rounding()])
def test_a_quiet_connection_is_asked_now_and_then_and_no_more(begin: float) -> None:
    steps = Steps()

    async def main() -> None:
        async with memory_server(seed=1) as server:
            await trio.sleep(begin - trio.current_time())
            async with connect(server.url):
                with steps.scope:
                    await trio.sleep(4 * silence_ping_s)

    trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[steps])
    assert not steps.scope.cancelled_caught, f"{steps.taken} steps of tasks, and no end"


def test_a_peer_that_vanished_without_a_word_is_given_up_and_not_sooner() -> None:
    async def main() -> None:
        async with memory_server(seed=1) as server, open_connection(server.address) as connection:
            await trio.sleep(3 * silence_broken_s)
            assert connection.failure is None, "it answers PING"
            server.power_cut()
            began = trio.current_time()
            with trio.fail_after(2 * silence_broken_s):
                error = await connection.wait_broken()
            assert "was silent for" in str(error)
            assert silence_broken_s - silence_ping_s <= trio.current_time() - began

    trio.run(main, clock=MockClock(autojump_threshold=0))


APPEND_PAUSE_S_MAX = 0.5
"""Aim for the longest time between two acknowledged appends."""


async def append_until(claim: Claim, over: trio.Event) -> list[float]:
    """Append one byte after the other; return the times of the acknowledgements."""
    times = [trio.current_time()]
    log = claim.open_object("log")
    while not over.is_set():
        log.append(b"x")
        await log.wait_synced(log.size)
        times.append(trio.current_time())
        await trio.sleep(0.05)
    return times


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_writers_do_not_wait_for_a_silent_host_that_is_being_replaced(lost: int) -> None:
    async def longest_pause() -> float:
        over, times = trio.Event(), []

        async def write() -> None:
            times.extend(await append_until(claim, over))

        async with (
            memory_store(seed=1) as servers,
            memory_server(seed=2) as spare,
            open_store(servers.url) as store,
            await store.claim("d", 1, bytes(15) + b"w") as claim,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(write)
            await trio.sleep(1)
            servers[lost].power_cut()
            await trio.sleep(5)
            await replace_member(servers.url, old=servers[lost].address, new=spare.address)
            await trio.sleep(10)
            over.set()
        return max(after - before for before, after in itertools.pairwise(times))

    pause = trio.run(longest_pause, clock=MockClock(autojump_threshold=0))
    assert pause <= APPEND_PAUSE_S_MAX, f"no append was acknowledged for {pause:.2f} s"
