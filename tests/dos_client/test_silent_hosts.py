"""A host that vanishes without a word while its member is replaced: writers must not stand still for it."""

import itertools

import pytest
import trio
from trio.testing import MockClock

from dos_client import Claim, open_store, replace_member
from dos_server.testing import memory_server, memory_store

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
