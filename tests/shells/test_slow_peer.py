"""Row 13: a peer that takes its time is answered whole; what did not fit waits, and comes after."""

import os

import trio
from trio.testing import MockClock

from dos_protocol.frames import FrameDecoder
from dos_protocol.limits import MIB
from dos_protocol.messages import Data, decode
from dos_server.testing import memory_server
from tests.shells.bugs import planted
from tests.shells.repeated_gets import repeated_gets

CONTENT = os.urandom(MIB)
GETS = 4
TAKEN_AT_ONCE = 10_000


async def request_and_read_slowly() -> bytes:
    """Request an object of 1 MiB some times, and read the answers in small pieces with pauses. Return
    them."""
    taken = b""
    async with memory_server(seed=1) as server, repeated_gets(server, CONTENT, GETS) as stream:
        decoder = FrameDecoder()
        with trio.move_on_after(60):
            while len(taken) < GETS * MIB:
                decoder.wrote(await stream.recv_into(decoder.writable()[:TAKEN_AT_ONCE]))
                while (frame := decoder.next_frame()) is not None:
                    answer = decode(frame)
                    taken += bytes(answer.payload) if isinstance(answer, Data) else b""
                await trio.sleep(0.001)
    return taken


def test_answers_that_a_socket_takes_in_parts_arrive_whole() -> None:
    assert trio.run(request_and_read_slowly, clock=MockClock(autojump_threshold=0)) == CONTENT * GETS


def test_it_is_noticed_when_they_do_not() -> None:
    with planted("bytes_that_did_not_fit_are_dropped"):
        taken = trio.run(request_and_read_slowly, clock=MockClock(autojump_threshold=0))
    assert len(taken) < GETS * MIB
