"""Row 28: answers for a peer that requests much and reads nothing do not accumulate in memory."""

import pytest
import trio
from trio.testing import MockClock

from dos_protocol.limits import MIB
from dos_server.testing import memory_server
from tests.shells.bugs import planted
from tests.shells.oracles import check_server
from tests.shells.repeated_gets import repeated_gets
from tests.sim.history import ViolationError

GETS = 20


async def request_and_read_nothing() -> int:
    """Request an object of 1 MiB many times. Return the maximum number of bytes that the server held."""
    most = 0
    async with memory_server(seed=1) as server, repeated_gets(server, bytes(MIB), GETS):
        for _ in range(100):
            await trio.sleep(0.01)
            assert server.host.server is not None
            most = max(most, server.host.server.outgoing.held)
            check_server(server.address, server.host.server)
    return most


def test_answers_to_a_peer_that_takes_none_are_bounded() -> None:
    assert MIB <= trio.run(request_and_read_nothing, clock=MockClock(autojump_threshold=0)) <= 3 * MIB


def test_without_back_pressure_they_are_not() -> None:
    with planted("nothing_holds_answers_back"), pytest.raises(ViolationError, match="reads nothing"):
        trio.run(request_and_read_nothing, clock=MockClock(autojump_threshold=0))
