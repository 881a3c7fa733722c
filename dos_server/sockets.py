"""Socket options, accepting and closing connections, and how many there may be."""

import contextlib
import logging
import resource
import socket
from collections.abc import Iterator
from typing import Final

import trio

from dos_protocol import messages as m
from dos_protocol.errors import VERDICTS, ErrorCode
from dos_protocol.frames import encode_frame
from dos_server.limits import (
    accepts_of_round_max,
    descriptors_reserved,
    directories_loaded_max,
    linger_seconds,
    open_files_max,
    version0_silence_seconds_max,
)
from dos_server.ports import Listener, Rounds, Socket

logger = logging.getLogger("dos.server")
_SCRATCH_BYTES: Final = 16 * 1024
_INTERNET = (socket.AF_INET, socket.AF_INET6)


def descriptors_for_connections() -> int:
    """Return how many descriptors of this process are left for connections after those for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = open_files_max + directories_loaded_max + descriptors_reserved
    return max(soft - reserved, soft // 4)


def accept_some(listener: Listener) -> Iterator[Socket]:
    """Yield waiting connections, at most as many as one round accepts. Raises OSError."""
    for _ in range(accepts_of_round_max):
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        prepare(sock)
        yield sock


def prepare(sock: Socket) -> None:
    """Set the options of a connection that was just accepted."""
    sock.setblocking(False)  # noqa: FBT003
    if sock.family in _INTERNET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def notice_silence(sock: Socket) -> None:
    """Set keep-alive for version 0: nothing else releases the lock of a client whose machine is gone."""
    if sock.family in _INTERNET:
        pause = version0_silence_seconds_max // 4
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        milliseconds = 1000 * version0_silence_seconds_max
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def reject(sock: Socket, open_now: int) -> None:
    """Report to a peer that there are too many connections, and close."""
    report_busy(sock, open_now)
    sock.close()


def report_busy(sock: Socket, open_now: int) -> None:
    """Report to a peer that there are too many connections, and that it may try again."""
    text = f"{open_now} connections are open"
    busy = m.Error(int(ErrorCode.BUSY), text, VERDICTS[ErrorCode.BUSY].remedy)
    try:
        sock.send(encode_frame(m.encode(busy)))
    except OSError:
        logger.debug("a rejected peer was already gone")


async def linger(sock: Socket, readiness: Rounds) -> None:
    """Read and discard what the peer still sends, for at most `linger_seconds`.

    Closing with unread bytes resets the connection, and the reset can overtake the error that was sent.
    """
    with contextlib.suppress(OSError), trio.move_on_after(linger_seconds):
        sock.shutdown(socket.SHUT_WR)
        scratch = bytearray(_SCRATCH_BYTES)
        while True:
            await readiness.wait_readable(sock)
            if not sock.recv_into(scratch):
                return


def peer_of(sock: Socket) -> str:
    """Return the peer's address, for the log."""
    try:
        name = sock.getpeername()
    except OSError:
        return "a disconnected peer"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
