"""A client of version 1 written from protocol.md alone: the standard library and xxhash, nothing of ours.

It does what an application needs and no more, one request at a time but for appends. An author of a client
in another language may begin here; after a change of protocol.md this checks whether it still suffices.
"""

import socket
import struct
from typing import NamedTuple, Self

import xxhash

BLOCK = 65_536
NONE = bytes(16)
NO_DIGEST = 2**64 - 1
HELLO, CWD, APPEND, GET, LIST, STAT, DELETE, PING, QUIT = 1, 2, 3, 4, 5, 6, 7, 9, 10
WELCOME, OPENED, DURABILITY_ACK, DATA, LISTING, STATED, DELETED, PONG, BYE = (
    129, 130, 131, 132, 133, 134, 135, 137, 138,
)  # fmt: skip
ERROR = 255
ANSWERS = {
    HELLO: WELCOME, CWD: OPENED, GET: DATA, LIST: LISTING, STAT: STATED, DELETE: DELETED, PING: PONG,
    QUIT: BYE,
}  # fmt: skip


class RefusedByServerError(Exception):
    """An ERROR: its code, its number, its words."""

    def __init__(self, code: int, actual: int, message: str) -> None:
        super().__init__(f"{message} (code {code}, actual {actual})")
        self.code = code
        self.actual = actual


class Entry(NamedTuple):
    """One object."""

    name: str
    received: int
    synced: int
    digest: int
    marks: int


def fold(data: bytes, digest: int = 0) -> int:
    """The prefix digest of content, or of what follows whole blocks that have `digest`."""
    for start in range(0, len(data), BLOCK):
        digest = xxhash.xxh3_64_intdigest(data[start : start + BLOCK], seed=digest)
    return digest


def _name(text: str) -> bytes:
    return bytes([len(text)]) + text.encode("latin-1")


class PlainClient:
    """A session. `synced`: the size on stable storage of each object that was appended to."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=30)
        self._last_id = 0
        self.synced: dict[str, int] = {}
        text = b"a client from protocol.md"
        hello = struct.pack(f">B16sQHH{len(text)}s", 1, NONE, 0, 0, len(text), text)
        meta, _ = self._ask(HELLO, hello)
        _, self.server_id, self.payload_max, self.in_flight_max, self.entries_max = struct.unpack_from(
            ">B16sIII", meta
        )

    # Requests

    def open(self, directory: str) -> tuple[int, dict[str, Entry]]:
        """To read: the epoch held, and the objects."""
        return self._open(struct.pack(">BQ16s", 0, 0, NONE) + _name(directory))

    def claim(self, directory: str, epoch: int, writer_id: bytes) -> tuple[int, dict[str, Entry]]:
        return self._open(struct.pack(">BQ16s", 1, epoch, writer_id) + _name(directory))

    def append(self, name: str, size: int, digest: int, data: bytes) -> None:
        """Behind content of that size with that prefix digest. Does not wait: see `wait_synced`."""
        self._send(APPEND, struct.pack(">QQ", size, digest) + _name(name), data)

    def wait_synced(self, name: str, size: int) -> None:
        while self.synced.get(name, 0) < size:
            self._receive()

    def get(self, name: str, offset: int, max_bytes: int, wait_ms: int = 0) -> bytes:
        return self._ask(GET, struct.pack(">QII", offset, max_bytes, wait_ms) + _name(name))[1]

    def read(self, name: str, offset: int = 0) -> bytes:
        """All that is synced from there."""
        data = b""
        while more := self.get(name, offset + len(data), self.payload_max):
            data += more
        return data

    def list_names(self, prefix: str = "") -> list[str]:
        """Page by page."""
        names: list[str] = []
        more = True
        while more:
            after = names[-1] if names else ""
            meta, payload = self._ask(LIST, struct.pack(">I", 3) + _name(prefix) + _name(after))
            names += _entries(payload)
            more = meta == b"\1"
        return names

    def stat(self, name: str, digest_at: int = NO_DIGEST) -> tuple[Entry, int]:
        meta, payload = self._ask(STAT, struct.pack(">Q", digest_at) + _name(name))
        (entry,) = _entries(payload).values()
        return entry, struct.unpack(">QQ", meta)[1]

    def delete(self, name: str) -> None:
        self._ask(DELETE, _name(name))

    def ping(self, data: bytes) -> bytes:
        return self._ask(PING, b"", data)[1]

    def quit(self) -> None:
        self._ask(QUIT)
        assert self._socket.recv(1) == b"", "the connection ends behind BYE"
        self._socket.close()

    # Frames

    def _open(self, meta: bytes) -> tuple[int, dict[str, Entry]]:
        meta, payload = self._ask(CWD, meta)
        (epoch,) = struct.unpack_from(">Q", meta)
        return epoch, _entries(payload)

    def _ask(self, opcode: int, meta: bytes = b"", payload: bytes = b"") -> tuple[bytes, bytes]:
        request_id = self._send(opcode, meta, payload)
        while True:
            answer, number, meta, payload = self._receive()
            if number == request_id:
                assert answer == ANSWERS[opcode], answer
                return meta, payload

    def _send(self, opcode: int, meta: bytes, payload: bytes) -> int:
        self._last_id += 1
        head = struct.pack(">2sBBHHQII", b"\xd0\x5e", 1, opcode, 0, 0, self._last_id, len(meta), len(payload))
        digest = xxhash.xxh3_64_intdigest(head + meta + payload)
        self._socket.sendall(head + struct.pack(">Q", digest) + meta + payload)
        return self._last_id

    def _receive(self) -> tuple[int, int, bytes, bytes]:
        """Read the next frame: a durability ack is recorded, an error raised."""
        head = self._exactly(32)
        magic, version, opcode, _, reserved, number, meta_bytes, payload_bytes, digest = struct.unpack(
            ">2sBBHHQIIQ", head
        )
        assert (magic, version, reserved) == (b"\xd0\x5e", 1, 0)
        meta, payload = self._exactly(meta_bytes), self._exactly(payload_bytes)
        assert digest == xxhash.xxh3_64_intdigest(head[:24] + meta + payload)
        if opcode == DURABILITY_ACK:
            self.synced[meta[17:].decode()] = struct.unpack_from(">8xQ", meta)[0]
        elif opcode == ERROR:
            code, actual, count = struct.unpack_from(">HQH", meta)
            raise RefusedByServerError(code, actual, meta[12 : 12 + count].decode())
        return opcode, number, meta, payload

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise EOFError("the server closed the connection")
            data += more
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def _entries(payload: bytes) -> dict[str, Entry]:
    (count,) = struct.unpack_from(">I", payload)
    position, found = 4, {}
    for _ in range(count):
        end = position + 1 + payload[position]
        name = payload[position + 1 : end].decode()
        found[name] = Entry(name, *struct.unpack_from(">QQQB", payload, end))
        position = end + 25
    assert position == len(payload)
    return found
