"""Measure large transfers in one direction: a durable stream in version 1 and in version 0, and the read of a
large object.

Requests are built before the clock starts. Answers are counted, not verified, so that the figures measure
the server and not the client.

Each uses one connection. Run with `load.run_apart`.
"""

import os
import socket
import sys
import time
from pathlib import Path
from typing import Final

from load import Load
from load_sessions import Watermarks, append_heads, dos_login

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_protocol import messages as m  # noqa: E402
from dos_protocol.frames import encode_frame  # noqa: E402
from dos_protocol.limits import MIB, frame_header_bytes, payload_bytes_max  # noqa: E402
from tests.support.v0_client import V0Connection  # noqa: E402

WINDOW_BYTES: Final = 16 * MIB
GETS_IN_FLIGHT: Final = 8

Address = tuple[str, int]


def durable_stream(address: Address, total: int, append_bytes: int) -> Load:
    """Append to one object until everything is synced, with at most 16 MiB unsynced."""
    block = os.urandom(append_bytes)
    heads = append_heads("stream", block, total // append_bytes)
    sock = dos_login(address, "streams")
    watermarks = Watermarks()
    begin, worked = time.perf_counter(), time.process_time()
    for number, head in enumerate(heads, 1):
        sent = sock.sendmsg([head, block])
        if sent < len(head) + append_bytes:
            sock.sendall(memoryview(head + block)[sent:])
        while number * append_bytes - watermarks.synced > WINDOW_BYTES:
            watermarks.take(sock.recv(65_536))
    while watermarks.synced < len(heads) * append_bytes:
        watermarks.take(sock.recv(65_536))
    seconds = time.perf_counter() - begin
    return Load(len(heads), seconds, (time.process_time() - worked) / seconds)


def version0_stream(address: Address, total: int, piece_bytes: int) -> Load:
    """Send the same in version 0: raw bytes, until the last status reports that all are synced."""
    block = os.urandom(piece_bytes)
    count = total // piece_bytes
    with V0Connection(address, reply_seconds=60) as connection:
        connection.use("streams0")
        connection.append("stream", 0)
        begin, worked = time.perf_counter(), time.process_time()
        for _ in range(count):
            connection.send(block)
        statuses = connection.finish()
        seconds = time.perf_counter() - begin
    if not statuses or statuses[-1] != (count * piece_bytes, count * piece_bytes):
        raise RuntimeError(f"{count * piece_bytes} bytes were sent, the last status is {statuses[-1:]}")
    return Load(count, seconds, (time.process_time() - worked) / seconds)


def get_object(address: Address, total: int) -> Load:
    """GET the object of `durable_stream` in pieces of 1 MiB, with several requests in flight."""
    sock = dos_login(address, "streams")
    name = "stream"
    asks = [
        encode_frame(m.encode(m.Get(name, offset, min(payload_bytes_max, total - offset)), 1))
        for offset in range(0, total, payload_bytes_max)
    ]
    # an answer is header, meta (offset, synced, name) and payload; the total of all answers
    expected = total + len(asks) * (frame_header_bytes + 16 + 1 + len(name))
    view = memoryview(bytearray(256 * 1024))
    begin, worked = time.perf_counter(), time.process_time()
    got, asked = 0, 0
    while got < expected:
        goal = min(len(asks), got // payload_bytes_max + GETS_IN_FLIGHT)
        if goal > asked:
            sock.sendall(b"".join(asks[asked:goal]))
            asked = goal
        count = sock.recv_into(view)
        if not count:
            raise EOFError("the server closed the connection")
        got += count
    seconds = time.perf_counter() - begin
    _demand_silence(sock)
    return Load(len(asks), seconds, (time.process_time() - worked) / seconds)


def _demand_silence(sock: socket.socket) -> None:
    """Check that no other bytes follow: the next answer is that of a PING."""
    ping = encode_frame(m.encode(m.Ping(b"?"), 7))
    pong = encode_frame(m.encode(m.Pong(b"?"), 7))
    sock.sendall(ping)
    if (came := sock.recv(65_536)) != pong:
        raise RuntimeError(f"received more than was requested: {came[:80]!r}")
