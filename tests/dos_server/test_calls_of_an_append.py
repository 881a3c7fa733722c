"""What an append costs a server: the calls of functions, which need no clock and no quiet machine."""

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import trio
from trio.testing import MockClock

import dos_protocol
import dos_server
from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest
from dos_protocol.frames import encode_frame
from dos_server.limits import log_bytes_embedded
from dos_server.memory.host import MemoryHost, MemoryPorts
from dos_server.memory.network import MemoryNetwork, MemoryStream, MemoryTimers

WRITERS: Final = 64
ROUNDS: Final = 8
CALLS_MAX: Final = 190
"""An append makes 179. It was 247 when each append had effects of its own."""
_COUNTED: Final = tuple(
    f"{Path(package.__file__ or '').parent}{os.sep}" for package in (dos_protocol, dos_server)
)
_SIMULATED: Final = f"{_COUNTED[1]}memory{os.sep}"


class Calls:
    """Counts calls of functions of the server, and of functions in C that these call. Used with `with`."""

    def __init__(self) -> None:
        self.of = Counter[str]()

    def _note(self, frame: Any, event: str, called: Any) -> None:
        code = frame.f_code
        where = code.co_filename
        if event in ("call", "c_call") and where.startswith(_COUNTED) and not where.startswith(_SIMULATED):
            self.of[code.co_qualname if event == "call" else f"{called.__name__} in {code.co_qualname}"] += 1

    def __enter__(self) -> None:
        sys.setprofile(self._note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


class Writer:
    """A client of one directory, which it claims. It sends and receives the bytes of the protocol itself."""

    def __init__(self, number: int, stream: MemoryStream) -> None:
        self._directory = f"bench.w{number:04d}"
        self._stream = stream
        self._fold = PrefixDigest()
        self._buffer = bytearray(1 << 16)

    async def claim(self) -> None:
        claim = m.ChangeDirectory(self._directory, claim=True, epoch=1, writer_id=os.urandom(16))
        for request in (m.Hello(), claim):
            self.send(encode_frame(m.encode(request, 1)))
            assert await self._stream.recv_into(self._buffer)

    def next_append(self) -> bytes:
        data = os.urandom(1024)
        frame = encode_frame(m.encode(m.Append("records", self._fold.size, self._fold.value, data), 2))
        self._fold.update(data)
        return frame

    def send(self, frame: bytes) -> None:
        assert self._stream.socket.sendmsg([frame]) == len(frame)

    async def wait_synced(self) -> None:
        count = await self._stream.recv_into(self._buffer)
        ack = encode_frame(m.encode(m.DurabilityAck("records", self._fold.size, self._fold.size)))
        assert self._buffer[:count] == ack


async def _round(writers: list[Writer], calls: Calls) -> None:
    """Let each writer append once, all in one round of the server, and wait for the acknowledgements."""
    frames = [one.next_append() for one in writers]
    with calls:
        for one, frame in zip(writers, frames, strict=True):
            one.send(frame)
        while not all(one._stream.socket.readable for one in writers):
            await trio.lowlevel.checkpoint()
    for one in writers:
        await one.wait_synced()


async def _counted() -> Counter[str]:
    calls, timers = Calls(), MemoryTimers()
    network = MemoryNetwork(timers)
    host = MemoryHost(network, "server.memory", 9999, lambda: MemoryPorts(timers))
    async with trio.open_nursery() as nursery:
        host.start(nursery, log_bytes=log_bytes_embedded)
        nursery.start_soon(timers.run)
        writers = [Writer(number, await network.connect("server.memory", 9999)) for number in range(WRITERS)]
        for one in writers:
            await one.claim()
        await _round(writers, Calls())  # which makes the files
        for _ in range(ROUNDS):
            await _round(writers, calls)
        nursery.cancel_scope.cancel()
    return calls.of


def test_an_append_costs_a_server_few_calls() -> None:
    """Measured where 64 writers append 1 KiB each in one round: 1 record, 64 sockets."""
    calls = trio.run(_counted, clock=MockClock())  # it stands still, so nothing is due
    appends = WRITERS * ROUNDS
    per_append = calls.total() / appends
    most = "\n".join(f"{count / appends:6.2f} {name}" for name, count in calls.most_common(400))
    assert per_append <= CALLS_MAX, f"{per_append:.0f} calls per append:\n{most}"
    assert calls["ServerCore._log_synced"] == ROUNDS, "one record has the appends of a round"
