"""The sessions of the load generator: the same appends in the protocols of DOS and Redis.

A session has a socket and requests as bytes, which are built before the clock starts. It derives from the
answers how many requests are settled, that is, durable. So the work of the generator is the same for both
protocols: it sends bytes and reads answers.

`load` decides when requests are sent, and measures the times.
"""

import socket
import struct
from collections.abc import Sequence
from typing import Final, Protocol

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest
from dos_protocol.frames import Frame, FrameDecoder, encode_frame, frame_head
from dos_protocol.limits import frame_header_bytes
from dos_protocol.messages import refused

Address = tuple[str, int]

_LENGTHS: Final = struct.Struct(">II")
_SYNCED: Final = struct.Struct(">Q")
_OPCODE_AT: Final = 3
_LENGTHS_AT: Final = 16
_SYNCED_AT: Final = frame_header_bytes + 8


class Session(Protocol):
    """A connection that appends the same bytes again and again to one object of its own."""

    sock: socket.socket
    requests: Sequence[bytes]

    def settled(self, data: bytes) -> int:
        """Process an answer. Returns the total number of requests that are durable."""


def connect(address: Address) -> socket.socket:
    sock = socket.create_connection(address, timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def dos_login(address: Address, directory: str) -> socket.socket:
    """Return a connection that was welcomed and has entered the directory, without a claim."""
    sock = connect(address)
    decoder = FrameDecoder()
    for request in (m.Hello(client="bench server"), m.ChangeDirectory(directory)):
        sock.sendall(encode_frame(m.encode(request, 1)))
        answer(sock, decoder)
    return sock


def answer(sock: socket.socket, decoder: FrameDecoder) -> m.Message:
    """Return the next message. Raises the error of an ERROR message, EOFError at the end."""
    while (frame := decoder.next_frame()) is None:
        decoder.receive(_received(sock))
    message = m.decode(Frame(frame.opcode, frame.request_id, frame.meta, bytes(frame.payload)))
    if isinstance(message, m.Error):
        raise refused(message)
    return message


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(65_536)
    if not data:
        raise EOFError("the server closed the connection")
    return data


def append_heads(name: str, block: bytes, count: int) -> list[bytes]:
    """Return the header and meta of `count` consecutive appends of the block."""
    fold, heads = PrefixDigest(), []
    for _ in range(count):
        heads.append(frame_head(m.encode(m.Append(name, fold.size, fold.value, block), 2)))
        fold.update(block)
    return heads


class Watermarks:
    """Reads `synced` from durability acks. Verifies no digest, so that the figures measure the server."""

    def __init__(self) -> None:
        self.synced = 0
        self._rest = b""

    def take(self, data: bytes) -> int:
        """Return the last reported `synced`. Raises the error of an ERROR message, EOFError at the end."""
        if not data:
            raise EOFError("the server closed the connection")
        data = self._rest + data if self._rest else data
        start = 0
        while len(data) - start >= frame_header_bytes:
            meta_bytes, payload_bytes = _LENGTHS.unpack_from(data, start + _LENGTHS_AT)
            end = start + frame_header_bytes + meta_bytes + payload_bytes
            if end > len(data):
                break
            if data[start + _OPCODE_AT] == m.Opcode.DURABILITY_ACK:
                (self.synced,) = _SYNCED.unpack_from(data, start + _SYNCED_AT)
            else:
                self._unexpected(data[start:end])
            start = end
        self._rest = data[start:]
        return self.synced

    def _unexpected(self, data: bytes) -> None:
        decoder = FrameDecoder()
        decoder.receive(data)
        frame = decoder.next_frame()
        assert frame is not None
        message = m.decode(frame)
        if isinstance(message, m.Error):
            raise refused(message)
        raise ValueError(f"{message} where watermarks were expected")


class DosSession:
    """A session that appends to an object of DOS."""

    def __init__(self, address: Address, directory: str, name: str, block: bytes, count: int) -> None:
        self.sock = dos_login(address, directory)
        self.requests = [head + block for head in append_heads(name, block, count)]
        self._block_bytes = len(block)
        self._watermarks = Watermarks()

    def settled(self, data: bytes) -> int:
        return self._watermarks.take(data) // self._block_bytes


class ClaimSession:
    """A session that claims a directory of its own, and appends its first record. The first request, before
    the clock starts, is a PING.
    """

    def __init__(self, address: Address, directory: str) -> None:
        self.sock = connect(address)
        self._decoder = FrameDecoder()
        self.sock.sendall(encode_frame(m.encode(m.Hello(client="bench server"), 1)))
        answer(self.sock, self._decoder)
        claim = m.ChangeDirectory(directory, claim=True, epoch=1, writer_id=bytes(16))
        messages = (m.Ping(b""), claim, m.Append("first", 0, 0, b"record"))
        self.requests = [encode_frame(m.encode(one, 2)) for one in messages]
        self._answers = 0

    def settled(self, data: bytes) -> int:
        if not data:
            raise EOFError("the server closed the connection")
        self._decoder.receive(data)
        while (frame := self._decoder.next_frame()) is not None:
            message = m.decode(frame)
            if isinstance(message, m.Error):
                raise refused(message)
            self._answers += not isinstance(message, m.DurabilityAck) or message.synced > 0
        return self._answers


class RedisSession:
    """A session that sends APPEND to a string of Redis. The answer is its length, after the sync of the log.

    With `appendfsync always`, one sync covers what arrived in one iteration of the event loop; the answers
    follow.
    """

    def __init__(self, address: Address, directory: str, name: str, block: bytes, count: int) -> None:
        self.sock = connect(address)
        key = f"{directory}/{name}".encode()
        head = b"*3\r\n$6\r\nAPPEND\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, len(block))
        self.requests = [head + block + b"\r\n"] * count
        self._answers = 0

    def settled(self, data: bytes) -> int:
        if not data:
            raise EOFError("the server closed the connection")
        if b"-" in data:
            raise ValueError(f"Redis refuses: {data[:200]!r}")
        self._answers += data.count(b"\n")
        return self._answers
